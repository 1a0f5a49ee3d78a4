//! Watches that tell something twice, or late: a server behind a proxy, or one of several that
//! lags.

use std::time::Duration;

use crate::random::Random;

/// What is told again or late comes within this time.
const LATEST: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub(crate) struct Disorder {
    pub(crate) random: Random,
    /// The shares that are told again, and late.
    pub(crate) repeated: f64,
    pub(crate) reordered: f64,
    /// Something was told late last at this time.
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

    /// What was known at a moment is all that is older than this.
    pub(crate) fn lag(&self, at: Duration) -> Duration {
        match self.last {
            Some(last) if at <= last + LATEST => LATEST,
            Some(_) | None => Duration::ZERO,
        }
    }

    /// By how much the next thing is told late, and by how much later again.
    pub(crate) fn draw(&mut self, now: Duration) -> (Option<Duration>, Option<Duration>) {
        let random = &mut self.random;
        let mut one = |share: f64| {
            let drawn = share > 0.0 && random.chance(share);
            drawn.then(|| random.between(Duration::ZERO, LATEST))
        };
        let (late, again) = (one(self.reordered), one(self.repeated));
        if late.is_some() {
            self.last = Some(now);
        }
        (late, again)
    }
}
