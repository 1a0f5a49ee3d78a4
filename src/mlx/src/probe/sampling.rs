//! Timing: chained launches per evaluation, warm-ups, samples, and a second attempt if the samples
//! vary too much.

use std::time::Duration;

use mlx_rs::error::Result;

use rooflet_api::v1alpha1::Spread;
use rooflet_base::clock::Clock;
use rooflet_roofline::probing::{spread, unsteadiness};

/// Evaluations before the first measured one.
const WARM_UPS: usize = 5;
/// Maximum number of launches per evaluation, unless the figure specifies a number.
const MAX_LAUNCHES: usize = 100;
/// Lower bound of a measured time, which avoids a division by zero if the clock does not advance.
const MIN_TIME: Duration = Duration::from_nanos(100);

/// Durations and numbers of samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling {
    /// Duration of one timed evaluation, long compared with a launch and with the resolution of the
    /// clock.
    pub(super) sample: Duration,
    /// Total duration of the timed evaluations of one figure.
    pub(super) figure: Duration,
    pub(super) min_samples: usize,
    pub(super) max_samples: usize,
}

/// Measurement of the duration of operations.
pub(super) struct Sampler<'a> {
    clock: &'a Clock,
    sampling: Sampling,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(clock: &'a Clock, sampling: Sampling) -> Self {
        Self { clock, sampling }
    }

    /// Measures the seconds per launch. `run(launches, first)` uses `launches` buffers from `first`
    /// on. If the samples vary too much, the measurement is repeated once and the steadier one is
    /// returned.
    pub(super) fn seconds(&self, run: impl FnMut(usize, usize) -> Result<()>) -> Result<Spread> {
        self.seconds_of(None, run)
    }

    /// Like [`seconds`](Self::seconds), with a fixed number of launches per evaluation.
    pub(super) fn seconds_chained(
        &self,
        launches: usize,
        run: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Spread> {
        self.seconds_of(Some(launches), run)
    }

    fn seconds_of(
        &self,
        launches: Option<usize>,
        run: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Spread> {
        let mut timer = self.timer(run);
        let launches = match launches {
            Some(launches) => launches,
            None => timer.launches()?,
        };
        let first = timer.spread(launches)?;
        if first.steady {
            return Ok(first);
        }
        let second = timer.spread(launches)?;
        Ok(if unsteadiness(&second) < unsteadiness(&first) {
            second
        } else {
            first
        })
    }

    /// Measures samples for `duration`. Returns the end of each sample in seconds since the start,
    /// and its seconds per launch.
    pub(super) fn series(
        &self,
        duration: Duration,
        run: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<(f64, f64)>> {
        let mut timer = self.timer(run);
        let launches = timer.launches()?;
        let begin = self.clock.instant();
        let mut series = Vec::new();
        loop {
            let seconds = timer.timed(launches)?.as_secs_f64() / launches as f64;
            let elapsed = self.clock.instant().duration_since(begin);
            series.push((elapsed.as_secs_f64(), seconds));
            if elapsed >= duration {
                return Ok(series);
            }
        }
    }

    fn timer<F>(&self, run: F) -> Timer<'_, F> {
        Timer {
            sampler: self,
            run,
            next: 0,
        }
    }
}

struct Timer<'a, F> {
    sampler: &'a Sampler<'a>,
    run: F,
    next: usize,
}

impl<F: FnMut(usize, usize) -> Result<()>> Timer<'_, F> {
    fn timed(&mut self, launches: usize) -> Result<Duration> {
        let clock = self.sampler.clock;
        let begin = clock.instant();
        (self.run)(launches, self.next)?;
        self.next += launches;
        Ok(clock.instant().duration_since(begin).max(MIN_TIME))
    }

    /// Returns the number of launches that take about as long as one sample should.
    fn launches(&mut self) -> Result<usize> {
        self.timed(1)?;
        let one = self.timed(1)?;
        Ok(times(self.sampler.sampling.sample, one).clamp(1, MAX_LAUNCHES))
    }

    fn spread(&mut self, launches: usize) -> Result<Spread> {
        let sampling = self.sampler.sampling;
        let mut one = MIN_TIME;
        for _ in 0..WARM_UPS {
            one = self.timed(launches)?;
        }
        let samples = times(sampling.figure, one).clamp(sampling.min_samples, sampling.max_samples);
        let seconds = (0..samples)
            .map(|_| Ok(self.timed(launches)?.as_secs_f64() / launches as f64))
            .collect::<Result<Vec<_>>>()?;
        Ok(spread(seconds))
    }
}

/// Returns the number of times that `part` fits into `whole`.
fn times(whole: Duration, part: Duration) -> usize {
    (whole.as_secs_f64() / part.as_secs_f64()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::ManualClock;

    const SAMPLING: Sampling = Sampling {
        sample: Duration::from_millis(10),
        figure: Duration::from_millis(300),
        min_samples: 10,
        max_samples: 30,
    };

    fn manual() -> (ManualClock, Clock) {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        (manual.clone(), Clock::Manual(manual))
    }

    #[test]
    fn chains_launches_until_a_sample_is_long_enough() {
        let (manual, clock) = manual();
        let mut seen = Vec::new();
        let spread = Sampler::new(&clock, SAMPLING)
            .seconds(|launches, first| {
                seen.push((launches, first));
                manual.advance(Duration::from_millis(2) * u32::try_from(launches).unwrap());
                Ok(())
            })
            .unwrap();
        assert_eq!((spread.median, spread.samples, spread.steady), (0.002, 30, true));
        assert_eq!(seen.len(), 2 + WARM_UPS + 30);
        assert_eq!(
            seen[2..4],
            [(5, 2), (5, 7)],
            "each evaluation continues after the last buffer of the previous one"
        );
    }

    #[test]
    fn repeats_unsteady_measurements_once() {
        let (manual, clock) = manual();
        let mut calls = 0;
        let spread = Sampler::new(&clock, SAMPLING)
            .seconds_chained(1, |_, _| {
                calls += 1;
                // The first attempt is disturbed every third time, the second is not.
                let disturbed = calls <= 5 + 30 && calls % 3 == 0;
                manual.advance(Duration::from_millis(if disturbed { 15 } else { 10 }));
                Ok(())
            })
            .unwrap();
        assert!(spread.steady, "{spread:?}");
        let mut calls = 0;
        let spread = Sampler::new(&clock, SAMPLING)
            .seconds_chained(1, |_, _| {
                calls += 1;
                manual.advance(Duration::from_millis(if calls % 3 == 0 { 15 } else { 10 }));
                Ok(())
            })
            .unwrap();
        assert!(!spread.steady, "{spread:?}");
        assert!(calls > 40, "{calls} evaluations are too few for two attempts");
    }

    #[test]
    fn series_lasts_for_the_requested_duration() {
        let (manual, clock) = manual();
        let series = Sampler::new(&clock, SAMPLING)
            .series(Duration::from_millis(100), |launches, _| {
                manual.advance(Duration::from_millis(10) * u32::try_from(launches).unwrap());
                Ok(())
            })
            .unwrap();
        assert_eq!(series.len(), 10);
        assert_eq!(series.last(), Some(&(0.1, 0.01)));
    }
}
