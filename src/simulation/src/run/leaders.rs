//! Two leaders at the same time: a paused leader resumes after another one has acquired its Lease.
//!
//! A leader checks its Lease before each write, so the former leader sends no further writes. A
//! write that it sent before the pause still arrives: at most one of each reconciler.

use crate::rules::bounds::Removal;
use crate::run::Run;
use crate::run::journal::describe_write;
use crate::scenario::planted::Bug;
use crate::world::event::{Actor, Event, Reconciler, Write, WriteResponse};

impl Run<'_> {
    pub(crate) fn resume_leader(&mut self, fault: usize) {
        let Some(at) = self.world.paused.iter().position(|paused| paused.fault == fault) else {
            return;
        };
        let mut former = self.world.paused.remove(at).control;
        let incarnation = former.incarnation;
        let mut withheld = Vec::new();
        for of in Reconciler::ALL {
            let sent = former.writer(of).queue.pop_front();
            withheld.extend(former.writer(of).queue.drain(..));
            if let Some(write) = sent {
                let (actor, write, wait) = (Actor::Reconciler(of), Box::new(write), self.network.latency());
                self.world.after(
                    wait,
                    Event::Arrive {
                        actor,
                        incarnation,
                        write,
                    },
                );
            }
        }
        self.rules.ledger.log(self.world.now, || {
            format!(
                "a former leader resumes and withholds {} of its writes",
                withheld.len()
            )
        });
        if self.world.planted.has(Bug::WritesWithoutLease) {
            std::mem::swap(&mut self.world.control, &mut former);
            withheld.extend(
                Reconciler::ALL
                    .into_iter()
                    .flat_map(|of| self.world.decide(of).writes)
                    .map(Write::from),
            );
            std::mem::swap(&mut self.world.control, &mut former);
            for write in withheld {
                let removal = Removal::by(&self.world.store, &write);
                let response = self.apply(&write);
                if let (Some(removal), WriteResponse::Done(_)) = (removal, &response) {
                    self.rules
                        .check_removal(&self.world, self.world.now, &removal, false);
                }
                self.rules.ledger.log(self.world.now, || {
                    format!("former leader: {}", describe_write(&write, &response))
                });
            }
        }
    }
}
