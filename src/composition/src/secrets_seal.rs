//! Encryption of Secrets in the store's file.

use camino::Utf8Path;

use rooflet_apiserver::SECRET_STORAGE;
use rooflet_pki::{OpenSecretsKeyError, SecretsKey};
use rooflet_store::{OpenedValue, Seal, SealValueError};

/// Encrypts Secrets with a [`SecretsKey`].
#[derive(Debug)]
pub(super) struct SecretsSeal(SecretsKey);

impl SecretsSeal {
    /// Opens the key file, or creates it. With `rotates`, adds a new key first, with which the store
    /// then encrypts all Secrets again.
    pub(super) fn open(path: &Utf8Path, rotates: bool) -> Result<Self, OpenSecretsKeyError> {
        let path = path.as_std_path();
        let key = match rotates {
            true => SecretsKey::add(path)?,
            false => SecretsKey::open(path)?,
        };
        Ok(Self(key))
    }
}

impl Seal for SecretsSeal {
    fn covers(&self, key: &str) -> bool {
        key.starts_with(SECRET_STORAGE)
    }

    fn seal(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, SealValueError> {
        self.0.seal(key, value).map_err(|err| error(key, &err))
    }

    fn open(&self, key: &str, sealed: &[u8]) -> Result<OpenedValue, SealValueError> {
        let opened = self.0.open_sealed(key, sealed);
        let (value, is_current) = opened.map_err(|err| error(key, &err))?;
        Ok(OpenedValue { value, is_current })
    }
}

fn error(key: &str, err: &impl ToString) -> SealValueError {
    SealValueError {
        key: key.to_owned(),
        reason: err.to_string(),
    }
}
