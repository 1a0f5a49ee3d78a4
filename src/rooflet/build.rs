//! Linux: lets the binary and the tests find the libmlx.so that `cargo xtask setup` prepared.
//! macOS: copies MLX's Metal kernels beside the binary.

use std::{env, fs, io, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // From the build script of rooflet-mlx; absent on a Mac and in a build without the engine.
    if let Ok(libdir) = env::var("DEP_ROOFLET_MLX_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
    }
    let glibc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    if env::var("HOST") == env::var("TARGET") && glibc.is_ok_and(|it| it.stdout >= b"glibc 2.36".to_vec()) {
        println!("cargo::rustc-link-arg=-Wl,-z,pack-relative-relocs");
    }
    // Absent on Linux.
    if let (Ok(metallib), Ok(out)) = (env::var("DEP_ROOFLET_MLX_METALLIB"), env::var("OUT_DIR")) {
        println!("cargo::rerun-if-changed={metallib}");
        // OUT_DIR is PROFILE/build/PACKAGE/out, and the binary is in PROFILE.
        if let Some(profile) = Path::new(&out).ancestors().nth(3)
            && let Err(err) = install(Path::new(&metallib), &profile.join("mlx.metallib"))
        {
            println!("cargo::warning=copying {metallib} beside the binary: {err}");
        }
    }
}

/// Replaces the file by a rename, because workers of an older build may have mapped it.
fn install(from: &Path, to: &Path) -> io::Result<()> {
    let partial = to.with_extension("metallib.partial");
    fs::copy(from, &partial)?;
    fs::rename(partial, to)
}
