//! `cargo xtask fit-roofline`: fits the constants of the performance model to the measurements in
//! src/roofline-fit.

use anyhow::Result;

use crate::console;

/// Runs the crate `roofline-fit`, which uses the predictor of the product.
pub(crate) fn run() -> Result<()> {
    let root = console::root();
    let mut cargo = console::cargo();
    cargo.args(["run", "--quiet", "--package", "rooflet-roofline-fit", "--"]);
    cargo.arg(&root);
    print!("{}", console::output(&mut cargo)?);
    Ok(())
}
