//! Garbage collection and namespace deletion, observed by a client.

use http::Method;
use serde_json::{Value, json};

use super::definitions::until;
use super::{GIZMOS, TestServer, gizmo};

#[tokio::test]
async fn foreground_deletion_removes_dependents_first() {
    let server = TestServer::start().await;
    let owner = server.post(GIZMOS, &gizmo("owner")).await;
    let mut dependent = gizmo("dependent");
    dependent["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Gizmo",
        "name": "owner", "uid": owner.body["metadata"]["uid"], "blockOwnerDeletion": true}]);
    server.post(GIZMOS, &dependent).await;
    let mut frames = server
        .watch(&format!(
            "{GIZMOS}?watch=true&resourceVersion={}",
            owner.version()
        ))
        .await;
    assert_eq!(frames.brief().await, "ADDED dependent");
    let options = json!({"propagationPolicy": "Foreground"}).to_string();
    let json = [("content-type", "application/json")];
    let deleted = server
        .send(
            Method::DELETE,
            &format!("{GIZMOS}/owner"),
            &json,
            options.into_bytes(),
        )
        .await;
    assert_eq!(
        deleted.body["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    for expect in ["MODIFIED owner", "DELETED dependent", "DELETED owner"] {
        assert_eq!(frames.brief().await, expect);
    }
}

#[tokio::test]
async fn namespace_is_deleted_with_its_content() {
    let server = TestServer::start().await;
    let namespace = "/api/v1/namespaces/team";
    server
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}}))
        .await;
    let gizmos = "/apis/example.com/v1/namespaces/team/gizmos";
    let mut held = gizmo("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(server.post(gizmos, &held).await.code, 201);
    let map = json!({"metadata": {"name": "map"}});
    assert_eq!(
        server.post(&format!("{namespace}/configmaps"), &map).await.code,
        201
    );
    server.delete(namespace).await;
    let is_reported = |_: u16, body: &Value| {
        let conditions = body["status"]["conditions"].as_array().into_iter().flatten();
        let texts: Vec<&str> = conditions
            .filter_map(|condition| condition["message"].as_str())
            .collect();
        texts.contains(&"Some resources are remaining: gizmos.example.com has 1 resource instances")
            && texts.contains(
                &"Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
            )
    };
    until(
        &server,
        namespace,
        "the conditions report the remaining content",
        is_reported,
    )
    .await;
    assert_eq!(server.get(&format!("{namespace}/configmaps/map")).await.code, 404);
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(server.merge(&format!("{gizmos}/held"), &release).await.code, 200);
    until(&server, namespace, "deleted", |code, _| code == 404).await;
}

/// Agents renew their Leases in this namespace. Without it, no node is ready.
#[tokio::test]
async fn initial_namespace_is_recreated_after_deletion() {
    let server = TestServer::start().await;
    let namespace = "/api/v1/namespaces/kube-node-lease";
    let before = server.get(namespace).await.body["metadata"]["uid"].clone();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"metadata": {"name": "node-1"}});
    assert_eq!(server.post(leases, &lease).await.code, 201);
    assert_eq!(server.delete(namespace).await.code, 200);
    let is_another = |code: u16, body: &Value| code == 200 && body["metadata"]["uid"] != before;
    until(&server, namespace, "recreated", is_another).await;
    assert_eq!(server.get(&format!("{leases}/node-1")).await.code, 404);
    assert_eq!(server.post(leases, &lease).await.code, 201);
}
