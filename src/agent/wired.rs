//! Whether the machine's wired memory came back after the last worker was gone. A process that is killed while it holds a
//! large model can leave its memory wired in the kernel, where only a restart of the machine frees it.

use std::time::{Duration, Instant};

use crate::units::Bytes;

/// The kernel frees what a process had wired within seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Other programs wire and free this much in a day.
const ORDINARY: Bytes = Bytes::gib(2);

/// Remembers what was wired before anything was served.
#[derive(Debug, Clone, Default)]
pub(super) struct WiredMemory {
    /// The least that was seen without a worker.
    baseline: Option<Bytes>,
    served: bool,
    idle_since: Option<Instant>,
    stranded: Option<Bytes>,
}

impl WiredMemory {
    /// `wired` is what is wired now; `idle` that no worker runs. Returns what has not come back.
    pub(super) fn observe(&mut self, wired: Bytes, idle: bool, now: Instant) -> Option<Bytes> {
        if !idle {
            self.served = true;
            self.idle_since = None;
            return self.stranded;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        if self.served && now - idle_since < SETTLED_AFTER {
            return self.stranded;
        }
        let baseline = self.baseline.map_or(wired, |baseline| baseline.min(wired));
        // An agent that found workers when it started has no figure from before them.
        if self.served && self.baseline.is_none() {
            self.served = false;
        }
        self.baseline = Some(baseline);
        let excess = wired - baseline;
        self.stranded = (self.served && excess > ORDINARY).then_some(excess);
        self.stranded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    /// Steps of `seconds idle|busy GiB -> stranded GiB or -`.
    #[track_caller]
    fn check(steps: &[(u64, &str, u64, Option<u64>)]) {
        let start = Clock::System.instant();
        let mut memory = WiredMemory::default();
        for (second, state, wired, expect) in steps {
            let now = start + Duration::from_secs(*second);
            let stranded = memory.observe(Bytes::gib(*wired), *state == "idle", now);
            assert_eq!(stranded, expect.map(Bytes::gib), "at {second} s");
        }
    }

    #[test]
    fn memory_that_stays_wired_after_the_last_worker_is_told() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "idle", 40, None),
            (119, "idle", 40, None),
            (120, "idle", 40, Some(35)),
            (150, "busy", 60, Some(35)),
            (180, "idle", 60, Some(35)),
            (240, "idle", 6, None),
        ]);
    }

    #[test]
    fn memory_that_comes_back_and_what_others_wire_is_none_of_it() {
        check(&[
            (0, "idle", 5, None),
            (30, "busy", 40, None),
            (60, "idle", 40, None),
            (120, "idle", 7, None),
        ]);
        // No worker of ours ever ran.
        check(&[(0, "idle", 5, None), (600, "idle", 20, None)]);
        // Workers were there before the agent: what was wired before them is not known.
        check(&[
            (0, "busy", 40, None),
            (30, "idle", 40, None),
            (100, "idle", 40, None),
        ]);
    }
}
