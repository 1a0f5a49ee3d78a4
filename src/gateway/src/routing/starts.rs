//! When a model that no replica answers for will have one, from how long its last start took, or from what its node's disk
//! reads.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::table::Model;
use rooflet_roofline::predict::Basis;

/// When something is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) after: Duration,
    pub(crate) by: By,
}

/// What tells when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// What is under way, and what waits.
    Queue,
    /// The time that the last start of a replica took.
    LastStart,
    /// The time that the weights take from the disk of the replica's node: no start is shorter.
    Reading(Basis),
    /// The time that its model still takes to the replica's node, and the start then.
    Download(Basis),
}

/// Since when each replica of a model is on its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Starts(HashMap<u64, Instant>);

impl Starts {
    /// These are on their way as of now.
    pub(crate) fn saw(&mut self, starting: &[u64], now: Instant) {
        self.0.retain(|id, _| starting.contains(id));
        for id in starting {
            self.0.entry(*id).or_insert(now);
        }
    }

    /// When the next one should answer; `None` where nothing tells, or where it takes longer than was predicted.
    pub(crate) fn next(&self, model: &Model, now: Instant) -> Option<Expected> {
        if let Some(download) = model.download {
            let reading = model.reading.map(|reading| reading.seconds);
            let start = model.last_start.map(|took| took.as_secs_f64()).or(reading);
            let after = Duration::try_from_secs_f64(download.seconds + start.unwrap_or(0.0)).ok()?;
            let by = By::Download(download.basis);
            return Some(Expected { after, by });
        }
        let earliest = self.0.values().min().copied().unwrap_or(now);
        let elapsed = now.saturating_duration_since(earliest);
        if let Some(took) = model.last_start {
            return Some(Expected {
                after: took.saturating_sub(elapsed),
                by: By::LastStart,
            });
        }
        let reading = model.reading?;
        let took = Duration::try_from_secs_f64(reading.seconds).ok()?;
        let after = took.checked_sub(elapsed)?;
        let by = By::Reading(reading.basis);
        Some(Expected { after, by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::{Clock, ManualClock};
    use rooflet_base::units::Bytes;
    use rooflet_roofline::loading::{Disk, Download, Link, Reading};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_start_tells_how_long_the_next_will_take_and_the_disk_where_there_was_none() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let mut starts = Starts::default();
        let mut model = Model::default();
        assert_eq!(starts.next(&model, clock.instant()), None);

        // 4.6 GB/s where nobody measured.
        model.reading = Some(Reading::new(Bytes(46_000_000_000), &Disk::new(None)));
        starts.saw(&[1], clock.instant());
        let predicted = |after| {
            let by = By::Reading(Basis::Nominal);
            Some(Expected { after, by })
        };
        assert_eq!(starts.next(&model, clock.instant()), predicted(seconds(10)));
        manual.advance(seconds(4));
        assert_eq!(starts.next(&model, clock.instant()), predicted(seconds(6)));
        manual.advance(seconds(7));
        assert_eq!(starts.next(&model, clock.instant()), None, "that was too little");

        // How far a download is, its node tells.
        let link = Link::new(Some(1e6));
        model.download = Download::new(Bytes(20_000_000), &link);
        let coming = |after| {
            let by = By::Download(Basis::Measured);
            Some(Expected { after, by })
        };
        assert_eq!(starts.next(&model, clock.instant()), coming(seconds(30)));
        model.last_start = Some(seconds(15));
        assert_eq!(starts.next(&model, clock.instant()), coming(seconds(35)));
        model.download = None;

        model.last_start = Some(seconds(30));
        let measured = |after| {
            let by = By::LastStart;
            Some(Expected { after, by })
        };
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(19)));
        starts.saw(&[], clock.instant());
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(30)));
        starts.saw(&[3, 4], clock.instant());
        manual.advance(seconds(10));
        starts.saw(&[3], clock.instant());
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(20)));
        manual.advance(seconds(60));
        assert_eq!(starts.next(&model, clock.instant()), measured(Duration::ZERO));
    }
}
