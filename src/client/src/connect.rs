//! Creation of clients from a kubeconfig, with errors that contain the remedy.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camino::Utf8PathBuf;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use super::sleep::renewing_client;
use rooflet_base::clock::Clock;
use rooflet_base::environment::{is_set, variable};
use rooflet_base::loopback::is_loopback;

/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a byte from the server after which a connection counts as lost. API servers send a
/// bookmark to each watch about once per minute; this is the time for two.
const READ_TIMEOUT: Duration = Duration::from_secs(130);

/// Location of the kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeconfigSource {
    /// Exactly this file.
    File(Utf8PathBuf),
    /// Like kubectl: `$KUBECONFIG`, otherwise `~/.kube/config`, otherwise the service account of
    /// the pod.
    Environment,
    /// Service account of the pod: the variables `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`, and the files below [`SERVICE_ACCOUNT_DIR`].
    ServiceAccount,
}

/// Directory of the service account's token, authority and namespace in a pod.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl KubeconfigSource {
    /// Returns the service account if this process runs in a pod.
    pub fn of_pod() -> Option<Self> {
        is_set("KUBERNETES_SERVICE_HOST").then_some(Self::ServiceAccount)
    }
}

/// Reason why no client can be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("kubeconfig `{}` does not exist; pass another file with --kubeconfig, or start the server that writes it", .0.display())]
    Missing(PathBuf),
    #[error("failed to read kubeconfig `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("kubeconfig `{path}` is invalid: {what}")]
    Invalid { path: String, what: String },
    #[error("no kubeconfig and no service account found; set KUBECONFIG or --kubeconfig: {0}")]
    NotConfigured(String),
    #[error(
        "the service account of the pod is unusable: {0}; check KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT and \
         the files below {SERVICE_ACCOUNT_DIR}, or pass --kubeconfig"
    )]
    ServiceAccount(String),
    #[error(
        "the configuration routes requests for {host} through proxy {proxy}, which is unsupported: add {host} to \
         NO_PROXY, or remove `proxy-url` from the kubeconfig"
    )]
    Proxy { host: String, proxy: String },
    #[error("failed to create a client for {url}: {what}")]
    Setup { url: String, what: String },
}

/// Creates a client from the kubeconfig. Does not access the network.
pub async fn connect(source: &KubeconfigSource, clock: &Clock) -> Result<Client, ConnectError> {
    client(config(source).await?, clock)
}

/// Creates a client that reaches the API server at another address, for example through a proxy.
/// Also returns the API server's own `HOST:PORT`.
pub async fn connect_via(
    source: &KubeconfigSource,
    address: SocketAddr,
    clock: &Clock,
) -> Result<(Client, String), ConnectError> {
    let mut config = config(source).await?;
    let url = &config.cluster_url;
    let (host, port) = (url.host().unwrap_or_default().to_owned(), url.port_u16());
    let scheme = url.scheme_str().unwrap_or("https").to_owned();
    let port = port.unwrap_or(if scheme == "http" { 80 } else { 443 });
    let own = format!("{host}:{port}");
    config.cluster_url = format!("{scheme}://{address}")
        .parse()
        .map_err(|err| ConnectError::Setup {
            url: own.clone(),
            what: format!("{err}"),
        })?;
    config.proxy_url = None;
    // The certificate must still match the name in the kubeconfig.
    config.tls_server_name.get_or_insert(host);
    Ok((client(config, clock)?, own))
}

/// Returns the address of the API server and its certificate authorities in DER, if the file
/// contains them.
pub async fn server_of(source: &KubeconfigSource) -> Result<(Uri, Vec<Vec<u8>>), ConnectError> {
    let config = config(source).await?;
    Ok((config.cluster_url, config.root_cert.unwrap_or_default()))
}

/// Returns the client certificate in PEM, if the kubeconfig contains one.
pub async fn client_certificate(source: &KubeconfigSource) -> Result<Option<Vec<u8>>, ConnectError> {
    let encoded = config(source).await?.auth_info.client_certificate_data;
    Ok(encoded.and_then(|encoded| STANDARD.decode(encoded.trim()).ok()))
}

