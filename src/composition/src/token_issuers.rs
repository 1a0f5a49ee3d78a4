//! Issuers of `--authentication-config`: their keys are fetched at the start, every hour, and when a token has an
//! unknown key.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use tracing::{info, warn};

use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_base::yaml::{self, YamlError};
use rooflet_pki::{ParseIssuersError, ParseWebKeysError, TokenIssuer, WebKeys};

/// Interval between fetches of the keys.
const REFRESH: Duration = Duration::from_secs(3600);
/// Minimum interval between fetches. Tokens with unknown keys do not cause more requests to the issuer.
const RETRY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a document of an issuer.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Error of the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadIssuersError {
    #[error("reading `{path}`")]
    Read {
        path: Utf8PathBuf,
        source: std::io::Error,
    },
    #[error("`{path}` is not YAML")]
    Yaml { path: Utf8PathBuf, source: YamlError },
    #[error(
        "`{path}` is not a supported AuthenticationConfiguration; see docs/api-server.md for the supported fields"
    )]
    Invalid {
        path: Utf8PathBuf,
        source: ParseIssuersError,
    },
}

/// Reads the issuers of an `AuthenticationConfiguration`.
pub fn load(path: &Utf8Path) -> Result<Vec<TokenIssuer>, LoadIssuersError> {
    let path = path.to_owned();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(LoadIssuersError::Read { path, source }),
    };
    let value: Value = match yaml::from_str(&text) {
        Ok(value) => value,
        Err(source) => return Err(LoadIssuersError::Yaml { path, source }),
    };
    TokenIssuer::parse(value).map_err(|source| LoadIssuersError::Invalid { path, source })
}

/// Error of fetching the keys of an issuer.
#[derive(Debug, thiserror::Error)]
enum FetchKeysError {
    #[error("an authority of the issuer is not valid")]
    Authority(#[source] reqwest::Error),
    #[error("requesting {url}")]
    Request { url: String, source: reqwest::Error },
    #[error("{url} returned more than {BODY_BYTES_MAX} bytes")]
    TooLong { url: String },
    #[error("{url} returned no JSON")]
    Json { url: String, source: serde_json::Error },
    #[error("the discovery document names the issuer {found:?}")]
    Issuer { found: String },
    #[error("the discovery document has no `jwks_uri` with https")]
    NoKeySet,
    #[error("{url}")]
    Keys { url: String, source: ParseWebKeysError },
}

/// Keeps the keys of the issuers current until `tasks` stop.
pub(super) fn keep(issuers: &[TokenIssuer], tasks: &Tasks) {
    for issuer in issuers.iter().cloned() {
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            stop.run_until_cancelled(follow(issuer)).await;
        });
    }
}

async fn follow(issuer: TokenIssuer) {
    loop {
        let pause = match fetch(&issuer).await {
            Ok(keys) => {
                info!(issuer = issuer.url(), "fetched the keys of the issuer of tokens");
                issuer.set_keys(keys);
                REFRESH
            }
            Err(err) => {
                warn!(
                    issuer = issuer.url(),
                    error = %Chain(&err),
                    "failed to fetch the keys of the issuer of tokens; retrying in {} s", RETRY.as_secs()
                );
                RETRY
            }
        };
        tokio::time::sleep(RETRY).await;
        tokio::select! {
            () = issuer.wants_keys() => {}
            () = tokio::time::sleep(pause.saturating_sub(RETRY)) => {}
        }
    }
}

async fn fetch(issuer: &TokenIssuer) -> Result<WebKeys, FetchKeysError> {
    let builder = reqwest::Client::builder().timeout(TIMEOUT).https_only(true);
    let builder = match issuer.authority_pem() {
        Some(pem) => {
            let authorities = reqwest::Certificate::from_pem_bundle(pem.as_bytes());
            builder.tls_certs_only(authorities.map_err(FetchKeysError::Authority)?)
        }
        None => builder,
    };
    let client = builder.build().map_err(FetchKeysError::Authority)?;
    let discovered = json(&client, &issuer.discovery_url()).await?;
    let found = discovered["issuer"].as_str().unwrap_or_default();
    if found != issuer.url() {
        return Err(FetchKeysError::Issuer {
            found: found.to_owned(),
        });
    }
    let url = discovered["jwks_uri"]
        .as_str()
        .filter(|url| url.starts_with("https://"));
    let url = url.ok_or(FetchKeysError::NoKeySet)?.to_owned();
    let set = json(&client, &url).await?;
    WebKeys::parse(&set).map_err(|source| FetchKeysError::Keys { url, source })
}

async fn json(client: &reqwest::Client, url: &str) -> Result<Value, FetchKeysError> {
    let failed = |source| FetchKeysError::Request {
        url: url.to_owned(),
        source,
    };
    let response = client
        .get(url)
        .send()
        .await
        .and_then(reqwest::Response::error_for_status);
    let mut response = response.map_err(failed)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES_MAX {
            return Err(FetchKeysError::TooLong { url: url.to_owned() });
        }
    }
    serde_json::from_slice(&body).map_err(|source| FetchKeysError::Json {
        url: url.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_file_and_the_problem() {
        let directory = rooflet_testing::TempDir::new();
        let path = directory.path().join("authentication.yaml");
        let error = || Chain(&load(&path).expect_err("unusable")).to_string();
        assert!(error().contains("authentication.yaml"), "{}", error());
        for (text, expect) in [
            ("jwt: [", "is not YAML"),
            ("kind: AuthenticationConfiguration", "missing field `apiVersion`"),
            (
                "{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, anonymous: {enabled: false}}",
                "unknown field `anonymous`",
            ),
        ] {
            std::fs::write(&path, text).expect("writable");
            assert!(error().contains(expect), "{text}: {}", error());
        }
    }
}
