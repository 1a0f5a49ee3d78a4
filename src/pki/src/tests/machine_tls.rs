use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;

/// Authorities of a fleet.
struct Fleet {
    _directory: tempfile::TempDir,
    clients: Authority,
    nodes: Authority,
}

impl Fleet {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let open = |kind| Authority::open(directory.path(), kind, &Clock::System).unwrap();
        Self {
            clients: open(AuthorityKind::Client),
            nodes: open(AuthorityKind::Node),
            _directory: directory,
        }
    }

    /// Returns the TLS of a machine that trusts the fleet and has the certificate of `identity`.
    fn machine(&self, identity: &Identity, purpose: Purpose) -> Arc<MachineTls> {
        let request = match purpose {
            Purpose::Serving => KeyRequest::serving(&identity.name, &["192.0.2.7".to_owned()]),
            Purpose::Client(_) => KeyRequest::client(identity),
        };
        let request = request.unwrap();
        let tls = MachineTls::new(Revocations::default());
        tls.set_authorities(&self.clients.certificate_pem(), &self.nodes.certificate_pem())
            .unwrap();
        let certificate = self.sign(&request.request_pem, purpose, Clock::System.now());
        tls.set_certificate(&certificate, &request.key_pem).unwrap();
        tls
    }

    fn sign(&self, request: &str, purpose: Purpose, now: Timestamp) -> String {
        let request = CertificateRequest::from_pem(request.as_bytes()).unwrap();
        let (authority, usage, uri) = match purpose {
            Purpose::Serving => (&self.nodes, rcgen::ExtendedKeyUsagePurpose::ServerAuth, None),
            Purpose::Client(uri) => (&self.clients, rcgen::ExtendedKeyUsagePurpose::ClientAuth, uri),
        };
        let policy = SigningPolicy {
            key_usages: vec![rcgen::KeyUsagePurpose::DigitalSignature],
            extended_key_usages: vec![usage],
            uri: uri.map(str::to_owned),
            lifetime: Duration::from_secs(3600),
        };
        authority.sign(&request, &policy, now).unwrap()
    }
}

#[derive(Clone, Copy)]
enum Purpose {
    Serving,
    /// Client certificate with a URI.
    Client(Option<&'static str>),
}

fn node(name: &str) -> Identity {
    Identity::new(Role::Node, name)
}

fn gateway() -> Identity {
    Identity::new(Role::Gateway, "a")
}

fn shake(client: &Arc<MachineTls>, server: &Arc<MachineTls>, node: &str) -> Result<(), String> {
    let (client, server) = (client.client_config().unwrap(), server.server_config().unwrap());
    connect(client, &server, node)
        .map(drop)
        .map_err(|err| err.to_string())
}

#[test]
fn each_side_checks_authority_role_and_name_of_the_other() {
    let fleet = Fleet::new();
    let server = fleet.machine(&node("mini-1"), Purpose::Serving);
    let client = fleet.machine(&gateway(), Purpose::Client(None));
    shake(&client, &server, "mini-1").unwrap();
    let other_name = shake(&client, &server, "mini-2").unwrap_err();
    assert!(other_name.contains("NotValidForName"), "{other_name}");

    // A certificate of the same authority that has no role in the fleet.
    let stranger = MachineTls::new(Revocations::default());
    let subject = [(rcgen::DnType::CommonName, "alice")];
    let usage = rcgen::ExtendedKeyUsagePurpose::ClientAuth;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, text) in subject {
        params.distinguished_name.push(kind, text);
    }
    params.extended_key_usages = vec![usage];
    let certificate = params.signed_by(&key, &*fleet.clients.issuing().issuer).unwrap();
    stranger
        .set_authorities(&fleet.clients.certificate_pem(), &fleet.nodes.certificate_pem())
        .unwrap();
    stranger
        .set_certificate(&certificate.pem(), &key.serialize_pem())
        .unwrap();
    shake(&stranger, &server, "mini-1").unwrap_err();

    // Serving certificates do not authenticate clients, and client certificates serve nothing.
    shake(&server, &server, "mini-1").unwrap_err();
    let as_server = fleet.machine(&node("mini-1"), Purpose::Client(None));
    shake(&client, &as_server, "mini-1").unwrap_err();

