//! One worker process: it loads, warms up, answers requests in the time that the roofline predicts, drains and ends.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::event::{Event, WorkerStep};
use super::gateway::{Loss, Request};
use super::planted::Bug;
use super::random;
use super::run::Run;
use rooflet_agent::models::ServableModel;
use rooflet_agent::replica::{ReplicaKey, rfc3339};
use rooflet_agent::sync::{ANSWER_GRACE, Start, StopCause};
use rooflet_agent::workers::{DRAIN_NOTICE, GRACE, GRACE_MARGIN};
use rooflet_api::v1alpha1::{ModelSource, Termination};
use rooflet_api::wire::{
    EngineInfo, EngineMemory, MeasuredSpeed, ModelInfo, RequestCounts, WorkerPhase, WorkerStatus,
};
use rooflet_base::clock::since;
use rooflet_base::quantile::{nearest, sorted};
use rooflet_base::units::Bytes;
use rooflet_controller::FirstToken;
use rooflet_roofline::published::{Load, speed_under};

/// One forward pass and the start of the process.
const WARM_UP: Duration = Duration::from_secs(2);
/// From the last answer to the end of the process.
const ENDS: Duration = Duration::from_millis(100);
/// The agent asks its workers this often while they start, and hears of their end at once.
const ASKED: Duration = Duration::from_millis(200);
/// Lengths that differ by less are predicted as one, in tokens.
const LENGTH_STEP: u32 = 256;
/// Requests whose first token is remembered.
const MEASURED: usize = 64;
/// Requests that wait in one worker at most.
const QUEUE: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Worker {
    /// Never the same for two processes.
    pub(super) process: u64,
    pub(super) uid: String,
    pub(super) phase: WorkerPhase,
    pub(super) ready_since: Option<Timestamp>,
    pub(super) stopping: Option<StopCause>,
    terminating: bool,
    pub(super) reserved: Bytes,
    pub(super) resident: Bytes,
    pub(super) model: ServableModel,
    context_tokens: u32,
    /// What it may finish its requests in when its replica goes.
    pub(super) longest_answer: Duration,
    streams: usize,
    pub(super) running: BTreeMap<u64, Request>,
    pub(super) waiting: VecDeque<Request>,
    /// Requests that it has answered, and seconds to the first token of the last ones.
    pub(super) completed: u64,
    first_tokens: VecDeque<f64>,
}

impl Worker {
    pub(super) fn new(process: u64, uid: &str, start: &Start, streams: u32, model: ServableModel) -> Self {
        Self {
            process,
            uid: uid.to_owned(),
            phase: WorkerPhase::Loading,
            ready_since: None,
            stopping: None,
            terminating: false,
            reserved: start.reservation.total(),
            resident: Bytes::ZERO,
            model,
            context_tokens: start.context_tokens,
            longest_answer: start.longest_answer().min(ANSWER_GRACE).max(GRACE),
            streams: streams as usize,
            running: BTreeMap::new(),
            waiting: VecDeque::new(),
            completed: 0,
            first_tokens: VecDeque::new(),
        }
    }

    /// Median of the last requests.
    pub(super) fn first_token(&self) -> Option<FirstToken> {
        let seconds = sorted(self.first_tokens.iter().copied());
        Some(FirstToken {
            seconds: nearest(&seconds, 0.5)?,
            requests: seconds.len() as u64,
        })
    }

    /// As `GET /status` answers. It has served nobody's requests: nothing of it is a measurement.
    pub(super) fn status(&self) -> WorkerStatus {
        let cost = &self.model.served.cost;
        WorkerStatus {
            phase: self.phase,
            engine: EngineInfo {
                name: "simulated".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                device: "metal".to_owned(),
            },
            model: Some(ModelInfo {
                architecture: self.model.architecture.to_owned(),
                parameters: 0,
                weights_bytes: cost.weights.resident().0,
                kv_bytes_per_token: 0,
                context_tokens: u64::from(self.context_tokens),
            }),
            memory: EngineMemory {
                active_bytes: self.resident.0,
                peak_bytes: self.resident.0,
                cache_bytes: 0,
            },
            requests: RequestCounts::default(),
            measured: MeasuredSpeed::default(),
        }
    }

