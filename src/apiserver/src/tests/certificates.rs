//! Bootstrap tokens and user certificates: requests, approval, signing, rejection.

use serde_json::{Value, json};

use super::{GIZMOS, Options, TestServer};
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_testing::{
    CERTIFICATE_REQUESTS, CertificateRequest, create_bootstrap_token, issued_certificate, settled_request,
};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const TOKEN: &str = "abcdef.0123456789abcdef";
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

fn has_certificate(status: &Value) -> bool {
    status["certificate"].is_string()
}

fn has_failed(status: &Value) -> bool {
    status["conditions"].to_string().contains("Failed")
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
    create_bootstrap_token(&server, json!({"expiration": ends.to_string()})).await;
    assert_eq!(joining.get("/apis").await.code, 200);
    let wrong = server.as_user("abcdef.0123456789abcdeX", None);
    assert_eq!(wrong.get("/apis").await.code, 401);
    clock.advance(std::time::Duration::from_secs(3700));
    assert_eq!(joining.get("/apis").await.code, 401, "the token has expired");
    server.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await;
    create_bootstrap_token(&server, json!({})).await;
    assert_eq!(joining.get("/apis").await.code, 200);
    server.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await;
    assert_eq!(joining.get("/apis").await.code, 401, "the token was deleted");
}

#[tokio::test]
async fn approval_requires_permission_for_the_signer() {
    let server = start().await;
    let bob = CertificateRequest::new("bob", USER_CLIENT, ("team", "bob"), &[]);
    assert_eq!(server.post(CERTIFICATE_REQUESTS, &bob.object).await.code, 201);
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
        let path = format!("{CERTIFICATE_REQUESTS}/bob/{subresource}");
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
    settled_request(&server, "bob", has_certificate).await;
}

#[tokio::test]
async fn user_certificates_require_approval() {
    let server = start().await;
    let condition = |kind: &str| {
        json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "Test",
        "message": "", "lastUpdateTime": null}]}})
    };
    let alice = CertificateRequest::new("alice", USER_CLIENT, ("team", "alice"), &[]);
    assert_eq!(server.post(CERTIFICATE_REQUESTS, &alice.object).await.code, 201);
    let path = format!("{CERTIFICATE_REQUESTS}/alice");
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
    let issued = settled_request(&server, "alice", has_certificate).await;
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
    let identity = format!("{}{}", alice.key, issued_certificate(&issued));
    let user = server.as_user("", Some(&identity));
    assert_eq!(user.get("/apis").await.code, 200);
    assert!(
        user.get(GIZMOS)
            .await
            .message()
            .contains("User \"alice\" cannot list")
    );

    let root = CertificateRequest::new("root", USER_CLIENT, ("system:masters", "root"), &[]);
    let rejected = server.post(CERTIFICATE_REQUESTS, &root.object).await;
    assert_eq!(
        (rejected.code, rejected.message()),
        (
            403,
            "certificatesigningrequests.certificates.k8s.io \"root\" is forbidden: use of kubernetes.io/kube-apiserver-client \
             signer with system:masters group is not allowed"
        )
    );
    let node = CertificateRequest::new("node", USER_CLIENT, ("system:nodes", "system:node:mini"), &[]);
    assert_eq!(server.post(CERTIFICATE_REQUESTS, &node.object).await.code, 201);
    server
        .merge(
            &format!("{CERTIFICATE_REQUESTS}/node/approval"),
            &condition("Approved"),
        )
        .await;
    let failed = settled_request(&server, "node", has_failed).await;
    assert_eq!(
        failed["status"]["conditions"][1]["reason"],
        "SignerValidationFailure"
    );
    assert!(failed["status"].get("certificate").is_none());
}
