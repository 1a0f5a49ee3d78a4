//! Where models are looked for, and in whose name.

use std::fmt;

use reqwest::{Client, RequestBuilder, Url};

use rooflet_base::environment::variable;

/// Where models are looked for unless `HF_ENDPOINT` says otherwise.
pub(super) const HUB: &str = "https://huggingface.co";

/// The hub, and who asks.
#[derive(Clone)]
pub struct HubAccess {
    /// Without a user: it is in conditions and logs.
    pub endpoint: Url,
    /// Sent to the endpoint and nowhere else.
    pub credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Token(String),
    /// The endpoint with user and password.
    Login(Url),
}

/// The environment does not say where a hub is, or who asks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHub {
    /// Without user and password.
    #[error("HF_ENDPOINT is `{0}`, and must be a URL such as {HUB}")]
    Endpoint(String),
    #[error(
        "HF_ENDPOINT has a user and HF_TOKEN a token, and a request carries one of the two: set only one of them"
    )]
    TwoCredentials,
}

impl HubAccess {
    /// A hub that nobody reaches.
    pub fn nowhere() -> Self {
        Self {
            endpoint: "http://127.0.0.1:9".parse().expect("a URL"),
            credentials: None,
        }
    }
}

/// What is no URL may hold a password all the same.
fn without_user(endpoint: &str) -> String {
    match endpoint.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => endpoint.to_owned(),
    }
}

impl HubAccess {
    /// As `HF_ENDPOINT` and `HF_TOKEN` say; empty ones say nothing.
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

    /// A request for a URL below the endpoint, in the name of who asks.
    pub(crate) fn get(&self, client: &Client, url: &Url) -> RequestBuilder {
        match &self.credentials {
            None => client.get(url.clone()),
            Some(Credentials::Token(token)) => client.get(url.clone()).bearer_auth(token),
            Some(Credentials::Login(endpoint)) => {
                // The client makes a header of the user.
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
