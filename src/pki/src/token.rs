//! Bearer token of the administrator.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;

use super::private_file::{self, WriteFileError};

const FILE: &str = "token";
/// Prefix for secret scanners, which also makes every YAML parser treat the token as a string.
const PREFIX: &str = "rooflet_";
const RANDOM_BYTES: usize = 32;
/// Minimum length of a token that an administrator wrote to the file.
const LENGTH_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum OpenTokenError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` is not a token of at least {LENGTH_MIN} visible ASCII characters without spaces; \
         correct it, or remove it to create a new one",
        path.display()
    )]
    Invalid { path: PathBuf },
    #[error("generating a random token")]
    Random(#[source] rand::rand_core::OsError),
    #[error("saving the token")]
    Write(#[source] WriteFileError),
}

/// Token. Its debug output hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Reads the token in `directory`, or generates it.
    pub fn open(directory: &Path) -> Result<Self, OpenTokenError> {
        let path = directory.join(FILE);
        let stored = private_file::read(&path).map_err(|source| OpenTokenError::Read {
            path: path.clone(),
            source,
        })?;
        if let Some(text) = stored {
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

    /// Returns the secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}
