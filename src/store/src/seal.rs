//! Encryption of values in the file. In memory, values are plain.

use std::fmt;

/// Encryption of the values of some keys.
pub trait Seal: fmt::Debug + Send + Sync {
    /// Returns whether values of this key are encrypted.
    fn covers(&self, key: &str) -> bool;

    /// Encrypts a value. Called on the writer thread.
    fn seal(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, SealValueError>;

    /// Decrypts a value.
    fn open(&self, key: &str, sealed: &[u8]) -> Result<OpenedValue, SealValueError>;
}

/// Decrypted value.
#[derive(Debug)]
pub struct OpenedValue {
    pub value: Vec<u8>,
    /// False if the value should be encrypted again, with the current key.
    pub is_current: bool,
}

/// Failure to encrypt or decrypt a value.
#[derive(Debug, thiserror::Error)]
#[error("value of `{key}`: {reason}")]
pub struct SealValueError {
    pub key: String,
    pub reason: String,
}
