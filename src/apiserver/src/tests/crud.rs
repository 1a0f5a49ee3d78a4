//! Writes and their errors.

use http::Method;
use serde_json::{Value, json};

use super::definitions::until;
use super::{GIZMOS, TestServer, gizmo};

#[tokio::test]
async fn object_is_created_with_defaults_read_updated_and_deleted() {
    let server = TestServer::start().await;
    let mut body = gizmo("a");
    body["status"] = json!({"phase": "Ignored"});
    body["metadata"]["uid"] = json!("mine");
    let created = server.post(GIZMOS, &body).await;
    assert_eq!(created.code, 201, "{created:?}");
    assert_eq!(
        created.body["spec"],
        json!({"image": "a", "replicas": 1, "tier": "silver"})
    );
    assert_eq!(created.body.get("status"), None);
    assert_eq!(created.body["metadata"]["generation"], 1);
    assert_ne!(created.body["metadata"]["uid"], "mine");
    let path = format!("{GIZMOS}/a");
    assert_eq!(server.get(&path).await.body, created.body);

    let noop = server.merge(&path, &json!({"spec": {"replicas": 1}})).await;
    assert_eq!(
        (noop.code, noop.version()),
        (200, created.version()),
        "a no-op keeps the resourceVersion"
    );
    let changed = server
        .merge(
            &path,
            &json!({"spec": {"replicas": 3, "tier": "gold"}, "status": {"phase": "No"}}),
        )
        .await;
    assert_eq!(changed.body["metadata"]["generation"], 2);
    assert_eq!(changed.body.get("status"), None);
    let reset = server.merge(&path, &json!({"spec": {"tier": null}})).await;
    assert_eq!(reset.body["spec"]["tier"], "silver", "null restores the default");

    let stale = server.put(&path, &created.body).await;
    assert_eq!(
        (stale.code, stale.body["reason"].as_str()),
        (409, Some("Conflict"))
    );
    assert_eq!(
        stale.message(),
        "Operation cannot be fulfilled on gizmos.example.com \"a\": the object has been modified; please apply your \
         changes to the latest version and try again"
    );
    let unversioned = server.put(&path, &gizmo("a")).await;
    assert_eq!(unversioned.code, 422);
    assert!(
        unversioned.message().contains("must be specified for an update"),
        "{unversioned:?}"
    );

    let deleted = server.delete(&path).await;
    assert_eq!((deleted.code, &deleted.body["status"]), (200, &json!("Success")));
    assert_eq!(deleted.body["details"]["uid"], created.body["metadata"]["uid"]);
    let missing = server.get(&path).await;
    assert_eq!(
        (missing.code, missing.message()),
        (404, "gizmos.example.com \"a\" not found")
    );
    assert_eq!(
        missing.body["details"],
        json!({"name": "a", "group": "example.com", "kind": "gizmos"})
    );
}

#[tokio::test]
async fn invalid_objects_are_rejected_with_causes() {
    let server = TestServer::start().await;
    let check = async |change: Value, code: u16, message: &str| {
        let mut body = gizmo("x");
        json_patch::merge(&mut body, &change);
        let got = server
            .post(&format!("{GIZMOS}?fieldValidation=Strict"), &body)
            .await;
        assert_eq!((got.code, got.message()), (code, message), "{change}");
    };
    check(
        json!({"spec": {"image": null}}),
        422,
        "Gizmo.example.com \"x\" is invalid: [spec.image: Required value, <nil>: Invalid value: null: some validation \
         rules were not checked because the object was invalid; correct the existing errors to complete validation]",
    )
    .await;
    check(
        json!({"spec": {"bogus": 1}}),
        400,
        "Gizmo in version \"v1\" cannot be handled as a Gizmo: strict decoding error: unknown field \"spec.bogus\"",
    )
    .await;
    check(
        json!({"spec": {"replicas": 11}}),
        422,
        "Gizmo.example.com \"x\" is invalid: spec: Invalid value: replicas must not exceed 10",
    )
    .await;
    check(
        json!({"apiVersion": "example.com/v2"}),
        400,
        "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)",
    )
    .await;
    check(
        json!({"metadata": {"namespace": "other"}}),
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
    )
    .await;
    let nowhere = server
        .post("/apis/example.com/v1/namespaces/nowhere/gizmos", &gizmo("x"))
        .await;
    assert_eq!(
        (nowhere.code, nowhere.message()),
        (404, "namespaces \"nowhere\" not found")
    );
    let twice = server.post(GIZMOS, &gizmo("twice")).await;
    assert_eq!(twice.code, 201);
    let twice = server.post(GIZMOS, &gizmo("twice")).await;
    assert_eq!(
        (twice.code, twice.message()),
        (409, "gizmos.example.com \"twice\" already exists")
    );
}

