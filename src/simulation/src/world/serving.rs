//! Requests in workers: speed according to the roofline, and queues.

use std::time::Duration;

use crate::random;
use crate::scenario::planted::Bug;
use crate::world::World;
use crate::world::event::{Event, WorkerStep};
use crate::world::gateway_state::Request;
use crate::world::worker::Worker;
use rooflet_agent::models::ServableModel;
use rooflet_agent::replica::ReplicaKey;
use rooflet_agent::sync::StopCause;
use rooflet_agent::workers::{DRAIN_NOTICE, GRACE, GRACE_MARGIN};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{ModelReplica, ModelSource};
use rooflet_roofline::published::{Load, speed_under_load};

/// Granularity of the lengths in predictions, in tokens.
const LENGTH_STEP: u32 = 256;

/// Number of times to first token that a worker keeps.
const FIRST_TOKEN_SAMPLES: usize = 64;

/// Maximum number of waiting requests in a worker.
const MAX_QUEUED: usize = 64;

impl World<'_> {
    /// Returns true if the object is Ready and a worker accepts requests.
    pub(crate) fn is_ready_and_running(&self, replica: &ModelReplica) -> bool {
        let is_ready = replica
            .status
            .as_ref()
            .is_some_and(|status| is_true(&status.conditions, condition_type::READY));
        let index = replica
            .spec
            .node_name
            .as_ref()
            .and_then(|node| self.by_name.get(node));
        let key = ReplicaKey::of(replica);
        is_ready && index.is_some_and(|index| self.accepts_request(*index, &key))
    }

    pub(crate) fn model_of(&self, node: usize, source: &str) -> Option<ServableModel> {
        match source.parse() {
            Ok(ModelSource::Local(name)) => self.nodes[node].machine.class.models.get(&name).cloned(),
            Ok(ModelSource::File(_) | ModelSource::Hub(_)) | Err(_) => None,
        }
    }

    pub(crate) fn step_after(
        &mut self,
        wait: Duration,
        node: usize,
        key: &ReplicaKey,
        process: u64,
        step: WorkerStep,
    ) {
        let key = key.clone();
        self.after(
            wait,
            Event::Worker {
                node,
                key,
                process,
                step,
            },
        );
    }

    pub(crate) fn worker(&mut self, node: usize, key: &ReplicaKey, process: u64) -> Option<&mut Worker> {
        let worker = self.nodes[node].workers.get_mut(key)?;
        (worker.process == process).then_some(worker)
    }

    pub(crate) fn stop_worker(&mut self, node: usize, key: &ReplicaKey, cause: StopCause) {
        let kill = self.planted.has(Bug::KilledInsteadOfDrained);
        let Some(worker) = self.nodes[node].workers.get_mut(key) else {
            return;
        };
        worker.stopping = Some(cause);
        let (process, longest_answer) = (worker.process, worker.longest_answer);
        let notice = match worker.ready_since {
            Some(_) if !kill => DRAIN_NOTICE,
            Some(_) | None => Duration::ZERO,
        };
        let grace = match cause {
            _ if kill => Duration::ZERO,
            StopCause::Deleted | StopCause::Replaced => longest_answer + GRACE_MARGIN,
            StopCause::AgentStopping | StopCause::MemoryPressure | StopCause::Unresponsive => {
                GRACE + GRACE_MARGIN
            }
        };
        self.step_after(notice, node, key, process, WorkerStep::Terminate);
        self.step_after(notice + grace, node, key, process, WorkerStep::GraceOver);
    }

    /// Shortens the grace period of stopping workers to that of stops for memory pressure.
    pub(crate) fn shorten_worker_grace(&mut self, node: usize) {
        let workers = self.nodes[node].workers.iter_mut();
        let slow = workers.filter(|(_, worker)| worker.stopping.is_some() && worker.longest_answer > GRACE);
        let hurried: Vec<_> = slow
            .map(|(key, worker)| {
                worker.longest_answer = GRACE;
                (key.clone(), worker.process)
            })
            .collect();
        for (key, process) in hurried {
            self.step_after(GRACE + GRACE_MARGIN, node, &key, process, WorkerStep::GraceOver);
        }
    }

    /// Updates the records of workers that exited while the agent was not running.
    pub(crate) fn record_dead_workers(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        for (key, record) in &mut state.records {
            if record.worker.is_some() && !state.workers.contains_key(key) {
                record.worker = None;
                record.ended_by_itself = true;
            }
        }
    }

    /// Starts a request in a worker and schedules its first token and its end.
    pub(crate) fn start_request(&mut self, node: usize, key: &ReplicaKey, request: Request) {
        let state = &self.nodes[node];
        let busy = state
            .workers
            .values()
            .filter(|worker| !worker.running.is_empty())
            .count();
        let Some(worker) = state.workers.get(key) else {
            return;
        };
        let sharers = (busy + usize::from(worker.running.is_empty())).max(1) as f64;
        let streams = worker.running.len() as u32 + 1;
        let model = worker.model.path.file_name().unwrap_or_default();
        let slower = sharers * state.thermal * self.scenario.slower(model);
        let (rate, prefill) = self.speed(node, key, streams, &request);
        let first = random::seconds(prefill * slower);
        let whole = first + random::seconds(f64::from(request.answer_tokens) / rate * slower);
        let Some(worker) = self.nodes[node].workers.get_mut(key) else {
            return;
        };
        let (process, id) = (worker.process, request.id);
        worker.running.insert(id, request);
        let event = |key: &ReplicaKey| (node, key.clone(), process, id);
        let (node, key, process, request) = event(key);
        self.after(
            first,
            Event::FirstToken {
                node,
                key: key.clone(),
                process,
                request,
            },
        );
        self.after(
            whole,
            Event::Finish {
                node,
                key,
                process,
                request,
            },
        );
    }

    /// Returns the predicted medians of tokens per second of one stream and of seconds to the first
    /// token, with `streams` concurrent streams.
    fn speed(&mut self, node: usize, key: &ReplicaKey, streams: u32, request: &Request) -> (f64, f64) {
        let class = &self.nodes[node].machine.class;
        let Some(worker) = self.nodes[node].workers.get(key) else {
            return (1.0, 0.0);
        };
        let stepped = |tokens: u32| tokens.max(1).div_ceil(LENGTH_STEP) * LENGTH_STEP;
        let prompt = stepped(request.prompt_tokens);
        let context = stepped(request.prompt_tokens + request.answer_tokens / 2);
        let known = (
            class.name.clone(),
            worker.model.fingerprint,
            worker.model.served.kv_bits.0.to_bits(),
            streams,
            prompt,
            context,
        );
        if let Some(speed) = self.gateway.speeds.get(&known) {
            return *speed;
        }
        let load = Load {
            streams: f64::from(streams),
            prompt_tokens: f64::from(prompt),
            context_tokens: f64::from(context),
        };
        let predicted = speed_under_load(load, class.hardware, &worker.model.served);
        let speed = (predicted.decode.p50, predicted.first_token.p50);
        self.gateway.speeds.insert(known, speed);
        speed
    }

    pub(crate) fn accepts_request(&self, node: usize, key: &ReplicaKey) -> bool {
        let worker = self.nodes[node].workers.get(key);
        worker.is_some_and(|worker| worker.accepts() && worker.waiting.len() < MAX_QUEUED)
    }

    /// Starts a request, or queues it until a stream is free.
    pub(crate) fn accept_request(&mut self, node: usize, key: &ReplicaKey, request: Request) {
        let Some(worker) = self.nodes[node].workers.get_mut(key) else {
            return;
        };
        if worker.running.len() < worker.streams {
            self.start_request(node, key, request);
            return;
        }
        let (process, id) = (worker.process, request.id);
        let patience = self.scenario.demand[request.demand].patience;
        worker.waiting.push_back(request);
        let key = key.clone();
        self.after(
            patience,
            Event::WorkerQueueTimeout {
                node,
                key,
                process,
                request: id,
            },
        );
    }

    pub(crate) fn first_token(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let now = self.now;
        let worker = self.worker(node, key, process);
        let Some(request) = worker.and_then(|worker| worker.running.get_mut(&request)) else {
            return;
        };
        request.first_token = Some(now);
        let (waited, assignment) = (now.saturating_sub(request.arrived), request.assignment.clone());
        if let Some(worker) = self.worker(node, key, process) {
            worker.first_tokens.push_back(waited.as_secs_f64());
            if worker.first_tokens.len() > FIRST_TOKEN_SAMPLES {
                worker.first_tokens.pop_front();
            }
        }
        if let Some(assignment) = assignment {
            self.record_first_token(&assignment);
        }
    }
}
