//! Delivery of writes to the API server, and of its responses.

use std::time::Duration;

use crate::rules::bounds::Removal;
use crate::rules::observed::observed_by;
use crate::run::Run;
use crate::run::journal::{describe_actor, describe_write};
use crate::scenario::planted::Bug;
use crate::world::event::{Actor, Event, Reconciler, Write, WriteResponse};
use rooflet_controller::intent::Intent;

/// Time after which a sender treats a write without a response as lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Starts the writes of a pass.
    pub(crate) fn start_writing(&mut self, actor: Actor, writes: impl IntoIterator<Item = Write>) {
        let incarnation = self.world.incarnation(actor);
        let observed = match actor {
            Actor::Reconciler(_) => self.world.control.delivered_until(self.world.now),
            Actor::Replicas(_) | Actor::Node(_) => self.world.now,
        };
        let writer = self.world.writer(actor);
        writer.observed_until = observed;
        writer.queue.extend(writes);
        writer.disrupts = writer.queue.iter().any(Write::disrupts);
        writer.busy = true;
        self.send(actor, incarnation);
    }

    fn send(&mut self, actor: Actor, incarnation: u32) {
        if self.world.incarnation(actor) != incarnation {
            return;
        }
        let Some(write) = self.world.writer(actor).queue.pop_front() else {
            self.world.pass_ends(actor, incarnation);
            return;
        };
        let write = Box::new(write);
        let reaches = match actor {
            Actor::Reconciler(_) => true,
            Actor::Replicas(node) | Actor::Node(node) => self.world.nodes[node].is_connected(),
        };
        if !reaches || self.network.random.chance(self.network.lost_share / 2.0) {
            let response = Box::new(WriteResponse::Lost);
            let arrived = self.world.now;
            self.world.after(
                RESPONSE_TIMEOUT,
                Event::Response {
                    actor,
                    incarnation,
                    arrived,
                    write,
                    response,
                },
            );
            return;
        }
        let wait = self.network.latency();
        self.world.after(
            wait,
            Event::Arrive {
                actor,
                incarnation,
                write,
            },
        );
    }

    /// Executes a write that has arrived at the server. Its sender may have stopped.
    pub(crate) fn arrive(&mut self, actor: Actor, incarnation: u32, write: Box<Write>) {
        let removal = Removal::by(&self.world.store, &write);
        self.rules.by_former_leader =
            matches!(actor, Actor::Reconciler(_)) && self.world.incarnation(actor) != incarnation;
        let mut response = match self.network.is_out() {
            true => WriteResponse::Lost,
            false => self.apply(&write),
        };
        self.rules.ledger.log(self.world.now, || {
            format!("{}: {}", describe_actor(actor), describe_write(&write, &response))
        });
        let mut wait = self.network.latency();
        let is_lost = self.network.random.chance(self.network.lost_share / 2.0) || self.network.is_out();
        if let (Actor::Reconciler(of), Some(removal), WriteResponse::Done(_)) = (actor, removal, &response)
            && self.world.control.incarnation == incarnation
        {
            let observed = observed_by(&self.world, &self.network, of);
            self.rules
                .check_removal(&self.world, observed, &removal, !is_lost);
        }
        let created = matches!(
            (&*write, &response),
            (Write::Intent(Intent::CreateReplica(_), _), WriteResponse::Done(_))
        );
        if created && (is_lost || self.world.incarnation(actor) != incarnation) {
            self.rules.unacknowledged_creations += 1;
        }
        if is_lost {
            response = WriteResponse::Lost;
            wait = RESPONSE_TIMEOUT;
        }
        let response = Box::new(response);
        let arrived = self.world.now;
        self.world.after(
            wait,
            Event::Response {
                actor,
                incarnation,
                arrived,
                write,
                response,
            },
        );
    }

    pub(crate) fn receive_response(
        &mut self,
        actor: Actor,
        incarnation: u32,
        write: Write,
        response: WriteResponse,
    ) {
        if self.world.incarnation(actor) != incarnation {
            return;
        }
        let forgets = self.world.planted.has(Bug::OwnWritesDiscarded);
        if let WriteResponse::Done(object) = &response
            && !forgets
        {
            let view = match actor {
                Actor::Reconciler(_) => &mut self.world.control.view,
                Actor::Replicas(node) | Actor::Node(node) => &mut self.world.nodes[node].view,
            };
            view.record_write(object.clone());
        }
        match actor {
            Actor::Reconciler(of) => self.world.apply_response(of, &write, &response),
            Actor::Replicas(_) | Actor::Node(_) => {
                // After a conflict, the watch delivers the newer version and causes another pass.
                let failed = matches!(response, WriteResponse::Lost);
                self.world.writer(actor).failed |= failed;
            }
        }
        self.send(actor, incarnation);
    }

    /// Schedules a pass of every reconciler.
    pub(crate) fn wake_controller(&mut self) {
        for of in Reconciler::ALL {
            if of == Reconciler::Autoscaler && !self.world.autoscaler_is_due() {
                continue;
            }
            self.world.control.writer(of).dirty = true;
            if !self.world.control.writer(of).busy {
                let wait = self.network.latency();
                self.world.wake_reconciler(of, wait);
            }
        }
    }
}
