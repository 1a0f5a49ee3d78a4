//! Starts rooflet's processes, talks to them from outside, and waits on conditions with deadlines.
#![expect(
    clippy::disallowed_methods,
    reason = "deadlines of a test are the real clock's"
)]
#![expect(clippy::print_stderr, reason = "what a test has to say of itself goes there")]

mod cluster;
mod fleet;
mod http;
mod hub;
mod kubectl;
mod load;
mod netns;
mod process;
mod relay;

pub(crate) use cluster::Cluster;
pub(crate) use fleet::{Fleet, Options};
pub(crate) use http::{Answer, Http};
pub(crate) use hub::{Access, Fault, Hub, Times};
pub(crate) use kubectl::Kubectl;
pub(crate) use load::under_load;
pub(crate) use netns::Netns;
pub(crate) use process::{Process, descendants, kill_9, pause, processes_with, resume};
pub(crate) use relay::{Link, Relay};

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long anything may take that involves starting a process or loading a model on a slow, shared machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The binary under test.
pub(crate) fn rooflet() -> &'static str {
    env!("CARGO_BIN_EXE_rooflet")
}

/// A path below the repository's root.
pub(crate) fn repository(path: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The package lies in src/rooflet.
    let root = package
        .ancestors()
        .nth(2)
        .expect("the package is two folders deep");
    root.join(path)
}

/// Looks again and again until `look` finds something; panics with `what` and its last complaint once time is up.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) if begin.elapsed() > PATIENCE => {
                panic!("{what} did not come true within {PATIENCE:?}: {why}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Says that a test did not run, and what it needs: nothing is skipped silently.
pub(crate) fn not_run(needs: &str) {
    eprintln!("NOT RUN: this test needs {needs}");
}

/// A port that is free now. The caller binds it soon after; another process taking it in between fails the test loudly.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// A directory that is removed when the test passes and kept, and named, when it fails.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        // Unix socket paths are short; so is this.
        let directory = tempfile::Builder::new()
            .prefix("rf")
            .tempdir()
            .expect("a temporary directory");
        Self(directory.keep())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(path.parent().expect("below the directory")).expect("writable");
        std::fs::write(&path, text).expect("writable");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for a look: {}", self.0.display());
        } else {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }
}

/// Copies the guide model to `to`, so that a test can break the copy.
pub(crate) fn copy_guide(to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(repository("examples/models/guide")).expect("the guide model is there") {
        let entry = entry.expect("readable");
        if entry.file_type().expect("readable").is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("writable");
        }
    }
}
