//! Evaluation of a probe's samples: spread, steadiness, expiry, and plausibility of a bandwidth.
//! `mlx::probe` measures the samples.

use std::time::Duration;

use rooflet_api::v1alpha1::{Figure, Measurements, Plausibility, PlausibilityVerdict, Spread};
use rooflet_base::quantile::{quantile, sorted};
use rooflet_base::units::BytesPerSecond;

/// Lifetime of a measured figure. The driver, the system or the cooling may change afterwards.
pub const PROBE_FRESH_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum time of load for the measurement of sustained speed.
pub const MAX_SUSTAINED_SECONDS: u64 = 3600;

/// Maximum (p90 - p10) / median. A larger value means that another program used the machine.
const MAX_UNSTEADINESS: f64 = 0.05;

/// Maximum (p90 - p10) / median of the figures that determine predictions. Intervals of predictions
/// include smaller variations.
const MAX_DISTURBANCE: f64 = 0.15;

/// Maximum load per CPU core, and maximum share of the GPU's time, before a measurement.
const MAX_CPU_LOAD: f64 = 0.5;
const MAX_GPU_USE: f64 = 0.2;

/// Plausible ratio of measured to nominal bandwidth of undisturbed machines, with a margin around
/// published reads: M5 0.77, M4 Pro 0.93, M3 Max 0.965. Lower values indicate contention, another
/// bin or a power mode; higher values indicate a cache hit or the wrong data sheet.
const PLAUSIBLE_SHARES: std::ops::RangeInclusive<f64> = 0.70..=0.98;

/// Returns the percentiles of samples, of which there is at least one.
pub fn spread(samples: Vec<f64>) -> Spread {
    let samples = sorted(samples);
    let at = |share| quantile(&samples, share).expect("at least one sample");
    let (p10, median, p90) = (at(0.1), at(0.5), at(0.9));
    Spread {
        median,
        p10,
        p90,
        samples: u32::try_from(samples.len()).unwrap_or(u32::MAX),
        steady: (p90 - p10) / median <= MAX_UNSTEADINESS,
    }
}

/// Returns the width of a spread relative to its median.
pub fn unsteadiness(spread: &Spread) -> f64 {
    (spread.p90 - spread.p10) / spread.median
}

/// Returns `amount` per second. Slow samples are low rates, so p10 and p90 are exchanged.
pub fn rate(amount: f64, seconds: &Spread) -> Spread {
    Spread {
        median: amount / seconds.median,
        p10: amount / seconds.p90,
        p90: amount / seconds.p10,
        ..*seconds
    }
}

/// Returns the figure of a rate in bytes per second over `buffers` of `buffer_bytes` each.
pub fn figure(rate: &Spread, buffer_bytes: usize, buffers: usize) -> Figure {
    Figure {
        median_bytes_per_second: rate.median,
        p10_bytes_per_second: rate.p10,
        p90_bytes_per_second: rate.p90,
        samples: rate.samples,
        steady: rate.steady,
        buffer_bytes: buffer_bytes as u64,
        buffers: u32::try_from(buffers).unwrap_or(u32::MAX),
    }
}

/// Returns how other programs used the machine during a measurement, if they reduced its figures.
pub fn disturbance(measured: &Measurements) -> Option<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let variation = |name: &str, figure: &Figure| {
        let width = figure.p90_bytes_per_second - figure.p10_bytes_per_second;
        let share = width / figure.median_bytes_per_second;
        (share > MAX_DISTURBANCE).then(|| format!("{name} varied by {}", percent(share)))
    };
    let load = measured.cpu_load.filter(|load| *load > MAX_CPU_LOAD);
    let gpu = measured.gpu_use.filter(|share| *share > MAX_GPU_USE);
    let reasons = [
        variation("reads", &measured.read),
        variation("4-bit products", &measured.qmv),
        load.map(|load| format!("{load:.1} threads per CPU core were running before")),
        gpu.map(|share| format!("the GPU was busy for {} of the time before", percent(share))),
    ];
    let reasons: Vec<_> = reasons.into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

/// Reference for a measured read bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DataSheet<'a> {
    Bandwidth(BytesPerSecond),
    /// Reason why there is no data sheet.
    Missing(&'a str),
}

