//! Estimated sizes, and costs that depend on them.

/// Range of the size of a value: characters of a text, bytes, items of a list, entries of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Size {
    pub(super) const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    pub(super) fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub(super) fn at_most(max: u64) -> Self {
        Self { min: 0, max }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    pub(super) fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// Returns the maximum cost of a function that costs `factor` per unit.
    pub(super) fn cost(self, factor: f64) -> u64 {
        scaled(self.max, factor)
    }
}

/// Multiplies and rounds up.
pub(super) fn scaled(cost: u64, factor: f64) -> u64 {
    // A cast from a float saturates.
    (cost as f64 * factor).ceil() as u64
}

/// Returns the number of parts of at least `part` units in `whole` units, rounded up.
pub(super) fn parts(whole: u64, part: u64) -> u64 {
    let count = (whole as f64 / part as f64).ceil();
    // Go's result of this conversion on amd64.
    if count >= 2_f64.powi(64) {
        1 << 63
    } else {
        count as u64
    }
}
