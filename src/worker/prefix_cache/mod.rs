//! The prefix cache: keys and values of prompts and answers that were computed, kept for requests that begin with the
//! same tokens. Such a request begins with copies, and is computed from there on; at least its last token is, for its
//! logits. The result is the same as without.
//!
//! Requests' caches are contiguous, as attention wants them; what is shared and kept are blocks ([`tree`]), by the
//! tokens that lead to them. They use memory that running requests do not hold yet, and give way when those grow.

mod key;
mod tree;

use mlx_rs::error::Result;
use mlx_rs::transforms;

use self::key::BlockKey;
use self::tree::{BLOCK_TOKENS, Missing, Tree};
use super::models::{KvBlock, KvCache};
use crate::units::Bytes;

/// Reusing fewer tokens than this is not worth the copies: the step that computes the rest reads all weights anyway.
/// vLLM's granularity, too.
const MIN_TOKENS: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    tree: Tree<KvBlock>,
    /// The most it may hold, whatever else is free.
    capacity: Bytes,
}

/// What of a sequence is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// More of it is still to come.
    WholeBlocks,
    Everything,
}

/// A beginning for a request.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub(crate) cache: KvCache,
    pub(crate) tokens: usize,
}

impl PrefixCache {
    pub(crate) fn new(capacity: Bytes) -> Self {
        Self {
            tree: Tree::default(),
            capacity,
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.tree.bytes())
    }

    /// The longest beginning of `prompt` that is held, without its last token. `None` where there is none worth it.
    pub(crate) fn find(&mut self, salt: &str, prompt: &[u32]) -> Result<Option<Prefix>> {
        let (_, most) = prompt.split_last().unwrap_or((&0, &[]));
        let blocks = self.tree.find(BlockKey::root(salt), most);
        let tokens = blocks.iter().map(|(_, length)| length).sum();
        if tokens < MIN_TOKENS {
            return Ok(None);
        }
        let cache = KvCache::from_blocks(&blocks, prompt.len())?;
        Ok(Some(Prefix { cache, tokens }))
    }

    /// Keeps what `cache` holds of `tokens`, as far as there is `room` beside what all requests hold.
    pub(crate) fn keep(
        &mut self,
        salt: &str,
        tokens: &[u32],
        cache: &KvCache,
        keep: Keep,
        room: Bytes,
    ) -> Result<()> {
        if !cache.keeps_all() {
            return Ok(());
        }
        let computed = usize::try_from(cache.offset()).unwrap_or(0).min(tokens.len());
        let end = match keep {
            Keep::WholeBlocks => computed / BLOCK_TOKENS * BLOCK_TOKENS,
            Keep::Everything if computed < MIN_TOKENS => return Ok(()),
            Keep::Everything => computed,
        };
        let limit = room.min(self.capacity).0;
        let mut kept = Vec::new();
        for Missing { parent, range } in self.tree.missing(BlockKey::root(salt), &tokens[..end]) {
            let block = cache.block(&range)?;
            let bytes = block.bytes();
            let Some(others) = limit.checked_sub(bytes) else {
                break;
            };
            self.tree.shrink(others, false);
            if self.tree.bytes() > others {
                break;
            }
            kept.extend(block.arrays().cloned());
            self.tree.insert(parent, &tokens[range], bytes, block);
        }
        // Now, while the sequence's cache is what it is: it goes on in place once nothing refers to it any more.
        transforms::async_eval(&kept)
    }

    /// Lets go of blocks until no more than `room` is held.
    pub(crate) fn give_way(&mut self, room: Bytes) {
        self.tree.shrink(room.0, true);
    }
}

#[cfg(test)]
mod tests;
