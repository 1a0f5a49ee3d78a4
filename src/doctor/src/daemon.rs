//! `--as-daemon`: runs the same checks in a job of launchd, where a program has no window session,
//! other permissions and another environment.

use std::fs;
use std::time::Duration;

use anyhow::{Context, bail};
use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::Command;

use super::Report;
use rooflet_launchd::PropertyList;

/// Timeout of all checks.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Interval between checks whether the report exists.
const POLL: Duration = Duration::from_millis(200);

/// Runs `rooflet doctor` with these arguments in launchd.
pub(super) async fn report(arguments: &[String]) -> anyhow::Result<Report> {
    let program = std::env::current_exe().context("determining the path of this program")?;
    let job = Job {
        program: program.to_string_lossy().into_owned(),
        arguments: arguments.to_vec(),
        user: nix::unistd::geteuid().as_raw(),
        directory: Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap_or_else(|_| "/tmp".into()),
        process: std::process::id(),
    };
    job.run(Utf8Path::new("/bin/launchctl"), TIMEOUT).await
}

/// Job of launchd that writes a report and ends.
struct Job {
    program: String,
    arguments: Vec<String>,
    user: u32,
    /// Directory of temporary files.
    directory: Utf8PathBuf,
    /// Process that starts the job.
    process: u32,
}

impl Job {
    fn label(&self) -> String {
        format!("dev.rooflet.doctor.{}", self.process)
    }

    /// Returns the launchd domain: root starts jobs in the system domain, other users in their own
    /// domain.
    fn domain(&self) -> String {
        match self.user {
            0 => "system".to_owned(),
            user => format!("user/{user}"),
        }
    }

    fn file(&self, extension: &str) -> Utf8PathBuf {
        self.directory.join(format!("{}.{extension}", self.label()))
    }

    fn plist(&self) -> String {
        let report = self.file("json");
        let own = [self.program.as_str(), "doctor", "--save", report.as_str()].map(str::to_owned);
        let arguments = own.into_iter().chain(self.arguments.iter().cloned()).collect();
        let job = PropertyList::once(self.label(), arguments, self.file("log").into_string());
        match self.user {
            0 => job.text(),
            _ => job.in_background().text(),
        }
    }

    async fn run(&self, launchctl: &Utf8Path, timeout: Duration) -> anyhow::Result<Report> {
        let plist = self.file("plist");
        fs::write(&plist, self.plist()).context("writing the job of launchd")?;
        let outcome = match control(launchctl, &["bootstrap", &self.domain(), plist.as_str()]).await {
            Ok(()) => {
                let outcome = self.wait(timeout).await;
                let job = format!("{}/{}", self.domain(), self.label());
                drop(control(launchctl, &["bootout", &job]).await);
                outcome
            }
            Err(err) => Err(err),
        };
        for extension in ["plist", "json", "log"] {
            drop(fs::remove_file(self.file(extension)));
        }
        outcome
    }

    /// Waits for the report. The job creates the file atomically.
    async fn wait(&self, timeout: Duration) -> anyhow::Result<Report> {
        let report = self.file("json");
        let is_there = async {
            while !report.is_file() {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(timeout, is_there).await.is_err() {
            let log = fs::read_to_string(self.file("log")).unwrap_or_default();
            let last = log.lines().rfind(|line| !line.is_empty());
            let last = last.map_or_else(String::new, |line| format!(": {line}"));
            bail!(
                "launchd started the job, which wrote no report within {} s{last}",
                timeout.as_secs()
            );
        }
        let text = fs::read_to_string(&report).context("reading the report of the job")?;
        serde_json::from_str(&text).context("reading the report of the job")
    }
}

async fn control(launchctl: &Utf8Path, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(launchctl).args(arguments).output().await;
    let output = output.with_context(|| format!("running {launchctl}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    bail!("launchctl {}: {}", arguments.first().unwrap_or(&""), text.trim())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::check::Check;

    fn job(directory: &Utf8Path, program: &str) -> Job {
        Job {
            program: program.to_owned(),
            arguments: ["--quick", "--model-dir", "/models & more"]
                .map(str::to_owned)
                .to_vec(),
            user: 501,
            directory: directory.to_owned(),
            process: 7,
        }
    }

    fn script(directory: &Utf8Path, name: &str, text: &str) -> Utf8PathBuf {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Script that replaces launchctl: starts the job of the plist, and records its calls.
    const LAUNCHCTL: &str = r#"echo "$1 $2" >> "$0.calls"
[ "$1" = bootstrap ] || exit 0
tabs=$(printf '\t\t')
set -- $(sed -n "s/^$tabs<string>\([^&]*\)<\/string>$/\1/p" "$3")
"$@""#;

    #[test]
    fn plist_has_the_arguments_and_no_window_session() {
        let job = job(Utf8Path::new("/tmp"), "/usr/local/bin/rooflet");
        let plist = job.plist();
        for line in [
            "<string>dev.rooflet.doctor.7</string>",
            "<string>/usr/local/bin/rooflet</string>\n\t\t<string>doctor</string>\n\t\t<string>--save</string>",
            "<string>/tmp/dev.rooflet.doctor.7.json</string>",
            "<string>/models &amp; more</string>",
            "<string>Background</string>",
        ] {
            assert!(plist.contains(line), "{line} is not in {plist}");
        }
        assert_eq!(job.domain(), "user/501");
        let root = Job { user: 0, ..job };
        assert!(root.domain() == "system" && !root.plist().contains("Background"));
    }

    #[tokio::test]
    async fn report_of_the_job_is_read_and_the_job_removed() {
        let directory = rooflet_testing::TempDir::new();
        let root = directory.path();
        let report = Report {
            version: "0.1.0".to_owned(),
            checks: vec![Check::ok("chip", "Apple M4")],
            differences: Vec::new(),
            facts: None,
        };
        let text = serde_json::to_string(&report).unwrap();
        // Arguments: doctor --save FILE.
        let program = script(root, "rooflet", &format!("echo '{text}' > \"$3\""));
        let launchctl = script(root, "launchctl", LAUNCHCTL);
        let job = job(root, program.as_str());
        let found = job.run(&launchctl, TIMEOUT).await.unwrap();
        assert_eq!(found.checks, report.checks);
        let calls = fs::read_to_string(root.join("launchctl.calls")).unwrap();
        assert_eq!(
            calls,
            "bootstrap user/501\nbootout user/501/dev.rooflet.doctor.7\n"
        );
        for extension in ["plist", "json", "log"] {
            assert!(!job.file(extension).exists(), "{extension}");
        }
    }

    #[tokio::test]
    async fn failures_of_launchd_and_of_the_job_are_reported() {
        let directory = rooflet_testing::TempDir::new();
        let root = directory.path();
        let refuses = script(
            root,
            "refuses",
            "echo 'Bootstrap failed: 5: Input/output error' >&2; exit 5",
        );
        let err = job(root, "/bin/true").run(&refuses, TIMEOUT).await.unwrap_err();
        assert_eq!(
            err.to_string(),
            "launchctl bootstrap: Bootstrap failed: 5: Input/output error"
        );
        let launchctl = script(root, "launchctl", LAUNCHCTL);
        let job = job(root, "/bin/true");
        fs::write(job.file("log"), "error: the license is missing\n\n").unwrap();
        let err = job.run(&launchctl, Duration::ZERO).await.unwrap_err();
        assert_eq!(
            err.to_string(),
            "launchd started the job, which wrote no report within 0 s: error: the license is missing"
        );
    }
}
