//! Calls of kubectl with a server under test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{eventually, not_run};

/// Result and output of a kubectl command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Returns standard output. Panics with the complete output if the command failed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.success, "kubectl failed\n{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Returns standard error. Panics if the command succeeded.
    #[track_caller]
    pub(crate) fn expect_failure(self) -> String {
        assert!(!self.success, "kubectl succeeded unexpectedly\n{}", self.stdout);
        self.stderr
    }
}

/// kubectl and its kubeconfig.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    /// Returns `None` and prints a line if kubectl is not installed.
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
        Some(Self::of(Path::new(&program), kubeconfig, home))
    }

    /// Uses the kubectl `program`.
    pub(crate) fn of(program: &Path, kubeconfig: &Path, home: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
        }
    }

    /// Runs `kubectl WORDS`, split at spaces.
    pub(crate) fn run(&self, words: &str) -> Output {
        self.run_with(&words.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs `kubectl ARGS` with `stdin`.
    pub(crate) fn run_with(&self, args: &[&str], stdin: &str) -> Output {
        let mut child = self
            .command()
            .args(args)
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

    /// Returns a command without arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig);
        // The discovery cache is in the home directory. Tests must not share it.
        command.env("HOME", &self.home);
        command
    }

    /// Runs `kubectl apply -f -`.
    pub(crate) fn apply(&self, yaml: &str) -> Output {
        self.run_with(&["apply", "-f", "-"], yaml)
    }

    /// Waits until the condition `kind` of an object has `status`. Returns the condition.
    #[track_caller]
    pub(crate) fn wait_for_condition(&self, object: &str, kind: &str, status: &str) -> Value {
        self.wait_for_field(object, kind, "status", status)
    }

    /// Waits until the condition `kind` of an object has `reason`. Returns its message.
    #[track_caller]
    pub(crate) fn wait_for_reason(&self, object: &str, kind: &str, reason: &str) -> String {
        let condition = self.wait_for_field(object, kind, "reason", reason);
        condition["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the condition `kind` of an object has `status` and a message that contains `words`.
    /// Returns the message.
    #[track_caller]
    pub(crate) fn wait_for_message(&self, object: &str, kind: &str, status: &str, words: &str) -> String {
        eventually(&format!("{object}: {kind} {status}, {words:?}"), || {
            let condition = self.wait_for_condition(object, kind, status);
            let message = condition["message"].as_str().unwrap_or_default().to_owned();
            match message.contains(words) {
                true => Ok(message),
                false => Err(message),
            }
        })
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

    /// Creates a service account that may only read metrics, and returns its token.
    pub(crate) fn monitoring_token(&self) -> String {
        let role = "--clusterrole=rooflet:monitoring --serviceaccount=default:prometheus";
        self.run("create serviceaccount prometheus").ok();
        self.run(&format!("create clusterrolebinding prometheus {role}"))
            .ok();
        self.run("create token prometheus").ok().trim().to_owned()
    }

    /// Runs `kubectl get WORDS -o json`.
    pub(crate) fn json(&self, words: &str) -> Result<Value, String> {
        let output = self.run(&format!("get {words} -o json"));
        if !output.success {
            return Err(output.stderr);
        }
        serde_json::from_str(&output.stdout).map_err(|err| err.to_string())
    }
}
