//! Keeps an answer within a grammar: at each place, the tokens that may come next. What has been
//! found out about a grammar is shared by all answers that are held to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::Grammar;
use super::mask::Mask;
use super::matcher::{Automaton, DEAD, Places, StateId, TooAmbiguous};
use super::vocabulary::Vocabulary;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// Masks that are kept for one grammar: 20 KB each where the vocabulary has 150,000 tokens.
const MAX_MASKS: usize = 128;
/// Places that may be looked at for one mask: some hundredths of a second, in which nobody else
/// gets a token.
const MAX_WORK: usize = 1_000_000;
/// Of them, to find out how much plain text may follow. What that saves is not worth more.
const MAX_PLAIN_WORK: usize = 200_000;

/// Why an answer cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error(transparent)]
    TooAmbiguous(#[from] TooAmbiguous),
    #[error("no token of the model's vocabulary goes on with what its answer has to be")]
    NoToken,
    #[error("token {0} was chosen, which the answer must not have here")]
    NotAllowed(u32),
}

/// One answer's place in a grammar.
#[derive(Debug, Clone)]
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    /// Complete after every step, whoever held it before.
    known: Arc<Mutex<Known>>,
    here: Arc<Places>,
    /// Its number, and since when.
    state: (StateId, Age),
}

/// How often states have been forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Age(u64);

/// What has been found out about a grammar.
#[derive(Debug)]
struct Known {
    automaton: Automaton,
    /// Each with when it was last asked for.
    masks: HashMap<StateId, (Arc<Mask>, u64)>,
    asked: u64,
    age: Age,
}

impl Constraint {
    pub fn new(grammar: Arc<Grammar>, vocabulary: Arc<Vocabulary>) -> Result<Self, ConstraintError> {
        let automaton = Automaton::new(grammar)?;
        let start = automaton.start();
        Ok(Self {
            vocabulary,
            here: Arc::clone(automaton.places(start)),
            state: (start, Age(0)),
            known: Arc::new(Mutex::new(Known {
                automaton,
                masks: HashMap::new(),
                asked: 0,
                age: Age(0),
            })),
        })
    }

    /// Other answers had better begin with nothing known.
    pub fn is_worn(&self) -> bool {
        lock(&self.known).automaton.is_worn()
    }

    /// About what is kept for all answers that are held to it; `None` while one of them asks for
    /// more.
    pub fn bytes(&self) -> Option<Bytes> {
        let known = self.known.try_lock().ok()?;
        let masks: usize = known.masks.values().map(|(mask, _)| mask.bytes()).sum();
        Some(Bytes((known.automaton.bytes() + masks) as u64))
    }

    /// The tokens that may come next: at least one.
    pub fn mask(&mut self) -> Result<Arc<Mask>, ConstraintError> {
        let mut known = lock(&self.known);
        known.tidy();
        self.state = known.find(&self.here, self.state);
        let (state, _) = self.state;
        known.asked += 1;
        let asked = known.asked;
        if let Some((mask, last)) = known.masks.get_mut(&state) {
            *last = asked;
            return Ok(Arc::clone(mask));
        }
        let mask = walk(&self.vocabulary, &mut known.automaton, state)?;
        if mask.is_empty() {
            return Err(ConstraintError::NoToken);
        }
        let mask = Arc::new(mask);
        known.masks.insert(state, (Arc::clone(&mask), asked));
        Ok(mask)
    }

    /// Takes the token that was chosen; not one that ends the text.
    pub fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        let not_allowed = ConstraintError::NotAllowed(token);
        let bytes = self.vocabulary.bytes(token).ok_or(not_allowed)?;
        let mut known = lock(&self.known);
        let (from, age) = known.find(&self.here, self.state);
        let to = known.automaton.read(from, bytes)?;
        if to == DEAD {
            return Err(not_allowed);
        }
        self.here = Arc::clone(known.automaton.places(to));
        self.state = (to, age);
        Ok(())
    }

    /// The answer is whole, and nothing can follow.
    pub fn is_complete(&self) -> bool {
        self.here.is_accepting() && self.here.is_at_end()
    }
}

impl Known {
    /// Keeps what is known within bounds.
    fn tidy(&mut self) {
        if self.automaton.is_large() {
            self.automaton.forget_states();
            self.age.0 += 1;
            self.masks.clear();
        }
        if self.masks.len() >= MAX_MASKS
            && let Some(oldest) = self.masks.values().map(|(_, last)| *last).min()
        {
            self.masks.retain(|_, (_, last)| *last != oldest);
        }
    }

