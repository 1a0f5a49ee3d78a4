use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Connects to a server. `ahead` is the time by which its clock is ahead of that of the client, in seconds.
/// Returns the report of a difference, or the error.
async fn discovered(ahead: i64, states_time: bool) -> Result<Option<String>, String> {
    let own = Clock::System.now();
    let theirs = jiff::Timestamp::from_second(own.as_second() + ahead).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let clock = |now| Clock::Manual(ManualClock::new(now));
    let (authority, config) = serve(dir.path(), &["127.0.0.1"], &clock(theirs));
    let hash = AuthorityHash::of(&authority.issuing().certificate).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut request = [0; 1024];
        let read = stream.read(&mut request).await.unwrap();
        let date = match states_time {
            true => rfc2822::to_string(&theirs.to_zoned(TimeZone::UTC)).unwrap(),
            false => String::new(),
        };
        let head = format!("HTTP/1.1 401 Unauthorized\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    };
    let client = clock(own);
    let (request, found) = tokio::join!(server, discover(&url, hash, &client));
    assert!(!request.to_lowercase().contains("authorization"), "{request}");
    match found {
        Ok(found) => Ok(found.clock.map(|difference| difference.to_string())),
        Err(err) => Err(Chain(&err).to_string()),
    }
}

/// The certificate of the server is valid from one hour before its clock, for a year.
#[tokio::test]
async fn different_clocks_are_reported_with_the_difference() {
    assert_eq!(discovered(0, true).await, Ok(None));
    assert_eq!(discovered(-20, true).await, Ok(None));
    let is = |text: &str| Some(format!("the clock of this machine is {text} that of the server"));
    assert_eq!(discovered(-45, true).await, Ok(is("45 s ahead of")));
    assert_eq!(discovered(1800, true).await, Ok(is("30 min behind")));
    assert_eq!(discovered(-3600, true).await, Ok(is("1 h ahead of")));

    let err = discovered(2 * 3600 + 300, true).await.unwrap_err();
    assert!(
        err.contains("because the clock of this machine is 2 h 5 min behind"),
        "{err}"
    );
    assert!(err.contains("set date and time"), "{err}");
    let err = discovered(-366 * 24 * 3600, true).await.unwrap_err();
    assert!(
        err.contains("because the clock of this machine is 8784 h ahead"),
        "{err}"
    );
}

#[tokio::test]
async fn certificate_that_is_not_valid_yet_is_rejected_without_the_time_of_the_server() {
    assert_eq!(discovered(1800, false).await, Ok(None));
    let err = discovered(2 * 3600, false).await.unwrap_err();
    assert!(err.contains("not valid yet"), "{err}");
}

#[tokio::test]
async fn server_without_its_authority_is_reported_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), AuthorityKind::Serving, &Clock::System).unwrap();
    let hash = AuthorityHash::of(&authority.issuing().certificate).unwrap();
    let usage = rcgen::ExtendedKeyUsagePurpose::ServerAuth;
    let (chain, key) = user_certificate(&authority, &[], usage, Clock::System.now());
    let config = ServerConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    for hash in [None, Some(hash)] {
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err());
        };
        let client = async {
            match hash {
                None => presented_authority(&url, &Clock::System).await.map(drop),
                Some(hash) => discover(&url, hash, &Clock::System).await.map(drop),
            }
        };
        let ((), outcome) = tokio::join!(server, client);
        assert!(
            matches!(outcome, Err(DiscoverError::NoAuthority { .. })),
            "{outcome:?}"
        );
    }
}
