//! A machine whose engine was probed: its own figures stand in for the data sheet's, at η = 1, and nothing fitted on
//! other machines is needed for a plain model. So it serves any back end, CPU and CUDA too.

use super::decode::{StepTime, StepWork};
use super::parameters::{DecodeParameters, EnginePrefill};
use super::prefill::{PrefillTime, PrefillWork};
use crate::api::v1alpha1::{AttentionFigure, Measurements, Spread};

/// Batches that a probe measures besides single vectors, at most.
const MAX_BATCHES: usize = 4;
/// Query, key, value and output projections, and the three of a gated block.
const MATRICES_PER_LAYER: f64 = 7.0;
/// Bits of a weight with its share of scales in the formats that a probe measures: affine groups of 64.
const FOUR_BITS: f64 = 4.5;
const EIGHT_BITS: f64 = 8.5;
/// Half-width, as a logarithm, of what the figures leave open: shapes of matrices other than the probe's, and the
/// host's own work between steps. Not fitted; runs on the node narrow it (see `calibration`).
const OPEN_SPREAD: f64 = 0.12;

/// What a probe measured, as far as speed depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MeasuredMachine {
    /// Seconds to multiply one vector with one weight, by bits per weight: of 4 and 8 bits, and per bit of a float.
    four_bits: f64,
    eight_bits: f64,
    float_bit: f64,
    /// How many times longer so many vectors take than one; unused places are zero.
    batches: [(f64, f64); MAX_BATCHES],
    /// Seconds per byte of keys and values, and what each query that shares them adds.
    attention: (f64, f64),
    launch: f64,
    /// Seconds of one layer's small kernels: at width zero, and per unit of width.
    layer: (f64, f64),
    /// Operations per second.
    float_flops: f64,
    quantized_flops: f64,
    /// Bytes per second.
    pub(crate) read: f64,
    /// Half-width of the measurement itself, as a logarithm.
    spread: f64,
}

impl MeasuredMachine {
    /// `None` where the probe lacks the figures of the decode kernel.
    pub(crate) fn new(probe: &Measurements) -> Option<Self> {
        let known = |value: f64| Some(value).filter(|value| value.is_finite() && *value > 0.0);
        let qmv = known(probe.qmv.median_bytes_per_second)?;
        let read = known(probe.read.median_bytes_per_second)?;
        let eight = probe
            .quantized
            .iter()
            .find(|figure| figure.bits == 8 && figure.batch == 1)
            .and_then(|figure| known(figure.figure.median_bytes_per_second))
            .unwrap_or(qmv);
        let mut batches = [(0.0, 0.0); MAX_BATCHES];
        let mut measured: Vec<(f64, f64)> = probe
            .quantized
            .iter()
            .filter(|figure| figure.bits == 4 && figure.batch > 1)
            .filter_map(|figure| {
                let rate = known(figure.figure.median_bytes_per_second)?;
                Some((f64::from(figure.batch), qmv / rate))
            })
            .collect();
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (place, figure) in batches.iter_mut().zip(measured) {
            *place = figure;
        }
        let (p10, p90) = (probe.qmv.p10_bytes_per_second, probe.qmv.p90_bytes_per_second);
        let median = |spread: &Option<Spread>| spread.as_ref().and_then(|spread| known(spread.median));
        let launch = probe
            .launch_seconds
            .as_ref()
            .map_or(0.0, |spread| spread.median.max(0.0));
        let float_flops = median(&probe.matmul_flops_per_second);
        Some(Self {
            four_bits: FOUR_BITS / 8.0 / qmv,
            eight_bits: EIGHT_BITS / 8.0 / eight,
            float_bit: 1.0 / 8.0 / read,
            batches,
            attention: attention(&probe.attention, read),
            launch,
            layer: small_kernels(probe, launch),
            float_flops: float_flops.unwrap_or(read),
            quantized_flops: median(&probe.quantized_matmul_flops_per_second)
                .or(float_flops)
                .unwrap_or(read),
            read,
            spread: known(p10).map_or(0.0, |p10| (p90 / p10).max(1.0).ln() / 2.0),
        })
    }

    /// Half-width of a prediction's interval, as a logarithm.
    pub(super) fn spread(&self) -> f64 {
        self.spread.hypot(OPEN_SPREAD)
    }

    /// Seconds to multiply one vector with one weight: proportional to the bits below four, and on straight lines
    /// between the figures above.
    fn seconds_per_weight(&self, bits: f64) -> f64 {
        let float = 16.0 * self.float_bit;
        if bits >= 16.0 {
            bits * self.float_bit
        } else if bits >= EIGHT_BITS {
            line(bits, (EIGHT_BITS, self.eight_bits), (16.0, float))
        } else if bits >= FOUR_BITS {
            line(bits, (FOUR_BITS, self.four_bits), (EIGHT_BITS, self.eight_bits))
        } else {
            self.four_bits * bits / FOUR_BITS
        }
    }

    /// How many times longer `batch` vectors take than one: between measured batches on a straight line, beyond the
    /// last in proportion.
    fn batch_factor(&self, batch: f64) -> f64 {
        let mut before = (1.0, 1.0);
        for &figure in self.batches.iter().take_while(|figure| figure.0 > 0.0) {
            if batch <= figure.0 {
                return line(batch, before, figure);
            }
            before = figure;
        }
        before.1 * (batch / before.0).max(1.0)
    }

