//! `cargo xtask bench-roofline`: compares predicted and measured decode speed on this machine.

use std::{convert::Infallible, os::unix::process::CommandExt};

use anyhow::{Context, Result};

use crate::{console, setup};

/// Replaces this process by `rooflet bench-roofline` with `args`. The models are kept below
/// target/, so that only the first run writes them.
pub(crate) fn run(args: &[&str]) -> Result<Infallible> {
    setup::run()?;
    let models = console::root().join("target").join("bench-models");
    let mut cargo = console::cargo();
    cargo.args(["run", "--bin", "rooflet", "--", "bench-roofline", "--models"]);
    Err(cargo.arg(models).args(args).exec()).context("running cargo")
}
