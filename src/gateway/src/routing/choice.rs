//! Choice of a replica for a request, as a pure function of the candidates.

use std::cmp::Reverse;

use super::affinity::weight;
use super::estimate::Estimate;
use super::health::HealthState;

/// Replica that may get a request, with all inputs of the choice.
#[derive(Debug, Clone)]
pub(crate) struct Candidate<'a> {
    pub(crate) id: u64,
    pub(crate) revision: Option<&'a str>,
    pub(crate) health: HealthState,
    /// Occupied rows and total rows.
    pub(crate) rows: (u32, u32),
    /// Last observed requests of other gateways. They affect the ranking but never make a replica
    /// full, because they may have finished.
    pub(crate) external: u32,
    /// Bytes of the prompt's prefix that the replica has received before.
    pub(crate) cached_bytes: u64,
    pub(crate) estimate: Estimate,
    /// Sequence number of the last grant; lower is longer ago.
    pub(crate) last_chosen: u64,
}

/// Requirements and preferences of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Preferences<'a> {
    pub(crate) rows: u32,
    /// Preferred revision, if traffic is split between revisions.
    pub(crate) revision: Option<&'a str>,
    pub(crate) session: Option<u64>,
    /// Hash of the prompt's first block; see [`Prefix::first`](super::affinity::Prefix::first).
    pub(crate) prompt_start: Option<u64>,
    /// True if the request may queue in a worker without a free row.
    pub(crate) may_queue: bool,
}

/// Score of a candidate. Lower is better; fields compare from top to bottom.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    ejected: bool,
    full: bool,
    other_revision: bool,
    not_preferred_replica: bool,
    finish: i32,
    cached: Reverse<u64>,
    rows: u32,
    tie_break: u64,
}

/// Width of a bucket of finish times. Predictions of one bucket compare as equal, because the
/// prediction interval is about as wide.
const FINISH_BUCKET_RATIO: f64 = 1.25;

/// Returns the bucket of a finish time.
fn finish_bucket(seconds: f64) -> i32 {
    (seconds.max(1e-3).ln() / FINISH_BUCKET_RATIO.ln()).floor() as i32
}

impl Candidate<'_> {
    fn has_room(&self, rows: u32) -> bool {
        let (taken, all) = self.rows;
        // A request for more rows than the replica has queues in the worker.
        taken.saturating_add(rows) <= all || taken == 0 || rows == 0
    }

    /// Returns whether requests of other gateways may occupy the rows that the request needs.
    fn may_be_full(&self, rows: u32) -> bool {
        let (own, all) = self.rows;
        let taken = own.saturating_add(self.external);
        taken > 0 && rows > 0 && taken.saturating_add(rows) > all
    }
}

/// Returns the index of the best candidate, or `None` if no candidate accepts the request.
pub(crate) fn choose(candidates: &[Candidate<'_>], preferences: Preferences<'_>) -> Option<usize> {
    let is_of_revision = |candidate: &Candidate<'_>| {
        preferences.revision.is_none() || candidate.revision == preferences.revision
    };
    let session_replica = preferences.session.and_then(|session| {
        let usable = candidates
            .iter()
            .filter(|candidate| candidate.health != HealthState::Ejected && is_of_revision(candidate));
        usable
            .max_by_key(|candidate| weight(session, candidate.id))
            .map(|candidate| candidate.id)
    });
    let score = |candidate: &Candidate<'_>| Score {
        // A half-open replica ranks like a healthy one. Otherwise no request would ever probe it.
        ejected: candidate.health == HealthState::Ejected,
        full: candidate.may_be_full(preferences.rows),
        other_revision: !is_of_revision(candidate),
        not_preferred_replica: session_replica.is_some_and(|session_replica| session_replica != candidate.id),
        finish: finish_bucket(candidate.estimate.finish),
        cached: Reverse(candidate.cached_bytes),
        rows: candidate.rows.0.saturating_add(candidate.external),
        tie_break: preferences
            .prompt_start
            .map_or(candidate.last_chosen, |prompt_start| {
                !weight(prompt_start, candidate.id)
            }),
    };
    let mut best = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.health == HealthState::Ejected && any_not_ejected(candidates)
            || !(preferences.may_queue || candidate.has_room(preferences.rows))
        {
            continue;
        }
        let score = score(candidate);
        if best.as_ref().is_none_or(|(_, least)| score < *least) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// Returns whether any candidate is not ejected. Ejected replicas get requests only if all are
