//! `rooflet crd`

use super::{Failure, ui};
use crate::api::crd;

/// Arguments of `rooflet crd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    ui::output(&crd::to_yaml()?);
    Ok(())
}
