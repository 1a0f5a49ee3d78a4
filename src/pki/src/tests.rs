use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::authority_hash::Discovery;
use super::kubeconfig::Credentials;
use super::*;
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_base::error::Chain;

mod certificate_files;
mod discover;
mod machine_tls;
mod rotation;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn serve(directory: &Path, names: &[&str], clock: &Clock) -> (Arc<Authority>, ServerConfig) {
    let authority = Arc::new(Authority::open(directory, AuthorityKind::Serving, clock).unwrap());
    let names = names.iter().map(|name| (*name).to_owned());
    let serving = ServingCertificate::issue(Arc::clone(&authority), names, clock.clone()).unwrap();
    let users =
        UserCertificates::new(&clients(directory, clock), Revocations::default(), clock.clone()).unwrap();
    (authority, serving.server_config(&users).unwrap())
}

fn clients(directory: &Path, clock: &Clock) -> Authority {
    Authority::open(directory, AuthorityKind::Client, clock).unwrap()
}

/// Issues a user certificate with a new key, valid for a day from `issued`.
fn user_certificate(
    authority: &Authority,
    subject: &[(rcgen::DnType, &str)],
    usage: rcgen::ExtendedKeyUsagePurpose,
    issued: jiff::Timestamp,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, text) in subject {
        params.distinguished_name.push(kind.clone(), *text);
    }
    params.extended_key_usages = vec![usage];
    (params.not_before, params.not_after) = authority::validity(issued, Duration::from_secs(24 * 3600));
    let issuing = authority.issuing();
    let certificate = params.signed_by(&key, &*issuing.issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    (vec![certificate.der().clone()], key)
}

/// Performs a TLS handshake in memory with a client that trusts `ca_pem`, and returns its ALPN
/// protocol.
fn handshake(
    ca_pem: &str,
    config: &ServerConfig,
    name: &str,
    alpn: &[&str],
) -> Result<Option<Vec<u8>>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    let mut client_config = ClientConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client_config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let (client, _) = connect(client_config, config, name)?;
    Ok(client.alpn_protocol().map(<[u8]>::to_vec))
}

/// Returns both ends after the handshake.
fn connect(
    client_config: ClientConfig,
    config: &ServerConfig,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client_config), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(config.clone())).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok((client, server))
}

#[test]
fn clients_trust_only_the_names_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &["mini-1.local", "192.0.2.7"], &Clock::System);
    for name in ["localhost", "127.0.0.1", "::1", "mini-1.local", "192.0.2.7"] {
        let alpn = handshake(&authority.certificate_pem(), &config, name, &["h2", "http/1.1"]);
        assert_eq!(alpn.unwrap().unwrap(), b"h2", "{name}");
    }
    assert_eq!(
        handshake(&authority.certificate_pem(), &config, "localhost", &["http/1.1"])
            .unwrap()
            .unwrap(),
        b"http/1.1"
    );
    assert!(handshake(&authority.certificate_pem(), &config, "mini-2.local", &[]).is_err());
    assert!(handshake(&authority.certificate_pem(), &config, "192.0.2.8", &[]).is_err());
}

#[test]
fn authority_and_token_persist_with_private_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let (before, _) = serve(dir.path(), &[], &Clock::System);
    let token = Token::open(dir.path()).unwrap();
    let (after, config) = serve(dir.path(), &["new.name"], &Clock::System);
    assert_eq!(before.certificate_pem(), after.certificate_pem());
    handshake(&before.certificate_pem(), &config, "new.name", &[]).expect("names may change at a restart");
    assert!(token == Token::open(dir.path()).unwrap());
    assert!(token.reveal().len() > 40);
    assert_eq!(format!("{token:?}"), "Token");
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(
        token != Token::open(elsewhere.path()).unwrap(),
        "tokens are random"
    );
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }
    let (_, other) = serve(elsewhere.path(), &[], &Clock::System);
    assert!(
        handshake(&before.certificate_pem(), &other, "localhost", &[]).is_err(),
        "server of another authority"
    );
}

