//! Service accounts and their tokens.

use std::time::Duration;

use serde_json::{Value, json};

use super::definitions::until;
use super::{Options, TestServer};
use rooflet_base::clock::{Clock, ManualClock};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Starts a server with the service account `robot`, which may view the namespace `default`.
async fn start(clock: &ManualClock) -> TestServer {
    let options = Options {
        has_certificates: true,
        clock: Clock::Manual(clock.clone()),
        ..Options::default()
    };
    let server = TestServer::start_with(options).await;
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(server.post(ACCOUNTS, &account).await.code, 201);
    let binding = json!({"metadata": {"name": "robot"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot"}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    assert_eq!(server.post(path, &binding).await.code, 201);
    server
}

async fn token(server: &TestServer, spec: Value) -> String {
    let issued = server
        .post(&format!("{ACCOUNTS}/robot/token"), &json!({"spec": spec}))
        .await;
    assert_eq!(issued.code, 201, "{}", issued.body);
    let token = issued.body["status"]["token"].as_str();
    token.expect("a token").to_owned()
}

fn clock() -> ManualClock {
    ManualClock::new(Clock::System.now())
}

#[tokio::test]
async fn token_authenticates_the_service_account_until_it_expires() {
    let clock = clock();
    let server = start(&clock).await;
    let robot = server.as_user(&token(&server, json!({"expirationSeconds": 600})).await, None);
    assert_eq!(robot.get(MAPS).await.code, 200);
    assert_eq!(
        robot.get("/api/v1/namespaces/kube-system/configmaps").await.code,
        403
    );
    let identity = robot.post(WHO_AM_I, &json!({})).await.body["status"]["userInfo"].clone();
    assert_eq!(identity["username"], "system:serviceaccount:default:robot");
    assert_eq!(
        identity["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    assert!(identity["uid"].is_string(), "{identity}");
    clock.advance(Duration::from_secs(700));
    assert_eq!(robot.get(MAPS).await.code, 401);
}

#[tokio::test]
async fn token_ends_with_its_account_or_its_secret() {
    let clock = clock();
    let server = start(&clock).await;
    let secret = json!({"metadata": {"name": "key"}});
    assert_eq!(server.post(SECRETS, &secret).await.code, 201);
    let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": "key"});
    let bound = server.as_user(&token(&server, json!({"boundObjectRef": reference})).await, None);
    let unbound = server.as_user(&token(&server, json!({})).await, None);
    assert_eq!(bound.get(MAPS).await.code, 200);
    assert_eq!(server.delete(&format!("{SECRETS}/key")).await.code, 200);
    assert_eq!(bound.get(MAPS).await.code, 401);
    assert_eq!(unbound.get(MAPS).await.code, 200);
    let deleted = server.delete(&format!("{ACCOUNTS}/robot")).await;
    assert_eq!(
        (deleted.code, &deleted.body["kind"]),
        (200, &json!("ServiceAccount"))
    );
    assert_eq!(unbound.get(MAPS).await.code, 401);
    let again = json!({"metadata": {"name": "robot"}});
    assert_eq!(server.post(ACCOUNTS, &again).await.code, 201);
    assert_eq!(unbound.get(MAPS).await.code, 401, "the account has another UID");
}

#[tokio::test]
async fn token_is_valid_for_its_audiences_only() {
    let server = start(&clock()).await;
    let vault = token(&server, json!({"audiences": ["vault"]})).await;
    assert_eq!(server.as_user(&vault, None).get(MAPS).await.code, 401);
    let review = async |audiences: Value| {
        let review = json!({"spec": {"token": vault, "audiences": audiences}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        server.post(path, &review).await.body["status"].clone()
    };
    let status = review(json!(["vault", "other"])).await;
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!(["vault"]))
    );
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:robot");
    let status = review(json!([])).await;
    assert_eq!(status["authenticated"], Value::Null, "{status}");
    assert!(status["error"].to_string().contains("audiences"), "{status}");
}

#[tokio::test]
async fn invalid_token_requests_are_rejected() {
    let server = start(&clock()).await;
    let path = format!("{ACCOUNTS}/robot/token");
    let check = async |request: Value, code: u16, expect: &str| {
        let rejected = server.post(&path, &request).await;
        assert_eq!(rejected.code, code, "{}", rejected.body);
        assert!(rejected.message().contains(expect), "{}", rejected.body);
    };
    check(
        json!({"spec": {"expirationSeconds": 60}}),
        422,
        "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes",
    )
    .await;
    check(
        json!({"metadata": {"name": "other"}, "spec": {}}),
        422,
        "must match the service account name if specified",
    )
    .await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "a"});
    check(
        json!({"spec": {"boundObjectRef": pod}}),
        400,
        "cannot bind token to object of type /v1, Kind=Pod",
    )
    .await;
    let gone = json!({"apiVersion": "v1", "kind": "Secret", "name": "gone"});
    check(
        json!({"spec": {"boundObjectRef": gone}}),
        404,
        "secrets \"gone\" not found",
    )
    .await;
    let missing = server
        .post(&format!("{ACCOUNTS}/missing/token"), &json!({"spec": {}}))
        .await;
    assert_eq!(missing.code, 404, "{}", missing.body);
    assert_eq!(server.get(&path).await.code, 405);
}

#[tokio::test]
async fn every_namespace_has_an_account_and_the_authority() {
    let options = Options {
        has_certificates: true,
        ..Options::default()
    };
    let server = TestServer::start_with(options).await;
    let account = |namespace: &str| format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
    let map = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
    for namespace in ["default", "kube-system"] {
        assert_eq!(server.get(&account(namespace)).await.code, 200, "{namespace}");
        assert_eq!(server.get(&map(namespace)).await.code, 200, "{namespace}");
    }
    let team = json!({"metadata": {"name": "team"}});
    assert_eq!(server.post("/api/v1/namespaces", &team).await.code, 201);
    let exists = |code: u16, _: &Value| code == 200;
    until(&server, &account("team"), "the account", exists).await;
    until(&server, &map("team"), "the authority", exists).await;
    let created = server.get(&map("team")).await.body;
    let authority = server.authority.as_ref().expect("a server with TLS");
    assert_eq!(created["data"], json!({"ca.crt": authority.certificate_pem()}));
    let owner = &created["metadata"]["managedFields"][0];
    assert_eq!(owner["manager"], "kube-controller-manager", "{created}");

    let uid = |body: &Value| body["metadata"]["uid"].clone();
    let before = uid(&server.get(&account("team")).await.body);
    assert_eq!(server.delete(&account("team")).await.code, 200);
    let is_new = |code: u16, body: &Value| code == 200 && uid(body) != before;
    until(&server, &account("team"), "another account", is_new).await;
    assert_eq!(server.delete(&map("team")).await.code, 200);
    until(&server, &map("team"), "the authority again", exists).await;
    let changed = json!({"data": {"ca.crt": "other", "more": "text"}});
    assert_eq!(server.merge(&map("team"), &changed).await.code, 200);
    let is_repaired = |_: u16, body: &Value| body["data"] == created["data"];
    until(&server, &map("team"), "the repaired authority", is_repaired).await;

    let frozen = json!({"immutable": true, "data": {"ca.crt": "other"}});
    assert_eq!(server.merge(&map("team"), &frozen).await.code, 200);
    let is_new = |code: u16, body: &Value| code == 200 && body["data"] == created["data"];
    until(&server, &map("team"), "another ConfigMap", is_new).await;

    authority.rotate(Clock::System.now()).expect("a new authority");
    let both = json!({"ca.crt": authority.certificate_pem()});
    assert_ne!(both, created["data"]);
    let is_rotated = |_: u16, body: &Value| body["data"] == both;
    until(&server, &map("team"), "both authorities", is_rotated).await;

    let namespace = "/api/v1/namespaces/team";
    assert_eq!(server.delete(namespace).await.code, 200);
    until(&server, namespace, "deleted", |code, _| code == 404).await;
}
