//! Admission of a replica to a node, and its effect on the other replicas. The scheduler uses this
//! decision for placement, the agent repeats it with current figures, and `rooflet fit` and
//! `rooflet plan` report it.
//!
//! A replica uses three resources:
//!
//! - Memory: each replica reserves the maximum that it can use; see [`memory`](crate::memory).
//! - Disk: each replica reserves its configured size; see [`disk`](crate::disk).
//! - Bandwidth: each replica reserves the share of the chip's time that its objectives need, at the
//!   pessimistic end of the prediction and with all streams at full context. The shares of a node
//!   never exceed one in total. A replica without objectives reserves a small share and uses
//!   unreserved time.

mod refusal;
mod suggestion;

use std::fmt;

pub use self::refusal::Refusal;
use self::refusal::percent;
pub use self::suggestion::{Suggestion, shorter, suggestions};
use crate::disk::{DiskDemand, NodeDisk};
use crate::memory::{Demand, Held, NodeMemory, Reservation, ServedModel, admit};
use crate::predict::calibration::{Calibration, calibrated_first_token, calibrated_rate};
use crate::predict::{
    Basis, Constraint, DecodePrediction, Engine, Hardware, Interval, ModelCost, Parameters,
    PrefillPrediction, Workload,
};
use rooflet_base::units::Bytes;

/// Share of the chip's time for a replica without objectives, so that it is never starved by
/// replicas with objectives.
pub const BEST_EFFORT_SHARE: f64 = 0.05;

/// Prompt length for a first-token objective without a prompt length, in tokens; at most the
/// context.
pub const DEFAULT_PROMPT_TOKENS: u32 = 2000;

/// Tolerance for rounding errors in sums of shares.
const SHARE_TOLERANCE: f64 = 1e-9;

/// Speed objectives of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Objectives {
    /// Tokens per second of each stream, with all streams at full context.
    pub decode: Option<f64>,
    pub first_token: Option<FirstTokenObjective>,
}

/// Maximum time to first token of a prompt that is not cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstTokenObjective {
    pub max_seconds: f64,
    pub prompt_tokens: Option<u32>,
}

/// Request to serve a replica on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmissionRequest<'a> {
    pub model: &'a ServedModel,
    pub engine: Engine,
    pub demand: Demand,
    /// Disk space that the replica reserves; 0 if it has no configured size.
    pub disk: DiskDemand,
    pub objectives: Objectives,
}

/// Share of the chip's time that a replica on the node reserves.
#[derive(Debug, Clone, PartialEq)]
pub struct Commitment {
    /// Namespace and name of the replica, for messages.
    pub replica: String,
    /// Share of the chip's time, 0 to 1.
    pub share: f64,
    /// Decode objective, and predicted speed on an otherwise idle chip, in tokens per second.
    pub decode: Option<(f64, f64)>,
}

/// Capacity and reservations of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeCapacity<'a> {
    pub memory: NodeMemory,
    /// Memory of its replicas.
    pub held: &'a [Held],
    /// `None` if unknown; disk space is then not checked.
    pub disk: Option<NodeDisk>,
    /// `None` if the speed is unknown.
    pub hardware: Option<Hardware>,
    /// Calibrations by runs on this node.
    pub calibrations: &'a [Calibration],
    /// Reserved chip time of its replicas.
    pub commitments: &'a [Commitment],
}

impl NodeCapacity<'_> {
    /// Returns the unreserved share of the chip's time.
    pub fn free_share(&self) -> f64 {
        (1.0 - self
            .commitments
            .iter()
            .map(|commitment| commitment.share)
            .sum::<f64>())
        .max(0.0)
    }
}

/// Speed of a replica on an otherwise idle chip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Tokens per second of each stream, with all streams at a context of `context_tokens`.
    pub decode: Interval,
    pub context_tokens: u32,
    pub bytes_per_token: f64,
    /// Seconds to the first token of a prompt of `prompt_tokens`.
    pub first_token: Interval,
    pub prompt_tokens: u32,
    pub basis: Basis,
    pub first_token_basis: Basis,
    pub binding: Constraint,
    /// Share of the speed that the hot chip sustains, if measured. All other figures then apply to
    /// the hot chip.
    pub sustained: Option<f64>,
}

impl Speed {
    pub fn new(request: &AdmissionRequest<'_>, hardware: Hardware, parameters: &Parameters) -> Self {
        Self::with_cached_share(request, 0.0, hardware, parameters)
    }

