//! What an answer may be: grammars over bytes, built from JSON Schemas, regular expressions and
//! literals, and the tokens that keep an answer within one.
//!
//! A grammar is a network of nodes. Nodes that read a byte lead to the next node; rules are called
//! and return, so that nesting has no bound. [`matcher`] runs it, [`constraint`] asks it which
//! tokens of a [`vocabulary`] it lets through.

mod apart;
pub mod bench;
pub mod constraint;
pub mod form;
mod formats;
mod json;
mod json_schema;
pub mod mask;
mod matcher;
mod names;
mod normal;
mod numbers;
mod product;
mod regex;
pub(super) mod schema;
pub mod vocabulary;

use regex_syntax::utf8::Utf8Sequences;

/// Larger grammars would take more memory and time than an answer is worth.
const MAX_NODES: usize = 200_000;

/// The byte before the text of a special token: no text has it, so that special tokens are never
/// text.
pub(super) const SPECIAL: u8 = 0xff;

/// A node of a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

/// The end of a rule; of the grammar, where none was called.
pub(super) const RETURN: NodeId = NodeId(0);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Return,
    /// One of these bytes.
    Bytes(ByteSet, NodeId),
    /// Any of these ways; no way where there are none.
    Split(Vec<NodeId>),
    /// A rule, then what is behind it.
    Call(NodeId, NodeId),
    /// A rule so often, then what is behind it.
    Repeat {
        rule: NodeId,
        min: u32,
        max: Option<u32>,
        next: NodeId,
    },
}

