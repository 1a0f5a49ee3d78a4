//! Selection of the next queued request when a replica has capacity.
//!
//! A request for several rows reserves one replica until enough rows are free. Other replicas of
//! the model keep serving.

use std::time::Instant;

use super::{Grant, State, in_traffic};
use crate::routing::health::HealthState;
use crate::routing::table::{Model, Replica};

impl<W> State<W> {
    /// Removes the next queued request that a replica can serve now, and grants the replica.
    pub(crate) fn next(&mut self, model: &Model, now: Instant) -> Option<(Grant, W)> {
        let key = model.key();
        if !self.queued.contains_key(&key) {
            return None;
        }
        let next = self.take_next(model, now);
        self.recount(&key);
        next
    }

    fn take_next(&mut self, model: &Model, now: Instant) -> Option<(Grant, W)> {
        let usable = self.usable(model, now);
        loop {
            let mut free = usable.clone();
            if let Some(granted) = self.next_multi_row(model, &mut free, now) {
                return Some(granted);
            }
            // Leave requests in the queue until a row is free: a request of higher priority may
            // arrive.
            let has_room = |replica: &&&Replica| {
                let known = self.replicas.get(&replica.id);
                known.is_none_or(|known| known.rows() < replica.rows)
            };
            free.iter().find(has_room)?;
            let (ticket, waiter) = self.models.get_mut(&model.key())?.queue.pop()?;
            if let Some(grant) = self.grant_by_weight(model, &waiter.info, &free, now) {
                self.held_bytes -= waiter.bytes;
                return Some((grant, waiter.notifier));
            }
            let heads = &mut self.model(model).heads;
            let index = heads.partition_point(|(_, head)| head.info.priority <= waiter.info.priority);
            heads.insert(index, (ticket, waiter));
        }
    }

    /// Grants a replica to a request for several rows, in order of priority.
    ///
    /// Removes the replicas that such requests reserve from `free`. Stops at the first one with a
    /// lower priority than a queued request.
    fn next_multi_row(
        &mut self,
        model: &Model,
        free: &mut Vec<&Replica>,
        now: Instant,
    ) -> Option<(Grant, W)> {
        for index in 0.. {
            let state = self.models.get(&model.key())?;
            let (_, head) = state.heads.get(index)?;
            let most_urgent = state.queue.most_urgent();
            if most_urgent.is_some_and(|priority| priority < head.info.priority) {
                return None;
            }
            let info = head.info.clone();
            if let Some(grant) = self.grant_by_weight(model, &info, free, now) {
                let (_, waiter) = self.model(model).heads.remove(index);
                self.held_bytes -= waiter.bytes;
                return Some((grant, waiter.notifier));
            }
            let reserved = self.earliest_idle(free, now)?;
            free.retain(|replica| replica.id != reserved);
        }
        None
    }

    /// Returns the replica whose in-flight requests are expected to finish first.
    fn earliest_idle(&self, replicas: &[&Replica], now: Instant) -> Option<u64> {
        let left = |replica: &Replica| {
            let in_flight = self
                .replicas
                .get(&replica.id)
                .map(|known| known.in_flight.values());
            let left = in_flight.into_iter().flatten().map(|request| request.left(now));
            left.fold(0.0, f64::max)
        };
        let first = replicas.iter().min_by(|a, b| left(a).total_cmp(&left(b)));
        first.map(|replica| replica.id)
    }

    /// Returns the replicas in traffic that are not ejected, or all of them if all are ejected.
    fn usable<'a>(&self, model: &'a Model, now: Instant) -> Vec<&'a Replica> {
        let is_ejected = |replica: &&Replica| {
            let known = self.replicas.get(&replica.id);
            known.is_some_and(|known| known.health.state(now) == HealthState::Ejected)
        };
        let (ejected, usable): (Vec<_>, Vec<_>) = in_traffic(model).into_iter().partition(is_ejected);
        if usable.is_empty() { ejected } else { usable }
    }
}
