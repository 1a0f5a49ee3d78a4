//! `cargo xtask generate`: updates the files that are generated from the code.

pub(crate) mod chart;

use std::fs;

use anyhow::{Context, Result};

use crate::{console, monitoring, test_kubernetes};

/// Updates manifests/, the chart's generated files, docs/reference, the index of docs/runbooks,
/// examples/launchd and the models of the self test.
/// Tests fail if one of these files is stale.
pub(crate) fn run() -> Result<()> {
    for file in monitoring::files() {
        file.write()?;
    }
    let definitions = rooflet(&["crd"])?;
    let path = console::root().join("manifests/crds.yaml");
    fs::write(&path, &definitions).with_context(|| format!("writing `{}`", path.display()))?;
    rooflet(&["reference", "."])?;
    for file in chart::files(&definitions)? {
        file.write()?;
    }
    match test_kubernetes::find_helm()? {
        Some(helm) => chart::plain_manifests(&helm)?.write()?,
        None => println!("manifests/rooflet.yaml is unchanged, because Helm is not installed"),
    }
    write_archive()?;
    println!("manifests, charts/rooflet, docs/reference and the models of the self test are up to date");
    Ok(())
}

/// Writes the archive of the self test, with the code of the test that compares it with the
/// fixtures.
fn write_archive() -> Result<()> {
    let mut cargo = console::cargo();
    cargo.args([
        "test",
        "--quiet",
        "-p",
        "rooflet-selftest",
        "--lib",
        "archive_equals_the_fixtures",
    ]);
    console::output(cargo.env("ROOFLET_WRITE_ARCHIVE", "1")).map(drop)
}

/// Runs the binary in the repository's root and returns its standard output.
fn rooflet(args: &[&str]) -> Result<String> {
    let mut cargo = console::cargo();
    cargo.args(["run", "--quiet", "--bin", "rooflet", "--"]);
    console::output(cargo.args(args))
}
