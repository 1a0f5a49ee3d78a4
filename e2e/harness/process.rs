//! Child processes of tests, and the list of processes of this machine.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{eventually, rooflet};

/// Running `rooflet` process. It is terminated when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `rooflet ARGS` with its output in `log`.
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, log: &Path) -> Self {
        Self::run(Command::new(rooflet()).args(args), log)
    }

    /// Starts `rooflet ARGS` with additional environment variables.
    pub(crate) fn start_with_env<S: AsRef<OsStr>>(
        env: Vec<(&str, String)>,
        args: impl IntoIterator<Item = S>,
        log: &Path,
    ) -> Self {
        Self::run(Command::new(rooflet()).args(args).envs(env), log)
    }

    /// Starts `rooflet ARGS` in a separate process group, for [`Self::pause`]. The kernel resumes
    /// stopped processes of an orphaned process group. The group of the tests is orphaned if their
    /// shell exits before them.
    pub(crate) fn start_pausable<S: AsRef<OsStr>>(
        env: Vec<(&str, String)>,
        args: impl IntoIterator<Item = S>,
        log: &Path,
    ) -> Self {
        Self::run(Command::new(rooflet()).args(args).envs(env).process_group(0), log)
    }

    /// Starts `rooflet ARGS` with a file size limit of `blocks` (of 512 or 1024 bytes, depending on
    /// the shell). The process observes a full disk.
    pub(crate) fn start_on_small_disk<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        log: &Path,
        blocks: u32,
    ) -> Self {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        Self::run(
            Command::new("/bin/sh")
                .args(["-c", &script, rooflet()])
                .args(args),
            log,
        )
    }

    /// Starts any command with its output in `log`.
    pub(crate) fn run(command: &mut Command, log: &Path) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a writable log");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("the binary starts");
        Self {
            child,
            log: log.to_owned(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the exit.
    pub(crate) fn interrupt(&mut self) -> ExitStatus {
        signal(self.pid(), "INT");
        self.wait()
    }

    /// Sends SIGTERM, as a service manager does, and waits for the exit.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.begin_termination();
        self.wait()
    }

    /// Sends SIGTERM.
    pub(crate) fn begin_termination(&self) {
        signal(self.pid(), "TERM");
    }

    /// Suspends the process as a sleeping machine does. Requires [`Self::start_pausable`].
    pub(crate) fn pause(&self) {
        signal(self.pid(), "STOP");
    }

    pub(crate) fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    /// Waits for the exit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let log = self.log.clone();
        eventually("the exit of a process", || {
            match self.child.try_wait().expect("the child is our own") {
                Some(status) => Ok(status),
                None => Err(format!("the process runs; log: {}", log.display())),
            }
        })
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the child is our own").is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // SIGTERM first, so that the process terminates its children. A suspended process does not
        // handle it.
        signal(self.pid(), "CONT");
        signal(self.pid(), "TERM");
        for _ in 0..100 {
            if self.has_ended() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn signal(pid: u32, name: &str) {
    drop(
        Command::new("kill")
            .arg(format!("-{name}"))
            .arg(pid.to_string())
            .stderr(Stdio::null())
            .status(),
    );
}

/// Suspends a process until [`resume`].
pub(crate) fn pause(pid: u32) {
    signal(pid, "STOP");
}

pub(crate) fn resume(pid: u32) {
    signal(pid, "CONT");
}

/// Kills a process with SIGKILL.
pub(crate) fn kill_9(pid: u32) {
    signal(pid, "KILL");
}

/// Returns process id, parent's id and command line of all processes of this machine.
fn processes() -> Vec<(u32, u32, String)> {
    let output = Command::new("ps")
        .args(["-A", "-ww", "-o", "pid=,ppid=,stat=,args="])
        .output()
        .expect("ps is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(pid), Some(parent), Some(state)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if let (Ok(pid), Ok(parent), false) = (pid.parse(), parent.parse(), state.starts_with('Z')) {
            found.push((pid, parent, words.collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// Returns the process ids of all processes with all of `words` in the command line.
pub(crate) fn processes_with(words: &[&str]) -> Vec<u32> {
    let matches = |line: &str| words.iter().all(|word| line.contains(word));
    processes()
        .into_iter()
        .filter(|(_, _, line)| matches(line))
        .map(|(pid, ..)| pid)
        .collect()
}

/// Returns all descendants of `pid`.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let all = processes();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            all.iter()
                .filter(|(_, of, _)| *of == parent)
                .map(|(pid, ..)| *pid),
        );
        next += 1;
    }
    found.remove(0);
    found
}
