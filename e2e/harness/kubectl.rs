//! Real kubectl against a server under test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{eventually, not_run};

/// What a kubectl command printed, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Panics with all that was printed unless the command succeeded; returns standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.success, "kubectl failed\n{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Panics unless the command failed; returns standard error.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert!(
            !self.success,
            "kubectl succeeded, and should not have\n{}",
            self.stdout
        );
        self.stderr
    }
}

/// kubectl with a kubeconfig.
pub(crate) struct Kubectl {
    program: String,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    /// `None`, said on a line of its own, where kubectl is not installed.
    pub(crate) fn find(kubeconfig: &Path, home: &Path) -> Option<Self> {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let found = Command::new(&program)
            .args(["version", "--client"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            not_run("kubectl on PATH or in $KUBECTL");
            return None;
        }
        Some(Self {
            program,
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
        })
    }

    /// Runs `kubectl WORDS`, split at blanks.
    pub(crate) fn run(&self, words: &str) -> Output {
        self.run_with(&words.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs `kubectl ARGS` with `stdin`.
    pub(crate) fn run_with(&self, args: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(&self.program)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            // Its discovery cache lives in the home directory; tests must not share one.
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        drop(child.stdin.take().expect("piped").write_all(stdin.as_bytes()));
        let output = child.wait_with_output().expect("kubectl ends");
        Output {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// `kubectl apply -f -`.
    pub(crate) fn apply(&self, yaml: &str) -> Output {
        self.run_with(&["apply", "-f", "-"], yaml)
    }

    /// Waits until the condition `kind` of an object has `status`; returns the condition.
    #[track_caller]
    pub(crate) fn wait_for_condition(&self, object: &str, kind: &str, status: &str) -> Value {
        self.wait_for_field(object, kind, "status", status)
    }

    /// Waits until the condition `kind` of an object has `reason`; returns its message.
    #[track_caller]
    pub(crate) fn wait_for_reason(&self, object: &str, kind: &str, reason: &str) -> String {
        let condition = self.wait_for_field(object, kind, "reason", reason);
        condition["message"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn wait_for_field(&self, object: &str, kind: &str, field: &str, value: &str) -> Value {
        eventually(&format!("{object}: {kind} with {field} {value}"), || {
            let found = self.json(object)?;
            let conditions = found["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let wanted = conditions
                .iter()
                .find(|condition| condition["type"] == kind && condition[field] == value);
            wanted.cloned().ok_or_else(|| format!("{conditions:#?}"))
        })
    }

    /// `kubectl get WORDS -o json`.
    pub(crate) fn json(&self, words: &str) -> Result<Value, String> {
        let output = self.run(&format!("get {words} -o json"));
        if !output.success {
            return Err(output.stderr);
        }
        serde_json::from_str(&output.stdout).map_err(|err| err.to_string())
    }
}
