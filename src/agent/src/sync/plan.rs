//! Plan of one sync pass: one step per replica, computed from desired and observed state. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::desired::{Desired, ResolvedReplica};
use super::memory_pressure;
use super::observed::{Observed, ObservedReplica, WorkerState};
use super::retained;
use super::step::{Refusal, RefusalKind, Start, Step, StopCause, Wait};
use crate::models::{PendingPull, ServableModel};
use crate::node::pressure::Pressure;
use crate::replica::{BadModel, DesiredReplica, ReplicaKey};
use crate::workers::backoff;
use rooflet_api::conditions::NODE_MEMORY_PRESSURE;
use rooflet_api::v1alpha1::AdmissionStatus;
use rooflet_base::clock::is_recent;
use rooflet_base::units::Bytes;
use rooflet_roofline::admission;
use rooflet_roofline::admission::{
    AdmissionRequest, Commitment, NodeCapacity, Objectives, Suggestion, Verdict, shorter, suggestions,
};
use rooflet_roofline::disk::{DiskDemand, NodeDisk};
use rooflet_roofline::memory::{Demand, Held, MemoryRefusal, NodeMemory};
use rooflet_roofline::predict::{Engine, Parameters};
use rooflet_roofline::published::admission_status;

/// Retry delay of a model that its worker rejected, if the files have not changed. The cause may
/// have been the worker.
pub(super) const BAD_MODEL_RETRY: Duration = Duration::from_secs(5 * 60);

/// Planned steps of one sync pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SyncPlan {
    pub steps: BTreeMap<ReplicaKey, Step>,
    /// Current admission status of each running replica. Objectives that changed after the start
    /// may no longer be met.
    pub running_admission: BTreeMap<ReplicaKey, AdmissionStatus>,
    /// Share of the chip's time that each running replica reserves for its objectives, 0 to 1. `None`
    /// without objectives.
    pub running_shares: BTreeMap<ReplicaKey, Option<f64>>,
    /// Reserved share of the chip's time, 0 to 1, including replicas that this pass starts.
    pub reserved_share: f64,
    /// Disk space that running replicas have reserved, and replicas that this pass starts or downloads.
    pub reserved_disk: Bytes,
    /// True if the memory of stopping replicas is needed, so that their grace period is shortened.
    pub shorten_grace: bool,
}

impl SyncPlan {
    pub fn new(desired: &Desired, observed: &Observed, now: Timestamp) -> Self {
        let mut planner = Planner {
            desired,
            observed,
            now,
            // Every replica with a process counts, whatever its next step.
            held: observed
                .replicas
                .values()
                .filter(|seen| seen.worker != WorkerState::None)
                .map(|seen| seen.held)
                .collect(),
            disk: observed.reserved_disk(),
            commitments: Vec::new(),
        };
        let running_admission = planner.assess_running();
        let running_shares = planner.running_shares(&running_admission);
        let keys = desired.replicas.keys().chain(observed.replicas.keys());
        let mut steps = BTreeMap::new();
        for key in keys {
            if !steps.contains_key(key) {
                steps.insert(key.clone(), planner.decide(key));
            }
        }
        let is_stuck = |key: &ReplicaKey| {
            let seen = observed.replicas.get(key);
            seen.is_some_and(|seen| seen.worker == WorkerState::Stuck)
        };
        let is_stopping = |(key, step): (&ReplicaKey, &Step)| {
            matches!(step, Step::Stop(_) | Step::AwaitStop) && !is_stuck(key)
        };
        let any_stopping = steps.iter().any(is_stopping);
        // The memory that a stopping replica frees must be known before the next replica is
        // stopped.
        if !any_stopping
            && let Some(victim) = memory_pressure::victim(desired, observed)
            && let Some(step @ Step::Keep) = steps.get_mut(&victim)
        {
            *step = Step::Stop(StopCause::MemoryPressure);
        }
        if !any_stopping
            && let Some(victim) = retained::victim(desired, observed, &steps)
            && let Some(step @ Step::Keep) = steps.get_mut(&victim)
        {
            *step = Step::Stop(StopCause::Deleted);
        }
        Self {
            steps,
            running_admission,
            running_shares,
            reserved_share: planner
                .commitments
                .iter()
                .map(|commitment| commitment.share)
                .sum(),
            reserved_disk: planner.disk,
            shorten_grace: any_stopping && observed.pressure.requires_stop(),
        }
    }