    pub(super) fn accepts(&self) -> bool {
        self.phase == WorkerPhase::Ready && !self.terminating
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As asked, having answered everything.
    Drained,
    /// As asked, with its grace over.
    GraceOver,
    Crashed,
    PowerLost,
}

impl Run<'_> {
    pub(super) fn model_of(&self, node: usize, source: &str) -> Option<ServableModel> {
        match source.parse() {
            Ok(ModelSource::Local(name)) => self.nodes[node].machine.class.models.get(&name).cloned(),
            Ok(ModelSource::File(_) | ModelSource::Hub(_)) | Err(_) => None,
        }
    }

    pub(super) fn worker_starts(&mut self, node: usize, key: &ReplicaKey, worker: Worker) {
        let (process, weights) = (worker.process, worker.model.served.cost.weights.resident());
        let state = &mut self.nodes[node];
        let load =
            random::seconds(weights.0 as f64 / self.scenario.fleet.disk_bytes_per_second * state.slow_disk);
        // A process that is still there under this key goes on; the rules have been told.
        let old = state.workers.insert(key.clone(), worker);
        for request in old
            .into_iter()
            .flat_map(|old| old.running.into_values().chain(old.waiting))
        {
            self.lose(request, Loss::WorkerLost);
        }
        self.step_after(load, node, key, process, WorkerStep::Loaded);
        self.ledger.starts += 1;
        self.ledger.tell(self.now, || {
            format!("agent {node}: worker {process} of {key} starts")
        });
    }

