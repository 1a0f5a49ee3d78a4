//! Grammars over bytes, built from JSON Schemas, regular expressions, EBNF and literals, and the logits
//! masks that restrict an answer to a grammar.
//!
//! A grammar is a graph of nodes. A byte node leads to the next node. Rules are called and return,
//! so that the nesting depth has no limit. [`matcher`] runs the grammar, [`constraint`] computes
//! the permitted tokens of a [`vocabulary`].

pub mod answer_format;
pub mod bench;
pub mod constraint;
mod disjoint;
mod ebnf;
mod formats;
mod json;
mod json_schema;
pub mod mask;
mod matcher;
mod names;
mod normal;
mod numbers;
mod product;
mod references;
mod regex;
pub(super) mod schema;
mod unique;
mod validity;
pub mod vocabulary;

use regex_syntax::utf8::Utf8Sequences;

use self::unique::UniqueLists;

/// Maximum number of nodes. Larger grammars require too much memory and time.
const MAX_NODES: usize = 200_000;

/// Byte before the text of a special token. UTF-8 never contains it, so that text never matches a
/// special token.
pub(super) const SPECIAL: u8 = 0xff;

/// Index of a node in a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

/// End of a rule, or of the grammar if no rule was called.
pub(super) const RETURN: NodeId = NodeId(0);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Return,
    /// One byte of the set, then the next node.
    Bytes(ByteSet, NodeId),
    /// Any of the branches. Without branches, nothing matches.
    Split(Vec<NodeId>),
    /// A rule, then the next node.
    Call(NodeId, NodeId),
    /// Repetition of a rule, then the next node.
    Repeat {
        rule: NodeId,
        min: u32,
        max: Option<u32>,
        next: NodeId,
    },
}

