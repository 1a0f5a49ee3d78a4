//! Prediction from a probe. The measured figures replace the data sheet (η = 1), and a plain model
//! needs no constants that were fitted on other machines. This predictor therefore applies to every
//! backend, including CPU and CUDA.

use std::collections::BTreeMap;

use super::decode::StepTime;
use super::parameters::{DecodeParameters, EnginePrefill, REFERENCE_EXPERT_WIDTH};
use super::prefill::{PrefillTime, PrefillWork};
use super::spread::Sides;
use super::step_work::StepWork;
use rooflet_api::v1alpha1::{AttentionFigure, Measurements, SpeedFactors, Spread};

/// Maximum number of batch sizes in a probe, without single vectors.
const MAX_BATCHES: usize = 4;
/// Query, key, value and output projections, and three projections of a gated block.
const MATRICES_PER_LAYER: f64 = 7.0;
/// Kernels of a layer that are neither matrix products nor among the measured small kernels:
/// attention, and two slices of the cache.
const ATTENTION_KERNELS: f64 = 3.0;
/// Kernels of a step outside its layers: three look-ups and the expansion of the embedding, the
/// last norm, two slices, the conversion of the logits, and the sampling.
const STEP_KERNELS: f64 = 9.0;
/// Group size of the formats that a probe measures, and the bits of a scale if the probe omits
/// them.
const GROUP_SIZE: f64 = 64.0;
const SCALE_BITS: u32 = 16;
/// Additional time of routed experts of the reference width, relative to dense weights. The ratio
/// is that of the fitted constants on an M4 Max (4 bits), because a probe measures no experts.
const EXPERT_SLOWDOWN: f64 = 0.4;
/// Half-width, as a logarithm, for everything that a probe does not measure: other matrix shapes,
/// and the work of the host between steps. The value is an assumption; runs on the node narrow the
/// interval (see `calibration`).
const OPEN_SPREAD: f64 = 0.12;

/// Additional half-width of an expired probe. Engines drift by 5–15 % between releases on one
/// machine (docs/roofline.md), and heat and other programs vary. The value is an assumption.
const STALE_SPREAD: f64 = 0.15;

/// Figures of a probe that determine speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredMachine {
    /// Bits per weight including scales, and seconds to multiply one vector with one weight, for 4
    /// and 8 bits.
    four_bits: (f64, f64),
    eight_bits: (f64, f64),
    /// Seconds per bit of a float weight.
    float_bit: f64,
    /// Batch sizes with their time relative to one vector; unused entries are zero.
    batches: [(f64, f64); MAX_BATCHES],
    /// Seconds per byte of keys and values, and additional seconds per query that shares them.
    attention: (f64, f64),
    launch: f64,
    /// Seconds of a layer's small kernels: at width zero, and per unit of width.
    layer: (f64, f64),
    /// Part of these seconds in which the host builds the kernels' graph.
    graph_building: f64,
    /// Seconds from the request of a small result to its arrival.
    round_trip: f64,
    /// Operations per second.
    float_flops: f64,
    quantized_flops: f64,
    /// Read bandwidth in bytes per second.
    pub read: f64,
    /// Share of the speed that the hot chip sustains, if measured. All other figures then apply to
    /// the hot chip.
    pub sustained: Option<f64>,
    /// Half-width of the measurement, as a logarithm.
    spread: f64,
}

impl MeasuredMachine {
    /// Returns `None` if the probe has no figures of the decode kernel.
    pub fn new(probe: &Measurements) -> Option<Self> {
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
        let scale_bits = f64::from(probe.scale_bits.unwrap_or(SCALE_BITS));
        let weight = |bits: f64, rate: f64| {
            let bits = bits_with_scales(bits, scale_bits);
            (bits, bits / 8.0 / rate)
        };
        let float_flops = median(&probe.matmul_flops_per_second);
        let sustained = probe.sustained.as_ref();
        let sustained = sustained.and_then(|sustained| known(sustained.thermal_factor));
        // A hot chip is never faster; a larger factor means that the first measurement was
        // disturbed.
        let sustained = sustained.map(|kept| kept.min(1.0));
        let cold = Self {
            four_bits: weight(4.0, qmv),
            eight_bits: weight(8.0, eight),
            float_bit: 1.0 / 8.0 / read,
            batches,
            attention: attention(&probe.attention, read),
            launch,
            layer: small_kernels(probe, launch),
            graph_building: probe
                .layers
                .iter()
                .map(|layer| layer.describing_seconds.max(0.0))
                .sum::<f64>()
                / probe.layers.len().max(1) as f64,
            round_trip: median(&probe.round_trip_seconds).unwrap_or(0.0),
            float_flops: float_flops.unwrap_or(read),
            quantized_flops: median(&probe.quantized_matmul_flops_per_second)
                .or(float_flops)
                .unwrap_or(read),
            read,
            sustained,
            spread: known(p10).map_or(0.0, |p10| (p90 / p10).max(1.0).ln() / 2.0),
        };
        Some(cold.heated(sustained.unwrap_or(1.0)))
    }

