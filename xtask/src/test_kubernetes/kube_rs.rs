//! kube-rs' own tests with a cluster, as one program per crate.
//!
//! The sources are those of the published crates that rooflet uses. `e2e/kubernetes/kube-rs` has
//! the workspace in which they are built, with the versions of all dependencies.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::upstream::copy_writable;
use crate::{
    console::{self, Progress},
    setup::Prefix,
};

/// Directory of the workspace.
const WORKSPACE: &str = "e2e/kubernetes/kube-rs";
/// Crates with tests, which are also the names of the programs. Each has the features of the
/// dependency on `kube` that publishing removes from its manifest.
const CRATES: [(&str, Option<&str>); 3] = [
    ("kube", None),
    ("kube-client", Some("\"derive\", \"ws\"")),
    ("kube-runtime", Some("\"derive\", \"runtime\"")),
];
/// Features that the tests need.
const FEATURES: &str = "kube/derive,kube/kubelet-debug,kube/runtime,kube/unstable-client,kube/ws";

/// Returns the directory of the programs. The first call builds them, which takes about 5 minutes
/// of one core.
pub(super) fn prepare() -> Result<PathBuf> {
    let workspace = console::root().join(WORKSPACE);
    let read = |name: &str| {
        let path = workspace.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let dependencies = CRATES.map(|(name, features)| dependency(name, features));
    let recipe = [read("Cargo.toml")?, read("Cargo.lock")?, dependencies.concat()];
    let recipe = [&recipe[0], &recipe[1], &recipe[2], FEATURES];
    let prefix = Prefix::locate_by_recipe("kube-rs", &recipe)?;
    if !prefix.is_ready() {
        let progress = Progress::new("kube-rs");
        prefix.resume(&progress, |directory| {
            progress.print("building the tests of kube-rs");
            let copy = directory.join("workspace");
            copy_writable(&workspace, &copy)?;
            copy_crates(&copy)?;
            check_versions(&workspace, &copy)?;
            build(&copy, directory)?;
            fs::remove_dir_all(&copy).with_context(|| format!("removing {}", copy.display()))?;
            Ok(true)
        })?;
    }
    Ok(prefix.dir().into())
}

/// Returns the dependency on `kube` in the form of a manifest.
fn dependency(name: &str, features: Option<&str>) -> String {
    features.map_or(String::new(), |features| {
        format!("\n# Removed from {name} by its publication.\n[dev-dependencies.kube]\nversion = \"*\"\nfeatures = [{features}]\n")
    })
}

/// Copies the published crates into the workspace, and adds the missing dependencies.
fn copy_crates(workspace: &Path) -> Result<()> {
    let metadata = console::output(console::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("parsing the output of cargo metadata")?;
    for (name, features) in CRATES {
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        let found = packages.find(|package| package["name"] == name);
        let manifest = found.and_then(|package| package["manifest_path"].as_str());
        let manifest = Path::new(manifest.with_context(|| format!("rooflet does not depend on {name}"))?);
        let copy = workspace.join(name);
        copy_writable(manifest.parent().expect("a file in a directory"), &copy)?;
        let path = copy.join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = text + &dependency(name, features);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Downloads the dependencies. If `Cargo.lock` lacks some, the function adds them and fails.
fn check_versions(workspace: &Path, copy: &Path) -> Result<()> {
    console::output(console::cargo().current_dir(copy).arg("fetch"))?;
    let [own, complete] = [workspace, copy].map(|directory| directory.join("Cargo.lock"));
    let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
    let is_complete = read(&own)? == read(&complete)?;
    if !is_complete {
        fs::copy(&complete, &own).with_context(|| format!("writing {}", own.display()))?;
    }
    ensure!(
        is_complete,
        "{} was incomplete and has been updated: commit it, and run the command again",
        own.display()
    );
    Ok(())
}

/// Builds the programs in the workspace, and copies them to `directory`.
fn build(workspace: &Path, directory: &Path) -> Result<()> {
    let mut cargo = console::cargo();
    cargo
        .current_dir(workspace)
        .args(["test", "--no-run", "--locked", "--lib"])
        .args(["--message-format=json", "--features", FEATURES])
        .args(CRATES.iter().flat_map(|(name, _)| ["-p", name]))
        .env("CARGO_TARGET_DIR", workspace.join("target"));
    let messages = console::output(&mut cargo)?;
    for (name, _) in CRATES {
        let program =
            program_of(&messages, name).with_context(|| format!("cargo built no tests of {name}"))?;
        let target = directory.join(name);
        fs::copy(&program, &target).with_context(|| format!("copying {program} to {}", target.display()))?;
    }
    Ok(())
}

/// Returns the test program of a crate in the messages of cargo.
fn program_of(messages: &str, name: &str) -> Option<String> {
    let library = name.replace('-', "_");
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_tests = message["profile"]["test"] == true && message["target"]["name"] == library.as_str();
        let program = message["executable"].as_str().filter(|_| is_tests);
        program.map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the version of a package in a lock file.
    fn version(path: &str, name: &str) -> Option<String> {
        let text = fs::read_to_string(console::root().join(path)).expect(path);
        let (_, rest) = text.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        rest.split_once('"').map(|(version, _)| version.to_owned())
    }

    #[test]
    fn versions_equal_those_of_rooflet() {
        let crates = CRATES.map(|(name, _)| name);
        for name in crates
            .into_iter()
            .chain(["kube-core", "kube-derive", "k8s-openapi"])
        {
            let own = version("Cargo.lock", name);
            assert!(own.is_some(), "{name}");
            let of_tests = version(&format!("{WORKSPACE}/Cargo.lock"), name);
            assert_eq!(
                of_tests, own,
                "docs/development.md shows how to update {WORKSPACE}/Cargo.lock"
            );
        }
    }

    #[test]
    fn program_is_that_of_the_tests() {
        let messages = "{\"reason\": \"compiler-artifact\", \"target\": {\"name\": \"kube_client\"}, \
                        \"profile\": {\"test\": false}, \"executable\": null}\n\
                        {\"reason\": \"compiler-artifact\", \"target\": {\"name\": \"kube_client\"}, \
                        \"profile\": {\"test\": true}, \"executable\": \"/target/kube_client-1\"}\n";
        assert_eq!(
            program_of(messages, "kube-client").as_deref(),
            Some("/target/kube_client-1")
        );
        assert_eq!(program_of(messages, "kube"), None);
    }
}
