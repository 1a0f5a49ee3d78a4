//! One worker process: it loads, warms up, answers requests in the time that the roofline predicts,
//! drains and ends.

use std::time::Duration;

use jiff::Timestamp;

use crate::random;
use crate::run::Run;
use crate::world::event::WorkerStep;
use crate::world::front::Loss;
use crate::world::worker::{End, Worker};
use rooflet_agent::replica::{ReplicaKey, rfc3339};
use rooflet_agent::sync::StopCause;
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::WorkerPhase;
use rooflet_base::clock::since;

/// One forward pass and the start of the process.
const WARM_UP: Duration = Duration::from_secs(2);

/// From the last answer to the end of the process.
const ENDS: Duration = Duration::from_millis(100);

/// The agent asks its workers this often while they start, and hears of their end at once.
const ASKED: Duration = Duration::from_millis(200);

impl Run<'_> {
    pub(crate) fn worker_starts(&mut self, node: usize, key: &ReplicaKey, worker: Worker) {
        let (process, weights) = (worker.process, worker.model.served.cost.weights.resident());
        let state = &mut self.world.nodes[node];
        let load = random::seconds(
            weights.0 as f64 / self.world.scenario.fleet.disk_bytes_per_second * state.slow_disk,
        );
        // A process that is still there under this key goes on; the rules have been told.
        let old = state.workers.insert(key.clone(), worker);
        for request in old
            .into_iter()
            .flat_map(|old| old.running.into_values().chain(old.waiting))
        {
            self.lose(request, Loss::WorkerLost);
        }
        self.world
            .step_after(load, node, key, process, WorkerStep::Loaded);
        self.rules.ledger.starts += 1;
        self.rules.ledger.tell(self.world.now, || {
            format!("agent {node}: worker {process} of {key} starts")
        });
    }

    pub(crate) fn worker_step(&mut self, node: usize, key: &ReplicaKey, process: u64, step: WorkerStep) {
        let ready_at = self.world.nodes[node].shown(self.world.clock());
        let Some(worker) = self.world.worker(node, key, process) else {
            return;
        };
        match step {
            WorkerStep::Loaded => {
                worker.phase = WorkerPhase::Warming;
                worker.resident = worker.model.served.cost.weights.resident().min(worker.reserved);
                self.world
                    .step_after(WARM_UP, node, key, process, WorkerStep::Warm);
                self.world.wake_agent_after(node, ASKED);
            }
            WorkerStep::Warm => {
                worker.phase = WorkerPhase::Ready;
                worker.ready_since = Some(ready_at);
                self.world.wake_agent_after(node, ASKED);
            }
            WorkerStep::Terminate => {
                worker.terminating = true;
                if worker.running.is_empty() && worker.waiting.is_empty() {
                    self.world
                        .step_after(ENDS, node, key, process, WorkerStep::Drained);
                }
            }
            WorkerStep::GraceOver => self.worker_ends(node, key, End::GraceOver),
            WorkerStep::Drained => self.worker_ends(node, key, End::Drained),
        }
    }

    /// Its process is gone, and so is whatever it was answering.
    pub(crate) fn worker_ends(&mut self, node: usize, key: &ReplicaKey, end: End) {
        let Some(worker) = self.world.nodes[node].workers.remove(key) else {
            return;
        };
        self.rules.ledger.tell(self.world.now, || {
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
        if self.world.nodes[node].agent_runs() {
            let now = self.world.nodes[node].shown(self.world.clock());
            let asked = worker
                .stopping
                .is_some_and(|cause| cause != StopCause::Unresponsive);
            self.note_end(node, key, asked, worker.ready_since, now);
            self.world.wake_agent(node);
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
        let failed_at = self.world.now;
        let Some(record) = self.world.nodes[node].records.get_mut(key) else {
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

    pub(crate) fn finish(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let Some(worker) = self.world.worker(node, key, process) else {
            return;
        };
        let Some(request) = worker.running.remove(&request) else {
            return;
        };
        worker.completed += 1;
        let next = worker.waiting.pop_front();
        let done = worker.terminating && worker.running.is_empty() && next.is_none();
        if let Some(next) = next {
            self.world.begin_answer(node, key, next);
        }
        self.request_answered(&request);
        if done {
            self.world
                .step_after(ENDS, node, key, process, WorkerStep::Drained);
        }
    }

    pub(crate) fn impatient(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let Some(worker) = self.world.worker(node, key, process) else {
            return;
        };
        if let Some(at) = worker.waiting.iter().position(|waiting| waiting.id == request)
            && let Some(request) = worker.waiting.remove(at)
        {
            self.lose(request, Loss::GaveUp);
        }
    }
}
