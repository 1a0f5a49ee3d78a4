//! Expected start of the first replica of a model without ready replicas.
//!
//! Sources: the duration of the model's last start, the remaining download, or the disk speed of
//! the node.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::table::Model;
use rooflet_roofline::predict::Basis;

/// Expected time until a request or a replica starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpectedStart {
    pub(crate) after: Duration,
    pub(crate) source: EstimateSource,
}

/// Source of an expected start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EstimateSource {
    /// In-flight and queued requests.
    Queue,
    /// Duration of the last start of a replica.
    LastStart,
    /// Time to read the weights from the node's disk; a lower bound of the start.
    Reading(Basis),
    /// Remaining download time on the replica's node, plus the start after it.
    Download(Basis),
}

/// Starting replicas of a model, by id, with the time at which the gateway first observed each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Starts(HashMap<u64, Instant>);

impl Starts {
    /// Replaces the set of starting replicas.
    pub(crate) fn record(&mut self, starting: &[u64], now: Instant) {
        self.0.retain(|id, _| starting.contains(id));
        for id in starting {
            self.0.entry(*id).or_insert(now);
        }
    }

    /// Returns the expected start of the next replica.
    ///
    /// Returns `None` without a source, and if a start takes longer than predicted from the disk.
    pub(crate) fn next(&self, model: &Model, now: Instant) -> Option<ExpectedStart> {
        if let Some(download) = model.download {
            let reading = model.reading.map(|reading| reading.seconds);
            let start = model.last_start.map(|took| took.as_secs_f64()).or(reading);
            let after = Duration::try_from_secs_f64(download.seconds + start.unwrap_or(0.0)).ok()?;
            let source = EstimateSource::Download(download.basis);
            return Some(ExpectedStart { after, source });
        }
        let earliest = self.0.values().min().copied().unwrap_or(now);
        let elapsed = now.saturating_duration_since(earliest);
        if let Some(took) = model.last_start {
            return Some(ExpectedStart {
                after: took.saturating_sub(elapsed),
                source: EstimateSource::LastStart,
            });
        }
        let reading = model.reading?;
        let took = Duration::try_from_secs_f64(reading.seconds).ok()?;
        let after = took.checked_sub(elapsed)?;
        let source = EstimateSource::Reading(reading.basis);
        Some(ExpectedStart { after, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::{Clock, ManualClock};
    use rooflet_base::units::Bytes;
    use rooflet_roofline::loading::{Disk, Download, Link, WeightRead};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn expects_start_from_download_then_last_start_then_disk() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let mut starts = Starts::default();
        let mut model = Model::default();
        assert_eq!(starts.next(&model, clock.instant()), None);

        // 4.6 GB/s: the default without a measurement.
        model.reading = Some(WeightRead::new(Bytes(46_000_000_000), &Disk::new(None)));
        starts.record(&[1], clock.instant());
        let predicted = |after| {
            let source = EstimateSource::Reading(Basis::Nominal);
            Some(ExpectedStart { after, source })
        };
        assert_eq!(starts.next(&model, clock.instant()), predicted(seconds(10)));
        manual.advance(seconds(4));
        assert_eq!(starts.next(&model, clock.instant()), predicted(seconds(6)));
        manual.advance(seconds(7));
        assert_eq!(
            starts.next(&model, clock.instant()),
            None,
            "the start takes longer than predicted"
        );

        // The remaining download includes the elapsed time.
        let link = Link::new(Some(1e6));
        model.download = Download::new(Bytes(20_000_000), &link);
        let coming = |after| {
            let source = EstimateSource::Download(Basis::Measured);
            Some(ExpectedStart { after, source })
        };
        assert_eq!(starts.next(&model, clock.instant()), coming(seconds(30)));
        model.last_start = Some(seconds(15));
        assert_eq!(starts.next(&model, clock.instant()), coming(seconds(35)));
        model.download = None;

        model.last_start = Some(seconds(30));
        let measured = |after| {
            let source = EstimateSource::LastStart;
            Some(ExpectedStart { after, source })
        };
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(19)));
        starts.record(&[], clock.instant());
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(30)));
        starts.record(&[3, 4], clock.instant());
        manual.advance(seconds(10));
        starts.record(&[3], clock.instant());
        assert_eq!(starts.next(&model, clock.instant()), measured(seconds(20)));
        manual.advance(seconds(60));
        assert_eq!(starts.next(&model, clock.instant()), measured(Duration::ZERO));
    }
}
