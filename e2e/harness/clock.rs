//! Clocks of processes that differ from the clock of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Scratch, repository};

/// Clock that processes read instead of the system's real-time clock. Their monotonic clock is unchanged.
pub(crate) struct TestClock {
    library: PathBuf,
    /// Contains the offset from the system clock in seconds, as a 64-bit integer. The processes map
    /// the file into their memory.
    offset: PathBuf,
}

impl TestClock {
    /// Returns a clock without an offset; `None` if this machine is not a Linux machine with a C compiler.
    pub(crate) fn new(scratch: &Scratch, name: &str) -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let clock = Self {
            library: scratch.join("clock.so"),
            offset: scratch.join(&format!("{name}.clock")),
        };
        if !clock.library.exists() {
            compile(&clock.library)?;
        }
        fs::write(&clock.offset, 0_i64.to_ne_bytes()).expect("writable");
        Some(clock)
    }

    /// Returns the environment variables of a process with this clock.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![
            ("LD_PRELOAD", text(&self.library)),
            ("ROOFLET_TEST_CLOCK", text(&self.offset)),
        ]
    }

    /// Sets the clock forward by `offset` from the system clock.
    pub(crate) fn set_offset(&self, offset: Duration) {
        self.write(i64::try_from(offset.as_secs()).expect("a short offset"));
    }

    /// Sets the clock back by `offset` from the system clock.
    pub(crate) fn set_back(&self, offset: Duration) {
        self.write(-i64::try_from(offset.as_secs()).expect("a short offset"));
    }

    fn write(&self, seconds: i64) {
        use std::io::Write as _;
        // The file must stay the same one, because it is mapped.
        let mut file = fs::File::options()
            .write(true)
            .open(&self.offset)
            .expect("the file exists");
        file.write_all(&seconds.to_ne_bytes()).expect("writable");
    }
}

fn compile(library: &Path) -> Option<()> {
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(library)
        .arg(repository("e2e/fixtures/clock.c"))
        .output()
        .ok()?;
    output.status.success().then_some(())
}
