//! Whether the machine's wired memory came back after the last worker was gone. A process that is killed or crashes while it
//! holds a large model can leave its memory wired in the kernel, where only a restart of the machine frees it. What is
//! wired beyond that is somebody else's: a virtual machine's, say.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::state::StateDir;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// The kernel frees what a process had wired within seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Other programs wire and free this much in a day.
const ORDINARY: Bytes = Bytes::gib(2);

/// In the state directory.
const FILE: &str = "wired.json";

/// Remembers what was wired before anything was served.
#[derive(Debug, Clone, Default)]
pub(crate) struct WiredMemory {
    /// What was wired last before workers ran: other programs wire and free, too.
    baseline: Option<Bytes>,
    /// Workers have run, and what they had wired has not come back yet, as far as is known.
    served: bool,
    /// What those workers may have left that were killed or crashed since it was last looked at.
    lost: Bytes,
    idle_since: Option<Instant>,
    /// It was looked at since the last worker ended: what is wired later is not a worker's.
    is_judged: bool,
    stranded: Option<Bytes>,
}

/// What outlives the agent while workers run: what was wired before them is not to be seen again until they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remembered {
    /// Memory is wired afresh with every start of the machine.
    boot_id: String,
    baseline_bytes: u64,
    served: bool,
    /// Nothing in the file of an older agent.
    #[serde(default)]
    lost_bytes: u64,
    /// What has not come back, once that was judged.
    #[serde(default)]
    stranded_bytes: Option<u64>,
}

impl WiredMemory {
    /// Goes on from what an earlier life of the agent has seen, if the machine has been up since.
    pub(crate) fn resume(remembered: Option<Remembered>, boot_id: &str) -> Self {
        match remembered {
            Some(known) if known.boot_id == boot_id && known.served => Self {
                baseline: Some(Bytes(known.baseline_bytes)),
                served: true,
                lost: Bytes(known.lost_bytes),
                is_judged: known.stranded_bytes.is_some() && known.lost_bytes == 0,
                stranded: known.stranded_bytes.map(Bytes),
                idle_since: None,
            },
            Some(_) | None => Self::default(),
        }
    }

    /// For the agent's next life; `None` while there is nothing to come back.
    pub(crate) fn remember(&self, boot_id: &str) -> Option<Remembered> {
        self.served.then_some(Remembered {
            boot_id: boot_id.to_owned(),
            baseline_bytes: self.baseline?.0,
            served: self.served,
            lost_bytes: self.lost.0,
            stranded_bytes: self.stranded.map(|stranded| stranded.0),
        })
    }

    /// Workers that could hold so much were killed or crashed.
    pub(crate) fn lose(&mut self, held: Bytes) {
        self.lost += held;
    }

    /// `wired` is what is wired now; `idle` that no worker runs. Returns what has not come back.
    pub(crate) fn observe(&mut self, wired: Bytes, idle: bool, now: Instant) -> Option<Bytes> {
        if !idle {
            self.served = true;
            self.idle_since = None;
            self.is_judged = false;
            return self.stranded;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        if self.served && now - idle_since < SETTLED_AFTER {
            return self.stranded;
        }
        // An agent that found workers when it started has no figure from before them.
        let baseline = self.baseline.filter(|_| self.served).unwrap_or(wired);
        // What is wired beyond that is other programs', as is what they wire from then on.
        let known = self.stranded.unwrap_or(Bytes::ZERO);
        let most = if self.is_judged { known } else { known + self.lost };
        let excess = (wired - baseline).min(most);
        (self.is_judged, self.lost) = (true, Bytes::ZERO);
        self.stranded = Some(excess).filter(|excess| *excess > ORDINARY);
        if self.stranded.is_none() {
            (self.served, self.baseline) = (false, Some(wired));
        }
        self.stranded
    }
}

/// The same, kept in the agent's state directory. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WiredWatch {
    state: Arc<StateDir>,
    /// `None` where the machine does not tell one start from another.
    boot_id: Option<String>,
    memory: Arc<Mutex<WiredMemory>>,
}

impl WiredWatch {
    /// Goes on from what is on disk.
    pub(crate) fn load(state: Arc<StateDir>, boot_id: Option<String>) -> Self {
        let remembered = state.read::<Option<Remembered>>(FILE).unwrap_or_else(|err| {
            // It is learned anew.
            warn!(error = %Chain(&err), "what memory was wired before cannot be read");
            None
        });
        let memory = match &boot_id {
            Some(boot_id) => WiredMemory::resume(remembered.flatten(), boot_id),
            None => WiredMemory::default(),
        };
        Self {
            state,
            boot_id,
            memory: Arc::new(Mutex::new(memory)),
        }
    }

    /// See [`WiredMemory::observe`].
    pub(crate) fn look(&self, wired: Bytes, idle: bool, now: Instant) -> Option<Bytes> {
        self.change(|memory| memory.observe(wired, idle, now))
    }

