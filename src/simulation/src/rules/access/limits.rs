//! Bounds of the level of a token bucket in a gateway that receives the use through other gateways
//! late.

use std::time::Duration;

const MINUTE_SECONDS: f64 = 60.0;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level: f64,
    at: Duration,
}

impl Bucket {
    fn fill(&mut self, limit: f64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * limit / MINUTE_SECONDS).min(limit);
        self.at = self.at.max(now);
    }
}

#[derive(Debug, Clone, Copy)]
struct Charge {
    at: Duration,
    amount: f64,
    /// Gateway whose report has the charge; `None` for charges of this gateway.
    reporter: Option<usize>,
}

/// Lowest and highest possible level of a bucket. An earlier charge results in the same or a higher
/// level later, because a full bucket does not refill.
#[derive(Debug)]
pub(super) struct LevelBounds {
    limit: f64,
    /// Highest level, with all charges that have certainly arrived, at their own time.
    highest: Bucket,
    /// Charges since the time of `highest`, in order.
    later: Vec<Charge>,
    /// Lowest level, with the charges that have certainly arrived, at the latest possible time.
    lowest: Bucket,
    /// Charges of other gateways that may have arrived.
    pending: Vec<Charge>,
}

impl LevelBounds {
    /// Returns the bounds of a bucket that is used for the first time. `earlier` are the time,
    /// amount and gateway of charges that may arrive later.
    pub(super) fn new(
        limit: f64,
        now: Duration,
        earlier: impl Iterator<Item = (Duration, f64, usize)>,
    ) -> Self {
        let full = Bucket {
            level: limit,
            at: now,
        };
        Self {
            limit,
            highest: full,
            later: Vec::new(),
            lowest: full,
            pending: earlier
                .map(|(at, amount, reporter)| Charge {
                    at,
                    amount,
                    reporter: Some(reporter),
                })
                .collect(),
        }
    }

    pub(super) fn charge_own(&mut self, now: Duration, amount: f64) {
        self.later.push(Charge {
            at: now,
            amount,
            reporter: None,
        });
        self.lowest.fill(self.limit, now);
        self.lowest.level -= amount;
    }

    pub(super) fn charge_other(&mut self, now: Duration, amount: f64, reporter: usize) {
        let charge = Charge {
            at: now,
            amount,
            reporter: Some(reporter),
        };
        self.later.push(charge);
        self.pending.push(charge);
    }

    /// Removes charges that a restarted gateway may not have reported.
    pub(super) fn forget(&mut self, reporter: usize, settled_until: Duration) {
        self.later
            .retain(|charge| charge.reporter != Some(reporter) || charge.at <= settled_until);
    }

    /// Returns the highest possible level. Charges until `settled_until` have certainly arrived.
    pub(super) fn highest(&mut self, now: Duration, settled_until: Duration) -> f64 {
        let counts = |charge: &Charge| charge.reporter.is_none() || charge.at <= settled_until;
        let settled = self.later.iter().take_while(|charge| counts(charge)).count();
        for charge in self.later.drain(..settled) {
            self.highest.fill(self.limit, charge.at);
            self.highest.level -= charge.amount;
        }
        let mut bucket = self.highest;
        for charge in self.later.iter().filter(|charge| counts(charge)) {
            bucket.fill(self.limit, charge.at);
            bucket.level -= charge.amount;
        }
        bucket.fill(self.limit, now);
        bucket.level
    }

    /// Returns the lowest possible level.
    pub(super) fn lowest(&mut self, now: Duration, settled_until: Duration) -> f64 {
        self.lowest.fill(self.limit, now);
        let (settled, pending): (Vec<Charge>, Vec<Charge>) = self
            .pending
            .iter()
            .copied()
            .partition(|charge| charge.at <= settled_until);
        self.lowest.level -= settled.iter().map(|charge| charge.amount).sum::<f64>();
        self.pending = pending;
        let unsettled = self.pending.iter().map(|charge| charge.amount);
        self.lowest.level - unsettled.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn bounds_differ_by_charges_that_may_have_arrived() {
        let mut bounds = LevelBounds::new(60.0, at(0), std::iter::empty());
        bounds.charge_own(at(0), 20.0);
        bounds.charge_other(at(5), 30.0, 1);
        // 40 + 10 from the refill; the 30 may have arrived.
        assert_eq!(
            (bounds.highest(at(10), at(0)), bounds.lowest(at(10), at(0))),
            (50.0, 20.0)
        );
        // Charged at 5 s, the bucket has refilled to 35 at 25 s. Charged at 25 s, 60 - 30 are left.
        assert_eq!(
            (bounds.highest(at(25), at(5)), bounds.lowest(at(25), at(5))),
            (35.0, 30.0)
        );
        bounds.charge_other(at(30), 5.0, 1);
        bounds.forget(1, at(29));
        assert_eq!(bounds.highest(at(35), at(35)), 45.0);
        assert_eq!(bounds.lowest(at(35), at(35)), 35.0);
    }
}
