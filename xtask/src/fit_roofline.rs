//! `cargo xtask fit-roofline`: finds the predictor's constants anew from the measurements in
//! src/roofline-fit.

use anyhow::Result;

use crate::console;

/// A crate of its own does the work: the fit runs the predictor itself, not a copy of it.
pub(crate) fn run() -> Result<()> {
    let root = console::root();
    let mut cargo = console::cargo();
    cargo.args(["run", "--quiet", "--package", "rooflet-roofline-fit", "--"]);
    cargo.arg(&root);
    print!("{}", console::output(&mut cargo)?);
    Ok(())
}