    /// Returns the speed if the cache contains this share of every prompt, 0 to 1. At least one
    /// token of a prompt is computed.
    pub fn with_cached_share(
        request: &AdmissionRequest<'_>,
        cached_share: f64,
        hardware: Hardware,
        parameters: &Parameters,
    ) -> Self {
        let prompt_tokens = request
            .objectives
            .first_token
            .and_then(|objective| objective.prompt_tokens)
            .unwrap_or(DEFAULT_PROMPT_TOKENS)
            .clamp(1, request.demand.context_tokens.max(1));
        let cached_tokens = (f64::from(prompt_tokens) * cached_share.clamp(0.0, 1.0)).round() as u32;
        let workload = Workload {
            batch: request.demand.max_concurrency.max(1),
            context_tokens: request.demand.context_tokens,
            prompt_tokens,
            cached_tokens: cached_tokens.min(prompt_tokens - 1),
            kv_bits: request.model.kv_bits,
        };
        let cost = &request.model.cost;
        let build = request.engine.into();
        let decode = DecodePrediction::new(parameters, hardware, &build, cost, workload);
        let prefill = PrefillPrediction::new(parameters, hardware, &build, cost, workload);
        Self {
            decode: decode.tokens_per_second,
            context_tokens: request.demand.context_tokens,
            bytes_per_token: decode.bytes_per_token,
            first_token: prefill.first_token_seconds,
            prompt_tokens,
            basis: decode.basis,
            first_token_basis: prefill.basis,
            binding: decode.binding,
            sustained: hardware.sustained(),
        }
    }

    /// Corrects the speed of a model by runs on its node.
    pub fn calibrated(self, model: &ModelCost, calibrations: &[Calibration]) -> Self {
        let corrected = |basis: Basis, calibrated: Option<Interval>| match calibrated {
            Some(_) => basis.corrected(),
            None => basis,
        };
        let decode = calibrated_rate(calibrations, model, self.context_tokens, self.decode);
        let first_token = calibrated_first_token(calibrations, model, self.prompt_tokens, self.first_token);
        Self {
            decode: decode.unwrap_or(self.decode),
            basis: corrected(self.basis, decode),
            first_token: first_token.unwrap_or(self.first_token),
            first_token_basis: corrected(self.first_token_basis, first_token),
            ..self
        }
    }

    /// Returns the share of the chip's time that `objectives` need at the pessimistic end of the
    /// prediction. A share above 1 cannot be met.
    fn share(&self, objectives: Objectives) -> f64 {
        let decode = objectives.decode.map_or(0.0, |rate| rate / self.decode.p10);
        let first_token = objectives
            .first_token
            .map_or(0.0, |objective| self.first_token.p90 / objective.max_seconds);
        decode.max(first_token).max(BEST_EFFORT_SHARE)
    }
}

/// Decision for one replica and one node, with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub reservation: Reservation,
    /// Memory that models may use on the node, and its free part.
    pub limit: Bytes,
    pub free: Bytes,
    /// Disk space for replicas on the node, and its free part.
    pub disk: Option<NodeDisk>,
    /// `None` if the speed of the node is unknown.
    pub speed: Option<Speed>,
    /// Share of the chip's time that the replica needs, and free share.
    pub share: f64,
    pub free_share: f64,
    /// Empty if the replica is admitted. The first refusal is the binding one.
    pub refusals: Vec<Refusal>,
}

/// Requirements of a replica on a machine, independent of its load.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirements {
    pub reservation: Reservation,
    /// `None` if the speed of the machine is unknown.
    pub speed: Option<Speed>,
    /// Share of the chip's time.
    pub share: f64,
    /// Disk space.
    pub disk: DiskDemand,
    objectives: Objectives,
}

impl Requirements {
    pub fn new(
        request: &AdmissionRequest<'_>,
        hardware: Option<Hardware>,
        calibrations: &[Calibration],
        parameters: &Parameters,
    ) -> Self {
        let speed = hardware.map(|hardware| {
            Speed::new(request, hardware, parameters).calibrated(&request.model.cost, calibrations)
        });
        let has_objectives = request.objectives != Objectives::default();
        let share = match &speed {
            Some(speed) => speed.share(request.objectives),
            None if has_objectives => 1.0,
            None => BEST_EFFORT_SHARE,
        };
        Self {
            reservation: Reservation::new(request.model, request.demand),
            speed,
            share,
            disk: request.disk,
            objectives: request.objectives,
        }
    }

