//! Link that opens the page and signs in.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::listen::url;
use super::sign_in_code;
use rooflet_base::clock::Clock;
use rooflet_client::{ConnectError, KubeconfigSource, bearer_token, cluster_extension};

/// Name of the kubeconfig extension that contains the URL of the page.
const EXTENSION: &str = "rooflet.dev/web";

/// Reason why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum SignInLinkError {
    #[error(transparent)]
    Kubeconfig(#[from] ConnectError),
    #[error(
        "the kubeconfig names no web page: use the kubeconfig that `rooflet server` or `rooflet up` wrote on its \
         own machine, and start the server without `--web-listen off`"
    )]
    NoPage,
    #[error("the kubeconfig contains no bearer token: open {0} and sign in with a token")]
    NoToken(String),
    #[error("generating a code")]
    Random(#[source] rand::rand_core::OsError),
}

/// Returns the extension of the server's kubeconfig for [`sign_in_link`]: name and value. `listen` is
/// the address of the page.
pub fn kubeconfig_extension(listen: SocketAddr) -> (&'static str, Value) {
    (EXTENSION, json!({ "url": url(listen) }))
}

/// Returns a link that opens the page of the kubeconfig's server, and signs in with the token of the
/// kubeconfig. The link is valid once, for two minutes.
pub async fn sign_in_link(source: &KubeconfigSource, clock: &Clock) -> Result<String, SignInLinkError> {
    let extension = cluster_extension(source, EXTENSION)?.unwrap_or_default();
    let url = extension["url"].as_str().ok_or(SignInLinkError::NoPage)?;
    let Some(token) = bearer_token(source).await? else {
        return Err(SignInLinkError::NoToken(url.to_owned()));
    };
    let code = sign_in_code::make(&token, clock.now()).map_err(SignInLinkError::Random)?;
    Ok(format!("{url}/#code={code}"))
}
