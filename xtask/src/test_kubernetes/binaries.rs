//! Binaries of a real Kubernetes: kube-apiserver, kube-controller-manager, etcd, kubectl and Helm.
//!
//! `KUBEBUILDER_ASSETS` selects a directory with these binaries. Otherwise Go builds them once into
//! the user's cache. `xtask/kubernetes/go.mod` and `go.sum` pin all modules.

use std::{
    env,
    ffi::{OsStr, OsString},
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

const KUBERNETES: &str = "1.36.2";
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.20.0";
/// Go 1.27 builds a kube-apiserver with a broken OpenAPI document.
pub(super) const GO: &str = "go1.26.8";

const MODULE: &str = include_str!("../../kubernetes/go.mod");
const CHECKSUMS: &str = include_str!("../../kubernetes/go.sum");

/// Binaries, and the packages of those that `xtask/kubernetes/go.mod` requires. Helm is another
/// module.
const TOOLS: [(&str, Option<&str>); 5] = [
    ("etcd", Some("go.etcd.io/etcd/server/v3")),
    ("kube-apiserver", Some("k8s.io/kubernetes/cmd/kube-apiserver")),
    (
        "kube-controller-manager",
        Some("k8s.io/kubernetes/cmd/kube-controller-manager"),
    ),
    ("kubectl", Some("k8s.io/kubernetes/cmd/kubectl")),
    ("helm", None),
];

pub(super) enum Found {
    /// Directories with the binaries, in the format of PATH.
    SearchPath(OsString),
    /// Reason why there are no binaries.
    Missing(String),
}

/// Returns the directories of the binaries. The first call builds the binaries. If the build takes
/// longer than `limit`, it stops, and the next call continues it.
pub(super) fn prepare(limit: Duration) -> Result<Found> {
    if let Some(assets) = env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty()) {
        return provided(&assets).map(Found::SearchPath);
    }
    let prefix = prefix()?;
    if !prefix.is_ready() {
        if !console::is_installed("go") {
            return Ok(Found::Missing(
                "Go is not installed, and KUBEBUILDER_ASSETS is not set".into(),
            ));
        }
        let progress = Progress::new("kubernetes");
        if !prefix.resume(&progress, |directory| build(&progress, directory, limit))? {
            return Ok(Found::Missing(format!(
                "building Kubernetes takes longer than {} minutes: `cargo xtask test-kubernetes` continues the build",
                limit.as_secs() / 60
            )));
        }
    }
    Ok(Found::SearchPath(prefix.dir().into()))
}

/// Returns the directory of the binaries in the cache, if they were built.
pub(super) fn built() -> Result<Option<PathBuf>> {
    let prefix = prefix()?;
    Ok(prefix.is_ready().then(|| prefix.dir().to_path_buf()))
}

fn prefix() -> Result<Prefix> {
    let recipe = [KUBERNETES, HELM, GO, MODULE, CHECKSUMS];
    Prefix::locate_by_recipe(&format!("kubernetes-{KUBERNETES}"), &recipe)
}

/// Returns `assets` and the directories of PATH, which provide the binaries that `assets` lacks.
fn provided(assets: &OsStr) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = [PathBuf::from(assets)].into_iter().chain(env::split_paths(&path));
    let search_path = env::join_paths(directories)
        .context("KUBEBUILDER_ASSETS contains the separator of PATH: use another directory")?;
    let missing = missing_in(&search_path);
    ensure!(
        missing.is_empty(),
        "neither KUBEBUILDER_ASSETS ({}) nor PATH contains {}: add them, or unset KUBEBUILDER_ASSETS to build them \
         with Go",
        assets.display(),
        missing.join(", ")
    );
    Ok(search_path)
}

fn missing_in(search_path: &OsStr) -> Vec<&'static str> {
    let is_missing = |name: &&str| !env::split_paths(search_path).any(|dir| dir.join(name).is_file());
    TOOLS.iter().map(|(name, _)| *name).filter(is_missing).collect()
}

/// Builds the missing binaries into `directory`. Returns false if `limit` ends the build. All
/// binaries take about 10 minutes of one core, and 4 GB below GOPATH and in Go's build cache.
fn build(progress: &Progress, directory: &Path, limit: Duration) -> Result<bool> {
    let since = Stopwatch::start();
    // A binary gets its final place when it is complete.
    let unfinished = directory.join("unfinished");
    fs::create_dir_all(&unfinished).with_context(|| format!("creating {}", unfinished.display()))?;
    for (name, package) in TOOLS {
        let (built, published) = (unfinished.join(name), directory.join(name));
        if published.exists() {
            continue;
        }
        progress.print(format!("building {name} with Go"));
        let mut go = go(package, &built);
        match console::run_within(&mut go, limit.saturating_sub(since.elapsed()))? {
            Some(status) => ensure!(status.success(), "building {name} with Go: {status}"),
            None => return Ok(false),
        }
        fs::rename(&built, &published).with_context(|| format!("creating {}", published.display()))?;
    }
    fs::remove_dir_all(&unfinished).with_context(|| format!("removing {}", unfinished.display()))?;
    Ok(true)
}

/// Returns the command that builds a package, or Helm, as the file `built`.
fn go(package: Option<&str>, built: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(console::root().join("xtask/kubernetes"));
    go.env("GOTOOLCHAIN", GO);
    match package {
        Some(package) => {
            // Without its version, the server reports v0.0.0-master, which clients reject.
            let minor = KUBERNETES.split('.').nth(1).unwrap_or_default();
            let variable = "k8s.io/component-base/version";
            let flags = format!(
                "-s -w -X {variable}.gitVersion=v{KUBERNETES} -X {variable}.gitMajor=1 -X {variable}.gitMinor={minor}"
            );
            go.args(["build", "-trimpath", "-ldflags", &flags, "-o"]);
            go.arg(built).arg(package);
        }
        None => {
            go.args(["install", "-trimpath", "-ldflags", "-s -w", HELM]);
            go.env("GOBIN", built.parent().expect("a path in a directory"));
        }
    }
    go
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_versions_match_the_module() {
        assert!(
            MODULE.contains(&format!("k8s.io/kubernetes v{KUBERNETES}")),
            "k8s.io/kubernetes"
        );
        for package in TOOLS.iter().filter_map(|(_, package)| *package) {
            assert!(MODULE.contains(package), "{package} is not in go.mod");
        }
        assert!(MODULE.contains(&format!("\ngo {}\n", GO.trim_start_matches("go"))));
    }

    #[test]
    fn search_path_without_binaries_lists_all_of_them() {
        let all = TOOLS.map(|(name, _)| name);
        assert_eq!(missing_in(OsStr::new("/no/such/directory")), all);
    }
}
