//! Key of a block: a hash chain over the tokens up to its end. Equal keys mean equal prefixes.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// SHA-256 of the parent's key and the block's tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// Returns the root key of a model and a cache salt. Prefixes with different salts share
    /// nothing.
    pub(crate) fn root(model: &str, salt: &str) -> Self {
        let model = Sha256::digest(model);
        Self(
            Sha256::new_with_prefix(model)
                .chain_update(salt)
                .finalize()
                .into(),
        )
    }

    /// Returns the key of the block with these tokens after `self`.
    pub(crate) fn child(self, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}

/// Error for a text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidBlockKey;

impl FromStr for BlockKey {
    type Err = InvalidBlockKey;

    fn from_str(text: &str) -> Result<Self, InvalidBlockKey> {
        let mut key = [0; 32];
        hex::decode_to_slice(text, &mut key).map_err(|_| InvalidBlockKey)?;
        Ok(Self(key))
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
