//! `cargo xtask check-macos`: checks the code for macOS on a Linux machine.
//!
//! - libclang compiles the Metal source of rooflet's own kernels, with Metal's address spaces.
//! - clippy checks the code for the target macOS, without linking. It requires Rust's standard
//!   library for the target, but neither Xcode nor a Mac.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    console::{self, Outcome},
    setup,
};

const TARGET: &str = "aarch64-apple-darwin";

/// Cargo configuration for this check only. On a Mac, it would disable the build of MLX.
const CONFIG: &str = ".cargo/mlx-macos-check.generated.toml";

pub(crate) fn run() -> Result<Outcome> {
    if env::consts::OS == "macos" {
        return Ok(Outcome::Skipped(
            "on a Mac, the check `clippy` covers this".into(),
        ));
    }
    setup::run()?;
    let kernels = check_kernel_texts()?;
    if kernels != Outcome::Passed {
        return Ok(kernels);
    }
    if let Err(reason) = install_target()? {
        return Ok(Outcome::Skipped(reason));
    }
    let config = setup::cargo_config(TARGET, setup::Prefix::locate()?.dir());
    fs::write(console::root().join(CONFIG), config).with_context(|| format!("writing {CONFIG}"))?;

    let mut clippy = console::cargo();
    clippy.args(["clippy", "--config", CONFIG, "--target", TARGET]);
    clippy.args(["--workspace", "--all-targets", "--", "-D", "warnings"]);
    // Crates that compile C for the target, such as ring, would require Apple's compiler. The check
    // does not need their objects.
    let no_compiler = if Path::new("/bin/true").exists() {
        "/bin/true"
    } else {
        "/usr/bin/true"
    };
    clippy
        .env("CC_aarch64_apple_darwin", no_compiler)
        .env("AR_aarch64_apple_darwin", no_compiler);
    console::run(&mut clippy)
}

/// Runs the tests of rooflet-mlx that load libclang.
fn check_kernel_texts() -> Result<Outcome> {
    let mut test = console::cargo();
    test.args(["test", "--package", "rooflet-mlx", "--lib", "kernel::metal_tests"]);
    test.args(["--", "--include-ignored"]);
    console::run(test.env("ROOFLET_LIBCLANG", setup::libclang()?))
}

/// Installs the target's standard library. The inner error is the reason if that is impossible.
fn install_target() -> Result<Result<(), String>> {
    let libdir = console::output(Command::new("rustc").current_dir(console::root()).args([
        "--print",
        "target-libdir",
        "--target",
        TARGET,
    ]))?;
    if Path::new(libdir.trim()).is_dir() {
        return Ok(Ok(()));
    }
    let mut rustup = Command::new("rustup");
    rustup
        .current_dir(console::root())
        .args(["target", "add", TARGET]);
    let missing = |error| format!("failed to install Rust's standard library for {TARGET}: {error:#}");
    Ok(console::output(&mut rustup).map(drop).map_err(missing))
}
