//! `cargo xtask up`: from a fresh checkout to an answering model.
//!
//! Everything but preparing and building is `rooflet up`, so that an installed binary does the
//! same.

use std::{convert::Infallible, os::unix::process::CommandExt};

use anyhow::{Context, Result};

use crate::{console, setup};

const QUESTION: &str = "What is rooflet?";

/// Becomes `rooflet up` on the example model; `args` are added to its command line.
///
/// Both this task and `cargo run` replace their process, so that signals and the exit code are
/// rooflet's own. `--release` before them builds with the release profile. The default is the dev
/// profile, which is there minutes earlier on a fresh machine; MLX, where the time of an answer
/// goes, is optimised in both.
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
