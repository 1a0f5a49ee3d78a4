//! Tree of a model whose layers do not all keep all tokens. A text can be resumed only at a
//! snapshot of those layers, at the end of a block. The blocks before it hold the keys and values
//! of the other layers.

use super::{BLOCK_TOKENS, MemoryBlock, Missing, Node, Stored, Tiers, Tree};
use crate::cache::key::BlockKey;

impl<B> Node<B> {
    fn sizes(&self, tiers: Tiers) -> impl Iterator<Item = Stored> {
        let memory = self.memory.as_ref().map(|entry| entry.size);
        let file = self.file.filter(|_| tiers == Tiers::Both);
        memory.into_iter().chain(file)
    }
}

impl<B: MemoryBlock> Tree<B> {
    /// Returns the number of tokens up to the last snapshot in memory within `tokens`.
    pub(in crate::cache) fn last_snapshot(&self, root: BlockKey, tokens: &[u32]) -> usize {
        let path = self.resumable(root, tokens, Tiers::Memory);
        path.iter().map(|(_, length)| length).sum()
    }

    /// Returns the blocks up to the last snapshot within `tokens`, each with its length.
    pub(super) fn resumable(&self, root: BlockKey, tokens: &[u32], tiers: Tiers) -> Vec<(BlockKey, usize)> {
        let (mut path, mut best) = (Vec::new(), Vec::new());
        let (mut parent, mut rest) = (root, tokens);
        loop {
            let children = self.children.get(&parent).into_iter().flatten();
            let ends = children.filter_map(|key| {
                let node = self.nodes.get(key)?;
                let resumes = node.sizes(tiers).any(|size| size.snapshot);
                (resumes && rest.starts_with(&node.tokens)).then_some((node.tokens.len(), *key))
            });
            if let Some((length, key)) = ends.max() {
                best = [&path[..], &[(key, length)]].concat();
            }
            let Some(block) = rest.get(..BLOCK_TOKENS) else {
                return best;
            };
            let key = parent.child(block);
            let node = self.nodes.get(&key);
            if node.is_none_or(|node| node.sizes(tiers).next().is_none()) {
                return best;
            }
            path.push((key, BLOCK_TOKENS));
            (parent, rest) = (key, &rest[BLOCK_TOKENS..]);
        }
    }

    /// Returns the parts of `tokens` that are not in memory, in order. The last part must have a
    /// snapshot at its end. Marks the other blocks as used.
    pub(super) fn missing_to_snapshot(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<Missing> {
        let mut missing = Vec::new();
        let (mut parent, mut start) = (root, 0);
        for block in tokens.chunks(BLOCK_TOKENS) {
            let end = start + block.len();
            let key = parent.child(block);
            let entry = self.nodes.get(&key).and_then(|node| node.memory.as_ref());
            if entry.is_some_and(|entry| end < tokens.len() || entry.size.snapshot) {
                self.touch(key);
            } else {
                missing.push(Missing {
                    parent,
                    range: start..end,
                });
            }
            parent = key;
            start = end;
        }
        missing
    }

    /// Returns the cached blocks of exactly these tokens, in order.
    pub(super) fn whole_path(&self, root: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        let mut parent = root;
        let keys = tokens.chunks(BLOCK_TOKENS).map(|block| {
            parent = parent.child(block);
            parent
        });
        keys.take_while(|key| self.nodes.contains_key(key)).collect()
    }
}