    fn step_after(&mut self, wait: Duration, node: usize, key: &ReplicaKey, process: u64, step: WorkerStep) {
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

    pub(super) fn worker(&mut self, node: usize, key: &ReplicaKey, process: u64) -> Option<&mut Worker> {
        let worker = self.nodes[node].workers.get_mut(key)?;
        (worker.process == process).then_some(worker)
    }

    pub(super) fn worker_step(&mut self, node: usize, key: &ReplicaKey, process: u64, step: WorkerStep) {
        let ready_at = self.nodes[node].shown(self.clock());
        let Some(worker) = self.worker(node, key, process) else {
            return;
        };
        match step {
            WorkerStep::Loaded => {
                worker.phase = WorkerPhase::Warming;
                worker.resident = worker.model.served.cost.weights.resident().min(worker.reserved);
                self.step_after(WARM_UP, node, key, process, WorkerStep::Warm);
                self.wake_agent_after(node, ASKED);
            }
            WorkerStep::Warm => {
                worker.phase = WorkerPhase::Ready;
                worker.ready_since = Some(ready_at);
                self.wake_agent_after(node, ASKED);
            }
            WorkerStep::Terminate => {
                worker.terminating = true;
                if worker.running.is_empty() && worker.waiting.is_empty() {
                    self.step_after(ENDS, node, key, process, WorkerStep::Drained);
                }
            }
            WorkerStep::GraceOver => self.worker_ends(node, key, End::GraceOver),
            WorkerStep::Drained => self.worker_ends(node, key, End::Drained),
        }
    }

    pub(super) fn stop_worker(&mut self, node: usize, key: &ReplicaKey, cause: StopCause) {
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

    /// What stops gets no more time than what gives way.
    pub(super) fn hurry_workers(&mut self, node: usize) {
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

    /// Its process is gone, and so is whatever it was answering.
    pub(super) fn worker_ends(&mut self, node: usize, key: &ReplicaKey, end: End) {
        let Some(worker) = self.nodes[node].workers.remove(key) else {
            return;
        };
        self.ledger.tell(self.now, || {
            format!("agent {node}: worker {} of {key} ends: {end:?}", worker.process)
        });
        let lost: Vec<_> = worker.running.into_values().chain(worker.waiting).collect();
        for request in lost {
            let loss = match end {
                End::Drained | End::GraceOver => Loss::CutShort,
                End::Crashed | End::PowerLost => Loss::WorkerLost,
            };
            if loss == Loss::CutShort {
                self.check_cut_short(node, key, request.arrived, worker.stopping, worker.longest_answer);
            }
            self.lose(request, loss);
        }
        if self.nodes[node].agent_runs() {
            let now = self.nodes[node].shown(self.clock());
            let asked = worker
                .stopping
                .is_some_and(|cause| cause != StopCause::Unresponsive);
            self.note_end(node, key, asked, worker.ready_since, now);
            self.wake_agent(node);
        }
    }

    /// What an agent writes down of the end of a worker that it watched.
    fn note_end(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        asked: bool,
        ready_since: Option<Timestamp>,
        now: Timestamp,
    ) {
        let failed_at = self.now;
        let Some(record) = self.nodes[node].records.get_mut(key) else {
            return;
        };
        record.worker = None;
        if !asked {
            let end = Termination {
                exit_code: None,
                signal: Some(9),
                reason: "Killed".to_owned(),
                message: "the worker ended with signal 9".to_owned(),
                finished_at: rfc3339(now),
            };
            record.fail(end, ready_since.map(|then| since(now, then)), now);
            let failures = record.failures;
            self.rules
                .failed
                .insert((node, key.clone()), (failed_at, failures));
        }
    }

    /// An agent that comes back finds workers gone that it had left running.
    pub(super) fn take_note_of_the_dead(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        for (key, record) in &mut state.records {
            if record.worker.is_some() && !state.workers.contains_key(key) {
                record.worker = None;
                record.ended_by_itself = true;
            }
        }
    }

    /// The worker begins to answer a request, and how long that takes is known.
    pub(super) fn begin_answer(&mut self, node: usize, key: &ReplicaKey, request: Request) {
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

    /// Tokens per second of one stream among so many, and seconds to the first token; the predicted medians.
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
        if let Some(speed) = self.front.speeds.get(&known) {
            return *speed;
        }
        let load = Load {
            streams: f64::from(streams),
            prompt_tokens: f64::from(prompt),
            context_tokens: f64::from(context),
        };
        let predicted = speed_under(load, class.hardware, &worker.model.served);
        let speed = (predicted.decode.p50, predicted.first_token.p50);
        self.front.speeds.insert(known, speed);
        speed
    }

    pub(super) fn takes(&self, node: usize, key: &ReplicaKey) -> bool {
        let worker = self.nodes[node].workers.get(key);
        worker.is_some_and(|worker| worker.accepts() && worker.waiting.len() < QUEUE)
    }

    /// Begins at once, or waits for a stream to become free.
    pub(super) fn take_in(&mut self, node: usize, key: &ReplicaKey, request: Request) {
        let Some(worker) = self.nodes[node].workers.get_mut(key) else {
            return;
        };
        if worker.running.len() < worker.streams {
            self.begin_answer(node, key, request);
            return;
        }
        let (process, id) = (worker.process, request.id);
        let patience = self.scenario.demand[request.demand].patience;
        worker.waiting.push_back(request);
        let key = key.clone();
        self.after(
            patience,
            Event::Impatient {
                node,
                key,
                process,
                request: id,
            },
        );
    }

    pub(super) fn first_token(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let now = self.now;
        let worker = self.worker(node, key, process);
        let Some(request) = worker.and_then(|worker| worker.running.get_mut(&request)) else {
            return;
        };
        request.first_token = Some(now);
        let (waited, given) = (now.saturating_sub(request.arrived), request.given.clone());
        if let Some(worker) = self.worker(node, key, process) {
            worker.first_tokens.push_back(waited.as_secs_f64());
            if worker.first_tokens.len() > MEASURED {
                worker.first_tokens.pop_front();
            }
        }
        if let Some(given) = given {
            self.gateway_saw_first_token(&given);
        }
    }

    pub(super) fn finish(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let Some(worker) = self.worker(node, key, process) else {
            return;
        };
        let Some(request) = worker.running.remove(&request) else {
            return;
        };
        worker.completed += 1;
        let next = worker.waiting.pop_front();
        let done = worker.terminating && worker.running.is_empty() && next.is_none();
        if let Some(next) = next {
            self.begin_answer(node, key, next);
        }
        self.request_answered(&request);
        if done {
            self.step_after(ENDS, node, key, process, WorkerStep::Drained);
        }
    }

    pub(super) fn impatient(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let Some(worker) = self.worker(node, key, process) else {
            return;
        };
        if let Some(at) = worker.waiting.iter().position(|waiting| waiting.id == request)
            && let Some(request) = worker.waiting.remove(at)
        {
            self.lose(request, Loss::GaveUp);
        }
    }
}
