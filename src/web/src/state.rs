//! State that the handlers share.

use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::COOKIE;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::connections::Upstreams;
use super::error::WebError;
use super::failures::Failures;
use super::history_source::HistorySource;
use super::preview::Planner;
use super::prometheus::Prometheus;
use super::sessions::Sessions;
use super::sign_in_code::SignInCodes;
use super::signed_in::SignedIn;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_client::KubeconfigSource;

/// State of the server.
pub(crate) struct Web {
    pub(crate) api_server: KubeconfigSource,
    pub(crate) upstreams: Upstreams,
    pub(crate) clock: Clock,
    pub(crate) cookie: String,
    pub(crate) has_tls: bool,
    pub(crate) sessions: Mutex<Sessions<Arc<SignedIn>>>,
    /// Users of `/monitoring`, by their token.
    pub(crate) scrapers: Mutex<Sessions<Arc<SignedIn>>>,
    /// True if the process of this server has an API server.
    pub(crate) has_api_server: bool,
    /// Macs that are sold.
    pub(crate) catalogue: Value,
    /// History of the deployments. `None` without a controller in this process.
    pub(crate) history: Option<HistorySource>,
    pub(crate) planner: Planner,
    /// Permits of the previews that the server computes at the same time.
    pub(crate) previews: Arc<Semaphore>,
    /// Prometheus for longer histories.
    pub(crate) prometheus: Option<Prometheus>,
    /// Failed sign-ins.
    pub(crate) failures: Mutex<Failures>,
    /// Requests to `/monitoring` with a wrong token. A scraper repeats them, and must not prevent sign-ins
    /// from the same address.
    pub(crate) scrape_failures: Mutex<Failures>,
    pub(crate) codes: Mutex<SignInCodes>,
    /// Cancelled when the server stops.
    pub(crate) stop: CancellationToken,
}

impl Web {
    /// Returns the secret of the browser's session.
    pub(crate) fn secret<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(COOKIE).iter();
        cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find_map(|(name, value)| (name == self.cookie).then_some(value))
    }

    /// Returns the signed-in user.
    pub(crate) fn signed_in(&self, headers: &HeaderMap) -> Result<Arc<SignedIn>, WebError> {
        let secret = self.secret(headers).ok_or(WebError::NotSignedIn)?;
        let found = lock(&self.sessions).use_session(secret, &self.clock);
        found
            .filter(|signed_in| !signed_in.ended.is_cancelled())
            .ok_or(WebError::NotSignedIn)
    }

    /// Returns the signed-in user if the request may change something.
    pub(crate) fn signed_in_to_write(&self, headers: &HeaderMap) -> Result<Arc<SignedIn>, WebError> {
        let signed_in = self.signed_in(headers)?;
        signed_in.check_csrf_token(headers)?;
        Ok(signed_in)
    }

    /// Ends sessions whose time is over.
    pub(crate) fn end_sessions(&self) {
        let scrapers = lock(&self.scrapers).remove_ended(&self.clock);
        for user in lock(&self.sessions)
            .remove_ended(&self.clock)
            .into_iter()
            .chain(scrapers)
        {
            user.ended.cancel();
        }
    }
}

/// Admits requests of signed-in users. Adds the user to the request.
pub(crate) async fn require_session(
    State(web): State<Arc<Web>>,
    mut request: Request,
    next: Next,
) -> Result<Response, WebError> {
    let signed_in = match request.method().is_safe() {
        true => web.signed_in(request.headers())?,
        false => web.signed_in_to_write(request.headers())?,
    };
    request.extensions_mut().insert(signed_in);
    Ok(next.run(request).await)
}
