//! `cargo xtask simulate`: `rooflet simulate` from a build that is quick to make and quick enough
//! for large fleets.

use std::process::Command;

use anyhow::Result;

use crate::console::{self, Outcome};

pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    console::run(optimised().arg("simulate").args(args))
}

/// `rooflet` for what computes for minutes: optimised, with its assertions, and without the engine.
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
