//! Decision whether a request has a valid key, from values only.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;

use super::ring::{KeyError, KeyIdentity, KeyRing};
use rooflet_pki::{API_KEY_PREFIX, ApiKeySecret};

/// Anthropic's header of the key.
pub(super) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Key that a client presents.
pub(super) enum PresentedKey {
    OfFleet {
        hash: String,
        hint: String,
    },
    /// With the prefix of a fleet's key, but of another form, for example truncated.
    Malformed,
    /// Not a key of a fleet.
    Foreign,
}

impl PresentedKey {
    /// Returns the key in the headers of a request; `None` if there is none.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let header = || headers.get(X_API_KEY).and_then(|value| value.to_str().ok());
        let text = bearer.filter(|key| !key.is_empty()).or_else(header)?;
        Some(Self::parse(text))
    }

    pub(super) fn parse(text: &str) -> Self {
        if !text.starts_with(API_KEY_PREFIX) {
            return Self::Foreign;
        }
        ApiKeySecret::parse(text).map_or(Self::Malformed, |secret| Self::OfFleet {
            hash: secret.hash(),
            hint: secret.hint().to_owned(),
        })
    }
}

/// Reason why a request is not authenticated.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RejectKeyError {
    Missing,
    /// The gateway has not read the keys yet.
    NotRead,
    Key(KeyError),
}

/// Returns the identity of the client, or `None` for an anonymous one. `ring` is `None` until the
/// gateway has read the keys.
pub(super) fn authenticate(
    presented: Option<&PresentedKey>,
    are_required: bool,
    ring: Option<&KeyRing>,
    now: Timestamp,
) -> Result<Option<Arc<KeyIdentity>>, RejectKeyError> {
    let unknown = || RejectKeyError::Key(KeyError::Unknown);
    match presented {
        None if are_required => Err(RejectKeyError::Missing),
        Some(PresentedKey::Foreign) if are_required => Err(unknown()),
        // Many clients always send a key. Without required keys, foreign ones are ignored.
        None | Some(PresentedKey::Foreign) => Ok(None),
        Some(presented) => {
            let ring = ring.ok_or(RejectKeyError::NotRead)?;
            match presented {
                PresentedKey::OfFleet { hash, .. } => ring
                    .authenticate(hash, now)
                    .map(Some)
                    .map_err(RejectKeyError::Key),
                PresentedKey::Malformed | PresentedKey::Foreign => Err(unknown()),
            }
        }
    }
}
