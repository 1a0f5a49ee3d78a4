//! Threads of other processes that make no progress.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::{not_run, repository};

/// Suspended thread. The other threads of its process run. The thread continues when this value is dropped.
pub(crate) struct HungThread(Child);

impl HungThread {
    /// Suspends the thread of process `pid` with this name. Prints a line and returns `None` if this
    /// machine does not permit it.
    pub(crate) fn hang(pid: u32, name: &str) -> Option<Self> {
        let mut tracer = Command::new("python3")
            .arg(repository("e2e/fixtures/hang_thread.py"))
            .args([&pid.to_string(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let output = tracer.stdout.take().expect("the output is a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        let hung = Self(tracer);
        if read.is_ok() && line.trim() == "hung" {
            return Some(hung);
        }
        not_run("Linux, Python and the permission to trace processes, to suspend one thread");
        None
    }
}

impl Drop for HungThread {
    fn drop(&mut self) {
        // The end of its input ends the tracer.
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}
