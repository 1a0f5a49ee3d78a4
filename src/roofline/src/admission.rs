//! Whether a node can take one more replica, and what that does to those it has. Pure; the
//! scheduler places by it, the agent asks it once more with live numbers, `rooflet fit` and
//! `rooflet plan` answer with it.
//!
//! Three things are consumed. Memory: every replica reserves the most it can ever hold, see
//! [`memory`](crate::memory). Disk: what a replica was told it may store, see
//! [`disk`](crate::disk). Bandwidth: one chip does one thing at a time, so each replica reserves
//! the share of the chip's time that its objectives need, at the pessimistic end of the prediction
//! and with all its streams at full context. The shares of a node never sum to more than one. A
//! replica without objectives keeps a small share and takes what is left over.

mod refusal;
mod suggestion;

use std::fmt;

pub use self::refusal::Refusal;
use self::refusal::percent;
pub use self::suggestion::{Suggestion, shorter, suggestions};
use crate::disk::{DiskDemand, NodeDisk};
use crate::memory::{Demand, Held, NodeMemory, Reservation, ServedModel, admit};
use crate::predict::calibration::Calibration;
use crate::predict::{
    Basis, Constraint, DecodePrediction, Engine, Hardware, Interval, ModelCost, Parameters,
    PrefillPrediction, Workload,
};
use rooflet_base::units::Bytes;

/// The share of a chip's time kept for a replica without objectives, so that it is slow beside one
/// with a promise, and never starved.
pub const BEST_EFFORT_SHARE: f64 = 0.05;

/// The prompt for which a bound on the first token holds where none is given, in tokens; less if
/// the context is.
pub const DEFAULT_PROMPT_TOKENS: u32 = 2000;

/// Sums of shares carry rounding errors.
const SHARE_TOLERANCE: f64 = 1e-9;

/// Speed that is promised.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Objectives {
    /// Tokens per second of each stream, with all streams at full context.
    pub decode: Option<f64>,
    pub first_token: Option<FirstTokenObjective>,
}

/// The longest wait for the first token of a prompt that is not cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstTokenObjective {
    pub max_seconds: f64,
    pub prompt_tokens: Option<u32>,
}

/// A replica that wants to be served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask<'a> {
    pub model: &'a ServedModel,
    pub engine: Engine,
    pub demand: Demand,
    /// What it was told it may store on the node's disk; zero where it takes what is left.
    pub disk: DiskDemand,
    pub objectives: Objectives,
}

/// What a replica on a node was promised of the chip's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Commitment {
    /// For messages: namespace and name of the replica.
    pub replica: String,
    /// Of the chip's time, 0 to 1.
    pub share: f64,
    /// Its objective for decoding, and what it would get with the chip to itself, both in tokens
    /// per second.
    pub decode: Option<(f64, f64)>,
}

/// What a node has to give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Supply<'a> {
    pub memory: NodeMemory,
    /// Memory of the replicas it has.
    pub held: &'a [Held],
    /// `None`: nobody has said, and it is not judged.
    pub disk: Option<NodeDisk>,
    /// `None`: nobody can tell how fast it is.
    pub hardware: Option<Hardware>,
    /// What runs on it have taught.
    pub calibrations: &'a [Calibration],
    /// Time of the replicas it has.
    pub commitments: &'a [Commitment],
}

impl Supply<'_> {
    /// The share of the chip's time that is promised to nobody.
    pub fn free_share(&self) -> f64 {
        (1.0 - self.commitments.iter().map(|one| one.share).sum::<f64>()).max(0.0)
    }
}

/// How fast a replica would be with the chip to itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Tokens per second of each stream, with all streams at full context.
    pub decode: Interval,
    pub bytes_per_token: f64,
    /// Seconds to the first token of a prompt of `prompt_tokens`.
    pub first_token: Interval,
    pub prompt_tokens: u32,
    pub basis: Basis,
    pub first_token_basis: Basis,
    pub binding: Constraint,
    /// The part of its speed that the hot chip keeps, where it was measured: all above is what
    /// stays.
    pub sustained: Option<f64>,
}

