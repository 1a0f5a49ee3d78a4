//! Runs a grammar: from a state and a byte to the next state. States are sets of places in the
//! grammar with what is to be returned to; they and their transitions are computed once and kept,
//! so that reading a vocabulary is fast.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{ByteSet, Grammar, Node, NodeId};

/// Places of one state. A grammar that is in more at once is not worth its time.
const MAX_PLACES: usize = 20_000;
/// What is kept of states, in bytes: some thousands, or fewer that are many places each.
const MAX_BYTES: usize = 32 << 20;
/// States that are looked at to find out how much plain text may follow: beyond, tokens are looked
/// at one by one, which are fewer than what a pattern that is unsure of its place
/// (`.{1,40}: .{1,80}`) has of them.
const MAX_PLAIN_STATES: usize = 128;
/// Frames that are kept. They are never forgotten: who finds more begins anew where it can.
const MAX_STACKS: usize = 200_000;

/// Bytes of the plain characters: those that stand for themselves in a JSON string and are no
/// control characters, nor the ends of lines and paragraphs, which are not among any characters of
/// a pattern.
pub(super) const PLAIN_ASCII: [RangeInclusive<u8>; 3] = [0x20..=0x21, 0x23..=0x5b, 0x5d..=0x7e];
/// All others, as UTF-8 (RFC 3629, section 4).
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

/// Nothing can follow, and what was read is no answer.
pub(super) const DEAD: StateId = StateId(0);
const UNKNOWN: StateId = StateId(u32::MAX);

/// What is to be returned to: a frame on top of others. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct StackId(u32);

const EMPTY: StackId = StackId(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    /// Behind a call.
    Next(NodeId),
    /// A repetition that has been done so often.
    Again(NodeId, u32),
}

/// Before a node that reads a byte.
type Place = (NodeId, StackId);

/// What a state is, whatever its number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Places {
    /// In order.
    reading: Vec<Place>,
    accepting: bool,
}

impl Places {
    /// How many there are that read a byte.
    pub(super) fn count(&self) -> usize {
        self.reading.len()
    }

    /// What was read is an answer.
    pub(super) fn is_accepting(&self) -> bool {
        self.accepting
    }

    /// Nothing can follow.
    pub(super) fn is_at_end(&self) -> bool {
        self.reading.is_empty()
    }
}

#[derive(Debug, Clone)]
struct State {
    places: Arc<Places>,
    next: Option<Box<[StateId; 256]>>,
    behind_plain: Option<BehindPlain>,
}

/// Where one plain character leads.
#[derive(Debug, Clone)]
enum BehindPlain {
    /// There is one that does not fit.
    NotAll,
    /// To one of these.
    States(Arc<[StateId]>),
}

/// A state of the grammar has more places than are worth their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is too ambiguous: there are too many ways to read the same text; shorten lengths such as {{1,80}}, or say what ends each part"
)]
pub struct TooAmbiguous;

/// See the module's text.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    grammar: Arc<Grammar>,
    stacks: Vec<(Frame, StackId)>,
    stack_ids: HashMap<(Frame, StackId), StackId>,
    states: Vec<State>,
    state_ids: HashMap<Arc<Places>, StateId>,
    start: StateId,
    /// Places that were looked at so far.
    work: usize,
    /// About so much is kept of states, in bytes.
    bytes: usize,
}

impl Automaton {
    pub(super) fn new(grammar: Arc<Grammar>) -> Result<Self, TooAmbiguous> {
        let start = grammar.start;
        let mut automaton = Self {
            grammar,
            // The place of the empty stack, which has no frame.
            stacks: vec![(Frame::Next(start), EMPTY)],
            stack_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            start: DEAD,
            work: 0,
            bytes: 0,
        };
        automaton.intern(Places::default());
        automaton.start = automaton.start_of(start)?;
        Ok(automaton)
    }

    /// Where a text of this rule alone begins.
    pub(super) fn start_of(&mut self, rule: NodeId) -> Result<StateId, TooAmbiguous> {
        let places = self.reached([(rule, EMPTY)])?;
        Ok(self.intern(places))
    }

    /// Where an answer begins. Only until states are forgotten.
    pub(super) fn start(&self) -> StateId {
        self.start
    }

    pub(super) fn places(&self, state: StateId) -> &Arc<Places> {
        &self.state(state).places
    }

    /// Where these bytes lead.
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

