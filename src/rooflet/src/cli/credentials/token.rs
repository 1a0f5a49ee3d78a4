//! `rooflet token`: bootstrap tokens with which other Macs join.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, anyhow, bail};
use camino::Utf8PathBuf;
use http::Uri;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};

use crate::cli::{Failure, default_kubeconfig, objects, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::loopback::is_loopback;
use rooflet_base::quantity::parse_duration;
use rooflet_client::{ApiError, FIELD_MANAGER, KubeconfigSource, server_of};
use rooflet_host::Host;
use rooflet_pki::{AuthorityHash, BootstrapToken, TOKEN_NAMESPACE, TOKEN_SECRET_PREFIX, TOKEN_SECRET_TYPE};

/// Default lifetime of a token.
const DEFAULT_TTL: &str = "24h";

/// Arguments of `rooflet token`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up`.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<Utf8PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a token, and print the command to run on the joining Mac. Any number of Macs may use
    /// the token.
    Create {
        /// Lifetime of the token, such as 15m or 24h; 0 for a token that does not expire.
        #[arg(long, default_value = DEFAULT_TTL, value_name = "DURATION")]
        ttl: String,
        /// Description that `rooflet token list` shows.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// URL under which other Macs reach the API server. Default: the URL of the kubeconfig,
        /// with this machine's address instead of loopback.
        #[arg(long, value_name = "URL")]
        server: Option<String>,
    },
    /// List the tokens without their secrets.
    List,
    /// Delete tokens. Macs that have joined are not affected.
    Delete {
        /// Token id, the part before the dot.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

impl Args {
    /// Creates a token with the default lifetime.
    pub(in crate::cli) fn create(kubeconfig: Utf8PathBuf) -> Self {
        Self {
            verb: Verb::Create {
                ttl: DEFAULT_TTL.to_owned(),
                description: None,
                server: None,
            },
            kubeconfig: Some(kubeconfig),
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let source = args
        .kubeconfig
        .clone()
        .map_or_else(default_kubeconfig, KubeconfigSource::File);
    let client = objects::client(args.kubeconfig).await?;
    let secrets: Api<Secret> = Api::namespaced(client, TOKEN_NAMESPACE);
    match args.verb {
        Verb::Create {
            ttl,
            description,
            server,
        } => {
            let expires = expiry(&ttl, Clock::System.now())?;
            let server = match server {
                Some(server) => server,
                None => reachable(&source).await?,
            };
            let (_, authorities) = server_of(&source).await?;
            let hash = authorities
                .first()
                .and_then(|der| AuthorityHash::of(der))
                .ok_or_else(|| {
                    anyhow!(
                        "the kubeconfig lacks the API server's certificate authority (certificate-authority-data)"
                    )
                })?;
            let token = BootstrapToken::generate().context("drawing a random token")?;
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            let secret = secret(&token, expires, description);
            secrets.create(&params, &secret).await.map_err(ApiError::from)?;
            let token = token.reveal();
            ui::output(&format!(
                "rooflet join {server} --token {token} --ca-hash {hash}\n"
            ));
        }
        Verb::List => {
            let found = secrets
                .list(&ListParams::default().fields(&format!("type={TOKEN_SECRET_TYPE}")))
                .await
                .map_err(ApiError::from)?;
            let mut table = ui::Table::new(["ID", "EXPIRES", "DESCRIPTION"]);
            for secret in &found.items {
                let name = secret.name_any();
                let id = name.strip_prefix(TOKEN_SECRET_PREFIX).unwrap_or(&name).to_owned();
                let text = |key| data(secret, key);
                let expires = text("expiration").unwrap_or_else(|| "never".to_owned());
                table.add_row([id, expires, text("description").unwrap_or_default()]);
            }
            match table.is_empty() {
                true => ui::progress("no tokens; create one with `rooflet token create`"),
                false => ui::output(&format!("{table}\n")),
            }
        }
        Verb::Delete { ids } => {
            for id in ids {
                // A whole token is accepted as well.
                let id = id.split_once('.').map_or(id.as_str(), |(id, _)| id);
                let (name, params) = (format!("{TOKEN_SECRET_PREFIX}{id}"), DeleteParams::default());
                match secrets.delete(&name, &params).await.map_err(ApiError::from) {
                    Ok(_) => ui::output(&format!("bootstrap token {id} deleted\n")),
                    Err(ApiError::NotFound(_)) => {
                        return Err(anyhow!(
                            "no bootstrap token {id}; `rooflet token list` lists the tokens"
                        )
                        .into());
                    }
                    Err(err) => return Err(err.into()),
                }
            }
        }
    }
    Ok(())
}

fn data(secret: &Secret, key: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the time of expiry, or `None` for a token that does not expire.
fn expiry(ttl: &str, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let wrong = || {
        let what =
            anyhow!("--ttl {ttl}: use a duration, such as 15m or 24h, or 0 for a token that does not expire");
        Failure::new(ExitStatus::Usage, what)
    };
    if ttl == "0" {
        return Ok(None);
    }
    let ttl = parse_duration(ttl).ok_or_else(wrong)?;
    match ttl.is_zero() {
        true => Ok(None),
        false => Ok(Some(now.checked_add(ttl).map_err(|_| wrong())?)),
    }
}

fn secret(token: &BootstrapToken, expires: Option<Timestamp>, description: Option<String>) -> Secret {
    let fixed = [
        ("token-id", token.id().to_owned()),
        ("token-secret", token.secret().to_owned()),
        ("usage-bootstrap-authentication", "true".to_owned()),
    ];
    let expires = expires.map(|at| ("expiration", format!("{at:.0}")));
    let description = description.map(|text| ("description", text));
    let data = fixed.into_iter().chain(expires).chain(description);
    Secret {
        metadata: ObjectMeta {
            name: Some(token.secret_name()),
            namespace: Some(TOKEN_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_SECRET_TYPE.to_owned()),
        data: Some(
            data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}

/// Returns the server's URL for other machines.
async fn reachable(source: &KubeconfigSource) -> anyhow::Result<String> {
    let (url, _) = server_of(source).await?;
    let host = url.host().unwrap_or_default();
    if !is_loopback(host) {
        return Ok(url.to_string().trim_end_matches('/').to_owned());
    }
    let address =
        own_address().map_or_else(|| Host::Native.identity().hostname, |address| address.to_string());
    ui::progress(&format!(
        "the kubeconfig uses the loopback address of the API server; other Macs reach it at {address} if it was started with `--listen \
        0.0.0.0:{port}` (otherwise pass --server URL)",
        port = port_of(&url),
    ));
    let host = match address.contains(':') {
        true => format!("[{address}]"),
        false => address,
    };
    if url.scheme_str() != Some("https") {
        bail!("the API server at {url} has no TLS, so other machines cannot join it");
    }
    Ok(format!("https://{host}:{}", port_of(&url)))
}

fn port_of(url: &Uri) -> u16 {
    url.port_u16().unwrap_or(443)
}

/// Address with which this machine reaches other machines. Connecting a datagram socket queries the
/// routing table and sends nothing.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address reserved for documentation, which no machine has.
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    socket.local_addr().map(|address: SocketAddr| address.ip()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_expire_by_default() {
        let now: Timestamp = "2026-03-01T10:00:00.25Z".parse().expect("a time");
        let at = |ttl: &str| expiry(ttl, now).map(|at| at.map(|at| format!("{at:.0}")));
        assert_eq!(
            at("24h").expect("a duration").as_deref(),
            Some("2026-03-02T10:00:00Z")
        );
        assert_eq!(at("0").expect("never"), None);
        assert_eq!(at("0s").expect("never"), None);
        for wrong in ["soon", "-1h", "24", "99999999999h"] {
            assert_eq!(at(wrong).expect_err(wrong).status, ExitStatus::Usage);
        }
    }
}
