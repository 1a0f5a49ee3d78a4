//! Kubernetes bootstrap tokens, `ID.SECRET`, with which a new node requests its certificate. They
//! are stored as Secrets.

use std::fmt;
use std::str::FromStr;

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::{Digest as _, Sha256};

/// Namespace of the token Secrets.
pub const TOKEN_NAMESPACE: &str = "kube-system";
/// Type of the token Secrets.
pub const TOKEN_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Name prefix of the token Secrets. The token's id follows.
pub const TOKEN_SECRET_PREFIX: &str = "bootstrap-token-";

// Keys of a token's Secret that only rooflet's API server knows.

/// Hash of the secret part, instead of Kubernetes' `token-secret`; see [`BootstrapToken::secret_hash`].
pub const TOKEN_HASH_KEY: &str = "token-secret-hash";
/// Name of the only node that may join with the token. Such a token also permits the name of an
/// existing node.
pub const TOKEN_NODE_KEY: &str = "node-name";
/// Number of machines that may still join.
pub const TOKEN_USES_KEY: &str = "uses-left";

const ID_CHARACTERS: usize = 6;
const SECRET_CHARACTERS: usize = 16;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Bootstrap token. Only [`Self::reveal`] and [`Self::secret`] show the secret part.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: String,
}

/// Error: the text is not a bootstrap token.
#[derive(Debug, thiserror::Error)]
#[error(
    "a bootstrap token consists of {ID_CHARACTERS} and {SECRET_CHARACTERS} lower-case letters and digits, separated by a dot; `rooflet token create` prints one"
)]
pub struct ParseBootstrapTokenError;

impl BootstrapToken {
    /// Generates a token with the operating system's random numbers.
    pub fn generate() -> Result<Self, rand::rand_core::OsError> {
        Ok(Self {
            id: random_text(ID_CHARACTERS)?,
            secret: random_text(SECRET_CHARACTERS)?,
        })
    }

    /// Returns the public part of the token, which is also part of the Secret's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the name of the token's Secret.
    pub fn secret_name(&self) -> String {
        format!("{TOKEN_SECRET_PREFIX}{}", self.id)
    }

    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns `sha256:` and the hash of the secret part. The secret has 82 random bits, so that the
    /// hash needs no salt.
    pub fn secret_hash(&self) -> String {
        let digest = Sha256::digest(self.secret.as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{digits}")
    }

    /// Returns the complete token, to be sent.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// Generates characters with equal probability.
fn random_text(count: usize) -> Result<String, rand::rand_core::OsError> {
    let limit = (u8::MAX as usize + 1) / ALPHABET.len() * ALPHABET.len();
    let mut text = String::with_capacity(count);
    while text.len() < count {
        let mut bytes = [0; SECRET_CHARACTERS];
        OsRng.try_fill_bytes(&mut bytes)?;
        let random = bytes.into_iter().map(usize::from).filter(|byte| *byte < limit);
        let letters = random.map(|byte| char::from(ALPHABET[byte % ALPHABET.len()]));
        text.extend(letters.take(count - text.len()));
    }
    Ok(text)
}

impl FromStr for BootstrapToken {
    type Err = ParseBootstrapTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, secret) = text.split_once('.').ok_or(ParseBootstrapTokenError)?;
        let is_word =
            |word: &str, length| word.len() == length && word.bytes().all(|byte| ALPHABET.contains(&byte));
        if !is_word(id, ID_CHARACTERS) || !is_word(secret, SECRET_CHARACTERS) {
            return Err(ParseBootstrapTokenError);
        }
        Ok(Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kubernetes_format_and_hides_secret() {
        let token = BootstrapToken::generate().expect("random numbers");
        let read: BootstrapToken = token.reveal().parse().expect("a token");
        assert_eq!(read, token);
        assert!(!format!("{token:?}").contains(token.secret()));
        assert_ne!(token, BootstrapToken::generate().expect("random numbers"));
        for wrong in [
            "",
            "abcdef",
            "abcdef.0123456789abcde",
            "abcdeF.0123456789abcdef",
            "abcdef.0123456789abcdef.",
            "abcdé.0123456789abcdef",
        ] {
            wrong.parse::<BootstrapToken>().expect_err(wrong);
        }
    }
}
