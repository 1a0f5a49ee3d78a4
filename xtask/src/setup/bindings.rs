//! Generation of `bindings.rs`, the Rust declarations of mlx-c, with bindgen (xtask/bindings).

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{mlx_c, wheels};
use crate::console;

/// Flags with which mlx-c declares its half-precision accessors. Without these flags, it declares
/// them only on ARM. The shims contain the headers that mlx-c then includes.
const CLANG_ARGS: &[&str] = &[
    "-D__ARM_FEATURE_FP16_SCALAR_ARITHMETIC",
    "-D__ARM_FEATURE_BF16",
    "-D__fp16=_Float16",
];

/// Returns the inputs of this step, except for the versions.
pub(super) fn recipe() -> impl Iterator<Item = &'static str> {
    let tool = [
        include_str!("../../bindings/Cargo.toml"),
        include_str!("../../bindings/Cargo.lock"),
        include_str!("../../bindings/src/main.rs"),
    ];
    CLANG_ARGS.iter().copied().chain(tool)
}

/// Writes `bindings.rs` to `prefix`.
pub(super) fn generate(mlx_sys: &Path, shims: &Path, prefix: &Path) -> Result<()> {
    // The wheel of libclang has no built-in headers, such as stddef.h. libclang uses those of the
    // C++ compiler instead.
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
    // Only bindgen uses libclang, which has 80 MB.
    fs::remove_dir_all(prefix.join("libclang")).context("removing libclang")
}
