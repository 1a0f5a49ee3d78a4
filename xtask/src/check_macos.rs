//! `cargo xtask check-macos`: clippy over the code as a Mac would compile it, from Linux.
//!
//! Nothing is linked or run, so neither Xcode nor a Mac is needed, only Rust's standard library for
//! the target.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    console::{self, Outcome},
    setup,
};

const TARGET: &str = "aarch64-apple-darwin";

/// Read by this check only: a Mac that read it would lose its real build of MLX.
const CONFIG: &str = ".cargo/mlx-macos-check.generated.toml";

pub(crate) fn run() -> Result<Outcome> {
    if env::consts::OS == "macos" {
        return Ok(Outcome::Skipped(
            "this is a Mac: clippy checks the code for it already".into(),
        ));
    }
    if let Err(reason) = install_target()? {
        return Ok(Outcome::Skipped(reason));
    }
    setup::run()?;
    let config = setup::cargo_config(TARGET, setup::Prefix::locate()?.dir());
    fs::write(console::root().join(CONFIG), config).with_context(|| format!("writing {CONFIG}"))?;

    let mut clippy = console::cargo();
    clippy.args(["clippy", "--config", CONFIG, "--target", TARGET]);
    clippy.args(["--workspace", "--all-targets", "--", "-D", "warnings"]);
    // Crates that compile C for the target (ring) would ask for Apple's compiler; the check links
    // nothing.
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

/// Makes sure that the target's standard library is there; the inner error says why it cannot be.
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
    let missing = |error| format!("Rust's standard library for {TARGET} cannot be installed: {error:#}");
    Ok(console::output(&mut rustup).map(drop).map_err(missing))
}
