//! The administrator's bearer token.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;

use super::private_file::{self, WriteFileError};

const FILE: &str = "token";
/// Marks it for secret scanners, and keeps it text in every YAML reader.
const PREFIX: &str = "rooflet_";
const RANDOM_BYTES: usize = 32;
/// What is put into the file by hand must at least not be guessable in an afternoon.
const LENGTH_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum OpenTokenError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` does not hold a token: it must be one word of at least {LENGTH_MIN} visible ASCII characters; \
         correct it, or remove it to get a new one",
        path.display()
    )]
    Invalid { path: PathBuf },
    #[error("drawing a random token")]
    Random(#[source] rand::rand_core::OsError),
    #[error("saving the token")]
    Write(#[source] WriteFileError),
}

/// Never shown: it prints as nothing but its kind.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token kept in `directory`, drawn on first use.
    pub fn open(directory: &Path) -> Result<Self, OpenTokenError> {
        let path = directory.join(FILE);
        let kept = private_file::read(&path).map_err(|source| OpenTokenError::Read {
            path: path.clone(),
            source,
        })?;
        if let Some(text) = kept {
            let text = text.trim_end();
            return match text.len() >= LENGTH_MIN && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                true => Ok(Self(text.to_owned())),
                false => Err(OpenTokenError::Invalid { path }),
            };
        }
        let mut bytes = [0; RANDOM_BYTES];
        OsRng.try_fill_bytes(&mut bytes).map_err(OpenTokenError::Random)?;
        let token = Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)));
        private_file::write(&path, &format!("{}\n", token.0)).map_err(OpenTokenError::Write)?;
        Ok(token)
    }

    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}
