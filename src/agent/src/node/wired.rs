//! Detection of leaked wired memory. If a process that holds a large model is killed or crashes,
//! its memory can stay wired in the kernel until the machine restarts. Memory that other programs
//! wire, such as virtual machines, is not counted.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::state::StateDir;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// The kernel frees the wired memory of an exited process within this time.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Wired memory that other programs add or free in a day, and that is therefore ignored.
const TOLERANCE: Bytes = Bytes::gib(2);

/// File in the state directory.
const FILE: &str = "wired.json";

/// State of the leak detection.
#[derive(Debug, Clone, Default)]
pub(crate) struct WiredMemory {
    /// Wired memory measured last before workers ran.
    baseline: Option<Bytes>,
    /// True if workers have run and their wired memory is not known to be freed.
    served: bool,
    /// Memory that workers may have left wired because they were killed or crashed since the last
    /// check.
    lost: Bytes,
    idle_since: Option<Instant>,
    /// True if a check was made since the last worker exited. Memory wired after the check belongs
    /// to other programs.
    is_judged: bool,
    leaked: Option<Bytes>,
}

/// State that is stored while workers run, because the baseline cannot be measured again before
/// they exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredWiredMemory {
    /// Id of the system start. Wired memory starts from zero with every start.
    boot_id: String,
    baseline_bytes: u64,
    served: bool,
    /// Absent in files of older agents.
    #[serde(default)]
    lost_bytes: u64,
    /// Leaked memory, if the check has been made.
    #[serde(default)]
    stranded_bytes: Option<u64>,
}

impl WiredMemory {
    /// Continues from stored state, if the machine has not restarted since.
    pub(crate) fn resume(stored: Option<StoredWiredMemory>, boot_id: &str) -> Self {
        match stored {
            Some(known) if known.boot_id == boot_id && known.served => Self {
                baseline: Some(Bytes(known.baseline_bytes)),
                served: true,
                lost: Bytes(known.lost_bytes),
                is_judged: known.stranded_bytes.is_some() && known.lost_bytes == 0,
                leaked: known.stranded_bytes.map(Bytes),
                idle_since: None,
            },
            Some(_) | None => Self::default(),
        }
    }

    /// Returns the state to store for the next agent process. `None` if no worker memory is
    /// outstanding.
    pub(crate) fn to_stored(&self, boot_id: &str) -> Option<StoredWiredMemory> {
        self.served.then_some(StoredWiredMemory {
            boot_id: boot_id.to_owned(),
            baseline_bytes: self.baseline?.0,
            served: self.served,
            lost_bytes: self.lost.0,
            stranded_bytes: self.leaked.map(|leaked| leaked.0),
        })
    }

    /// Adds the memory of workers that were killed or crashed.
    pub(crate) fn add_lost(&mut self, held: Bytes) {
        self.lost += held;
    }

    /// Checks the wired memory. `gpu` is the memory that the GPU's driver holds, if it reports it;
    /// `idle` is true if no worker runs. Returns the leaked memory.
    pub(crate) fn observe(
        &mut self,
        wired: Bytes,
        gpu: Option<Bytes>,
        idle: bool,
        now: Instant,
    ) -> Option<Bytes> {
        if !idle {
            self.served = true;
            self.idle_since = None;
            self.is_judged = false;
            return self.leaked;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        if self.served && now - idle_since < SETTLED_AFTER {
            return self.leaked;
        }
        // An agent that adopted workers has no earlier baseline.
        let baseline = self.baseline.filter(|_| self.served).unwrap_or(wired);
        // Excess beyond the lost memory belongs to other programs.
        let known = self.leaked.unwrap_or(Bytes::ZERO);
        let most = if self.is_judged { known } else { known + self.lost };
        // A leak of a worker is memory of the GPU's driver. Wired memory also grows for other reasons.
        let excess = (wired - baseline).min(most).min(gpu.unwrap_or(most));
        (self.is_judged, self.lost) = (true, Bytes::ZERO);
        self.leaked = Some(excess).filter(|excess| *excess > TOLERANCE);
        if self.leaked.is_none() {
            (self.served, self.baseline) = (false, Some(wired));
        }
        self.leaked
    }
}

/// [`WiredMemory`] that is stored in the agent's state directory. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WiredWatch {
    state: Arc<StateDir>,
    /// `None` if the machine does not report an id of its system start.
    boot_id: Option<String>,
    memory: Arc<Mutex<WiredMemory>>,
}

