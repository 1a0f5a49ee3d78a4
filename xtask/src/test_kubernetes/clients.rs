//! Programs in Go that use the clients of other projects: client-go, kstatus, the types of Flux, and the Lua of Argo CD.
//! Also Helm 4, which shares most packages with them.
//!
//! `e2e/kubernetes/clients` has the sources, with `go.mod` and `go.sum`, which pin all modules.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::binaries::GO;
use crate::{
    console::{self, Progress},
    setup::Prefix,
};

/// Directory of the sources, and of the file that pins all modules.
pub(super) const SOURCES: &str = "e2e/kubernetes/clients";
/// Packages, which are also the names of the programs.
const PROGRAMS: [&str; 4] = ["client-go", "documents", "flux", "health"];
const HELM: &str = "helm.sh/helm/v4/cmd/helm";

/// Returns the directory of the programs and of `helm`, or `None` if Go is not installed. The first call
/// builds them, which takes about 4 minutes of one core.
pub(super) fn prepare() -> Result<Option<PathBuf>> {
    let sources = console::root().join(SOURCES);
    let mut recipe = vec![GO.to_owned(), HELM.to_owned()];
    let files = ["go.mod".to_owned(), "go.sum".to_owned()];
    let programs = PROGRAMS.map(|name| format!("{name}/main.go"));
    for file in files.iter().chain(&programs) {
        let path = sources.join(file);
        recipe.push(fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?);
    }
    let recipe: Vec<&str> = recipe.iter().map(String::as_str).collect();
    let prefix = Prefix::locate_by_recipe("kubernetes-clients", &recipe)?;
    if !prefix.is_ready() {
        if !console::is_installed("go") {
            return Ok(None);
        }
        let progress = Progress::new("kubernetes-clients");
        prefix.resume(&progress, |directory| {
            build(&progress, &sources, directory)?;
            Ok(true)
        })?;
    }
    Ok(Some(prefix.dir().into()))
}

fn build(progress: &Progress, sources: &Path, directory: &Path) -> Result<()> {
    progress.print("building the clients with Go");
    let packages = PROGRAMS.map(|name| format!("./{name}"));
    let status = Command::new("go")
        .current_dir(sources)
        .env("GOTOOLCHAIN", GO)
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(directory)
        .args(packages)
        .arg(HELM)
        .status()
        .context("running go")?;
    ensure!(status.success(), "building the clients with Go: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helm_is_a_tool_of_the_module() {
        let module = fs::read_to_string(console::root().join(SOURCES).join("go.mod")).expect("readable");
        assert!(module.contains(&format!("\ntool {HELM}\n")), "{module}");
    }
}
