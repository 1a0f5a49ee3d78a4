//! The controller's shell, modelled: when its reconcilers look, and what their plans are made from.
//! The plans are the real ones.

use std::time::Duration;

use crate::run::Run;
use crate::world::event::{Actor, Event, Loop, Reader, Write};
use crate::world::store::Object;
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_controller::intent::Intents;
use rooflet_controller::{BINDER_RESYNC, NODE_MONITOR_PERIOD};

/// From the end of one leader to the beginning of the next.
const TAKES_OVER: Duration = Duration::from_secs(1);

/// A loop that takes replicas away waits for another one that does, and looks again after this
/// time.
const DISRUPTION_RETRY: Duration = Duration::from_millis(20);

impl Run<'_> {
    /// A new process leads: nothing that an earlier one knew is taken over.
    pub(crate) fn start_controller(&mut self) {
        self.world.control = self.world.control.succeed(self.world.now);
        let (life, down) = (self.world.control.life, self.world.control.down);
        if down == 0 {
            // Another process has to notice that nobody leads; what the last one sent has arrived
            // by then.
            let wait = if life > 1 {
                TAKES_OVER
            } else {
                self.network.latency()
            };
            self.world.after(
                wait,
                Event::List {
                    reader: Reader::Controller,
                    life,
                },
            );
        }
    }

    pub(crate) fn controller_lists(&mut self, life: u32) {
        if self.world.control.life == life && self.world.control.down == 0 {
            if self.network.is_out() {
                self.relist(Reader::Controller, life);
                return;
            }
            let objects = self.listed(Reader::Controller);
            self.world.control.view.list_anew(objects);
            self.world.control.synced = true;
            self.wake_controller();
        }
    }

    pub(crate) fn controller_hears_again(&mut self) {
        self.world.control.stale -= 1;
        self.world.control.deaf = Some(self.world.now);
        if self.world.control.stale == 0 {
            self.world.control.stale_since = None;
            self.deliver_all(Reader::Controller);
        }
    }

    pub(crate) fn pass(&mut self, of: Loop, life: u32) {
        let now = self.world.now;
        if self.world.control.life != life || !self.world.control.synced {
            return;
        }
        let writer = self.world.control.writer(of);
        if writer.wakes != Some(now) {
            return;
        }
        writer.wakes = None;
        if writer.busy {
            return;
        }
        if of == Loop::Binder && !self.bindings_are_clear() {
            let backoff = self.world.control.writer(of).backoff();
            self.world.wake_loop(of, backoff);
            return;
        }
        let writer = self.world.control.writer(of);
        let was_dirty = std::mem::take(&mut writer.dirty) || writer.failed;
        if of == Loop::NodeLifecycle && !was_dirty && self.world.nothing_is_silent() {
            // Renewals of healthy nodes are not simulated one by one: the plan would be what it
            // was.
            self.world.wake_loop(of, NODE_MONITOR_PERIOD);
            return;
        }
        self.world.control.passes += 1;
        let Intents {
            writes,
            requeue_after,
        } = self.world.decide(of);
        let writes: Vec<_> = writes.into_iter().map(Write::from).collect();
        if writes.iter().any(Write::disrupts) && self.world.somebody_disrupts() {
            // As the real ones do: only one at a time takes replicas away, and looks again before.
            self.world.control.writer(of).dirty = true;
            self.world.wake_loop(of, DISRUPTION_RETRY);
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
            Loop::Deployment | Loop::Autoscaler => None,
            Loop::Binder => waiting.then_some(BINDER_RESYNC),
            Loop::NodeLifecycle => Some(NODE_MONITOR_PERIOD),
        };
        if let Some(wait) = requeue_after.into_iter().chain(resync).min() {
            self.world.wake_loop(of, wait);
        }
        if writes.is_empty() {
            if self.world.control.writer(of).dirty {
                self.world.wake_loop(of, Duration::from_millis(1));
            }
        } else {
            self.start_writing(Actor::Loop(of), writes);
        }
    }

    /// Reads what was bound without an answer, as the real binder does before it decides.
    fn bindings_are_clear(&mut self) -> bool {
        while let Some(of) = self.world.control.unclear.last() {
            if self.network.is_out() || self.network.random.chance(self.network.lost_share) {
                return false;
            }
            if let Some(replica) = self.world.store.get::<ModelReplica>(of) {
                self.world.control.view.wrote(Object::Replica(replica));
            }
            self.world.control.unclear.pop();
        }
        true
    }
}
