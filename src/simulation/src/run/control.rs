//! Model of the controller process: times and inputs of the reconcilers' passes. The plans are the
//! real ones.

use std::time::Duration;

use crate::run::Run;
use crate::world::event::{Actor, Event, Reader, Reconciler, Write};
use crate::world::store::Object;
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_controller::intent::Intents;
use rooflet_controller::{BINDER_RESYNC, NODE_MONITOR_PERIOD};

/// Time from the end of a leader to the start of the next one.
const LEADER_TAKEOVER: Duration = Duration::from_secs(1);

/// Delay before a reconciler repeats its pass because another one is removing replicas.
const DISRUPTION_RETRY: Duration = Duration::from_millis(20);

impl Run<'_> {
    /// Starts a new leader. It inherits no state of the previous one.
    pub(crate) fn start_controller(&mut self) {
        self.world.control = self.world.control.successor(self.world.now);
        let (incarnation, down) = (self.world.control.incarnation, self.world.control.down);
        if down == 0 {
            // The next leader has to acquire the Lease. Writes of the previous one have arrived by
            // then.
            let wait = if incarnation > 1 {
                LEADER_TAKEOVER
            } else {
                self.network.latency()
            };
            self.world.after(
                wait,
                Event::List {
                    reader: Reader::Controller,
                    incarnation,
                },
            );
        }
    }

    pub(crate) fn controller_lists(&mut self, incarnation: u32) {
        if self.world.control.incarnation == incarnation && self.world.control.down == 0 {
            if self.network.is_out() {
                self.relist(Reader::Controller, incarnation);
                return;
            }
            let objects = self.listed(Reader::Controller);
            self.world.control.view.replace(objects);
            self.world.control.synced = true;
            self.wake_controller();
        }
    }

    pub(crate) fn end_stale_controller(&mut self) {
        self.world.control.stale -= 1;
        self.world.control.last_stale = Some(self.world.now);
        if self.world.control.stale == 0 {
            self.world.control.stale_since = None;
            self.deliver_all(Reader::Controller);
        }
    }

    pub(crate) fn pass(&mut self, of: Reconciler, incarnation: u32) {
        let now = self.world.now;
        if self.world.control.incarnation != incarnation || !self.world.control.synced {
            return;
        }
        let writer = self.world.control.writer(of);
        if writer.due_at != Some(now) {
            return;
        }
        writer.due_at = None;
        if writer.busy {
            return;
        }
        if of == Reconciler::Binder && !self.resolve_unclear_bindings() {
            let backoff = self.world.control.writer(of).backoff();
            self.world.wake_reconciler(of, backoff);
            return;
        }
        let writer = self.world.control.writer(of);
        let was_dirty = std::mem::take(&mut writer.dirty) || writer.failed;
        if of == Reconciler::NodeLifecycle
            && !was_dirty
            && self.world.all_nodes_renew()
            && !self.world.may_evict_later()
        {
            // The simulation omits single Lease renewals of healthy nodes. They do not change the
            // plan.
            self.world.wake_reconciler(of, NODE_MONITOR_PERIOD);
            return;
        }
        self.world.control.passes += 1;
        let Intents {
            writes,
            requeue_after,
        } = self.world.decide(of);
        let writes: Vec<_> = writes.into_iter().map(Write::from).collect();
        if writes.iter().any(Write::disrupts) && self.world.any_reconciler_disrupts() {
            // As in the controller, only one reconciler at a time removes replicas, with a plan
            // that is based on the results of the others.
            self.world.control.writer(of).dirty = true;
            self.world.wake_reconciler(of, DISRUPTION_RETRY);
            return;
        }
        let waiting = self
            .world
            .control
            .view
            .replicas()
            .iter()
            .any(|replica| replica.spec.node_name.is_none());
        let resync = match of {
            Reconciler::Deployment | Reconciler::Autoscaler => None,
            Reconciler::Binder => waiting.then_some(BINDER_RESYNC),
            Reconciler::NodeLifecycle => Some(NODE_MONITOR_PERIOD),
        };
        if let Some(wait) = requeue_after.into_iter().chain(resync).min() {
            self.world.wake_reconciler(of, wait);
        }
        if writes.is_empty() {
            if self.world.control.writer(of).dirty {
                self.world.wake_reconciler(of, Duration::from_millis(1));
            }
        } else {
            self.start_writing(Actor::Reconciler(of), writes);
        }
    }

    /// Reads replicas whose bindings were not acknowledged, as the binder does before it plans.
    /// Returns false if the API server does not respond.
    fn resolve_unclear_bindings(&mut self) -> bool {
        while let Some(of) = self.world.control.unclear.last() {
            if self.network.is_out() || self.network.random.chance(self.network.lost_share) {
                return false;
            }
            if let Some(replica) = self.world.store.get::<ModelReplica>(of) {
                self.world.control.view.record_write(Object::Replica(replica));
            }
            self.world.control.unclear.pop();
        }
        true
    }
}