#[tokio::test]
async fn status_and_scale_are_separate_subresources() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    let path = format!("{GIZMOS}/a");
    let status = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 9},
        "status": {"phase": "Ready", "replicas": 2, "selector": "a=b"}});
    let got = server.merge(&format!("{path}/status"), &status).await;
    assert_eq!((got.code, &got.body["status"]["phase"]), (200, &json!("Ready")));
    assert_eq!(
        (&got.body["spec"]["replicas"], got.body["metadata"].get("labels")),
        (&json!(1), None)
    );
    assert_eq!(got.body["metadata"]["generation"], 1);

    let scale = server.get(&format!("{path}/scale")).await;
    assert_eq!(scale.body["kind"], "Scale");
    assert_eq!(scale.body["spec"], json!({"replicas": 1}));
    assert_eq!(scale.body["status"], json!({"replicas": 2, "selector": "a=b"}));
    let scaled = server
        .merge(&format!("{path}/scale"), &json!({"spec": {"replicas": 4}}))
        .await;
    assert_eq!(
        (scaled.code, &scaled.body["spec"]["replicas"]),
        (200, &json!(4)),
        "{scaled:?}"
    );
    assert_eq!(server.get(&path).await.body["metadata"]["generation"], 2);
    let negative = server
        .merge(&format!("{path}/scale"), &json!({"spec": {"replicas": -1}}))
        .await;
    assert_eq!(negative.code, 422);
    let mut body = scaled.body.clone();
    body["spec"]["replicas"] = json!(5);
    assert_eq!(server.put(&format!("{path}/scale"), &body).await.code, 200);
    assert_eq!(
        server.put(&format!("{path}/scale"), &body).await.code,
        409,
        "the resourceVersion is no longer current"
    );
}

#[tokio::test]
async fn object_is_kept_until_its_last_finalizer_is_removed() {
    let server = TestServer::start().await;
    let mut body = gizmo("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold", "mine"]);
    let created = server.post(GIZMOS, &body).await;
    assert!(
        created.warnings()[0].contains("prefer a domain-qualified finalizer name"),
        "{created:?}"
    );
    let path = format!("{GIZMOS}/a");
    let pending = server.delete(&path).await;
    assert_eq!((pending.code, &pending.body["kind"]), (200, &json!("Gizmo")));
    assert_eq!(pending.body["metadata"]["generation"], 2);
    assert_eq!(pending.body["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(
        server.delete(&path).await.body,
        pending.body,
        "a second delete changes nothing"
    );
    let exists = server.post(GIZMOS, &gizmo("a")).await;
    assert!(
        exists.message().starts_with("object is being deleted: "),
        "{exists:?}"
    );
    let added = server
        .merge(
            &path,
            &json!({"metadata": {"finalizers": ["example.com/hold", "mine", "x/y"]}}),
        )
        .await;
    assert_eq!(added.code, 422);
    assert!(added.message().contains("no new finalizers can be added"));
    // Like a controller: a test operation before the removal.
    let json_patch = &[("content-type", "application/json-patch+json")];
    let wrong = json!([{"op": "test", "path": "/metadata/finalizers/0", "value": "other"},
        {"op": "remove", "path": "/metadata/finalizers"}]);
    let got = server
        .send(Method::PATCH, &path, json_patch, wrong.to_string().into_bytes())
        .await;
    assert_eq!(
        (got.code, got.message()),
        (
            422,
            "the server rejected our request due to an error in our request"
        )
    );
    let right = json!([{"op": "test", "path": "/metadata/finalizers/0", "value": "example.com/hold"},
        {"op": "remove", "path": "/metadata/finalizers"}]);
    let got = server
        .send(Method::PATCH, &path, json_patch, right.to_string().into_bytes())
        .await;
    assert_eq!(got.code, 200);
    assert_eq!(server.get(&path).await.code, 404);
}

