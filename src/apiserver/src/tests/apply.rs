//! Server-side apply and managed fields.

use http::Method;
use serde_json::{Value, json};

use super::{GIZMOS, TestServer, gizmo};
use rooflet_testing::ApiResponse;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

impl TestServer {
    /// Applies a configuration. `path` contains the query.
    async fn apply(&self, path: &str, body: &Value) -> ApiResponse {
        let headers = [("content-type", "application/apply-patch+yaml")];
        self.send(Method::PATCH, path, &headers, body.to_string().into_bytes())
            .await
    }
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// Returns the entries of an object: manager, operation, subresource and fields.
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten();
    entries
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default();
            format!(
                "{} {}{} {}",
                text("manager"),
                text("operation"),
                text("subresource"),
                entry["fieldsV1"]
            )
        })
        .collect()
}

#[tokio::test]
async fn apply_creates_updates_and_gives_up_fields() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/m?fieldManager=one");
    let created = server.apply(&path, &map(json!({"a": "1", "b": "2"}))).await;
    assert_eq!(created.code, 201, "{created:?}");
    assert_eq!(
        managers(&created.body),
        [r#"one Apply {"f:data":{"f:a":{},"f:b":{}}}"#]
    );
    let entry = &created.body["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsType"]),
        (&json!("v1"), &json!("FieldsV1"))
    );
    assert!(entry["time"].as_str().is_some_and(|time| time.ends_with('Z')));
    assert_eq!(server.get(&format!("{MAPS}/m")).await.body, created.body);

    let again = server.apply(&path, &map(json!({"a": "1", "b": "2"}))).await;
    assert_eq!((again.code, again.version()), (200, created.version()));
    assert_eq!(
        again.body, created.body,
        "an apply without changes keeps the time"
    );

    let less = server.apply(&path, &map(json!({"a": "1"}))).await;
    assert_eq!(less.body["data"], json!({"a": "1"}));
    assert_eq!(managers(&less.body), [r#"one Apply {"f:data":{"f:a":{}}}"#]);
}

#[tokio::test]
async fn conflicts_are_reported_with_causes_and_can_be_forced() {
    let server = TestServer::start().await;
    let by = |manager: &str| format!("{MAPS}/m?fieldManager={manager}");
    server.apply(&by("one"), &map(json!({"a": "1", "b": "1"}))).await;
    let conflict = server.apply(&by("two"), &map(json!({"a": "2", "b": "1"}))).await;
    assert_eq!(
        (conflict.code, conflict.message()),
        (
            409,
            "Apply failed with 1 conflict: conflict with \"one\": .data.a"
        )
    );
    assert_eq!(
        (&conflict.body["reason"], &conflict.body["details"]),
        (
            &json!("Conflict"),
            &json!({"causes": [
                {"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.a"}]})
        )
    );
    let dry = server
        .apply(
            &format!("{}&force=true&dryRun=All", by("two")),
            &map(json!({"a": "2"})),
        )
        .await;
    assert_eq!((dry.code, &dry.body["data"]["a"]), (200, &json!("2")));
    assert_eq!(
        managers(&dry.body),
        [
            r#"one Apply {"f:data":{"f:b":{}}}"#,
            r#"two Apply {"f:data":{"f:a":{}}}"#
        ]
    );
    assert_eq!(server.get(&format!("{MAPS}/m")).await.body["data"]["a"], "1");
    let forced = server
        .apply(&format!("{}&force=true", by("two")), &map(json!({"a": "2"})))
        .await;
    assert_eq!(managers(&forced.body), managers(&dry.body));
    // An update takes the fields that it changes.
    let edited = server
        .merge(&by("editor"), &json!({"data": {"a": "3", "b": null}}))
        .await;
    assert_eq!(managers(&edited.body), [r#"editor Update {"f:data":{"f:a":{}}}"#]);
}

#[tokio::test]
async fn requests_without_apply_are_tracked_by_manager_and_subresource() {
    let server = TestServer::start().await;
    let path = format!("{GIZMOS}/a");
    let created = server
        .post(&format!("{GIZMOS}?fieldManager=maker"), &gizmo("a"))
        .await;
    assert_eq!(
        managers(&created.body),
        [r#"maker Update {"f:spec":{".":{},"f:image":{},"f:replicas":{},"f:tier":{}}}"#],
        "the creator owns the defaults"
    );
    let status = server
        .merge(
            &format!("{path}/status?fieldManager=agent"),
            &json!({"status": {"phase": "Ready"}}),
        )
        .await;
    assert_eq!(
        managers(&status.body)[0],
        r#"agent Updatestatus {"f:status":{".":{},"f:phase":{}}}"#
    );
    let scaled = server
        .merge(
            &format!("{path}/scale?fieldManager=hpa"),
            &json!({"spec": {"replicas": 3}}),
        )
        .await;
    assert_eq!(scaled.code, 200, "{scaled:?}");
    let object = server.get(&path).await.body;
    assert_eq!(
        managers(&object),
        [
            r#"hpa Updatescale {"f:spec":{"f:replicas":{}}}"#,
            r#"agent Updatestatus {"f:status":{".":{},"f:phase":{}}}"#,
            r#"maker Update {"f:spec":{".":{},"f:image":{},"f:tier":{}}}"#,
        ]
    );
    assert_eq!(object["metadata"]["managedFields"][0].get("time"), None);
    let conflict = server
        .apply(
            &format!("{path}?fieldManager=gitops"),
            &json!({"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "a"},
                "spec": {"image": "a", "replicas": 1}}),
        )
        .await;
    assert_eq!(
        conflict.message(),
        "Apply failed with 1 conflict: conflict with \"hpa\" with subresource \"scale\" using example.com/v1: \
         .spec.replicas"
    );
    let without = server
        .merge(&path, &json!({"metadata": {"labels": {"a": "b"}}}))
        .await;
    assert!(
        managers(&without.body)
            .contains(&r#"unknown Update {"f:metadata":{"f:labels":{".":{},"f:a":{}}}}"#.to_owned()),
        "{:?}",
        managers(&without.body)
    );
}

#[tokio::test]
async fn status_and_scale_are_applied_separately() {
    let server = TestServer::start().await;
    let path = format!("{GIZMOS}/a");
    let typed = |rest: Value| {
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "a"}});
        json_patch::merge(&mut object, &rest);
        object
    };
    let missing = server
        .apply(
            &format!("{path}/status?fieldManager=agent"),
            &typed(json!({"status": {"phase": "Ready"}})),
        )
        .await;
    assert_eq!(missing.code, 404, "the status of a missing object");
    let created = server
        .apply(
            &format!("{path}?fieldManager=one"),
            &typed(json!({"spec": {"image": "a"}, "status": {"phase": "Ignored"}})),
        )
        .await;
    assert_eq!(
        (created.code, &created.body["spec"], created.body.get("status")),
        (201, &json!({"image": "a", "replicas": 1, "tier": "silver"}), None)
    );
    assert_eq!(
        managers(&created.body),
        [r#"one Apply {"f:spec":{"f:image":{}}}"#]
    );
    let status = server
        .apply(
            &format!("{path}/status?fieldManager=agent"),
            &typed(json!({"spec": {"image": "b"}, "status": {"phase": "Ready"}})),
        )
        .await;
    assert_eq!(
        (
            status.code,
            &status.body["spec"]["image"],
            &status.body["status"]["phase"]
        ),
        (200, &json!("a"), &json!("Ready"))
    );
    assert_eq!(
        managers(&status.body),
        [
            r#"agent Applystatus {"f:status":{"f:phase":{}}}"#,
            r#"one Apply {"f:spec":{"f:image":{}}}"#
        ]
    );
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 4}});
    let scaled = server
        .apply(&format!("{path}/scale?fieldManager=hpa"), &scale)
        .await;
    assert_eq!(
        (scaled.code, &scaled.body["spec"]["replicas"]),
        (200, &json!(4)),
        "{scaled:?}"
    );
    let object = server.get(&path).await.body;
    assert_eq!(object["spec"]["replicas"], 4);
    assert!(
        managers(&object).contains(&r#"hpa Applyscale {"f:spec":{"f:replicas":{}}}"#.to_owned()),
        "{:?}",
        managers(&object)
    );
}

#[tokio::test]
async fn invalid_apply_requests_name_the_problem() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let check = async |query: &str, body: Value, code: u16, message: &str| {
        let got = server.apply(&format!("{path}{query}"), &body).await;
        assert_eq!((got.code, got.message()), (code, message), "{body}");
    };
    let good = map(json!({"a": "1"}));
    check(
        "",
        good.clone(),
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
    )
    .await;
    let by = "?fieldManager=one";
    check(
        by,
        map(json!({"a": 1})),
        500,
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .data.a: expected string, got \
         &value.valueUnstructured{Value:1}",
    )
    .await;
    let mut unknown = good.clone();
    unknown["bogus"] = json!(1);
    check(
        by,
        unknown,
        500,
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .bogus: field not declared in schema",
    )
    .await;
    let mut other = good.clone();
    other["kind"] = json!("Secret");
    check(by, other, 400, "invalid object type: /v1, Kind=Secret").await;
    let mut managed = good.clone();
    managed["metadata"]["managedFields"] = json!([]);
    check(by, managed, 400, "metadata.managedFields must be nil").await;
    let mut renamed = good.clone();
    renamed["metadata"]["name"] = json!("n");
    check(
        by,
        renamed,
        400,
        "the name of the object (n) does not match the name on the URL (m)",
    )
    .await;
    let mut identified = good.clone();
    identified["metadata"]["uid"] = json!("u");
    check(
        by,
        identified,
        409,
        "Operation cannot be fulfilled on configmaps \"m\": uid mismatch: the provided object specified uid u, and no \
         existing object was found",
    )
    .await;
    assert_eq!(server.get(&path).await.code, 404, "nothing was created");

    let created = server.apply(&format!("{path}{by}"), &good).await;
    let mut stale = map(json!({"a": "2"}));
    stale["metadata"]["resourceVersion"] = json!("1");
    let got = server.apply(&format!("{path}{by}"), &stale).await;
    assert_eq!(got.code, 409, "{got:?}");
    stale["metadata"]["resourceVersion"] = json!(created.version());
    assert_eq!(server.apply(&format!("{path}{by}"), &stale).await.code, 200);
    let duplicate = br#"{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: "1", a: "2"}}"#;
    let headers = [("content-type", "application/apply-patch+yaml")];
    let strict = format!("{path}{by}&fieldValidation=Strict");
    let got = server
        .send(Method::PATCH, &strict, &headers, duplicate.to_vec())
        .await;
    assert_eq!(got.code, 400, "{got:?}");
    assert!(
        got.message().starts_with("error strict decoding YAML:"),
        "{got:?}"
    );
}