    /// Returns the next time at which the plan changes although its inputs do not.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.steps
            .values()
            .filter_map(|step| match step {
                Step::Wait(Wait::BackOff { until }) => Some(*until),
                Step::Wait(Wait::Artifacts(_) | Wait::Probing | Wait::Stale | Wait::AgentStopping)
                | Step::Pull(_)
                | Step::Start(_)
                | Step::Stop(_)
                | Step::Keep
                | Step::AwaitStop
                | Step::Refuse(_)
                | Step::Release => None,
            })
            .min()
    }
}

struct Planner<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    now: Timestamp,
    /// Memory reserved so far, including starts of this pass.
    held: Vec<Held>,
    disk: Bytes,
    commitments: Vec<Commitment>,
}

impl Planner<'_> {
    fn decide(&mut self, key: &ReplicaKey) -> Step {
        let wanted = self
            .desired
            .replicas
            .get(key)
            .filter(|wanted| !wanted.replica.deleting);
        let seen = self.observed.replicas.get(key);
        match seen.map_or(WorkerState::None, |seen| seen.worker) {
            WorkerState::Stopping | WorkerState::Stuck => Step::AwaitStop,
            WorkerState::Running => match (wanted, seen) {
                (Some(wanted), Some(seen)) => self.decide_running(&wanted.replica, seen, Step::Keep),
                _ => Step::Stop(StopCause::Deleted),
            },
            WorkerState::Unresponsive => match (wanted, seen) {
                (Some(wanted), Some(seen)) => {
                    self.decide_running(&wanted.replica, seen, Step::Stop(StopCause::Unresponsive))
                }
                _ => Step::Stop(StopCause::Deleted),
            },
            WorkerState::None => match wanted {
                Some(wanted) => self.decide_absent(key, wanted, seen),
                None => Step::Release,
            },
        }
    }

    fn decide_running(&self, replica: &DesiredReplica, seen: &ObservedReplica, otherwise: Step) -> Step {
        let is_another = replica.uid != seen.uid;
        // An older generation never replaces a newer one.
        let has_changed = replica.generation >= seen.generation && replica.spec != seen.spec;
        if self.desired.stopping {
            Step::Stop(StopCause::AgentStopping)
        } else if is_another || has_changed {
            Step::Stop(StopCause::Replaced)
        } else {
            otherwise
        }
    }

    fn decide_absent(
        &mut self,
        key: &ReplicaKey,
        wanted: &ResolvedReplica,
        seen: Option<&ObservedReplica>,
    ) -> Step {
        let ResolvedReplica { replica, model } = wanted;
        if self.desired.stopping {
            return Step::Wait(Wait::AgentStopping);
        }
        // A crashed or changed replica restarts in its own memory.
        let is_new = seen.is_none_or(|seen| seen.stopped_for_memory);
        let seen = seen.filter(|seen| seen.uid == replica.uid);
        if seen.is_some_and(|seen| replica.generation < seen.generation) {
            return Step::Wait(Wait::Stale);
        }
        // Failures of another specification do not apply to this one.
        let seen = seen.filter(|seen| seen.spec == replica.spec);
        let facts = match model {
            Ok(facts) => facts,
            Err(problem) if problem.is_transient => return Step::Wait(Wait::Artifacts(problem.clone())),
            Err(problem) => return refuse(RefusalKind::Model, problem.reason, problem.message.clone()),
        };
        let is_bad = |bad: &&BadModel| {
            bad.fingerprint == facts.fingerprint && is_recent(self.now, bad.at, BAD_MODEL_RETRY)
        };
        if let Some(bad) = seen.and_then(|seen| seen.bad_model.as_ref()).filter(is_bad) {
            return refuse(RefusalKind::Model, &bad.reason, bad.message.clone());
        }
        let stopped_for_memory = seen.is_some_and(|seen| seen.stopped_for_memory);
        let refusal = self.refuse_for_state(replica, facts);
        if let Some(refusal) =
            refusal.or_else(|| self.refuse_for_pressure(replica, stopped_for_memory, is_new))
        {
            return refusal;
        }
        let demand = demand(replica, facts);
        if demand.context_tokens > facts.max_context_tokens {
            return self.refuse_context(&ask(replica, facts, demand), facts.max_context_tokens);
        }
        if let (Some(bits), Some(err)) = (replica.spec.kv_bits(), &facts.unquantisable) {
            let message = format!("spec.serving.kvCache.bits is {bits}: {err}; omit the field");
            return refuse(RefusalKind::Permanent, "KvCacheBitsUnsupported", message);
        }
        if let Some(until) = seen
            .and_then(|seen| seen.backoff_until)
            .filter(|until| backoff::is_waiting(*until, self.now))
        {
            return Step::Wait(Wait::BackOff { until });
        }
        if self.observed.probing {
            return Step::Wait(Wait::Probing);
        }
        let needs_headroom = stopped_for_memory || (is_new && self.observed.stopped_recently);
        self.admit(key, replica, facts, demand, needs_headroom)
    }

    /// Refuses a replica because of the state of the machine, or because its model may have crashed it.
    fn refuse_for_state(&self, replica: &DesiredReplica, facts: &ServableModel) -> Option<Step> {
        if let Some(message) = self.observed.quarantined.get(&facts.fingerprint)
            && !replica.terms.overridden
        {
            return Some(refuse(RefusalKind::Permanent, "Quarantined", message.clone()));
        }
        if self.observed.held_back.contains(&facts.fingerprint) && !replica.terms.overridden {
            let message = "the model was running when the machine went down: it starts within a minute, unless the report of a kernel panic \
                names the GPU's drivers"
                .to_owned();
            return Some(refuse(RefusalKind::Temporary, "CheckingForPanic", message));
        }
        if let Some(leaked) = self.observed.leaked
            && !replica.terms.overridden
        {
            let message = format!(
                "{leaked} stayed wired after earlier workers exited, and another worker could leak more: restart the machine"
            );
            return Some(refuse(RefusalKind::Temporary, "MemoryStaysWired", message));
        }
        None
    }

    /// Refuses a replica because the node is under memory pressure or recovers from it.
    fn refuse_for_pressure(
        &self,
        replica: &DesiredReplica,
        stopped_for_memory: bool,
        is_new: bool,
    ) -> Option<Step> {
        let is_overridden = replica.terms.overridden;
        let message = match self.observed.pressure {
            Pressure::None => None,
            Pressure::Warning | Pressure::Recovering | Pressure::Low | Pressure::Critical
                if stopped_for_memory =>
            {
                Some(
                    "stopped under memory pressure; restarts after enough memory has been available for a while",
                )
            }
            Pressure::Warning if !is_overridden => {
                Some("the system reports low memory; starts when the warning ends")
            }
            Pressure::Recovering | Pressure::Low | Pressure::Critical if is_new && !is_overridden => {
                Some("memory was low recently; starts after enough memory has been available for a while")
            }
            Pressure::Warning | Pressure::Recovering | Pressure::Low | Pressure::Critical => None,
        }?;
        let (kind, reason) = (RefusalKind::Temporary, NODE_MEMORY_PRESSURE);
        Some(refuse(kind, reason, message.to_owned()))
    }

    /// Reserves memory, disk space and chip time for a replica and starts it, or refuses it.
    fn admit(
        &mut self,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        facts: &ServableModel,
        demand: Demand,
        needs_headroom: bool,
    ) -> Step {
        let ask = ask(replica, facts, demand);
        let mut memory = self.observed.memory;
        if needs_headroom {
            // Headroom prevents the replica from being stopped soon after its start.
            memory.available = memory.available - self.observed.restart_headroom;
        }
        let supply = self.supply(memory);
        let parameters = Parameters::built_in();
        let verdict = Verdict::new(&ask, &supply, parameters);
        let status = |suggestions: &[Suggestion]| {
            admission_status(&ask, facts.max_context_tokens, &verdict, suggestions)
        };
        if let Some(refusal) = verdict.refusals.first()
            && !replica.terms.overridden
        {
            let suggestions = suggestions(&ask, &supply, parameters);
            let mut message = refusal.to_string();
            if needs_headroom && is_memory_in_use(refusal) {
                let headroom = self.observed.restart_headroom;
                message.push_str(&format!(
                    "; {headroom} more stay free for an hour after memory pressure"
                ));
            }
            message.push_str(&format!("; it reserves {verdict}"));
            if !suggestions.is_empty() {
                let changes: Vec<_> = suggestions.iter().map(ToString::to_string).collect();
                message.push_str(&format!(". It would be admitted with {}", changes.join(" or ")));
            }
            return Step::Refuse(Refusal {
                kind: refusal_kind(refusal),
                reason: refusal.reason().to_owned(),
                message,
                admission: Some(Box::new(status(&suggestions))),
            });
        }
        let admission = Box::new(AdmissionStatus {
            admitted: true,
            ..status(&[])
        });
        self.held.push(Held {
            reserved: verdict.reservation.total(),
            resident: Bytes::ZERO,
        });
        self.disk += ask.disk.total();
        let objectives = Objectives::from(&replica.terms.objectives);
        self.commitments
            .push(verdict.commitment(key.to_string(), objectives));
        let start = Start {
            path: facts.path.clone(),
            fingerprint: facts.fingerprint,
            context_tokens: demand.context_tokens,
            reservation: verdict.reservation,
            admission,
        };
        match &facts.pull {
            Some(_) => Step::Pull(start),
            None => Step::Start(start),
        }
    }

    fn supply(&self, memory: NodeMemory) -> NodeCapacity<'_> {
        NodeCapacity {
            memory,
            held: &self.held,
            disk: Some(NodeDisk::new(self.observed.disk_limit, self.disk)),
            hardware: self.observed.hardware,
            calibrations: &self.observed.calibrations,
            commitments: &self.commitments,
        }
    }

    /// Rejects a context length beyond the model's maximum. The message includes all other
    /// findings.
    fn refuse_context(&self, ask: &AdmissionRequest<'_>, longest: u32) -> Step {
        let supply = self.supply(self.observed.memory);
        let parameters = Parameters::built_in();
        let verdict = Verdict::new(ask, &supply, parameters);
        let suggestion = shorter(ask, longest, &supply, parameters);
        let mut message = format!(
            "spec.serving.contextTokens is {}, but the model supports at most {longest}: lower it",
            ask.demand.context_tokens
        );
        if let Some(suggestion) = suggestion {
            message.push_str(&format!(". It would be admitted with {suggestion}"));
        }
        let mut admission = admission_status(ask, longest, &verdict, suggestion.as_slice());
        admission.admitted = false;
        admission.binding = Some("Context".to_owned());
        admission.refusals.insert(0, message.clone());
        Step::Refuse(Refusal {
            kind: RefusalKind::Permanent,
            reason: "ContextTooLong".to_owned(),
            message,
            admission: Some(Box::new(admission)),
        })
    }

    /// Reserves memory and chip time for all running replicas. Returns for each whether the node
    /// still fits it beside the other running replicas.
    fn assess_running(&mut self) -> BTreeMap<ReplicaKey, AdmissionStatus> {
        // Running replicas already hold their memory, so the memory that other programs use is
        // irrelevant.
        let memory = NodeMemory {
            available: self.observed.memory.allocatable,
            ..self.observed.memory
        };
        // Likewise, running replicas already hold their disk space.
        let disk_limit = self.observed.disk_limit.max(self.disk);
        let assess = |ask: &AdmissionRequest<'_>, held: &[Held], commitments: &[Commitment]| {
            let supply = NodeCapacity {
                memory,
                held,
                disk: Some(NodeDisk::new(disk_limit, self.disk - ask.disk.total())),
                hardware: self.observed.hardware,
                calibrations: &self.observed.calibrations,
                commitments,
            };
            Verdict::new(ask, &supply, Parameters::built_in())
        };
        let running: Vec<_> = self
            .observed
            .replicas
            .iter()
            .filter(|(_, seen)| seen.worker != WorkerState::None)
            .filter_map(|(key, seen)| {
                let ResolvedReplica { replica, model } = self.desired.replicas.get(key)?;
                let facts = model.as_ref().ok()?;
                let ask = ask(replica, facts, demand(replica, facts));
                Some((key, ask, facts.max_context_tokens, seen.held))
            })
            .collect();
        // A worker runs on if its model was renamed or its object was deleted, with the resources of its start.
        let others: Vec<_> = self
            .observed
            .replicas
            .iter()
            .filter(|(_, seen)| seen.worker != WorkerState::None)
            .filter(|(key, _)| !running.iter().any(|(assessed, ..)| assessed == key))
            .collect();
        let recorded = others.iter().map(|(key, seen)| Commitment {
            replica: key.to_string(),
            share: seen.reserved_share,
            decode: None,
        });
        let commitments: Vec<_> = running
            .iter()
            .map(|(key, ask, ..)| assess(ask, &[], &[]).commitment(key.to_string(), ask.objectives))
            .chain(recorded)
            .collect();
        let mut running_admission = BTreeMap::new();
        for (index, (key, ask, model_tokens, _)) in running.iter().enumerate() {
            let mut held: Vec<_> = running.iter().map(|(.., held)| *held).collect();
            held.extend(others.iter().map(|(_, seen)| seen.held));
            let mut beside = commitments.clone();
            held.remove(index);
            beside.remove(index);
            let verdict = assess(ask, &held, &beside);
            let status = AdmissionStatus {
                admitted: true,
                ..admission_status(ask, *model_tokens, &verdict, &[])
            };
            running_admission.insert((*key).clone(), status);
        }
        self.commitments = commitments;
        running_admission
    }

    /// Returns [`SyncPlan::running_shares`].
    fn running_shares(
        &self,
        admission: &BTreeMap<ReplicaKey, AdmissionStatus>,
    ) -> BTreeMap<ReplicaKey, Option<f64>> {
        let replicas = self.observed.replicas.iter();
        let running = replicas.filter(|(_, seen)| seen.worker != WorkerState::None);
        let share = |(key, seen): (&ReplicaKey, &ObservedReplica)| {
            let wanted = self.desired.replicas.get(key);
            let has_objectives = wanted.map_or(seen.has_objectives, |wanted| {
                wanted.replica.terms.has_objectives()
            });
            let share = admission
                .get(key)
                .map_or(seen.reserved_share, |status| status.chip_time_percent / 100.0);
            (key.clone(), has_objectives.then_some(share))
        };
        running.map(share).collect()
    }
}

