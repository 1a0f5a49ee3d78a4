//! Linux only: lets this crate's tests find the libmlx.so that `cargo xtask setup` prepared, and
//! hands its directory to the build scripts of dependents (`DEP_ROOFLET_MLX_LIBDIR`), because a
//! linker argument holds for one crate only.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // From `.cargo/mlx-linux.generated.toml`, through mlx-sys. A RUNPATH (the default), not an
    // RPATH: LD_LIBRARY_PATH must be able to put MLX's CUDA build in its place.
    if let Ok(libdir) = env::var("DEP_MLX_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
        println!("cargo::metadata=libdir={libdir}");
    }
}
