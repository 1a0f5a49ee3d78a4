//! From a kubeconfig to a client, with errors that say what to do.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use camino::Utf8PathBuf;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How long the API server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the kubeconfig is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KubeconfigSource {
    /// This file, and nothing else.
    File(Utf8PathBuf),
    /// What kubectl would use: `$KUBECONFIG`, else `~/.kube/config`, else the service account of the pod we run in.
    Environment,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("kubeconfig `{}` does not exist; name another one with --kubeconfig, or start the server that writes it", .0.display())]
    Missing(PathBuf),
    #[error("reading kubeconfig `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("kubeconfig `{path}` cannot be used: {what}")]
    Invalid { path: String, what: String },
    #[error("there is neither a kubeconfig (set KUBECONFIG or --kubeconfig) nor a service account: {0}")]
    NotConfigured(String),
    #[error("setting up the client for {url}: {what}")]
    Setup { url: String, what: String },
}

/// A client as the kubeconfig says. Does not touch the network.
pub(crate) async fn connect(source: &KubeconfigSource) -> Result<Client, ConnectError> {
    client(config(source).await?)
}

/// A client that reaches the API server at another address, where something stands between the two; and the API server's
/// own `HOST:PORT`.
pub(crate) async fn connect_via(
    source: &KubeconfigSource,
    address: SocketAddr,
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
    // Who answers is still the one that the kubeconfig names.
    config.tls_server_name.get_or_insert(host);
    Ok((client(config)?, own))
}

fn client(mut config: Config) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|err| ConnectError::Setup {
        url,
        what: single_line(&err.to_string()),
    })
}

async fn config(source: &KubeconfigSource) -> Result<Config, ConnectError> {
    Ok(match source {
        KubeconfigSource::File(path) => from_file(path).await?,
        KubeconfigSource::Environment => match Kubeconfig::read() {
            Ok(kubeconfig) => from_kubeconfig(kubeconfig, "from the environment").await?,
            Err(why) => {
                Config::incluster().map_err(|_| ConnectError::NotConfigured(single_line(&why.to_string())))?
            }
        },
    })
}

async fn from_file(path: &Utf8PathBuf) -> Result<Config, ConnectError> {
    match tokio::fs::metadata(path).await {
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Err(ConnectError::Missing(path.clone().into()));
        }
        Err(err) => {
            let path = path.clone().into();
            return Err(ConnectError::Read { path, err });
        }
    }
    let kubeconfig = Kubeconfig::read_from(path).map_err(|err| {
        if let kube::config::KubeconfigError::ReadConfig(err, path) = err {
            ConnectError::Read { path, err }
        } else {
            invalid(path.as_str(), &err)
        }
    })?;
    from_kubeconfig(kubeconfig, path.as_str()).await
}

async fn from_kubeconfig(kubeconfig: Kubeconfig, path: &str) -> Result<Config, ConnectError> {
    if kubeconfig.contexts.is_empty() {
        return Err(ConnectError::Invalid {
            path: path.to_owned(),
            what: "it has no `contexts`; is it a kubeconfig?".to_owned(),
        });
    }
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|err| invalid(path, &err))
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
    use crate::error::Chain;

    async fn check_file(content: &str, expect: &str) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = Utf8PathBuf::from_path_buf(directory.path().join("kubeconfig")).expect("UTF-8");
        std::fs::write(&path, content).expect("written");
        let outcome = connect(&KubeconfigSource::File(path.clone())).await;
        let said = outcome
            .err()
            .map_or("a client".to_owned(), |err| Chain(&err).to_string());
        assert!(
            said.contains(expect) && (expect == "a client" || said.contains(path.as_str())),
            "{said}"
        );
    }

    fn kubeconfig(server: &str, ca: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}'{ca}}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
        )
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_named_with_what_is_wrong() {
        drop(rustls::crypto::ring::default_provider().install_default());
        check_file(&kubeconfig("https://127.0.0.1:1", ""), "a client").await;
        check_file("a: [1,\n", "cannot be used").await;
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
        let missing = connect(&KubeconfigSource::File("/no/such/file".into())).await;
        let said = missing.err().expect("missing").to_string();
        assert!(
            said.contains("/no/such/file") && said.contains("--kubeconfig"),
            "{said}"
        );
    }
}