    pub(super) fn step_time(&self, work: &StepWork, parameters: &DecodeParameters) -> StepTime {
        // What is not plain costs in proportion to what it does on measured chips.
        let p = &parameters.mlx;
        let experts = work.experts / p.expert_efficiency;
        let weights = (work.dense + experts) * 8.0 / work.bits_per_weight.max(1.0);
        let multiplying =
            weights * self.seconds_per_weight(work.bits_per_weight) * self.batch_factor(work.batch);
        let (byte, query) = self.attention;
        let attending =
            work.kv * (byte + query * work.queries_per_key) + work.states * p.state_traffic / self.read;
        let kinds = work.windowed_layers * p.windowed_layer
            + work.expert_layers * p.expert_layer
            + work.linear_layers * p.linear_layer;
        let (fixed, per_width) = self.layer;
        let layer = fixed + per_width * work.hidden + MATRICES_PER_LAYER * self.launch;
        let overhead = (work.layers + kinds) * layer;
        let memory = multiplying + attending;
        StepTime {
            memory,
            arithmetic: 0.0,
            overhead,
            total: memory + overhead,
        }
    }

    pub(super) fn prefill_time(&self, work: &PrefillWork, step: StepTime, p: &EnginePrefill) -> PrefillTime {
        let flops = if work.bits_per_weight > 12.0 {
            self.float_flops
        } else {
            self.quantized_flops
        };
        let experts = if work.experts { p.expert_efficiency } else { 1.0 };
        PrefillTime {
            compute: work.matrices / experts / flops + p.score_cost * work.scores / self.float_flops,
            reading: work.read / self.read,
            fixed: step.overhead,
        }
    }
}

/// On the line through two points.
fn line(x: f64, from: (f64, f64), to: (f64, f64)) -> f64 {
    from.1 + (to.1 - from.1) * (x - from.0) / (to.0 - from.0)
}

/// Seconds per byte, and what each query that shares a key adds to it.
fn attention(figures: &[AttentionFigure], read: f64) -> (f64, f64) {
    let points: Vec<(f64, f64)> = figures
        .iter()
        .filter(|figure| figure.figure.median_bytes_per_second > 0.0)
        .map(|figure| {
            let seconds = figure.figure.median_bytes_per_second.recip();
            (f64::from(figure.queries_per_key), seconds)
        })
        .collect();
    match points.as_slice() {
        [] => (read.recip(), 0.0),
        [one] => (one.1, 0.0),
        [first, .., last] => {
            let slope = ((last.1 - first.1) / (last.0 - first.0).max(1.0)).max(0.0);
            ((first.1 - slope * first.0).max(0.0), slope)
        }
    }
}

/// Seconds of a layer's small kernels at width zero, and per unit of width.
fn small_kernels(probe: &Measurements, launch: f64) -> (f64, f64) {
    let points: Vec<(f64, f64)> = probe
        .layers
        .iter()
        .map(|figure| (f64::from(figure.hidden_size), figure.seconds.median.max(0.0)))
        .collect();
    match points.as_slice() {
        // As many small kernels as matrices, about.
        [] => (MATRICES_PER_LAYER * launch, 0.0),
        [one] => (one.1, 0.0),
        [first, .., last] => {
            let slope = ((last.1 - first.1) / (last.0 - first.0).max(1.0)).max(0.0);
            ((first.1 - slope * first.0).max(0.0), slope)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{Figure, QuantizedFigure};

    fn figure(rate: f64) -> Figure {
        Figure {
            median_bytes_per_second: rate,
            p10_bytes_per_second: rate * 0.99,
            p90_bytes_per_second: rate * 1.01,
            ..Figure::default()
        }
    }

    fn quantized(bits: u32, batch: u32, rate: f64) -> QuantizedFigure {
        QuantizedFigure {
            bits,
            group_size: 64,
            batch,
            figure: figure(rate),
        }
    }

    /// The figures that ROOFLINE.md section 5 gives for an H200: the 4-bit kernel is far from the memory's limit.
    fn h200() -> Measurements {
        Measurements {
            read: figure(3.566e12),
            qmv: figure(739e9),
            quantized: vec![
                quantized(4, 4, 231e9),
                quantized(4, 8, 847e9),
                quantized(4, 16, 941e9),
            ],
            ..Measurements::default()
        }
    }

    #[test]
    fn the_decode_kernel_rules_and_not_the_memory() {
        let machine = MeasuredMachine::new(&h200()).unwrap();
        let parameters = super::super::Parameters::built_in();
        // A 7B-shaped 4-bit model decoded at 182 tokens/s there, 98 % of what the kernel's own rate allows.
        let work = StepWork {
            batch: 1.0,
            dense: 3.98e9,
            experts: 0.0,
            kv: 0.0,
            states: 0.0,
            active_billions: 7.07,
            bits_per_weight: 4.5,
            hidden: 3584.0,
            queries_per_key: 7.0,
            layers: 28.0,
            windowed_layers: 0.0,
            expert_layers: 0.0,
            linear_layers: 0.0,
        };
        let rate = machine.step_time(&work, &parameters.decode).total.recip();
        assert!((rate / 182.0 - 1.0).abs() < 0.05, "{rate}");
        let four = StepWork { batch: 4.0, ..work };
        let slower = machine.step_time(&four, &parameters.decode).memory
            / machine.step_time(&work, &parameters.decode).memory;
        assert!(
            (slower - 739.0 / 231.0).abs() < 1e-9,
            "batches are taken as measured, {slower}"
        );
        assert!((machine.batch_factor(32.0) - 2.0 * 739.0 / 941.0).abs() < 1e-9);
    }

    #[test]
    fn a_probe_without_the_decode_kernel_is_no_machine() {
        assert_eq!(MeasuredMachine::new(&Measurements::default()), None);
    }
}
