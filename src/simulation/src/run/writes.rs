//! Writes on their way to the API server, and its answers.

use std::time::Duration;

use crate::rules::bounds::Taken;
use crate::run::Run;
use crate::run::journal::{told_actor, told_write};
use crate::scenario::planted::Bug;
use crate::world::event::{Actor, Answer, Event, Loop, Write};
use rooflet_controller::intent::Intent;

/// How long it takes to notice that nobody answers.
const NO_ANSWER: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Begins to do what a pass has decided.
    pub(crate) fn start_writing(&mut self, actor: Actor, writes: impl IntoIterator<Item = Write>) {
        let life = self.world.life(actor);
        let known = match actor {
            Actor::Loop(_) => self.world.control.knows(self.world.now),
            Actor::Replicas(_) | Actor::Node(_) => self.world.now,
        };
        let writer = self.world.writer(actor);
        writer.decided = known;
        writer.queue.extend(writes);
        writer.disrupts = writer.queue.iter().any(Write::disrupts);
        writer.busy = true;
        self.send(actor, life);
    }

    fn send(&mut self, actor: Actor, life: u32) {
        if self.world.life(actor) != life {
            return;
        }
        let Some(write) = self.world.writer(actor).queue.pop_front() else {
            self.world.pass_ends(actor, life);
            return;
        };
        let write = Box::new(write);
        let reaches = match actor {
            Actor::Loop(_) => true,
            Actor::Replicas(node) | Actor::Node(node) => self.world.nodes[node].is_connected(),
        };
        if !reaches || self.network.random.chance(self.network.lost_share / 2.0) {
            let answer = Box::new(Answer::Lost);
            let arrived = self.world.now;
            self.world.after(
                NO_ANSWER,
                Event::Answered {
                    actor,
                    life,
                    arrived,
                    write,
                    answer,
                },
            );
            return;
        }
        let wait = self.network.latency();
        self.world.after(wait, Event::Arrive { actor, life, write });
    }

    /// The write is at the server. Its sender may be gone by now.
    pub(crate) fn arrive(&mut self, actor: Actor, life: u32, write: Box<Write>) {
        let taken = Taken::by(&self.world.store, &write);
        self.rules.by_former_leader = matches!(actor, Actor::Loop(_)) && self.world.life(actor) != life;
        let mut answer = match self.network.is_out() {
            true => Answer::Lost,
            false => self.apply(&write),
        };
        self.rules.ledger.tell(self.world.now, || {
            format!("{}: {}", told_actor(actor), told_write(&write, &answer))
        });
        let mut wait = self.network.latency();
        let is_lost = self.network.random.chance(self.network.lost_share / 2.0) || self.network.is_out();
        if let (Actor::Loop(of), Some(taken), Answer::Done(_)) = (actor, taken, &answer)
            && self.world.control.life == life
        {
            self.check_taken(self.known_to(of), &taken, !is_lost);
        }
        let created = matches!(
            (&*write, &answer),
            (Write::Intent(Intent::CreateReplica(_), _), Answer::Done(_))
        );
        if created && (is_lost || self.world.life(actor) != life) {
            self.rules.creations_lost += 1;
        }
        if is_lost {
            answer = Answer::Lost;
            wait = NO_ANSWER;
        }
        let answer = Box::new(answer);
        let arrived = self.world.now;
        self.world.after(
            wait,
            Event::Answered {
                actor,
                life,
                arrived,
                write,
                answer,
            },
        );
    }

    pub(crate) fn answered(&mut self, actor: Actor, life: u32, write: Write, answer: Answer) {
        if self.world.life(actor) != life {
            return;
        }
        let forgets = self.world.planted.has(Bug::OwnWritesForgotten);
        if let Answer::Done(object) = &answer
            && !forgets
        {
            let view = match actor {
                Actor::Loop(_) => &mut self.world.control.view,
                Actor::Replicas(node) | Actor::Node(node) => &mut self.world.nodes[node].view,
            };
            view.wrote(object.clone());
        }
        match actor {
            Actor::Loop(of) => self.world.control_answered(of, &write, &answer),
            Actor::Replicas(_) | Actor::Node(_) => {
                // The watch shows the newer version soon, and it is done again.
                let failed = matches!(answer, Answer::Lost);
                self.world.writer(actor).failed |= failed;
            }
        }
        self.send(actor, life);
    }

    /// All reconcilers look again.
    pub(crate) fn wake_controller(&mut self) {
        for of in Loop::ALL {
            if of == Loop::Autoscaler && !self.world.autoscaler_has_to_look() {
                continue;
            }
            self.world.control.writer(of).dirty = true;
            if !self.world.control.writer(of).busy {
                let wait = self.network.latency();
                self.world.wake_loop(of, wait);
            }
        }
    }
}