#[test]
fn renews_certificate_while_running() {
    // Handshakes verify against the machine's clock, so the certificate is issued in the past.
    let day = Duration::from_secs(24 * 3600);
    let manual = ManualClock::new(Clock::System.now() - 380 * day);
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &[], &Clock::Manual(manual.clone()));
    let expired = handshake(&authority.certificate_pem(), &config, "localhost", &[]).unwrap_err();
    assert!(expired.to_string().contains("expired"), "{expired}");
    manual.advance(380 * day);
    handshake(&authority.certificate_pem(), &config, "localhost", &[])
        .expect("the handshake renews the certificate");
}

#[test]
fn serving_certificate_is_issued_again_after_the_clock_was_set_back() {
    // At the first start, the clock is a year ahead.
    let year = Duration::from_secs(365 * 24 * 3600);
    let manual = ManualClock::new(Clock::System.now() + year);
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &[], &Clock::Manual(manual.clone()));
    let early = handshake(&authority.certificate_pem(), &config, "localhost", &[]).unwrap_err();
    assert!(early.to_string().contains("not valid yet"), "{early}");
    manual.set_back(year);
    handshake(&authority.certificate_pem(), &config, "localhost", &[])
        .expect("the handshake issues the certificate again");
    let validity = certificate_validity(&authority.certificate_pem());
    assert!(
        validity.contains(&Clock::System.now()),
        "the authority is valid: {validity:?}"
    );
}

fn certificate_validity(pem: &str) -> std::ops::RangeInclusive<jiff::Timestamp> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    authority::subject_and_validity(&der).unwrap().1
}

#[test]
fn authority_from_the_future_is_issued_again_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let year = Duration::from_secs(365 * 24 * 3600);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    (params.not_before, params.not_after) = authority::validity(Clock::System.now() + year, year);
    let future = params.self_signed(&key).unwrap().pem();
    fs::write(&path, format!("{future}{}", key.serialize_pem())).unwrap();

    let (authority, config) = serve(dir.path(), &[], &Clock::System);
    assert!(certificate_validity(&authority.certificate_pem()).contains(&Clock::System.now()));
    handshake(&future, &config, "localhost", &[])
        .expect("clients of the previous certificate trust the new one");
    assert_eq!(mode(&path), 0o600);
    let (again, _) = serve(dir.path(), &[], &Clock::System);
    assert_eq!(again.certificate_pem(), authority.certificate_pem());
}

/// Otherwise a node whose certificate was signed while the server's clock was ahead must join again.
#[test]
fn certificate_from_the_future_authenticates_its_user() {
    let dir = tempfile::tempdir().unwrap();
    let authority = clients(dir.path(), &Clock::System);
    let users = UserCertificates::new(&authority, Revocations::default(), Clock::System).unwrap();
    let ahead = Clock::System.now() + Duration::from_secs(100 * 24 * 3600);
    let subject = [(rcgen::DnType::CommonName, "system:node:mini-1")];
    let usage = rcgen::ExtendedKeyUsagePurpose::ClientAuth;
    let (chain, _) = user_certificate(&authority, &subject, usage, ahead);
    assert_eq!(users.user(&chain).unwrap().common_name, "system:node:mini-1");
}

