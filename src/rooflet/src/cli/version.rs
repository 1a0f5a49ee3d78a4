//! `rooflet version`

use super::{Failure, ui};

/// Arguments of `rooflet version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    let engine = if cfg!(feature = "mlx") { "mlx" } else { "none" };
    ui::output(&format!(
        "rooflet {} (engine: {engine})\n",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(())
}
