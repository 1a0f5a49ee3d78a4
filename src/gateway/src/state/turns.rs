//! Whose turn it is when there is room. A request of several rows holds one replica free, until it has them, and not the model.

use std::time::Instant;

use super::{Grant, State, in_traffic};
use crate::routing::health::Standing;
use crate::routing::table::{Model, Replica};

impl<W> State<W> {
    /// The next one that waits and has a replica now.
    pub(crate) fn next(&mut self, model: &Model, now: Instant) -> Option<(Grant, W)> {
        let usable = self.usable(model, now);
        loop {
            let mut free = usable.clone();
            if let Some(granted) = self.next_head(model, &mut free, now) {
                return Some(granted);
            }
            // Nobody is called up before there is room: someone more urgent may come until then.
            let has_room = |replica: &&&Replica| {
                let known = self.replicas.get(&replica.id);
                known.is_none_or(|known| known.rows() < replica.rows)
            };
            free.iter().find(has_room)?;
            let (slip, waiter) = self.models.get_mut(&model.key())?.queue.pop()?;
            if let Some(grant) = self.grant_in_turn(model, &waiter.ask, &free, now) {
                self.held_bytes -= waiter.bytes;
                return Some((grant, waiter.wake));
            }
            let heads = &mut self.model(model).heads;
            let place = heads.partition_point(|(_, head)| head.ask.priority <= waiter.ask.priority);
            heads.insert(place, (slip, waiter));
        }
    }

    /// One of those that wait for several rows. Takes out of `free` what the others hold, as far as nobody more urgent waits.
    fn next_head(&mut self, model: &Model, free: &mut Vec<&Replica>, now: Instant) -> Option<(Grant, W)> {
        for index in 0.. {
            let state = self.models.get(&model.key())?;
            let (_, head) = state.heads.get(index)?;
            let most_urgent = state.queue.most_urgent();
            if most_urgent.is_some_and(|priority| priority < head.ask.priority) {
                return None;
            }
            let ask = head.ask.clone();
            if let Some(grant) = self.grant_in_turn(model, &ask, free, now) {
                let (_, waiter) = self.model(model).heads.remove(index);
                self.held_bytes -= waiter.bytes;
                return Some((grant, waiter.wake));
            }
            let held = self.first_empty(free, now)?;
            free.retain(|replica| replica.id != held);
        }
        None
    }

    /// The replica whose last answer should end first.
    fn first_empty(&self, replicas: &[&Replica], now: Instant) -> Option<u64> {
        let left = |replica: &Replica| {
            let flights = self.replicas.get(&replica.id).map(|known| known.flights.values());
            let left = flights.into_iter().flatten().map(|flight| flight.left(now));
            left.fold(0.0, f64::max)
        };
        let first = replicas.iter().min_by(|a, b| left(a).total_cmp(&left(b)));
        first.map(|replica| replica.id)
    }

    /// Those in traffic, without those that are left out where there are others.
    fn usable<'a>(&self, model: &'a Model, now: Instant) -> Vec<&'a Replica> {
        let is_left_out = |replica: &&Replica| {
            let known = self.replicas.get(&replica.id);
            known.is_some_and(|known| known.health.standing(now) == Standing::LeftOut)
        };
        let (out, used): (Vec<_>, Vec<_>) = in_traffic(model).into_iter().partition(is_left_out);
        if used.is_empty() { out } else { used }
    }
}