/// Bytes, one bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) const ALL: Self = Self([u64::MAX; 4]);

    pub(super) fn range(first: u8, last: u8) -> Self {
        let mut set = Self::default();
        (first..=last).for_each(|byte| set.insert(byte));
        set
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut set = Self::default();
        bytes.iter().for_each(|byte| set.insert(*byte));
        set
    }

    pub(super) fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    pub(super) fn remove(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] &= !(1 << (byte & 63));
    }

    /// What is in both.
    pub(super) fn and(self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// What is not in the other.
    pub(super) fn without(self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}

/// A finished grammar.
#[derive(Debug, PartialEq)]
pub struct Grammar {
    nodes: Vec<Node>,
    start: NodeId,
}

/// The grammar is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is too large: its grammar has more than {MAX_NODES} nodes")]
pub struct TooLarge;

/// Builds a grammar from its end to its start: every part is told what comes behind it.
#[derive(Debug)]
pub(super) struct Builder {
    nodes: Vec<Node>,
    /// That products of rules have been in.
    places: usize,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node::Return],
            places: 0,
        }
    }

    pub(super) fn finish(self, start: NodeId) -> Result<Grammar, TooLarge> {
        if self.nodes.len() > MAX_NODES {
            return Err(TooLarge);
        }
        Ok(Grammar {
            nodes: self.nodes,
            start,
        })
    }

    /// To be asked while building what might go on for long.
    pub(super) fn check_size(&self) -> Result<(), TooLarge> {
        if self.nodes.len() > MAX_NODES {
            Err(TooLarge)
        } else {
            Ok(())
        }
    }

    /// What was built is forgotten where it came to nothing.
    pub(super) fn attempt<T, E>(&mut self, build: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let length = self.nodes.len();
        let built = build(self);
        if built.is_err() {
            self.nodes.truncate(length);
        }
        built
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(u32::try_from(self.nodes.len() - 1).expect("far fewer nodes"))
    }

    /// A node to be defined later, for what refers to itself.
    pub(super) fn reserve(&mut self) -> NodeId {
        self.add(Node::Split(Vec::new()))
    }

    pub(super) fn define(&mut self, reserved: NodeId, as_this: NodeId) {
        self.nodes[reserved.0 as usize] = Node::Split(vec![as_this]);
    }

    pub(super) fn bytes(&mut self, set: ByteSet, next: NodeId) -> NodeId {
        self.add(Node::Bytes(set, next))
    }

    pub(super) fn literal(&mut self, text: &[u8], next: NodeId) -> NodeId {
        text.iter()
            .rev()
            .fold(next, |next, byte| self.bytes(ByteSet::of(&[*byte]), next))
    }

    /// One of these texts. Those that begin alike share the beginning: at each byte there are as
    /// many ways as bytes, not texts.
    pub(super) fn one_of(&mut self, mut texts: Vec<Vec<u8>>, next: NodeId) -> NodeId {
        texts.sort_unstable();
        texts.dedup();
        // Of the text that was last, at each of its bytes: the ways from there that are finished.
        let mut open: Vec<Vec<NodeId>> = vec![Vec::new()];
        let mut last: &[u8] = &[];
        for text in &texts {
            let shared = last.iter().zip(text).take_while(|(a, b)| a == b).count();
            self.close(&mut open, last, shared);
            open.resize(text.len() + 1, Vec::new());
            open[text.len()].push(next);
            last = text;
        }
        self.close(&mut open, last, 0);
        self.any_of(open.remove(0))
    }

    /// Makes ways of what is open beyond so many bytes of a text.
    fn close(&mut self, open: &mut Vec<Vec<NodeId>>, text: &[u8], keep: usize) {
        while open.len() > keep + 1
            && let Some(ways) = open.pop()
        {
            let rest = self.any_of(ways);
            let at = open.len() - 1;
            let way = self.bytes(ByteSet::of(&[text[at]]), rest);
            open[at].push(way);
        }
    }

    pub(super) fn any_of(&mut self, ways: Vec<NodeId>) -> NodeId {
        match ways[..] {
            [only] => only,
            _ => self.add(Node::Split(ways)),
        }
    }

    /// This or nothing.
    pub(super) fn optional(&mut self, way: NodeId, next: NodeId) -> NodeId {
        self.any_of(vec![way, next])
    }

    pub(super) fn call(&mut self, rule: NodeId, next: NodeId) -> NodeId {
        if next == RETURN {
            return rule;
        }
        self.add(Node::Call(rule, next))
    }

    pub(super) fn repeat(&mut self, rule: NodeId, min: u32, max: Option<u32>, next: NodeId) -> NodeId {
        match (min, max) {
            (_, Some(0)) => next,
            (1, Some(1)) => self.call(rule, next),
            _ => self.add(Node::Repeat { rule, min, max, next }),
        }
    }

    /// One character from these ranges, as UTF-8.
    pub(super) fn characters(&mut self, ranges: &[(char, char)], next: NodeId) -> NodeId {
        let mut single = ByteSet::default();
        let mut ways = Vec::new();
        for (first, last) in ranges {
            for sequence in Utf8Sequences::new(*first, *last) {
                match sequence.as_slice() {
                    [only] => (only.start..=only.end).for_each(|byte| single.insert(byte)),
                    several => {
                        let chain = several.iter().rev().fold(next, |next, range| {
                            self.bytes(ByteSet::range(range.start, range.end), next)
                        });
                        ways.push(chain);
                    }
                }
            }
        }
        if single != ByteSet::default() {
            ways.push(self.bytes(single, next));
        }
        self.any_of(ways)
    }

    /// Any text up to the first `end`, and that. Special tokens are no text; `end` may hold one.
    pub(super) fn until(&mut self, end: &[u8], next: NodeId) -> NodeId {
        self.search(end, Some(next), None)
    }

    /// Any text that `mark` is no part of, then what is next.
    pub(super) fn without(&mut self, mark: &[u8], next: NodeId) -> NodeId {
        self.search(mark, None, Some(next))
    }

    /// Any text in which `mark` is looked for: what is behind it, where it may be there, and what
    /// may follow at any time before.
    fn search(&mut self, mark: &[u8], behind: Option<NodeId>, anywhere: Option<NodeId>) -> NodeId {
        // States of Knuth, Morris and Pratt: how much of `mark` has just been read.
        let states: Vec<NodeId> = mark.iter().map(|_| self.reserve()).collect();
        let follows = |read: usize, byte: u8| {
            let mut text = mark[..read].to_vec();
            text.push(byte);
            (0..=mark.len())
                .rev()
                .find(|length| text.ends_with(&mark[..*length]))
                .unwrap_or(0)
        };
        for (read, state) in states.iter().enumerate() {
            let mut sets = vec![ByteSet::default(); mark.len() + 1];
            let others = (0..=u8::MAX).filter(|byte| *byte != SPECIAL || mark[read] == SPECIAL);
            others.for_each(|byte| sets[follows(read, byte)].insert(byte));
            let ways = sets
                .into_iter()
                .enumerate()
                .filter(|(_, set)| *set != ByteSet::default())
                .filter_map(|(length, set)| Some((set, states.get(length).copied().or(behind)?)))
                .map(|(set, to)| self.bytes(set, to))
                .chain(anywhere)
                .collect();
            let ways = self.any_of(ways);
            self.define(*state, ways);
        }
        states.first().copied().or(behind).unwrap_or(RETURN)
    }
}

#[cfg(test)]
mod tests;
