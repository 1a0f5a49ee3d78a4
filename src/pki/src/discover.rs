//! First connection to a server, of which only the address and the hash of the authority are known.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use http::Uri;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::authority_hash::{AuthorityHash, Discovery, NO_AUTHORITY, OTHER_AUTHORITY};
use rooflet_base::clock::Clock;
use rooflet_base::local_network::explain;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the head of a response.
const MAX_HEAD_BYTES: u64 = 16 << 10;
/// Maximum difference of clocks that is not reported. Dates of HTTP have whole seconds.
const CLOCK_ERROR: Duration = Duration::from_secs(30);
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
        "{address} is another server than the token or --ca-hash identifies: its certificate authority has another \
         hash; check the address, or create a token on this server"
    )]
    OtherAuthority { address: String },
    #[error(
        "{address} does not present its certificate authority, as API servers of rooflet do; check the address, or use \
         a kubeconfig of that cluster"
    )]
    NoAuthority { address: String },
    #[error(
        "the certificate of {address} is not trusted; a server's certificate is valid for the addresses of its machine and for names added with `--tls-san`"
    )]
    Handshake {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error(
        "the certificate of {address} is not valid at this time, because {difference}; set date and time \
         automatically in the system settings of both machines, and repeat the command"
    )]
    Clock {
        address: String,
        difference: ClockDifference,
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
    /// Difference of the clocks, if it is larger than half a minute.
    pub clock: Option<ClockDifference>,
}

/// Connects to the server, verifies its authority, and compares the clocks.
pub async fn discover(server: &str, hash: AuthorityHash, clock: &Clock) -> Result<Discovered, DiscoverError> {
    connect(server, Some(hash), clock).await
}

/// Returns the hash of the authority that the server presents. Only a comparison with the hash from
/// another source shows whether the server is authentic.
pub async fn presented_authority(server: &str, clock: &Clock) -> Result<AuthorityHash, DiscoverError> {
    let found = connect(server, None, clock).await?;
    let hash = AuthorityHash::of(&found.authority);
    hash.ok_or(DiscoverError::Tls(rustls::Error::InvalidCertificate(
        rustls::CertificateError::BadEncoding,
    )))
}

async fn connect(
    server: &str,
    hash: Option<AuthorityHash>,
    clock: &Clock,
) -> Result<Discovered, DiscoverError> {
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
    let discovery = Discovery::of(hash, clock);
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
    let distrusted = |err| {
        let address = address.clone();
        match general_cause(&err) {
            Some(OTHER_AUTHORITY) => DiscoverError::OtherAuthority { address },
            Some(NO_AUTHORITY) => DiscoverError::NoAuthority { address },
            Some(_) | None => DiscoverError::Handshake { address, err },
        }
    };
    let mut stream = handshake.unwrap_or_else(|_| Err(late())).map_err(distrusted)?;
    // A server that does not state its time is not an error.
    let theirs = tokio::time::timeout(TIMEOUT, server_time(&mut stream, &address)).await;
    let theirs = theirs.ok().and_then(Result::ok).flatten();
    let difference = theirs.and_then(|theirs| ClockDifference::between(clock.now(), theirs));
    if let Some(why) = discovery.invalid_now() {
        return Err(match difference {
            Some(difference) => DiscoverError::Clock { address, difference },
            None => distrusted(io::Error::other(rustls::Error::InvalidCertificate(why))),
        });
    }
    let missing = || distrusted(io::Error::other("the server sent no authority"));
    Ok(Discovered {
        authority: discovery.authority().ok_or_else(missing)?,
        url: format!("https://{address}").parse().map_err(|_| wrong())?,
        own_address,
        clock: difference,
    })
}

/// Returns the text of a general error of TLS, as [`Discovery`] returns it.
fn general_cause(err: &io::Error) -> Option<&str> {
    let cause = err.get_ref()?.downcast_ref::<rustls::Error>()?;
    if let rustls::Error::General(text) = cause {
        return Some(text);
    }
    None
}

/// Reads the time of the server from the header `Date` of a response. The request has no credentials.
async fn server_time(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    address: &str,
) -> io::Result<Option<Timestamp>> {
    let request = format!("HEAD /version HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut lines = BufReader::new(stream.take(MAX_HEAD_BYTES)).lines();
    while let Some(line) = lines.next_line().await?.filter(|line| !line.is_empty()) {
        if let Some((name, date)) = line.split_once(':')
            && name.eq_ignore_ascii_case("date")
        {
            let date = rfc2822::parse(date.trim()).ok();
            return Ok(date.map(|date| date.timestamp()));
        }
    }
    Ok(None)
}

/// Difference of the clocks of this machine and of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// Seconds by which this machine's clock is ahead.
    ahead: i64,
}

impl ClockDifference {
    /// Returns `None` if the difference is not larger than [`CLOCK_ERROR`].
    fn between(own: Timestamp, theirs: Timestamp) -> Option<Self> {
        let ahead = own.as_second() - theirs.as_second();
        (ahead.unsigned_abs() > CLOCK_ERROR.as_secs()).then_some(Self { ahead })
    }
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.ahead.unsigned_abs();
        write!(f, "the clock of this machine is ")?;
        match (seconds / 3600, seconds / 60 % 60, seconds) {
            (0, 0, seconds) => write!(f, "{seconds} s")?,
            (0, minutes, _) => write!(f, "{minutes} min")?,
            (hours, 0, _) => write!(f, "{hours} h")?,
            (hours, minutes, _) => write!(f, "{hours} h {minutes} min")?,
        }
        match self.ahead > 0 {
            true => write!(f, " ahead of that of the server"),
            false => write!(f, " behind that of the server"),
        }
    }
}
