//! `cargo xtask fit-roofline`: fits the constants of the performance model to the measurements in
//! src/roofline-fit.

use anyhow::Result;

use crate::console;

/// Crates whose code the fit executes most. Without optimisation, the fit takes minutes.
const OPTIMISED: [&str; 2] = ["rooflet-roofline", "rooflet-roofline-fit"];

/// Runs the crate `roofline-fit`, which uses the predictor of the product.
pub(crate) fn run() -> Result<()> {
    let root = console::root();
    let mut cargo = console::cargo();
    cargo.args(["run", "--quiet", "--package", "rooflet-roofline-fit"]);
    for crate_name in OPTIMISED {
        let setting = format!("profile.dev.package.{crate_name}.opt-level=2");
        cargo.args(["--config", &setting]);
    }
    cargo.arg("--");
    cargo.arg(&root);
    print!("{}", console::output(&mut cargo)?);
    Ok(())
}
