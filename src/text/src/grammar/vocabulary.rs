//! Vocabulary of a tokenizer for grammars: the bytes of each token, in a trie, so that one walk
//! finds all permitted tokens. Where any plain text may follow, plain tokens are permitted without
//! a walk. Plain tokens are the majority of a vocabulary.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use super::SPECIAL;
use super::mask::Mask;
use super::matcher::PLAIN_ASCII;
use super::unique::UniqueItems;
use crate::tokenizer::Tokenizer;

/// Maximum length of a token in bytes. Longer tokens are never permitted, because the trie is built
/// by recursion.
const MAX_TOKEN_BYTES: usize = 1024;

/// Length limits in characters of the plain tokens of each slice. Few tokens are longer than the
/// last.
const PLAIN_CHARACTERS: [usize; 3] = [6, 16, 32];

const NO_TOKEN: u32 = u32::MAX;

/// Vocabulary of a tokenizer; see the module documentation.
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Byte range of each token in `bytes`; empty for tokens that never occur in text.
    ranges: Vec<Range<u32>>,
    /// Further tokens with the same bytes as a token in the tries.
    duplicates: HashMap<u32, Vec<u32>>,
    end_tokens: Vec<u32>,
    /// Tokens with a quotation mark.
    quoted: Vec<u32>,
    /// Tokens that may complete an item.
    ending: Vec<u32>,
    all: Slice,
    /// Slices in the order of [`PLAIN_CHARACTERS`].
    slices: [Slice; PLAIN_CHARACTERS.len()],
}