    /// Returns the machine of published values. Returns `None` if a value that predictions divide by is
    /// not positive.
    pub(crate) fn of_factors(factors: &SpeedFactors) -> Option<Self> {
        let rates = [
            factors.read_bytes_per_second,
            factors.seconds_per4_bit_weight,
            factors.seconds_per8_bit_weight,
            factors.flops_per_second,
            factors.quantized_flops_per_second,
        ];
        if rates.iter().any(|rate| !rate.is_finite() || *rate <= 0.0) {
            return None;
        }
        let mut measured: Vec<(f64, f64)> = factors
            .batch_times
            .iter()
            .filter_map(|(vectors, time)| Some((vectors.parse().ok()?, *time)))
            .filter(|(vectors, time)| *vectors > 1.0 && *time > 0.0)
            .collect();
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut batches = [(0.0, 0.0); MAX_BATCHES];
        for (place, figure) in batches.iter_mut().zip(measured) {
            *place = figure;
        }
        let bits = |bits: f64| bits_with_scales(bits, factors.scale_bits);
        Some(Self {
            four_bits: (bits(4.0), factors.seconds_per4_bit_weight),
            eight_bits: (bits(8.0), factors.seconds_per8_bit_weight),
            float_bit: 1.0 / 8.0 / factors.read_bytes_per_second,
            batches,
            attention: (
                factors.attention_seconds_per_byte,
                factors.attention_seconds_per_query,
            ),
            launch: factors.launch_seconds,
            layer: (factors.layer_seconds, factors.layer_seconds_per_width),
            graph_building: factors.graph_seconds,
            round_trip: factors.round_trip_seconds,
            float_flops: factors.flops_per_second,
            quantized_flops: factors.quantized_flops_per_second,
            read: factors.read_bytes_per_second,
            sustained: factors.sustained,
            spread: factors.spread,
        })
    }

    /// Returns the values to publish. [`of_factors`](Self::of_factors) is the inverse.
    pub(crate) fn factors(&self) -> SpeedFactors {
        let batches = self.batches.iter().take_while(|figure| figure.0 > 0.0);
        let batch_times: BTreeMap<String, f64> = batches
            .map(|(vectors, time)| (vectors.to_string(), *time))
            .collect();
        SpeedFactors {
            read_bytes_per_second: self.read,
            scale_bits: (self.four_bits.0 - 4.0) * GROUP_SIZE / 2.0,
            seconds_per4_bit_weight: self.four_bits.1,
            seconds_per8_bit_weight: self.eight_bits.1,
            batch_times,
            attention_seconds_per_byte: self.attention.0,
            attention_seconds_per_query: self.attention.1,
            launch_seconds: self.launch,
            layer_seconds: self.layer.0,
            layer_seconds_per_width: self.layer.1,
            graph_seconds: self.graph_building,
            round_trip_seconds: self.round_trip,
            flops_per_second: self.float_flops,
            quantized_flops_per_second: self.quantized_flops,
            spread: self.spread,
            sustained: self.sustained,
        }
    }

    /// Scales the speed of the device to this share. The host builds the graph and transfers
    /// results at its own speed, which stays unchanged.
    fn heated(self, factor: f64) -> Self {
        let slower = |(bits, seconds): (f64, f64)| (bits, seconds / factor);
        let (fixed, per_width) = self.layer;
        Self {
            four_bits: slower(self.four_bits),
            eight_bits: slower(self.eight_bits),
            float_bit: self.float_bit / factor,
            attention: (self.attention.0 / factor, self.attention.1 / factor),
            layer: (
                self.graph_building + (fixed - self.graph_building) / factor,
                per_width / factor,
            ),
            float_flops: self.float_flops * factor,
            quantized_flops: self.quantized_flops * factor,
            read: self.read * factor,
            ..self
        }
    }

    /// Returns the machine with a wider interval, for expired figures.
    pub fn stale(mut self) -> Self {
        self.spread = self.spread.hypot(STALE_SPREAD);
        self
    }

    /// Returns the widths of a prediction's interval.
    pub(super) fn spread(&self) -> Sides {
        let width = self.spread.hypot(OPEN_SPREAD);
        Sides {
            slow: width,
            fast: width,
        }
    }