    let elsewhere = Fleet::new();
    let foreign = elsewhere.machine(&gateway(), Purpose::Client(None));
    shake(&foreign, &server, "mini-1").unwrap_err();
    let foreign = elsewhere.machine(&node("mini-1"), Purpose::Serving);
    shake(&client, &foreign, "mini-1").unwrap_err();
}

#[test]
fn machine_without_certificate_or_authorities_is_rejected() {
    let fleet = Fleet::new();
    let server = fleet.machine(&node("mini-1"), Purpose::Serving);
    let client = fleet.machine(&gateway(), Purpose::Client(None));
    let empty = MachineTls::new(Revocations::default());
    shake(&empty, &server, "mini-1").unwrap_err();
    shake(&client, &empty, "mini-1").unwrap_err();
    // The state can be completed later.
    empty
        .set_authorities(&fleet.clients.certificate_pem(), &fleet.nodes.certificate_pem())
        .unwrap();
    let request = KeyRequest::serving("mini-1", &["192.0.2.7".to_owned()]).unwrap();
    let certificate = fleet.sign(&request.request_pem, Purpose::Serving, Clock::System.now());
    empty.set_certificate(&certificate, &request.key_pem).unwrap();
    shake(&client, &empty, "mini-1").unwrap();
}

#[test]
fn uri_must_agree_with_the_subject() {
    let fleet = Fleet::new();
    let server = fleet.machine(&node("mini-1"), Purpose::Serving);
    for (uri, is_accepted) in [
        ("spiffe://f/gateway/a", true),
        ("https://example.com/gateway/b", true),
        ("spiffe://f/gateway/b", false),
        ("spiffe://f/node/a", false),
    ] {
        let client = fleet.machine(&gateway(), Purpose::Client(Some(uri)));
        assert_eq!(shake(&client, &server, "mini-1").is_ok(), is_accepted, "{uri}");
    }
    assert_eq!(node("mini-1").uri("f"), "spiffe://f/node/mini-1");
}

#[test]
fn certificates_issued_before_a_revocation_are_rejected_by_both_sides() {
    let fleet = Fleet::new();
    let gateway = fleet.machine(&gateway(), Purpose::Client(None));
    let (server, client) = (
        fleet.machine(&node("mini-1"), Purpose::Serving),
        fleet.machine(&node("mini-2"), Purpose::Client(None)),
    );
    let revoke = |tls: &MachineTls, name: &str, after: i64| {
        let now = Clock::System.now().as_second();
        let times = BTreeMap::from([(name.to_owned(), rooflet_base::clock::at(now + after))]);
        tls.revocations().replace(times);
    };
    for (after, is_accepted) in [(60, false), (-60, true)] {
        revoke(&server, "mini-2", after);
        assert_eq!(shake(&client, &server, "mini-1").is_ok(), is_accepted, "{after}");
        revoke(&gateway, "mini-1", after);
        assert_eq!(shake(&gateway, &server, "mini-1").is_ok(), is_accepted, "{after}");
    }
    revoke(&server, "a", 60);
    shake(&gateway, &server, "mini-1").expect("a gateway with the name of a revoked node");
}

#[test]
fn certificate_issued_in_the_second_of_a_revocation_is_accepted() {
    let fleet = Fleet::new();
    let revocations = Revocations::default();
    let revoked = Timestamp::from_millisecond(1_790_000_000_700).unwrap();
    revocations.replace(BTreeMap::from([("mini-1".to_owned(), revoked)]));
    let request = KeyRequest::client(&node("mini-1")).unwrap();
    let is_refused = |issued| {
        let pem = fleet.sign(&request.request_pem, Purpose::Client(None), issued);
        revocations.contain(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
    };
    let now = revoked + Duration::from_millis(100);
    assert!(is_refused(now));
    assert!(!is_refused(revocations.time_of_issue(&node("mini-1"), now)));
    let later = revoked + Duration::from_secs(2);
    assert_eq!(revocations.time_of_issue(&node("mini-1"), later), later);
    for other in [node("mini-2"), Identity::new(Role::Gateway, "mini-1")] {
        assert_eq!(revocations.time_of_issue(&other, now), now);
    }
}