#[tokio::test]
async fn dry_run_changes_nothing() {
    let server = TestServer::start().await;
    let before = server.get(GIZMOS).await.version();
    let dry = server.post(&format!("{GIZMOS}?dryRun=All"), &gizmo("a")).await;
    assert_eq!(
        (dry.code, dry.body["metadata"].get("resourceVersion")),
        (201, None)
    );
    assert_eq!(server.get(GIZMOS).await.version(), before);
    let bad = server.post(&format!("{GIZMOS}?dryRun=Maybe"), &gizmo("a")).await;
    assert_eq!(bad.code, 422);
    server.post(GIZMOS, &gizmo("a")).await;
    let before = server.get(GIZMOS).await.version();
    let path = format!("{GIZMOS}/a?dryRun=All");
    assert_eq!(
        server.merge(&path, &json!({"spec": {"replicas": 2}})).await.body["spec"]["replicas"],
        2
    );
    assert_eq!(server.delete(&path).await.code, 200);
    assert_eq!(server.get(GIZMOS).await.version(), before);
}

#[tokio::test]
async fn generates_names() {
    let server = TestServer::start().await;
    let mut body = gizmo("a");
    body["metadata"] = json!({"generateName": "web-"});
    let got = server.post(GIZMOS, &body).await;
    let name = got.body["metadata"]["name"].as_str().unwrap_or_default();
    assert!(name.starts_with("web-") && name.len() == 9, "{got:?}");
}

#[tokio::test]
async fn built_in_kinds_apply_their_rules() {
    let server = TestServer::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let created = server.post(secrets, &secret).await;
    assert_eq!(created.code, 201, "{created:?}");
    assert_eq!(
        (&created.body["kind"], &created.body["type"]),
        (&json!("Secret"), &json!("Opaque"))
    );
    assert_eq!(
        (&created.body["data"]["a"], created.body.get("stringData")),
        (&json!("Yg=="), None)
    );
    let item = server.get(secrets).await.body["items"][0].clone();
    assert_eq!(
        (item.get("kind"), &item["type"]),
        (None, &json!("Opaque")),
        "list items have no type"
    );

    let maps = "/api/v1/namespaces/default/configmaps";
    server
        .post(maps, &json!({"metadata": {"name": "c"}, "data": {"a": "1"}}))
        .await;
    let replaced = server
        .put(
            &format!("{maps}/c"),
            &json!({"metadata": {"name": "c"}, "data": {"b": "2"}}),
        )
        .await;
    assert_eq!(
        (replaced.code, &replaced.body["data"]),
        (200, &json!({"b": "2"})),
        "updates without resourceVersion are accepted"
    );
    let wrong = server
        .post(maps, &json!({"metadata": {"name": "d"}, "data": {"a": 1}}))
        .await;
    assert_eq!(wrong.code, 400);
    assert!(
        wrong
            .message()
            .contains("cannot unmarshal number into Go struct field ConfigMap.data of type string")
    );

    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let created = server.put(&format!("{leases}/l"), &lease).await;
    assert_eq!(created.code, 201, "{created:?}");
    let short = json!({"spec": {"renewTime": "2026-01-01T00:00:00.5Z"}});
    assert!((400..500).contains(&server.merge(&format!("{leases}/l"), &short).await.code));

    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"kind": "Gizmo", "name": "g",
        "namespace": "default"}, "reason": "Tested", "message": "hello", "type": "Normal"});
    assert_eq!(
        server
            .post("/api/v1/namespaces/default/events", &event)
            .await
            .code,
        201
    );
    let seen = server
        .get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        .await;
    assert_eq!(
        (&seen.body["note"], &seen.body["regarding"]["name"]),
        (&json!("hello"), &json!("g"))
    );
    let selected = server
        .get("/api/v1/events?fieldSelector=involvedObject.name%3Dg,type%3DNormal")
        .await;
    assert_eq!(selected.body["items"].as_array().map(Vec::len), Some(1));

    let strategic = &[("content-type", "application/strategic-merge-patch+json")];
    let labels = br#"{"metadata":{"labels":{"a":"b"}}}"#.to_vec();
    let got = server
        .send(Method::PATCH, &format!("{maps}/c"), strategic, labels.clone())
        .await;
    assert_eq!(
        (got.code, &got.body["metadata"]["labels"]["a"]),
        (200, &json!("b"))
    );
    server.post(GIZMOS, &gizmo("a")).await;
    let got = server
        .send(Method::PATCH, &format!("{GIZMOS}/a"), strategic, labels)
        .await;
    assert_eq!(got.code, 415);
}