/// Returns the context length and concurrency that a replica reserves.
pub fn demand(replica: &DesiredReplica, facts: &ServableModel) -> Demand {
    Demand {
        context_tokens: facts.context_tokens(replica.spec.context_tokens),
        max_concurrency: replica.spec.max_concurrency,
    }
}

fn ask<'a>(replica: &DesiredReplica, facts: &'a ServableModel, demand: Demand) -> AdmissionRequest<'a> {
    AdmissionRequest {
        model: &facts.served,
        engine: Engine::Mlx,
        demand,
        disk: DiskDemand {
            prefixes: replica.spec.disk(),
            download: facts.pull.as_ref().map(PendingPull::missing).unwrap_or_default(),
        },
        objectives: Objectives::from(&replica.terms.objectives),
    }
}

fn is_memory_in_use(refusal: &admission::Refusal) -> bool {
    matches!(
        refusal,
        admission::Refusal::Memory(MemoryRefusal::NotFreeNow { .. })
    )
}

fn refusal_kind(refusal: &admission::Refusal) -> RefusalKind {
    match refusal {
        admission::Refusal::Memory(MemoryRefusal::NeverFits { .. })
        | admission::Refusal::TooSlow { .. }
        | admission::Refusal::FirstTokenTooLate { .. } => RefusalKind::Permanent,
        admission::Refusal::Memory(MemoryRefusal::Reserved { .. } | MemoryRefusal::NotFreeNow { .. })
        | admission::Refusal::Disk { .. }
        | admission::Refusal::SpeedUnknown
        | admission::Refusal::Bandwidth { .. } => RefusalKind::Temporary,
    }
}

fn refuse(kind: RefusalKind, reason: &str, message: String) -> Step {
    Step::Refuse(Refusal {
        kind,
        reason: reason.to_owned(),
        message,
        admission: None,
    })
}

#[cfg(test)]
pub(super) mod tests;
