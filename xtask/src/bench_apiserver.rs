//! `cargo xtask bench-apiserver`: compares the embedded API server with kube-apiserver and etcd.

use anyhow::Result;

use crate::{
    console::{self, Outcome},
    setup, test_kubernetes,
};

/// Builds the binaries, however long this takes, and runs the benchmark in a release build.
pub(crate) fn run() -> Result<Outcome> {
    let search_path = match test_kubernetes::find_binaries()? {
        Ok(search_path) => search_path,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    setup::run()?;
    let mut bench = console::cargo();
    bench.args(["bench", "--bench", "e2e", "--", "kubernetes"]);
    console::run(bench.env("ROOFLET_KUBERNETES_PATH", search_path))
}