#[tokio::test]
async fn namespace_waits_for_its_finalizer() {
    let server = TestServer::start().await;
    let created = server
        .post(
            "/api/v1/namespaces",
            &json!({"metadata": {"name": "team"}, "spec": {"finalizers": ["example.com/hold"]}}),
        )
        .await;
    assert_eq!(
        created.body["spec"]["finalizers"],
        json!(["example.com/hold", "kubernetes"])
    );
    assert_eq!(created.body["status"]["phase"], "Active");
    assert_eq!(
        created.body["metadata"]["labels"]["kubernetes.io/metadata.name"],
        "team"
    );
    let protected = server.delete("/api/v1/namespaces/default").await;
    assert_eq!(
        (protected.code, protected.message()),
        (
            403,
            "namespaces \"default\" is forbidden: this namespace may not be deleted"
        )
    );
    let terminating = server.delete("/api/v1/namespaces/team").await;
    assert_eq!(terminating.body["status"]["phase"], "Terminating");
    let rejected = server
        .post(
            "/api/v1/namespaces/team/configmaps",
            &json!({"metadata": {"name": "c"}}),
        )
        .await;
    assert_eq!(
        (rejected.code, &rejected.body["details"]["causes"][0]["reason"]),
        (403, &json!("NamespaceTerminating"))
    );
    // The server removes only its own finalizer once the namespace is empty.
    let only_held = |_: u16, body: &Value| body["spec"]["finalizers"] == json!(["example.com/hold"]);
    until(&server, "/api/v1/namespaces/team", "emptied", only_held).await;
    let mut finalized = server.get("/api/v1/namespaces/team").await.body;
    finalized["spec"] = json!({"finalizers": []});
    assert_eq!(
        server
            .put("/api/v1/namespaces/team/finalize", &finalized)
            .await
            .code,
        200
    );
    assert_eq!(server.get("/api/v1/namespaces/team").await.code, 404);
}

