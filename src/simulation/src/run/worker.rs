//! Life cycle of a worker process: load, warm-up, requests with the predicted speed, drain, exit.

use std::time::Duration;

use jiff::Timestamp;

use crate::random;
use crate::run::Run;
use crate::world::event::WorkerStep;
use crate::world::gateway_state::DropReason;
use crate::world::worker::{Worker, WorkerExit};
use rooflet_agent::replica::{ReplicaKey, rfc3339};
use rooflet_agent::sync::StopCause;
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::WorkerPhase;
use rooflet_base::clock::since;

/// Time of the process start and of the first forward pass.
const WARM_UP: Duration = Duration::from_secs(2);

/// Time from the last answer to the exit of the process.
const EXIT_TIME: Duration = Duration::from_millis(100);

/// Period in which the agent polls starting workers. It detects an exit immediately.
const POLL_PERIOD: Duration = Duration::from_millis(200);

impl Run<'_> {
    pub(crate) fn worker_starts(&mut self, node: usize, key: &ReplicaKey, worker: Worker) {
        let (process, weights) = (worker.process, worker.model.served.cost.weights.resident());
        let state = &mut self.world.nodes[node];
        let load = random::seconds(
            weights.0 as f64 / self.world.scenario.fleet.disk_bytes_per_second * state.slow_disk,
        );
        // A process that still runs under this key is replaced. `check_start` has reported it.
        let old = state.workers.insert(key.clone(), worker);
        for request in old
            .into_iter()
            .flat_map(|old| old.running.into_values().chain(old.waiting))
        {
            self.drop_request(request, DropReason::WorkerLost);
        }
        self.world
            .step_after(load, node, key, process, WorkerStep::Loaded);
        self.rules.ledger.starts += 1;
        self.rules.ledger.log(self.world.now, || {
            format!("agent {node}: worker {process} of {key} starts")
        });
    }

    pub(crate) fn worker_step(&mut self, node: usize, key: &ReplicaKey, process: u64, step: WorkerStep) {
        let ready_at = self.world.nodes[node].local_time(self.world.clock());
        let Some(worker) = self.world.worker(node, key, process) else {
            return;
        };
        match step {
            WorkerStep::Loaded => {
                worker.phase = WorkerPhase::Warming;
                worker.resident = worker.model.served.cost.weights.resident().min(worker.reserved);
                self.world
                    .step_after(WARM_UP, node, key, process, WorkerStep::Warm);
                self.world.wake_agent_after(node, POLL_PERIOD);
            }
            WorkerStep::Warm => {
                worker.phase = WorkerPhase::Ready;
                worker.ready_since = Some(ready_at);
                self.world.wake_agent_after(node, POLL_PERIOD);
            }
            WorkerStep::Terminate => {
                worker.terminating = true;
                if worker.running.is_empty() && worker.waiting.is_empty() {
                    self.world
                        .step_after(EXIT_TIME, node, key, process, WorkerStep::Drained);
                }
            }
            WorkerStep::GraceOver => self.worker_exits(node, key, WorkerExit::GraceOver),
            WorkerStep::Drained => self.worker_exits(node, key, WorkerExit::Drained),
        }
    }

    /// Ends a process and drops its requests.
    pub(crate) fn worker_exits(&mut self, node: usize, key: &ReplicaKey, exit: WorkerExit) {
        let Some(worker) = self.world.nodes[node].workers.remove(key) else {
            return;
        };
        self.rules.ledger.log(self.world.now, || {
            format!("agent {node}: worker {} of {key} exits: {exit:?}", worker.process)
        });
        let lost: Vec<_> = worker.running.into_values().chain(worker.waiting).collect();
        for request in lost {
            let reason = match exit {
                WorkerExit::Drained | WorkerExit::GraceOver => DropReason::CutShort,
                WorkerExit::Crashed | WorkerExit::PowerLost => DropReason::WorkerLost,
            };
            if reason == DropReason::CutShort {
                let stop = (worker.stopping, worker.longest_answer);
                self.rules
                    .check_cut_short(&self.world, node, key, request.arrived, stop);
            }
            self.drop_request(request, reason);
        }
        if self.world.nodes[node].agent_runs() {
            let now = self.world.nodes[node].local_time(self.world.clock());
            let requested = worker
                .stopping
                .is_some_and(|cause| cause != StopCause::Unresponsive);
            self.note_exit(node, key, requested, worker.ready_since, now);
            self.world.wake_agent(node);
        }
    }

    /// Updates the agent's record of a worker that exited under supervision.
    fn note_exit(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        requested: bool,
        ready_since: Option<Timestamp>,
        now: Timestamp,
    ) {
        let failed_at = self.world.now;
        let Some(record) = self.world.nodes[node].records.get_mut(key) else {
            return;
        };
        record.worker = None;
        if !requested {
            let termination = Termination {
                exit_code: None,
                signal: Some(9),
                reason: "Killed".to_owned(),
                message: "the worker ended with signal 9".to_owned(),
                finished_at: rfc3339(now),
            };
            record.fail(termination, ready_since.map(|then| since(now, then)), now);
            let failures = record.failures;
            self.rules
                .worker_failures
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
            self.world.start_request(node, key, next);
        }
        self.request_completed(&request);
        if done {
            self.world
                .step_after(EXIT_TIME, node, key, process, WorkerStep::Drained);
        }
    }

    pub(crate) fn worker_queue_timeout(&mut self, node: usize, key: &ReplicaKey, process: u64, request: u64) {
        let Some(worker) = self.world.worker(node, key, process) else {
            return;
        };
        if let Some(at) = worker.waiting.iter().position(|waiting| waiting.id == request)
            && let Some(request) = worker.waiting.remove(at)
        {
            self.drop_request(request, DropReason::GaveUp);
        }
    }
}
