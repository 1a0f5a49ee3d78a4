//! Input to the TLS ports that no client of the fleet sends: renegotiation, plain HTTP, and handshakes that do not
//! end.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, RootCertStore,
    SupportedCipherSuite,
};

use crate::harness::{Cluster, Process, eventually, network_address, not_run};
use crate::nodes::join::{join, join_line, output_text};
use crate::nodes::mutual_tls::{agent, decoded, endpoint};

/// Longer than the timeout of a handshake, and shorter than the timeout of an idle connection.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const RECORD_HEAD: usize = 5;
/// Warning `no_renegotiation` (RFC 5246, section 7.2.2).
const NO_RENEGOTIATION: [u8; 2] = [1, 100];
/// First bytes of a handshake.
const START_OF_HANDSHAKE: &[u8] = b"\x16\x03\x01";

/// Client of TLS 1.2 with the suite of which the test can encrypt records itself.
fn legacy_client(authorities: &str, identity: Option<(Vec<u8>, Vec<u8>)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots
            .add(authority.expect("a certificate"))
            .expect("an authority");
    }
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("a suite of TLS 1.2")
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            let chain = CertificateDer::pem_slice_iter(&certificates).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(&key).expect("a key");
            let config = builder.with_client_auth_cert(chain.expect("certificates"), key);
            config.expect("a key for the certificate")
        }
    };
    config.enable_secret_extraction = true;
    Arc::new(config)
}

/// TLS port, and a client that its server accepts.
struct Port {
    name: &'static str,
    address: String,
    /// Path of a GET request.
    path: &'static str,
    client: Arc<ClientConfig>,
}

impl Port {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
        stream
    }

    fn session(&self) -> ClientConnection {
        let (host, _) = self.address.rsplit_once(':').expect("a port");
        let host: IpAddr = host.parse().expect("an address");
        ClientConnection::new(Arc::clone(&self.client), ServerName::from(host)).expect("a client")
    }

    fn request(&self) -> String {
        let (path, address) = (self.path, &self.address);
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
    }

    /// Returns the text of the plain response to a plain request.
    fn plain_response(&self) -> String {
        let mut stream = self.connect();
        stream.write_all(self.request().as_bytes()).expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }

    fn handshake(&self) -> io::Result<(ClientConnection, TcpStream)> {
        let (mut session, mut stream) = (self.session(), TcpStream::connect(&self.address)?);
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok((session, stream))
    }

    /// Performs a handshake. Further records are those of the test.
    fn records(&self) -> Records {
        let (session, stream) = self
            .handshake()
            .unwrap_or_else(|err| panic!("{}: {err}", self.name));
        let Some(SupportedCipherSuite::Tls12(suite)) = session.negotiated_cipher_suite() else {
            panic!("{}: not TLS 1.2", self.name);
        };
        let secrets = session.dangerous_extract_secrets().expect("the only suite");
        let ((sent, to_server), (received, to_client)) = (secrets.tx, secrets.rx);
        let ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } = to_server else {
            panic!("{}: another suite", self.name);
        };
        let encrypter = suite.aead_alg.encrypter(key, iv.as_ref(), &[]);
        let ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } = to_client else {
            panic!("{}: another suite", self.name);
        };
        let decrypter = suite.aead_alg.decrypter(key, iv.as_ref());
        Records {
            stream,
            encrypter,
            decrypter,
            sent,
            received,
        }
    }

    /// Returns the first message of a new handshake.
    fn client_hello(&self) -> Vec<u8> {
        let mut flight = Vec::new();
        self.session().write_tls(&mut flight).expect("in memory");
        flight.split_off(RECORD_HEAD)
    }
}

/// Encrypted connection after its handshake.
struct Records {
    stream: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    /// Number of records with the keys of the handshake.
    sent: u64,
    received: u64,
}

impl Records {
    fn send(&mut self, typ: ContentType, payload: &[u8]) {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(payload),
        };
        let record = self.encrypter.encrypt(message, self.sent).expect("encrypted");
        self.sent += 1;
        self.stream.write_all(&record.encode()).expect("sent");
    }

    /// Returns type and content of the records until the server closes the connection.
    fn rest(mut self) -> Vec<(ContentType, Vec<u8>)> {
        let mut records = Vec::new();
        let mut head = [0; RECORD_HEAD];
        loop {
            match self.stream.read_exact(&mut head) {
                Ok(()) => {}
                Err(err) if matches!(err.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                    return records;
                }
                Err(err) => panic!("the connection stays open after {records:?}: {err}"),
            }
            let mut content = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
            self.stream.read_exact(&mut content).expect("a whole record");
            let version = ProtocolVersion::TLSv1_2;
            let record = InboundOpaqueMessage::new(ContentType::from(head[0]), version, &mut content);
            let plain = self.decrypter.decrypt(record, self.received);
            let plain = plain.expect("a record with the keys of the first handshake");
            self.received += 1;
            records.push((plain.typ, plain.payload.to_vec()));
        }
    }
}

