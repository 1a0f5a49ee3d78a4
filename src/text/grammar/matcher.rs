//! Runs a grammar: from a state and a byte to the next state. States are sets of places in the grammar with what is to
//! be returned to; they and their transitions are computed once and kept, so that reading a vocabulary is fast.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Grammar, Node, NodeId};

/// Places of one state. A grammar that is in more at once is not worth its time.
const MAX_PLACES: usize = 20_000;
/// States that are kept; their transitions take 1 KiB each.
const MAX_STATES: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StateId(u32);

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

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Places {
    /// In order.
    reading: Vec<Place>,
    accepting: bool,
}

#[derive(Debug, Clone)]
struct State {
    places: Arc<Places>,
    next: Option<Box<[StateId; 256]>>,
}

/// A state of the grammar has more places than are worth their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the grammar is too ambiguous")]
pub(crate) struct TooAmbiguous;

/// See the module's text. Advances with one answer.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    grammar: Arc<Grammar>,
    stacks: Vec<(Frame, StackId)>,
    stack_ids: HashMap<(Frame, StackId), StackId>,
    states: Vec<State>,
    state_ids: HashMap<Arc<Places>, StateId>,
    current: StateId,
}

impl Matcher {
    pub(crate) fn new(grammar: Arc<Grammar>) -> Result<Self, TooAmbiguous> {
        let start = grammar.start;
        let mut matcher = Self {
            grammar,
            // The place of the empty stack, which has no frame.
            stacks: vec![(Frame::Next(start), EMPTY)],
            stack_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            current: DEAD,
        };
        matcher.intern(Places::default());
        let places = matcher.reached([(start, EMPTY)])?;
        matcher.current = matcher.intern(places);
        Ok(matcher)
    }

    pub(super) fn current(&self) -> StateId {
        self.current
    }

    /// What was read is an answer.
    pub(crate) fn is_accepting(&self) -> bool {
        self.state(self.current).places.accepting
    }

    /// Nothing can follow.
    pub(crate) fn is_at_end(&self) -> bool {
        self.state(self.current).places.reading.is_empty()
    }

    /// Reads a token's bytes; false where they do not fit, which changes nothing.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<bool, TooAmbiguous> {
        let mut state = self.current;
        for byte in bytes {
            state = self.step(state, *byte)?;
            if state == DEAD {
                return Ok(false);
            }
        }
        self.current = state;
        Ok(true)
    }

    /// Forgets states where there are many; true if those that others have kept mean nothing any more.
    pub(super) fn tidy(&mut self) -> bool {
        if self.states.len() <= MAX_STATES {
            return false;
        }
        let places = Arc::clone(&self.state(self.current).places);
        self.states.clear();
        self.state_ids.clear();
        self.intern(Places::default());
        self.current = self.intern(Places::clone(&places));
        true
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
        let behind = places
            .reading
            .iter()
            .filter_map(|(node, stack)| match grammar.node(*node) {
                Node::Bytes(set, next) if set.contains(byte) => Some((*next, *stack)),
                Node::Bytes(..) | Node::Return | Node::Split(_) | Node::Call(..) | Node::Repeat { .. } => {
                    None
                }
            });
        let reached = self.reached(behind)?;
        let to = self.intern(reached);
        let next = &mut self.states[from.0 as usize].next;
        next.get_or_insert_with(|| Box::new([UNKNOWN; 256]))[usize::from(byte)] = to;
        Ok(to)
    }

    fn state(&self, id: StateId) -> &State {
        &self.states[id.0 as usize]
    }

    fn intern(&mut self, places: Places) -> StateId {
        if let Some(id) = self.state_ids.get(&places) {
            return *id;
        }
        let id = StateId(u32::try_from(self.states.len()).expect("bounded"));
        let places = Arc::new(places);
        self.states.push(State {
            places: Arc::clone(&places),
            next: None,
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
