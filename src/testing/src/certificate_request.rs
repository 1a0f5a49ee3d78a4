use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::ApiClient;

/// Path of the certificate signing requests.
pub const CERTIFICATE_REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// CertificateSigningRequest with its private key.
pub struct CertificateRequest {
    /// The object.
    pub object: Value,
    /// Private key in PEM.
    pub key: String,
}

impl CertificateRequest {
    /// Creates a request to `signer` for the subject (organisation, common name) and DNS names. The request
    /// is for a server certificate if the signer is the one of node servers, else for a client certificate.
    pub fn new(name: &str, signer: &str, subject: (&str, &str), dns_names: &[&str]) -> Self {
        let (organization, common_name) = subject;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = dns_names
            .iter()
            .map(|name| SanType::DnsName((*name).try_into().expect("ASCII")))
            .collect();
        let key = KeyPair::generate().expect("a key");
        let pem = params.serialize_request(&key).expect("a request").pem();
        let purpose = match signer {
            "kubernetes.io/kubelet-serving" => "server auth",
            _ => "client auth",
        };
        let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name}, "spec": {"request": BASE64.encode(pem.expect("PEM")),
            "signerName": signer, "usages": ["digital signature", purpose]}});
        let key = key.serialize_pem();
        Self { object, key }
    }
}

/// Returns the certificate of a signed CertificateSigningRequest in PEM. Panics if there is none.
pub fn issued_certificate(request: &Value) -> String {
    let text = request["status"]["certificate"].as_str();
    let pem = BASE64.decode(text.expect("a certificate")).expect("base64");
    String::from_utf8(pem).expect("PEM")
}

/// Waits until the status of a CertificateSigningRequest satisfies `is_done`, and returns the object.
/// Panics if the watch ends before.
pub async fn settled_request(admin: &ApiClient, name: &str, is_done: fn(&Value) -> bool) -> Value {
    let selector = format!("{CERTIFICATE_REQUESTS}?watch=true&fieldSelector=metadata.name={name}");
    let mut frames = admin.watch(&selector).await;
    loop {
        let frame = frames.next().await.expect("a frame before the watch ends");
        if is_done(&frame["object"]["status"]) {
            return frame["object"].clone();
        }
    }
}

/// Creates the Secret of the bootstrap token `abcdef.0123456789abcdef` with additional keys.
pub async fn create_bootstrap_token(admin: &ApiClient, more: Value) {
    let mut data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    data.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": data});
    let made = admin
        .post("/api/v1/namespaces/kube-system/secrets", &secret)
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
}