/// ejected: a full replica is likely to become free before a failing one recovers.
fn any_not_ejected(candidates: &[Candidate<'_>]) -> bool {
    candidates
        .iter()
        .any(|candidate| candidate.health != HealthState::Ejected)
}

/// Distribution of requests to revisions by weight: smooth weighted round robin, as in nginx.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WeightedRoundRobin {
    credit: Vec<(String, i64)>,
}

impl WeightedRoundRobin {
    /// Returns the next revision, or `None` if all weights are 0.
    pub(crate) fn next<'a>(&mut self, weights: &'a [(String, u32)]) -> Option<&'a str> {
        self.credit
            .retain(|(name, _)| weights.iter().any(|(known, _)| known == name));
        let total: i64 = weights.iter().map(|(_, weight)| i64::from(*weight)).sum();
        let mut best: Option<(&'a str, i64)> = None;
        for (name, weight) in weights.iter().filter(|(_, weight)| *weight > 0) {
            let credit = match self.credit.iter_mut().find(|(known, _)| known == name) {
                Some((_, credit)) => credit,
                None => {
                    self.credit.push((name.clone(), 0));
                    &mut self.credit.last_mut().expect("just pushed").1
                }
            };
            *credit += i64::from(*weight);
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((name, *credit));
            }
        }
        let (best, _) = best?;
        if let Some((_, credit)) = self.credit.iter_mut().find(|(name, _)| name == best) {
            *credit -= total;
        }
        Some(best)
    }
}

