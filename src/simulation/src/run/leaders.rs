//! Two leaders at once: one that stood still until another one had taken its Lease goes on with
//! what it knew.
//!
//! It asks before each write whether it still leads, and a Lease that has gone stops it. What it
//! had asked for before it stood still is written afterwards all the same: at most one write of
//! each of its loops.

use crate::rules::bounds::Taken;
use crate::run::Run;
use crate::run::journal::told_write;
use crate::scenario::planted::Bug;
use crate::world::event::{Actor, Answer, Event, Loop, Write};

impl Run<'_> {
    pub(crate) fn leader_wakes(&mut self, fault: usize) {
        let Some(at) = self.world.paused.iter().position(|paused| paused.fault == fault) else {
            return;
        };
        let mut woken = self.world.paused.remove(at).control;
        let life = woken.life;
        let mut refused = Vec::new();
        for of in Loop::ALL {
            let asked = woken.writer(of).queue.pop_front();
            refused.extend(woken.writer(of).queue.drain(..));
            if let Some(write) = asked {
                let (actor, write, wait) = (Actor::Loop(of), Box::new(write), self.network.latency());
                self.world.after(wait, Event::Arrive { actor, life, write });
            }
        }
        self.rules.ledger.tell(self.world.now, || {
            format!(
                "a leader wakes, and {} of its writes are refused by itself",
                refused.len()
            )
        });
        if self.world.planted.has(Bug::WritesWithoutLease) {
            std::mem::swap(&mut self.world.control, &mut woken);
            refused.extend(
                Loop::ALL
                    .into_iter()
                    .flat_map(|of| self.world.decide(of).writes)
                    .map(Write::from),
            );
            std::mem::swap(&mut self.world.control, &mut woken);
            for write in refused {
                let taken = Taken::by(&self.world.store, &write);
                let answer = self.apply(&write);
                if let (Some(taken), Answer::Done(_)) = (taken, &answer) {
                    self.check_taken(self.world.now, &taken, false);
                }
                self.rules.ledger.tell(self.world.now, || {
                    format!("former leader: {}", told_write(&write, &answer))
                });
            }
        }
    }
}