/// Vocabulary, split into plain tokens that are permitted and all others.
pub(super) struct Slice {
    pub(super) fitting: Mask,
    /// Trie of all other tokens in depth-first order: children follow their parent.
    pub(super) others: Vec<TrieNode>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TrieNode {
    pub(super) byte: u8,
    /// Index after the last node of this subtree.
    pub(super) end: u32,
    token: u32,
}

impl TrieNode {
    /// Returns the token that ends at this node.
    pub(super) fn token(&self) -> Option<u32> {
        (self.token != NO_TOKEN).then_some(self.token)
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Bytes of a token, and the token.
type Spelling = (Box<[u8]>, u32);

impl Vocabulary {
    /// Creates the vocabulary of a tokenizer. `size` is the model's vocabulary size, which may
    /// exceed the tokenizer's. `None` if the bytes of the tokens are unknown.
    pub fn new(tokenizer: &Tokenizer, size: usize) -> Option<Self> {
        if !tokenizer.decodes_by_concatenation() {
            return None;
        }
        let spelling = |token: u32| {
            if tokenizer.is_eos(token) {
                return Vec::new();
            }
            let spelling = tokenizer.standalone_bytes(token);
            if tokenizer.is_special(token) {
                std::iter::once(SPECIAL).chain(spelling).collect()
            } else if spelling.contains(&SPECIAL) {
                // No UTF-8 text contains this byte.
                Vec::new()
            } else {
                spelling
            }
        };
        let tokens = (0..u32::try_from(size).ok()?).map(spelling);
        Some(Self::of(tokens, tokenizer.eos_token_ids().to_vec()))
    }

    /// Creates a vocabulary from the bytes of each token; empty for tokens that never occur in
    /// text.
    pub(super) fn of(tokens: impl IntoIterator<Item = Vec<u8>>, end_tokens: Vec<u32>) -> Self {
        let (mut bytes, mut ranges, mut sorted) = (Vec::new(), Vec::new(), Vec::new());
        for (token, spelling) in (0_u32..).zip(tokens) {
            let begin = bytes.len() as u32;
            if (1..=MAX_TOKEN_BYTES).contains(&spelling.len()) {
                bytes.extend_from_slice(&spelling);
                sorted.push((spelling.into(), token));
            }
            ranges.push(begin..bytes.len() as u32);
        }
        sorted.sort_unstable();
        let mut duplicates: HashMap<u32, Vec<u32>> = HashMap::new();
        sorted.dedup_by(|(later, token), (kept, first): &mut Spelling| {
            let is_same = later == kept;
            if is_same {
                duplicates.entry(*first).or_default().push(*token);
            }
            is_same
        });
        let with = |fits: &dyn Fn(&[u8]) -> bool| -> Vec<u32> {
            let tokens = (0_u32..).zip(&ranges);
            let fitting = tokens.filter(|(_, range)| fits(&bytes[range.start as usize..range.end as usize]));
            fitting.map(|(token, _)| token).collect()
        };
        let quoted = with(&|bytes| bytes.contains(&b'"'));
        let ending = with(&|bytes| bytes.iter().any(|byte| b"\",]} \t\r\n".contains(byte)));
        let slice = |fits: &dyn Fn(&[u8]) -> bool| Slice::new(&sorted, &duplicates, ranges.len(), fits);
        Self {
            all: slice(&|_| false),
            slices: PLAIN_CHARACTERS.map(|most| {
                slice(&|bytes| plain_characters(bytes).is_some_and(|characters| characters <= most))
            }),
            bytes,
            ranges,
            duplicates,
            end_tokens,
            quoted,
            ending,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Returns the bytes of a token; `None` if the token never occurs in text.
    pub(super) fn bytes(&self, token: u32) -> Option<&[u8]> {
        let Range { start, end } = self.ranges.get(token as usize)?.clone();
        (start < end).then(|| &self.bytes[start as usize..end as usize])
    }

    /// Returns the tokens that may complete an item which repeats another one.
    pub(super) fn ending_items(&self, items: &UniqueItems) -> &[u32] {
        if items.is_in_string() {
            &self.quoted
        } else {
            &self.ending
        }
    }

    /// Returns the other tokens with the same bytes.
    pub(super) fn duplicates(&self, token: u32) -> &[u32] {
        self.duplicates.get(&token).map_or(&[], Vec::as_slice)
    }

    /// Returns the largest number of plain characters that a slice distinguishes.
    pub(super) fn most_plain_characters() -> usize {
        PLAIN_CHARACTERS[PLAIN_CHARACTERS.len() - 1]
    }

    /// Returns the slice for a position where this number of arbitrary plain characters may follow.
    pub(super) fn slice(&self, plain_characters: usize) -> &Slice {
        let enough = PLAIN_CHARACTERS
            .iter()
            .rposition(|most| *most <= plain_characters);
        enough.map_or(&self.all, |place| &self.slices[place])
    }
}

impl Slice {
    fn new(
        tokens: &[Spelling],
        duplicates: &HashMap<u32, Vec<u32>>,
        size: usize,
        fits: &dyn Fn(&[u8]) -> bool,
    ) -> Self {
        let mut slice = Self {
            fitting: Mask::none(size),
            others: Vec::new(),
        };
        let mut others: Vec<(&[u8], u32)> = Vec::new();
        for (bytes, token) in tokens {
            if fits(bytes) {
                slice.fitting.allow(*token);
                for duplicate in duplicates.get(token).into_iter().flatten() {
                    slice.fitting.allow(*duplicate);
                }
            } else {
                others.push((bytes, *token));
            }
        }
        slice.grow(&others, 0);
        slice
    }

    /// Adds sorted tokens with the same first `depth` bytes and at least one more.
    fn grow(&mut self, mut tokens: &[(&[u8], u32)], depth: usize) {
        while let Some((first, _)) = tokens.first() {
            let byte = first[depth];
            let count = tokens.partition_point(|(bytes, _)| bytes[depth] <= byte);
            let (group, others) = tokens.split_at(count);
            let whole = group.first().filter(|(bytes, _)| bytes.len() == depth + 1);
            let place = self.others.len();
            self.others.push(TrieNode {
                byte,
                end: 0,
                token: whole.map_or(NO_TOKEN, |(_, token)| *token),
            });
            self.grow(&group[usize::from(whole.is_some())..], depth + 1);
            self.others[place].end =
                u32::try_from(self.others.len()).expect("a vocabulary has fewer than 2^32 bytes");
            tokens = others;
        }
    }
}

/// Returns the number of characters if all are plain; see [`PLAIN_ASCII`].
fn plain_characters(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = |c: char| match u8::try_from(c).ok().filter(u8::is_ascii) {
        Some(byte) => PLAIN_ASCII.iter().any(|range| range.contains(&byte)),
        None => !matches!(c, '\u{2028}' | '\u{2029}'),
    };
    text.chars().all(plain).then(|| text.chars().count())
}
