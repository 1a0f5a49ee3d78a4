//! CustomResourceDefinitions: establishment, change, deletion with all objects.

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

pub(super) async fn until(
    server: &TestServer,
    path: &str,
    description: &str,
    holds: impl Fn(u16, &Value) -> bool,
) {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            let got = server.get(path).await;
            if holds(got.code, &got.body) {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(found.await.is_ok(), "{description}");
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
async fn definition_is_served_once_established_and_deleted_with_its_objects() {
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
    let rejected = server.post(PARTS, &part("c")).await;
    assert_eq!(rejected.code, 403, "{rejected:?}");
    server
        .merge(&format!("{PARTS}/b"), &json!({"metadata": {"finalizers": null}}))
        .await;
    until(&server, PARTS, "the path is no longer served", |code, body| {
        code == 404 && body.is_string()
    })
    .await;
    assert_eq!(watch.brief().await, "DELETED b");
    assert_eq!(watch.brief().await, "END", "watches end with the definition");
    assert_eq!(
        server
            .get(&format!("{DEFINITIONS}/parts.shop.example.com"))
            .await
            .code,
        404
    );
}

#[tokio::test]
async fn changed_schema_applies_to_existing_objects() {
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
        "pruning and defaults apply on read"
    );
    let item = server.get(PARTS).await.body["items"][0].clone();
    assert_eq!(item["spec"], json!({"b": "new"}));
}

#[tokio::test]
async fn rejects_invalid_definition() {
    let server = TestServer::start().await;
    let mut body = parts();
    body["metadata"]["name"] = json!("other.shop.example.com");
    body["spec"]["scope"] = json!("Everywhere");
    let rejected = server.post(DEFINITIONS, &body).await;
    assert_eq!(rejected.code, 422);
    let fields: Vec<_> = rejected.body["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .map(|cause| &cause["field"])
        .collect();
    assert_eq!(fields, ["metadata.name", "spec.scope"]);
}

#[tokio::test]
async fn names_of_built_in_kinds_are_not_accepted() {
    let server = TestServer::start().await;
    let mut body = parts();
    body["metadata"] = json!({"name": "leases.coordination.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}});
    body["spec"]["group"] = json!("coordination.k8s.io");
    body["spec"]["names"] = json!({"plural": "leases", "kind": "Part"});
    let created = server.post(DEFINITIONS, &body).await;
    assert_eq!(created.code, 201, "{created:?}");
    let path = format!("{DEFINITIONS}/leases.coordination.k8s.io");
    until(&server, &path, "rejected", |_, body| {
        body["status"]["conditions"]
            .to_string()
            .contains("PluralConflict")
    })
    .await;
    let lease = json!({"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": 7}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let got = server.post(leases, &lease).await;
    assert_eq!(got.code, 201, "{got:?}");
    assert_eq!(server.delete(&path).await.code, 200);
    until(&server, &path, "deleted", |code, _| code == 404).await;
    assert_eq!(server.get(&format!("{leases}/x")).await.code, 200);
}

/// Returns a definition with two versions. The stored version is not served; the other version is
/// served if `served` is true.
fn hidden(served: bool) -> Value {
    let mut body = parts();
    body["spec"]["scope"] = json!("Namespaced");
    let schema = body["spec"]["versions"][0]["schema"].clone();
    body["spec"]["versions"] = json!([
        {"name": "v1", "served": served, "storage": false, "schema": schema},
        {"name": "v2", "served": false, "storage": true, "schema": schema}]);
    body
}

#[tokio::test]
async fn unserved_objects_are_deleted_with_namespace_owner_and_definition() {
    let server = TestServer::start().await;
    assert_eq!(server.post(DEFINITIONS, &hidden(true)).await.code, 201);
    let definition = format!("{DEFINITIONS}/parts.shop.example.com");
    let base = "/apis/shop.example.com/v1/namespaces";
    let default = format!("{base}/default/parts");
    until(&server, &default, "served", |code, _| code == 200).await;
    server
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
        .await;
    let lone = server.post(&format!("{base}/n/parts"), &part("lone")).await;
    assert_eq!(lone.code, 201, "{lone:?}");
    server.post(&default, &part("kept")).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = server.post(maps, &json!({"metadata": {"name": "owner"}})).await;
    let mut owned = part("owned");
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": map.body["metadata"]["uid"]}]);
    server.post(&default, &owned).await;
    let versions = |served| json!({"spec": {"versions": hidden(served)["spec"]["versions"]}});
    server.merge(&definition, &versions(false)).await;
    assert_eq!(server.get(&default).await.code, 404);

    server.delete("/api/v1/namespaces/n").await;
    until(&server, "/api/v1/namespaces/n", "deleted", |code, _| code == 404).await;
    server.delete(&format!("{maps}/owner")).await;
    // Only served objects can be read.
    server.merge(&definition, &versions(true)).await;
    until(&server, &format!("{default}/owned"), "collected", |code, _| {
        code == 404
    })
    .await;
    assert_eq!(server.get(&format!("{default}/kept")).await.code, 200);
    server
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
        .await;
    assert_eq!(
        server.get(&format!("{base}/n/parts")).await.body["items"],
        json!([])
    );

    server.merge(&definition, &versions(false)).await;
    server.delete(&definition).await;
    until(&server, &definition, "deleted", |code, _| code == 404).await;
    assert_eq!(server.post(DEFINITIONS, &hidden(true)).await.code, 201);
    until(&server, &default, "served again", |code, _| code == 200).await;
    assert_eq!(server.get(&default).await.body["items"], json!([]));
}

#[tokio::test]
async fn field_selectors_use_defaults_added_later() {
    let server = TestServer::start().await;
    let mut body = parts();
    let version = &mut body["spec"]["versions"][0];
    version["selectableFields"] = json!([{"jsonPath": ".spec.a"}]);
    server.post(DEFINITIONS, &body).await;
    until(&server, PARTS, "served", |code, _| code == 200).await;
    let mut bare = part("old");
    bare["spec"] = json!({});
    server.post(PARTS, &bare).await;
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["default"] =
        json!("late");
    let changed = server
        .merge(
            &format!("{DEFINITIONS}/parts.shop.example.com"),
            &json!({"spec": body["spec"]}),
        )
        .await;
    assert_eq!(changed.code, 200, "{changed:?}");
    let got = server.get(&format!("{PARTS}?fieldSelector=spec.a%3Dlate")).await;
    assert_eq!(got.body["items"][0]["metadata"]["name"], "old", "{got:?}");
}

#[tokio::test]
async fn stored_version_cannot_be_removed() {
    let server = TestServer::start().await;
    let schema = parts()["spec"]["versions"][0]["schema"].clone();
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let versions = |versions: Value| json!({"spec": {"versions": versions}});
    install(&server).await;
    let path = format!("{DEFINITIONS}/parts.shop.example.com");
    let both = versions(json!([version("v1", false), version("v2", true)]));
    let moved = server.merge(&path, &both).await;
    assert_eq!(
        moved.body["status"]["storedVersions"],
        json!(["v1", "v2"]),
        "{moved:?}"
    );
    let dropped = versions(json!([version("v2", true)]));
    let rejected = server.merge(&path, &dropped).await;
    assert_eq!(rejected.code, 422, "{rejected:?}");
    assert!(
        rejected
            .message()
            .contains("status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions")
    );
    let migrated = json!({"status": {"storedVersions": ["v2"]}});
    let migrated = server.merge(&format!("{path}/status"), &migrated).await;
    assert_eq!(migrated.code, 200, "{migrated:?}");
    let dropped = server.merge(&path, &dropped).await;
    assert_eq!(dropped.code, 200, "{dropped:?}");
}

/// kube-apiserver removes the status of a new object, and applies its default when it reads the object.
#[tokio::test]
async fn default_of_the_status_replaces_the_status_of_a_new_object() {
    let server = TestServer::start().await;
    let mut body = parts();
    let version = &mut body["spec"]["versions"][0];
    version["subresources"] = json!({"status": {}});
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = json!({"type": "object",
        "default": {"seen": -1}, "properties": {"seen": {"type": "integer"}, "ready": {"type": "integer", "default": 0}}});
    assert_eq!(server.post(DEFINITIONS, &body).await.code, 201);
    until(&server, PARTS, "served", |code, _| code == 200).await;
    let expected = json!({"seen": -1, "ready": 0});
    for (name, status) in [("without", Value::Null), ("with", json!({"seen": 7}))] {
        let mut new = part(name);
        new["status"] = status;
        let created = server.post(PARTS, &new).await;
        assert_eq!(created.body["status"], expected, "{created:?}");
        let path = format!("{PARTS}/{name}");
        assert_eq!(server.get(&path).await.body["status"], expected);
        let changed = server
            .merge(&path, &json!({"metadata": {"labels": {"a": "b"}}}))
            .await;
        assert_eq!(changed.body["status"], expected, "{changed:?}");
    }
}
