//! Address and credentials of the model hub.

use std::fmt;

use reqwest::{Client, RequestBuilder, Url};

use rooflet_base::environment::variable;

/// Default of `HF_ENDPOINT`.
pub(super) const HUB: &str = "https://huggingface.co";

/// Address and credentials of a hub.
#[derive(Clone)]
pub struct HubAccess {
    /// URL without credentials, because it appears in conditions and logs.
    pub endpoint: Url,
    /// Sent only to the endpoint.
    pub credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Token(String),
    /// Endpoint with user and password.
    Login(Url),
}

/// Error in the environment variables of the hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHub {
    /// Invalid endpoint, without credentials.
    #[error("HF_ENDPOINT is `{0}` but must be a URL such as {HUB}")]
    Endpoint(String),
    #[error(
        "HF_ENDPOINT contains a user and HF_TOKEN is set, but a request has only one of them: remove one"
    )]
    TwoCredentials,
}

impl HubAccess {
    /// Returns an endpoint that refuses connections.
    pub fn unreachable() -> Self {
        Self {
            endpoint: "http://127.0.0.1:9".parse().expect("a URL"),
            credentials: None,
        }
    }
}

/// Removes credentials from an invalid URL.
fn without_user(endpoint: &str) -> String {
    match endpoint.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => endpoint.to_owned(),
    }
}

impl HubAccess {
    /// Reads `HF_ENDPOINT` and `HF_TOKEN`. Empty variables count as unset.
    pub fn from_environment() -> Result<Self, InvalidHub> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned());
        Self::new(&endpoint, variable("HF_TOKEN"))
    }

    pub(super) fn new(endpoint: &str, token: Option<String>) -> Result<Self, InvalidHub> {
        let url = Url::parse(endpoint).ok();
        let url = url.filter(|url| matches!(url.scheme(), "https" | "http"));
        let url = url.ok_or_else(|| InvalidHub::Endpoint(without_user(endpoint)))?;
        let has_user = !url.username().is_empty() || url.password().is_some();
        let credentials = match (has_user, token) {
            (true, Some(_)) => return Err(InvalidHub::TwoCredentials),
            (true, None) => Some(Credentials::Login(url.clone())),
            (false, token) => token.map(Credentials::Token),
        };
        let mut endpoint = url;
        if has_user && (endpoint.set_username("").is_err() || endpoint.set_password(None).is_err()) {
            return Err(InvalidHub::Endpoint(HUB.to_owned()));
        }
        Ok(Self {
            endpoint,
            credentials,
        })
    }

    /// Builds a request for a URL below the endpoint, with credentials.
    pub(crate) fn get(&self, client: &Client, url: &Url) -> RequestBuilder {
        match &self.credentials {
            None => client.get(url.clone()),
            Some(Credentials::Token(token)) => client.get(url.clone()).bearer_auth(token),
            Some(Credentials::Login(endpoint)) => {
                // The client converts the user of the URL to a header.
                let mut login = endpoint.clone();
                login.set_path(url.path());
                login.set_query(url.query());
                client.get(login)
            }
        }
    }
}

impl fmt::Debug for HubAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubAccess")
            .field("endpoint", &self.endpoint.as_str())
            .field("credentials", &self.credentials.as_ref().map(|_| "hidden"))
            .finish()
    }
}
