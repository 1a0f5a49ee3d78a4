//! A tokenizer's vocabulary as a grammar sees it: each token's bytes, in a trie, so that one walk
//! finds all tokens that fit. Where any plain text may follow, the tokens that are plain text need
//! no walk: those are most of a vocabulary.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use super::SPECIAL;
use super::mask::Mask;
use super::matcher::PLAIN_ASCII;
use crate::tokenizer::Tokenizer;

/// Longer ones, where there are any, are left out of masks: the trie is built by recursion.
const MAX_TOKEN_BYTES: usize = 1024;

/// Plain tokens of so many characters or fewer are kept apart from all others. Few tokens are
/// longer than the last.
const PLAIN_CHARACTERS: [usize; 3] = [6, 16, 32];

const NO_TOKEN: u32 = u32::MAX;

/// See the module's text.
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Each token's own, by token; empty for those that no text has.
    spellings: Vec<Range<u32>>,
    /// Tokens with the same bytes as another one, which stands in the tries.
    same: HashMap<u32, Vec<u32>>,
    end_tokens: Vec<u32>,
    all: Slice,
    /// In the order of [`PLAIN_CHARACTERS`].
    slices: [Slice; PLAIN_CHARACTERS.len()],
}

/// A vocabulary, where some plain tokens are known to fit.
pub(super) struct Slice {
    pub(super) fitting: Mask,
    /// All others, in the order of a walk: children follow their parent.
    pub(super) others: Vec<TrieNode>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TrieNode {
    pub(super) byte: u8,
    /// One past the last node below this one.
    pub(super) end: u32,
    token: u32,
}

impl TrieNode {
    /// The token that ends here.
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

/// What a token adds to a text, and the token.
type Spelled = (Box<[u8]>, u32);

impl Vocabulary {
    /// `size` is the model's, which may have more tokens than the tokenizer. `None` where the
    /// tokenizer does not say what bytes its tokens stand for.
    pub fn new(tokenizer: &Tokenizer, size: usize) -> Option<Self> {
        if !tokenizer.spells_text() {
            return None;
        }
        let spelled = |token: u32| {
            if tokenizer.is_eos(token) {
                return Vec::new();
            }
            let spelled = tokenizer.spelled(token);
            if tokenizer.is_special(token) {
                std::iter::once(SPECIAL).chain(spelled).collect()
            } else if spelled.contains(&SPECIAL) {
                // No part of any text.
                Vec::new()
            } else {
                spelled
            }
        };
        let tokens = (0..u32::try_from(size).ok()?).map(spelled);
        Some(Self::of(tokens, tokenizer.eos_token_ids().to_vec()))
    }

    /// From what each token adds to a text: nothing, where no text has it.
    pub(super) fn of(tokens: impl IntoIterator<Item = Vec<u8>>, end_tokens: Vec<u32>) -> Self {
        let (mut bytes, mut spellings, mut sorted) = (Vec::new(), Vec::new(), Vec::new());
        for (token, spelled) in (0_u32..).zip(tokens) {
            let begin = bytes.len() as u32;
            if (1..=MAX_TOKEN_BYTES).contains(&spelled.len()) {
                bytes.extend_from_slice(&spelled);
                sorted.push((spelled.into(), token));
            }
            spellings.push(begin..bytes.len() as u32);
        }
        sorted.sort_unstable();
        let mut same: HashMap<u32, Vec<u32>> = HashMap::new();
        sorted.dedup_by(|(later, token), (kept, first): &mut Spelled| {
            let is_same = later == kept;
            if is_same {
                same.entry(*first).or_default().push(*token);
            }
            is_same
        });
        let slice = |fits: &dyn Fn(&[u8]) -> bool| Slice::new(&sorted, &same, spellings.len(), fits);
        Self {
            all: slice(&|_| false),
            slices: PLAIN_CHARACTERS.map(|most| {
                slice(&|bytes| plain_characters(bytes).is_some_and(|characters| characters <= most))
            }),
            bytes,
            spellings,
            same,
            end_tokens,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.spellings.len()
    }

    pub(super) fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// What a token adds to a text; `None` for one that no text has.
    pub(super) fn bytes(&self, token: u32) -> Option<&[u8]> {
        let Range { start, end } = self.spellings.get(token as usize)?.clone();
        (start < end).then(|| &self.bytes[start as usize..end as usize])
    }

    /// Tokens that are written like this one, itself left out.
    pub(super) fn same(&self, token: u32) -> &[u32] {
        self.same.get(&token).map_or(&[], Vec::as_slice)
    }

    /// The most plain characters that it is worth to know of.
    pub(super) fn most_plain_characters() -> usize {
        PLAIN_CHARACTERS[PLAIN_CHARACTERS.len() - 1]
    }

    /// What to begin with where so many plain characters may follow, whichever they are.
    pub(super) fn slice(&self, plain_characters: usize) -> &Slice {
        let enough = PLAIN_CHARACTERS
            .iter()
            .rposition(|most| *most <= plain_characters);
        enough.map_or(&self.all, |place| &self.slices[place])
    }
}

impl Slice {
    fn new(
        tokens: &[Spelled],
        same: &HashMap<u32, Vec<u32>>,
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
                for same in same.get(token).into_iter().flatten() {
                    slice.fitting.allow(*same);
                }
            } else {
                others.push((bytes, *token));
            }
        }
        slice.grow(&others, 0);
        slice
    }

    /// Adds sorted tokens that agree in their first `depth` bytes and have more.
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
                u32::try_from(self.others.len()).expect("fewer than 2^32 bytes of tokens");
            tokens = others;
        }
    }
}

/// How many characters these bytes are, where all are plain; see [`PLAIN_ASCII`].
fn plain_characters(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = |c: char| match u8::try_from(c).ok().filter(u8::is_ascii) {
        Some(byte) => PLAIN_ASCII.iter().any(|range| range.contains(&byte)),
        None => !matches!(c, '\u{2028}' | '\u{2029}'),
    };
    text.chars().all(plain).then(|| text.chars().count())
}