    /// Returns the seconds to multiply one vector with one weight: proportional to the bits below
    /// four, and interpolated linearly above.
    fn seconds_per_weight(&self, bits: f64) -> f64 {
        let float = 16.0 * self.float_bit;
        if bits >= 16.0 {
            bits * self.float_bit
        } else if bits >= self.eight_bits.0 {
            line(bits, self.eight_bits, (16.0, float))
        } else if bits >= self.four_bits.0 {
            line(bits, self.four_bits, self.eight_bits)
        } else {
            self.four_bits.1 * bits / self.four_bits.0
        }
    }

    /// Returns the time of `batch` vectors relative to one: interpolated linearly between measured
    /// batches, and proportional beyond the last.
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
        // Layers other than plain ones have the relative cost that was fitted on measured chips.
        let p = &parameters.mlx;
        let narrow = (REFERENCE_EXPERT_WIDTH / work.expert_width.max(1.0)).powf(parameters.expert_width);
        let experts = work.experts * (1.0 + EXPERT_SLOWDOWN * narrow);
        let weights = (work.dense + experts) * 8.0 / work.bits_per_weight.max(1.0);
        let multiplying =
            weights * self.seconds_per_weight(work.bits_per_weight) * self.batch_factor(work.batch);
        let (byte, query) = self.attention;
        let cache = work.kv + work.latent;
        let attending =
            cache * (byte + query * work.queries_per_key) + work.states * p.state_traffic / self.read;
        let kinds = work.windowed_layers * p.windowed_layer
            + work.expert_layers * p.expert_layer
            + work.linear_layers * p.linear_layer
            + work.latent_layers * p.latent_layer;
        let (fixed, per_width) = self.layer;
        let small = fixed + per_width * work.hidden;
        let memory = multiplying + attending;
        // The host builds the graph of the next token while the device computes this one. The
        // longer of the two determines the time of a step: the host limits small models on fast
        // devices.
        let layers = work.layers + kinds;
        let device = memory + layers * (small - self.graph_building).max(0.0);
        let program = layers * (small + (MATRICES_PER_LAYER + ATTENTION_KERNELS) * self.launch)
            + STEP_KERNELS * self.launch;
        let total = device.max(program) + self.round_trip;
        StepTime {
            memory,
            arithmetic: 0.0,
            overhead: total - memory,
            total,
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
            compute: work.matrices / experts / flops
                + p.attention_flops(work, p.score_cost, 1.0) / self.float_flops,
            reading: work.read / self.read,
            fixed: step.overhead,
        }
    }
}

/// Returns the bits of a quantised weight with its share of the group's scale and bias.
fn bits_with_scales(bits: f64, scale_bits: f64) -> f64 {
    bits + 2.0 * scale_bits / GROUP_SIZE
}

/// Interpolates linearly between two points.
fn line(x: f64, from: (f64, f64), to: (f64, f64)) -> f64 {
    from.1 + (to.1 - from.1) * (x - from.0) / (to.0 - from.0)
}

/// Returns the seconds per byte, and the additional seconds per query that shares a key.
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

