//! Constraint of an answer to a grammar: the permitted tokens at each position. All answers with
//! the same grammar share the computed states and masks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::Grammar;
use super::mask::Mask;
use super::matcher::{Automaton, DEAD, Positions, StateId, TooAmbiguous};
use super::unique::UniqueItems;
use super::vocabulary::Vocabulary;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// Maximum number of cached masks per grammar. A mask of 150,000 tokens has 20 KB.
const MAX_MASKS: usize = 128;
/// Maximum number of positions visited for one mask: some hundredths of a second, in which no other
/// sequence gets a token.
const MAX_WORK: usize = 1_000_000;
/// Share of [`MAX_WORK`] for the search of plain text. More work would cost more than it saves.
const MAX_PLAIN_WORK: usize = 200_000;

/// Error of a constrained answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error(transparent)]
    TooAmbiguous(#[from] TooAmbiguous),
    #[error("no token of the model's vocabulary continues the answer within its grammar")]
    NoToken,
    #[error("the grammar does not permit token {0} at this position")]
    NotAllowed(u32),
}

/// Grammar state of one answer.
#[derive(Debug, Clone)]
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    /// Consistent after every step, so that a poisoned lock is safe to use.
    shared: Arc<Mutex<SharedState>>,
    here: Arc<Positions>,
    /// Number of the current state, valid in this generation of the automaton.
    state: (StateId, Generation),
    /// `None` if the grammar has no lists of unique items.
    items: Option<UniqueItems>,
}

/// Number of times that the states were discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Generation(u64);

/// Computed part of a grammar's automaton, with its masks.
#[derive(Debug)]
struct SharedState {
    automaton: Automaton,
    /// Masks, each with the number of its last request.
    masks: HashMap<StateId, (Arc<Mask>, u64)>,
    requests: u64,
    generation: Generation,
}

impl Constraint {
    pub fn new(grammar: Arc<Grammar>, vocabulary: Arc<Vocabulary>) -> Result<Self, ConstraintError> {
        let automaton = Automaton::new(grammar)?;
        let start = automaton.start();
        Ok(Self {
            vocabulary,
            here: Arc::clone(automaton.positions(start)),
            state: (start, Generation(0)),
            items: automaton.has_unique_items().then(UniqueItems::default),
            shared: Arc::new(Mutex::new(SharedState {
                automaton,
                masks: HashMap::new(),
                requests: 0,
                generation: Generation(0),
            })),
        })
    }

    /// Returns true if the shared state is so large that other answers should start with a new one.
    pub fn needs_rebuild(&self) -> bool {
        lock(&self.shared).automaton.needs_rebuild()
    }

    /// Returns the approximate memory of the shared state, or `None` while another answer computes
    /// a mask.
    pub fn bytes(&self) -> Option<Bytes> {
        let shared = self.shared.try_lock().ok()?;
        let masks: usize = shared.masks.values().map(|(mask, _)| mask.bytes()).sum();
        Some(Bytes((shared.automaton.bytes() + masks) as u64))
    }

    /// Returns the tokens that are permitted next: at least one.
    pub fn mask(&mut self) -> Result<Arc<Mask>, ConstraintError> {
        let mut shared = lock(&self.shared);
        shared.tidy();
        self.state = shared.find(&self.here, self.state);
        let (state, _) = self.state;
        let mask = shared.mask(&self.vocabulary, state)?;
        match &self.items {
            Some(items) => without_repetitions(&self.vocabulary, &mut shared.automaton, (state, items), mask),
            None => Ok(mask),
        }
    }

