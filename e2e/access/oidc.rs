//! Users of an external issuer of tokens (OpenID Connect).
#![expect(
    clippy::disallowed_methods,
    reason = "tokens of tests expire by the real clock"
)]

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _, SigningKey as _};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, Scratch, eventually};

/// Small issuer with one key at a time.
struct Issuer {
    url: String,
    /// Certificate of the issuer, in PEM.
    certificate: String,
    keys: Arc<Mutex<Value>>,
    _runtime: tokio::runtime::Runtime,
}

impl Issuer {
    fn start() -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.self_signed(&key).expect("a certificate");
        let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .expect("a usable certificate");
        let keys = Arc::new(Mutex::new(json!({"keys": []})));
        let discovery = json!({"issuer": url, "jwks_uri": format!("{url}/keys")});
        let served = Arc::clone(&keys);
        let router = Router::new()
            .route(
                "/.well-known/openid-configuration",
                get(move || async move { Json(discovery) }),
            )
            .route(
                "/keys",
                get(move || async move { Json(served.lock().expect("no panic").clone()) }),
            );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            rooflet_http_server::serve_tls(listener, Arc::new(config), router, CancellationToken::new())
                .await;
        });
        Self {
            url,
            certificate: certificate.pem(),
            keys,
            _runtime: runtime,
        }
    }

    /// Replaces the published keys by a new one.
    fn rotate(&self, id: &str) -> TokenKey {
        let key = KeyPair::generate().expect("a key");
        // An uncompressed point: a prefix, then both coordinates.
        let point = key.der_bytes().to_vec();
        let coordinate = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let published = json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id,
            "x": coordinate(&point[1..33]), "y": coordinate(&point[33..65]),
        });
        *self.keys.lock().expect("no panic") = json!({ "keys": [published] });
        TokenKey {
            id: id.to_owned(),
            key,
        }
    }

    /// Returns the claims of a valid token of alice.
    fn claims(&self) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        json!({
            "iss": self.url, "aud": ["rooflet"], "sub": "alice", "groups": ["ops"],
            "exp": now.as_secs() + 600, "iat": now.as_secs(),
        })
    }
}

struct TokenKey {
    id: String,
    key: KeyPair,
}

impl TokenKey {
    fn sign(&self, claims: &Value) -> String {
        signed_token(
            &self.key,
            &json!({"alg": "ES256", "kid": self.id, "typ": "JWT"}),
            claims,
        )
    }
}

/// Returns a token of a P-256 key.
pub(crate) fn signed_token(key: &KeyPair, header: &Value, claims: &Value) -> String {
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let signature = key.sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(fixed_length(&signature)))
}

/// Converts a signature from DER (a sequence of two integers) to the form of tokens: two numbers of 32 bytes.
fn fixed_length(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut fixed = Vec::new();
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number = &rest[2..2 + length];
        let start = number.len().saturating_sub(32);
        fixed.extend(std::iter::repeat_n(0, 32_usize.saturating_sub(number.len())));
        fixed.extend_from_slice(&number[start..]);
        rest = &rest[2 + length..];
    }
    fixed
}

fn configuration(issuer: &Issuer) -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {
                "url": issuer.url, "audiences": ["rooflet"], "certificateAuthority": issuer.certificate,
            },
            "claimMappings": {
                "username": {"claim": "sub", "prefix": "sso:"}, "groups": {"claim": "groups", "prefix": "sso:"},
            },
        }],
    })
    .to_string()
}

#[test]
fn users_of_an_issuer_have_the_permissions_of_their_groups() {
    let issuer = Issuer::start();
    let key = issuer.rotate("first");
    let scratch = Scratch::new();
    let file = scratch.write("authentication.yaml", &configuration(&issuer));
    let flag = format!("--authentication-config={}", file.display());
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver,controller", &flag]) else {
        return;
    };
    let token = key.sign(&issuer.claims());
    let whoami = |token: &str| cluster.kubectl.run(&format!("auth whoami --token={token}"));
    let printed = eventually("the keys of the issuer", || match whoami(&token) {
        found if found.success => Ok(found.stdout),
        found => Err(found.stderr),
    });
    assert!(
        printed.contains("sso:alice") && printed.contains("sso:ops"),
        "{printed}"
    );

    // RBAC decides by the mapped groups.
    let get = |token: &str| cluster.kubectl.run(&format!("get mdep --token={token}"));
    let denied = get(&token).expect_failure();
    assert!(
        denied.contains("orbidden") && denied.contains("sso:alice"),
        "{denied}"
    );
    cluster
        .kubectl
        .run("create clusterrolebinding ops --clusterrole=view --group=sso:ops")
        .ok();
    eventually("the permission", || match get(&token) {
        found if found.success => Ok(()),
        found => Err(found.stderr),
    });

    // Tokens for others, of other times and of other keys are rejected.
    let changed = |claim: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[claim] = value;
        key.sign(&claims)
    };
    let forged = TokenKey {
        id: "first".to_owned(),
        key: KeyPair::generate().expect("a key"),
    };
    for (what, token) in [
        ("audience", changed("aud", json!("other"))),
        ("expiry", changed("exp", json!(1_000_000_000))),
        ("issuer", changed("iss", json!("https://127.0.0.1:1"))),
        ("group", changed("groups", json!(["ops", 1]))),
        ("signature", forged.sign(&issuer.claims())),
    ] {
        let refused = get(&token).expect_failure();
        assert!(
            refused.contains("nauthorized") || refused.contains("must be logged in"),
            "{what}: {refused}"
        );
    }

    // A new key of the issuer is fetched when a token needs it, and the old one is not valid afterwards.
    let second = issuer.rotate("second");
    let renewed = second.sign(&issuer.claims());
    eventually("the new key", || match get(&renewed) {
        found if found.success => Ok(()),
        found => Err(found.stderr),
    });
    get(&token).expect_failure();

    // A configuration that is not supported prevents the start, with the field in the error.
    cluster.stop();
    scratch.write(
        "authentication.yaml",
        &configuration(&issuer).replace("https:", "http:"),
    );
    let error = cluster.fails_to_start();
    assert!(error.contains("jwt[0].issuer.url"), "{error}");
}
