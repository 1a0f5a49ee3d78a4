//! `bindings.rs`: mlx-c's declarations for Rust, by bindgen in a tool crate of its own
//! (xtask/bindings).

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{mlx_c, wheels};
use crate::console;

/// Makes mlx-c declare its half-precision accessors, which it does on ARM only; the shims hold the
/// headers that it then includes.
const CLANG_ARGS: &[&str] = &[
    "-D__ARM_FEATURE_FP16_SCALAR_ARITHMETIC",
    "-D__ARM_FEATURE_BF16",
    "-D__fp16=_Float16",
];

/// What the outcome of this step depends on, besides the versions.
pub(super) fn recipe() -> impl Iterator<Item = &'static str> {
    let tool = [
        include_str!("../../bindings/Cargo.toml"),
        include_str!("../../bindings/Cargo.lock"),
        include_str!("../../bindings/src/main.rs"),
    ];
    CLANG_ARGS.iter().copied().chain(tool)
}

/// Leaves `bindings.rs` in `prefix`.
pub(super) fn generate(mlx_sys: &Path, shims: &Path, prefix: &Path) -> Result<()> {
    // libclang's wheel has no built-in headers (stddef.h and such); the C++ compiler's do as well.
    let builtin = console::output(Command::new(mlx_c::compiler()).arg("-print-file-name=include"))?;
    let target_dir = prefix.join("bindings-target");
    let mut tool = console::cargo();
    tool.args([
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        "xtask/bindings/Cargo.toml",
        "--target-dir",
    ]);
    tool.arg(&target_dir);
    tool.env("MLX_SYS_DIR", mlx_sys)
        .env("LIBCLANG_PATH", wheels::libclang(prefix));
    tool.arg("--")
        .arg(mlx_sys.join("src/mlx-c"))
        .arg(prefix.join("bindings.rs"));
    tool.arg("-I")
        .arg(shims)
        .arg("-isystem")
        .arg(builtin.trim())
        .args(CLANG_ARGS);
    console::output(&mut tool).context("generating bindings.rs")?;
    fs::remove_dir_all(&target_dir).context("removing the build of bindgen")?;
    // Only bindgen loads libclang: 80 MB that nothing needs any more.
    fs::remove_dir_all(prefix.join("libclang")).context("removing libclang")
}
