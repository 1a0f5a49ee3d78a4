//! `cargo xtask test-kubernetes`: the end-to-end tests against a real kube-apiserver.

mod binaries;
mod clients;
mod kube_rs;
mod upstream;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::Result;

use crate::{
    console::{self, Outcome},
    libtest, setup,
};

/// Time limit of the build of the binaries when it is one of many checks.
const BUILD_LIMIT_OF_CHECK: Duration = Duration::from_mins(10);

/// Builds the binaries, however long this takes, and runs the tests.
pub(crate) fn run() -> Result<Outcome> {
    run_with(binaries::prepare(Duration::MAX)?)
}

/// Builds the binaries, however long this takes. Returns their directories, or the reason why there are none.
pub(crate) fn find_binaries() -> Result<std::result::Result<OsString, String>> {
    Ok(match binaries::prepare(Duration::MAX)? {
        binaries::Found::SearchPath(directories) => Ok(directories),
        binaries::Found::Missing(reason) => Err(reason),
    })
}

/// Like [`run`]. Skips the tests if the binaries cannot be built in a short time.
pub(crate) fn check() -> Result<Outcome> {
    match binaries::prepare(BUILD_LIMIT_OF_CHECK) {
        Ok(found) => run_with(found),
        Err(err) => Ok(Outcome::Skipped(format!("{err:#}"))),
    }
}

fn run_with(found: binaries::Found) -> Result<Outcome> {
    let search_path = match found {
        binaries::Found::SearchPath(directories) => directories,
        binaries::Found::Missing(reason) => return Ok(Outcome::Skipped(reason)),
    };
    setup::run()?;
    let clients = clients::prepare().unwrap_or_else(|err| {
        println!("NOT RUN: tests with clients in Go, which were not built: {err:#}");
        None
    });
    let upstream = upstream::prepare().unwrap_or_else(|err| {
        println!("NOT RUN: upstream's tests, which were not built: {err:#}");
        None
    });
    let kube_rs = kube_rs::prepare().map_err(|err| {
        println!("NOT RUN: tests of kube-rs, which were not built: {err:#}");
    });
    libtest::run(&["--workspace", "--test", "e2e"], &["kubernetes::"], |test| {
        test.env("ROOFLET_KUBERNETES_PATH", &search_path);
        if let Some(directory) = &clients {
            test.env("ROOFLET_KUBERNETES_CLIENTS", directory);
        }
        if let Ok(directory) = &kube_rs {
            test.env("ROOFLET_KUBE_RS_TESTS", directory);
        }
        if let Some(program) = &upstream {
            test.env("ROOFLET_UPSTREAM_TESTS", program);
        }
    })
}

/// Returns Helm: that on the PATH, or that of the tests if it was built.
pub(crate) fn find_helm() -> Result<Option<PathBuf>> {
    if console::is_installed("helm") {
        return Ok(Some("helm".into()));
    }
    Ok(binaries::built()?.map(|directory| directory.join("helm")))
}
