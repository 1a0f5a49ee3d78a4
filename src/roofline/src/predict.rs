//! How fast a model decodes and prefills on a machine, from first principles and a few fitted
//! parameters. Pure.
//!
//! Every figure is an interval: a tenth of cases lies below `p10`, half below `p50`, nine tenths
//! below `p90`.

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
use calibration::Calibration;
pub use decode::DecodePrediction;
pub use machine::MeasuredMachine;
pub use parameters::Parameters;
pub use prefill::PrefillPrediction;
pub use rooflet_model::cost::ModelCost;
pub use rooflet_model::engine::Engine;
use rooflet_model::kv_cache::KvBits;

/// What is known of the machine's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hardware {
    /// Its chip, by the data sheet.
    Chip(&'static ChipVariant),
    /// What a probe measured, whatever the chip is.
    Measured(MeasuredMachine),
}

impl Hardware {
    /// The chip whose data sheet is used.
    pub fn chip(&self) -> Option<&'static ChipVariant> {
        match self {
            Self::Chip(chip) => Some(chip),
            Self::Measured(_) => None,
        }
    }

    /// What heat leaves of the speed, where that was measured: predictions are then of the hot
    /// chip.
    pub fn sustained(self) -> Option<f64> {
        match self {
            Self::Chip(_) => None,
            Self::Measured(machine) => machine.sustained,
        }
    }

    /// How much faster than predicted it is while it is cold, as a logarithm.
    fn faster_when_cold(self) -> f64 {
        self.sustained().map_or(0.0, |kept| -kept.ln())
    }
}

/// What is asked of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Sequences decoded together.
    pub batch: u32,
    /// Tokens in each sequence's cache while it decodes.
    pub context_tokens: u32,
    /// Tokens of a prompt, those in the prefix cache included.
    pub prompt_tokens: u32,
    /// Of them, those whose keys and values are cached.
    pub cached_tokens: u32,
    pub kv_bits: KvBits,
}

/// Where a figure comes from, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// From what was measured on this very machine.
    Measured,
    /// From a data sheet, corrected by runs on this machine.
    Calibrated,
    /// From a data sheet.
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

    /// Of a figure that runs on this machine have corrected.
    pub fn corrected(self) -> Self {
        match self {
            Self::Measured => Self::Measured,
            Self::Calibrated | Self::Nominal => Self::Calibrated,
        }
    }
}

/// What a figure would have to be about to become better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constraint {
    Bandwidth,
    Compute,
    /// Launching kernels; it rules for models below a billion parameters.
    Overhead,
    /// What other replicas and programs leave.
    Memory,
    /// What the GPU may ever use of the memory.
    WorkingSet,
    /// What replicas may store.
    Disk,
    /// A rule, not a quantity.
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

/// A figure with its spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
}

impl Interval {
    /// Around `p50`, with these relative distances to both sides, in the logarithm.
    pub fn around(p50: f64, log_below: f64, log_above: f64) -> Self {
        Self {
            p10: p50 * (-log_below.abs()).exp(),
            p50,
            p90: p50 * log_above.abs().exp(),
        }
    }

    /// Every value times `factor`, which is positive.
    pub fn scale(self, factor: f64) -> Self {
        Self {
            p10: self.p10 * factor,
            p50: self.p50 * factor,
            p90: self.p90 * factor,
        }
    }

    /// With an independent uncertainty beside its own; its half-width is a logarithm.
    pub(crate) fn widened(self, log: f64) -> Self {
        let distance = |value: f64| (value / self.p50).ln().abs();
        Self::around(
            self.p50,
            distance(self.p10).hypot(log),
            distance(self.p90).hypot(log),
        )
    }

    /// Of one after the other, where both are slow on the same occasions: never too narrow.
    pub fn then(self, next: Self) -> Self {
        Self {
            p10: self.p10 + next.p10,
            p50: self.p50 + next.p50,
            p90: self.p90 + next.p90,
        }
    }

    /// `1/value`: a time of a rate. The slowest rate is the longest time.
    pub fn recip(self) -> Self {
        Self {
            p10: self.p90.recip(),
            p50: self.p50.recip(),
            p90: self.p10.recip(),
        }
    }
}

/// Everything that is predicted of one model, machine and workload.
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

    /// With what runs on the machine have taught about models stored like this one.
    pub fn calibrated(mut self, model: &ModelCost, calibrations: &[Calibration]) -> Self {
        let Some(calibration) = Calibration::of(calibrations, model) else {
            return self;
        };
        let Self { decode, prefill } = &mut self;
        if let Some(rate) = calibration.decode(decode.tokens_per_second) {
            let streams = decode.aggregate_tokens_per_second.p50 / decode.tokens_per_second.p50;
            decode.tokens_per_second = rate;
            decode.aggregate_tokens_per_second = rate.scale(streams);
            decode.basis = decode.basis.corrected();
        }
        if let Some(seconds) = calibration.first_token(prefill.first_token_seconds) {
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