#[test]
fn error_names_damaged_secret_file_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Authority::open(dir.path(), AuthorityKind::Serving, &Clock::System).map(drop);
    let path = dir.path().join("ca.pem");
    open().unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    Authority::open(elsewhere.path(), AuthorityKind::Serving, &Clock::System)
        .map(drop)
        .unwrap();
    let other = fs::read_to_string(elsewhere.path().join("ca.pem")).unwrap();
    let split = |pem: &str| pem.find("-----BEGIN PRIVATE KEY").unwrap();
    let mixed = format!("{}{}", &whole[..split(&whole)], &other[split(&other)..]);
    for contents in [
        "",
        "nonsense",
        &whole[..split(&whole)],
        &whole[split(&whole)..],
        &mixed,
    ] {
        fs::write(&path, contents).unwrap();
        let err = open().unwrap_err();
        assert!(
            matches!(err, OpenAuthorityError::Invalid { .. }),
            "{contents}: {err:?}"
        );
        assert!(err.to_string().contains("ca.pem"), "{err}");
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
    }
    for contents in ["", "short", "two words that are long enough"] {
        fs::write(dir.path().join("token"), contents).unwrap();
        let err = Token::open(dir.path()).unwrap_err();
        assert!(
            matches!(err, OpenTokenError::Invalid { .. }),
            "{contents}: {err:?}"
        );
    }
    fs::write(dir.path().join("token"), "chosen-by-the-administrator\n").unwrap();
    assert_eq!(
        Token::open(dir.path()).unwrap().reveal(),
        "chosen-by-the-administrator"
    );
    assert_eq!(
        mode(&dir.path().join("token")),
        0o600,
        "permissions of other users are revoked"
    );
    let missing = Authority::open(
        &dir.path().join("missing"),
        AuthorityKind::Serving,
        &Clock::System,
    )
    .map(drop)
    .unwrap_err();
    assert!(
        Chain(&missing).to_string().contains("missing/ca.pem"),
        "{}",
        Chain(&missing)
    );
}

#[test]
fn error_names_invalid_certificate_name() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::open(dir.path(), AuthorityKind::Serving, &Clock::System).unwrap());
    for name in ["", "Bob's Mac", "a..b", "-a", "*"] {
        let names = [name.to_owned()];
        let err = ServingCertificate::issue(Arc::clone(&authority), names, Clock::System).unwrap_err();
        assert_eq!(
            err.to_string(),
            format!("`{name}` is neither an IP address nor a DNS name")
        );
    }
}

#[test]
fn kubeconfig_contains_server_authority_and_token() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &[], &Clock::System);
    let token = Token::open(dir.path()).unwrap();
    let path = dir.path().join("admin.kubeconfig");
    kubeconfig::write(
        &path,
        "https://127.0.0.1:6443",
        &authority.certificate_pem(),
        Credentials::Token(token.reveal()),
    )
    .unwrap();
    assert_eq!(mode(&path), 0o600);
    let read: kube::config::Kubeconfig = kube::config::Kubeconfig::read_from(&path).unwrap();
    assert_eq!(read.current_context.as_deref(), Some("rooflet"));
    let context = read.contexts[0].context.clone().unwrap();
    assert_eq!(
        (context.cluster.as_str(), context.user.as_deref()),
        ("rooflet", Some("rooflet"))
    );
    let cluster = read.clusters[0].cluster.clone().unwrap();
    assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    use base64::Engine as _;
    let ca = base64::engine::general_purpose::STANDARD
        .decode(cluster.certificate_authority_data.unwrap())
        .unwrap();
    handshake(std::str::from_utf8(&ca).unwrap(), &config, "127.0.0.1", &["h2"]).unwrap();
    // A file written by rooflet is replaced.
    kubeconfig::write(
        &path,
        "https://127.0.0.1:7443",
        &authority.certificate_pem(),
        Credentials::Token(token.reveal()),
    )
    .unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("https://127.0.0.1:7443") && text.contains(token.reveal()),
        "{text}"
    );
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 4, "no temporary file remains: {names:?}");
}

