//! Predicted decode and prefill speed of a model on a machine, from a physical model with a few
//! fitted parameters.
//!
//! Every figure is an interval: 10 % of cases lie below `p10`, half below `p50`, 90 % below `p90`.

mod build;
pub mod calibration;
pub mod decode;
mod machine;
pub mod parameters;
pub mod prefill;
pub mod spread;
mod step_work;

use crate::chip::ChipVariant;
pub use build::EngineBuild;
use calibration::{Calibration, calibrated_first_token, calibrated_rate};
pub use decode::DecodePrediction;
pub use machine::MeasuredMachine;
pub use parameters::Parameters;
pub use prefill::PrefillPrediction;
pub use rooflet_model::cost::ModelCost;
pub use rooflet_model::engine::Engine;
use rooflet_model::kv_cache::KvBits;

/// Known speed of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hardware {
    /// Chip by its data sheet.
    Chip(&'static ChipVariant),
    /// Figures of a probe, independent of the chip.
    Measured(MeasuredMachine),
}

impl Hardware {
    /// Returns the chip whose data sheet is used.
    pub fn chip(&self) -> Option<&'static ChipVariant> {
        match self {
            Self::Chip(chip) => Some(chip),
            Self::Measured(_) => None,
        }
    }

    /// Returns the share of the speed that the hot chip sustains, if measured. Predictions then
    /// apply to the hot chip.
    pub fn sustained(self) -> Option<f64> {
        match self {
            Self::Chip(_) => None,
            Self::Measured(machine) => machine.sustained,
        }
    }

    /// Returns the logarithm of the ratio of cold to predicted speed.
    fn faster_when_cold(self) -> f64 {
        self.sustained().map_or(0.0, |kept| -kept.ln())
    }
}

/// Workload of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Number of sequences in the batch.
    pub batch: u32,
    /// Tokens in the cache of each sequence during decode.
    pub context_tokens: u32,
    /// Tokens of a prompt, including cached tokens.
    pub prompt_tokens: u32,
    /// Tokens of the prompt with cached keys and values.
    pub cached_tokens: u32,
    pub kv_bits: KvBits,
}

/// Origin of a figure, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// Measured on this machine.
    Measured,
    /// Data sheet, corrected by runs on this machine.
    Calibrated,
    /// Data sheet.
    Nominal,
}

impl Basis {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "Measured",
            Self::Calibrated => "Calibrated",
            Self::Nominal => "Nominal",
        }
    }

    /// Returns the basis after a correction by runs on this machine.
    pub fn corrected(self) -> Self {
        match self {
            Self::Measured => Self::Measured,
            Self::Calibrated | Self::Nominal => Self::Calibrated,
        }
    }
}

/// Resource that limits a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constraint {
    Bandwidth,
    Compute,
    /// Kernel launches, which dominate below a billion parameters.
    Overhead,
    /// Memory that other replicas and programs leave available.
    Memory,
    /// Maximum memory of the GPU.
    WorkingSet,
    /// Disk space for replicas.
    Disk,
    /// Rule instead of a resource.
    Policy,
}

impl Constraint {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bandwidth => "Bandwidth",
            Self::Compute => "Compute",
            Self::Overhead => "Overhead",
            Self::Memory => "Memory",
            Self::WorkingSet => "WorkingSet",
            Self::Disk => "Disk",
            Self::Policy => "Policy",
        }
    }
}

/// Figure with its spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
}

impl Interval {
    /// Creates an interval around `p50` with these logarithmic distances to both sides.
    pub fn around(p50: f64, log_below: f64, log_above: f64) -> Self {
        Self {
            p10: p50 * (-log_below.abs()).exp(),
            p50,
            p90: p50 * log_above.abs().exp(),
        }
    }

    /// Multiplies every value by a positive `factor`.
    pub fn scale(self, factor: f64) -> Self {
        Self {
            p10: self.p10 * factor,
            p50: self.p50 * factor,
            p90: self.p90 * factor,
        }
    }

    /// Adds an independent uncertainty with this half-width, as a logarithm.
    pub(crate) fn widened(self, log: f64) -> Self {
        let distance = |value: f64| (value / self.p50).ln().abs();
        Self::around(
            self.p50,
            distance(self.p10).hypot(log),
            distance(self.p90).hypot(log),
        )
    }

    /// Adds a time that is slow under the same conditions. The resulting interval is never too
    /// narrow.
    pub fn then(self, next: Self) -> Self {
        Self {
            p10: self.p10 + next.p10,
            p50: self.p50 + next.p50,
            p90: self.p90 + next.p90,
        }
    }

    /// Returns `1/value`, which converts between rates and times. The slowest rate is the longest
    /// time.
    pub fn recip(self) -> Self {
        Self {
            p10: self.p90.recip(),
            p50: self.p50.recip(),
            p90: self.p10.recip(),
        }
    }
}

/// Prediction for one model, machine and workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    pub decode: DecodePrediction,
    pub prefill: PrefillPrediction,
}

impl Prediction {
    pub fn new(
        parameters: &Parameters,
        hardware: Hardware,
        build: impl Into<EngineBuild>,
        model: &ModelCost,
        workload: Workload,
    ) -> Self {
        let build = build.into();
        Self {
            decode: DecodePrediction::new(parameters, hardware, &build, model, workload),
            prefill: PrefillPrediction::new(parameters, hardware, &build, model, workload),
        }
    }

    /// Corrects the prediction for this workload by runs on the machine.
    pub fn calibrated(mut self, model: &ModelCost, workload: Workload, calibrations: &[Calibration]) -> Self {
        let Self { decode, prefill } = &mut self;
        let rate = decode.tokens_per_second;
        if let Some(rate) = calibrated_rate(calibrations, model, workload.context_tokens, rate) {
            let streams = decode.aggregate_tokens_per_second.p50 / decode.tokens_per_second.p50;
            decode.tokens_per_second = rate;
            decode.aggregate_tokens_per_second = rate.scale(streams);
            decode.basis = decode.basis.corrected();
        }
        let seconds = prefill.first_token_seconds;
        if let Some(seconds) = calibrated_first_token(calibrations, model, workload.prompt_tokens, seconds) {
            let tokens = prefill.first_token_seconds.p50 * prefill.tokens_per_second.p50;
            prefill.first_token_seconds = seconds;
            prefill.tokens_per_second = seconds.recip().scale(tokens);
            prefill.basis = prefill.basis.corrected();
        }
        self
    }
}

#[cfg(test)]
mod tests;
