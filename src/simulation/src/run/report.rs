//! Passes of an agent's reporters.

use crate::run::Run;
use crate::world::event::{Actor, Event};

impl Run<'_> {
    pub(crate) fn wake_reporter(&mut self, actor: Actor) {
        let incarnation = self.world.incarnation(actor);
        let writer = self.world.writer(actor);
        writer.dirty = true;
        if !writer.busy {
            let wait = self.network.latency();
            self.world.after(wait, Event::Report { actor, incarnation });
        }
    }

    pub(crate) fn report(&mut self, actor: Actor, incarnation: u32) {
        let (Actor::Replicas(node) | Actor::Node(node)) = actor else {
            return;
        };
        let state = &mut self.world.nodes[node];
        if state.incarnation != incarnation || !state.synced || !state.agent_runs() {
            return;
        }
        let writer = self.world.writer(actor);
        if writer.busy || !writer.dirty {
            return;
        }
        writer.dirty = false;
        let writes = match actor {
            Actor::Replicas(_) => self.world.replica_writes(node),
            Actor::Node(_) | Actor::Reconciler(_) => self.world.node_writes(node),
        };
        if !writes.is_empty() {
            self.start_writing(actor, writes);
        }
    }
}
