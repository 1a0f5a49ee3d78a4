//! `cargo xtask up`: builds rooflet and runs `rooflet up` with the example model.

use std::{convert::Infallible, os::unix::process::CommandExt};

use anyhow::{Context, Result};

use crate::{console, setup};

const QUESTION: &str = "What is rooflet?";

/// Replaces this process by `rooflet up` with the example model; `args` are appended to its command
/// line. Signals and the exit code are those of rooflet.
///
/// If the first argument is `--release`, the release profile is used. The default is the dev
/// profile, which compiles minutes faster. MLX, which determines the speed of answers, is optimised
/// in both.
pub(crate) fn run(args: &[&str]) -> Result<Infallible> {
    setup::run()?;
    let root = console::root();
    let examples = root.join("examples");
    let (build, args) = match args {
        ["--release", rest @ ..] => (&["--release"][..], rest),
        rest => (&[][..], rest),
    };
    let mut cargo = console::cargo();
    cargo
        .args(["run", "--bin", "rooflet"])
        .args(build)
        .args(["--", "up"]);
    cargo.arg("--data-dir").arg(root.join(".rooflet"));
    cargo.arg("--model-dir").arg(examples.join("models"));
    cargo.arg("--apply").arg(examples.join("guide.yaml"));
    cargo.args(["--ask", QUESTION]).args(args);
    Err(cargo.exec()).context("running cargo")
}
