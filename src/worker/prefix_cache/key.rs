//! The name of a block: a hash chain over the tokens that lead to it, so that equal names mean equal prefixes.

use std::fmt;

use sha2::{Digest, Sha256};

/// SHA-256 over what stands before the block and the block's own tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// Before the first block. Prefixes of different salts have nothing in common.
    pub(crate) fn root(salt: &str) -> Self {
        Self(Sha256::digest(salt).into())
    }

    /// Of the block with these tokens after `self`.
    pub(crate) fn child(self, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
