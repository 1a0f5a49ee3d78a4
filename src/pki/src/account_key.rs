//! Key that signs the tokens of service accounts: JSON Web Tokens with ES256.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::private_file::{self, WriteFileError};

const FILE: &str = "service-account-key.pem";
const ALGORITHM: &str = "ES256";
/// DER of a P-256 public key before its point.
const PUBLIC_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(Debug, thiserror::Error)]
pub enum OpenAccountKeyError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` is not a P-256 key in PKCS #8 ({detail}); restore it from a backup, or remove it to create a new \
         one, after which all tokens of service accounts are invalid",
        path.display()
    )]
    Invalid { path: PathBuf, detail: String },
    #[error("generating the key of service accounts: the random number generator failed")]
    Generate,
    #[error("saving the key of service accounts")]
    Write(#[source] WriteFileError),
}

/// Failure of the random number generator while signing.
#[derive(Debug, thiserror::Error)]
#[error("signing a token: the random number generator failed")]
pub struct SignTokenError;

/// Key pair. Its debug output hides the key.
pub struct AccountKey {
    key: EcdsaKeyPair,
    /// Hash of the public key, in the header of each token.
    id: String,
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccountKey")
    }
}

impl AccountKey {
    /// Reads the key in `directory`, or generates it.
    pub fn open(directory: &Path) -> Result<Self, OpenAccountKeyError> {
        let path = directory.join(FILE);
        let stored = private_file::read(&path).map_err(|source| OpenAccountKeyError::Read {
            path: path.clone(),
            source,
        })?;
        if let Some(pem) = stored {
            let parsed = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|err| err.to_string());
            let parsed = parsed.and_then(|der| Self::parse(der.secret_pkcs8_der()));
            return parsed.map_err(|detail| OpenAccountKeyError::Invalid { path, detail });
        }
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| OpenAccountKeyError::Generate)?;
        let own = Self::parse(der.as_ref()).map_err(|detail| OpenAccountKeyError::Invalid {
            path: path.clone(),
            detail,
        })?;
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            STANDARD.encode(der.as_ref())
        );
        private_file::write(&path, &pem).map_err(OpenAccountKeyError::Write)?;
        Ok(own)
    }

    fn parse(der: &[u8]) -> Result<Self, String> {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &SystemRandom::new())
            .map_err(|err| err.to_string())?;
        let mut digest = Sha256::new();
        digest.update(PUBLIC_KEY_PREFIX);
        digest.update(key.public_key());
        let id = URL_SAFE_NO_PAD.encode(digest.finalize());
        Ok(Self { key, id })
    }

    /// Returns a token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, SignTokenError> {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!(
            "{}.{}",
            encode(&json!({"alg": ALGORITHM, "kid": self.id})),
            encode(claims)
        );
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .map_err(|_| SignTokenError)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns the claims of a token that this key signed, or `None` for other tokens. Does not
    /// check the claims.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        if header["alg"] != ALGORITHM {
            return None;
        }
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key());
        public.verify(signed.as_bytes(), &decode(signature)?).ok()?;
        serde_json::from_slice(&decode(claims)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn key_is_stored_and_verifies_only_its_own_tokens() {
        let directory = tempfile::tempdir().expect("a directory");
        let key = AccountKey::open(directory.path()).expect("a new key");
        let claims = json!({"sub": "system:serviceaccount:n:robot", "exp": 1});
        let token = key.sign(&claims).expect("signed");
        let again = AccountKey::open(directory.path()).expect("the same key");
        assert_eq!(again.verify(&token), Some(claims));
        let other = tempfile::tempdir().expect("a directory");
        let other = AccountKey::open(other.path()).expect("a new key");
        assert_eq!(other.verify(&token), None);
    }

    #[test]
    fn rejects_changed_tokens_and_other_algorithms() {
        let directory = tempfile::tempdir().expect("a directory");
        let key = AccountKey::open(directory.path()).expect("a new key");
        let token = key.sign(&json!({"sub": "a"})).expect("signed");
        let parts: Vec<&str> = token.split('.').collect();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        for changed in [
            format!("{}.{}.{}", parts[0], encode(json!({"sub": "b"})), parts[2]),
            format!("{}.{}.{}", encode(json!({"alg": "none"})), parts[1], parts[2]),
            format!("{}.{}.", encode(json!({"alg": "none"})), parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            format!("{token}A"),
            String::new(),
            "a.b.c".to_owned(),
        ] {
            assert_eq!(key.verify(&changed), None, "{changed}");
        }
    }

    #[test]
    fn invalid_key_file_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(FILE), "not a key").expect("written");
        let rejected = AccountKey::open(directory.path())
            .expect_err("not a key")
            .to_string();
        assert!(
            rejected.contains(FILE) && rejected.contains("remove it"),
            "{rejected}"
        );
    }
}
