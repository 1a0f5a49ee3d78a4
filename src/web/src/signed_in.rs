//! A signed-in user.

use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;
use jiff::Timestamp;
use kube::Client;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::error::WebError;

const CSRF_TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");

/// Signed-in user.
pub(crate) struct SignedIn {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
    pub(crate) csrf_token: String,
    pub(crate) expires_at: Timestamp,
    /// Client of the API server with the user's credential.
    pub(crate) client: Client,
    /// Cancelled when the session ends.
    pub(crate) ended: CancellationToken,
    /// Permit of the preview that the server computes for the session.
    pub(crate) preview: Arc<Semaphore>,
}

impl SignedIn {
    /// Checks the CSRF token of a request.
    pub(crate) fn check_csrf_token(&self, headers: &HeaderMap) -> Result<(), WebError> {
        let sent = headers.get(CSRF_TOKEN).ok_or(WebError::CsrfTokenMissing)?;
        // Hashes are compared, so that the time is independent of the token.
        let matches = Sha256::digest(sent.as_bytes()) == Sha256::digest(self.csrf_token.as_bytes());
        matches.then_some(()).ok_or(WebError::CsrfTokenMissing)
    }
}