    /// See [`WiredMemory::lose`].
    pub(crate) fn lose(&self, held: Bytes) {
        if held > Bytes::ZERO {
            self.change(|memory| memory.lose(held));
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut WiredMemory) -> T) -> T {
        let mut memory = lock(&self.memory);
        let remember = |memory: &WiredMemory| memory.remember(self.boot_id.as_deref()?);
        let before = remember(&memory);
        let outcome = change(&mut memory);
        let after = remember(&memory);
        if before != after
            && let Err(err) = self.state.write(FILE, &after)
        {
            debug!(error = %Chain(&err), "what memory is wired cannot be written down");
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    /// Steps of `seconds idle|busy|crash GiB -> stranded GiB or -`. At a crash so much of a worker is lost, and none is left.
    #[track_caller]
    fn check(steps: &[(u64, &str, u64, Option<u64>)]) {
        let start = Clock::System.instant();
        let mut memory = WiredMemory::default();
        let mut wired_last = 0;
        for (second, state, wired, expect) in steps {
            let now = start + Duration::from_secs(*second);
            let wired = if *state == "crash" {
                memory.lose(Bytes::gib(*wired));
                wired_last
            } else {
                *wired
            };
            wired_last = wired;
            let stranded = memory.observe(Bytes::gib(wired), *state != "busy", now);
            assert_eq!(stranded, expect.map(Bytes::gib), "at {second} s");
        }
    }

    #[test]
    fn memory_that_stays_wired_after_the_last_worker_was_killed_is_told() {
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
    fn what_others_wire_beside_a_worker_is_no_leak() {
        // The worker ended in order.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "idle", 25, None),
            (120, "idle", 25, None),
            (150, "busy", 60, None),
            (180, "idle", 45, None),
            (240, "idle", 45, None),
        ]);
        // It left no more than it had.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "crash", 12, None),
            (120, "idle", 45, Some(12)),
            // The next one ends in order.
            (150, "busy", 60, Some(12)),
            (180, "idle", 50, Some(12)),
            (240, "idle", 50, Some(12)),
        ]);
        // One of the first workers that had nothing to speak of.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 60, None),
            (60, "crash", 2, None),
            (120, "idle", 45, None),
        ]);
    }

    /// Hours after the last worker a virtual machine or a desktop wires memory, and it is no worker's.
    #[test]
    fn what_others_wire_later_is_no_leak() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (61, "idle", 6, None),
            (120, "idle", 6, None),
            (9000, "idle", 30, None),
            // What was there before the next worker is not its, either.
            (9010, "busy", 60, None),
            (9020, "crash", 30, None),
            (9021, "idle", 30, None),
            (9080, "idle", 30, None),
        ]);
        // Nor does it add to a leak that is known.
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (120, "idle", 15, Some(10)),
            (130, "idle", 35, Some(10)),
            (140, "idle", 12, Some(7)),
            (150, "idle", 35, Some(7)),
            // The next worker may leave more behind.
            (160, "busy", 45, Some(7)),
            (170, "crash", 35, Some(7)),
            (230, "idle", 40, Some(35)),
            (240, "idle", 6, None),
            (250, "idle", 35, None),
        ]);
    }

    #[test]
    fn a_leak_is_found_by_the_agents_next_life_and_not_after_a_restart_of_the_machine() {
        let start = Clock::System.instant();
        let mut first = WiredMemory::default();
        first.observe(Bytes::gib(5), true, start);
        first.observe(Bytes::gib(40), false, start);
        let look = |remembered: Remembered, boot: &str, lost: Bytes| {
            let text = serde_json::to_string(&remembered).unwrap();
            let mut next = WiredMemory::resume(serde_json::from_str(&text).unwrap(), boot);
            next.lose(lost);
            next.observe(Bytes::gib(40), true, start);
            next.observe(Bytes::gib(40), true, start + SETTLED_AFTER)
        };
        let serving = first.remember("boot-1").expect("a baseline");
        // The worker ended while no agent was there.
        let lost = Bytes::gib(36);
        assert_eq!(look(serving.clone(), "boot-1", lost), Some(Bytes::gib(35)));
        assert_eq!(look(serving, "boot-2", lost), None);
        // Or just before the agent did.
        first.lose(lost);
        let lost_before = first.remember("boot-1").expect("a baseline");
        assert_eq!(look(lost_before, "boot-1", Bytes::ZERO), Some(Bytes::gib(35)));
        // Or it was judged before the agent ended.
        first.observe(Bytes::gib(40), true, start);
        first.observe(Bytes::gib(40), true, start + SETTLED_AFTER);
        let judged = first.remember("boot-1").expect("a leak");
        let mut next = WiredMemory::resume(Some(judged.clone()), "boot-1");
        assert_eq!(next.observe(Bytes::gib(40), true, start), Some(Bytes::gib(35)));
        assert_eq!(look(judged, "boot-1", Bytes::ZERO), Some(Bytes::gib(35)));
        assert_eq!(WiredMemory::default().remember("boot-1"), None);
    }

    #[test]
    fn memory_that_comes_back_and_what_others_wire_is_none_of_it() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "crash", 35, None),
            (120, "idle", 7, None),
        ]);
        // No worker of ours ever ran.
        check(&[(0, "idle", 5, None), (600, "idle", 20, None)]);
        // Workers were there before the agent: what was wired before them is not known.
        check(&[
            (0, "busy", 40, None),
            (30, "crash", 35, None),
            (100, "idle", 40, None),
        ]);
    }
}
