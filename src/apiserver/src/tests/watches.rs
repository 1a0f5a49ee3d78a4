//! Watches: order, selection, bookmarks, end.

use serde_json::json;

use super::{DEADLINE, GIZMOS, Options, TestServer, gizmo};
use rooflet_store::HistoryLimits;

#[tokio::test]
async fn watch_sends_existing_objects_then_every_change_once() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    let mut all = server.watch(&format!("{GIZMOS}?watch=1")).await;
    let version = server.get(GIZMOS).await.version();
    let mut later = server
        .watch(&format!("{GIZMOS}?watch=1&resourceVersion={version}"))
        .await;
    let path = format!("{GIZMOS}/b");
    server.post(GIZMOS, &gizmo("b")).await;
    server.merge(&path, &json!({"spec": {"replicas": 2}})).await;
    server.merge(&path, &json!({"spec": {"replicas": 2}})).await;
    server.delete(&path).await;
    assert_eq!(all.brief().await, "ADDED a");
    for watch in [&mut all, &mut later] {
        assert_eq!(watch.brief().await, "ADDED b");
        assert_eq!(watch.brief().await, "MODIFIED b");
        let deleted = watch.next().await.expect("a frame");
        assert_eq!(
            (&deleted["type"], &deleted["object"]["spec"]["replicas"]),
            (&json!("DELETED"), &json!(2))
        );
        let newest = server.get(GIZMOS).await.version();
        assert_eq!(
            deleted["object"]["metadata"]["resourceVersion"], newest,
            "the deletion has its own resourceVersion"
        );
    }
}

