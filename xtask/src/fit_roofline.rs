//! `cargo xtask fit-roofline`: finds the predictor's constants anew from the measurements in src/roofline/regression.

use anyhow::Result;

use crate::console;

/// The binary does the work: the fit runs the predictor itself, not a copy of it.
pub(crate) fn run() -> Result<()> {
    let root = console::root();
    let mut cargo = console::cargo();
    cargo.args([
        "run",
        "--quiet",
        "--no-default-features",
        "--bin",
        "rooflet",
        "--",
    ]);
    cargo.arg("fit-roofline").arg(&root);
    print!("{}", console::output(&mut cargo)?);
    Ok(())
}
