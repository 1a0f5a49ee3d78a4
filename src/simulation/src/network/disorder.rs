//! Repeated and late watch events, as from a server behind a proxy or from a lagging replica of the
//! server.

use std::time::Duration;

use crate::random::Random;

/// Longest additional delay of a repeated or late event.
const MAX_LATENESS: Duration = Duration::from_secs(3);

/// Shares of repeated and late events.
#[derive(Debug)]
pub(crate) struct Disorder {
    pub(crate) random: Random,
    /// Share of events that are delivered twice.
    pub(crate) repeated: f64,
    /// Share of events that are delivered after later ones.
    pub(crate) reordered: f64,
    /// Time at which the last late event was sent.
    pub(crate) last: Option<Duration>,
}

impl Disorder {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::stream(seed, "watches"),
            repeated: 0.0,
            reordered: 0.0,
            last: None,
        }
    }

    /// Returns how old an event must be at a point in time for the receiver to surely have it.
    pub(crate) fn lag(&self, at: Duration) -> Duration {
        match self.last {
            Some(last) if at <= last + MAX_LATENESS => MAX_LATENESS,
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Draws the additional delay of the next event, and that of its repetition.
    pub(crate) fn draw(&mut self, now: Duration) -> (Option<Duration>, Option<Duration>) {
        let random = &mut self.random;
        let mut delay = |share: f64| {
            let drawn = share > 0.0 && random.chance(share);
            drawn.then(|| random.between(Duration::ZERO, MAX_LATENESS))
        };
        let (late, again) = (delay(self.reordered), delay(self.repeated));
        if late.is_some() {
            self.last = Some(now);
        }
        (late, again)
    }
}