#[tokio::test]
async fn removing_the_last_finalizer_sends_a_deletion() {
    let server = TestServer::start().await;
    let mut body = gizmo("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(GIZMOS, &body).await;
    let mut watch = server.watch(&format!("{GIZMOS}?watch=1")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    server.delete(&format!("{GIZMOS}/a")).await;
    assert_eq!(watch.brief().await, "MODIFIED a");
    server
        .merge(&format!("{GIZMOS}/a"), &json!({"metadata": {"finalizers": null}}))
        .await;
    let deleted = watch.next().await.expect("a frame");
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(
        deleted["object"]["metadata"]["finalizers"],
        json!(["example.com/hold"]),
        "the deletion contains the last stored state"
    );
}

#[tokio::test]
async fn leaving_the_selection_sends_a_deletion() {
    let server = TestServer::start().await;
    let version = server.get(GIZMOS).await.version();
    let mut live = server
        .watch(&format!(
            "{GIZMOS}?watch=1&labelSelector=on%3Dyes&resourceVersion={version}"
        ))
        .await;
    server.post(GIZMOS, &gizmo("a")).await;
    let path = format!("{GIZMOS}/a");
    server
        .merge(&path, &json!({"metadata": {"labels": {"on": "yes"}}}))
        .await;
    let left = server
        .merge(&path, &json!({"metadata": {"labels": {"on": "no"}}}))
        .await;
    server.delete(&path).await;
    let mut replayed = server
        .watch(&format!(
            "{GIZMOS}?watch=1&labelSelector=on%3Dyes&resourceVersion={version}&timeoutSeconds=1"
        ))
        .await;
    for watch in [&mut live, &mut replayed] {
        assert_eq!(watch.brief().await, "ADDED a");
        let deleted = watch.next().await.expect("a frame");
        assert_eq!(deleted["type"], "DELETED");
        assert_eq!(
            deleted["object"]["metadata"]["labels"]["on"], "yes",
            "the deletion contains the old labels"
        );
        assert_eq!(
            deleted["object"]["metadata"]["resourceVersion"],
            left.version(),
            "the deletion has the new resourceVersion"
        );
    }
    assert_eq!(replayed.brief().await, "END");
}

/// After a restored backup, clients have resourceVersions that the server has not assigned.
#[tokio::test]
async fn watch_after_a_future_version_expires() {
    let server = TestServer::start().await;
    let mut watch = server
        .watch(&format!("{GIZMOS}?watch=1&resourceVersion=999999"))
        .await;
    let error = watch.next().await.expect("a frame");
    assert_eq!(
        (
            &error["type"],
            &error["object"]["code"],
            &error["object"]["reason"]
        ),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    let message = error["object"]["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("too large resource version: 999999, current: "),
        "{message}"
    );
    assert_eq!(watch.brief().await, "END");
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut watch = server.watch(&format!("{GIZMOS}?{query}")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    let bookmark = watch.next().await.expect("a frame");
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Gizmo");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(watch.brief().await, "END");
    let rejected = server
        .get(&format!("{GIZMOS}?watch=1&sendInitialEvents=true"))
        .await;
    assert_eq!(rejected.code, 422);
}

#[tokio::test]
async fn table_watch_sends_columns_once() {
    let server = TestServer::start().await;
    server.post(GIZMOS, &gizmo("a")).await;
    server.post(GIZMOS, &gizmo("b")).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut watch = server.watch_as(&format!("{GIZMOS}?watch=1"), table).await;
    let first = watch.next().await.expect("a frame");
    assert!(first["object"]["columnDefinitions"].is_array());
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    let second = watch.next().await.expect("a frame");
    assert_eq!(second["object"]["columnDefinitions"], json!(null));
}

#[tokio::test]
async fn watch_ends_at_timeout_even_in_missing_namespace() {
    let server = TestServer::start().await;
    let path = "/apis/example.com/v1/namespaces/nowhere/gizmos?watch=1&timeoutSeconds=1";
    assert_eq!(server.watch(path).await.brief().await, "END");
    let named = server.get(&format!("{GIZMOS}/a?watch=1")).await;
    assert_eq!(
        named.code, 404,
        "a request for a named object is a get, not a watch"
    );
    let bad = server
        .get(&format!("{GIZMOS}?watch=1&fieldSelector=spec.image%3Da"))
        .await;
    assert_eq!(bad.code, 400, "an HTTP error, not a frame");
}

fn short_memory() -> Options {
    Options {
        history: HistoryLimits {
            events_min: 0,
            events_max: 2,
            ..HistoryLimits::default()
        },
        ..Options::default()
    }
}

#[tokio::test]
async fn compacted_resource_version_sends_an_error_frame_and_ends() {
    let server = TestServer::start_with(short_memory()).await;
    for name in ["a", "b", "c", "d"] {
        server.post(GIZMOS, &gizmo(name)).await;
    }
    let mut watch = server.watch(&format!("{GIZMOS}?watch=1&resourceVersion=1")).await;
    let frame = watch.next().await.expect("a frame");
    assert_eq!(frame["type"], "ERROR");
    let status = &frame["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("too old resource version: 1 ("), "{message}");
    assert_eq!(watch.brief().await, "END");
}

#[tokio::test]
async fn expired_page_returns_a_token_to_continue() {
    let server = TestServer::start_with(short_memory()).await;
    for name in ["a", "b", "c"] {
        server.post(GIZMOS, &gizmo(name)).await;
    }
    let first = server.get(&format!("{GIZMOS}?limit=1")).await;
    let token = first.body["metadata"]["continue"]
        .as_str()
        .expect("more follows")
        .to_owned();
    for count in 2..8 {
        server
            .merge(&format!("{GIZMOS}/a"), &json!({"spec": {"replicas": count}}))
            .await;
    }
    let expired = server.get(&format!("{GIZMOS}?limit=5&continue={token}")).await;
    assert_eq!((expired.code, &expired.body["reason"]), (410, &json!("Expired")));
    let token = expired.body["metadata"]["continue"]
        .as_str()
        .expect("a continue token")
        .to_owned();
    let rest = server.get(&format!("{GIZMOS}?limit=5&continue={token}")).await;
    assert_eq!(rest.body["items"].as_array().map(Vec::len), Some(2), "{rest:?}");
}

#[tokio::test]
async fn stopping_ends_watches_and_connections() {
    let server = TestServer::start().await;
    let mut watch = server.watch(&format!("{GIZMOS}?watch=1")).await;
    server.tasks.cancel();
    assert_eq!(watch.brief().await, "END");
    server.tasks.join(DEADLINE).await.expect("every task ends");
}
