//! Upstream's integration tests of CustomResourceDefinitions, as one program in Go.
//!
//! The sources are those of k8s.io/apiextensions-apiserver, except for the fixture that starts a server:
//! `e2e/kubernetes/upstream/server.go` connects to a running one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{binaries::GO, clients};
use crate::{
    console::{self, Progress},
    setup::Prefix,
};

const MODULE: &str = "k8s.io/apiextensions-apiserver";
const FIXTURE: &str = include_str!("../../../e2e/kubernetes/upstream/server.go");
/// The tests compare the manager of their fields, which is the name of the program, with this name.
const PROGRAM: &str = "integration.test";

/// Returns the path of the program, or `None` if Go is not installed. The first call builds it, which
/// takes about 4 minutes of one core.
pub(super) fn prepare() -> Result<Option<PathBuf>> {
    let pins = console::root().join(clients::SOURCES);
    let checksums = pins.join("go.sum");
    let checksums =
        fs::read_to_string(&checksums).with_context(|| format!("reading {}", checksums.display()))?;
    let pinned: Vec<&str> = checksums
        .lines()
        .filter(|line| line.starts_with(MODULE))
        .collect();
    let prefix = Prefix::locate_by_recipe("kubernetes-upstream", &[GO, FIXTURE, PROGRAM, &pinned.concat()])?;
    if !prefix.is_ready() {
        if !console::is_installed("go") {
            return Ok(None);
        }
        let progress = Progress::new("kubernetes-upstream");
        prefix.resume(&progress, |directory| {
            build(&progress, &pins, directory)?;
            Ok(true)
        })?;
    }
    Ok(Some(prefix.dir().join(PROGRAM)))
}

/// Builds the program from a copy of the module in whose version `pins` requires it.
fn build(progress: &Progress, pins: &Path, directory: &Path) -> Result<()> {
    progress.print("building upstream's tests with Go");
    let go = |directory: &Path| {
        let mut go = Command::new("go");
        go.current_dir(directory).env("GOTOOLCHAIN", GO);
        go
    };
    console::output(go(pins).args(["mod", "download", MODULE]))?;
    let module = console::output(go(pins).args(["list", "-m", "-f", "{{.Dir}}", MODULE]))?;
    let copy = directory.join("module");
    copy_writable(Path::new(module.trim()), &copy)?;
    let fixture = copy.join("test/integration/fixtures/server.go");
    fs::write(&fixture, FIXTURE).with_context(|| format!("writing {}", fixture.display()))?;
    let flags = ["test", "-c", "-vet=off", "-ldflags", "-s -w", "-o"];
    console::output(
        go(&copy)
            .args(flags)
            .arg(directory.join(PROGRAM))
            .arg("./test/integration"),
    )?;
    fs::remove_dir_all(&copy).with_context(|| format!("removing {}", copy.display()))
}

/// Copies a directory. The files may be read-only, as those in Go's module cache.
pub(super) fn copy_writable(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_writable(&entry.path(), &target)?;
        } else {
            let content =
                fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
            fs::write(&target, content).with_context(|| format!("writing {}", target.display()))?;
        }
    }
    Ok(())
}
