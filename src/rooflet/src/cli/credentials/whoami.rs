//! `rooflet whoami`: the user that the API server sees.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use camino::Utf8PathBuf;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;

use crate::cli::{Failure, default_kubeconfig, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{ApiError, KubeconfigSource, bearer_token, client_certificate, connect, server_of};
use rooflet_pki::end_of_certificate;

/// Arguments of `rooflet whoami`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet login`, `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

/// Name and groups of a user.
pub(super) struct Account {
    pub(super) name: String,
    groups: Vec<String>,
}

impl Account {
    /// Asks the API server who the client is.
    pub(super) async fn of(client: &Client) -> Result<Self, ApiError> {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        let review = reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await?;
        let user = review
            .status
            .and_then(|status| status.user_info)
            .unwrap_or_default();
        Ok(Self {
            name: user.username.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
        })
    }
}

/// Returns the end of a token that states it, such as those of service accounts. The signature is
/// not verified.
pub(super) fn end_of_token(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?).ok()
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = |err| Failure::new(ExitStatus::Config, err);
    let source = args
        .kubeconfig
        .map_or_else(default_kubeconfig, KubeconfigSource::File);
    let (server, _) = server_of(&source).await.map_err(config)?;
    let client = connect(&source, &Clock::System).await.map_err(config)?;
    let account = Account::of(&client).await.map_err(anyhow::Error::from)?;
    let certificate = client_certificate(&source).await.map_err(config)?;
    let token = bearer_token(&source).await.map_err(config)?;
    let (kind, end) = match (&certificate, &token) {
        (Some(pem), _) => ("certificate", end_of_certificate(pem)),
        (None, Some(token)) => ("token", end_of_token(token)),
        (None, None) => ("other credentials", None),
    };
    let end = end.map_or_else(|| "no stated end".to_owned(), |end| format!("valid until {end}"));
    ui::output(&format!(
        "user        {}\ngroups      {}\nserver      {}\ncredentials {kind}, {end}\n",
        account.name,
        account.groups.join(", "),
        server.to_string().trim_end_matches('/'),
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_signed_token_is_its_claim() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let end = end_of_token(&token("{\"exp\": 1800000000}")).map(|end| end.to_string());
        assert_eq!(end.as_deref(), Some("2027-01-15T08:00:00Z"));
        for other in [&token("{}"), &token("no"), "rooflet_secret", "", "a.b"] {
            assert_eq!(end_of_token(other), None, "{other}");
        }
    }
}
