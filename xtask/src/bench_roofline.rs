//! `cargo xtask bench-roofline`: predicted against measured decode speed, on this machine and in
//! one run.

use std::{convert::Infallible, os::unix::process::CommandExt};

use anyhow::{Context, Result};

use crate::{console, setup};

/// Becomes `rooflet bench-roofline` with `args`. Models are kept below target/, so that only the
/// first run writes them.
pub(crate) fn run(args: &[&str]) -> Result<Infallible> {
    setup::run()?;
    let models = console::root().join("target").join("bench-models");
    let mut cargo = console::cargo();
    cargo.args(["run", "--bin", "rooflet", "--", "bench-roofline", "--models"]);
    Err(cargo.arg(models).args(args).exec()).context("running cargo")
}