/// Set of bytes, one bit each.
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

    /// Returns the intersection.
    pub(super) fn and(self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Returns the difference.
    pub(super) fn without(self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}

/// Complete grammar.
#[derive(Debug, PartialEq)]
pub struct Grammar {
    nodes: Vec<Node>,
    start: NodeId,
    unique_lists: UniqueLists,
}

/// Error: the grammar has too many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the grammar has more than {MAX_NODES} nodes")]
pub struct TooLarge;

/// Builder of a grammar from its end to its start: every part receives its successor.
#[derive(Debug)]
pub(super) struct Builder {
    nodes: Vec<Node>,
    /// Number of positions in all products of rules so far.
    product_positions: usize,
    unique_lists: UniqueLists,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node::Return],
            product_positions: 0,
            unique_lists: UniqueLists::new(),
        }
    }

    pub(super) fn finish(self, start: NodeId) -> Result<Grammar, TooLarge> {
        if self.nodes.len() > MAX_NODES {
            return Err(TooLarge);
        }
        Ok(Grammar {
            nodes: self.nodes,
            start,
            unique_lists: self.unique_lists,
        })
    }

    /// Returns an error if the grammar is already too large. For long builds.
    pub(super) fn check_size(&self) -> Result<(), TooLarge> {
        if self.nodes.len() > MAX_NODES {
            Err(TooLarge)
        } else {
            Ok(())
        }
    }

    /// Runs `build`, and removes its nodes if it fails.
    pub(super) fn attempt<T, E>(&mut self, build: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let length = self.nodes.len();
        let built = build(self);
        if built.is_err() {
            self.nodes.truncate(length);
            let first = u32::try_from(length).expect("a grammar has fewer than 2^32 nodes");
            self.unique_lists.retain(|node| node.0 < first);
        }
        built
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(u32::try_from(self.nodes.len() - 1).expect("a grammar has fewer than 2^32 nodes"))
    }

    /// Adds a node that is defined later, for rules that refer to themselves.
    pub(super) fn reserve(&mut self) -> NodeId {
        self.add(Node::Split(Vec::new()))
    }

    pub(super) fn define(&mut self, reserved: NodeId, as_this: NodeId) {
        self.nodes[reserved.0 as usize] = Node::Split(vec![as_this]);
    }

    /// Marks the byte node at which a list of unique items begins.
    pub(super) fn mark_unique_list(&mut self, node: NodeId) {
        self.unique_lists.insert(node);
    }

    pub(super) fn bytes(&mut self, set: ByteSet, next: NodeId) -> NodeId {
        self.add(Node::Bytes(set, next))
    }

    pub(super) fn literal(&mut self, text: &[u8], next: NodeId) -> NodeId {
        text.iter()
            .rev()
            .fold(next, |next, byte| self.bytes(ByteSet::of(&[*byte]), next))
    }

    /// Matches one of these texts. Texts share common prefixes, so that the number of branches is
    /// limited by the number of bytes.
    pub(super) fn one_of(&mut self, mut texts: Vec<Vec<u8>>, next: NodeId) -> NodeId {
        texts.sort_unstable();
        texts.dedup();
        // For each byte of the last text: the complete branches from there.
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

    /// Closes the open branches of `text` beyond the first `keep` bytes.
    fn close(&mut self, open: &mut Vec<Vec<NodeId>>, text: &[u8], keep: usize) {
        while open.len() > keep + 1
            && let Some(branches) = open.pop()
        {
            let rest = self.any_of(branches);
            let at = open.len() - 1;
            let branch = self.bytes(ByteSet::of(&[text[at]]), rest);
            open[at].push(branch);
        }
    }

    pub(super) fn any_of(&mut self, branches: Vec<NodeId>) -> NodeId {
        match branches[..] {
            [only] => only,
            _ => self.add(Node::Split(branches)),
        }
    }

    pub(super) fn optional(&mut self, branch: NodeId, next: NodeId) -> NodeId {
        self.any_of(vec![branch, next])
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

    /// Matches one character of these ranges, encoded as UTF-8.
    pub(super) fn characters(&mut self, ranges: &[(char, char)], next: NodeId) -> NodeId {
        let mut single = ByteSet::default();
        let mut branches = Vec::new();
        for (first, last) in ranges {
            for sequence in Utf8Sequences::new(*first, *last) {
                match sequence.as_slice() {
                    [only] => (only.start..=only.end).for_each(|byte| single.insert(byte)),
                    several => {
                        let chain = several.iter().rev().fold(next, |next, range| {
                            self.bytes(ByteSet::range(range.start, range.end), next)
                        });
                        branches.push(chain);
                    }
                }
            }
        }
        if single != ByteSet::default() {
            branches.push(self.bytes(single, next));
        }
        self.any_of(branches)
    }

    /// Matches any text up to and including the first `end`. Only `end` may contain special tokens.
    pub(super) fn until(&mut self, end: &[u8], next: NodeId) -> NodeId {
        self.search(end, Some(next), None)
    }

    /// Matches any text up to and including the first `end`, then `next`, or any text without
    /// `end`, then `other`.
    pub(super) fn until_either(&mut self, end: &[u8], next: NodeId, other: NodeId) -> NodeId {
        self.search(end, Some(next), Some(other))
    }

    /// Matches any text that does not contain `mark`, then `next`.
    pub(super) fn without(&mut self, mark: &[u8], next: NodeId) -> NodeId {
        self.search(mark, None, Some(next))
    }

    /// Builds a search for `mark` in any text. `after` follows the mark, if the mark is permitted.
    /// `anywhere` may follow at any position before the mark.
    fn search(&mut self, mark: &[u8], after: Option<NodeId>, anywhere: Option<NodeId>) -> NodeId {
        // States of the Knuth-Morris-Pratt algorithm: the length of the matched prefix of `mark`.
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
            let branches = sets
                .into_iter()
                .enumerate()
                .filter(|(_, set)| *set != ByteSet::default())
                .filter_map(|(length, set)| Some((set, states.get(length).copied().or(after)?)))
                .map(|(set, to)| self.bytes(set, to))
                .chain(anywhere)
                .collect();
            let branches = self.any_of(branches);
            self.define(*state, branches);
        }
        states.first().copied().or(after).unwrap_or(RETURN)
    }
}

#[cfg(test)]
mod tests;
