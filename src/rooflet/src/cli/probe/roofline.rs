//! Geometry of the measured roofline: memory slope, compute ceiling, the engine's kernels, and the
//! axes. Pure; `picture` and `svg` draw it.

use rooflet_api::v1alpha1::Measurements;

/// Rows of the quantised product that represents prefill.
const PREFILL_ROWS: f64 = 512.0;
/// Operations per weight and row: one multiplication and one addition.
const FLOPS_PER_WEIGHT: f64 = 2.0;
/// Start of the horizontal axis. Copying has less than one operation per byte.
const LEAST_INTENSITY: f64 = 0.1;

/// Measured roofline.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Roofline {
    /// Rate of reading memory.
    pub(super) bytes_per_second: f64,
    /// Rate of a large matrix product.
    pub(super) flops_per_second: f64,
    pub(super) points: Vec<Point>,
}

/// Kernel of the engine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// Character of the mark.
    pub(super) mark: char,
    pub(super) name: String,
    /// Floating-point operations per byte of weights.
    pub(super) intensity: f64,
    pub(super) flops_per_second: f64,
}

impl Roofline {
    /// Returns `None` if the probe lacks the matrix products.
    pub(super) fn new(measured: &Measurements) -> Option<Self> {
        let (matmul, prefill) = (
            measured.matmul_flops_per_second?,
            measured.quantized_matmul_flops_per_second?,
        );
        // A group of 64 weights has a scale and a bias.
        let weight_bits = 4.0 + 2.0 * f64::from(measured.scale_bits?) / 64.0;
        let per_byte = FLOPS_PER_WEIGHT * 8.0 / weight_bits;
        let mut points = vec![Point {
            mark: 'D',
            name: "decode, 4-bit, one sequence".to_owned(),
            intensity: per_byte,
            flops_per_second: measured.qmv.median_bytes_per_second * per_byte,
        }];
        let widest = measured
            .quantized
            .iter()
            .filter(|quantized| quantized.bits == 4)
            .max_by_key(|quantized| quantized.batch);
        points.extend(widest.map(|widest| {
            let intensity = per_byte * f64::from(widest.batch);
            Point {
                mark: 'B',
                name: format!("decode, 4-bit, {} sequences", widest.batch),
                intensity,
                flops_per_second: widest.figure.median_bytes_per_second * intensity,
            }
        }));
        points.push(Point {
            mark: 'P',
            name: format!("prefill, 4-bit, {PREFILL_ROWS} tokens"),
            intensity: per_byte * PREFILL_ROWS,
            flops_per_second: prefill.median,
        });
        Some(Self {
            bytes_per_second: measured.read.median_bytes_per_second,
            flops_per_second: matmul.median,
            points,
        })
    }

    /// Returns the maximum operations per second at this intensity.
    pub(super) fn roof(&self, intensity: f64) -> f64 {
        self.flops_per_second.min(intensity * self.bytes_per_second)
    }

    /// Returns the intersection of slope and ceiling, in operations per byte.
    pub(super) fn ridge(&self) -> f64 {
        self.flops_per_second / self.bytes_per_second
    }

    /// Returns the horizontal axis, in whole decades around the roof and the points.
    pub(super) fn intensities(&self) -> Axis {
        let most = self
            .points
            .iter()
            .map(|point| point.intensity)
            .fold(self.ridge(), f64::max);
        Axis::new(LEAST_INTENSITY, most)
    }

    pub(super) fn rates(&self) -> Axis {
        let rates = self.points.iter().map(|point| point.flops_per_second);
        let least = rates.clone().fold(self.roof(LEAST_INTENSITY), f64::min);
        let most = rates.fold(self.flops_per_second, f64::max);
        Axis::new(least, most)
    }
}

/// Logarithmic axis over whole decades.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    /// Powers of ten.
    pub(super) from: i32,
    pub(super) to: i32,
}

