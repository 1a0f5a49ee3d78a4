//! Compatibility with the `kube` client library.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as FinalizerEvent, finalizer};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config, Discovery, ResourceExt as _};
use serde_json::json;

use super::{DEADLINE, TestServer, gizmo};

pub(super) fn client(server: &TestServer) -> Client {
    let mut config = Config::new(server.url.parse().expect("a URL"));
    config.auth_info.token = Some(server.token.clone().into());
    Client::try_from(config).expect("a plain configuration")
}

fn gizmo_api(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("example.com", "v1", "Gizmo");
    Api::namespaced_with(client, "default", &ApiResource::from_gvk(&kind))
}

fn object(name: &str) -> DynamicObject {
    serde_json::from_value(gizmo(name)).expect("a dynamic object")
}

#[tokio::test]
async fn watcher_lists_and_streams() {
    let server = TestServer::start().await;
    let api = gizmo_api(client(&server));
    api.create(&PostParams::default(), &object("a"))
        .await
        .expect("created");
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let mut applied = std::pin::pin!(watcher(api.clone(), config).applied_objects());
        let first = tokio::time::timeout(DEADLINE, applied.try_next())
            .await
            .expect("in time")
            .expect("no error");
        assert_eq!(first.expect("an object").name_any(), "a");
        let patch = json!({"metadata": {"annotations": {"tick": uuid::Uuid::new_v4().to_string()}}});
        api.patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("patched");
        let second = tokio::time::timeout(DEADLINE, applied.next())
            .await
            .expect("in time")
            .expect("open");
        assert_eq!(second.expect("no error").name_any(), "a");
    }
}

#[tokio::test]
async fn supports_finalizers_and_status_of_controllers() {
    let server = TestServer::start().await;
    let api = gizmo_api(client(&server));
    api.create(&PostParams::default(), &object("a"))
        .await
        .expect("created");
    let run = async || {
        let current = Arc::new(api.get("a").await.expect("exists"));
        finalizer(&api, "example.com/hold", current, |event| async move {
            match event {
                FinalizerEvent::Apply(_) | FinalizerEvent::Cleanup(_) => {
                    Ok::<_, std::io::Error>(kube::runtime::controller::Action::await_change())
                }
            }
        })
        .await
        .expect("the finalizer protocol")
    };
    run().await;
    let status = json!({"status": {"phase": "Ready"}});
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("status patched");
    api.delete("a", &DeleteParams::default())
        .await
        .expect("deletion starts");
    run().await;
    assert!(api.get_opt("a").await.expect("answered").is_none());
}

#[tokio::test]
async fn recorder_writes_events_and_repeats_as_series() {
    let server = TestServer::start().await;
    let client = client(&server);
    let recorder = Recorder::new(
        client.clone(),
        Reporter {
            controller: "rooflet-test".into(),
            instance: Some("i".into()),
        },
    );
    let about = ObjectReference {
        api_version: Some("example.com/v1".to_owned()),
        kind: Some("Gizmo".to_owned()),
        name: Some("a".to_owned()),
        namespace: Some("default".to_owned()),
        uid: Some("u".to_owned()),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Normal,
        reason: "Tested".to_owned(),
        note: Some("all is well".to_owned()),
        action: "Test".to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &about).await.expect("first");
    recorder.publish(&event, &about).await.expect("second");
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client, "default");
    let list = events
        .list(&ListParams::default().fields("involvedObject.name=a"))
        .await
        .expect("listed");
    assert_eq!(list.items.len(), 1);
    assert_eq!(
        list.items[0].series.as_ref().and_then(|series| series.count),
        Some(2)
    );
    assert_eq!(list.items[0].message.as_deref(), Some("all is well"));
}

#[tokio::test]
async fn entry_is_created_and_updated() {
    let server = TestServer::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&server), "default");
    let mut entry = maps.entry("c").await.expect("answered").or_insert(|| ConfigMap {
        data: Some([("a".to_owned(), "1".to_owned())].into()),
        ..ConfigMap::default()
    });
    entry.commit(&PostParams::default()).await.expect("created");
    entry.get_mut().data = Some([("a".to_owned(), "2".to_owned())].into());
    entry.commit(&PostParams::default()).await.expect("updated");
    let stored = maps.get("c").await.expect("exists");
    assert_eq!(stored.data.expect("data")["a"], "2");
}

#[tokio::test]
async fn discovery_finds_all_kinds_plain_and_aggregated() {
    let server = TestServer::start().await;
    let client = client(&server);
    for discovery in [
        Discovery::new(client.clone()).run().await.expect("plain"),
        Discovery::new(client.clone())
            .run_aggregated()
            .await
            .expect("aggregated"),
    ] {
        assert!(discovery.has_group("example.com") && discovery.has_group("coordination.k8s.io"));
        let kind = GroupVersionKind::gvk("example.com", "v1", "Gizmo");
        let (resource, capabilities) = discovery.resolve_gvk(&kind).expect("found");
        assert_eq!(resource.plural, "gizmos");
        assert!(capabilities.supports_operation("watch"));
    }
}

#[tokio::test]
async fn only_one_holder_acquires_a_lease() {
    let server = TestServer::start().await;
    let leases: Api<Lease> = Api::namespaced(client(&server), "kube-system");
    let mut lease = Lease {
        spec: Some(LeaseSpec {
            holder_identity: Some("one".to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime("2026-01-01T00:00:00.000001Z".parse().expect("a time"))),
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    };
    lease.metadata.name = Some("leader".to_owned());
    let first = leases
        .create(&PostParams::default(), &lease)
        .await
        .expect("created");
    let mut taken = first.clone();
    taken.spec.as_mut().expect("a spec").holder_identity = Some("two".to_owned());
    leases
        .replace("leader", &PostParams::default(), &taken)
        .await
        .expect("the first update succeeds");
    let lost = leases
        .replace("leader", &PostParams::default(), &first)
        .await
        .expect_err("too late");
    assert!(
        matches!(&lost, kube::Error::Api(status) if status.code == 409),
        "{lost}"
    );
    let held = leases.get("leader").await.expect("exists").spec.expect("a spec");
    assert_eq!(held.renew_time, lease.spec.expect("a spec").renew_time);
}
