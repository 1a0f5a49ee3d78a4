//! Search for the kernel panics that ended the machine's last run while workers ran.
//!
//! macOS writes a panic report some time after the next start, about when the agent starts. The
//! agent therefore searches again for ten minutes, and does not start the models that ran during
//! the first minute. Otherwise, a model that crashes the machine could crash it again before its
//! report exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::quarantine::{Quarantine, RanModel};
use crate::state::{Record, StateDir};
use rooflet_base::clock::{is_recent, since};
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_host::{Host, PanicCause, PanicReports};

/// Files in the state directory.
const QUARANTINE_FILE: &str = "quarantine.json";
const FILE: &str = "crashes.json";

/// Times of the searches after the agent's first start since the machine started.
const SEARCHES: [Duration; 3] = [
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
];

/// Time after the agent's first start for which models that ran are held back.
pub const HOLD: Duration = Duration::from_secs(60);

/// Time for which a watchdog panic reduces the allocatable memory.
const WATCHDOG_PANIC_COUNTS_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reduction of the allocatable memory for each watchdog panic, and at most, in percent.
const REDUCTION: u64 = 10;
const MAX_REDUCTION: u64 = 30;

/// Crashes of this machine, as stored in the state directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Crashes {
    /// Id of the system start in which the agent last started.
    boot_id: Option<String>,
    /// The agent's first start since then.
    started: Option<Timestamp>,
    /// Models that ran when the system went down before.
    ran: Vec<RanModel>,
    /// Watchdog panics while models ran.
    watchdog_panics: Vec<Timestamp>,
}

/// Watch for crashes of the whole machine.
#[derive(Debug)]
pub(crate) struct CrashWatch {
    state: Arc<StateDir>,
    host: Host,
    engine: String,
    os_build: String,
    quarantine: Quarantine,
    crashes: Crashes,
    /// Time of the next search.
    next_search: Option<Timestamp>,
    /// True if a panic report was found for the end of the last run.
    found: bool,
}

impl CrashWatch {
    /// Loads the stored state and searches once. Must be called before the workers are adopted,
    /// because adoption changes the records of the models that ran.
    pub(crate) fn load(
        state: Arc<StateDir>,
        host: Host,
        engine: &str,
        os_build: &str,
        now: Timestamp,
    ) -> Self {
        let mut crashes: Crashes = read(&state, FILE);
        let boot_id = host.boot_id();
        if crashes.boot_id != boot_id || boot_id.is_none() {
            crashes.boot_id = boot_id;
            crashes.started = Some(now);
            crashes.ran = ran(&state.records(), engine);
        }
        let mut watch = Self {
            quarantine: read(&state, QUARANTINE_FILE),
            state,
            host,
            engine: engine.to_owned(),
            os_build: os_build.to_owned(),
            crashes,
            next_search: None,
            found: false,
        };
        watch.search(now);
        watch.write(FILE, &watch.crashes);
        for message in watch.quarantined().values() {
            warn!("{message}");
        }
        watch
    }

    /// Searches again if a search is due.
    pub(crate) fn observe(&mut self, now: Timestamp) {
        if self.next_search.is_some_and(|at| at <= now) {
            let before = self.crashes.clone();
            self.search(now);
            if before != self.crashes {
                self.write(FILE, &self.crashes);
            }
        }
    }

    /// Returns the models by fingerprint that must not start, with a message.
    pub(crate) fn quarantined(&self) -> BTreeMap<u64, String> {
        self.quarantine.applies(&self.engine, &self.os_build)
    }

    /// Returns the fingerprints of models that do not start yet, because a panic report about them
    /// may still be written.
    pub(crate) fn held_back(&self, now: Timestamp) -> BTreeSet<u64> {
        let is_held = self.host.reports_panics()
            && !self.found
            && self.crashes.started.is_some_and(|at| is_recent(now, at, HOLD));
        let ran = self.crashes.ran.iter().filter(|_| is_held);
        ran.map(|model| model.fingerprint).collect()
    }

