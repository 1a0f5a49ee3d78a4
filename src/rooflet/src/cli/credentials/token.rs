//! `rooflet token`: tokens with which other Macs join.

mod node_account;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use camino::Utf8PathBuf;
use http::Uri;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};

use crate::cli::ui::duration::duration;
use crate::cli::{Failure, default_kubeconfig, objects, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::loopback::is_loopback;
use rooflet_client::{ApiError, FIELD_MANAGER, KubeconfigSource, server_of};
use rooflet_host::Host;
use rooflet_pki::{
    AuthorityHash, BootstrapToken, JoinToken, TOKEN_HASH_KEY, TOKEN_NAMESPACE, TOKEN_NODE_KEY,
    TOKEN_SECRET_PREFIX, TOKEN_SECRET_TYPE, TOKEN_USES_KEY,
};
use rooflet_schema::names::dns_subdomain;

/// Default lifetime of a token.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);

/// Arguments of `rooflet token`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<Utf8PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a token, and print the command to run on the joining Mac. On a Kubernetes cluster with the
    /// chart, print a kubeconfig for `rooflet join --token-file` on this Mac.
    Create {
        /// Lifetime of the token, such as 15m or 24h; 0 for a token that does not expire. On a Kubernetes
        /// cluster, at least 10m.
        #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = duration)]
        ttl: Duration,
        /// Number of Macs that may join with the token. Default: no limit.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
        /// Name of the only node that may join with the token. The name may be in use: the Mac that
        /// joins replaces the existing node. Required on a Kubernetes cluster.
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Description that `rooflet token list` shows.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// URL under which other Macs reach the API server. Default: the URL of the kubeconfig,
        /// with this machine's address instead of loopback.
        #[arg(long, value_name = "URL", value_parser = server_url)]
        server: Option<String>,
    },
    /// List the tokens without their secrets. On a Kubernetes cluster, list the nodes with tokens.
    List,
    /// Delete tokens. Macs that have joined are not affected.
    Delete {
        /// Token id, which `rooflet token list` shows.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

impl Args {
    /// Creates a token with the default lifetime.
    pub(in crate::cli) fn create(kubeconfig: Utf8PathBuf) -> Self {
        Self {
            verb: Verb::Create {
                ttl: DEFAULT_TTL,
                uses: None,
                node: None,
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
    let secrets: Api<Secret> = Api::namespaced(client.clone(), TOKEN_NAMESPACE);
    match args.verb {
        Verb::Create {
            ttl,
            uses,
            node,
            description,
            server,
        } => {
            if let Some(what) = node.iter().flat_map(|node| dns_subdomain(node)).next() {
                return Err(Failure::new(ExitStatus::Usage, anyhow!("--node: {what}")));
            }
            let expires = expiry(ttl, Clock::System.now())?;
            let server = match server {
                Some(server) => server,
                None => reachable(&source).await?,
            };
            let (_, authorities) = server_of(&source).await?;
            let version = client.apiserver_version().await.map_err(ApiError::from)?;
            if !version.git_version.contains("rooflet") {
                let node = on_a_cluster(node, uses, description.as_deref())?;
                return node_account::create(&client, &node, ttl, (&server, &authorities)).await;
            }
            let authority = authorities
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
            let limits = [
                (TOKEN_USES_KEY, uses.map(|uses| uses.to_string())),
                (TOKEN_NODE_KEY, node),
                ("expiration", expires.map(|at| format!("{at:.0}"))),
                ("description", description),
            ];
            let secret = secret(&token, limits);
            secrets.create(&params, &secret).await.map_err(ApiError::from)?;
            let token = JoinToken { authority, token }.reveal();
            ui::output(&format!("rooflet join {server} --token {token}\n"));
        }
        Verb::List => {
            let version = client.apiserver_version().await.map_err(ApiError::from)?;
            if !version.git_version.contains("rooflet") {
                return node_account::list(&client, Clock::System.now()).await;
            }
            let found = secrets
                .list(&ListParams::default().fields(&format!("type={TOKEN_SECRET_TYPE}")))
                .await
                .map_err(ApiError::from)?;
            let mut table = ui::Table::new(["ID", "EXPIRES", "USES LEFT", "NODE", "DESCRIPTION"]);
            for secret in &found.items {
                let name = secret.name_any();
                let id = name.strip_prefix(TOKEN_SECRET_PREFIX).unwrap_or(&name).to_owned();
                let text = |key| data(secret, key);
                let expires = text("expiration").unwrap_or_else(|| "never".to_owned());
                let uses = text(TOKEN_USES_KEY).unwrap_or_else(|| "unlimited".to_owned());
                let node = text(TOKEN_NODE_KEY).unwrap_or_else(|| "any".to_owned());
                table.add_row([id, expires, uses, node, text("description").unwrap_or_default()]);
            }
            match table.is_empty() {
                true => ui::progress("no tokens; create one with `rooflet token create`"),
                false => ui::output(&format!("{table}\n")),
            }
        }
        Verb::Delete { ids } => {
            for id in ids {
                // A whole token is accepted as well.
                let whole = id.parse::<JoinToken>().map(|join| join.token);
                let whole = whole.ok().or_else(|| id.parse().ok());
                let id = whole.as_ref().map_or(id.as_str(), BootstrapToken::id);
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

/// Parses the URL of an API server for other machines.
fn server_url(text: &str) -> Result<String, String> {
    let example = "such as https://192.0.2.2:7443";
    let url: Uri = text
        .parse()
        .map_err(|err| format!("{err}; pass a URL, {example}"))?;
    match url.scheme_str() {
        Some("https") if url.host().is_some_and(|host| !host.is_empty()) => {}
        Some("https") | None => return Err(format!("must be a URL with a host, {example}")),
        Some(scheme) => {
            return Err(format!(
                "{scheme} has no encryption with certificates, so other machines cannot join; pass an https URL, {example}"
            ));
        }
    }
    match url.path_and_query().map(|path| path.as_str()) {
        None | Some("" | "/") => Ok(text.trim_end_matches('/').to_owned()),
        Some(path) => Err(format!("must not contain a path (`{path}`), {example}")),
    }
}

fn data(secret: &Secret, key: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the time of expiry, or `None` for a token that does not expire.
fn expiry(ttl: Duration, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    if ttl.is_zero() {
        return Ok(None);
    }
    let expires = now.checked_add(ttl).map_err(|_| {
        let what = anyhow!("--ttl: is too long; pass 0 for a token that does not expire");
        Failure::new(ExitStatus::Usage, what)
    })?;
    Ok(Some(expires))
}

/// Returns the node. The flags of bootstrap tokens have no effect on a Kubernetes cluster.
fn on_a_cluster(
    node: Option<String>,
    uses: Option<u32>,
    description: Option<&str>,
) -> Result<String, Failure> {
    let usage = |what: &str| Failure::new(ExitStatus::Usage, anyhow!("{what}"));
    if uses.is_some() || description.is_some() {
        return Err(usage(
            "--uses and --description: this API server is not rooflet's; omit these flags",
        ));
    }
    node.ok_or_else(|| {
        usage("--node is missing: this API server is not rooflet's, so each Mac needs its own token")
    })
}

/// Returns the token's Secret. rooflet's API server needs only the hash of the secret part.
fn secret(token: &BootstrapToken, limits: [(&'static str, Option<String>); 4]) -> Secret {
    let fixed = [
        ("token-id", token.id().to_owned()),
        (TOKEN_HASH_KEY, token.secret_hash()),
        ("usage-bootstrap-authentication", "true".to_owned()),
    ];
    let given = limits.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let data = fixed.into_iter().chain(given);
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
        "the kubeconfig uses the loopback address of the API server; other Macs must reach it at {address}:{port} (with rooflet's \
         API server: `--listen 0.0.0.0:{port}`; for another address, pass --server URL)",
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
    fn server_must_be_an_https_url_without_a_path() {
        assert_eq!(
            server_url("https://192.0.2.2:7443/").as_deref(),
            Ok("https://192.0.2.2:7443")
        );
        assert_eq!(
            server_url("https://mini-1.local").as_deref(),
            Ok("https://mini-1.local")
        );
        for (wrong, fault) in [
            ("http://192.0.2.2:7443", "http has no encryption"),
            ("ftp://192.0.2.2", "ftp has no encryption"),
            ("192.0.2.2:7443", "must be a URL with a host"),
            ("mini-1", "must be a URL with a host"),
            ("https://", "pass a URL"),
            ("", "pass a URL"),
            ("https://192.0.2.2/api", "must not contain a path (`/api`)"),
            ("https://192.0.2.2?x", "must not contain a path"),
        ] {
            let err = server_url(wrong).expect_err(wrong);
            assert!(err.contains(fault), "{wrong}: {err}");
        }
    }

    #[test]
    fn tokens_expire_by_default() {
        let now: Timestamp = "2026-03-01T10:00:00.25Z".parse().expect("a time");
        let at = |ttl: &str| expiry(duration(ttl).expect(ttl), now).map(|at| at.map(|at| format!("{at:.0}")));
        assert_eq!(
            at("24h").expect("a duration").as_deref(),
            Some("2026-03-02T10:00:00Z")
        );
        assert_eq!(at("0").expect("never"), None);
        assert_eq!(at("0s").expect("never"), None);
        assert_eq!(
            at("99999999999h").expect_err("too long").status,
            ExitStatus::Usage
        );
    }
}
