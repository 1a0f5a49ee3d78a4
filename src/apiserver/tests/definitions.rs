//! CustomResourceDefinitions: established, changed, removed with all their objects.

use serde_json::{Value, json};

use super::{DEADLINE, TestServer};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PARTS: &str = "/apis/shop.example.com/v1/parts";

fn parts() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "parts.shop.example.com"}, "spec": {"group": "shop.example.com", "scope": "Cluster",
        "names": {"plural": "parts", "kind": "Part"}, "versions": [{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
            "properties": {"a": {"type": "string"}}}}}}}]}})
}

fn part(name: &str) -> Value {
    json!({"apiVersion": "shop.example.com/v1", "kind": "Part", "metadata": {"name": name}, "spec": {"a": "x"}})
}

pub(super) async fn until(server: &TestServer, path: &str, what: &str, holds: impl Fn(u16, &Value) -> bool) {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            let got = server.get(path).await;
            if holds(got.code, &got.body) {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(found.await.is_ok(), "{what}");
}

async fn install(server: &TestServer) {
    let created = server.post(DEFINITIONS, &parts()).await;
    assert_eq!(created.code, 201, "{created:?}");
    assert_eq!(created.body["spec"]["names"]["listKind"], "PartList");
    assert_eq!(created.body["spec"]["conversion"]["strategy"], "None");
    assert_eq!(created.body["status"]["storedVersions"], json!(["v1"]));
    until(
        server,
        &format!("{DEFINITIONS}/parts.shop.example.com"),
        "established",
        |_, body| {
            body["status"]["conditions"]
                .to_string()
                .contains("InitialNamesAccepted")
        },
    )
    .await;
}

#[tokio::test]
async fn a_definition_is_served_once_established_and_gone_with_its_objects() {
    let server = TestServer::start().await;
    install(&server).await;
    assert_eq!(server.post(PARTS, &part("a")).await.code, 201);
    let mut held = part("b");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(PARTS, &held).await;
    let mut watch = server.watch(&format!("{PARTS}?watch=1")).await;
    assert_eq!(
        (watch.brief().await, watch.brief().await),
        ("ADDED a".to_owned(), "ADDED b".to_owned())
    );

    let deleted = server
        .delete(&format!("{DEFINITIONS}/parts.shop.example.com"))
        .await;
    assert_eq!(
        (deleted.code, &deleted.body["kind"]),
        (200, &json!("CustomResourceDefinition"))
    );
    assert_eq!(watch.brief().await, "DELETED a");
    assert_eq!(watch.brief().await, "MODIFIED b");
    let refused = server.post(PARTS, &part("c")).await;
    assert_eq!(refused.code, 403, "{refused:?}");
    server
        .merge(&format!("{PARTS}/b"), &json!({"metadata": {"finalizers": null}}))
        .await;
    until(&server, PARTS, "the path is gone", |code, body| {
        code == 404 && body.is_string()
    })
    .await;
    assert_eq!(watch.brief().await, "DELETED b");
    assert_eq!(watch.brief().await, "END", "watches of what is gone end");
    assert_eq!(
        server
            .get(&format!("{DEFINITIONS}/parts.shop.example.com"))
            .await
            .code,
        404
    );
}

#[tokio::test]
async fn a_changed_schema_rules_from_then_on_old_objects_too() {
    let server = TestServer::start().await;
    install(&server).await;
    server.post(PARTS, &part("a")).await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"b": {"type": "string", "default": "new"}}}}});
    let path = format!("{DEFINITIONS}/parts.shop.example.com");
    let versions =
        json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]);
    let changed = server
        .merge(&path, &json!({"spec": {"versions": versions}}))
        .await;
    assert_eq!(
        (changed.code, &changed.body["metadata"]["generation"]),
        (200, &json!(2)),
        "{changed:?}"
    );
    let old = server.get(&format!("{PARTS}/a")).await;
    assert_eq!(
        old.body["spec"],
        json!({"b": "new"}),
        "pruned and defaulted as it is read"
    );
    let item = server.get(PARTS).await.body["items"][0].clone();
    assert_eq!(item["spec"], json!({"b": "new"}));
}

#[tokio::test]
async fn a_broken_definition_is_refused() {
    let server = TestServer::start().await;
    let mut body = parts();
    body["metadata"]["name"] = json!("other.shop.example.com");
    body["spec"]["scope"] = json!("Everywhere");
    let refused = server.post(DEFINITIONS, &body).await;
    assert_eq!(refused.code, 422);
    let fields: Vec<_> = refused.body["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .map(|cause| &cause["field"])
        .collect();
    assert_eq!(fields, ["metadata.name", "spec.scope"]);
}
