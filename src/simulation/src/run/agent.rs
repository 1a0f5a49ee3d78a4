//! Model of an agent: processes, records on disk, sync passes and reports. The sync plan and the
//! statuses are the real ones.

use std::time::Duration;

use jiff::Timestamp;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Actor, Event, Reader};
use crate::world::view::View;
use crate::world::worker::Worker;
use crate::world::writer::Writer;
use rooflet_agent::Reports;
use rooflet_agent::node::pressure::MemoryWatch;
use rooflet_agent::replica::{DesiredReplica, ReplicaKey};
use rooflet_agent::sync::{Start, Step, StopCause, SyncPlan};
use rooflet_agent::workers::first_record;
use rooflet_base::clock::since;

/// Delay before an agent repeats a failed list.
const RELIST_DELAY: Duration = Duration::from_secs(1);

impl Run<'_> {
    pub(crate) fn start_agent(&mut self, node: usize) {
        let state = &mut self.world.nodes[node];
        state.incarnation += 1;
        state.view = View::default();
        state.synced = false;
        state.last_statuses.clear();
        state.reports = Reports::default();
        state.memory_watch =
            MemoryWatch::resume(state.records.values().any(|record| record.stopped_for_memory));
        state.replica_writer = Writer::default();
        state.node_writer = Writer::default();
        state.sync_due = None;
        self.connection_changed(node);
        if self.world.planted.has(Bug::WorkersNotAdopted) {
            for record in self.world.nodes[node].records.values_mut() {
                record.worker = None;
            }
        }
        let incarnation = self.world.nodes[node].incarnation;
        if self.world.nodes[node].agent_runs() {
            self.world.record_dead_workers(node);
            let wait = self.network.latency();
            self.world.after(
                wait,
                Event::List {
                    reader: Reader::Agent(node),
                    incarnation,
                },
            );
            self.world.wake_agent(node);
        }
    }

    pub(crate) fn agent_lists(&mut self, node: usize, incarnation: u32) {
        if self.world.nodes[node].incarnation != incarnation {
            return;
        }
        if !self.world.nodes[node].is_connected() {
            self.world.after(
                RELIST_DELAY,
                Event::List {
                    reader: Reader::Agent(node),
                    incarnation,
                },
            );
            return;
        }
        let objects = self.listed(Reader::Agent(node));
        let state = &mut self.world.nodes[node];
        state.view.replace(objects);
        state.synced = true;
        self.world.wake_agent(node);
    }

    /// Applies a change of the connection between the agent and the API server.
    pub(crate) fn connection_changed(&mut self, node: usize) {
        let now = self.world.now;
        let state = &mut self.world.nodes[node];
        if state.is_connected() {
            if state.unreachable_since.take().is_some() {
                state.reachable_again = Some(now);
            }
            if state.renewing_since.is_none() && state.view.node(&state.machine.name).is_some() {
                state.renewing_since = Some(now);
            }
            self.deliver_all(Reader::Agent(node));
            self.world.wake_agent(node);
        } else {
            state.unreachable_since.get_or_insert(now);
            if state.renewing_since.is_some() {
                state.last_renewal = state.last_renewal_at(now);
                state.renewing_since = None;
                // The simulation omits the periodic passes of the node lifecycle while all nodes
                // renew their Leases.
                self.world.wake_reconciler(
                    crate::world::event::Reconciler::NodeLifecycle,
                    Duration::from_secs(1),
                );
            }
        }
    }

    pub(crate) fn sync(&mut self, node: usize, incarnation: u32) {
        let state = &mut self.world.nodes[node];
        if state.incarnation != incarnation || state.sync_due != Some(self.world.now) || !state.agent_runs() {
            return;
        }
        state.sync_due = None;
        let now = self.world.nodes[node].local_time(self.world.clock());
        let instant = self.world.origin + self.world.now;
        let state = &mut self.world.nodes[node];
        let memory = state.memory();
        let pressure = state.memory_watch.observe(&memory, instant);
        let waits = [
            state.memory_watch.requeue_after(instant),
            state.memory_watch.headroom_for(instant),
        ];
        for wait in waits.into_iter().flatten() {
            self.world
                .wake_agent_after(node, wait.max(Duration::from_millis(1)));
        }
        let state = &self.world.nodes[node];
        let time_of_day = state.time_of_day(self.world.clock());
        if let Some(wait) = state.machine.class.quiet_hours.change_after(time_of_day) {
            self.world.wake_agent_after(node, wait);
        }
        let observed = self.world.observe(node, pressure);
        let desired = self.world.desired(node);
        let plan = SyncPlan::new(&desired, &observed, now);
        for (key, step) in &plan.steps {
            match step {
                Step::Start(start) => {
                    if let Some(resolved) = desired.replicas.get(key) {
                        self.start_worker(node, key, &resolved.replica, start, now);
                    }
                }
                Step::Stop(cause) => {
                    self.rules.check_stop(&self.world, node, key, *cause);
                    if *cause == StopCause::MemoryPressure
                        && let Some(record) = self.world.nodes[node].records.get_mut(key)
                    {
                        record.stopped_for_memory = true;
                    }
                    self.world.stop_worker(node, key, *cause);
                }
                Step::Release => {
                    let state = &mut self.world.nodes[node];
                    if !state.workers.contains_key(key) {
                        state.records.remove(key);
                    }
                }
                // Models of simulated machines are local.
                Step::Pull(_) | Step::Keep | Step::AwaitStop | Step::Wait(_) | Step::Refuse(_) => {}
            }
        }
        if plan.shorten_grace {
            self.world.shorten_worker_grace(node);
        }
        self.rules.check_node(&self.world, node);
        self.world.make_reports(node, &desired, &plan, &observed, now);
        if let Some(at) = plan.next_deadline() {
            self.world
                .wake_agent_after(node, since(at, now).max(Duration::from_millis(1)));
        }
        for actor in [Actor::Replicas(node), Actor::Node(node)] {
            self.wake_reporter(actor);
        }
    }

    fn start_worker(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        start: &Start,
        now: Timestamp,
    ) {
        self.rules.check_start(&self.world, node, key, &replica.uid);
        let process = self.world.next_process();
        let state = &mut self.world.nodes[node];
        let same = state
            .records
            .get(key)
            .is_some_and(|record| record.uid == replica.uid);
        if !same {
            state.records.insert(key.clone(), first_record(key, replica));
        }
        let Some(record) = state.records.get_mut(key) else {
            return;
        };
        record.begin(replica, start, None, "simulated", now);
        if let Some(model) = self.world.model_of(node, &replica.spec.source) {
            let model = model.with_kv_bits(replica.spec.kv_bits());
            let worker = Worker::new(process, &replica.uid, start, replica.spec.max_concurrency, model);
            self.worker_starts(node, key, worker);
        }
    }
}