#[test]
fn unchanged_kubeconfig_is_not_written() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.kubeconfig");
    let write = |server: &str| {
        kubeconfig::write(&path, server, "authority", Credentials::Token("token")).unwrap();
        fs::metadata(&path).unwrap().ino()
    };
    let first = write("https://127.0.0.1:1");
    assert_eq!(write("https://127.0.0.1:1"), first);
    assert_ne!(write("https://127.0.0.1:2"), first);
    assert!(kubeconfig::is_for(&path, "https://127.0.0.1:2", "authority"));
    assert!(!kubeconfig::is_for(&path, "https://127.0.0.1:1", "authority"));
    assert!(!kubeconfig::is_for(&path, "https://127.0.0.1:2", "other"));
    // The permissions are restored.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write("https://127.0.0.1:2");
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn keeps_kubeconfig_of_other_tools() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), AuthorityKind::Serving, &Clock::System).unwrap();
    let token = Token::open(dir.path()).unwrap();
    let path = dir.path().join("config");
    let write = || {
        kubeconfig::write(
            &path,
            "https://127.0.0.1:1",
            &authority.certificate_pem(),
            Credentials::Token(token.reveal()),
        )
    };
    let prod = "apiVersion: v1\nkind: Config\nclusters: [{name: prod, cluster: {server: 'https://prod'}}]\n";
    for (contents, what) in [
        (prod, r#"it has "prod" in its clusters"#),
        ("kind: Deployment\n", "its kind is not Config"),
        ("{{{", "it is not YAML"),
    ] {
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let err = write().unwrap_err();
        assert!(err.to_string().contains(what), "{err}");
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), mode(&path)),
            (contents, 0o644)
        );
    }
    fs::write(&path, "").unwrap();
    write().expect("an empty file may be replaced");
    let err = kubeconfig::write(
        &dir.path().join("no/config"),
        "https://x",
        &authority.certificate_pem(),
        Credentials::Token(token.reveal()),
    )
    .unwrap_err();
    assert!(Chain(&err).to_string().contains("no/config"), "{}", Chain(&err));
}

#[test]
fn user_certificate_contains_user_and_groups() {
    use rcgen::DnType::{CommonName, OrganizationName};
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (serving, config) = serve(dir.path(), &[], &Clock::System);
    let ours = clients(dir.path(), &Clock::System);
    let users = UserCertificates::new(&ours, Revocations::default(), Clock::System).unwrap();
    let now = Clock::System.now();
    let authenticate = |chain_and_key| {
        let (chain, key) = chain_and_key;
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(serving.certificate_pem().as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let client_config = ClientConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        let (_, server) =
            connect(client_config, &config, "localhost").expect("the handshake accepts any certificate");
        users.user(server.peer_certificates().expect("the client sent a certificate"))
    };
    let alice = [(CommonName, "alice"), (OrganizationName, "team-a")];
    assert_eq!(
        authenticate(user_certificate(&ours, &alice, ClientAuth, now)).expect("alice"),
        UserName {
            common_name: "alice".to_owned(),
            organizations: vec!["team-a".to_owned()]
        }
    );
    let unnamed = authenticate(user_certificate(&ours, &[], ClientAuth, now)).expect("unnamed");
    assert_eq!(
        (unnamed.common_name.as_str(), unnamed.organizations.len()),
        ("", 0)
    );
    let invalid = |chain_and_key| {
        let err = authenticate(chain_and_key).expect_err("invalid certificate");
        assert!(matches!(err, UserCertificateError::Invalid(_)), "{err:?}");
        Chain(&err).to_string()
    };
    let theirs = clients(elsewhere.path(), &Clock::System);
    invalid(user_certificate(&theirs, &alice, ClientAuth, now));
    invalid(user_certificate(&serving, &alice, ClientAuth, now));
    invalid(user_certificate(&ours, &alice, ServerAuth, now));
    let old = now - Duration::from_secs(48 * 3600);
    let err = invalid(user_certificate(&ours, &alice, ClientAuth, old));
    assert!(err.contains("expired"), "{err}");
    assert!(matches!(users.user(&[]), Err(UserCertificateError::Missing)));
}

#[test]
fn discovery_verifies_authority_hash_and_server_name() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, config) = serve(here.path(), &["mini-1.local"], &Clock::System);
    let (_, other) = serve(elsewhere.path(), &["mini-1.local"], &Clock::System);
    let issuing = authority.issuing();
    let der = &issuing.certificate;
    let hash = AuthorityHash::of(der).unwrap();
    let found = |config: &ServerConfig, name: &str| {
        let discovery = Discovery::of(Some(hash), &Clock::System);
        let handshake = connect(discovery.client_config().unwrap(), config, name);
        handshake.map(|_| discovery.authority())
    };
    assert_eq!(found(&config, "mini-1.local"), Ok(Some(der.clone())));
    found(&config, "mini-2.local").expect_err("a certificate for another name");
    let err = found(&other, "mini-1.local").expect_err("another authority");
    assert!(err.to_string().contains("has another hash"), "{err}");
    assert_eq!(certificate_pem(der), authority.certificate_pem());
}

