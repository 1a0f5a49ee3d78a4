//! `cargo xtask test-kubernetes`: the end-to-end tests against a real kube-apiserver.

mod binaries;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;

use crate::{
    console::{self, Outcome},
    setup,
};

/// Time limit of the build of the binaries when it is one of many checks.
const BUILD_LIMIT_OF_CHECK: Duration = Duration::from_mins(20);

/// Builds the binaries, however long this takes, and runs the tests.
pub(crate) fn run() -> Result<Outcome> {
    run_with(Duration::MAX)
}

/// Like [`run`], but gives up if the build takes very long.
pub(crate) fn check() -> Result<Outcome> {
    run_with(BUILD_LIMIT_OF_CHECK)
}

fn run_with(build_limit: Duration) -> Result<Outcome> {
    setup::run()?;
    let search_path = match binaries::prepare(build_limit)? {
        binaries::Found::SearchPath(directories) => directories,
        binaries::Found::Missing(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut test = console::cargo();
    test.args(["test", "--workspace", "--test", "e2e", "--", "kubernetes::"]);
    test.env("ROOFLET_KUBERNETES_PATH", &search_path);
    console::run(&mut test)
}

/// Returns Helm: that on the PATH, or that of the tests if it was built.
pub(crate) fn find_helm() -> Result<Option<PathBuf>> {
    if console::is_installed("helm") {
        return Ok(Some("helm".into()));
    }
    Ok(binaries::built()?.map(|directory| directory.join("helm")))
}