/// Returns the revision of a session, with the weights as probabilities.
pub(crate) fn session_revision(session: u64, weights: &[(String, u32)]) -> Option<&str> {
    let total: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut point = session.checked_rem(total)?;
    for (name, weight) in weights {
        match point.checked_sub(u64::from(*weight)) {
            Some(left) => point = left,
            None => return Some(name),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses candidates separated by `;`: `ID finish=SECONDS rows=TAKEN/ALL external=REQUESTS
    /// cached=BYTES rev=NAME chosen=TURN half-open|ejected`.
    fn candidates(text: &str) -> Vec<Candidate<'_>> {
        let one = |line| {
            let words = || str::split_whitespace(line);
            let field = |key: &str| words().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            let (taken, all) = field("rows")
                .unwrap_or("0/4")
                .split_once('/')
                .expect("two numbers");
            let finish = field("finish").map_or(1.0, |text| text.parse().expect("a number"));
            Candidate {
                id: words().next().expect("an id").parse().expect("a number"),
                revision: field("rev"),
                health: match () {
                    () if words().any(|word| word == "ejected") => HealthState::Ejected,
                    () if words().any(|word| word == "half-open") => HealthState::HalfOpen,
                    () => HealthState::Healthy,
                },
                rows: (taken.parse().expect("a number"), all.parse().expect("a number")),
                external: field("external").map_or(0, |text| text.parse().expect("a number")),
                cached_bytes: field("cached").map_or(0, |text| text.parse().expect("a number")),
                estimate: Estimate {
                    first_token: 0.0,
                    finish,
                },
                last_chosen: field("chosen").map_or(0, |text| text.parse().expect("a number")),
            }
        };
        text.split(';').map(one).collect()
    }

    fn check(text: &str, preferences: Preferences<'_>, expect: Option<u64>) {
        let candidates = candidates(text);
        let chosen = choose(&candidates, preferences).map(|index| candidates[index].id);
        assert_eq!(chosen, expect, "{text}");
    }

    #[test]
    fn prefers_earliest_finish_then_cached_prefix() {
        let one = Preferences {
            rows: 1,
            ..Preferences::default()
        };
        check("1 finish=3; 2 finish=1; 3 finish=2", one, Some(2));
        check("1 finish=1.0; 2 finish=1.05 cached=2048", one, Some(2));
        check("1 finish=1.0; 2 finish=5 cached=2048", one, Some(1));
        check("1 rows=2/4; 2 rows=1/4", one, Some(2));
        check("1 chosen=7; 2 chosen=3; 3 chosen=5", one, Some(2));
    }

    #[test]
    fn skips_full_replicas_and_ejected_ones_unless_all_are_ejected() {
        let one = Preferences {
            rows: 1,
            ..Preferences::default()
        };
        check("1 rows=4/4; 2 finish=99", one, Some(2));
        check("1 rows=4/4; 2 rows=4/4", one, None);
        check("1 rows=4/4; 2 ejected", one, None);
        check("1 ejected finish=9; 2 ejected", one, Some(2));
        check("1 half-open; 2 finish=99", one, Some(1));
        check("1 half-open chosen=3; 2 chosen=7", one, Some(1));
        check("1 half-open chosen=7; 2 chosen=3", one, Some(2));
        check("1 half-open; 2 rows=4/4", one, Some(1));
        let many = Preferences { rows: 9, ..one };
        check("1 rows=1/4; 2 rows=0/4", many, Some(2));
        let again = Preferences {
            may_queue: true,
            ..one
        };
        check("1 rows=4/4 finish=9; 2 rows=4/4 finish=2", again, Some(2));
        let nothing = Preferences { rows: 0, ..one };
        check("1 rows=4/4", nothing, Some(1));
    }

    #[test]
    fn replicas_busy_with_other_gateways_rank_last_but_never_block() {
        let one = Preferences {
            rows: 1,
            ..Preferences::default()
        };
        check("1 rows=0/4 external=2; 2 rows=1/4", one, Some(2));
        check("1 rows=0/4 external=4; 2 rows=3/4 finish=9", one, Some(2));
        check("1 rows=0/4 external=9", one, Some(1));
    }

    #[test]
    fn session_keeps_its_replica_while_that_has_a_free_row() {
        let preferences = Preferences {
            rows: 1,
            session: Some(42),
            ..Preferences::default()
        };
        let session_replica = (1..=3).max_by_key(|id| weight(42, *id)).expect("three");
        let others: Vec<_> = (1..=3).filter(|id| *id != session_replica).collect();
        check(
            &format!(
                "{session_replica} finish=90; {} finish=1; {} finish=1",
                others[0], others[1]
            ),
            preferences,
            Some(session_replica),
        );
        check(
            &format!(
                "{session_replica} rows=4/4; {} finish=9; {} finish=1",
                others[0], others[1]
            ),
            preferences,
            Some(others[1]),
        );
    }

    #[test]
    fn prefers_the_next_revision_but_never_waits_for_it() {
        let preferences = Preferences {
            rows: 1,
            revision: Some("b"),
            ..Preferences::default()
        };
        check("1 rev=a; 2 rev=b finish=9", preferences, Some(2));
        check("1 rev=a; 2 rev=b rows=4/4", preferences, Some(1));
        check("1 rev=a; 2 rev=b ejected", preferences, Some(1));
    }

    #[test]
    fn all_gateways_choose_the_same_replica_for_an_unknown_prefix() {
        let preferences = Preferences {
            rows: 1,
            prompt_start: Some(99),
            ..Preferences::default()
        };
        let at = |order: [u64; 2]| {
            let text = format!("1 chosen={}; 2 chosen={}", order[0], order[1]);
            choose(&candidates(&text), preferences)
        };
        assert_eq!(at([3, 9]), at([9, 3]));
    }

    #[test]
    fn every_ten_requests_follow_the_weights() {
        let weights = [("a".to_owned(), 90), ("b".to_owned(), 10), ("c".to_owned(), 0)];
        let mut round_robin = WeightedRoundRobin::default();
        let got: Vec<_> = (0..100)
            .map(|_| round_robin.next(&weights).expect("one"))
            .collect();
        for window in got.chunks(10) {
            assert_eq!(window.iter().filter(|name| **name == "b").count(), 1, "{got:?}");
        }
        assert_eq!(round_robin.next(&[("a".to_owned(), 0)]), None);
        assert_eq!(round_robin.next(&[]), None);
        assert_eq!(session_revision(7, &[]), None);
        assert_eq!(
            (session_revision(89, &weights), session_revision(190, &weights)),
            (Some("a"), Some("b"))
        );
    }

    proptest! {
        #[test]
        fn never_chooses_a_full_replica_unless_the_request_may_queue(
            rows in proptest::collection::vec((0u32..6, 1u32..6, 0.0f64..100.0), 0..8), need in 1u32..4,
        ) {
            let all: Vec<_> = rows.iter().enumerate().map(|(id, (taken, all, finish))| Candidate {
                id: id as u64,
                revision: None,
                health: HealthState::Healthy,
                rows: (*taken, *all),
                external: 0,
                cached_bytes: 0,
                estimate: Estimate { first_token: 0.0, finish: *finish },
                last_chosen: 0,
            }).collect();
            let chosen = choose(&all, Preferences { rows: need, ..Preferences::default() });
            match chosen {
                Some(index) => prop_assert!(all[index].has_room(need)),
                None => prop_assert!(all.iter().all(|candidate| !candidate.has_room(need))),
            }
        }
    }
}