/// A server ignores the first request for a new handshake, and closes the connection at the second one.
fn check_renegotiation(port: &Port) {
    let name = port.name;
    let mut once = port.records();
    once.send(ContentType::Handshake, &port.client_hello());
    once.send(ContentType::ApplicationData, port.request().as_bytes());
    let records = once.rest();
    let (typ, content) = records.first().expect("a record");
    assert_eq!(
        (*typ, content.as_slice()),
        (ContentType::Alert, &NO_RENEGOTIATION[..]),
        "{name}"
    );
    let of = |wanted: ContentType| {
        let of_type = records.iter().filter(|(typ, _)| *typ == wanted);
        of_type.map(|(_, content)| content.as_slice()).collect::<Vec<_>>()
    };
    assert!(of(ContentType::Handshake).is_empty(), "{name}: {records:?}");
    let response = of(ContentType::ApplicationData).concat();
    assert!(response.starts_with(b"HTTP/1.1 200 "), "{name}: {records:?}");

    let mut twice = port.records();
    for _ in 0..2 {
        twice.send(ContentType::Handshake, &port.client_hello());
    }
    let records = twice.rest();
    let is_alert = |(typ, _): &(ContentType, Vec<u8>)| *typ == ContentType::Alert;
    assert!(records.iter().all(is_alert), "{name}: {records:?}");
}

/// Starts a server whose gateway and web page listen at `address`. Returns it and their addresses.
fn cluster_at(address: &str) -> Option<(Cluster, [String; 2])> {
    let mut addresses = [String::new(), String::new()];
    let started = Cluster::with(&["--require-keys"], |args, log| {
        let mut args = args.to_vec();
        for (flag, moved) in ["--gateway-listen=", "--web-listen="].iter().zip(&mut addresses) {
            let arg = args
                .iter_mut()
                .find(|arg| arg.starts_with(flag))
                .expect("the flag");
            let (_, port) = arg.rsplit_once(':').expect("a port");
            *moved = format!("{address}:{port}");
            *arg = format!("{flag}{moved}");
        }
        Process::start(&args, log)
    });
    started.map(|cluster| (cluster, addresses))
}

#[test]
fn tls_ports_reject_renegotiation_plain_http_and_unfinished_handshakes() {
    let Some(address) = network_address() else {
        return not_run("an address besides loopback");
    };
    let Some((cluster, [gateway, web])) = cluster_at(&address) else {
        return;
    };
    let joined = join(&cluster, &join_line(&cluster, ""), "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let _agent = agent(&cluster, "mini-1", &address);
    let agent = endpoint(&cluster, "mini-1");
    let agent = agent.strip_prefix("https://").expect("TLS").to_owned();

    let trust = cluster
        .kubectl
        .json("configmap rooflet-fleet-trust -n kube-system");
    let trust = trust.expect("the authorities of the fleet");
    let authorities = ["server-ca.crt", "node-ca.crt"].map(|file| trust["data"][file].as_str().expect("PEM"));
    let authorities = authorities.concat();
    let node = cluster.scratch.join("mini-1").join("kubeconfig");
    let identity = ["client-certificate-data", "client-key-data"].map(|field| decoded(&node, field));
    let [certificate, key] = identity;
    let anyone = legacy_client(&authorities, None);
    let ports = [
        ("API server", cluster.address.clone(), "/readyz", &anyone),
        ("gateway", gateway, "/health", &anyone),
        ("web page", web, "/", &anyone),
        (
            "agent",
            agent,
            "/health",
            &legacy_client(&authorities, Some((certificate, key))),
        ),
    ];
    let ports = ports.map(|(name, address, path, client)| Port {
        name,
        address,
        path,
        client: Arc::clone(client),
    });

    let unfinished: Vec<_> = ports
        .iter()
        .map(|port| {
            // A new agent denies access until it has read the authorities of the fleet.
            eventually(port.name, || {
                port.handshake().map(drop).map_err(|err| err.to_string())
            });
            let mut stream = port.connect();
            stream.write_all(START_OF_HANDSHAKE).expect("sent");
            (port.name, stream)
        })
        .collect();
    for port in &ports {
        let response = port.plain_response();
        let is_refused = response.starts_with("HTTP/1.1 400 ") && response.contains("https://");
        assert!(is_refused, "{}: {response}", port.name);
        check_renegotiation(port);
    }
    for (name, mut stream) in unfinished {
        let mut received = Vec::new();
        let closed = stream.read_to_end(&mut received);
        let is_closed = match &closed {
            Ok(_) => true,
            Err(err) => err.kind() == ErrorKind::ConnectionReset,
        };
        assert!(is_closed, "{name}: {closed:?}");
        assert!(!received.starts_with(b"HTTP/"), "{name}");
    }
}