    /// More is kept than is worth its memory.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// About what is kept, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.stacks.len() * 2 * size_of::<(Frame, StackId)>()
    }

    /// Places that were looked at so far: what it took.
    pub(super) fn work(&self) -> usize {
        self.work
    }

    /// Too much is kept that cannot be forgotten.
    pub(super) fn is_worn(&self) -> bool {
        self.stacks.len() > MAX_STACKS
    }

    /// Forgets all states: those that others have kept mean nothing any more.
    pub(super) fn forget_states(&mut self) {
        self.states.clear();
        self.state_ids.clear();
        self.bytes = 0;
        self.intern(Places::default());
        self.start = DEAD;
    }

    /// The state that is these places.
    pub(super) fn state_of(&mut self, places: &Arc<Places>) -> StateId {
        match self.state_ids.get(places) {
            Some(id) => *id,
            None => self.intern(Places::clone(places)),
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
        let places = Arc::clone(&self.state(from).places);
        let grammar = Arc::clone(&self.grammar);
        self.work += 1 + places.count();
        // Bytes that every place treats alike lead to the same state.
        let mut alike = ByteSet::ALL;
        let mut behind = Vec::new();
        for (node, stack) in &places.reading {
            if let Node::Bytes(set, next) = grammar.node(*node) {
                if set.contains(byte) {
                    alike = alike.and(set);
                    behind.push((*next, *stack));
                } else {
                    alike = alike.without(set);
                }
            }
        }
        let to = match behind[..] {
            [] => DEAD,
            _ => {
                let reached = self.reached(behind)?;
                self.intern(reached)
            }
        };
        let next = &mut self.states[from.0 as usize].next;
        let next = next.get_or_insert_with(|| {
            self.bytes += size_of::<[StateId; 256]>();
            Box::new([UNKNOWN; 256])
        });
        for (byte, next) in (0..=u8::MAX).zip(next.iter_mut()) {
            if alike.contains(byte) {
                *next = to;
            }
        }
        Ok(to)
    }

    /// How many characters may follow whichever plain ones they are: `most` or fewer, or more than
    /// any number. Fewer than may where that takes many states to say, or more than `most_work`.
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
                match self.behind_plain(state, until)? {
                    None | Some(BehindPlain::NotAll) => return Ok(count),
                    Some(BehindPlain::States(states)) => {
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

    /// `None`: it takes too long to say.
    fn behind_plain(&mut self, from: StateId, until: usize) -> Result<Option<BehindPlain>, TooAmbiguous> {
        if let Some(known) = &self.state(from).behind_plain {
            return Ok(Some(known.clone()));
        }
        let ascii = PLAIN_ASCII.map(|range| [range]);
        let sequences = ascii.iter().map(|range| &range[..]).chain(PLAIN_SEQUENCES);
        let mut behind = Vec::new();
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
                    found = Some(BehindPlain::NotAll);
                    break 'sequences;
                }
                states = next;
            }
            behind.extend(states);
        }
        behind.sort_unstable();
        behind.dedup();
        let found = found.unwrap_or_else(|| BehindPlain::States(behind.into()));
        self.states[from.0 as usize].behind_plain = Some(found.clone());
        Ok(Some(found))
    }

    fn state(&self, id: StateId) -> &State {
        &self.states[id.0 as usize]
    }

    fn intern(&mut self, places: Places) -> StateId {
        if let Some(id) = self.state_ids.get(&places) {
            return *id;
        }
        let id = StateId(u32::try_from(self.states.len()).expect("bounded"));
        self.bytes += 2 * size_of::<State>() + places.count() * size_of::<Place>();
        let places = Arc::new(places);
        self.states.push(State {
            places: Arc::clone(&places),
            next: None,
            behind_plain: None,
        });
        self.state_ids.insert(places, id);
        id
    }

    fn push(&mut self, frame: Frame, below: StackId) -> StackId {
        let stacks = &mut self.stacks;
        *self.stack_ids.entry((frame, below)).or_insert_with(|| {
            stacks.push((frame, below));
            StackId(u32::try_from(stacks.len() - 1).expect("a stack grows by tokens"))
        })
    }

    /// All places that read a byte, from these on without reading one.
    fn reached(&mut self, from: impl IntoIterator<Item = Place>) -> Result<Places, TooAmbiguous> {
        let grammar = Arc::clone(&self.grammar);
        let mut places = Places::default();
        let mut seen: HashSet<Place> = HashSet::new();
        let mut open: Vec<Place> = from.into_iter().collect();
        while let Some(place) = open.pop() {
            if !seen.insert(place) {
                continue;
            }
            if seen.len() > MAX_PLACES {
                return Err(TooAmbiguous);
            }
            let (node, stack) = place;
            match grammar.node(node) {
                Node::Bytes(..) => places.reading.push(place),
                Node::Split(ways) => open.extend(ways.iter().map(|way| (*way, stack))),
                Node::Call(rule, next) => open.push((*rule, self.push(Frame::Next(*next), stack))),
                Node::Repeat { .. } => self.repeat(node, 0, stack, &mut open),
                Node::Return if stack == EMPTY => places.accepting = true,
                Node::Return => match self.stacks[stack.0 as usize] {
                    (Frame::Next(next), below) => open.push((next, below)),
                    (Frame::Again(node, done), below) => self.repeat(node, done + 1, below, &mut open),
                },
            }
        }
        self.work += seen.len();
        places.reading.sort_unstable();
        Ok(places)
    }

    fn repeat(&mut self, node: NodeId, done: u32, stack: StackId, open: &mut Vec<Place>) {
        let Node::Repeat { rule, min, max, next } = *self.grammar.node(node) else {
            return;
        };
        // Without an upper bound, nothing depends on how much more than enough it was.
        let done = if max.is_none() { done.min(min) } else { done };
        if done >= min {
            open.push((next, stack));
        }
        if max.is_none_or(|max| done < max) {
            open.push((rule, self.push(Frame::Again(node, done), stack)));
        }
    }
}

impl Grammar {
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }
}
