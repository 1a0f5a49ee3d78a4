//! Automaton of a grammar: from a state and a byte to the next state.
//!
//! A state is a set of positions in the grammar, each with a stack of return addresses. States and
//! transitions are computed on demand and cached, so that matching a vocabulary is fast.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::unique::{Item, Reading, UniqueItems, UniqueLists};
use super::{Builder, ByteSet, Grammar, Node, NodeId};

/// Maximum number of positions in a state. Grammars with more are too expensive.
const MAX_POSITIONS: usize = 20_000;
/// Maximum memory of the cached states in bytes: some thousand states, or fewer with many
/// positions.
const MAX_BYTES: usize = 32 << 20;
/// Maximum number of states in the search for plain text. Beyond it, tokens are matched one by one,
/// which is cheaper for ambiguous patterns such as `.{1,40}: .{1,80}`.
const MAX_PLAIN_STATES: usize = 128;
/// Maximum length of texts that are counted, in bytes, and maximum number of states after texts of one length.
const MAX_COUNTED_BYTES: usize = 4096;
const MAX_COUNTED_STATES: usize = 2000;
/// Maximum number of cached stack frames. They are never discarded: above it, the caller should
/// create a new automaton.
const MAX_STACKS: usize = 200_000;

/// ASCII range of the plain characters. Plain characters have no escape in a JSON string and
/// exclude control characters and the separators of lines and paragraphs, which `.` in a pattern
/// excludes.
pub(super) const PLAIN_ASCII: [RangeInclusive<u8>; 3] = [0x20..=0x21, 0x23..=0x5b, 0x5d..=0x7e];
/// Plain characters beyond ASCII, as UTF-8 (RFC 3629, section 4).
const PLAIN_SEQUENCES: [&[RangeInclusive<u8>]; 12] = [
    &[0xc2..=0xdf, 0x80..=0xbf],
    &[0xe0..=0xe0, 0xa0..=0xbf, 0x80..=0xbf],
    &[0xe1..=0xe1, 0x80..=0xbf, 0x80..=0xbf],
    &[0xe2..=0xe2, 0x80..=0x80, 0x80..=0xa7],
    &[0xe2..=0xe2, 0x80..=0x80, 0xaa..=0xbf],
    &[0xe2..=0xe2, 0x81..=0xbf, 0x80..=0xbf],
    &[0xe3..=0xec, 0x80..=0xbf, 0x80..=0xbf],
    &[0xed..=0xed, 0x80..=0x9f, 0x80..=0xbf],
    &[0xee..=0xef, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf0..=0xf0, 0x90..=0xbf, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf1..=0xf3, 0x80..=0xbf, 0x80..=0xbf, 0x80..=0xbf],
    &[0xf4..=0xf4, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf],
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StateId(u32);

/// State without successors that does not accept.
pub(super) const DEAD: StateId = StateId(0);
const UNKNOWN: StateId = StateId(u32::MAX);

/// Stack of return addresses: a frame on top of another stack. 0 is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct StackId(u32);

const EMPTY: StackId = StackId(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    /// Return to this node after a call.
    Next(NodeId),
    /// Return to this repetition, with the number of completed rounds.
    Repeat(NodeId, u32),
}

/// Position before a byte node, with its stack.
type Position = (NodeId, StackId);

/// Set of positions that defines a state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Positions {
    /// Sorted.
    reading: Vec<Position>,
    accepting: bool,
}

impl Positions {
    /// Returns the number of positions before a byte node.
    pub(super) fn count(&self) -> usize {
        self.reading.len()
    }

    /// Returns true if the text so far is a complete answer.
    pub(super) fn is_accepting(&self) -> bool {
        self.accepting
    }

    /// Returns true if nothing can follow.
    pub(super) fn is_at_end(&self) -> bool {
        self.reading.is_empty()
    }
}

#[derive(Debug, Clone)]
struct State {
    positions: Arc<Positions>,
    next: Option<Box<[StateId; 256]>>,
    after_plain: Option<AfterPlain>,
}

/// Result of matching one plain character in a state.
#[derive(Debug, Clone)]
enum AfterPlain {
    /// At least one plain character is not permitted.
    NotAll,
    /// All plain characters are permitted, and lead to these states.
    States(Arc<[StateId]>),
}

/// Error: a state of the grammar has too many positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is too ambiguous: too many alternatives match the same text; shorten repetitions such as {{1,80}}, or put a delimiter after each part"
)]
pub struct TooAmbiguous;