impl WiredWatch {
    /// Loads the stored state.
    pub(crate) fn load(state: Arc<StateDir>, boot_id: Option<String>) -> Self {
        let stored = state
            .read::<Option<StoredWiredMemory>>(FILE)
            .unwrap_or_else(|err| {
                // Detection starts from zero.
                warn!(error = %Chain(&err), "failed to read the stored wired memory");
                None
            });
        let memory = match &boot_id {
            Some(boot_id) => WiredMemory::resume(stored.flatten(), boot_id),
            None => WiredMemory::default(),
        };
        Self {
            state,
            boot_id,
            memory: Arc::new(Mutex::new(memory)),
        }
    }

    /// See [`WiredMemory::observe`].
    pub(crate) fn observe(
        &self,
        wired: Bytes,
        gpu: Option<Bytes>,
        idle: bool,
        now: Instant,
    ) -> Option<Bytes> {
        self.change(|memory| memory.observe(wired, gpu, idle, now))
    }

    /// See [`WiredMemory::add_lost`].
    pub(crate) fn add_lost(&self, held: Bytes) {
        if held > Bytes::ZERO {
            self.change(|memory| memory.add_lost(held));
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut WiredMemory) -> T) -> T {
        let mut memory = lock(&self.memory);
        let to_stored = |memory: &WiredMemory| memory.to_stored(self.boot_id.as_deref()?);
        let before = to_stored(&memory);
        let outcome = change(&mut memory);
        let after = to_stored(&memory);
        if before != after
            && let Err(err) = self.state.write(FILE, &after)
        {
            debug!(error = %Chain(&err), "failed to store the wired memory");
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    /// Steps of `seconds idle|busy|crash GiB -> leaked GiB or -`. A crash loses a worker with that
    /// memory and leaves none running.
    #[track_caller]
    fn check(steps: &[(u64, &str, u64, Option<u64>)]) {
        let start = Clock::System.instant();
        let mut memory = WiredMemory::default();
        let mut wired_last = 0;
        for (second, state, wired, expect) in steps {
            let now = start + Duration::from_secs(*second);
            let wired = if *state == "crash" {
                memory.add_lost(Bytes::gib(*wired));
                wired_last
            } else {
                *wired
            };
            wired_last = wired;
            let leaked = memory.observe(Bytes::gib(wired), None, *state != "busy", now);
            assert_eq!(leaked, expect.map(Bytes::gib), "at {second} s");
        }
    }

    #[test]
    fn memory_that_stays_wired_after_a_killed_worker_is_a_leak() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 36, None),
            (119, "idle", 40, None),
            (120, "idle", 40, Some(35)),
            (150, "busy", 60, Some(35)),
            (180, "idle", 60, Some(35)),
            (240, "idle", 6, None),
        ]);
    }

    /// A virtual machine that starts while a worker runs wires memory, too.
    #[test]
    fn memory_wired_by_other_programs_during_serving_is_no_leak() {
        // The worker exited normally.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "idle", 25, None),
            (120, "idle", 25, None),
            (150, "busy", 60, None),
            (180, "idle", 45, None),
            (240, "idle", 45, None),
        ]);
        // The leak cannot exceed the worker's memory.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "crash", 12, None),
            (120, "idle", 45, Some(12)),
            // The next worker exits normally.
            (150, "busy", 60, Some(12)),
            (180, "idle", 50, Some(12)),
            (240, "idle", 50, Some(12)),
        ]);
        // One of the first workers that held almost no memory.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "crash", 2, None),
            (120, "idle", 45, None),
        ]);
    }

    /// Memory that a virtual machine or a desktop wires hours after the last worker exited is not
    /// the worker's.
    #[test]
    fn memory_wired_by_other_programs_after_serving_is_no_leak() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (61, "idle", 6, None),
            (120, "idle", 6, None),
            (9000, "idle", 30, None),
            // Memory wired before the next worker starts is not that worker's.
            (9010, "busy", 60, None),
            (9020, "crash", 30, None),
            (9021, "idle", 30, None),
            (9080, "idle", 30, None),
        ]);
        // It does not add to a known leak.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (120, "idle", 15, Some(10)),
            (130, "idle", 35, Some(10)),
            (140, "idle", 12, Some(7)),
            (150, "idle", 35, Some(7)),
            // The next worker may leak more memory.
            (160, "busy", 45, Some(7)),
            (170, "crash", 35, Some(7)),
            (230, "idle", 40, Some(35)),
            (240, "idle", 6, None),
            (250, "idle", 35, None),
        ]);
    }

    /// The kernel's own wired memory grows over days.
    #[test]
    fn wired_memory_that_the_gpu_does_not_hold_is_no_leak() {
        let start = Clock::System.instant();
        let leaked = |gpu: Option<u64>| {
            let mut memory = WiredMemory::default();
            memory.observe(Bytes::gib(5), None, true, start);
            memory.observe(Bytes::gib(40), None, false, start);
            memory.add_lost(Bytes::gib(35));
            memory.observe(Bytes::gib(20), None, true, start);
            let gpu = gpu.map(Bytes::gib);
            memory.observe(Bytes::gib(20), gpu, true, start + SETTLED_AFTER)
        };
        assert_eq!(leaked(None), Some(Bytes::gib(15)));
        assert_eq!(leaked(Some(1)), None);
        assert_eq!(leaked(Some(14)), Some(Bytes::gib(14)));
    }

    #[test]
    fn leak_survives_agent_restart_but_not_machine_restart() {
        let start = Clock::System.instant();
        let mut first = WiredMemory::default();
        first.observe(Bytes::gib(5), None, true, start);
        first.observe(Bytes::gib(40), None, false, start);
        let look = |remembered: StoredWiredMemory, boot: &str, lost: Bytes| {
            let text = serde_json::to_string(&remembered).unwrap();
            let mut next = WiredMemory::resume(serde_json::from_str(&text).unwrap(), boot);
            next.add_lost(lost);
            next.observe(Bytes::gib(40), None, true, start);
            next.observe(Bytes::gib(40), None, true, start + SETTLED_AFTER)
        };
        let serving = first.to_stored("boot-1").expect("a baseline");
        // The worker exited while no agent ran.
        let lost = Bytes::gib(36);
        assert_eq!(look(serving.clone(), "boot-1", lost), Some(Bytes::gib(35)));
        assert_eq!(look(serving, "boot-2", lost), None);
        // The worker exited just before the agent stopped.
        first.add_lost(lost);
        let lost_before = first.to_stored("boot-1").expect("a baseline");
        assert_eq!(look(lost_before, "boot-1", Bytes::ZERO), Some(Bytes::gib(35)));
        // The check was made before the agent stopped.
        first.observe(Bytes::gib(40), None, true, start);
        first.observe(Bytes::gib(40), None, true, start + SETTLED_AFTER);
        let judged = first.to_stored("boot-1").expect("a leak");
        let mut next = WiredMemory::resume(Some(judged.clone()), "boot-1");
        assert_eq!(
            next.observe(Bytes::gib(40), None, true, start),
            Some(Bytes::gib(35))
        );
        assert_eq!(look(judged, "boot-1", Bytes::ZERO), Some(Bytes::gib(35)));
        assert_eq!(WiredMemory::default().to_stored("boot-1"), None);
    }

    #[test]
    fn freed_memory_and_memory_of_other_programs_is_no_leak() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (120, "idle", 7, None),
        ]);
        // No worker has run.
        check(&[(0, "idle", 5, None), (600, "idle", 20, None)]);
        // The workers are older than the agent, so the baseline is unknown.
        check(&[
            (0, "busy", 40, None),
            (30, "crash", 35, None),
            (100, "idle", 40, None),
        ]);
    }
}