/// Returns the seconds of a layer's small kernels: at width zero, and per unit of width.
fn small_kernels(probe: &Measurements, launch: f64) -> (f64, f64) {
    let points: Vec<(f64, f64)> = probe
        .layers
        .iter()
        .map(|figure| (f64::from(figure.hidden_size), figure.seconds.median.max(0.0)))
        .collect();
    match points.as_slice() {
        // Assumes about as many small kernels as matrices.
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
    use rooflet_api::v1alpha1::{Figure, LayerFigure, QuantizedFigure, Sustained};

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

    /// Figures of an H200 with MLX's CUDA back end. The 4-bit kernel is far below the limit of the
    /// memory.
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
    fn decode_kernel_limits_the_speed_and_not_the_memory() {
        let machine = MeasuredMachine::new(&h200()).unwrap();
        let parameters = super::super::Parameters::built_in();
        // A 4-bit model of the shape of 7B decoded at 182 tokens/s on this machine, 98 % of the
        // kernel's rate.
        let work = StepWork {
            batch: 1.0,
            context_tokens: 0.0,
            dense: 3.98e9,
            experts: 0.0,
            kv: 0.0,
            attended: 0.0,
            latent: 0.0,
            latent_attended: 0.0,
            states: 0.0,
            active_billions: 7.07,
            expert_billions: 0.0,
            expert_width: 0.0,
            bits_per_weight: 4.5,
            super_blocks: false,
            native_floats: false,
            tabulated_experts: false,
            hidden: 3584.0,
            queries_per_key: 7.0,
            layers: 28.0,
            windowed_layers: 0.0,
            expert_layers: 0.0,
            linear_layers: 0.0,
            latent_layers: 0.0,
        };
        let rate = machine.step_time(&work, &parameters.decode).total.recip();
        assert!((rate / 182.0 - 1.0).abs() < 0.05, "{rate}");
        let four = StepWork { batch: 4.0, ..work };
        let slower = machine.step_time(&four, &parameters.decode).memory
            / machine.step_time(&work, &parameters.decode).memory;
        assert!(
            (slower - 739.0 / 231.0).abs() < 1e-9,
            "batches have their measured time, {slower}"
        );
        assert!((machine.batch_factor(32.0) - 2.0 * 739.0 / 941.0).abs() < 1e-9);
    }

    fn plain(bits_per_weight: f64, millions: f64, layers: f64) -> StepWork {
        StepWork {
            batch: 1.0,
            context_tokens: 0.0,
            dense: millions * 1e6 * bits_per_weight / 8.0,
            experts: 0.0,
            kv: 0.0,
            attended: 0.0,
            latent: 0.0,
            latent_attended: 0.0,
            states: 0.0,
            active_billions: millions / 1e3,
            expert_billions: 0.0,
            expert_width: 0.0,
            bits_per_weight,
            super_blocks: false,
            native_floats: false,
            tabulated_experts: false,
            hidden: 1024.0,
            queries_per_key: 2.0,
            layers,
            windowed_layers: 0.0,
            expert_layers: 0.0,
            linear_layers: 0.0,
            latent_layers: 0.0,
        }
    }

    /// MLX on a CPU needs the same time for weights of 4 and of 8 bits, and stores scales in 32
    /// bits.
    #[test]
    fn bits_have_no_influence_if_arithmetic_is_the_limit() {
        let measured = Measurements {
            read: figure(4.8e9),
            qmv: figure(0.7e9),
            quantized: vec![quantized(8, 1, 0.7e9 * 9.0 / 5.0)],
            scale_bits: Some(32),
            ..Measurements::default()
        };
        let machine = MeasuredMachine::new(&measured).unwrap();
        let p = &super::super::Parameters::built_in().decode;
        let seconds = |bits| machine.step_time(&plain(bits, 100.0, 0.0), p).memory;
        assert!((seconds(5.0) / seconds(9.0) - 1.0).abs() < 1e-9);
        // 62.5 MB at 0.7 GB/s.
        assert!((seconds(5.0) - 0.0625 / 0.7).abs() < 1e-6, "{}", seconds(5.0));
    }

    #[test]
    fn host_limits_small_models_on_fast_devices() {
        let layer = |hidden_size| LayerFigure {
            hidden_size,
            seconds: Spread {
                median: 30e-6,
                ..Spread::default()
            },
            describing_seconds: 15e-6,
        };
        let measured = Measurements {
            layers: vec![layer(1024), layer(4096)],
            launch_seconds: Some(Spread {
                median: 2.5e-6,
                ..Spread::default()
            }),
            ..h200()
        };
        let machine = MeasuredMachine::new(&measured).unwrap();
        let p = &super::super::Parameters::built_in().decode;
        // Ten layers of 30 µs with ten launches each, and nine more launches.
        let small = machine.step_time(&plain(4.5, 20.0, 10.0), p);
        assert!((small.total - 572.5e-6).abs() < 1e-9, "{small:?}");
        // 5.625 GB at 739 GB/s, and the part of each layer that the host does not overlap.
        let large = machine.step_time(&plain(4.5, 10_000.0, 10.0), p);
        assert!((large.total - (5.625 / 739.0 + 150e-6)).abs() < 1e-9, "{large:?}");
        assert!((large.memory + large.overhead - large.total).abs() < 1e-12);
    }

    /// Objectives must hold when the chip is hot.
    #[test]
    fn sustained_probe_predicts_the_speed_of_the_hot_chip() {
        let p = &super::super::Parameters::built_in();
        let work = plain(4.5, 10_000.0, 10.0);
        let measured = |thermal_factor| {
            let sustained = Some(Sustained {
                thermal_factor,
                ..Sustained::default()
            });
            MeasuredMachine::new(&Measurements { sustained, ..h200() }).unwrap()
        };
        let cold = MeasuredMachine::new(&h200()).unwrap();
        let hot = measured(0.8);
        assert_eq!((cold.sustained, hot.sustained), (None, Some(0.8)));
        let (before, after) = (cold.step_time(&work, &p.decode), hot.step_time(&work, &p.decode));
        assert!(
            (before.memory / after.memory - 0.8).abs() < 1e-9,
            "{before:?} {after:?}"
        );
        assert!((hot.read / cold.read - 0.8).abs() < 1e-12);
        assert!((hot.quantized_flops / cold.quantized_flops - 0.8).abs() < 1e-12);
        // Factors above 1 and invalid factors are ignored.
        assert_eq!(measured(1.1).read, cold.read);
        assert_eq!(measured(f64::NAN), cold);
        assert_eq!(measured(0.0), cold);
    }

    #[test]
    fn rejects_probe_without_decode_kernel() {
        assert_eq!(MeasuredMachine::new(&Measurements::default()), None);
    }
}
