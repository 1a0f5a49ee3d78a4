//! A tokenizer's vocabulary as a grammar sees it: each token's bytes, in a trie, so that one walk finds all tokens that
//! fit.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::matcher::{DEAD, StateId, TooAmbiguous};
use super::{Grammar, Matcher, SPECIAL};
use crate::text::tokenizer::Tokenizer;

/// States whose masks are kept for one answer; each is as large as the vocabulary.
const MAX_MASKS: usize = 64;

/// Longer ones, where there are any, are left out of masks: the trie is built by recursion.
const MAX_TOKEN_BYTES: usize = 1024;

const NO_TOKEN: u32 = u32::MAX;

/// See the module's text.
pub(crate) struct Vocabulary {
    /// In the order of a walk: children follow their parent.
    nodes: Vec<TrieNode>,
    bytes: HashMap<u32, Box<[u8]>>,
    /// Tokens with the same bytes as another one, which stands in the trie.
    same: HashMap<u32, Vec<u32>>,
    end_tokens: Vec<u32>,
    /// Of the model, which may have more tokens than the tokenizer.
    size: usize,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
struct TrieNode {
    byte: u8,
    /// One past the last node below this one.
    end: u32,
    token: u32,
}

impl Vocabulary {
    /// `size` is the model's. `None` where the tokenizer does not say what bytes its tokens stand for.
    pub(crate) fn new(tokenizer: &Tokenizer, size: usize) -> Option<Self> {
        if !tokenizer.spells_text() {
            return None;
        }
        let mut tokens: Vec<(Box<[u8]>, u32)> = Vec::with_capacity(size);
        for token in 0..u32::try_from(size).ok()? {
            if tokenizer.is_eos(token) {
                continue;
            }
            let spelled = tokenizer.spelled(token);
            let bytes: Vec<u8> = if tokenizer.is_special(token) {
                std::iter::once(SPECIAL).chain(spelled).collect()
            } else if spelled.contains(&SPECIAL) {
                // No part of any text.
                continue;
            } else {
                spelled
            };
            if (1..=MAX_TOKEN_BYTES).contains(&bytes.len()) {
                tokens.push((bytes.into(), token));
            }
        }
        tokens.sort_unstable();
        let mut vocabulary = Self {
            nodes: Vec::new(),
            bytes: tokens
                .iter()
                .map(|(bytes, token)| (*token, bytes.clone()))
                .collect(),
            same: HashMap::new(),
            end_tokens: tokenizer.eos_token_ids().to_vec(),
            size,
        };
        vocabulary.grow(&tokens, 0);
        Some(vocabulary)
    }

    /// Adds sorted tokens that agree in their first `depth` bytes and have more.
    fn grow(&mut self, mut tokens: &[(Box<[u8]>, u32)], depth: usize) {
        while let Some((first, _)) = tokens.first() {
            let byte = first[depth];
            let count = tokens.partition_point(|(bytes, _)| bytes[depth] <= byte);
            let (group, others) = tokens.split_at(count);
            let whole = group.partition_point(|(bytes, _)| bytes.len() == depth + 1);
            let token = group[..whole].first().map_or(NO_TOKEN, |(_, token)| *token);
            if whole > 1 {
                let more = group[1..whole].iter().map(|(_, token)| *token).collect();
                self.same.insert(token, more);
            }
            let place = self.nodes.len();
            self.nodes.push(TrieNode { byte, end: 0, token });
            self.grow(&group[whole..], depth + 1);
            self.nodes[place].end = u32::try_from(self.nodes.len()).expect("fewer than 2^32 bytes of tokens");
            tokens = others;
        }
    }
}

/// Which tokens may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask(Vec<bool>);

impl Mask {
    /// All of a vocabulary but these.
    pub(crate) fn without(size: usize, tokens: &[u32]) -> Self {
        let mut allowed = vec![true; size];
        for token in tokens {
            if let Some(place) = allowed.get_mut(*token as usize) {
                *place = false;
            }
        }
        Self(allowed)
    }

    /// What both allow; `None` where that is nothing.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let both = self.0.iter().zip(&other.0).map(|(one, other)| *one && *other);
        let both: Vec<bool> = both.collect();
        both.contains(&true).then_some(Self(both))
    }

    /// By token; as long as the model's vocabulary.
    pub(crate) fn allowed(&self) -> &[bool] {
        &self.0
    }
}

/// Why an answer cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConstraintError {
    #[error(transparent)]
    TooAmbiguous(#[from] TooAmbiguous),
    #[error("no token of the model's vocabulary goes on with what its answer has to be")]
    NoToken,
    #[error("token {0} was chosen, which the answer must not have here")]
    NotAllowed(u32),
}

/// Keeps one answer within a grammar.
#[derive(Debug, Clone)]
pub(crate) struct Constraint {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    masks: HashMap<StateId, Arc<Mask>>,
}

impl Constraint {
    pub(crate) fn new(grammar: Arc<Grammar>, vocabulary: Arc<Vocabulary>) -> Result<Self, ConstraintError> {
        Ok(Self {
            vocabulary,
            matcher: Matcher::new(grammar)?,
            masks: HashMap::new(),
        })
    }

    /// The tokens that may come next: at least one.
    pub(crate) fn mask(&mut self) -> Result<Arc<Mask>, ConstraintError> {
        if self.matcher.tidy() || self.masks.len() >= MAX_MASKS {
            self.masks.clear();
        }
        let state = self.matcher.current();
        if let Some(mask) = self.masks.get(&state) {
            return Ok(Arc::clone(mask));
        }
        let mask = Arc::new(self.walk(state)?);
        self.masks.insert(state, Arc::clone(&mask));
        Ok(mask)
    }

    fn walk(&mut self, state: StateId) -> Result<Mask, ConstraintError> {
        let Self {
            vocabulary, matcher, ..
        } = self;
        let mut allowed = vec![false; vocabulary.size];
        let mut any = matcher.is_accepting() && !vocabulary.end_tokens.is_empty();
        if matcher.is_accepting() {
            for token in &vocabulary.end_tokens {
                if let Some(place) = allowed.get_mut(*token as usize) {
                    *place = true;
                }
            }
        }
        // States on the way down, each with where its nodes end.
        let mut way: Vec<(StateId, u32)> = Vec::new();
        let mut place = 0_u32;
        while let Some(node) = vocabulary.nodes.get(place as usize) {
            while way.last().is_some_and(|(_, end)| *end <= place) {
                way.pop();
            }
            let from = way.last().map_or(state, |(state, _)| *state);
            let to = matcher.step(from, node.byte)?;
            if to == DEAD {
                place = node.end;
                continue;
            }
            if node.token != NO_TOKEN {
                any = true;
                allowed[node.token as usize] = true;
                for same in vocabulary.same.get(&node.token).into_iter().flatten() {
                    allowed[*same as usize] = true;
                }
            }
            way.push((to, node.end));
            place += 1;
        }
        if any {
            Ok(Mask(allowed))
        } else {
            Err(ConstraintError::NoToken)
        }
    }

    /// Takes the token that was chosen; not one that ends the text.
    pub(crate) fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        let bytes = self.vocabulary.bytes.get(&token);
        let bytes = bytes.ok_or(ConstraintError::NotAllowed(token))?;
        if self.matcher.read(bytes)? {
            Ok(())
        } else {
            Err(ConstraintError::NotAllowed(token))
        }
    }

    /// The answer is whole, and nothing can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_accepting() && self.matcher.is_at_end()
    }
}
