//! Rotation of authorities: clients and servers with old and new trust accept each other.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn issue(authority: &Authority) -> ClientCertificate {
    let identity = Identity::new(Role::Node, "mini-1");
    authority
        .issue_client(&identity, HOUR, Clock::System.now())
        .unwrap()
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn clients_of_both_authorities_trust_the_server_until_the_old_one_is_retired() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &[], &Clock::System);
    let old = authority.certificate_pem();
    let old_hash = AuthorityHash::of(&authority.issuing().certificate).unwrap();
    authority.rotate(Clock::System.now()).unwrap();
    let both = authority.certificate_pem();
    let (new, rest) = both.split_at(both.len() - old.len());
    assert_eq!(rest, old, "the current authority is first");
    for trust in [&old, &both, new] {
        handshake(trust, &config, "localhost", &[]).unwrap_or_else(|err| panic!("{err}: {trust}"));
    }
    // Join commands with the hash of either authority are valid.
    let new_hash = AuthorityHash::of(&authority.issuing().certificate).unwrap();
    let found = |hash| {
        let discovery = Discovery::of(hash, &Clock::System);
        connect(discovery.client_config().unwrap(), &config, "localhost")
            .map(|_| discovery.authority().and_then(|found| AuthorityHash::of(&found)))
    };
    assert_eq!(found(Some(old_hash)), Ok(Some(old_hash)));
    assert_eq!(found(Some(new_hash)), Ok(Some(new_hash)));
    assert_eq!(found(None), Ok(Some(new_hash)));

    // A restart keeps both, and the end of the trust is kept as well.
    let (again, restarted) = serve(dir.path(), &[], &Clock::System);
    assert_eq!(again.certificate_pem(), both);
    handshake(&old, &restarted, "localhost", &[]).unwrap();
    again.retire_previous().unwrap();
    authority.reload(&Clock::System).unwrap();
    for (authority, config) in [(&again, &restarted), (&authority, &config)] {
        assert_eq!(authority.certificate_pem(), new);
        handshake(new, config, "localhost", &[]).unwrap();
        assert!(handshake(&old, config, "localhost", &[]).is_err());
    }
    assert!(!serve(dir.path(), &[], &Clock::System).0.has_previous());
}

#[test]
fn reload_keeps_the_authority_and_writes_no_file_if_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(dir.path(), AuthorityKind::Serving, &Clock::System).unwrap();
    let (file, before) = (dir.path().join("ca.pem"), authority.certificate_pem());
    let content = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    authority.reload(&Clock::System).unwrap();
    assert!(!file.exists(), "only the owner of the files creates an authority");
    assert_eq!(authority.certificate_pem(), before);

    // A clock before the start of the authority's validity.
    let early = Clock::Manual(ManualClock::new(rooflet_base::clock::at(0)));
    fs::write(&file, &content).unwrap();
    authority.reload(&early).unwrap();
    assert_eq!(fs::read(&file).unwrap(), content);
    assert_eq!(authority.certificate_pem(), before);
}

#[test]
fn client_follows_the_rotation_of_its_own_process() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, config) = serve(dir.path(), &[], &Clock::System);
    let client = || authority.client_config().unwrap();
    connect(client(), &config, "localhost").unwrap();
    authority.rotate(Clock::System.now()).unwrap();
    authority.retire_previous().unwrap();
    connect(client(), &config, "localhost").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (_, other) = serve(elsewhere.path(), &[], &Clock::System);
    assert!(connect(client(), &other, "localhost").is_err());
}

#[test]
fn user_certificates_of_both_authorities_are_valid_and_old_ones_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let authority = clients(dir.path(), &Clock::System);
    let users = UserCertificates::new(&authority, Revocations::default(), Clock::System).unwrap();
    let old = issue(&authority);
    authority.rotate(Clock::System.now()).unwrap();
    let new = issue(&authority);
    assert!(is_issued_by(
        new.certificate_pem.as_bytes(),
        &authority.certificate_pem()
    ));
    assert!(!is_issued_by(
        old.certificate_pem.as_bytes(),
        &authority.certificate_pem()
    ));
    let start = Clock::System.now();
    assert!(users.users_of_previous(start).is_empty());
    users.user(&chain(&old.certificate_pem)).unwrap();
    assert_eq!(users.users_of_previous(start), ["system:node:mini-1"]);
    assert!(users.users_of_previous(Clock::System.now() + HOUR).is_empty());
    users.user(&chain(&new.certificate_pem)).unwrap();
    assert!(users.users_of_previous(start).is_empty());
    authority.retire_previous().unwrap();
    users.user(&chain(&new.certificate_pem)).unwrap();
    let refused = users.user(&chain(&old.certificate_pem)).unwrap_err();
    assert!(matches!(refused, UserCertificateError::Invalid(_)), "{refused}");
}

/// Machines receive certificates and trust at different times.
#[test]
fn machine_that_trusts_only_the_old_authorities_accepts_new_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let open = |kind| Authority::open(dir.path(), kind, &Clock::System).unwrap();
    let (clients, nodes) = (open(AuthorityKind::Client), open(AuthorityKind::Node));
    let old = (clients.certificate_pem(), nodes.certificate_pem());
    clients.rotate(Clock::System.now()).unwrap();
    nodes.rotate(Clock::System.now()).unwrap();
    let machine = |certificate: &str, key: &str| {
        let tls = MachineTls::new(Revocations::default());
        tls.set_certificate(certificate, key).unwrap();
        tls.set_authorities(&old.0, &old.1).unwrap();
        tls
    };
    let gateway = clients
        .issue_client(&Identity::new(Role::Gateway, "g"), HOUR, Clock::System.now())
        .unwrap();
    let gateway = machine(&gateway.certificate_pem, &gateway.key_pem);
    let request = KeyRequest::serving("mini-1", &["192.0.2.7".to_owned()]).unwrap();
    let policy = SigningPolicy {
        key_usages: vec![rcgen::KeyUsagePurpose::DigitalSignature],
        extended_key_usages: vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth],
        uri: None,
        lifetime: HOUR,
    };
    let parsed = CertificateRequest::from_pem(request.request_pem.as_bytes()).unwrap();
    let certificate = nodes.sign(&parsed, &policy, Clock::System.now()).unwrap();
    let agent = machine(&certificate, &request.key_pem);
    let config = agent.server_config().unwrap();
    connect(gateway.client_config().unwrap(), &config, "mini-1").unwrap();
}

#[test]
fn file_of_an_interrupted_rotation_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, _) = serve(dir.path(), &[], &Clock::System);
    let before = fs::read(dir.path().join("ca.pem")).unwrap();
    authority.rotate(Clock::System.now()).unwrap();
    assert_eq!(mode(&dir.path().join("ca-previous.pem")), 0o600);
    fs::write(dir.path().join("ca.pem"), before).unwrap();
    let (restarted, _) = serve(dir.path(), &[], &Clock::System);
    assert!(!restarted.has_previous());
}
