//! Which replica a request goes to: a pure function of what is known of each.

use std::cmp::Reverse;

use super::affinity::weight;
use super::estimate::Estimate;
use super::health::Standing;

/// A replica, as one request sees it.
#[derive(Debug, Clone)]
pub(crate) struct Candidate<'a> {
    pub(crate) id: u64,
    pub(crate) revision: Option<&'a str>,
    pub(crate) standing: Standing,
    /// Rows that are taken, and all there are.
    pub(crate) rows: (u32, u32),
    /// Requests that other gateways have there. They make nobody wait here: whether they still run is not known.
    pub(crate) others: u32,
    /// Bytes of the prompt that it has seen before.
    pub(crate) seen_bytes: u64,
    pub(crate) estimate: Estimate,
    /// When it was chosen last; lower is longer ago.
    pub(crate) last_chosen: u64,
}

/// What the request would like, besides being answered soon.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes<'a> {
    pub(crate) rows: u32,
    /// The revision whose turn it is, where traffic is divided between revisions.
    pub(crate) revision: Option<&'a str>,
    pub(crate) session: Option<u64>,
    /// What the prompt has in common with others that begin alike.
    pub(crate) beginning: Option<u64>,
    /// Whether a replica without a free row will do as well.
    pub(crate) may_queue: bool,
}

/// Lower is better; fields compare from top to bottom.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    left_out: bool,
    full: bool,
    other_revision: bool,
    away_from_home: bool,
    finish: i32,
    unseen: Reverse<u64>,
    rows: u32,
    turn: u64,
}

/// Predictions that differ by less than this ratio do not differ: the predictor's own interval is about as wide.
const SAME_FINISH: f64 = 1.25;

/// Equal numbers mean: as soon as one another.
fn finish_step(seconds: f64) -> i32 {
    (seconds.max(1e-3).ln() / SAME_FINISH.ln()).floor() as i32
}

impl Candidate<'_> {
    fn has_room(&self, rows: u32) -> bool {
        let (taken, all) = self.rows;
        // What needs more rows than there are waits in the worker.
        taken.saturating_add(rows) <= all || taken == 0 || rows == 0
    }

    /// Whether it may have no room when the others' requests are counted in.
    fn is_crowded(&self, rows: u32) -> bool {
        let (ours, all) = self.rows;
        let taken = ours.saturating_add(self.others);
        taken > 0 && rows > 0 && taken.saturating_add(rows) > all
    }
}

