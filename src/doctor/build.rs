//! Linux only: lets the binary and the tests find the libmlx.so that `cargo xtask setup` prepared.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // From the build script of rooflet-mlx; absent on a Mac and in a build without the engine.
    if let Ok(libdir) = env::var("DEP_ROOFLET_MLX_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
    }
}