    /// Appends the selected token, which must not be an end-of-sequence token.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let not_allowed = ConstraintError::NotAllowed(token);
        let bytes = self.vocabulary.bytes(token).ok_or(not_allowed)?;
        let mut shared = lock(&self.shared);
        let (from, generation) = shared.find(&self.here, self.state);
        let mut items = self.items.clone();
        let to = match &mut items {
            Some(items) => shared.automaton.read_unique(from, bytes, items)?,
            None => shared.automaton.read(from, bytes)?,
        };
        if to == DEAD {
            return Err(not_allowed);
        }
        // The set of items is shared until the copy is dropped.
        self.items = None;
        if let Some(items) = &mut items {
            items.keep();
        }
        self.items = items;
        self.here = Arc::clone(shared.automaton.positions(to));
        self.state = (to, generation);
        Ok(())
    }

    /// Returns true if the answer is complete and nothing can follow.
    pub fn is_complete(&self) -> bool {
        self.here.is_accepting() && self.here.is_at_end()
    }
}

impl SharedState {
    /// Returns the mask of a state.
    fn mask(&mut self, vocabulary: &Vocabulary, state: StateId) -> Result<Arc<Mask>, ConstraintError> {
        self.requests += 1;
        let request = self.requests;
        if let Some((mask, last)) = self.masks.get_mut(&state) {
            *last = request;
            return Ok(Arc::clone(mask));
        }
        let mask = walk(vocabulary, &mut self.automaton, state)?;
        if mask.is_empty() {
            return Err(ConstraintError::NoToken);
        }
        let mask = Arc::new(mask);
        self.masks.insert(state, (Arc::clone(&mask), request));
        Ok(mask)
    }

    /// Discards states or masks above the limits.
    fn tidy(&mut self) {
        if self.automaton.is_large() {
            self.automaton.forget_states();
            self.generation.0 += 1;
            self.masks.clear();
        }
        if self.masks.len() >= MAX_MASKS
            && let Some(oldest) = self.masks.values().map(|(_, last)| *last).min()
        {
            self.masks.retain(|_, (_, last)| *last != oldest);
        }
    }

    /// Returns the number of the state in the current generation.
    fn find(
        &mut self,
        positions: &Arc<Positions>,
        (state, generation): (StateId, Generation),
    ) -> (StateId, Generation) {
        match generation == self.generation {
            true => (state, generation),
            false => (self.automaton.state_of(positions), self.generation),
        }
    }
}

/// Removes the tokens after which an item repeats another one, or has to.
fn without_repetitions(
    vocabulary: &Vocabulary,
    automaton: &mut Automaton,
    (state, items): (StateId, &UniqueItems),
    mask: Arc<Mask>,
) -> Result<Arc<Mask>, ConstraintError> {
    let mut left = Mask::clone(&mask);
    let mut check = |token: u32| -> Result<(), ConstraintError> {
        if mask.allows(token)
            && let Some(bytes) = vocabulary.bytes(token)
            && automaton.read_unique(state, bytes, &mut items.clone())? == DEAD
        {
            left.forbid(token);
        }
        Ok(())
    };
    for token in vocabulary.ending_items(items) {
        check(*token)?;
    }
    // Inside an item, only texts that continue like another item can be unable to end as a new one.
    let next = items.next_bytes();
    let is_inside = items.current().is_some();
    if items.has_items() && !(is_inside && next.is_empty()) {
        for token in 0..u32::try_from(vocabulary.size()).unwrap_or(u32::MAX) {
            let first = vocabulary.bytes(token).and_then(<[u8]>::first);
            if mask.allows(token) && first.is_some_and(|first| !is_inside || next.contains(first)) {
                check(token)?;
            }
        }
    }
    match left.is_empty() {
        true => Err(ConstraintError::NoToken),
        false => Ok(Arc::new(left)),
    }
}