impl Speed {
    pub fn new(ask: &Ask<'_>, hardware: Hardware, parameters: &Parameters) -> Self {
        let prompt_tokens = ask
            .objectives
            .first_token
            .and_then(|objective| objective.prompt_tokens)
            .unwrap_or(DEFAULT_PROMPT_TOKENS)
            .clamp(1, ask.demand.context_tokens.max(1));
        let workload = Workload {
            batch: ask.demand.max_concurrency.max(1),
            context_tokens: ask.demand.context_tokens,
            prompt_tokens,
            cached_tokens: 0,
            kv_bits: ask.model.kv_bits,
        };
        let cost = &ask.model.cost;
        let build = ask.engine.into();
        let decode = DecodePrediction::new(parameters, hardware, &build, cost, workload);
        let prefill = PrefillPrediction::new(parameters, hardware, &build, cost, workload);
        Self {
            decode: decode.tokens_per_second,
            bytes_per_token: decode.bytes_per_token,
            first_token: prefill.first_token_seconds,
            prompt_tokens,
            basis: decode.basis,
            first_token_basis: prefill.basis,
            binding: decode.binding,
            sustained: hardware.sustained(),
        }
    }

    /// With what runs on the node have taught about models stored like this one.
    pub fn calibrated(self, model: &ModelCost, calibrations: &[Calibration]) -> Self {
        let Some(calibration) = Calibration::of(calibrations, model) else {
            return self;
        };
        let corrected = |basis: Basis, learned: Option<Interval>| match learned {
            Some(_) => basis.corrected(),
            None => basis,
        };
        let decode = calibration.decode(self.decode);
        let first_token = calibration.first_token(self.first_token);
        Self {
            decode: decode.unwrap_or(self.decode),
            basis: corrected(self.basis, decode),
            first_token: first_token.unwrap_or(self.first_token),
            first_token_basis: corrected(self.first_token_basis, first_token),
            ..self
        }
    }

    /// The share of the chip's time that `objectives` need at the pessimistic end; above 1 they
    /// cannot be met at all.
    fn share(&self, objectives: Objectives) -> f64 {
        let decode = objectives.decode.map_or(0.0, |rate| rate / self.decode.p10);
        let first_token = objectives
            .first_token
            .map_or(0.0, |objective| self.first_token.p90 / objective.max_seconds);
        decode.max(first_token).max(BEST_EFFORT_SHARE)
    }
}

/// The judgement on one replica and one node, with its working.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub reservation: Reservation,
    /// What models may use of the node, and what of it is free for this one.
    pub limit: Bytes,
    pub free: Bytes,
    /// What replicas may store on the node's disk, and what of it is free for this one.
    pub disk: Option<NodeDisk>,
    /// `None`: nobody can tell how fast the node is.
    pub speed: Option<Speed>,
    /// The share of the chip's time that it takes, and the share that was free for it.
    pub share: f64,
    pub free_share: f64,
    /// Empty: it is admitted. The first is the one that binds.
    pub refusals: Vec<Refusal>,
}

/// What a replica takes of a machine whatever else runs there: the part of a [`Verdict`] that load
/// does not change.
#[derive(Debug, Clone, PartialEq)]
pub struct Appraisal {
    pub reservation: Reservation,
    /// `None`: nobody can tell how fast the machine is.
    pub speed: Option<Speed>,
    /// The share of the chip's time that it takes.
    pub share: f64,
    /// What it takes of the disk.
    pub disk: DiskDemand,
    objectives: Objectives,
}

impl Appraisal {
    pub fn new(
        ask: &Ask<'_>,
        hardware: Option<Hardware>,
        calibrations: &[Calibration],
        parameters: &Parameters,
    ) -> Self {
        let speed = hardware
            .map(|hardware| Speed::new(ask, hardware, parameters).calibrated(&ask.model.cost, calibrations));
        let has_objectives = ask.objectives != Objectives::default();
        let share = match &speed {
            Some(speed) => speed.share(ask.objectives),
            None if has_objectives => 1.0,
            None => BEST_EFFORT_SHARE,
        };
        Self {
            reservation: Reservation::new(ask.model, ask.demand),
            speed,
            share,
            disk: ask.disk,
            objectives: ask.objectives,
        }
    }

    /// Whether a node promises it more than best effort.
    pub fn has_objectives(&self) -> bool {
        self.objectives != Objectives::default()
    }

    /// Whether a [`Verdict`] would admit it where so much is promised to nobody. No reasons, and no
    /// cost.
    pub fn fits(&self, free: Bytes, disk: Option<NodeDisk>, free_share: f64) -> bool {
        self.reservation.total() <= free
            && disk.is_none_or(|disk| self.disk.total() <= disk.free)
            && (self.speed.is_some() || !self.has_objectives())
            && self.share <= (free_share + SHARE_TOLERANCE).min(1.0)
    }

    /// Whether a machine with so much memory for models might take it with nothing else there; also
    /// where nobody knows how fast it is.
    pub fn could_fit(&self, allocatable: Bytes) -> bool {
        self.reservation.total() <= allocatable && self.share <= 1.0 + SHARE_TOLERANCE
    }

