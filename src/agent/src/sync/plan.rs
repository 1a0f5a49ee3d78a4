//! What one sync pass will do: one step for each replica, decided from what is wanted and what is seen. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::desired::{Desired, Wanted};
use super::give_way;
use super::observed::{Observed, Seen, WorkerState};
use super::step::{Ground, Refusal, Start, Step, StopCause, Wait};
use crate::models::{PendingPull, ServableModel};
use crate::node::pressure::Pressure;
use crate::replica::{BadModel, DesiredReplica, ReplicaKey};
use rooflet_api::conditions::NODE_MEMORY_PRESSURE;
use rooflet_api::v1alpha1::AdmissionStatus;
use rooflet_base::clock::since;
use rooflet_base::units::Bytes;
use rooflet_roofline::admission;
use rooflet_roofline::admission::{
    Ask, Commitment, Objectives, Suggestion, Supply, Verdict, shorter, suggestions,
};
use rooflet_roofline::disk::{DiskDemand, NodeDisk};
use rooflet_roofline::memory::{Demand, Held, MemoryRefusal, NodeMemory};
use rooflet_roofline::predict::{Engine, Parameters};
use rooflet_roofline::published::admission_status;

/// A model that its worker found unservable is tried again after this time even if no file has changed: the fault may
/// have been the worker's.
pub(super) const BAD_MODEL_RETRY: Duration = Duration::from_secs(5 * 60);

/// See [`Step`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SyncPlan {
    pub steps: BTreeMap<ReplicaKey, Step>,
    /// Of those that run: the judgement on them as things are now, which a promise raised since then may have broken.
    pub standing: BTreeMap<ReplicaKey, AdmissionStatus>,
    /// The share of the chip's time that is promised, starts of this pass included.
    pub promised_share: f64,
    /// The memory of those that stop is needed now: they get no more time than one that gives way.
    pub hurry: bool,
}

impl SyncPlan {
    pub fn new(desired: &Desired, observed: &Observed, now: Timestamp) -> Self {
        let mut pass = Pass {
            desired,
            observed,
            now,
            // Everything that has a process counts, whatever is to become of it.
            held: observed
                .replicas
                .values()
                .filter(|seen| seen.worker != WorkerState::None)
                .map(|seen| seen.held)
                .collect(),
            disk: observed.promised_disk(),
            commitments: Vec::new(),
        };
        let standing = pass.judge_running();
        let keys = desired.replicas.keys().chain(observed.replicas.keys());
        let mut steps = BTreeMap::new();
        for key in keys {
            if !steps.contains_key(key) {
                steps.insert(key.clone(), pass.decide(key));
            }
        }
        let is_stuck = |key: &ReplicaKey| {
            let seen = observed.replicas.get(key);
            seen.is_some_and(|seen| seen.worker == WorkerState::Stuck)
        };
        let is_going = |(key, step): (&ReplicaKey, &Step)| {
            matches!(step, Step::Stop(_) | Step::AwaitStop) && !is_stuck(key)
        };
        let anyone_goes = steps.iter().any(is_going);
        // How much one gives back is seen before another one is asked.
        if !anyone_goes
            && let Some(victim) = give_way::victim(desired, observed)
            && let Some(step @ Step::Keep) = steps.get_mut(&victim)
        {
            *step = Step::Stop(StopCause::MemoryPressure);
        }
        Self {
            steps,
            standing,
            promised_share: pass.commitments.iter().map(|one| one.share).sum(),
            hurry: anyone_goes && observed.pressure.presses(),
        }
    }

    /// The next moment at which time alone changes the plan.
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

struct Pass<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    now: Timestamp,
    /// Promised so far, the starts of this pass included.
    held: Vec<Held>,
    disk: Bytes,
    commitments: Vec<Commitment>,
}

