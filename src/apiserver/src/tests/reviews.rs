//! Reviews of access, rules, users and tokens.

use http::Method;
use serde_json::{Value, json};

use super::TestServer;
use rooflet_testing::ApiResponse;

const ACCESS: &str = "/apis/authorization.k8s.io/v1";
const IDENTITY: &str = "/apis/authentication.k8s.io/v1";

async fn post_as(server: &TestServer, user: &str, path: &str, body: &Value) -> ApiResponse {
    let headers = [("Impersonate-User", user), ("content-type", "application/json")];
    let body = body.to_string().into_bytes();
    server.send(Method::POST, path, &headers, body).await
}

/// Gives alice the role `view` in the namespace `default`.
async fn start() -> TestServer {
    let server = TestServer::start().await;
    let binding = json!({"metadata": {"name": "alice"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "alice"}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let bound = server.post(path, &binding).await;
    assert_eq!(bound.code, 201, "{}", bound.body);
    server
}

fn read(namespace: &str) -> Value {
    json!({"verb": "list", "resource": "configmaps", "namespace": namespace})
}

#[tokio::test]
async fn access_reviews_equal_the_decisions_of_the_server() {
    let server = start().await;
    let own = format!("{ACCESS}/selfsubjectaccessreviews");
    for namespace in ["default", "kube-system"] {
        let review = json!({"spec": {"resourceAttributes": read(namespace)}});
        let answer = post_as(&server, "alice", &own, &review).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let headers = [("Impersonate-User", "alice")];
        let listed = server.send(Method::GET, &path, &headers, Vec::new()).await;
        assert_eq!(
            answer.body["status"]["allowed"],
            listed.code == 200,
            "{}",
            answer.body
        );
    }
    let about_alice = json!({"spec": {"user": "alice", "resourceAttributes": read("default")}});
    let others = format!("{ACCESS}/subjectaccessreviews");
    let answer = server.post(&others, &about_alice).await;
    assert_eq!(
        answer.body["status"],
        json!({"allowed": true, "reason": "RBAC: allowed by RoleBinding \"alice/default\" of ClusterRole \"view\" to \
            User \"alice\""})
    );
    assert_eq!(answer.body["kind"], "SubjectAccessReview");
    let refused = post_as(&server, "alice", &others, &about_alice).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    let local = format!("{ACCESS}/namespaces/default/localsubjectaccessreviews");
    let answer = server.post(&local, &about_alice).await;
    assert_eq!(answer.body["status"]["allowed"], true, "{}", answer.body);
    let elsewhere = json!({"spec": {"user": "alice", "resourceAttributes": read("kube-system")}});
    let refused = server.post(&local, &elsewhere).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(
        refused.message().contains("must match metadata.namespace"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn reviews_can_only_be_created() {
    let server = TestServer::start().await;
    let path = format!("{ACCESS}/selfsubjectaccessreviews");
    assert_eq!(server.get(&path).await.code, 405);
    assert_eq!(server.get(&format!("{path}/a")).await.code, 405);
    assert_eq!(server.delete(&format!("{path}/a")).await.code, 405);
    let listed = server.get(ACCESS).await.body;
    let verbs: Vec<&Value> = listed["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|resource| &resource["verbs"])
        .collect();
    assert_eq!(verbs, [&json!(["create"]); 4]);
    let hash = &listed["resources"][0]["storageVersionHash"];
    assert_eq!(hash, &Value::Null, "reviews are not stored");
    let document = server.get(&format!("/openapi/v3{ACCESS}")).await.body;
    assert!(
        document["paths"][format!("{ACCESS}/selfsubjectaccessreviews")]["post"].is_object(),
        "{document}"
    );
}

#[tokio::test]
async fn user_learns_its_identity_and_rules() {
    let server = start().await;
    let answer = post_as(
        &server,
        "alice",
        &format!("{IDENTITY}/selfsubjectreviews"),
        &json!({}),
    )
    .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(
        answer.body["status"]["userInfo"],
        json!({"username": "alice", "groups": ["system:authenticated"]})
    );
    let review = json!({"spec": {"namespace": "default"}});
    let path = format!("{ACCESS}/selfsubjectrulesreviews");
    let answer = post_as(&server, "alice", &path, &review).await;
    let status = &answer.body["status"];
    assert_eq!(status["incomplete"], false, "{status}");
    assert!(
        status["resourceRules"].to_string().contains("configmaps"),
        "{status}"
    );
    let elsewhere = json!({"spec": {"namespace": "kube-system"}});
    let answer = post_as(&server, "alice", &path, &elsewhere).await;
    let rules = answer.body["status"]["resourceRules"].to_string();
    assert!(!rules.contains("configmaps"), "{rules}");
    let missing = post_as(&server, "alice", &path, &json!({"spec": {}})).await;
    assert_eq!(
        (missing.code, missing.message()),
        (400, "no namespace on request")
    );
}

#[tokio::test]
async fn token_review_identifies_the_user_of_a_token() {
    let server = TestServer::start().await;
    let path = format!("{IDENTITY}/tokenreviews");
    let of = |spec: Value| json!({"spec": spec});
    let known = server.post(&path, &of(json!({"token": server.token}))).await;
    assert_eq!(known.code, 201, "{}", known.body);
    assert_eq!(
        known.body["status"],
        json!({"authenticated": true, "audiences": ["https://kubernetes.default.svc"], "user":
            {"username": "system:admin", "groups": ["system:masters", "system:authenticated"]}})
    );
    let unknown = server.post(&path, &of(json!({"token": "abc"}))).await;
    assert_eq!(
        unknown.body["status"],
        json!({"user": {}, "error": "invalid bearer token"})
    );
    let other = of(json!({"token": server.token, "audiences": ["vault"]}));
    let other = server.post(&path, &other).await;
    assert_eq!(other.body["status"]["authenticated"], Value::Null);
    let empty = server.post(&path, &of(json!({}))).await;
    assert_eq!(empty.code, 400, "{}", empty.body);
}