    /// Why what it is told to store cannot be promised on such a disk.
    pub fn too_large(&self, disk: Option<NodeDisk>) -> Option<Refusal> {
        let disk = disk.filter(|disk| self.disk.total() > disk.free)?;
        Some(Refusal::Disk {
            wanted: self.disk,
            disk,
        })
    }

    /// Why its share of the chip's time cannot be had where so much is free. `commitments`: among
    /// whom to name the one that would be hurt most.
    pub fn too_slow(&self, free_share: f64, commitments: &[Commitment]) -> Option<Refusal> {
        match &self.speed {
            Some(speed) if self.share > 1.0 => Some(out_of_reach(self.objectives, speed)),
            Some(_) | None if self.share > free_share + SHARE_TOLERANCE => Some(Refusal::Bandwidth {
                share: self.share,
                free_share,
                victim: victim(commitments, self.share),
            }),
            Some(_) | None => None,
        }
    }

    pub fn verdict(&self, supply: &Supply<'_>) -> Verdict {
        let mut refusals = Vec::new();
        let memory = admit(
            supply.memory,
            supply.held.iter().copied(),
            self.reservation.total(),
        );
        refusals.extend(memory.err().map(Refusal::Memory));
        refusals.extend(self.too_large(supply.disk));
        let (share, free_share) = (self.share, supply.free_share());
        if self.speed.is_none() && self.has_objectives() {
            refusals.push(Refusal::SpeedUnknown);
        }
        refusals.extend(self.too_slow(free_share, supply.commitments));
        Verdict {
            free: supply.memory.allocatable - supply.held.iter().map(|held| held.reserved).sum(),
            limit: supply.memory.allocatable,
            reservation: self.reservation,
            disk: supply.disk,
            speed: self.speed,
            share,
            free_share,
            refusals,
        }
    }
}

impl Verdict {
    pub fn new(ask: &Ask<'_>, supply: &Supply<'_>, parameters: &Parameters) -> Self {
        Appraisal::new(ask, supply.hardware, supply.calibrations, parameters).verdict(supply)
    }

    pub fn admitted(&self) -> bool {
        self.refusals.is_empty()
    }

    /// What rules: the first refusal's constraint, or what the predicted speed is bound by.
    pub fn binding(&self) -> Option<Constraint> {
        self.refusals
            .first()
            .map(Refusal::constraint)
            .or_else(|| self.speed.map(|speed| speed.binding))
    }

    /// What the node promises if it takes the replica.
    pub fn commitment(&self, replica: String, objectives: Objectives) -> Commitment {
        Commitment {
            replica,
            share: self.share,
            decode: objectives.decode.zip(self.speed.map(|speed| speed.decode.p10)),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reservation)?;
        if let Some(speed) = &self.speed {
            write!(
                f,
                "; predicted {:.1} tokens/s a stream ({:.1} to {:.1}, {}{}, bound by {}), {} of the chip's time",
                speed.decode.p50,
                speed.decode.p10,
                speed.decode.p90,
                speed.basis.as_str(),
                speed.sustained.map_or_else(String::new, |kept| format!(
                    " hot, where {} of its speed stay",
                    percent(kept)
                )),
                speed.binding.as_str(),
                percent(self.share)
            )?;
        }
        Ok(())
    }
}

fn out_of_reach(objectives: Objectives, speed: &Speed) -> Refusal {
    match objectives.decode {
        Some(objective) if objective > speed.decode.p10 => Refusal::TooSlow {
            objective,
            predicted: speed.decode,
            basis: speed.basis,
            binding: speed.binding,
        },
        Some(_) | None => Refusal::FirstTokenTooLate {
            max_seconds: objectives
                .first_token
                .map_or(0.0, |objective| objective.max_seconds),
            predicted: speed.first_token,
            prompt_tokens: speed.prompt_tokens,
            basis: speed.first_token_basis,
        },
    }
}

/// Whom `share` more would hurt most, relative to its objective.
fn victim(commitments: &[Commitment], share: f64) -> Option<(String, f64, f64)> {
    let promised: f64 = commitments.iter().map(|one| one.share).sum();
    commitments
        .iter()
        .filter_map(|one| {
            let (objective, alone) = one.decode?;
            let left = alone * (1.0 - (promised - one.share) - share).max(0.0);
            (left < objective).then(|| (one.replica.clone(), objective, left))
        })
        .min_by(|(_, a, left_a), (_, b, left_b)| (left_a / a).total_cmp(&(left_b / b)))
}

#[cfg(test)]
mod tests;