#[test]
fn node_request_contains_node_name() {
    let directory = tempfile::tempdir().unwrap();
    let request = KeyRequest::client(&Identity::new(Role::Node, "mini-1")).unwrap();
    let parsed = rcgen::CertificateSigningRequestParams::from_pem(&request.request_pem).unwrap();
    let issuer = clients(directory.path(), &Clock::System);
    let signed = parsed.signed_by(&*issuer.issuing().issuer).unwrap().pem();
    let read = NodeCertificate::read(signed.as_bytes()).unwrap();
    assert_eq!(read.node.as_deref(), Some("mini-1"));
    rcgen::KeyPair::from_pem(&request.key_pem).unwrap();
    assert_eq!(NodeCertificate::read(b"no certificate"), None);
}

/// The requests are from OpenSSL with `-subj /O=team-a/CN=alice`, with RSA and P-384 keys, the
/// latter with SHA-256.
#[test]
fn parses_and_signs_openssl_requests() {
    let dir = tempfile::tempdir().unwrap();
    let ours = clients(dir.path(), &Clock::System);
    let policy = SigningPolicy {
        key_usages: vec![rcgen::KeyUsagePurpose::DigitalSignature],
        extended_key_usages: vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth],
        uri: None,
        lifetime: Duration::from_secs(3600),
    };
    let users = UserCertificates::new(&ours, Revocations::default(), Clock::System).unwrap();
    for pem in [RSA_REQUEST, P384_REQUEST] {
        let request = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
        assert_eq!(request.common_name, "alice");
        assert_eq!(request.organizations, ["team-a"]);
        let signed = ours.sign(&request, &policy, Clock::System.now()).unwrap();
        let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
        let user = users.user(&[der]).unwrap();
        assert_eq!(
            (user.common_name.as_str(), user.organizations.len()),
            ("alice", 1)
        );
    }
}

#[test]
fn certificates_end_with_authority_and_have_unique_serial_numbers() {
    use x509_parser::prelude::{FromDer as _, X509Certificate};
    let dir = tempfile::tempdir().unwrap();
    let created = Clock::System.now();
    let ours = clients(dir.path(), &Clock::System);
    let request = CertificateRequest::from_pem(P384_REQUEST.as_bytes()).unwrap();
    let year = Duration::from_secs(365 * 24 * 3600);
    let sign = |now| {
        let policy = SigningPolicy {
            key_usages: Vec::new(),
            extended_key_usages: vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth],
            uri: None,
            lifetime: year,
        };
        let pem = ours.sign(&request, &policy, now).unwrap();
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    };
    let facts = |der: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(der).unwrap();
        assert!(!certificate.is_ca());
        (
            certificate.validity().not_after.timestamp(),
            certificate.raw_serial().to_vec(),
        )
    };
    let end_of_authority = {
        let issuing = ours.issuing();
        let (_, own) = X509Certificate::from_der(&issuing.certificate).unwrap();
        own.validity().not_after.timestamp()
    };
    let (first, second) = (facts(&sign(created)), facts(&sign(created)));
    assert_eq!(first.0, (created + year).as_second());
    assert_ne!(first.1, second.1);
    let late = facts(&sign(created + 29 * year + year / 2));
    assert_eq!(late.0, end_of_authority);
}

#[test]
fn rejects_subject_with_repeated_attribute() {
    let dir = tempfile::tempdir().unwrap();
    let ours = clients(dir.path(), &Clock::System);
    let request = CertificateRequest::from_pem(TWO_GROUPS_REQUEST.as_bytes()).unwrap();
    assert_eq!(request.organizations, ["a", "b"]);
    let policy = SigningPolicy {
        key_usages: Vec::new(),
        extended_key_usages: Vec::new(),
        uri: None,
        lifetime: Duration::from_secs(3600),
    };
    let err = ours.sign(&request, &policy, Clock::System.now()).unwrap_err();
    assert_eq!(
        err.to_string(),
        "the subject contains an organization (O) more than once, which is not supported"
    );
}

