//! Which times to the first token tell of the replicas that answer now. Pure.
//!
//! A replica reports the median of its last requests. After others have joined it, that still speaks of the time before, when it
//! had to do their work too, and so do those requests that had waited for them.

use std::collections::BTreeMap;

/// A replica that answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answering {
    /// Its uid.
    pub replica: String,
    /// Requests that it has answered since its worker was started.
    pub completed: u64,
    pub first_token: Option<FirstToken>,
}

/// A median of the last requests of a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstToken {
    pub seconds: f64,
    /// How many they are.
    pub requests: u64,
}

/// When the newest of the replicas that answer had its effect, by what they had answered then.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Joined {
    /// Of each replica that answers, by uid.
    completed: BTreeMap<String, u64>,
    /// Requests that were there already when it came, and are not answered yet.
    backlog: u64,
}

impl Joined {
    /// Notes who answers now, and how many requests there are. What was measured before the first look counts: nothing is known
    /// of it.
    pub(super) fn see(&mut self, answering: &[Answering], requests: u64) {
        let before = std::mem::take(&mut self.completed);
        // A worker that was started again counts from zero.
        let known = |one: &Answering| {
            let known = before.get(&one.replica).copied();
            known.map(|known| if known <= one.completed { known } else { 0 })
        };
        let has_grown = !before.is_empty() && answering.iter().any(|one| known(one).is_none());
        let answered: u64 = answering
            .iter()
            .filter_map(|one| Some(one.completed - known(one)?))
            .sum();
        let moves = has_grown || self.backlog > 0;
        self.backlog = match has_grown {
            true => requests,
            false => self.backlog.saturating_sub(answered),
        };
        let completed = |one: &Answering| {
            if moves {
                one.completed
            } else {
                known(one).unwrap_or(0)
            }
        };
        self.completed = answering
            .iter()
            .map(|one| (one.replica.clone(), completed(one)))
            .collect();
    }

    /// Mean over the replicas of whose last requests most came after that; `None` where there are none.
    pub(super) fn mean(&self, answering: &[Answering]) -> Option<f64> {
        let seconds: Vec<_> = answering
            .iter()
            .filter_map(|one| {
                let first_token = one.first_token?;
                let before = self.completed.get(&one.replica)?;
                let since = one.completed.saturating_sub(*before);
                (2 * since > first_token.requests).then_some(first_token.seconds)
            })
            .collect();
        let count = u32::try_from(seconds.len()).ok().filter(|count| *count > 0)?;
        Some(seconds.iter().sum::<f64>() / f64::from(count))
    }
}