    /// Replaces the predicted speed, and computes the share of the chip's time from `speed`.
    pub fn with_speed(self, speed: Speed) -> Self {
        Self {
            share: speed.share(self.objectives),
            speed: Some(speed),
            ..self
        }
    }

    /// Returns whether the replica has objectives.
    pub fn has_objectives(&self) -> bool {
        self.objectives != Objectives::default()
    }

    /// Returns whether a [`Verdict`] would admit the replica with these unreserved resources. This
    /// check is cheaper than a verdict, because it collects no reasons.
    pub fn fits(&self, free: Bytes, disk: Option<NodeDisk>, free_share: f64) -> bool {
        self.reservation.total() <= free
            && disk.is_none_or(|disk| self.disk.total() <= disk.free)
            && (self.speed.is_some() || !self.has_objectives())
            && self.share <= (free_share + SHARE_TOLERANCE).min(1.0)
    }

    /// Returns whether the replica fits an empty machine with this memory for models. If the speed
    /// is unknown, only memory is checked.
    pub fn fits_empty_node(&self, allocatable: Bytes) -> bool {
        self.reservation.total() <= allocatable && self.share <= 1.0 + SHARE_TOLERANCE
    }

    /// Returns a refusal if the disk has not enough unreserved space.
    pub fn disk_refusal(&self, disk: Option<NodeDisk>) -> Option<Refusal> {
        let disk = disk.filter(|disk| self.disk.total() > disk.free)?;
        Some(Refusal::Disk {
            requested: self.disk,
            disk,
        })
    }

    /// Returns a refusal if the chip has not enough unreserved time. The refusal names the most
    /// affected replica among `commitments`.
    pub fn bandwidth_refusal(&self, free_share: f64, commitments: &[Commitment]) -> Option<Refusal> {
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

    pub fn verdict(&self, capacity: &NodeCapacity<'_>) -> Verdict {
        let mut refusals = Vec::new();
        let memory = admit(
            capacity.memory,
            capacity.held.iter().copied(),
            self.reservation.total(),
        );
        refusals.extend(memory.err().map(Refusal::Memory));
        refusals.extend(self.disk_refusal(capacity.disk));
        let (share, free_share) = (self.share, capacity.free_share());
        if self.speed.is_none() && self.has_objectives() {
            refusals.push(Refusal::SpeedUnknown);
        }
        refusals.extend(self.bandwidth_refusal(free_share, capacity.commitments));
        Verdict {
            free: capacity.memory.allocatable - capacity.held.iter().map(|held| held.reserved).sum(),
            limit: capacity.memory.allocatable,
            reservation: self.reservation,
            disk: capacity.disk,
            speed: self.speed,
            share,
            free_share,
            refusals,
        }
    }
}

impl Verdict {
    pub fn new(request: &AdmissionRequest<'_>, capacity: &NodeCapacity<'_>, parameters: &Parameters) -> Self {
        Requirements::new(request, capacity.hardware, capacity.calibrations, parameters).verdict(capacity)
    }

    pub fn admitted(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Returns the constraint of the first refusal, or else the bound of the predicted speed.
    pub fn binding(&self) -> Option<Constraint> {
        self.refusals
            .first()
            .map(Refusal::constraint)
            .or_else(|| self.speed.map(|speed| speed.binding))
    }

    /// Returns the reservation of chip time if the node admits the replica.
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
                "; predicted {:.1} tokens/s per stream ({:.1} to {:.1}, {}{}, bound by {}), {} of the chip's time",
                speed.decode.p50,
                speed.decode.p10,
                speed.decode.p90,
                speed.basis.as_str(),
                speed.sustained.map_or_else(String::new, |kept| format!(
                    " at {} of the cold speed",
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

/// Returns the replica that a further reservation of `share` would affect most, relative to its
/// objective.
fn victim(commitments: &[Commitment], share: f64) -> Option<(String, f64, f64)> {
    let reserved: f64 = commitments.iter().map(|commitment| commitment.share).sum();
    commitments
        .iter()
        .filter_map(|commitment| {
            let (objective, alone) = commitment.decode?;
            let left = alone * (1.0 - (reserved - commitment.share) - share).max(0.0);
            (left < objective).then(|| (commitment.replica.clone(), objective, left))
        })
        .min_by(|(_, a, left_a), (_, b, left_b)| (left_a / a).total_cmp(&(left_b / b)))
}

#[cfg(test)]
mod tests;