    /// Returns the number of recent watchdog panics while models ran.
    pub(crate) fn watchdog_panics(&self, now: Timestamp) -> u32 {
        let recent = self
            .crashes
            .watchdog_panics
            .iter()
            .filter(|at| since(now, **at) < WATCHDOG_PANIC_COUNTS_FOR);
        u32::try_from(recent.count()).unwrap_or(u32::MAX)
    }

    fn search(&mut self, now: Timestamp) {
        let started = self.crashes.ran.iter().map(|model| model.started).min();
        // The search runs without models too, so that unreadable reports are logged before they are
        // needed.
        let PanicReports { read, unreadable } = self.host.panics(started.unwrap_or(now));
        if let Some(err) = unreadable {
            warn!(
                error = %Chain(&err),
                "failed to read kernel panic reports: models that crash this machine are not quarantined; run the agent as an administrator"
            );
        }
        self.found |= !read.is_empty();
        if self.quarantine.add(&read, &self.crashes.ran) {
            self.write(QUARANTINE_FILE, &self.quarantine);
        }
        for report in read {
            let at = report.at;
            let ran = started.is_some_and(|started| started <= at);
            if report.cause == PanicCause::Watchdog && ran && !self.crashes.watchdog_panics.contains(&at) {
                warn!(
                    time = %at,
                    message = report.message,
                    "the kernel's watchdog stopped this machine while models ran: less memory is allocatable for a week"
                );
                self.crashes.watchdog_panics.push(at);
            }
        }
        self.next_search = self.crashes.started.and_then(|started| {
            let times = SEARCHES.iter().map(|delay| started + *delay);
            times.filter(|at| *at > now && !self.crashes.ran.is_empty()).min()
        });
    }

    fn write<T: Serialize>(&self, file: &str, value: &T) {
        if let Err(err) = self.state.write(file, value) {
            warn!(error = %Chain(&err), file, "failed to store the crashes of this machine");
        }
    }
}

/// Returns the allocatable memory after watchdog panics: exhausted memory is their usual cause.
pub(crate) fn reduced(allocatable: Bytes, watchdog_panics: u32) -> Bytes {
    let percent = 100 - reduction_percent(watchdog_panics);
    Bytes(allocatable.0 / 100 * percent)
}

/// Returns the reduction of the allocatable memory, in percent.
pub(crate) fn reduction_percent(watchdog_panics: u32) -> u64 {
    (u64::from(watchdog_panics) * REDUCTION).min(MAX_REDUCTION)
}

/// Returns the models whose workers were running when the records were written.
fn ran(records: &[Record], engine: &str) -> Vec<RanModel> {
    let workers = records.iter().filter_map(|record| record.worker.as_ref());
    workers.map(|worker| RanModel::of(worker, engine)).collect()
}

