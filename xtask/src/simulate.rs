//! `cargo xtask simulate`: runs `rooflet simulate` in an optimised build without the engine, which
//! is fast enough for large fleets.

use std::process::Command;

use anyhow::Result;

use crate::console::{self, Outcome};

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    console::run(optimised().arg("simulate").args(args))
}

/// Returns a command for `rooflet` in an optimised build with assertions and without the engine.
pub(crate) fn optimised() -> Command {
    let mut rooflet = console::cargo();
    rooflet.args([
        "run",
        "--quiet",
        "--profile",
        "fast",
        "--no-default-features",
        "--",
    ]);
    rooflet
}