fn walk(vocabulary: &Vocabulary, automaton: &mut Automaton, state: StateId) -> Result<Mask, TooAmbiguous> {
    let begin = automaton.work();
    let plain = automaton.plain_characters(state, Vocabulary::most_plain_characters(), MAX_PLAIN_WORK)?;
    let slice = vocabulary.slice(plain);
    let mut mask = slice.fitting.clone();
    if automaton.positions(state).is_accepting() {
        vocabulary
            .end_tokens()
            .iter()
            .for_each(|token| mask.allow(*token));
    }
    // States from the root to the current node, each with the end of its subtree.
    let mut path: Vec<(StateId, u32)> = Vec::new();
    let mut place = 0_u32;
    while let Some(node) = slice.others.get(place as usize) {
        if automaton.work() - begin > MAX_WORK {
            return Err(TooAmbiguous);
        }
        while path.last().is_some_and(|(_, end)| *end <= place) {
            path.pop();
        }
        let from = path.last().map_or(state, |(state, _)| *state);
        let to = automaton.step(from, node.byte)?;
        if to == DEAD {
            place = node.end;
            continue;
        }
        if let Some(token) = node.token() {
            mask.allow(token);
            vocabulary
                .duplicates(token)
                .iter()
                .for_each(|same| mask.allow(*same));
        }
        path.push((to, node.end));
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
    fn answers_continue_after_states_were_discarded() {
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
        one.accept(0).unwrap();
        assert_eq!(allows(&mut one), Ok([true, true]));
        {
            let mut shared = lock(&one.shared);
            shared.automaton.forget_states();
            shared.generation.0 += 1;
            shared.masks.clear();
        }
        other.accept(1).unwrap();
        assert_eq!(allows(&mut other), Ok([true, false]));
        one.accept(0).unwrap();
        assert_eq!(allows(&mut one), Ok([true, false]));
        one.accept(0).unwrap();
        assert!(one.is_complete() && !other.is_complete());
    }

    /// Every mask has exactly the tokens that the constraint accepts, and no answer gets stuck.
    #[test]
    fn masks_exclude_repeated_items_and_nothing_else() {
        let schema = serde_json::json!({"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": true});
        let schema = serde_json::from_value(schema).unwrap();
        let list = grammar(|builder| super::super::json_schema::schema_rule(builder, &schema).unwrap());
        let tokens = [
            "[",
            "]",
            "\"",
            "\"a",
            "a",
            "ä",
            "b\"",
            "\",",
            "\",\"",
            "a\",\"a\"",
            "\\",
            "\\u0061",
            "u0061",
            ",",
            ", ",
            "1",
            "2",
            " ",
            "12",
            "1,1",
            "2, 1,",
            "0",
            "-",
            "\"a\",\"b\"",
            "[\"a\",\"a\"",
            "[1,1]",
            "1 ",
            "\n",
            "1,\"1\"]",
        ];
        let vocabulary = Arc::new(Vocabulary::of(
            tokens.map(|token| token.as_bytes().to_vec()),
            vec![],
        ));
        let mut repeated = 0;
        for seed in 1..300_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut constraint = Constraint::new(Arc::clone(&list), Arc::clone(&vocabulary)).unwrap();
            let mut text = String::new();
            for _ in 0..30 {
                let mask = constraint.mask().unwrap();
                let count = u32::try_from(tokens.len()).unwrap();
                let allowed: Vec<u32> = (0..count).filter(|token| mask.allows(*token)).collect();
                let accepted = |token: &u32| constraint.clone().accept(*token).is_ok();
                assert_eq!(
                    allowed,
                    (0..count).filter(accepted).collect::<Vec<u32>>(),
                    "{text}"
                );
                let state = constraint.state.0;
                let unfiltered = lock(&constraint.shared).mask(&vocabulary, state).unwrap();
                repeated += unfiltered.count() - mask.count();
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let token = allowed[(random >> 11) as usize % allowed.len()];
                text.push_str(tokens[token as usize]);
                constraint.accept(token).unwrap();
                if constraint.is_complete() {
                    let items: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
                    let different: std::collections::HashSet<String> =
                        items.iter().map(ToString::to_string).collect();
                    assert_eq!(different.len(), items.len(), "{text}");
                    break;
                }
            }
        }
        assert!(repeated > 1000, "{repeated}");
    }

    /// Lists of items with few values: answers exhaust the values, and none gets stuck.
    #[test]
    fn masks_leave_a_unique_item() {
        let mut tokens: Vec<Vec<u8>> = (b' '..=b'~').map(|byte| vec![byte]).collect();
        for token in [
            "\",\"",
            "\"a",
            "a\"",
            ",true",
            "true,",
            "},{",
            "\":",
            "[1",
            "1,",
            "2]",
            ", ",
            "null,null",
        ] {
            tokens.push(token.as_bytes().to_vec());
        }
        let count = u32::try_from(tokens.len()).unwrap();
        let vocabulary = Arc::new(Vocabulary::of(tokens.clone(), vec![]));
        let (mut longest, mut removed) = (0, 0);
        for items in [
            serde_json::json!({"type": "string", "pattern": "^(a|b|ab)$"}),
            serde_json::json!({"type": ["boolean", "null"]}),
            serde_json::json!({"type": "integer", "minimum": 9, "maximum": 11}),
            serde_json::json!({"type": "number", "minimum": 0, "maximum": 0.5, "multipleOf": 0.25}),
            serde_json::json!({"type": "object", "properties": {"b": {"const": 1}, "a": {"type": "boolean"}}}),
            serde_json::json!({"type": "array", "items": {"type": "null"}, "maxItems": 2}),
        ] {
            let schema =
                serde_json::json!({"type": "array", "items": items, "uniqueItems": true, "minItems": 3});
            let schema = serde_json::from_value(schema).unwrap();
            let list = grammar(|builder| super::super::json_schema::schema_rule(builder, &schema).unwrap());
            for seed in 1..40_u64 {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut constraint = Constraint::new(Arc::clone(&list), Arc::clone(&vocabulary)).unwrap();
                let mut text = Vec::new();
                while !constraint.is_complete() {
                    let mask = constraint.mask().unwrap_or_else(|err| {
                        panic!("{err}: {}", String::from_utf8_lossy(&text));
                    });
                    let accepted = |token: &u32| constraint.clone().accept(*token).is_ok();
                    let allowed: Vec<u32> = (0..count).filter(|token| mask.allows(*token)).collect();
                    assert_eq!(allowed, (0..count).filter(accepted).collect::<Vec<u32>>());
                    let state = constraint.state.0;
                    let unfiltered = lock(&constraint.shared).mask(&vocabulary, state).unwrap();
                    removed += unfiltered.count() - mask.count();
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let token = allowed[(random >> 11) as usize % allowed.len()];
                    text.extend_from_slice(&tokens[token as usize]);
                    constraint.accept(token).unwrap();
                }
                let items: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
                let different: std::collections::HashSet<String> =
                    items.iter().map(ToString::to_string).collect();
                assert_eq!(different.len(), items.len());
                longest = longest.max(items.len());
            }
        }
        assert!(longest >= 5 && removed > 1000, "{longest} {removed}");
    }

    /// In these patterns every character may end a part: twenty characters lead to one of a million
    /// states.
    #[test]
    fn masks_of_ambiguous_patterns_are_cheap() {
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
                let before = lock(&constraint.shared).automaton.work();
                let allows = constraint.mask().unwrap().allows(token);
                let work = lock(&constraint.shared).automaton.work() - before;
                assert!(work < MAX_WORK / 2, "{pattern}: {work}");
                if allows {
                    constraint.accept(token).unwrap();
                }
            }
        }
    }

    #[test]
    fn rejects_mask_that_exceeds_its_work_limit() {
        let token = |number: u32| (0..17).map(|bit| b"cx"[(number >> bit & 1) as usize]).collect();
        let vocabulary = Arc::new(Vocabulary::of(
            (0..1 << 17).map(token).collect::<Vec<Vec<u8>>>(),
            vec![],
        ));
        let mut constraint = Constraint::new(matching("^[cx]*c[cx]{17}$"), vocabulary).unwrap();
        let err = constraint.mask().err();
        assert_eq!(err, Some(ConstraintError::TooAmbiguous(TooAmbiguous)));
    }
}
