//! Secrets of API keys, with which clients authenticate to gateways. Only the hash of a secret is
//! stored.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};

/// Prefix of every secret, for secret scanners. Some clients accept only keys that start with `sk-`.
pub const API_KEY_PREFIX: &str = "sk-rf-";

const RANDOM_BYTES: usize = 32;
/// Last characters that [`ApiKeySecret::hint`] shows.
const HINT_CHARACTERS: usize = 4;

/// Secret of an API key. Only [`Self::reveal`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeySecret(String);

impl ApiKeySecret {
    /// Generates a secret of 256 bits with the operating system's random numbers.
    pub fn generate() -> Result<Self, rand::rand_core::OsError> {
        let mut bytes = [0; RANDOM_BYTES];
        OsRng.try_fill_bytes(&mut bytes)?;
        Ok(Self(format!("{API_KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// Returns the secret that a client sent, or `None` if the text is not a secret of this form.
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(API_KEY_PREFIX)?;
        let is_random = URL_SAFE_NO_PAD.decode(random).ok()?.len() == RANDOM_BYTES;
        is_random.then(|| Self(text.to_owned()))
    }

    /// Returns the secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the form in which the secret is stored: `sha256:` and 64 hexadecimal digits. The
    /// secret is random and long, so the hash needs no salt.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        digest
            .iter()
            .fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// Returns the last characters, by which a user recognizes the key.
    pub fn hint(&self) -> &str {
        &self.0[self.0.len() - HINT_CHARACTERS..]
    }
}

impl fmt::Debug for ApiKeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeySecret(…{})", self.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_stored_as_its_hash() {
        // `printf sk-rf-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8 | sha256sum`
        let secret =
            ApiKeySecret::parse("sk-rf-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8").expect("a secret");
        assert_eq!(
            secret.hash(),
            "sha256:243b7e234b06ebc0cbb17c6164f6bf87d704e91b9b22657751619ae9ecfcfe3d"
        );
        assert_eq!(secret.hint(), "dHh8");
        assert!(!format!("{secret:?}").contains("AAECAw"));
    }

    #[test]
    fn accepts_only_its_own_form() {
        let secret = ApiKeySecret::generate().expect("random numbers");
        assert_eq!(ApiKeySecret::parse(secret.reveal()), Some(secret.clone()));
        assert_ne!(ApiKeySecret::generate().expect("random numbers"), secret);
        let long = format!("{}A", secret.reveal());
        let other = secret.reveal().replace(API_KEY_PREFIX, "sk-");
        for wrong in ["", "sk-rf-", "sk-rf-short", &long, &other, "sk-rf-é"] {
            assert_eq!(ApiKeySecret::parse(wrong), None, "{wrong}");
        }
    }
}
