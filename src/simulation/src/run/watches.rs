//! Watches: changes on their way from the store to each process.

use kube::ResourceExt;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Event, Reader};
use crate::world::store::{Kind, Object};

impl Run<'_> {
    /// Puts what a watch tells on its way.
    pub(crate) fn send_to(&mut self, to: Reader, object: Object, gone: bool) {
        let now = self.world.now;
        let arrives = now + self.network.latency();
        let kind = object.kind();
        let view = match to {
            Reader::Controller => &mut self.world.control.view,
            Reader::Gateway => &mut self.world.front.view,
            Reader::Agent(node) => &mut self.world.nodes[node].view,
        };
        if view.ended.is_some() {
            return;
        }
        let (late, again) = self.network.disorder.draw(now);
        if let Some(again) = again {
            view.send_apart(object.clone(), gone, arrives + again);
            self.world
                .queue
                .push(arrives + again, Event::Deliver { to, kind });
        }
        let arrives = match late {
            Some(late) => {
                view.send_apart(object, gone, arrives + late);
                arrives + late
            }
            None => view.send(object, gone, arrives),
        };
        self.world.queue.push(arrives, Event::Deliver { to, kind });
    }

    /// Puts what was just written on its way to everybody who watches it, and holds it against the
    /// rules.
    pub(crate) fn propagate(&mut self) {
        for change in self.world.store.take_changes() {
            self.check_change(&change);
            self.rules.ledger.note(self.world.now, &change);
            let (object, gone) = (change.object, change.gone);
            let kind = object.kind();
            for to in [Reader::Controller, Reader::Gateway] {
                if to == Reader::Gateway && kind == Kind::Revision {
                    continue;
                }
                self.send_to(to, object.clone(), gone);
            }
            let node = match &object {
                Object::Node(node) => node.name_any(),
                Object::Replica(replica) => replica.spec.node_name.clone().unwrap_or_default(),
                Object::Revision(_) => continue,
                Object::Deployment(_) => {
                    if gone {
                        let wait = self.network.latency();
                        self.world.after(wait, Event::CollectGarbage);
                    }
                    continue;
                }
            };
            if let Some(index) = self.world.by_name.get(&node) {
                self.send_to(Reader::Agent(*index), object, gone);
            }
        }
    }

    pub(crate) fn deliver(&mut self, to: Reader, kind: Kind) {
        let now = self.world.now;
        let old_too = self.world.planted.has(Bug::OlderEventApplied);
        match to {
            Reader::Controller => {
                if self.world.control.hears()
                    && let Some(newest) = self.world.control.view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.wake_controller();
                }
            }
            Reader::Gateway => {
                if self.world.front.stale == 0
                    && let Some(newest) = self.world.front.view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.world.front.changed = true;
                    if self.world.somebody_waits() {
                        self.gateway_looks();
                    }
                }
            }
            Reader::Agent(node) => {
                if self.world.nodes[node].is_connected()
                    && let Some(newest) = self.world.nodes[node].view.deliver(kind, now, old_too)
                {
                    self.told(newest);
                    self.world.wake_agent(node);
                }
            }
        }
    }

    /// After a time without: everything that has arrived in between.
    pub(crate) fn deliver_all(&mut self, to: Reader) {
        for kind in Kind::ALL {
            self.deliver(to, kind);
        }
    }

    /// What a watch that begins anew is told first.
    pub(crate) fn listed(&mut self, to: Reader) -> Vec<Object> {
        self.told(self.world.store.newest());
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

    pub(crate) fn list(&mut self, reader: Reader, life: u32) {
        match reader {
            Reader::Controller => self.controller_lists(life),
            Reader::Gateway => self.gateway_lists(),
            Reader::Agent(node) => self.agent_lists(node, life),
        }
    }
}
