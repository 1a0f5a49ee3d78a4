//! `cargo xtask generate`: writes the files that are made from the types anew.

use std::fs;

use anyhow::{Context, Result};

use crate::console;

/// Unit tests compare these files with the types, so a stale one cannot land.
pub(crate) fn run() -> Result<()> {
    let mut cargo = console::cargo();
    // The kinds do not need the engine, so neither does this.
    cargo.args([
        "run",
        "--quiet",
        "--no-default-features",
        "--bin",
        "rooflet",
        "--",
        "crd",
    ]);
    let definitions = console::output(&mut cargo)?;
    let path = console::root().join("manifests/crds.yaml");
    fs::write(&path, definitions).with_context(|| format!("writing `{}`", path.display()))?;
    println!("{} is up to date", path.display());
    Ok(())
}
