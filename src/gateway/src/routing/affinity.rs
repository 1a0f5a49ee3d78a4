//! Session and prefix affinity: the replica of a session, and the replicas that have a prompt's
//! prefix in their cache.
//!
//! Gateways share no state. With rendezvous hashing, all gateways choose the same replica for a
//! session and for an unknown prefix. Each gateway records the prefixes that it has routed, up to a
//! limit.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns a hash that is equal in all gateways of the same build, but not across builds. Use it
/// only for routing and fair queueing.
pub(crate) fn stable_hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns the weight of a replica for a key in rendezvous hashing (Thaler and Ravishankar, 1996).
///
/// The replica with the highest weight gets the key. Removal of a replica moves only its own keys.
pub(crate) fn weight(key: u64, replica: u64) -> u64 {
    stable_hash((key, replica))
}

/// Bytes of prompt text in a block; roughly one KV block of the worker.
const BLOCK_BYTES: usize = 1024;
/// Maximum number of hashed blocks of a prompt (512 KiB of text).
const MAX_BLOCKS: usize = 512;
/// Maximum blocks in one generation of [`PrefixMemory`]. Both generations take about 10 MB.
const MAX_YOUNG_BLOCKS: usize = 128 << 10;

/// Prefix of a prompt as a chain of block hashes; each hash covers all blocks before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prefix(Vec<u64>);

impl Prefix {
    /// Returns the prefix of the concatenated texts. Different salts yield different prefixes.
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

    /// Returns the hash of the first block, or `None` for a prompt shorter than a block.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.first().copied()
    }

    fn bytes(blocks: usize) -> u64 {
        (blocks * BLOCK_BYTES) as u64
    }
}

/// The two replicas that most recently got a block, newest first.
type Holders = [u64; 2];
const NO_REPLICA: u64 = 0;

/// Blocks of routed prompts and the replicas that got them.
///
/// Approximates LRU eviction with two generations: if the young one is full, it replaces the old
/// one.
#[derive(Debug, Default)]
pub(crate) struct PrefixMemory {
    young: HashMap<u64, Holders>,
    old: HashMap<u64, Holders>,
}

impl PrefixMemory {
    /// Records that a prompt with this prefix was routed to `replica`.
    pub(crate) fn record(&mut self, prefix: &Prefix, replica: u64) {
        for block in &prefix.0 {
            if self.young.len() >= MAX_YOUNG_BLOCKS {
                self.old = std::mem::take(&mut self.young);
            }
            let before = self.young.get(block).or_else(|| self.old.get(block));
            let holders = match before.copied().unwrap_or([NO_REPLICA; 2]) {
                [newest, other] if newest == replica => [replica, other],
                [newest, _] => [replica, newest],
            };
            self.young.insert(*block, holders);
        }
    }

    /// Returns the bytes of the prefix that each replica has received before. Omits replicas with
    /// none.
    pub(crate) fn cached_bytes(&self, prefix: &Prefix) -> HashMap<u64, u64> {
        let mut bytes: HashMap<u64, u64> = HashMap::new();
        for (index, block) in prefix.0.iter().enumerate() {
            let Some(holders) = self.young.get(block).or_else(|| self.old.get(block)) else {
                break;
            };
            for holder in holders.iter().filter(|holder| **holder != NO_REPLICA) {
                bytes.insert(*holder, Prefix::bytes(index + 1));
            }
        }
        bytes
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
            .cached_bytes(&prefix(text))
            .get(&replica)
            .copied()
            .unwrap_or_default()
    }

    #[test]
    fn finds_longest_common_prefix_of_conversation() {
        let mut memory = PrefixMemory::default();
        let start = "a".repeat(5 * BLOCK_BYTES);
        memory.record(&prefix(&start), 7);
        let continued = format!("{start}{}", "b".repeat(3 * BLOCK_BYTES));
        assert_eq!(seen(&memory, &continued, 7), 5 * 1024);
        assert_eq!(seen(&memory, &continued, 8), 0);
        memory.record(&prefix(&continued), 8);
        assert_eq!(seen(&memory, &continued, 8), 8 * 1024);
        assert_eq!(seen(&memory, &continued, 7), 5 * 1024);
        assert_eq!(seen(&memory, &format!("x{start}"), 7), 0);
        assert_eq!(prefix("short").first(), None);
        let salted = Prefix::of(1, [start.as_str()]);
        assert!(memory.cached_bytes(&salted).is_empty());
    }

    #[test]
    fn evicts_least_recently_used_blocks() {
        let mut memory = PrefixMemory::default();
        let blocks = |round: u64| {
            Prefix(
                (0..MAX_BLOCKS as u64)
                    .map(|block| stable_hash((round, block)))
                    .collect(),
            )
        };
        let (kept, evicted) = (Prefix(vec![1]), Prefix(vec![2]));
        memory.record(&evicted, 1);
        for round in 0..3 * MAX_YOUNG_BLOCKS / MAX_BLOCKS {
            memory.record(&kept, 1);
            memory.record(&blocks(round as u64), 2);
            assert!(memory.young.len() + memory.old.len() <= 2 * MAX_YOUNG_BLOCKS);
        }
        assert_eq!(memory.cached_bytes(&kept)[&1], 1024);
        assert!(memory.cached_bytes(&evicted).is_empty());
    }

    proptest! {
        #[test]
        fn prefix_does_not_depend_on_text_boundaries(
            text in "[a-z]{0,5000}", cuts in proptest::collection::vec(0usize..5000, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            prop_assert_eq!(Prefix::of(3, parts), Prefix::of(3, [text.as_str()]));
        }

        #[test]
        fn removing_a_replica_moves_only_its_keys(keys in proptest::collection::vec(any::<u64>(), 1..50), gone in 0u64..5) {
            let home = |key: u64, without: Option<u64>| {
                (0u64..5).filter(|replica| Some(*replica) != without).max_by_key(|replica| weight(key, *replica))
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