/// Creates a client with a bearer token for a server with a known authority (in DER).
pub fn with_token(
    server: Uri,
    authority: &[u8],
    token: String,
    clock: &Clock,
) -> Result<Client, ConnectError> {
    let mut config = Config::new(server);
    config.root_cert = Some(vec![authority.to_vec()]);
    config.auth_info.token = Some(token.into());
    client(config, clock)
}

/// Credential of a user.
pub enum UserCredential {
    /// Bearer token.
    Token(String),
    /// Client certificate and its private key, in PEM.
    Certificate { certificate: String, key: String },
}

/// Creates a client for the server of the kubeconfig that authenticates only with this credential.
pub async fn connect_as(
    source: &KubeconfigSource,
    credential: UserCredential,
    clock: &Clock,
) -> Result<Client, ConnectError> {
    let mut config = config(source).await?;
    config.auth_info = match credential {
        UserCredential::Token(token) => AuthInfo {
            token: Some(token.into()),
            ..AuthInfo::default()
        },
        UserCredential::Certificate { certificate, key } => AuthInfo {
            client_certificate_data: Some(STANDARD.encode(certificate)),
            client_key_data: Some(STANDARD.encode(key).into()),
            ..AuthInfo::default()
        },
    };
    client(config, clock)
}

/// Returns the bearer token of the kubeconfig, if the file contains one.
pub async fn bearer_token(source: &KubeconfigSource) -> Result<Option<String>, ConnectError> {
    Ok(token_of(&config(source).await?))
}

/// Returns an extension of the kubeconfig's current cluster.
pub fn cluster_extension(source: &KubeconfigSource, name: &str) -> Result<Option<Value>, ConnectError> {
    let kubeconfig = match source {
        KubeconfigSource::File(path) => read_file(path)?,
        KubeconfigSource::Environment => {
            Kubeconfig::read().map_err(|why| ConnectError::NotConfigured(single_line(&why.to_string())))?
        }
        KubeconfigSource::ServiceAccount => return Ok(None),
    };
    Ok(extension_of(&kubeconfig, name))
}

/// Kubeconfig that was passed as text.
pub struct PassedKubeconfig {
    /// Address of the API server.
    pub server: Uri,
    /// Certificate authorities of the server in DER, if the text contains them.
    pub authorities: Vec<Vec<u8>>,
    pub token: Option<String>,
    pub client: Client,
    kubeconfig: Kubeconfig,
}

impl PassedKubeconfig {
    /// Parses the text. Does not access the network.
    pub async fn parse(text: &str, clock: &Clock) -> Result<Self, ConnectError> {
        const ORIGIN: &str = "that was passed";
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(|err| invalid(ORIGIN, &err))?;
        let config = from_kubeconfig(kubeconfig.clone(), ORIGIN).await?;
        Ok(Self {
            server: config.cluster_url.clone(),
            authorities: config.root_cert.clone().unwrap_or_default(),
            token: token_of(&config),
            client: client(config, clock)?,
            kubeconfig,
        })
    }

    /// Returns an extension of the current cluster.
    pub fn extension(&self, name: &str) -> Option<Value> {
        extension_of(&self.kubeconfig, name)
    }
}

fn token_of(config: &Config) -> Option<String> {
    let token = config.auth_info.token.as_ref();
    token.map(|token| token.expose_secret().to_owned())
}

fn extension_of(kubeconfig: &Kubeconfig, name: &str) -> Option<Value> {
    let extensions = current_clusters(kubeconfig).filter_map(|cluster| cluster.extensions.as_deref());
    let named = extensions.flatten().find(|extension| extension.name == name);
    named.map(|found| found.extension.clone())
}

fn client(mut config: Config, clock: &Clock) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    if let Some(proxy) = &config.proxy_url {
        return Err(ConnectError::Proxy {
            host: config.cluster_url.host().unwrap_or_default().to_owned(),
            // Omit the password of the URL.
            proxy: proxy.host().unwrap_or_default().to_owned(),
        });
    }
    let url = config.cluster_url.to_string();
    renewing_client(config, clock.clone()).map_err(|err| ConnectError::Setup {
        url,
        what: single_line(&err.to_string()),
    })
}

