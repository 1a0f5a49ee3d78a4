//! The first contact with a server of which nothing is known but its address and the hash of its
//! authority.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::authority_hash::{AuthorityHash, Discovery};

const PATIENCE: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 443;

/// Why the server is not the one that was meant, or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("`{0}` is no server's URL: write https://HOST:PORT")]
    Url(String),
    #[error(
        "nobody answers at {address}; a server listens on loopback unless `--listen` says otherwise, such as 0.0.0.0:7443"
    )]
    Connect {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error(
        "{address} is not to be trusted; the server's own certificate is for the addresses of its machine and what `--tls-san` adds"
    )]
    Handshake {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error("setting up TLS")]
    Tls(#[from] rustls::Error),
}

/// A server that has shown the right authority.
pub struct Discovered {
    /// `https://HOST:PORT`
    pub url: Uri,
    /// In DER.
    pub authority: CertificateDer<'static>,
    /// This machine, as the server's network sees it.
    pub own_address: std::net::IpAddr,
}

/// Asks who is there.
pub async fn discover(server: &str, hash: AuthorityHash) -> Result<Discovered, DiscoverError> {
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
            format!("no answer in {} s", PATIENCE.as_secs()),
        )
    };
    let connecting = tokio::time::timeout(PATIENCE, TcpStream::connect((host, port))).await;
    let unreachable = |err| DiscoverError::Connect {
        address: address.clone(),
        err,
    };
    let stream = connecting.unwrap_or_else(|_| Err(late())).map_err(unreachable)?;
    let own_address = stream.local_addr().map_err(unreachable)?.ip();
    let shaking = tokio::time::timeout(PATIENCE, connector.connect(name, stream)).await;
    let distrusted = |err| DiscoverError::Handshake {
        address: address.clone(),
        err,
    };
    drop(shaking.unwrap_or_else(|_| Err(late())).map_err(distrusted)?);
    let unseen = || distrusted(io::Error::other("it showed no authority"));
    Ok(Discovered {
        authority: discovery.authority().ok_or_else(unseen)?,
        url: format!("https://{address}").parse().map_err(|_| wrong())?,
        own_address,
    })
}