fn read<T: serde::de::DeserializeOwned + Default>(state: &StateDir, file: &str) -> T {
    let stored = state.read(file).unwrap_or_else(|err| {
        warn!(
            error = %Chain(&err),
            file,
            "failed to read the crashes of this machine: models that crashed it may start again"
        );
        None
    });
    stored.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::record;
    use crate::workers::quarantine::tests::running;
    use rooflet_host::{FakeHost, PanicReport};
    use rooflet_testing::TempDir;

    const BUILD: &str = "25E246";
    const STARTED: &str = "2026-04-01T10:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    struct Machine {
        _directory: TempDir,
        state: Arc<StateDir>,
        host: FakeHost,
    }

    impl Machine {
        /// Creates a machine that serves one model.
        fn serving() -> Self {
            let directory = TempDir::new();
            let state = Arc::new(StateDir::open(&directory.path().join("state")).unwrap());
            let worker = running("a", 7, STARTED, "mlx 1");
            state.replica(&record("a").key).save(&worker).unwrap();
            Self {
                _directory: directory,
                state,
                host: FakeHost::new("mini-1", Bytes::gib(16)),
            }
        }

        fn start_agent(&self, now: &str) -> CrashWatch {
            let host = Host::Fake(self.host.clone());
            CrashWatch::load(self.state.clone(), host, "mlx 1", BUILD, at(now))
        }

        fn report(&self, cause: PanicCause) {
            self.host.report_panic(PanicReport {
                at: at("2026-04-01T11:00:00Z"),
                os_build: BUILD.to_owned(),
                message: "message".to_owned(),
                cause,
                written: None,
            });
        }
    }

    #[test]
    fn late_report_quarantines_the_model_that_was_held_back() {
        let machine = Machine::serving();
        drop(machine.start_agent("2026-04-01T10:30:00Z"));
        machine.host.restart(None);
        let mut watch = machine.start_agent("2026-04-01T11:01:00Z");
        assert_eq!(watch.held_back(at("2026-04-01T11:01:59Z")), [7].into());
        machine.report(PanicCause::GpuDriver);
        watch.observe(at("2026-04-01T11:01:29Z"));
        assert!(watch.quarantined().is_empty(), "no search is due");
        watch.observe(at("2026-04-01T11:01:30Z"));
        assert!(watch.quarantined()[&7].contains("message"));
        assert!(watch.held_back(at("2026-04-01T11:01:31Z")).is_empty());
        // It stays quarantined when the agent restarts.
        drop(watch);
        assert!(
            machine
                .start_agent("2026-04-01T11:02:00Z")
                .quarantined()
                .contains_key(&7)
        );
    }

    #[test]
    fn model_starts_after_a_minute_without_a_report() {
        let machine = Machine::serving();
        drop(machine.start_agent("2026-04-01T10:30:00Z"));
        machine.host.restart(None);
        // The agent's own restarts do not prolong the minute.
        drop(machine.start_agent("2026-04-01T11:01:00Z"));
        let mut watch = machine.start_agent("2026-04-01T11:01:30Z");
        assert_eq!(watch.held_back(at("2026-04-01T11:01:59Z")), [7].into());
        assert!(watch.held_back(at("2026-04-01T11:02:00Z")).is_empty());
        // The clock was set back since the start.
        assert!(watch.held_back(at("2026-04-01T09:00:00Z")).is_empty());
        // A report that is found after nine minutes still counts.
        machine.report(PanicCause::GpuDriver);
        watch.observe(at("2026-04-01T11:11:00Z"));
        assert!(watch.quarantined().contains_key(&7));
    }

    #[test]
    fn nothing_is_held_back_if_the_machine_was_not_restarted() {
        let machine = Machine::serving();
        drop(machine.start_agent("2026-04-01T09:00:00Z"));
        let watch = machine.start_agent("2026-04-01T11:01:00Z");
        assert!(watch.held_back(at("2026-04-01T11:01:01Z")).is_empty());
    }

    #[test]
    fn panic_of_memory_hardware_has_no_effect_on_models() {
        let machine = Machine::serving();
        drop(machine.start_agent("2026-04-01T10:30:00Z"));
        machine.host.restart(None);
        machine.report(PanicCause::Other);
        let now = at("2026-04-01T11:01:00Z");
        let watch = machine.start_agent("2026-04-01T11:01:00Z");
        // The report is there, so there is nothing to wait for.
        assert!(watch.held_back(now).is_empty());
        assert!(watch.quarantined().is_empty());
        assert_eq!(watch.watchdog_panics(now), 0);
    }

    #[test]
    fn watchdog_panic_reduces_memory_for_a_week() {
        let machine = Machine::serving();
        drop(machine.start_agent("2026-04-01T10:30:00Z"));
        machine.host.restart(None);
        machine.report(PanicCause::Watchdog);
        let watch = machine.start_agent("2026-04-01T11:01:00Z");
        assert!(watch.quarantined().is_empty());
        assert_eq!(watch.watchdog_panics(at("2026-04-08T10:59:59Z")), 1);
        assert_eq!(watch.watchdog_panics(at("2026-04-08T11:00:00Z")), 0);
        drop(watch);
        let again = machine.start_agent("2026-04-01T12:00:00Z");
        assert_eq!(
            again.watchdog_panics(at("2026-04-01T12:00:00Z")),
            1,
            "counted once"
        );
        let allocatable = [0, 1, 3, 9].map(|panics| reduced(Bytes(1_000), panics));
        assert_eq!(allocatable, [1_000, 900, 700, 700].map(Bytes));
    }
}
