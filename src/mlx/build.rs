//! Makes the tests of this crate find the libmlx.so that `cargo xtask setup` prepared (Linux only).
//! Passes its directory to the build scripts of dependents (`DEP_ROOFLET_MLX_LIBDIR`), because a
//! linker argument applies to one crate only.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // The value comes from `.cargo/mlx-linux.generated.toml` through mlx-sys. The linker writes a
    // RUNPATH (its default) and not an RPATH, so that LD_LIBRARY_PATH can replace the library by
    // MLX's CUDA build.
    if let Ok(libdir) = env::var("DEP_MLX_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
        println!("cargo::metadata=libdir={libdir}");
    }
}
