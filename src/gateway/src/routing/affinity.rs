//! Who should be asked again: where a session lives, and which replica has seen the beginning of a prompt.
//!
//! Gateways share nothing. Rendezvous hashing makes each of them find the same home for a session and for a beginning
//! that none of them has seen; what went where is remembered by each for itself, within bounds.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A hash that is the same in every gateway of one build, and no longer: whom to ask, and whose turn it is, is all that may hang
/// on it.
pub(crate) fn stable_hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Rendezvous hashing (Thaler and Ravishankar, 1996): of all places the one with the highest weight is the key's home,
/// so that a place that goes takes only its own keys along.
pub(crate) fn weight(key: u64, place: u64) -> u64 {
    stable_hash((key, place))
}

/// Bytes of prompt text in a block: one of the worker's blocks of tokens, roughly.
const BLOCK_BYTES: usize = 1024;
/// Blocks of one prompt that are looked at: a longer prompt is told apart well enough by its first half megabyte.
const MAX_BLOCKS: usize = 512;
/// Blocks in one generation of the memory; with the older generation, some ten megabytes at the most.
const MAX_YOUNG_BLOCKS: usize = 128 << 10;

/// The beginning of a prompt: each block's hash covers all blocks before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prefix(Vec<u64>);

impl Prefix {
    /// Of the texts one after another, as a prompt is made of them. `salt` keeps apart what may not be shared.
    pub(crate) fn of<'a>(salt: u64, texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut blocks = Vec::new();
        let mut chain = salt;
        let mut open: Vec<u8> = Vec::new();
        for text in texts {
            let mut rest = text.as_bytes();
            while !rest.is_empty() && blocks.len() < MAX_BLOCKS {
                let (taken, left) = rest.split_at(rest.len().min(BLOCK_BYTES - open.len()));
                rest = left;
                if open.is_empty() && taken.len() == BLOCK_BYTES {
                    chain = stable_hash((chain, taken));
                    blocks.push(chain);
                    continue;
                }
                open.extend_from_slice(taken);
                if open.len() == BLOCK_BYTES {
                    chain = stable_hash((chain, open.as_slice()));
                    blocks.push(chain);
                    open.clear();
                }
            }
        }
        Self(blocks)
    }

    /// What prompts that begin alike have in common.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().copied()
    }

    fn bytes(blocks: usize) -> u64 {
        (blocks * BLOCK_BYTES) as u64
    }
}

/// The replicas that saw a block last, the newest first.
type Holders = [u64; 2];
const NOBODY: u64 = 0;

/// What went where. The least recently used is forgotten by halves: two generations, of which the older one goes when
/// the younger one is full.
#[derive(Debug, Default)]
pub(crate) struct PrefixMemory {
    young: HashMap<u64, Holders>,
    old: HashMap<u64, Holders>,
}

impl PrefixMemory {
    /// `replica` is about to read a prompt that begins so.
    pub(crate) fn remember(&mut self, prefix: &Prefix, replica: u64) {
        for block in &prefix.0 {
            if self.young.len() >= MAX_YOUNG_BLOCKS {
                self.old = std::mem::take(&mut self.young);
            }
            let before = self.young.get(block).or_else(|| self.old.get(block));
            let holders = match before.copied().unwrap_or([NOBODY; 2]) {
                [newest, other] if newest == replica => [replica, other],
                [newest, _] => [replica, newest],
            };
            self.young.insert(*block, holders);
        }
    }

    /// Bytes at the beginning of the prompt that each replica has seen. Those that saw nothing are not named.
    pub(crate) fn seen_by(&self, prefix: &Prefix) -> HashMap<u64, u64> {
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for (index, block) in prefix.0.iter().enumerate() {
            let Some(holders) = self.young.get(block).or_else(|| self.old.get(block)) else {
                break;
            };
            for holder in holders.iter().filter(|holder| **holder != NOBODY) {
                seen.insert(*holder, Prefix::bytes(index + 1));
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::of(0, [text])
    }

    fn seen(memory: &PrefixMemory, text: &str, replica: u64) -> u64 {
        memory
            .seen_by(&prefix(text))
            .get(&replica)
            .copied()
            .unwrap_or_default()
    }

    #[test]
    fn a_conversation_is_found_again_as_far_as_it_is_the_same() {
        let mut memory = PrefixMemory::default();
        let begun = "a".repeat(5 * BLOCK_BYTES);
        memory.remember(&prefix(&begun), 7);
        let goes_on = format!("{begun}{}", "b".repeat(3 * BLOCK_BYTES));
        assert_eq!(seen(&memory, &goes_on, 7), 5 * 1024);
        assert_eq!(seen(&memory, &goes_on, 8), 0);
        memory.remember(&prefix(&goes_on), 8);
        assert_eq!(seen(&memory, &goes_on, 8), 8 * 1024);
        assert_eq!(seen(&memory, &goes_on, 7), 5 * 1024);
        assert_eq!(seen(&memory, &format!("x{begun}"), 7), 0);
        assert_eq!(prefix("short").first(), None);
        let salted = Prefix::of(1, [begun.as_str()]);
        assert!(memory.seen_by(&salted).is_empty());
    }

    #[test]
    fn what_was_not_used_for_long_is_forgotten_and_the_rest_kept() {
        let mut memory = PrefixMemory::default();
        let blocks = |round: u64| {
            Prefix(
                (0..MAX_BLOCKS as u64)
                    .map(|block| stable_hash((round, block)))
                    .collect(),
            )
        };
        let (kept, forgotten) = (Prefix(vec![1]), Prefix(vec![2]));
        memory.remember(&forgotten, 1);
        for round in 0..3 * MAX_YOUNG_BLOCKS / MAX_BLOCKS {
            memory.remember(&kept, 1);
            memory.remember(&blocks(round as u64), 2);
            assert!(memory.young.len() + memory.old.len() <= 2 * MAX_YOUNG_BLOCKS);
        }
        assert_eq!(memory.seen_by(&kept)[&1], 1024);
        assert!(memory.seen_by(&forgotten).is_empty());
    }

    proptest! {
        #[test]
        fn how_a_text_is_cut_into_parts_does_not_matter(
            text in "[a-z]{0,5000}", cuts in proptest::collection::vec(0usize..5000, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(Prefix::of(3, parts), Prefix::of(3, [text.as_str()]));
        }

        #[test]
        fn a_place_that_goes_moves_only_its_own_keys(keys in proptest::collection::vec(any::<u64>(), 1..50), gone in 0u64..5) {
            let home = |key: u64, without: Option<u64>| {
                (0u64..5).filter(|place| Some(*place) != without).max_by_key(|place| weight(key, *place))
            };
            for key in keys {
                let before = home(key, None);
                if before != Some(gone) {
                    prop_assert_eq!(home(key, Some(gone)), before);
                }
            }
        }
    }
}
