//! `cargo xtask up`: builds rooflet and runs `rooflet up` with the example model.

use std::{
    collections::HashSet,
    convert::Infallible,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    console::{self, Progress, Stopwatch},
    setup,
};

const QUESTION: &str = "What is rooflet?";

/// Interval between lines of progress.
const REPORT_PERIOD: Duration = Duration::from_secs(15);
/// Number of compiled packages from which the remaining time is estimated.
const LEAST_COMPILED: usize = 10;

/// Replaces this process by `rooflet up` with the example model; `args` are appended to its command
/// line. Signals and the exit code are those of rooflet.
///
/// If the first argument is `--release`, the release profile is used. The default is the dev
/// profile, which compiles minutes faster. MLX, which determines the speed of answers, is optimised
/// in both.
pub(crate) fn run(args: &[&str]) -> Result<Infallible> {
    setup::run()?;
    let root = console::root();
    let examples = root.join("examples");
    let (build, args) = match args {
        ["--release", rest @ ..] => (&["--release"][..], rest),
        rest => (&[][..], rest),
    };
    build_binary(build)?;
    let mut cargo = console::cargo();
    cargo
        .args(["run", "--quiet", "--bin", "rooflet"])
        .args(build)
        .args(["--", "up"]);
    cargo.arg("--data-dir").arg(root.join(".rooflet"));
    cargo.arg("--model-dir").arg(examples.join("models"));
    cargo.arg("--apply").arg(examples.join("guide.yaml"));
    cargo.args(["--ask", QUESTION]).args(args);
    Err(cargo.exec()).context("running cargo")
}

/// Builds the binary and prints the progress with the estimated remaining time.
fn build_binary(profile: &[&str]) -> Result<()> {
    let progress = Progress::new("build");
    let binary = match profile {
        [] => "debug/rooflet",
        _ => "release/rooflet",
    };
    let binary = console::target_dir().join(binary);
    let total = packages()?;
    if !binary.exists() {
        progress.print(format!(
            "the first build compiles {total} packages, about 10 minutes on 2 cores; later builds are short"
        ));
    }
    let mut cargo = console::cargo();
    cargo
        .args(["build", "--quiet", "--bin", "rooflet"])
        .arg("--message-format=json-render-diagnostics")
        .args(profile)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("running `cargo build`")?;
    let output = child.stdout.take().context("the output of `cargo build`")?;
    let mut estimate = Estimate::new(total);
    let (clock, mut reported) = (Stopwatch::start(), Duration::ZERO);
    for line in BufReader::new(output).lines() {
        estimate.add(&line.context("reading the output of `cargo build`")?);
        let elapsed = clock.elapsed();
        if elapsed - reported >= REPORT_PERIOD {
            reported = elapsed;
            progress.print(estimate.line(elapsed));
        }
    }
    if !child.wait().context("waiting for `cargo build`")?.success() {
        bail!("`cargo build` failed");
    }
    // A short path in the usual case.
    let binary = binary.strip_prefix(console::root()).unwrap_or(&binary).display();
    progress.print(format!(
        "the binary is {binary}; the verbs of `rooflet` run as `{binary} VERB`"
    ));
    Ok(())
}

/// Returns the number of packages in the binary.
fn packages() -> Result<usize> {
    let mut tree = console::cargo();
    tree.args(["tree", "--package", "rooflet", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"]);
    let listed = console::output(&mut tree)?;
    let names = listed.lines().map(|line| line.trim_end_matches(" (*)"));
    Ok(names
        .filter(|name| !name.is_empty())
        .collect::<HashSet<_>>()
        .len())
}

/// Estimate of the remaining time of a build.
struct Estimate {
    total: usize,
    /// Packages that are complete.
    done: HashSet<String>,
    /// Number of packages that this build compiled.
    compiled: usize,
}

impl Estimate {
    fn new(total: usize) -> Self {
        Self {
            total,
            done: HashSet::new(),
            compiled: 0,
        }
    }

    /// Adds a message of cargo.
    fn add(&mut self, message: &str) {
        let Ok(message) = serde_json::from_str::<Value>(message) else {
            return;
        };
        if message["reason"] != "compiler-artifact" {
            return;
        }
        let package = message["package_id"].as_str().unwrap_or_default();
        if self.done.insert(package.to_owned()) && message["fresh"] == false {
            self.compiled += 1;
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let done = self.done.len().min(self.total);
        let line = format!("{done} of {} packages", self.total);
        if self.compiled < LEAST_COMPILED {
            return line;
        }
        let remaining = elapsed.as_secs_f64() * (self.total - done) as f64 / self.compiled as f64;
        let remaining = match remaining {
            seconds if seconds < 90.0 => format!("{seconds:.0} s"),
            seconds => format!("{:.0} min", seconds / 60.0),
        };
        format!("{line}, about {remaining} remaining")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_follows_the_compiled_packages() {
        let mut estimate = Estimate::new(100);
        let mut add = |range: std::ops::Range<u32>, fresh: bool| {
            for package in range {
                let id = format!("package-{package}");
                let message =
                    serde_json::json!({"reason": "compiler-artifact", "package_id": id, "fresh": fresh});
                estimate.add(&message.to_string());
            }
        };
        add(0..40, true);
        add(40..60, false);
        // A build script and a library of one package count once.
        add(40..60, false);
        estimate.add("not JSON");
        let line = estimate.line(Duration::from_secs(60));
        assert_eq!(line, "60 of 100 packages, about 2 min remaining");
        assert_eq!(Estimate::new(9).line(Duration::ZERO), "0 of 9 packages");
    }
}
