//! Key that encrypts values at rest: AES-256-GCM with a data key per value (envelope encryption).
//!
//! A sealed value consists of the id of the key (4 bytes), a nonce (12), the encrypted data key (48)
//! and the encrypted value. The name of the value is authenticated, so that sealed values cannot be
//! exchanged.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::{Digest as _, Sha256};

use super::private_file::{self, WriteFileError};

const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = ID_BYTES + NONCE_LEN + KEY_BYTES + TAG_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum OpenSecretsKeyError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` must have one key per line, 32 bytes in base64 (line {line} has not); restore it from a backup: without \
         it, stored Secrets cannot be read",
        path.display()
    )]
    Invalid { path: PathBuf, line: usize },
    #[error("generating the encryption key: the random number generator failed")]
    Generate,
    #[error("saving the encryption key")]
    Write(#[source] WriteFileError),
}

/// Failure to encrypt or decrypt a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the random number generator failed")]
    Random,
    #[error("it is encrypted with key {0}, which is not in the key file; restore the key file from a backup")]
    UnknownKey(String),
    #[error("it is damaged, or was encrypted under another name")]
    Damaged,
}

struct Key {
    id: [u8; ID_BYTES],
    key: LessSafeKey,
}

/// Keys of one file, the current one first. Its debug output hides them.
pub struct SecretsKey {
    keys: Vec<Key>,
}

impl fmt::Debug for SecretsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|key| id_text(&key.id)))
            .finish()
    }
}

fn id_text(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn aead(key: &[u8]) -> Option<LessSafeKey> {
    Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?))
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

impl SecretsKey {
    /// Reads the keys of a file, or creates the file with a new key.
    pub fn open(path: &Path) -> Result<Self, OpenSecretsKeyError> {
        let stored = private_file::read(path).map_err(|source| OpenSecretsKeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        match stored {
            Some(text) => Self::parse(&text).map_err(|line| OpenSecretsKeyError::Invalid {
                path: path.to_owned(),
                line,
            }),
            None => Self::create(path, ""),
        }
    }

    /// Adds a new key to a file, with which following values are encrypted.
    pub fn add(path: &Path) -> Result<Self, OpenSecretsKeyError> {
        Self::open(path)?;
        let known = private_file::read(path).map_err(|source| OpenSecretsKeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::create(path, &known.unwrap_or_default())
    }

    /// Removes all keys except the current one from a file.
    pub fn remove_old(path: &Path) -> Result<(), OpenSecretsKeyError> {
        let known = private_file::read(path).map_err(|source| OpenSecretsKeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        let known = known.unwrap_or_default();
        let current = known.lines().next().unwrap_or_default();
        private_file::write(path, &format!("{current}\n")).map_err(OpenSecretsKeyError::Write)
    }

    fn create(path: &Path, known: &str) -> Result<Self, OpenSecretsKeyError> {
        let new: [u8; KEY_BYTES] = random().ok_or(OpenSecretsKeyError::Generate)?;
        let text = format!("{}\n{known}", STANDARD.encode(new));
        private_file::write(path, &text).map_err(OpenSecretsKeyError::Write)?;
        Self::parse(&text).map_err(|line| OpenSecretsKeyError::Invalid {
            path: path.to_owned(),
            line,
        })
    }

    /// Parses the lines of a file. Returns the number of the first invalid line.
    fn parse(text: &str) -> Result<Self, usize> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let bytes = STANDARD.decode(line.trim()).map_err(|_| at + 1)?;
            let key = aead(&bytes).ok_or(at + 1)?;
            let mut id = [0; ID_BYTES];
            id.copy_from_slice(&Sha256::digest(&bytes)[..ID_BYTES]);
            keys.push(Key { id, key });
        }
        match keys.is_empty() {
            true => Err(1),
            false => Ok(Self { keys }),
        }
    }

    /// Encrypts a value with this name.
    pub fn seal(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, SealError> {
        let current = &self.keys[0];
        let data_key: [u8; KEY_BYTES] = random().ok_or(SealError::Random)?;
        let nonce: [u8; NONCE_LEN] = random().ok_or(SealError::Random)?;
        let mut sealed = Vec::with_capacity(HEADER_BYTES + value.len() + TAG_BYTES);
        sealed.extend_from_slice(&current.id);
        sealed.extend_from_slice(&nonce);
        let mut wrapped = data_key.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let done = current
            .key
            .seal_in_place_append_tag(nonce, Aad::from(name), &mut wrapped);
        done.map_err(|_| SealError::Random)?;
        sealed.extend_from_slice(&wrapped);
        let mut text = value.to_vec();
        let data_key = aead(&data_key).ok_or(SealError::Random)?;
        // A data key encrypts one value, so its nonce may be constant.
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let done = data_key.seal_in_place_append_tag(nonce, Aad::from(name), &mut text);
        done.map_err(|_| SealError::Random)?;
        sealed.extend_from_slice(&text);
        Ok(sealed)
    }

    /// Decrypts a value with this name. Returns the value, and whether it was encrypted with the
    /// current key.
    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Result<(Vec<u8>, bool), SealError> {
        if sealed.len() < HEADER_BYTES + TAG_BYTES {
            return Err(SealError::Damaged);
        }
        let (header, text) = sealed.split_at(HEADER_BYTES);
        let (id, header) = header.split_at(ID_BYTES);
        let (nonce, wrapped) = header.split_at(NONCE_LEN);
        let at = self.keys.iter().position(|key| key.id == *id);
        let at = at.ok_or_else(|| SealError::UnknownKey(id_text(id)))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Damaged)?;
        let mut wrapped = wrapped.to_vec();
        let data_key = self.keys[at]
            .key
            .open_in_place(nonce, Aad::from(name), &mut wrapped)
            .map_err(|_| SealError::Damaged)?;
        let data_key = aead(data_key).ok_or(SealError::Damaged)?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let length = data_key
            .open_in_place(nonce, Aad::from(name), &mut text)
            .map_err(|_| SealError::Damaged)?
            .len();
        text.truncate(length);
        Ok((text, at == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_value_opens_under_its_name_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secrets-key");
        let key = SecretsKey::open(&path).expect("a key");
        let sealed = key.seal("/core/secrets/default/a", b"swordfish").expect("sealed");
        assert!(!sealed.windows(9).any(|part| part == b"swordfish"));
        assert_ne!(
            sealed,
            key.seal("/core/secrets/default/a", b"swordfish").expect("sealed")
        );
        let again = SecretsKey::open(&path).expect("the stored key");
        let opened = again.open_sealed("/core/secrets/default/a", &sealed);
        assert_eq!(opened, Ok((b"swordfish".to_vec(), true)));
        let renamed = again.open_sealed("/core/secrets/default/b", &sealed);
        assert_eq!(renamed, Err(SealError::Damaged));
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(
                again.open_sealed("/core/secrets/default/a", &damaged).is_err(),
                "{at}"
            );
        }
        assert_eq!(again.open_sealed("a", b"short"), Err(SealError::Damaged));
    }

    #[test]
    fn rotated_key_opens_old_values_until_it_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secrets-key");
        let sealed = SecretsKey::open(&path)
            .expect("a key")
            .seal("a", b"x")
            .expect("sealed");
        let rotated = SecretsKey::add(&path).expect("a second key");
        assert_eq!(rotated.open_sealed("a", &sealed), Ok((b"x".to_vec(), false)));
        let renewed = rotated.seal("a", b"x").expect("sealed");
        SecretsKey::remove_old(&path).expect("removed");
        let current = SecretsKey::open(&path).expect("a key");
        assert_eq!(current.open_sealed("a", &renewed), Ok((b"x".to_vec(), true)));
        assert!(matches!(
            current.open_sealed("a", &sealed),
            Err(SealError::UnknownKey(_))
        ));
    }

    #[test]
    fn damaged_key_file_is_rejected_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secrets-key");
        for (text, wrong) in [("", 1), ("short\n", 1), ("AAAA\n", 1)] {
            std::fs::write(&path, text).expect("written");
            let err = SecretsKey::open(&path).expect_err("invalid");
            assert!(
                matches!(err, OpenSecretsKeyError::Invalid { line, .. } if line == wrong),
                "{err}"
            );
            assert_eq!(std::fs::read_to_string(&path).expect("kept"), text);
        }
    }
}
