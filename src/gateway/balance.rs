//! Which of a model's replicas is tried first: the one with the fewest requests under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::table::{Model, Target};
use crate::proxy::Upstream;

/// A replica that could not be reached is tried last for this long.
const AVOID_FOR: Duration = Duration::from_secs(5);

/// Requests under way, by replica. Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Balance {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    outstanding: HashMap<Target, usize>,
    avoided_until: HashMap<Target, Instant>,
    turn: usize,
}

/// One request under way; ends when dropped.
#[derive(Debug)]
pub(super) struct Outstanding {
    balance: Balance,
    target: Target,
}

impl Balance {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's replicas in the order in which they should be tried. Equals take turns.
    pub(super) fn order(&self, model: &Model, now: Instant) -> Vec<(Target, Upstream)> {
        let mut targets = model.targets.clone();
        let mut state = self.lock();
        state.avoided_until.retain(|_, until| *until > now);
        state.turn = state.turn.wrapping_add(1);
        if !targets.is_empty() {
            let turn = state.turn % targets.len();
            targets.rotate_left(turn);
        }
        targets.sort_by_key(|(target, _)| {
            (
                state.avoided_until.contains_key(target),
                state.outstanding.get(target).copied().unwrap_or(0),
            )
        });
        targets
    }

    pub(super) fn begin(&self, target: &Target) -> Outstanding {
        *self.lock().outstanding.entry(target.clone()).or_default() += 1;
        Outstanding {
            balance: self.clone(),
            target: target.clone(),
        }
    }

    /// The replica could not be reached.
    pub(super) fn avoid(&self, target: &Target, now: Instant) {
        self.lock().avoided_until.insert(target.clone(), now + AVOID_FOR);
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> usize {
        self.lock().outstanding.values().sum()
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let mut state = self.balance.lock();
        if let Some(count) = state.outstanding.get_mut(&self.target) {
            *count -= 1;
            if *count == 0 {
                state.outstanding.remove(&self.target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};

    fn model(replicas: &[&str]) -> Model {
        let targets = replicas.iter().map(|name| {
            let target = Target {
                namespace: "default".to_owned(),
                replica: (*name).to_owned(),
            };
            (target, Upstream::unix("/x"))
        });
        Model {
            targets: targets.collect(),
            ..Model::default()
        }
    }

    #[test]
    fn the_least_busy_is_first_equals_take_turns_and_the_unreachable_is_last() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let balance = Balance::default();
        let model = model(&["a", "b", "c"]);
        let order = || {
            let order = balance.order(&model, clock.instant());
            order
                .into_iter()
                .map(|(target, _)| target.replica)
                .collect::<Vec<_>>()
        };
        let mut firsts: Vec<_> = (0..3).map(|_| order()[0].clone()).collect();
        firsts.sort();
        assert_eq!(firsts, ["a", "b", "c"]);

        let (a, b) = (&model.targets[0].0, &model.targets[1].0);
        let under_way = [balance.begin(a), balance.begin(a), balance.begin(b)];
        assert_eq!(order(), ["c", "b", "a"]);
        drop(under_way);
        assert_eq!(balance.outstanding(), 0);

        balance.avoid(a, clock.instant());
        assert_eq!(order()[2], "a");
        manual.advance(AVOID_FOR);
        let mut firsts: Vec<_> = (0..3).map(|_| order()[0].clone()).collect();
        firsts.sort();
        assert_eq!(firsts, ["a", "b", "c"]);
    }
}