impl Pass<'_> {
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

    fn decide_running(&self, replica: &DesiredReplica, seen: &Seen, otherwise: Step) -> Step {
        let is_another = replica.uid != seen.uid;
        // An older generation never undoes a newer one.
        let has_changed = replica.generation >= seen.generation && replica.spec != seen.spec;
        if self.desired.stopping {
            Step::Stop(StopCause::AgentStopping)
        } else if is_another || has_changed {
            Step::Stop(StopCause::Replaced)
        } else {
            otherwise
        }
    }

    fn decide_absent(&mut self, key: &ReplicaKey, wanted: &Wanted, seen: Option<&Seen>) -> Step {
        let Wanted { replica, model } = wanted;
        if self.desired.stopping {
            return Step::Wait(Wait::AgentStopping);
        }
        let seen = seen.filter(|seen| seen.uid == replica.uid);
        if seen.is_some_and(|seen| replica.generation < seen.generation) {
            return Step::Wait(Wait::Stale);
        }
        // What went wrong with another spec says nothing about this one.
        let seen = seen.filter(|seen| seen.spec == replica.spec);
        let facts = match model {
            Ok(facts) => facts,
            Err(problem) if problem.is_passing => return Step::Wait(Wait::Artifacts(problem.clone())),
            Err(problem) => return refuse(Ground::Artifacts, problem.reason, problem.message.clone()),
        };
        let is_bad = |bad: &&BadModel| {
            bad.fingerprint == facts.fingerprint && since(self.now, bad.at) < BAD_MODEL_RETRY
        };
        if let Some(bad) = seen.and_then(|seen| seen.bad_model.as_ref()).filter(is_bad) {
            return refuse(Ground::Artifacts, &bad.reason, bad.message.clone());
        }
        if let Some(message) = self.observed.quarantined.get(&facts.fingerprint)
            && !replica.terms.overridden
        {
            return refuse(Ground::Never, "Quarantined", message.clone());
        }
        if let Some(stranded) = self.observed.stranded
            && !replica.terms.overridden
        {
            let message = format!(
                "{stranded} of workers that are gone stayed wired, and another one could strand as much: restart the machine"
            );
            return refuse(Ground::NotNow, "MemoryStaysWired", message);
        }
        let gave_way = seen.is_some_and(|seen| seen.gave_way);
        if gave_way && self.observed.pressure != Pressure::None {
            return refuse(
                Ground::NotNow,
                NODE_MEMORY_PRESSURE,
                "it was stopped because other programs on the machine need its memory; it starts again when that has been over for a while".to_owned(),
            );
        }
        let demand = demand(replica, facts);
        if demand.context_tokens > facts.max_context_tokens {
            return self.too_long(&ask(replica, facts, demand), facts.max_context_tokens);
        }
        if let (Some(bits), Some(err)) = (replica.spec.kv_bits(), &facts.unquantisable) {
            let message = format!("spec.serving.kvCache.bits is {bits}: {err}; leave it out");
            return refuse(Ground::Never, "KvCacheBitsUnsupported", message);
        }
        if let Some(until) = seen
            .and_then(|seen| seen.backoff_until)
            .filter(|until| *until > self.now)
        {
            return Step::Wait(Wait::BackOff { until });
        }
        if self.observed.probing {
            return Step::Wait(Wait::Probing);
        }
        let ask = ask(replica, facts, demand);
        let mut memory = self.observed.memory;
        if gave_way {
            // It comes back where there is more than enough, or it would leave again soon.
            memory.available = memory.available - self.observed.relapse;
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
            let mut message = format!("{refusal}; it reserves {verdict}");
            if !suggestions.is_empty() {
                let changes: Vec<_> = suggestions.iter().map(ToString::to_string).collect();
                message.push_str(&format!(". It would be admitted with {}", changes.join(" or ")));
            }
            return Step::Refuse(Refusal {
                ground: ground(refusal),
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

    fn supply(&self, memory: NodeMemory) -> Supply<'_> {
        Supply {
            memory,
            held: &self.held,
            disk: Some(NodeDisk::new(self.observed.disk_limit, self.disk)),
            hardware: self.observed.hardware,
            calibrations: &self.observed.calibrations,
            commitments: &self.commitments,
        }
    }

    /// Refuses a context that is longer than the model was made for, with all that would be said of it otherwise.
    fn too_long(&self, ask: &Ask<'_>, longest: u32) -> Step {
        let supply = self.supply(self.observed.memory);
        let parameters = Parameters::built_in();
        let verdict = Verdict::new(ask, &supply, parameters);
        let suggestion = shorter(ask, longest, &supply, parameters);
        let mut message = format!(
            "spec.serving.contextTokens is {}, and the model was made for at most {longest}: lower it",
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
            ground: Ground::Never,
            reason: "ContextTooLong".to_owned(),
            message,
            admission: Some(Box::new(admission)),
        })
    }

    /// What runs has its promise, whoever is looked at first. Returns whether each can be kept beside the others.
    fn judge_running(&mut self) -> BTreeMap<ReplicaKey, AdmissionStatus> {
        // It has its memory already: what other programs leave free is no question any more.
        let memory = NodeMemory {
            available: self.observed.memory.allocatable,
            ..self.observed.memory
        };
        // The same of what it may store.
        let disk_limit = self.observed.disk_limit.max(self.disk);
        let judge = |ask: &Ask<'_>, held: &[Held], commitments: &[Commitment]| {
            let supply = Supply {
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
                let Wanted { replica, model } = self.desired.replicas.get(key)?;
                let facts = model.as_ref().ok()?;
                let ask = ask(replica, facts, demand(replica, facts));
                Some((key, ask, facts.max_context_tokens, seen.held))
            })
            .collect();
        let promised: Vec<_> = running
            .iter()
            .map(|(key, ask, ..)| judge(ask, &[], &[]).commitment(key.to_string(), ask.objectives))
            .collect();
        let mut standing = BTreeMap::new();
        for (index, (key, ask, model_tokens, _)) in running.iter().enumerate() {
            let (mut held, mut others) = (Vec::new(), promised.clone());
            held.extend(running.iter().map(|(.., held)| *held));
            held.remove(index);
            others.remove(index);
            let verdict = judge(ask, &held, &others);
            let status = AdmissionStatus {
                admitted: true,
                ..admission_status(ask, *model_tokens, &verdict, &[])
            };
            standing.insert((*key).clone(), status);
        }
        self.commitments = promised;
        standing
    }
}

/// Context and streams that are reserved.
pub fn demand(replica: &DesiredReplica, facts: &ServableModel) -> Demand {
    Demand {
        context_tokens: facts.context_tokens(replica.spec.context_tokens),
        max_concurrency: replica.spec.max_concurrency,
    }
}

fn ask<'a>(replica: &DesiredReplica, facts: &'a ServableModel, demand: Demand) -> Ask<'a> {
    Ask {
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

fn ground(refusal: &admission::Refusal) -> Ground {
    match refusal {
        admission::Refusal::Memory(MemoryRefusal::NeverFits { .. })
        | admission::Refusal::TooSlow { .. }
        | admission::Refusal::FirstTokenTooLate { .. } => Ground::Never,
        admission::Refusal::Memory(MemoryRefusal::Reserved { .. } | MemoryRefusal::NotFreeNow { .. })
        | admission::Refusal::Disk { .. }
        | admission::Refusal::SpeedUnknown
        | admission::Refusal::Bandwidth { .. } => Ground::NotNow,
    }
}

fn refuse(ground: Ground, reason: &str, message: String) -> Step {
    Step::Refuse(Refusal {
        ground,
        reason: reason.to_owned(),
        message,
        admission: None,
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
