//! Watches: delivery of changes from the store to the processes.

use kube::ResourceExt;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Event, Reader};
use crate::world::store::{Kind, Object};

impl Run<'_> {
    /// Sends a watch event.
    pub(crate) fn send_to(&mut self, to: Reader, object: Object, deleted: bool) {
        let now = self.world.now;
        let arrives = now + self.network.latency();
        let kind = object.kind();
        let view = match to {
            Reader::Controller => &mut self.world.control.view,
            Reader::Gateway => &mut self.world.gateway.view,
            Reader::Agent(node) => &mut self.world.nodes[node].view,
        };
        if view.ended.is_some() {
            return;
        }
        let (late, again) = self.network.disorder.draw(now);
        if let Some(again) = again {
            view.send_unordered(object.clone(), deleted, arrives + again);
            self.world
                .queue
                .push(arrives + again, Event::Deliver { to, kind });
        }
        let arrives = match late {
            Some(late) => {
                view.send_unordered(object, deleted, arrives + late);
                arrives + late
            }
            None => view.send(object, deleted, arrives),
        };
        self.world.queue.push(arrives, Event::Deliver { to, kind });
    }

    /// Checks and counts the changes of the last event, and sends them to all watches.
    pub(crate) fn propagate(&mut self) {
        for change in self.world.store.take_changes() {
            self.rules.check_change(&self.world, &self.network, &change);
            self.rules.ledger.count_change(self.world.now, &change);
            let (object, deleted) = (change.object, change.deleted);
            let kind = object.kind();
            for to in [Reader::Controller, Reader::Gateway] {
                if to == Reader::Gateway && kind == Kind::Revision {
                    continue;
                }
                self.send_to(to, object.clone(), deleted);
            }
            let node = match &object {
                Object::Node(node) => node.name_any(),
                Object::Replica(replica) => replica.spec.node_name.clone().unwrap_or_default(),
                Object::Revision(_) => continue,
                Object::Deployment(_) => {
                    if deleted {
                        let wait = self.network.latency();
                        self.world.after(wait, Event::CollectGarbage);
                    }
                    continue;
                }
            };
            if let Some(index) = self.world.by_name.get(&node) {
                self.send_to(Reader::Agent(*index), object, deleted);
            }
        }
    }

    pub(crate) fn deliver(&mut self, to: Reader, kind: Kind) {
        let now = self.world.now;
        let old_too = self.world.planted.has(Bug::OlderEventApplied);
        match to {
            Reader::Controller => {
                if self.world.control.receives_events()
                    && let Some(newest) = self.world.control.view.deliver(kind, now, old_too)
                {
                    self.mark_observed(newest);
                    self.wake_controller();
                }
            }
            Reader::Gateway => {
                if self.world.gateway.stale == 0
                    && let Some(newest) = self.world.gateway.view.deliver(kind, now, old_too)
                {
                    self.mark_observed(newest);
                    self.world.gateway.changed = true;
                    if self.world.has_queued_requests() {
                        self.update_routing_table();
                    }
                }
            }
            Reader::Agent(node) => {
                if self.world.nodes[node].is_connected()
                    && let Some(newest) = self.world.nodes[node].view.deliver(kind, now, old_too)
                {
                    self.mark_observed(newest);
                    self.world.wake_agent(node);
                }
            }
        }
    }

    /// Delivers all events that arrived during an interruption.
    pub(crate) fn deliver_all(&mut self, to: Reader) {
        for kind in Kind::ALL {
            self.deliver(to, kind);
        }
    }

    /// Returns the list that a new watch starts with.
    pub(crate) fn listed(&mut self, to: Reader) -> Vec<Object> {
        self.mark_observed(self.world.store.newest());
        let store = &self.world.store;
        let nodes = store.nodes.values().cloned().map(Object::Node);
        let replicas = store.replicas.values().cloned().map(Object::Replica);
        match to {
            Reader::Controller | Reader::Gateway => nodes
                .chain(replicas)
                .chain(store.deployments.values().cloned().map(Object::Deployment))
                .chain(store.revisions.values().cloned().map(Object::Revision))
                .collect(),
            Reader::Agent(index) => {
                let name = &self.world.nodes[index].machine.name;
                let is_ours = |object: &Object| match object {
                    Object::Node(node) => node.name_any() == *name,
                    Object::Replica(replica) => replica.spec.node_name.as_ref() == Some(name),
                    Object::Deployment(_) | Object::Revision(_) => false,
                };
                nodes.chain(replicas).filter(is_ours).collect()
            }
        }
    }

    pub(crate) fn list(&mut self, reader: Reader, incarnation: u32) {
        match reader {
            Reader::Controller => self.controller_lists(incarnation),
            Reader::Gateway => self.gateway_lists(),
            Reader::Agent(node) => self.agent_lists(node, incarnation),
        }
    }
}