/// Compares the read bandwidth with the data sheet. Reads are compared and not the quantised
/// kernel, because a slow engine may be far below the limit of the memory without a fault.
pub fn plausibility(read: BytesPerSecond, sheet: DataSheet<'_>) -> Plausibility {
    let spec = match sheet {
        DataSheet::Bandwidth(spec) => spec,
        DataSheet::Missing(why) => {
            return Plausibility {
                verdict: PlausibilityVerdict::NotJudged,
                read_to_spec: None,
                message: why.to_owned(),
            };
        }
    };
    let share = read.0 / spec.0;
    let (low, high) = (*PLAUSIBLE_SHARES.start(), *PLAUSIBLE_SHARES.end());
    let shown = format!("{read} read is {:.0} % of the data sheet's {spec}", share * 100.0);
    let (verdict, message) = if share > high {
        let why = if share > 1.0 {
            "more than the memory's maximum: a cache served the reads, or the chip is not the one of the data sheet"
        } else {
            "closer to the maximum than real memory: a cache served part of the reads, or the chip is not the one of the data sheet"
        };
        (PlausibilityVerdict::TooHigh, format!("{shown}: {why}"))
    } else if share < low {
        let why = "other programs use the memory, the chip is a smaller version, or the machine saves power";
        (PlausibilityVerdict::TooLow, format!("{shown}: {why}"))
    } else {
        (PlausibilityVerdict::Plausible, shown)
    };
    Plausibility {
        verdict,
        read_to_spec: Some(share),
        message,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spread_above_five_percent_is_unsteady() {
        // p10 = 1 - w/2 and p90 = 1 + w/2 are the second and the tenth of eleven samples.
        let with_width = |width: f64| {
            let mut samples = vec![1.0; 7];
            samples.extend([1.0 - width / 2.0; 2]);
            samples.extend([1.0 + width / 2.0; 2]);
            spread(samples)
        };
        assert!(with_width(0.049).steady);
        assert!(!with_width(0.051).steady);
        assert_eq!(with_width(0.1).median, 1.0);
    }

    #[test]
    fn variation_and_load_disturb_a_measurement() {
        let figure = |width: f64| Figure {
            median_bytes_per_second: 100.0,
            p10_bytes_per_second: 100.0 - width,
            p90_bytes_per_second: 100.0,
            ..Figure::default()
        };
        let measured = |read, qmv, cpu_load, gpu_use| Measurements {
            read: figure(read),
            qmv: figure(qmv),
            cpu_load,
            gpu_use,
            ..Measurements::default()
        };
        let check = |measured: Measurements, expect: Option<&str>| {
            assert_eq!(disturbance(&measured).as_deref(), expect);
        };
        check(Measurements::default(), None);
        check(measured(15.0, 15.0, Some(0.5), Some(0.2)), None);
        check(measured(16.0, 0.0, None, None), Some("reads varied by 16 %"));
        check(
            measured(0.0, 40.0, None, None),
            Some("4-bit products varied by 40 %"),
        );
        check(
            measured(0.0, 0.0, Some(1.25), Some(0.9)),
            Some(
                "1.2 threads per CPU core were running before, the GPU was busy for 90 % of the time before",
            ),
        );
    }

    #[test]
    fn slow_samples_are_low_rates() {
        let rate = rate(12.0, &spread(vec![2.0, 3.0, 4.0]));
        assert_eq!(rate.median, 4.0);
        assert!(rate.p10 < rate.median && rate.median < rate.p90, "{rate:?}");
    }

    /// Published reads: M3 Max 386 of 400 GB/s, M4 Pro 253 of 273, M5 118.4 of 153.6.
    #[test]
    fn published_reads_are_plausible() {
        for (read, spec) in [(386e9, 400e9), (253e9, 273e9), (118.4e9, 153.6e9)] {
            let answer = plausibility(BytesPerSecond(read), DataSheet::Bandwidth(BytesPerSecond(spec)));
            assert_eq!(answer.verdict, PlausibilityVerdict::Plausible, "{answer:?}");
        }
    }

    #[test]
    fn messages_name_wrong_bins_caches_and_contention() {
        let judge =
            |read, spec| plausibility(BytesPerSecond(read), DataSheet::Bandwidth(BytesPerSecond(spec)));
        // An M4 Max with 32 cores compared with the bin of 40 cores, and vice versa.
        let low = judge(370e9, 546e9);
        assert_eq!(low.verdict, PlausibilityVerdict::TooLow);
        assert!(
            low.message.contains("68 %") && low.message.contains("smaller version"),
            "{}",
            low.message
        );
        let high = judge(500e9, 410e9);
        assert_eq!(high.verdict, PlausibilityVerdict::TooHigh);
        assert!(high.message.contains("cache"), "{}", high.message);
        assert_eq!(judge(99e9, 100e9).verdict, PlausibilityVerdict::TooHigh);
        let unknown = plausibility(BytesPerSecond(1e9), DataSheet::Missing("a virtual machine"));
        assert_eq!(
            (unknown.verdict, unknown.read_to_spec),
            (PlausibilityVerdict::NotJudged, None)
        );
    }

    proptest! {
        #[test]
        fn percentiles_are_in_order_and_within_the_samples(samples in proptest::collection::vec(1e-9_f64..1e3, 1..60)) {
            let (least, most) = samples.iter().fold((f64::MAX, 0.0_f64), |(l, m), s| (l.min(*s), m.max(*s)));
            let spread = spread(samples);
            prop_assert!(least <= spread.p10 && spread.p10 <= spread.median);
            prop_assert!(spread.median <= spread.p90 && spread.p90 <= most);
        }
    }
}
