//! Calls of Helm with a server under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::repository;

/// Major version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Three,
    Four,
}

/// Helm with a kubeconfig.
pub(super) struct Helm {
    pub(super) version: Version,
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Helm {
    pub(super) fn of(version: Version, program: PathBuf, kubeconfig: &Path, home: &Path) -> Self {
        Self {
            version,
            program,
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
        }
    }

    /// Runs `helm ARGS` in the repository. Returns standard output, or both outputs if it failed.
    pub(super) fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args(args)
            .current_dir(repository(""))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .output()
            .expect("helm starts");
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        match output.status.success() {
            true => Ok(stdout),
            false => Err(format!("helm {}: {stdout}{stderr}", args.join(" "))),
        }
    }
}
