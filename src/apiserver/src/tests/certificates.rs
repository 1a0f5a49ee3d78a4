//! Bootstrap tokens and user certificates: requests, approval, signing, rejection.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use super::{GIZMOS, Options, TestServer};
use rooflet_base::clock::{Clock, ManualClock};

const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const TOKEN: &str = "abcdef.0123456789abcdef";
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
const USER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";

async fn start() -> TestServer {
    start_at(Clock::System).await
}

async fn start_at(clock: Clock) -> TestServer {
    let options = Options {
        has_certificates: true,
        clock,
        ..Options::default()
    };
    TestServer::start_with(options).await
}

/// Creates the bootstrap token with additional keys.
async fn make_token(server: &TestServer, more: Value) {
    let mut data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    data.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": data});
    let made = server.post(SECRETS, &secret).await;
    assert_eq!(made.code, 201, "{}", made.body);
}

/// Certificate signing request with its private key.
struct NewRequest {
    object: Value,
    key: String,
}

fn new_request(name: &str, signer: &str, subject: (&str, &str), names: &[&str]) -> NewRequest {
    let (organization, common_name) = subject;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = names
        .iter()
        .map(|name| SanType::DnsName((*name).try_into().expect("ASCII")))
        .collect();
    let key = KeyPair::generate().expect("a key");
    let pem = params.serialize_request(&key).expect("a request").pem();
    let purpose = if signer == NODE_SERVING {
        "server auth"
    } else {
        "client auth"
    };
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"request": BASE64.encode(pem.expect("PEM")), "signerName": signer,
        "usages": ["digital signature", purpose]}});
    NewRequest {
        object,
        key: key.serialize_pem(),
    }
}

/// Waits, as the administrator, until the status of the request satisfies `is_done`.
async fn settled(server: &TestServer, name: &str, is_done: fn(&Value) -> bool) -> Value {
    let mut frames = server
        .watch(&format!("{CSRS}?watch=true&fieldSelector=metadata.name={name}"))
        .await;
    loop {
        let frame = frames.next().await.expect("a frame before the watch ends");
        if is_done(&frame["object"]["status"]) {
            return frame["object"].clone();
        }
    }
}

fn has_certificate(status: &Value) -> bool {
    status["certificate"].is_string()
}

fn has_failed(status: &Value) -> bool {
    status["conditions"].to_string().contains("Failed")
}

fn certificate(csr: &Value) -> String {
    let text = csr["status"]["certificate"].as_str().expect("a certificate");
    String::from_utf8(BASE64.decode(text).expect("base64")).expect("PEM")
}

#[tokio::test]
async fn token_is_valid_while_its_secret_is() {
    let clock = ManualClock::new(Clock::System.now());
    let server = start_at(Clock::Manual(clock.clone())).await;
    let joining = server.as_user(TOKEN, None);
    assert_eq!(
        joining.get("/apis").await.code,
        401,
        "the token does not exist yet"
    );
    let ends = Clock::System.now() + std::time::Duration::from_secs(3600);
    make_token(&server, json!({"expiration": ends.to_string()})).await;
    assert_eq!(joining.get("/apis").await.code, 200);
    let wrong = server.as_user("abcdef.0123456789abcdeX", None);
    assert_eq!(wrong.get("/apis").await.code, 401);
    clock.advance(std::time::Duration::from_secs(3700));
    assert_eq!(joining.get("/apis").await.code, 401, "the token has expired");
    server.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await;
    make_token(&server, json!({})).await;
    assert_eq!(joining.get("/apis").await.code, 200);
    server.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await;
    assert_eq!(joining.get("/apis").await.code, 401, "the token was deleted");
}