/// Automaton of a grammar; see the module documentation.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    grammar: Arc<Grammar>,
    stacks: Vec<(Frame, StackId)>,
    stack_ids: HashMap<(Frame, StackId), StackId>,
    states: Vec<State>,
    state_ids: HashMap<Arc<Positions>, StateId>,
    start: StateId,
    /// Number of positions visited so far.
    work: usize,
    /// Approximate memory of the states in bytes.
    bytes: usize,
}

impl Automaton {
    pub(super) fn new(grammar: Arc<Grammar>) -> Result<Self, TooAmbiguous> {
        let start = grammar.start;
        let mut automaton = Self {
            grammar,
            // Placeholder for the empty stack, which has no frame.
            stacks: vec![(Frame::Next(start), EMPTY)],
            stack_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            start: DEAD,
            work: 0,
            bytes: 0,
        };
        automaton.intern(Positions::default());
        automaton.start = automaton.start_of(start)?;
        Ok(automaton)
    }

    /// Returns the start state of a single rule.
    pub(super) fn start_of(&mut self, rule: NodeId) -> Result<StateId, TooAmbiguous> {
        let positions = self.reached([(rule, EMPTY)])?;
        Ok(self.intern(positions))
    }

    /// Returns the start state of the grammar. It is invalid after the states were discarded.
    pub(super) fn start(&self) -> StateId {
        self.start
    }

    pub(super) fn positions(&self, state: StateId) -> &Arc<Positions> {
        &self.state(state).positions
    }

    /// Returns the state after these bytes.
    pub(super) fn read(&mut self, from: StateId, bytes: &[u8]) -> Result<StateId, TooAmbiguous> {
        let mut state = from;
        for byte in bytes {
            state = self.step(state, *byte)?;
            if state == DEAD {
                break;
            }
        }
        Ok(state)
    }

    /// Returns true if the grammar has lists of unique items.
    pub(super) fn has_unique_items(&self) -> bool {
        !self.grammar.unique_lists.is_empty()
    }

    /// Like [`read`](Self::read), with a tracker of unique items. Returns [`DEAD`] if an item repeats, or if every
    /// continuation of the text repeats an item.
    pub(super) fn read_unique(
        &mut self,
        from: StateId,
        bytes: &[u8],
        items: &mut UniqueItems,
    ) -> Result<StateId, TooAmbiguous> {
        let mut state = from;
        for byte in bytes {
            let opens_list = *byte == b'[' && self.opens_unique_list(state);
            state = self.step(state, *byte)?;
            if state == DEAD || !items.read(*byte, opens_list) {
                return Ok(DEAD);
            }
        }
        match self.has_unique_continuation(state, items)? {
            true => Ok(state),
            false => Ok(DEAD),
        }
    }

    fn has_unique_continuation(&mut self, state: StateId, items: &UniqueItems) -> Result<bool, TooAmbiguous> {
        let mut open: Vec<(StateId, Item)> = match items.current() {
            _ if !items.has_items() => return Ok(true),
            Some(item) => vec![(state, item.clone())],
            None if items.expects_item() => vec![(state, Item::default())],
            None => return Ok(true),
        };
        // Every state has a continuation, so that a text which no item begins with can end as a new item.
        while let Some((state, item)) = open.pop() {
            if !items.has_beginning(&item.text) {
                return Ok(true);
            }
            if item.has_open_end() && !items.contains(&item.text) {
                for byte in [b',', b']', b' ', b'\n'] {
                    if self.step(state, byte)? != DEAD {
                        return Ok(true);
                    }
                }
            }
            for byte in 0..=u8::MAX {
                let to = self.step(state, byte)?;
                if to == DEAD {
                    continue;
                }
                let mut longer = item.clone();
                match longer.read(byte) {
                    Reading::Inside => open.push((to, longer)),
                    Reading::Last if !items.contains(&longer.text) => return Ok(true),
                    Reading::Last | Reading::Outside => {}
                }
            }
        }
        Ok(false)
    }

    /// Returns true if the grammar has at least `needed` different texts. `None` if the search exceeds its
    /// limits.
    fn has_texts(&mut self, needed: u64) -> Result<Option<bool>, TooAmbiguous> {
        // Number of texts that lead to each state. A text leads to one state.
        let mut reached = HashMap::from([(self.start, 1_u64)]);
        let mut found = 0_u64;
        for _ in 0..MAX_COUNTED_BYTES {
            let mut next = HashMap::new();
            for (state, texts) in reached {
                if self.positions(state).is_accepting() {
                    found = found.saturating_add(texts);
                }
                for byte in 0..=u8::MAX {
                    let to = self.step(state, byte)?;
                    if to != DEAD {
                        let count = next.entry(to).or_insert(0_u64);
                        *count = count.saturating_add(texts);
                    }
                }
            }
            match (found >= needed, next.is_empty()) {
                (true, _) => return Ok(Some(true)),
                (false, true) => return Ok(Some(false)),
                (false, false) if next.len() > MAX_COUNTED_STATES => return Ok(None),
                (false, false) => reached = next,
            }
        }
        Ok(None)
    }

