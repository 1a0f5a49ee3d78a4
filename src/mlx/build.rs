//! Linux: makes the tests of this crate find the libmlx.so that `cargo xtask setup` prepared, and
//! passes its directory to the build scripts of dependents (`DEP_ROOFLET_MLX_LIBDIR`), because a
//! linker argument applies to one crate only.
//!
//! macOS: records the build of MLX and the file of its Metal kernels, and passes the path of the
//! file to the build script of the binary (`DEP_ROOFLET_MLX_METALLIB`).

use std::env;
use std::path::PathBuf;
use std::process::Command;

#[path = "src/metallib/cmake.rs"]
mod cmake;
#[path = "src/metallib/fingerprint.rs"]
mod fingerprint;

/// Oldest macOS that the binary is built for.
const TARGET: &str = "MACOSX_DEPLOYMENT_TARGET";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/metallib");
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => link_library(),
        Ok("macos") => record_build(),
        Ok(_) | Err(_) => {}
    }
}

fn link_library() {
    // The value comes from `.cargo/mlx-linux.generated.toml` through mlx-sys. The linker writes a
    // RUNPATH (its default) and not an RPATH, so that LD_LIBRARY_PATH can replace the library by
    // MLX's CUDA build.
    if let Ok(libdir) = env::var("DEP_MLX_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
        println!("cargo::metadata=libdir={libdir}");
    }
}

fn record_build() {
    println!("cargo::rerun-if-env-changed={TARGET}");
    // Absent in `cargo xtask check-macos`, which does not build MLX.
    let Some(include) = env::var_os("DEP_MLX_INCLUDE") else {
        return;
    };
    let headers: Vec<PathBuf> = env::split_paths(&include).collect();
    let Some(directory) = headers.first().and_then(|first| cmake::directory(first)) else {
        println!("cargo::warning=the build of MLX was not found: rooflet cannot identify its Metal kernels");
        return;
    };
    let build = match cmake::MetalBuild::read(directory, env::var(TARGET).ok().as_deref()) {
        Ok(build) => build,
        Err(problem) => panic!("{problem}"),
    };
    let metallib = build.metallib.display();
    println!("cargo::rerun-if-changed={metallib}");
    println!("cargo::metadata=metallib={metallib}");
    for (name, value) in [
        ("METALLIB", metallib.to_string()),
        ("FINGERPRINT", build.fingerprint.to_string()),
        ("MACOS", build.macos),
        ("OPTIMIZED", build.is_optimized.to_string()),
        ("MATRIX_UNITS", build.has_matrix_units.to_string()),
    ] {
        println!("cargo::rustc-env=ROOFLET_MLX_{name}={value}");
    }
    if let Some(version) = sdk() {
        println!("cargo::rustc-env=ROOFLET_MLX_SDK={version}");
    }
}

fn sdk() -> Option<String> {
    let mut xcrun = Command::new("xcrun");
    let output = xcrun
        .args(["--sdk", "macosx", "--show-sdk-version"])
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    Some(version.trim().to_owned()).filter(|version| !version.is_empty())
}
