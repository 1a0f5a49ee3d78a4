//! Random numbers that depend only on the seed, on every machine and in every version.

use std::time::Duration;

/// SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a separate generator for one purpose. The numbers of one purpose do not depend on how
    /// many are drawn for another.
    pub(crate) fn stream(seed: u64, purpose: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in purpose.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        let mut random = Self(seed ^ hash);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a number less than `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        micros(
            shortest.as_micros() as f64 + self.unit() * longest.saturating_sub(shortest).as_micros() as f64,
        )
    }

    /// Returns the time to the next event of a Poisson process.
    pub(crate) fn exponential(&mut self, mean_seconds: f64) -> f64 {
        -mean_seconds * (1.0 - self.unit()).ln()
    }
}

/// Rounds to whole microseconds, the resolution of the virtual clock.
pub(crate) fn micros(micros: f64) -> Duration {
    Duration::from_micros(micros.max(0.0).round() as u64)
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    micros(seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values: first outputs of the reference implementation for the seed 1234567
    /// (prng.di.unimi.it/splitmix64.c).
    #[test]
    fn numbers_equal_the_reference_implementation() {
        let mut random = Random(1_234_567);
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn exponential_has_the_mean_and_below_the_bound() {
        let mut random = Random::stream(1, "test");
        let count = 20_000;
        let mean = (0..count).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(count);
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert!((0..1000).all(|_| random.below(7) < 7));
    }
}
