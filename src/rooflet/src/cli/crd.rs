//! `rooflet crd`

use super::{Failure, ui};
use rooflet_api::crd;

/// Arguments of `rooflet crd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    ui::output(&crd::to_yaml()?);
    Ok(())
}