    /// The number that these places have now.
    fn find(&mut self, places: &Arc<Places>, (state, age): (StateId, Age)) -> (StateId, Age) {
        match age == self.age {
            true => (state, age),
            false => (self.automaton.state_of(places), self.age),
        }
    }
}

fn walk(vocabulary: &Vocabulary, automaton: &mut Automaton, state: StateId) -> Result<Mask, TooAmbiguous> {
    let begin = automaton.work();
    let plain = automaton.plain_characters(state, Vocabulary::most_plain_characters(), MAX_PLAIN_WORK)?;
    let slice = vocabulary.slice(plain);
    let mut mask = slice.fitting.clone();
    if automaton.places(state).is_accepting() {
        vocabulary
            .end_tokens()
            .iter()
            .for_each(|token| mask.allow(*token));
    }
    // States on the way down, each with where its nodes end.
    let mut way: Vec<(StateId, u32)> = Vec::new();
    let mut place = 0_u32;
    while let Some(node) = slice.others.get(place as usize) {
        if automaton.work() - begin > MAX_WORK {
            return Err(TooAmbiguous);
        }
        while way.last().is_some_and(|(_, end)| *end <= place) {
            way.pop();
        }
        let from = way.last().map_or(state, |(state, _)| *state);
        let to = automaton.step(from, node.byte)?;
        if to == DEAD {
            place = node.end;
            continue;
        }
        if let Some(token) = node.token() {
            mask.allow(token);
            vocabulary.same(token).iter().for_each(|same| mask.allow(*same));
        }
        way.push((to, node.end));
        place += 1;
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{grammar, guide, matching};
    use super::{Constraint, ConstraintError, MAX_WORK, TooAmbiguous, Vocabulary, lock};

    #[test]
    fn answers_go_on_where_states_were_forgotten() {
        let digits = grammar(|builder| {
            let digit = builder.literal(b"7", super::super::RETURN);
            builder.repeat(digit, 3, Some(3), super::super::RETURN)
        });
        let vocabulary = Arc::new(Vocabulary::of([b"7".to_vec(), b"77".to_vec()], vec![]));
        let mut one = Constraint::new(digits, vocabulary).unwrap();
        let mut other = one.clone();
        let allows = |constraint: &mut Constraint| {
            constraint
                .mask()
                .map(|mask| [0, 1].map(|token| mask.allows(token)))
        };
        one.take(0).unwrap();
        assert_eq!(allows(&mut one), Ok([true, true]));
        {
            let mut known = lock(&one.known);
            known.automaton.forget_states();
            known.age.0 += 1;
            known.masks.clear();
        }
        other.take(1).unwrap();
        assert_eq!(allows(&mut other), Ok([true, false]));
        one.take(0).unwrap();
        assert_eq!(allows(&mut one), Ok([true, false]));
        one.take(0).unwrap();
        assert!(one.is_complete() && !other.is_complete());
    }
    /// Every character may be the one that ends a part, so that what follows twenty of them is one
    /// of a million states.
    #[test]
    fn patterns_that_are_unsure_of_their_place_take_little_all_the_same() {
        let tokenizer = guide();
        let vocabulary = Arc::new(Vocabulary::new(&tokenizer, 1024).unwrap());
        for pattern in [
            "^.{1,40}: .{1,80}$",
            "@.{2,30}$",
            "^(.{3,30}; ){1,3}.{3,30}$",
            "^.{1,20}( .{1,20}){0,4}$",
            "^(.{0,34}){0,34}$",
        ] {
            let mut constraint = Constraint::new(matching(pattern), Arc::clone(&vocabulary)).unwrap();
            for token in tokenizer.encode_chat("to: all; of us: @ you").unwrap() {
                let before = lock(&constraint.known).automaton.work();
                let allows = constraint.mask().unwrap().allows(token);
                let work = lock(&constraint.known).automaton.work() - before;
                assert!(work < MAX_WORK / 2, "{pattern}: {work}");
                if allows {
                    constraint.take(token).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_mask_that_takes_too_long_is_given_up() {
        let token = |number: u32| (0..17).map(|bit| b"cx"[(number >> bit & 1) as usize]).collect();
        let vocabulary = Arc::new(Vocabulary::of(
            (0..1 << 17).map(token).collect::<Vec<Vec<u8>>>(),
            vec![],
        ));
        let mut constraint = Constraint::new(matching("^[cx]*c[cx]{17}$"), vocabulary).unwrap();
        let given_up = constraint.mask().err();
        assert_eq!(given_up, Some(ConstraintError::TooAmbiguous(TooAmbiguous)));
    }
}
