//! Test runs with cargo that repeat failed tests once.
//!
//! Some tests start processes and depend on the load of the machine. A failed test that passes when
//! it is repeated without the other tests does not fail the check, but the summary names it.

use std::{
    io::{self, BufRead, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::console::{self, Outcome};

/// Maximum number of failed tests that are repeated. More failures at once have a common cause.
const REPEATED_MAX: usize = 5;

/// Runs `cargo test` with `args`, and the tests that match `filter`. Repeats failed tests once.
///
/// `configure` sets the environment of the command.
pub(crate) fn run(args: &[&str], filter: &[&str], configure: impl Fn(&mut Command)) -> Result<Outcome> {
    let test = |filter: &[&str]| {
        let mut test = console::cargo();
        test.arg("test").args(args).arg("--").args(filter);
        configure(&mut test);
        run_once(&mut test, io::stdout())
    };
    let (outcome, failed) = test(filter)?;
    if outcome == Outcome::Passed || failed.is_empty() || failed.len() > REPEATED_MAX {
        return Ok(outcome);
    }
    println!("\nrepeating {} failed tests: {}", failed.len(), failed.join(", "));
    let names = ["--exact"].into_iter().chain(failed.iter().map(String::as_str));
    let (repeated, _) = test(&names.collect::<Vec<_>>())?;
    Ok(match repeated {
        Outcome::Passed => Outcome::Unsteady(format!("passed only when repeated: {}", failed.join(", "))),
        _ => outcome,
    })
}

/// Runs the command, writes its output to `out`, and returns the names of the failed tests.
fn run_once(command: &mut Command, mut out: impl io::Write) -> Result<(Outcome, Vec<String>)> {
    let name = console::display(command);
    println!("{name}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("running `{name}`"))?;
    let output = child.stdout.take().expect("piped");
    let mut failures = Failures::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.with_context(|| format!("reading the output of `{name}`"))?;
        failures.read(&String::from_utf8_lossy(&line));
        out.write_all(&[line.as_slice(), b"\n"].concat())
            .context("writing the output")?;
    }
    let status = child.wait().with_context(|| format!("waiting for `{name}`"))?;
    let outcome = match status.success() {
        true => Outcome::Passed,
        false => Outcome::Failed(status.to_string()),
    };
    Ok((outcome, failures.names))
}

/// Parser of libtest's output. The names of a test program's failed tests are indented lines after a
/// line `failures:`.
#[derive(Default)]
struct Failures {
    names: Vec<String>,
    in_list: bool,
}

impl Failures {
    fn read(&mut self, line: &str) {
        if line == "failures:" {
            self.in_list = true;
            return;
        }
        let name = line.strip_prefix("    ").filter(|name| !name.contains(' '));
        match name {
            Some(name) if self.in_list => {
                if !self.names.iter().any(|known| known == name) {
                    self.names.push(name.to_owned());
                }
            }
            _ => self.in_list = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_those_in_the_final_lists() {
        let mut failures = Failures::default();
        let output = "test a::ok ... ok\ntest b::bad ... FAILED\n\nfailures:\n\n\
                      ---- b::bad stdout ----\nthread panicked at src/b.rs:1:1:\n    at ./src/b.rs\n\n\n\
                      failures:\n    b::bad\n    c::bad\n\ntest result: FAILED. 1 passed; 2 failed\n\
                      \x20   indented\n\nfailures:\n    b::bad\n    d::bad\n\n";
        output.lines().for_each(|line| failures.read(line));
        assert_eq!(failures.names, ["b::bad", "c::bad", "d::bad"]);
    }

    #[test]
    fn output_of_a_failed_run_is_read() {
        let script = "printf 'failures:\\n    a::b\\n\\n'; exit 101";
        let mut out = Vec::new();
        let run = run_once(Command::new("sh").args(["-c", script]), &mut out);
        let (outcome, names) = run.expect("sh starts");
        assert_eq!(out, b"failures:\n    a::b\n\n");
        assert_eq!(outcome, Outcome::Failed("exit status: 101".into()));
        assert_eq!(names, ["a::b"]);
    }
}
