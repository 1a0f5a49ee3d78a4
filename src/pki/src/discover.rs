//! First connection to a server, of which only the address and the hash of the authority are known.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::authority_hash::{AuthorityHash, Discovery};
use rooflet_base::local_network::explain;

const TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 443;

/// Error: the server is unreachable or not authentic.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("`{0}` is not a server URL: use https://HOST:PORT")]
    Url(String),
    #[error(
        "no server responds at {address}; a server listens only on loopback unless started with `--listen`, for example 0.0.0.0:7443"
    )]
    Connect {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error(
        "the certificate of {address} is not trusted; a server's certificate is valid for the addresses of its machine and for names added with `--tls-san`"
    )]
    Handshake {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error("setting up TLS")]
    Tls(#[from] rustls::Error),
}

/// Authenticated server.
pub struct Discovered {
    /// URL of the form `https://HOST:PORT`.
    pub url: Uri,
    /// Certificate in DER.
    pub authority: CertificateDer<'static>,
    /// Address of this machine in the connection.
    pub own_address: std::net::IpAddr,
}

/// Connects to the server and verifies its authority.
pub async fn discover(server: &str, hash: AuthorityHash) -> Result<Discovered, DiscoverError> {
    connect(server, Some(hash)).await
}

/// Returns the hash of the authority that the server presents. Only a comparison with the hash from
/// another source shows whether the server is authentic.
pub async fn presented_authority(server: &str) -> Result<AuthorityHash, DiscoverError> {
    let found = connect(server, None).await?;
    let hash = AuthorityHash::of(&found.authority);
    hash.ok_or(DiscoverError::Tls(rustls::Error::InvalidCertificate(
        rustls::CertificateError::BadEncoding,
    )))
}

async fn connect(server: &str, hash: Option<AuthorityHash>) -> Result<Discovered, DiscoverError> {
    let wrong = || DiscoverError::Url(server.to_owned());
    let url: Uri = server.parse().map_err(|_| wrong())?;
    let has_path = !matches!(url.path(), "" | "/") || url.query().is_some();
    let host = url
        .host()
        .filter(|_| url.scheme_str() == Some("https") && !has_path);
    let host = host.ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    let port = url.port_u16().unwrap_or(DEFAULT_PORT);
    let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
    let address = url.authority().map(ToString::to_string).unwrap_or_default();
    let discovery = Discovery::of(hash);
    let connector = TlsConnector::from(Arc::new(discovery.client_config()?));
    let late = || {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no response within {} s", TIMEOUT.as_secs()),
        )
    };
    let connecting = tokio::time::timeout(TIMEOUT, TcpStream::connect((host.as_str(), port))).await;
    let unreachable = |err| DiscoverError::Connect {
        address: address.clone(),
        err,
    };
    let explained = |err: io::Error| unreachable(io::Error::new(err.kind(), explain(&err, &host)));
    let stream = connecting.unwrap_or_else(|_| Err(late())).map_err(explained)?;
    let own_address = stream.local_addr().map_err(unreachable)?.ip();
    let handshake = tokio::time::timeout(TIMEOUT, connector.connect(name, stream)).await;
    let distrusted = |err| DiscoverError::Handshake {
        address: address.clone(),
        err,
    };
    drop(handshake.unwrap_or_else(|_| Err(late())).map_err(distrusted)?);
    let missing = || distrusted(io::Error::other("the server sent no authority"));
    Ok(Discovered {
        authority: discovery.authority().ok_or_else(missing)?,
        url: format!("https://{address}").parse().map_err(|_| wrong())?,
        own_address,
    })
}