async fn config(source: &KubeconfigSource) -> Result<Config, ConnectError> {
    Ok(match source {
        KubeconfigSource::File(path) => from_file(path).await?,
        KubeconfigSource::ServiceAccount => {
            Config::incluster().map_err(|err| ConnectError::ServiceAccount(single_line(&err.to_string())))?
        }
        KubeconfigSource::Environment => match Kubeconfig::read() {
            Ok(kubeconfig) => from_kubeconfig(kubeconfig, "from the environment").await?,
            Err(why) => {
                Config::incluster().map_err(|_| ConnectError::NotConfigured(single_line(&why.to_string())))?
            }
        },
    })
}

async fn from_file(path: &Utf8PathBuf) -> Result<Config, ConnectError> {
    from_kubeconfig(read_file(path)?, path.as_str()).await
}

fn read_file(path: &Utf8PathBuf) -> Result<Kubeconfig, ConnectError> {
    match std::fs::metadata(path) {
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Err(ConnectError::Missing(path.clone().into()));
        }
        Err(err) => {
            let path = path.clone().into();
            return Err(ConnectError::Read { path, err });
        }
    }
    Kubeconfig::read_from(path).map_err(|err| {
        if let kube::config::KubeconfigError::ReadConfig(err, path) = err {
            ConnectError::Read { path, err }
        } else {
            invalid(path.as_str(), &err)
        }
    })
}

