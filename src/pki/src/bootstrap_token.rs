//! What lets a new node ask for its certificate: Kubernetes' bootstrap tokens, `ID.SECRET`, kept as
//! Secrets.

use std::fmt;
use std::str::FromStr;

use rand::TryRngCore as _;
use rand::rngs::OsRng;

/// Where the Secrets of tokens lie.
pub const TOKEN_NAMESPACE: &str = "kube-system";
/// Their type.
pub const TOKEN_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// What their names begin with; the token's id follows.
pub const TOKEN_SECRET_PREFIX: &str = "bootstrap-token-";

const ID_CHARACTERS: usize = 6;
const SECRET_CHARACTERS: usize = 16;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// The secret part is never shown but by [`Self::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: String,
}

/// What is no token.
#[derive(Debug, thiserror::Error)]
#[error(
    "a token is {ID_CHARACTERS} and {SECRET_CHARACTERS} lower-case letters and digits with a dot between; `rooflet token create` prints one"
)]
pub struct ParseBootstrapTokenError;

impl BootstrapToken {
    /// A new one, by the operating system's random numbers.
    pub fn draw() -> Result<Self, rand::rand_core::OsError> {
        Ok(Self {
            id: draw(ID_CHARACTERS)?,
            secret: draw(SECRET_CHARACTERS)?,
        })
    }

    /// Public: it names the Secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The Secret that makes it good.
    pub fn secret_name(&self) -> String {
        format!("{TOKEN_SECRET_PREFIX}{}", self.id)
    }

    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// As it is sent.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// Characters that are all as likely.
fn draw(count: usize) -> Result<String, rand::rand_core::OsError> {
    let fair = (u8::MAX as usize + 1) / ALPHABET.len() * ALPHABET.len();
    let mut text = String::with_capacity(count);
    while text.len() < count {
        let mut bytes = [0; SECRET_CHARACTERS];
        OsRng.try_fill_bytes(&mut bytes)?;
        let drawn = bytes.into_iter().map(usize::from).filter(|byte| *byte < fair);
        let letters = drawn.map(|byte| char::from(ALPHABET[byte % ALPHABET.len()]));
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
    fn tokens_are_kubernetes_and_never_shown() {
        let drawn = BootstrapToken::draw().expect("random numbers");
        let read: BootstrapToken = drawn.reveal().parse().expect("a token");
        assert_eq!(read, drawn);
        assert!(!format!("{drawn:?}").contains(drawn.secret()));
        assert_ne!(drawn, BootstrapToken::draw().expect("random numbers"));
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