/// The index of the best one. `None` if all are full, or there are none.
pub(crate) fn choose(candidates: &[Candidate<'_>], wishes: Wishes<'_>) -> Option<usize> {
    let of_revision =
        |candidate: &Candidate<'_>| wishes.revision.is_none() || candidate.revision == wishes.revision;
    let home = wishes.session.and_then(|session| {
        let usable = candidates
            .iter()
            .filter(|candidate| candidate.standing != Standing::LeftOut && of_revision(candidate));
        usable
            .max_by_key(|candidate| weight(session, candidate.id))
            .map(|candidate| candidate.id)
    });
    let score = |candidate: &Candidate<'_>| Score {
        // One on trial takes its turn as the good do, or nothing would ever tell that it is well again.
        left_out: candidate.standing == Standing::LeftOut,
        full: candidate.is_crowded(wishes.rows),
        other_revision: !of_revision(candidate),
        away_from_home: home.is_some_and(|home| home != candidate.id),
        finish: finish_step(candidate.estimate.finish),
        unseen: Reverse(candidate.seen_bytes),
        rows: candidate.rows.0.saturating_add(candidate.others),
        turn: wishes.beginning.map_or(candidate.last_chosen, |beginning| {
            !weight(beginning, candidate.id)
        }),
    };
    let mut best = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.standing == Standing::LeftOut && any_in_use(candidates)
            || !(wishes.may_queue || candidate.has_room(wishes.rows))
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

/// Whether any replica need not be left out. One that is full will have room before one that is silent answers.
fn any_in_use(candidates: &[Candidate<'_>]) -> bool {
    candidates
        .iter()
        .any(|candidate| candidate.standing != Standing::LeftOut)
}

/// Divides requests between revisions by weight, evenly: smooth weighted round robin, as nginx has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    credit: Vec<(String, i64)>,
}

impl Shares {
    /// Whose turn it is. `None` if no weight is above zero.
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

/// The revision a session stays with, by the same weights.
pub(crate) fn share_of(session: u64, weights: &[(String, u32)]) -> Option<&str> {
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

    /// `ID finish=SECONDS rows=TAKEN/ALL others=REQUESTS seen=BYTES rev=NAME chosen=TURN half|out`, one per word group.
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
                standing: match () {
                    () if words().any(|word| word == "out") => Standing::LeftOut,
                    () if words().any(|word| word == "half") => Standing::HalfOpen,
                    () => Standing::Good,
                },
                rows: (taken.parse().expect("a number"), all.parse().expect("a number")),
                others: field("others").map_or(0, |text| text.parse().expect("a number")),
                seen_bytes: field("seen").map_or(0, |text| text.parse().expect("a number")),
                estimate: Estimate {
                    first_token: 0.0,
                    finish,
                },
                last_chosen: field("chosen").map_or(0, |text| text.parse().expect("a number")),
            }
        };
        text.split(';').map(one).collect()
    }

    fn check(text: &str, wishes: Wishes<'_>, expect: Option<u64>) {
        let candidates = candidates(text);
        let chosen = choose(&candidates, wishes).map(|index| candidates[index].id);
        assert_eq!(chosen, expect, "{text}");
    }

    #[test]
    fn who_ends_first_is_asked_and_among_equals_who_has_seen_the_prompt() {
        let one = Wishes {
            rows: 1,
            ..Wishes::default()
        };
        check("1 finish=3; 2 finish=1; 3 finish=2", one, Some(2));
        check("1 finish=1.0; 2 finish=1.05 seen=2048", one, Some(2));
        check("1 finish=1.0; 2 finish=5 seen=2048", one, Some(1));
        check("1 rows=2/4; 2 rows=1/4", one, Some(2));
        check("1 chosen=7; 2 chosen=3; 3 chosen=5", one, Some(2));
    }

    #[test]
    fn a_full_one_is_not_asked_and_a_failing_one_only_when_there_is_no_other() {
        let one = Wishes {
            rows: 1,
            ..Wishes::default()
        };
        check("1 rows=4/4; 2 finish=99", one, Some(2));
        check("1 rows=4/4; 2 rows=4/4", one, None);
        check("1 rows=4/4; 2 out", one, None);
        check("1 out finish=9; 2 out", one, Some(2));
        check("1 half; 2 finish=99", one, Some(1));
        check("1 half chosen=3; 2 chosen=7", one, Some(1));
        check("1 half chosen=7; 2 chosen=3", one, Some(2));
        check("1 half; 2 rows=4/4", one, Some(1));
        let many = Wishes { rows: 9, ..one };
        check("1 rows=1/4; 2 rows=0/4", many, Some(2));
        let again = Wishes {
            may_queue: true,
            ..one
        };
        check("1 rows=4/4 finish=9; 2 rows=4/4 finish=2", again, Some(2));
        let nothing = Wishes { rows: 0, ..one };
        check("1 rows=4/4", nothing, Some(1));
    }

    #[test]
    fn who_is_used_by_other_gateways_comes_later_and_keeps_nobody_waiting() {
        let one = Wishes {
            rows: 1,
            ..Wishes::default()
        };
        check("1 rows=0/4 others=2; 2 rows=1/4", one, Some(2));
        check("1 rows=0/4 others=4; 2 rows=3/4 finish=9", one, Some(2));
        check("1 rows=0/4 others=9", one, Some(1));
    }

    #[test]
    fn a_session_stays_home_while_home_has_room() {
        let wish = Wishes {
            rows: 1,
            session: Some(42),
            ..Wishes::default()
        };
        let home = (1..=3).max_by_key(|id| weight(42, *id)).expect("three");
        let others: Vec<_> = (1..=3).filter(|id| *id != home).collect();
        check(
            &format!("{home} finish=90; {} finish=1; {} finish=1", others[0], others[1]),
            wish,
            Some(home),
        );
        check(
            &format!("{home} rows=4/4; {} finish=9; {} finish=1", others[0], others[1]),
            wish,
            Some(others[1]),
        );
    }

    #[test]
    fn a_revision_whose_turn_it_is_comes_first_but_makes_nobody_wait() {
        let wish = Wishes {
            rows: 1,
            revision: Some("b"),
            ..Wishes::default()
        };
        check("1 rev=a; 2 rev=b finish=9", wish, Some(2));
        check("1 rev=a; 2 rev=b rows=4/4", wish, Some(1));
        check("1 rev=a; 2 rev=b out", wish, Some(1));
    }

    #[test]
    fn gateways_agree_where_an_unseen_beginning_goes() {
        let wish = Wishes {
            rows: 1,
            beginning: Some(99),
            ..Wishes::default()
        };
        let at = |order: [u64; 2]| {
            let text = format!("1 chosen={}; 2 chosen={}", order[0], order[1]);
            choose(&candidates(&text), wish)
        };
        assert_eq!(at([3, 9]), at([9, 3]));
    }

    #[test]
    fn weights_are_kept_over_any_stretch() {
        let weights = [("a".to_owned(), 90), ("b".to_owned(), 10), ("c".to_owned(), 0)];
        let mut shares = Shares::default();
        let got: Vec<_> = (0..100).map(|_| shares.next(&weights).expect("one")).collect();
        for stretch in got.chunks(10) {
            assert_eq!(stretch.iter().filter(|name| **name == "b").count(), 1, "{got:?}");
        }
        assert_eq!(shares.next(&[("a".to_owned(), 0)]), None);
        assert_eq!(shares.next(&[]), None);
        assert_eq!(share_of(7, &[]), None);
        assert_eq!(
            (share_of(89, &weights), share_of(190, &weights)),
            (Some("a"), Some("b"))
        );
    }

    proptest! {
        #[test]
        fn nobody_is_asked_beyond_their_room_while_asking_can_wait(
            rows in proptest::collection::vec((0u32..6, 1u32..6, 0.0f64..100.0), 0..8), need in 1u32..4,
        ) {
            let all: Vec<_> = rows.iter().enumerate().map(|(id, (taken, all, finish))| Candidate {
                id: id as u64,
                revision: None,
                standing: Standing::Good,
                rows: (*taken, *all),
                others: 0,
                seen_bytes: 0,
                estimate: Estimate { first_token: 0.0, finish: *finish },
                last_chosen: 0,
            }).collect();
            let chosen = choose(&all, Wishes { rows: need, ..Wishes::default() });
            match chosen {
                Some(index) => prop_assert!(all[index].has_room(need)),
                None => prop_assert!(all.iter().all(|candidate| !candidate.has_room(need))),
            }
        }
    }
}