async fn from_kubeconfig(kubeconfig: Kubeconfig, path: &str) -> Result<Config, ConnectError> {
    if kubeconfig.contexts.is_empty() {
        return Err(ConnectError::Invalid {
            path: path.to_owned(),
            what: "no `contexts` found; check that the file is a kubeconfig".to_owned(),
        });
    }
    let has_proxy_url = has_proxy_url(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|err| invalid(path, &err))?;
    let no_proxy = variable("NO_PROXY").or_else(|| variable("no_proxy"));
    let no_proxy = no_proxy.unwrap_or_default();
    if !has_proxy_url && is_direct(&config.cluster_url, &no_proxy) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// Returns whether the current cluster has a `proxy-url`. Without one, the environment's proxy
/// applies.
fn has_proxy_url(kubeconfig: &Kubeconfig) -> bool {
    current_clusters(kubeconfig)
        .filter_map(|cluster| cluster.proxy_url.as_deref())
        .any(|url| !url.is_empty())
}

/// Returns the clusters with the name that the current context refers to.
fn current_clusters(kubeconfig: &Kubeconfig) -> impl Iterator<Item = &Cluster> {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    let contexts = kubeconfig.contexts.iter();
    let context = contexts
        .filter(|named| named.name == current)
        .find_map(|named| named.context.as_ref());
    let clusters = kubeconfig.clusters.iter();
    clusters
        .filter(move |named| context.is_some_and(|context| context.cluster == named.name))
        .filter_map(|named| named.cluster.as_ref())
}

/// Returns whether the environment excludes this server from its proxy. kube's own configuration
/// does not check it.
fn is_direct(server: &Uri, no_proxy: &str) -> bool {
    let Some(host) = server.host() else { return false };
    let port = server.port_u16().unwrap_or(443).to_string();
    let of_this_port = |part: &str| match part.rsplit_once(':') {
        Some((host, digits)) if !host.contains(':') => (digits == port).then(|| host.to_owned()),
        Some(_) | None => Some(part.to_owned()),
    };
    let excluded: Vec<String> = no_proxy
        .split(',')
        .map(str::trim)
        .filter_map(of_this_port)
        .collect();
    let matcher = Matcher::builder().https("http://proxy").no(excluded.join(","));
    is_loopback(host)
        || excluded.iter().any(|part| part == "*")
        || matcher.build().intercept(server).is_none()
}

fn invalid(path: &str, err: &kube::config::KubeconfigError) -> ConnectError {
    ConnectError::Invalid {
        path: path.to_owned(),
        what: single_line(&err.to_string()),
    }
}

fn single_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::error::Chain;
    use rooflet_testing::TempDir;

    async fn check_file(content: &str, expect: &str) {
        let directory = TempDir::new();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, content).expect("written");
        let outcome = connect(&KubeconfigSource::File(path.clone()), &Clock::System).await;
        let message = outcome
            .err()
            .map_or("a client".to_owned(), |err| Chain(&err).to_string());
        assert!(
            message.contains(expect) && (expect == "a client" || message.contains(path.as_str())),
            "{message}"
        );
    }

    fn kubeconfig(server: &str, ca: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}'{ca}}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
        )
    }

    #[test]
    fn no_proxy_and_loopback_addresses_bypass_the_proxy() {
        let check = |server: &str, no_proxy: &str, expect: bool| {
            let server: Uri = server.parse().expect("a URL");
            assert_eq!(is_direct(&server, no_proxy), expect, "{server} {no_proxy}");
        };
        check("https://127.0.0.1:7443", "", true);
        check("https://[::1]:7443", "", true);
        check("https://localhost:7443", "", true);
        check("https://mac-1.example.com:7443", "", false);
        check("https://mac-1.example.com:7443", "other.org, .example.com", true);
        check("https://10.1.2.3:7443", "10.0.0.0/8", true);
        check("https://11.1.2.3:7443", "10.0.0.0/8", false);
        check("https://11.1.2.3:7443", "*", true);
        check("https://mac-1.example.com:7443", "mac-1.example.com:7443", true);
        check("https://mac-1.example.com:7443", "mac-1.example.com:6443", false);
        check("https://[fd00::1]:7443", "fd00::1", true);
    }

    #[tokio::test]
    async fn rejects_server_behind_proxy_with_remedy_and_without_password() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let behind = ", proxy-url: 'http://me:secret@gate.example.com:3128'";
        let outcome = from_kubeconfig(
            Kubeconfig::from_yaml(&kubeconfig("https://10.1.2.3:1", behind)).expect("a kubeconfig"),
            "x",
        )
        .await;
        let message = client(outcome.expect("a configuration"), &Clock::System)
            .err()
            .expect("refused")
            .to_string();
        assert!(
            message.contains("gate.example.com") && message.contains("add 10.1.2.3 to NO_PROXY"),
            "{message}"
        );
        assert!(!message.contains("secret"), "{message}");
    }

    #[tokio::test]
    async fn kubeconfig_has_token_and_extensions_of_the_current_cluster() {
        let directory = TempDir::new();
        let path = directory.path().join("kubeconfig");
        let extension = ", extensions: [{name: a, extension: {url: b}}]";
        std::fs::write(&path, kubeconfig("https://127.0.0.1:1", extension)).expect("written");
        let source = KubeconfigSource::File(path);
        let found = |name| cluster_extension(&source, name).expect("readable");
        assert_eq!(found("a").expect("an extension")["url"], "b");
        assert_eq!(found("other"), None);
        let token = bearer_token(&source).await.expect("readable");
        assert_eq!(token.as_deref(), Some("t"));
        let text = kubeconfig("https://127.0.0.1:1", extension);
        let passed = PassedKubeconfig::parse(&text, &Clock::System)
            .await
            .expect("valid");
        assert_eq!(passed.server.port_u16(), Some(1));
        assert_eq!(passed.extension("a").expect("an extension")["url"], "b");
        assert_eq!(passed.token.as_deref(), Some("t"));
        let invalid = PassedKubeconfig::parse("a: [1,\n", &Clock::System).await;
        let message = invalid.err().expect("invalid").to_string();
        assert!(
            message.contains("kubeconfig `that was passed` is invalid"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn errors_name_the_kubeconfig_and_the_fault() {
        drop(rustls::crypto::ring::default_provider().install_default());
        check_file(&kubeconfig("https://127.0.0.1:1", ""), "a client").await;
        check_file("a: [1,\n", "is invalid").await;
        check_file("apiVersion: v1\nkind: Config\n", "no `contexts`").await;
        check_file(
            &kubeconfig("https://127.0.0.1:1", ", certificate-authority: /no/such/ca.pem"),
            "/no/such/ca.pem",
        )
        .await;
        check_file(
            &kubeconfig("https://127.0.0.1:1", "").replace("current-context: c", "current-context: d"),
            "context",
        )
        .await;
        let missing = connect(&KubeconfigSource::File("/no/such/file".into()), &Clock::System).await;
        let message = missing.err().expect("missing").to_string();
        assert!(
            message.contains("/no/such/file") && message.contains("--kubeconfig"),
            "{message}"
        );
    }
}
