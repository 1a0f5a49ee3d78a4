//! Text with which a machine joins: `rf1.HASH.ID.SECRET`, a bootstrap token and the hash of the
//! authority that identifies the server.

use std::str::FromStr;

use super::authority_hash::{AuthorityHash, ParseAuthorityHashError};
use super::bootstrap_token::{BootstrapToken, ParseBootstrapTokenError};

/// First part of the text; the format's version.
const VERSION: &str = "rf1";

/// Bootstrap token with the authority of its server. Only [`Self::reveal`] shows the secret part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub authority: AuthorityHash,
    pub token: BootstrapToken,
}

/// Error: the text is not a join token.
#[derive(Debug, thiserror::Error)]
pub enum ParseJoinTokenError {
    #[error("a join token has the form {VERSION}.HASH.ID.SECRET; `rooflet token create` prints one")]
    Form,
    #[error("in a join token, HASH consists of 64 hexadecimal digits")]
    Hash(#[source] ParseAuthorityHashError),
    #[error(transparent)]
    Token(#[from] ParseBootstrapTokenError),
}

impl JoinToken {
    /// Returns true if a text begins like a join token.
    pub fn is_likely(text: &str) -> bool {
        text.split('.').next() == Some(VERSION)
    }

    /// Returns the complete text, to be shown once.
    pub fn reveal(&self) -> String {
        format!("{VERSION}.{}.{}", self.authority.hex(), self.token.reveal())
    }
}

impl FromStr for JoinToken {
    type Err = ParseJoinTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [VERSION, hash, token] = parts.as_slice() else {
            return Err(ParseJoinTokenError::Form);
        };
        Ok(Self {
            authority: AuthorityHash::from_hex(hash).map_err(ParseJoinTokenError::Hash)?,
            token: token.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_text_and_hides_the_secret() {
        let hash = "fedcba9876543210".repeat(4);
        let text = format!("rf1.{hash}.abcdef.0123456789abcdef");
        let token: JoinToken = text.parse().expect("a join token");
        assert_eq!(token.reveal(), text);
        assert_eq!(token.authority.to_string(), format!("sha256:{hash}"));
        assert_eq!(token.token.id(), "abcdef");
        assert!(!format!("{token:?}").contains(token.token.secret()));
        assert!(JoinToken::is_likely(&text) && !JoinToken::is_likely("abcdef.0123456789abcdef"));
        for (wrong, why) in [
            ("", "has the form"),
            ("rf2.a.b.c", "has the form"),
            ("rf1.abcdef.0123456789abcdef", "64 hexadecimal"),
            (&text.replace("rf1.f", "rf1.x"), "64 hexadecimal"),
            (&text[..text.len() - 1], "a bootstrap token consists"),
            (&format!("{text}.x"), "a bootstrap token consists"),
        ] {
            let err = wrong.parse::<JoinToken>().expect_err(wrong).to_string();
            assert!(err.contains(why), "{wrong}: {err}");
        }
    }
}
