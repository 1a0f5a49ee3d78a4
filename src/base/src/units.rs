//! Quantities with units as types, with only the meaningful arithmetic.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of bytes. Displayed in binary units (`1.5 GiB`), serialised as an integer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const ZERO: Self = Self(0);

    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Returns the ratio to `whole`; a `whole` of 0 counts as 1.
    pub fn share_of(self, whole: Self) -> f64 {
        self.0 as f64 / whole.0.max(1) as f64
    }

    /// Returns the difference, or zero if `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 1023.95 would be rounded to "1024.0", so the next unit starts slightly earlier.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        match unit {
            0 => write!(f, "{} B", self.0),
            _ => write!(f, "{value:.1} {}", UNITS[unit]),
        }
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

/// Bandwidth in bytes per second. Displayed in decimal GB/s, as chip makers do.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = self.0 / 1e9;
        if gb >= 100.0 {
            write!(f, "{gb:.0} GB/s")
        } else {
            write!(f, "{gb:.1} GB/s")
        }
    }
}

/// Returns the time to move these bytes.
impl Div<BytesPerSecond> for Bytes {
    type Output = Duration;
    fn div(self, rate: BytesPerSecond) -> Duration {
        let seconds = self.0 as f64 / rate.0;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Returns the rate at which these bytes were moved.
impl Div<Duration> for Bytes {
    type Output = BytesPerSecond;
    fn div(self, time: Duration) -> BytesPerSecond {
        BytesPerSecond(self.0 as f64 / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_display_in_binary_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (24 << 30, "24.0 GiB"),
            ((1 << 30) - 1, "1.0 GiB"),
        ];
        for (bytes, expect) in cases {
            assert_eq!(Bytes(bytes).to_string(), expect);
        }
    }

    #[test]
    fn bytes_divided_by_bandwidth_is_a_time() {
        // 4 GB at 400 GB/s take 10 ms.
        assert_eq!(
            Bytes(4_000_000_000) / BytesPerSecond(400e9),
            Duration::from_millis(10)
        );
        assert_eq!(Bytes(1) / BytesPerSecond(0.0), Duration::MAX);
    }
}
