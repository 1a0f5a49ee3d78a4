//! Test harness: starts rooflet's processes, sends requests to them, and waits for conditions with
//! a timeout.
#![expect(clippy::disallowed_methods, reason = "timeouts of tests use the real clock")]
#![expect(clippy::print_stderr, reason = "messages of tests are printed there")]

mod api_writes;
mod capture;
mod clock;
mod cluster;
mod fleet;
mod flood;
mod http;
mod hub;
mod kubectl;
mod load;
mod netns;
mod network;
mod process;
mod relay;
mod small_disk;
mod thread;

pub(crate) use api_writes::ApiWrites;
pub(crate) use clock::TestClock;
pub(crate) use cluster::Cluster;
pub(crate) use fleet::{Fleet, Options};
pub(crate) use flood::{Flood, with_unknown_key};
pub(crate) use http::{Http, HttpResponse};
pub(crate) use hub::{Access, Fault, Hub, Times};
pub(crate) use kubectl::{Kubectl, Output};
pub(crate) use load::{under_load, under_load_on};
pub(crate) use netns::Netns;
pub(crate) use network::Network;
pub(crate) use process::{Process, descendants, kill_9, pause, processes_with, resume};
pub(crate) use relay::{Link, Relay};
pub(crate) use small_disk::SmallDisk;
pub(crate) use thread::HungThread;

use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Timeout of every condition. It suffices for the start of a process and the load of a model on a
/// slow, shared machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the path of the binary under test.
pub(crate) fn rooflet() -> &'static str {
    env!("CARGO_BIN_EXE_rooflet")
}

/// Returns the absolute path of a path relative to the repository root.
pub(crate) fn repository(path: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The package is in src/rooflet.
    let root = package
        .ancestors()
        .nth(2)
        .expect("the package is two folders below the root");
    root.join(path)
}

/// Repeats `check` until it succeeds and returns its result. Panics with `what` and the last error
/// after [`TIMEOUT`].
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match check() {
            Ok(found) => return found,
            Err(why) if start.elapsed() > TIMEOUT => {
                panic!("timed out after {TIMEOUT:?} waiting for {what}: {why}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Reports that the current test did not run, or a part of it, and the missing requirement. The test harness
/// does not capture this output, so that it is visible although the test passes.
pub(crate) fn not_run(needs: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A closed output has no reader.
    drop(writeln!(
        std::io::stderr(),
        "NOT RUN: {test}, or a part of it: needs {needs}"
    ));
}

/// First of the ports of tests. They end below the ports that Linux gives to outgoing connections.
const FIRST_PORT: u32 = 12_000;
const PORTS: u32 = 20_000;

/// Returns a free port. No two calls of this process return the same one.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Processes begin at different ports.
    let begin = std::process::id().wrapping_mul(97);
    let free = (0..PORTS).find_map(|_| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST_PORT + begin.wrapping_add(call) % PORTS).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    });
    free.expect("a free port")
}

/// Returns an address of this machine in the network.
pub(crate) fn network_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

/// Temporary directory, which is kept if the test fails.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        // The path must be short, because the length of Unix socket paths is limited.
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
            eprintln!("kept for inspection: {}", self.0.display());
        } else {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }
}

/// Copies the guide model to `to`, for tests that modify it.
pub(crate) fn copy_guide(to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(repository("examples/models/guide")).expect("the guide model exists") {
        let entry = entry.expect("readable");
        if entry.file_type().expect("readable").is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("writable");
        }
    }
}