#[tokio::test]
async fn approval_requires_permission_for_the_signer() {
    let server = start().await;
    let bob = new_request("bob", USER_CLIENT, ("team", "bob"), &[]);
    assert_eq!(server.post(CSRS, &bob.object).await.code, 201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rule = json!({"verbs": ["get", "update", "patch"], "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"]});
    let role = json!({"metadata": {"name": "approver"}, "rules": [rule]});
    assert_eq!(
        server.post(&format!("{rbac}/clusterroles"), &role).await.code,
        201
    );
    let bind = async |role: &str| {
        let binding = json!({"metadata": {"name": role}, "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "alice"}]});
        let bound = server
            .post(&format!("{rbac}/clusterrolebindings"), &binding)
            .await;
        assert_eq!(bound.code, 201, "{}", bound.body);
    };
    bind("approver").await;
    let change = async |subresource: &str, condition: &str| {
        let body = json!({"status": {"conditions": [{"type": condition, "status": "True", "reason": "Test",
            "message": ""}]}});
        let headers = [
            ("Impersonate-User", "alice"),
            ("content-type", "application/merge-patch+json"),
        ];
        let path = format!("{CSRS}/bob/{subresource}");
        let body = body.to_string().into_bytes();
        server.send(http::Method::PATCH, &path, &headers, body).await
    };
    for (subresource, condition, verb) in [("approval", "Approved", "approve"), ("status", "Failed", "sign")]
    {
        let refused = change(subresource, condition).await;
        let expect = format!(
            "certificatesigningrequests.certificates.k8s.io \"bob\" is forbidden: user not permitted to {verb} requests with \
             signerName \"kubernetes.io/kube-apiserver-client\""
        );
        assert_eq!((refused.code, refused.message()), (403, expect.as_str()));
    }
    bind("system:certificates.k8s.io:kube-apiserver-client-approver").await;
    assert_eq!(change("approval", "Approved").await.code, 200);
    assert_eq!(change("status", "Failed").await.code, 403);
    settled(&server, "bob", has_certificate).await;
}

#[tokio::test]
async fn user_certificates_require_approval() {
    let server = start().await;
    let condition = |kind: &str| {
        json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "Test",
        "message": "", "lastUpdateTime": null}]}})
    };
    let alice = new_request("alice", USER_CLIENT, ("team", "alice"), &[]);
    assert_eq!(server.post(CSRS, &alice.object).await.code, 201);
    let path = format!("{CSRS}/alice");
    assert_eq!(
        server.get(&path).await.body["status"],
        json!({}),
        "user requests are not approved automatically"
    );
    let ignored = server.merge(&path, &condition("Approved")).await;
    assert_eq!((ignored.code, &ignored.body["status"]), (200, &json!({})));
    let ignored = server
        .merge(&format!("{path}/status"), &condition("Approved"))
        .await;
    assert_eq!((ignored.code, &ignored.body["status"]), (200, &json!({})));
    let approved = server
        .merge(&format!("{path}/approval"), &condition("Approved"))
        .await;
    assert_eq!(approved.code, 200, "{}", approved.body);
    assert!(approved.body["status"]["conditions"][0]["lastTransitionTime"].is_string());
    let issued = settled(&server, "alice", has_certificate).await;
    let denied = server
        .merge(&format!("{path}/approval"), &condition("Denied"))
        .await;
    assert_eq!(denied.code, 422, "{}", denied.body);
    assert!(
        denied
            .message()
            .contains("updates may not remove a condition of type \"Approved\""),
        "{}",
        denied.message()
    );
    let identity = format!("{}{}", alice.key, certificate(&issued));
    let user = server.as_user("", Some(&identity));
    assert_eq!(user.get("/apis").await.code, 200);
    assert!(
        user.get(GIZMOS)
            .await
            .message()
            .contains("User \"alice\" cannot list")
    );

    let root = new_request("root", USER_CLIENT, ("system:masters", "root"), &[]);
    let rejected = server.post(CSRS, &root.object).await;
    assert_eq!(
        (rejected.code, rejected.message()),
        (
            403,
            "certificatesigningrequests.certificates.k8s.io \"root\" is forbidden: use of kubernetes.io/kube-apiserver-client \
             signer with system:masters group is not allowed"
        )
    );
    let node = new_request("node", USER_CLIENT, ("system:nodes", "system:node:mini"), &[]);
    assert_eq!(server.post(CSRS, &node.object).await.code, 201);
    server
        .merge(&format!("{CSRS}/node/approval"), &condition("Approved"))
        .await;
    let failed = settled(&server, "node", has_failed).await;
    assert_eq!(
        failed["status"]["conditions"][1]["reason"],
        "SignerValidationFailure"
    );
    assert!(failed["status"].get("certificate").is_none());
}