impl Axis {
    fn new(least: f64, most: f64) -> Self {
        let from = least.log10().floor() as i32;
        Self {
            from,
            // A round number would lie on the edge, where half of its mark is cut off.
            to: (most.log10() + 1e-9).ceil().max(f64::from(from + 1)) as i32,
        }
    }

    /// Returns the position of a value: 0 at the start of the axis, 1 at its end, limited to this
    /// range.
    pub(super) fn position(self, value: f64) -> f64 {
        let span = f64::from(self.to - self.from);
        ((value.log10() - f64::from(self.from)) / span).clamp(0.0, 1.0)
    }

    pub(super) fn value(self, position: f64) -> f64 {
        10_f64.powf(f64::from(self.from) + position * f64::from(self.to - self.from))
    }

    pub(super) fn decades(self) -> std::ops::RangeInclusive<i32> {
        self.from..=self.to
    }
}

/// Formats a power of ten with an SI prefix: 10⁹ → `1 G`.
pub(super) fn decade(exponent: i32) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    if exponent < 0 {
        let places = usize::try_from(-exponent).unwrap_or(0);
        return format!("{:.places$}", 10_f64.powi(exponent));
    }
    let exponent = usize::try_from(exponent).unwrap_or(0);
    let zeros = ["1", "10", "100"][exponent % 3];
    format!("{zeros}{}", PREFIXES.get(exponent / 3).copied().unwrap_or(" E"))
}

#[cfg(test)]
pub(super) fn example() -> Roofline {
    use rooflet_api::v1alpha1::{Figure, QuantizedFigure, Spread};

    let figure = |rate| Figure {
        median_bytes_per_second: rate,
        ..Figure::default()
    };
    let spread = |median| {
        Some(Spread {
            median,
            ..Spread::default()
        })
    };
    // Published figures of an H200: a kernel far below the memory roof.
    let measured = Measurements {
        scale_bits: Some(16),
        read: figure(3566e9),
        qmv: figure(739e9),
        quantized: vec![QuantizedFigure {
            bits: 4,
            group_size: 64,
            batch: 16,
            figure: figure(941e9),
        }],
        matmul_flops_per_second: spread(567e12),
        quantized_matmul_flops_per_second: spread(200e12),
        ..Measurements::default()
    };
    Roofline::new(&measured).unwrap()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ridge_is_the_intersection_of_both_limits() {
        let roofline = example();
        let ridge = roofline.ridge();
        assert!((ridge - 159.0).abs() < 0.1, "{ridge}");
        assert_eq!(roofline.roof(ridge * 2.0), 567e12);
        assert_eq!(roofline.roof(1.0), 3566e9);
    }

    #[test]
    fn points_match_the_measured_kernels() {
        let points = example().points;
        let marks: String = points.iter().map(|point| point.mark).collect();
        assert_eq!(marks, "DBP");
        // 739 GB/s of 4.5-bit weights, two operations each.
        let decode = points[0].flops_per_second;
        assert!((decode / 1e12 - 2.628).abs() < 0.001, "{decode}");
        assert!((points[0].intensity - 3.556).abs() < 0.001);
    }

    #[test]
    fn decades_have_prefixes() {
        let shown: Vec<_> = [-1, 0, 1, 8, 9, 12].map(decade).into();
        assert_eq!(shown, ["0.1", "1", "10", "100 M", "1 G", "1 T"]);
    }

    proptest! {
        #[test]
        fn axes_contain_their_values(least in 1e-3_f64..1e6, factor in 1.0_f64..1e9) {
            let axis = Axis::new(least, least * factor);
            prop_assert!(f64::from(axis.from) <= least.log10() + 1e-9);
            prop_assert!((least * factor).log10() <= f64::from(axis.to) + 1e-9);
            let middle = axis.value(axis.position(least));
            prop_assert!((middle / least - 1.0).abs() < 1e-6);
        }
    }
}