#[tokio::test]
async fn deletions_support_preconditions_policies_and_selectors() {
    let server = TestServer::start().await;
    let created = server.post(GIZMOS, &gizmo("a")).await;
    let path = format!("{GIZMOS}/a");
    let json_type = &[("content-type", "application/json")];
    let with = async |options: Value| {
        server
            .send(Method::DELETE, &path, json_type, options.to_string().into_bytes())
            .await
    };
    let wrong = with(json!({"preconditions": {"uid": "other"}})).await;
    assert_eq!(
        (wrong.code, &wrong.body["details"]["kind"]),
        (409, &json!("Gizmo"))
    );
    assert!(
        wrong
            .message()
            .contains("the UID in the precondition (other) does not match the UID in record")
    );
    assert_eq!(with(json!({"propagationPolicy": "Sideways"})).await.code, 422);
    let uid = &created.body["metadata"]["uid"];
    let foreground = with(
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground",
        "preconditions": {"uid": uid}}),
    )
    .await;
    assert_eq!(
        foreground.body["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );

    for (name, color) in [("b", "red"), ("c", "blue"), ("d", "red")] {
        let mut body = gizmo(name);
        body["metadata"]["labels"] = json!({"color": color});
        server.post(GIZMOS, &body).await;
    }
    let deleted = server
        .delete(&format!("{GIZMOS}?labelSelector=color%3Dred"))
        .await;
    assert_eq!((deleted.code, &deleted.body["kind"]), (200, &json!("GizmoList")));
    assert_eq!(deleted.body["items"].as_array().map(Vec::len), Some(2));
    let left = server.get(&format!("{GIZMOS}?labelSelector=color")).await;
    assert_eq!(left.body["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn accepts_and_returns_yaml() {
    let server = TestServer::start().await;
    let yaml = "apiVersion: example.com/v1\nkind: Gizmo\nmetadata: {name: why}\nspec:\n  image: \"on\"\n  replicas: 2\n";
    let headers = &[
        ("content-type", "application/yaml"),
        ("accept", "application/yaml"),
    ];
    let got = server
        .send(Method::POST, GIZMOS, headers, yaml.as_bytes().to_vec())
        .await;
    assert_eq!(got.code, 201, "{got:?}");
    let text = got.body.as_str().expect("YAML is not JSON");
    assert!(text.contains("replicas: 2"), "{text}");
    let norway = yaml.replace("why", "y");
    let got = server
        .send(Method::POST, GIZMOS, headers, norway.into_bytes())
        .await;
    assert_eq!(got.code, 400, "an unquoted y is a boolean in YAML 1.1");
    let odd = &[("content-type", "text/plain")];
    assert_eq!(
        server
            .send(Method::POST, GIZMOS, odd, yaml.as_bytes().to_vec())
            .await
            .code,
        415
    );
    let broken = &[("content-type", "application/json")];
    let got = server
        .send(Method::POST, GIZMOS, broken, b"{\"a\":".to_vec())
        .await;
    assert!(
        got.code == 400
            && got
                .message()
                .contains("couldn't get version/kind; json parse error"),
        "{got:?}"
    );
}

/// Conflicts of writes without resourceVersion are retried instead of being returned to the client.
#[tokio::test]
async fn writes_without_resource_version_are_retried() {
    const WRITERS: usize = 16;
    const WRITES: usize = 12;
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    server.post(path, &json!({"metadata": {"name": "busy"}})).await;
    let writer = async |writer: usize| {
        for write in 0..WRITES {
            let data = json!({"data": {format!("w{writer}"): write.to_string()}});
            let got = server.merge(&format!("{path}/busy"), &data).await;
            assert_eq!(got.code, 200, "{got:?}");
        }
    };
    futures::future::join_all((0..WRITERS).map(writer)).await;
    let got = server.get(&format!("{path}/busy")).await;
    let data = got.body["data"].as_object().expect("data");
    assert!(
        data.len() == WRITERS && data.values().all(|value| value == "11"),
        "{data:?}"
    );
}

#[tokio::test]
async fn whole_numbers_are_stored_as_integers() {
    let server = TestServer::start().await;
    let json = &[("content-type", "application/json")];
    let body = gizmo("whole")
        .to_string()
        .replace(r#""image":"a""#, r#""image":"a","replicas":3.0"#);
    let got = server.send(Method::POST, GIZMOS, json, body.into_bytes()).await;
    assert_eq!(got.body["spec"]["replicas"], json!(3), "{got:?}");
    let merge = &[("content-type", "application/merge-patch+json")];
    let patch = br#"{"spec":{"replicas":1e1}}"#.to_vec();
    let got = server
        .send(Method::PATCH, &format!("{GIZMOS}/whole"), merge, patch)
        .await;
    assert_eq!(got.body["spec"]["replicas"], json!(10), "{got:?}");
}

#[tokio::test]
async fn patches_cannot_change_the_name() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    let patched = server
        .merge(&format!("{GIZMOS}/a"), &json!({"metadata": {"name": "z"}}))
        .await;
    assert_eq!(
        (patched.code, patched.message()),
        (
            400,
            "the name of the object (z) does not match the name on the URL (a)"
        )
    );
}

#[tokio::test]
async fn bodies_of_other_kinds_and_versions_are_rejected() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let check = async |body: Value, expect: &str| {
        let answer = server.post(path, &body).await;
        assert_eq!((answer.code, answer.message()), (400, expect));
    };
    check(
        json!({"apiVersion": "v1", "kind": "Odd", "metadata": {"name": "a"}}),
        "Odd in version \"v1\" cannot be handled as a ConfigMap: no kind \"Odd\" is registered for version \"v1\" in \
         scheme \"pkg/runtime/scheme.go:111\"",
    )
    .await;
    check(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
        "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown \
         conversion",
    )
    .await;
    let wrong = server.put(path, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(
        (wrong.code, wrong.message()),
        (
            405,
            "the server does not allow this method on the requested resource"
        )
    );
}