const RSA_REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIICczCCAVsCAQAwLjELMAkGA1UEBhMCREUxDzANBgNVBAoMBnRlYW0tYTEOMAwG
A1UEAwwFYWxpY2UwggEiMA0GCSqGSIb3DQEBAQUAA4IBDwAwggEKAoIBAQCGMmjX
8os01m3BU7O/81fVSQT6UYP7iwJz4en4SMihUmYrbXlAQ0UP8nEINcZw1IhA8vjt
6788qWeXXZnDx0Vz0Gld4cTcrmwvCZSIK2j/SJqkTa+NlqpXs1Mm4LikgaqXd+E0
sdwOPueb3IpmBqWj5v12k7BrANnJoZgogM7IFkrk2TeQbncMRqljiq/rSQpiik2d
ByROwkAC7X4M6O+cj21XeM2rAUTKxXBly9UsrxzSQeSVz2DcQgdky0Guu3yM84Sr
j+cn9bU1Dwe+XH39HeM+IubOchQZdN3imFP4Rbev1zT/ggGqTeI4PkPB8J7fs7Tu
jJWcraEdlFGjfANzAgMBAAGgADANBgkqhkiG9w0BAQsFAAOCAQEAe65qfFj/aobN
AZYbUs+cR3G8pmUi7tfwoPt065elFzzjBPgNp1Ils5CWHg2qggC7+WS3HzXfB9Qa
oUgnPWni42wFIjHCCi8FWd/8j2Apwrc7SVU9fVpqaxwcNu8zfCGwehj5m+4hACoK
vi9yQNO3Ex76803sFG4BlEubxVROFBGj4ddWAZW8MbEn2z8oRGJDuluWH/vbW0Nu
qBY7Y7p9NNqijrAO/VDFW1QQcKOGoJyd7pNlDWhmbbyYgrLU2wnkXyG5PbFIj8mm
fC/7GapYScmHbudGjSdgk42IOPT7Jun9L0mcL/kWsbyEFUOwUT8Qu4xSOvFEJt0t
IOLdIK2wOA==
-----END CERTIFICATE REQUEST-----
";
const P384_REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIIBGTCBoAIBADAhMQ8wDQYDVQQKDAZ0ZWFtLWExDjAMBgNVBAMMBWFsaWNlMHYw
EAYHKoZIzj0CAQYFK4EEACIDYgAE7b3YX2bG0jOVrbclqXiVoIsWiFQZ6ER8+woj
JEe11CFgNmlCH92GP0WJwTS6ntrmuKEqy4znZtwrN7tO3JpPvKq1YY6U44dgUm9/
wH0XU/RNipquuAbj7w7aLh8ckC6SoAAwCgYIKoZIzj0EAwIDaAAwZQIxAOruJmie
3PWfwpjg9bEFkGNZvVfwhRrixSmAHMTqNS6elxeNySeVtvXGltHlTvcBnwIwKtrV
vNNCUf03OEYb/HcUG0Th+zpIK5lBrWnDu6dFTSJNsch6fO2ZZC7fUYMv1Zdp
-----END CERTIFICATE REQUEST-----
";
const TWO_GROUPS_REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIHiMIGKAgEAMCgxCjAIBgNVBAoMAWExCjAIBgNVBAoMAWIxDjAMBgNVBAMMBWFs
aWNlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECy7jyJS7Fa4kx/K8FNoFWZFy
KSipsATPF9pZj5WiaY5/v07GAajt3yNeD+EqyDgbxAJEy41YLqpMd5AG5awSnaAA
MAoGCCqGSM49BAMCA0cAMEQCIApRFXqfLGhrbIBbmCSkKqkQfsZoMvni8neJEJO5
BR9qAiBf9QrSk5g9OP3miZQcRnL30IVoZN2vvjGVypqrBElPiQ==
-----END CERTIFICATE REQUEST-----
";
