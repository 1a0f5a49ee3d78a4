//! `cargo xtask fuzz`: runs the parsers and patches of the API server with random input.

use anyhow::Result;

use crate::console::{self, Outcome};

/// Runs the crate `fuzz`, which has the meaning of the arguments.
pub(crate) fn run(args: &[&str]) -> Result<Outcome> {
    let mut cargo = console::cargo();
    cargo.args(["run", "--quiet", "--package", "rooflet-fuzz", "--"]);
    console::run(cargo.args(args))
}