    fn opens_unique_list(&self, state: StateId) -> bool {
        let mut reading = self.state(state).positions.reading.iter();
        reading.any(|(node, _)| self.grammar.unique_lists.contains(node))
    }

    /// Returns true if the cached states exceed their memory limit.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Returns the approximate memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.stacks.len() * 2 * size_of::<(Frame, StackId)>()
    }

    /// Returns the number of positions visited so far, as a measure of cost.
    pub(super) fn work(&self) -> usize {
        self.work
    }

    /// Returns true if the stack frames, which are never discarded, exceed their limit.
    pub(super) fn needs_rebuild(&self) -> bool {
        self.stacks.len() > MAX_STACKS
    }

    /// Discards all states. All state numbers become invalid.
    pub(super) fn forget_states(&mut self) {
        self.states.clear();
        self.state_ids.clear();
        self.bytes = 0;
        self.intern(Positions::default());
        self.start = DEAD;
    }

    /// Returns the state of these positions.
    pub(super) fn state_of(&mut self, positions: &Arc<Positions>) -> StateId {
        match self.state_ids.get(positions) {
            Some(id) => *id,
            None => self.intern(Positions::clone(positions)),
        }
    }

    pub(super) fn step(&mut self, from: StateId, byte: u8) -> Result<StateId, TooAmbiguous> {
        let known = self.states[from.0 as usize]
            .next
            .as_ref()
            .map_or(UNKNOWN, |next| next[usize::from(byte)]);
        if known != UNKNOWN {
            return Ok(known);
        }
        let positions = Arc::clone(&self.state(from).positions);
        let grammar = Arc::clone(&self.grammar);
        self.work += 1 + positions.count();
        // Bytes that all positions treat equally lead to the same state.
        let mut equivalent = ByteSet::ALL;
        let mut after = Vec::new();
        for (node, stack) in &positions.reading {
            if let Node::Bytes(set, next) = grammar.node(*node) {
                if set.contains(byte) {
                    equivalent = equivalent.and(set);
                    after.push((*next, *stack));
                } else {
                    equivalent = equivalent.without(set);
                }
            }
        }
        let to = match after[..] {
            [] => DEAD,
            _ => {
                let reached = self.reached(after)?;
                self.intern(reached)
            }
        };
        let next = &mut self.states[from.0 as usize].next;
        let next = next.get_or_insert_with(|| {
            self.bytes += size_of::<[StateId; 256]>();
            Box::new([UNKNOWN; 256])
        });
        for (byte, next) in (0..=u8::MAX).zip(next.iter_mut()) {
            if equivalent.contains(byte) {
                *next = to;
            }
        }
        Ok(to)
    }

    /// Returns the length of arbitrary plain text that is permitted next, in characters: at most
    /// `most`, or `usize::MAX` if unlimited. Returns a lower bound if the search exceeds its
    /// limits.
    pub(super) fn plain_characters(
        &mut self,
        from: StateId,
        most: usize,
        most_work: usize,
    ) -> Result<usize, TooAmbiguous> {
        let until = self.work + most_work;
        let mut seen = HashSet::from([from]);
        let mut reached = vec![from];
        for count in 0..most {
            let mut next = Vec::new();
            for state in reached {
                match self.after_plain(state, until)? {
                    None | Some(AfterPlain::NotAll) => return Ok(count),
                    Some(AfterPlain::States(states)) => {
                        next.extend(states.iter().copied().filter(|state| seen.insert(*state)));
                    }
                }
                if seen.len() > MAX_PLAIN_STATES {
                    return Ok(count);
                }
            }
            if next.is_empty() {
                return Ok(usize::MAX);
            }
            reached = next;
        }
        Ok(most)
    }

    /// Returns `None` if the search exceeds the work limit.
    fn after_plain(&mut self, from: StateId, until: usize) -> Result<Option<AfterPlain>, TooAmbiguous> {
        if let Some(known) = &self.state(from).after_plain {
            return Ok(Some(known.clone()));
        }
        let ascii = PLAIN_ASCII.map(|range| [range]);
        let sequences = ascii.iter().map(|range| &range[..]).chain(PLAIN_SEQUENCES);
        let mut after = Vec::new();
        let mut found = None;
        'sequences: for sequence in sequences {
            let mut states = vec![from];
            for range in sequence {
                let mut next = Vec::new();
                for state in states {
                    for byte in range.clone() {
                        next.push(self.step(state, byte)?);
                    }
                    if self.work > until {
                        return Ok(None);
                    }
                }
                next.sort_unstable();
                next.dedup();
                if next.first() == Some(&DEAD) {
                    found = Some(AfterPlain::NotAll);
                    break 'sequences;
                }
                states = next;
            }
            after.extend(states);
        }
        after.sort_unstable();
        after.dedup();
        let found = found.unwrap_or_else(|| AfterPlain::States(after.into()));
        self.states[from.0 as usize].after_plain = Some(found.clone());
        Ok(Some(found))
    }

    fn state(&self, id: StateId) -> &State {
        &self.states[id.0 as usize]
    }

    fn intern(&mut self, positions: Positions) -> StateId {
        if let Some(id) = self.state_ids.get(&positions) {
            return *id;
        }
        let id = StateId(u32::try_from(self.states.len()).expect("the cached states are limited"));
        self.bytes += 2 * size_of::<State>() + positions.count() * size_of::<Position>();
        let positions = Arc::new(positions);
        self.states.push(State {
            positions: Arc::clone(&positions),
            next: None,
            after_plain: None,
        });
        self.state_ids.insert(positions, id);
        id
    }

    fn push(&mut self, frame: Frame, below: StackId) -> StackId {
        let stacks = &mut self.stacks;
        *self.stack_ids.entry((frame, below)).or_insert_with(|| {
            stacks.push((frame, below));
            StackId(u32::try_from(stacks.len() - 1).expect("stack frames are limited"))
        })
    }

    /// Returns all positions before a byte node that are reachable without reading a byte.
    fn reached(&mut self, from: impl IntoIterator<Item = Position>) -> Result<Positions, TooAmbiguous> {
        let grammar = Arc::clone(&self.grammar);
        let mut positions = Positions::default();
        let mut seen: HashSet<Position> = HashSet::new();
        let mut open: Vec<Position> = from.into_iter().collect();
        while let Some(position) = open.pop() {
            if !seen.insert(position) {
                continue;
            }
            if seen.len() > MAX_POSITIONS {
                return Err(TooAmbiguous);
            }
            let (node, stack) = position;
            match grammar.node(node) {
                Node::Bytes(..) => positions.reading.push(position),
                Node::Split(branches) => open.extend(branches.iter().map(|branch| (*branch, stack))),
                Node::Call(rule, next) => open.push((*rule, self.push(Frame::Next(*next), stack))),
                Node::Repeat { .. } => self.repeat(node, 0, stack, &mut open),
                Node::Return if stack == EMPTY => positions.accepting = true,
                Node::Return => match self.stacks[stack.0 as usize] {
                    (Frame::Next(next), below) => open.push((next, below)),
                    (Frame::Repeat(node, done), below) => self.repeat(node, done + 1, below, &mut open),
                },
            }
        }
        self.work += seen.len();
        positions.reading.sort_unstable();
        Ok(positions)
    }

    fn repeat(&mut self, node: NodeId, done: u32, stack: StackId, open: &mut Vec<Position>) {
        let Node::Repeat { rule, min, max, next } = *self.grammar.node(node) else {
            return;
        };
        // Without a maximum, the number of rounds beyond the minimum has no effect.
        let done = if max.is_none() { done.min(min) } else { done };
        if done >= min {
            open.push((next, stack));
        }
        if max.is_none_or(|max| done < max) {
            open.push((rule, self.push(Frame::Repeat(node, done), stack)));
        }
    }
}

/// Returns whether a rule has at least `needed` different texts. `None` if the search exceeds its limits.
pub(super) fn has_texts(builder: &mut Builder, rule: NodeId, needed: u64) -> Option<bool> {
    // The automaton needs shared ownership of the nodes for a while.
    let grammar = Arc::new(Grammar {
        nodes: std::mem::take(&mut builder.nodes),
        start: rule,
        unique_lists: UniqueLists::new(),
    });
    let automaton = Automaton::new(Arc::clone(&grammar));
    let found = automaton.and_then(|mut automaton| automaton.has_texts(needed));
    builder.nodes = Arc::into_inner(grammar).expect("the automaton is dropped").nodes;
    found.ok().flatten()
}

impl Grammar {
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }
}