#[tokio::test]
async fn clients_may_replace_or_reset_managed_fields() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let created = server
        .apply(&format!("{path}?fieldManager=one"), &map(json!({"a": "1"})))
        .await;
    // A client that sends the object back keeps the managers. One that drops them does, too.
    let mut object = created.body.clone();
    let same = server.put(&path, &object).await;
    assert_eq!(same.version(), created.version());
    object["metadata"]["managedFields"] = Value::Null;
    object["data"]["b"] = json!("2");
    let changed = server.put(&format!("{path}?fieldManager=two"), &object).await;
    assert_eq!(
        managers(&changed.body),
        [
            r#"one Apply {"f:data":{"f:a":{}}}"#,
            r#"two Update {"f:data":{"f:b":{}}}"#
        ]
    );
    // kubectl migrates from client-side apply with a JSON patch like this one.
    let json_patch = &[("content-type", "application/json-patch+json")];
    let patch = json!([
        {"op": "test", "path": "/metadata/managedFields/1/manager", "value": "two"},
        {"op": "remove", "path": "/metadata/managedFields/1"}]);
    let migrated = server
        .send(Method::PATCH, &path, json_patch, patch.to_string().into_bytes())
        .await;
    assert_eq!(migrated.code, 200, "{migrated:?}");
    assert_eq!(managers(&migrated.body), [r#"one Apply {"f:data":{"f:a":{}}}"#]);
    for reset in [json!([{}]), json!([])] {
        let cleared = server
            .merge(&path, &json!({"metadata": {"managedFields": reset}}))
            .await;
        assert_eq!(
            (cleared.code, cleared.body["metadata"].get("managedFields")),
            (200, None)
        );
        // The next writes are not tracked until an apply.
        let edited = server
            .merge(&path, &json!({"data": {"c": reset.to_string()}}))
            .await;
        assert_eq!(edited.body["metadata"].get("managedFields"), None);
        let applied = server
            .apply(&format!("{path}?fieldManager=one"), &map(json!({"a": "1"})))
            .await;
        assert_eq!(
            managers(&applied.body),
            [
                r#"one Apply {"f:data":{"f:a":{}}}"#,
                r#"before-first-apply Update {"f:data":{".":{},"f:a":{},"f:b":{},"f:c":{}}}"#
            ]
        );
    }
}

#[tokio::test]
async fn tables_metadata_and_events_contain_managed_fields_as_lists() {
    let server = TestServer::start().await;
    server
        .apply(&format!("{MAPS}/m?fieldManager=one"), &map(json!({"a": "1"})))
        .await;
    let expect = r#"one Apply {"f:data":{"f:a":{}}}"#;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let got = server
        .get_as(&format!("{MAPS}?fieldSelector=metadata.name=m"), table)
        .await;
    assert_eq!(managers(&got.body["rows"][0]["object"]), [expect]);
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let got = server.get_as(&format!("{MAPS}/m"), partial).await;
    assert_eq!(managers(&got.body), [expect]);
    let list = server.get(&format!("{MAPS}?fieldSelector=metadata.name=m")).await;
    assert_eq!(managers(&list.body["items"][0]), [expect]);
    let mut watch = server
        .watch(&format!(
            "{MAPS}?watch=1&labelSelector=!gone&fieldSelector=metadata.name=m"
        ))
        .await;
    let added = watch.next().await.expect("a frame");
    assert_eq!(managers(&added["object"]), [expect]);
    server
        .merge(
            &format!("{MAPS}/m?fieldManager=two"),
            &json!({"metadata": {"labels": {"gone": "1"}}}),
        )
        .await;
    let deselected = watch.next().await.expect("a frame");
    assert_eq!(
        (&deselected["type"], managers(&deselected["object"])),
        (&json!("DELETED"), vec![expect.to_owned()])
    );
    let deleted = server.delete(&format!("{MAPS}/m")).await;
    assert_eq!(deleted.code, 200);
}
