//! Prometheus and promtool. Go builds them once into the user's cache. `xtask/prometheus/go.mod` and
//! `go.sum` pin all modules.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    console::{self, Progress, Stopwatch},
    setup::Prefix,
};

/// Version of Prometheus, and that of its Go module.
const PROMETHEUS: &str = "3.16.0";
const MODULE_VERSION: &str = "v0.316.0";
const GO: &str = "go1.26.8";
/// Leaves out service discovery besides files and HTTP, and with it most modules.
const TAGS: &str = "remove_all_sd";

const MODULE: &str = include_str!("../../prometheus/go.mod");
const CHECKSUMS: &str = include_str!("../../prometheus/go.sum");

const TOOLS: [&str; 2] = ["promtool", "prometheus"];

pub(super) enum Found {
    /// Directory with the binaries.
    Directory(PathBuf),
    /// Reason why there are no binaries.
    Missing(String),
}

/// Returns the directory of the binaries. The first call builds the binaries. If the build takes
/// longer than `limit`, it stops, and the next call continues it.
pub(super) fn prepare(limit: Duration) -> Result<Found> {
    let recipe = [PROMETHEUS, MODULE_VERSION, GO, TAGS, MODULE, CHECKSUMS];
    let prefix = Prefix::locate_by_recipe(&format!("prometheus-{PROMETHEUS}"), &recipe)?;
    if !prefix.is_ready() {
        if !console::is_installed("go") {
            return Ok(Found::Missing("Go is not installed".into()));
        }
        let progress = Progress::new("prometheus");
        if !prefix.resume(&progress, |directory| build(&progress, directory, limit))? {
            return Ok(Found::Missing(format!(
                "building Prometheus takes longer than {} minutes: `cargo xtask monitoring` continues the build",
                limit.as_secs() / 60
            )));
        }
    }
    Ok(Found::Directory(prefix.dir().to_owned()))
}

/// Builds the missing binaries into `directory`. Returns false if `limit` ends the build. Both binaries
/// take about 5 minutes of one core.
fn build(progress: &Progress, directory: &Path, limit: Duration) -> Result<bool> {
    let since = Stopwatch::start();
    // A binary gets its final place when it is complete.
    let unfinished = directory.join("unfinished");
    fs::create_dir_all(&unfinished).with_context(|| format!("creating {}", unfinished.display()))?;
    for name in TOOLS {
        let (built, published) = (unfinished.join(name), directory.join(name));
        if published.exists() {
            continue;
        }
        progress.print(format!("building {name} with Go"));
        let mut go = Command::new("go");
        go.current_dir(console::root().join("xtask/prometheus"));
        go.env("GOTOOLCHAIN", GO).env("CGO_ENABLED", "0");
        go.args(["build", "-trimpath", "-ldflags", "-s -w", "-tags", TAGS, "-o"]);
        go.arg(&built).arg(package(name));
        match console::run_within(&mut go, limit.saturating_sub(since.elapsed()))? {
            Some(status) => ensure!(status.success(), "building {name} with Go: {status}"),
            None => return Ok(false),
        }
        fs::rename(&built, &published).with_context(|| format!("creating {}", published.display()))?;
    }
    fs::remove_dir_all(&unfinished).with_context(|| format!("removing {}", unfinished.display()))?;
    Ok(true)
}

fn package(name: &str) -> String {
    format!("github.com/prometheus/prometheus/cmd/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_versions_match_the_module() {
        assert!(MODULE.contains(&format!("github.com/prometheus/prometheus {MODULE_VERSION}")));
        for name in TOOLS {
            assert!(MODULE.contains(&package(name)), "{name} is not in go.mod");
        }
        assert!(MODULE.contains(&format!("\ngo {}\n", GO.trim_start_matches("go"))));
    }
}
