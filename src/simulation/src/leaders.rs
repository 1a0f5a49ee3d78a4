//! Two leaders at once: one that stood still until another one had taken its Lease goes on with what it knew.
//!
//! It asks before each write whether it still leads, and a Lease that has gone stops it. What it had asked for before it
//! stood still is written afterwards all the same: at most one write of each of its loops.

use std::time::Duration;

use super::control::Control;
use super::disruption::Taken;
use super::event::{Actor, Answer, Event, Loop, Reader, Write};
use super::journal::told_write;
use super::planted::Bug;
use super::run::Run;

/// A Lease that nobody renews is taken after 15 s, within two.
const TAKES_OVER: Duration = Duration::from_secs(17);
/// Shorter pauses end nobody's Lease, and nobody notices them.
pub(super) const PAUSED_LEAST: Duration = Duration::from_secs(20);

/// A leader that stands still, by the fault that keeps it.
#[derive(Debug)]
pub(super) struct Paused {
    fault: usize,
    control: Control,
}

impl Run<'_> {
    pub(super) fn leader_pauses(&mut self, fault: usize) {
        let control = self.control.succeed(self.now);
        let (life, was) = (control.life, std::mem::replace(&mut self.control, control));
        self.paused.push(Paused { fault, control: was });
        let reader = Reader::Controller;
        self.after(TAKES_OVER, Event::List { reader, life });
    }

    pub(super) fn leader_wakes(&mut self, fault: usize) {
        let Some(at) = self.paused.iter().position(|paused| paused.fault == fault) else {
            return;
        };
        let mut woken = self.paused.remove(at).control;
        let life = woken.life;
        let mut refused = Vec::new();
        for of in Loop::ALL {
            let asked = woken.writer(of).queue.pop_front();
            refused.extend(woken.writer(of).queue.drain(..));
            if let Some(write) = asked {
                let (actor, write, wait) = (Actor::Loop(of), Box::new(write), self.latency());
                self.after(wait, Event::Arrive { actor, life, write });
            }
        }
        self.ledger.tell(self.now, || {
            format!(
                "a leader wakes, and {} of its writes are refused by itself",
                refused.len()
            )
        });
        if self.planted.has(Bug::WritesWithoutLease) {
            std::mem::swap(&mut self.control, &mut woken);
            refused.extend(
                Loop::ALL
                    .into_iter()
                    .flat_map(|of| self.decide(of).writes)
                    .map(Write::from),
            );
            std::mem::swap(&mut self.control, &mut woken);
            for write in refused {
                let taken = Taken::by(self, &write);
                let answer = self.apply(&write);
                if let (Some(taken), Answer::Done(_)) = (taken, &answer) {
                    self.check_taken(self.now, &taken, false);
                }
                self.ledger.tell(self.now, || {
                    format!("former leader: {}", told_write(&write, &answer))
                });
            }
        }
    }
}
