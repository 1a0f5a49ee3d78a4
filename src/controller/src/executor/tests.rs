//! Writes of the executor against a modelled API server with optimistic concurrency.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::binder::candidate::is_candidate;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_client::{Elector, Recorder};

/// Limit for one scenario, which needs no waiting.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The stored replica, and the writes of its agent that are still to come.
struct Stored {
    replica: Value,
    version: u64,
    /// Number of following patches that each find a write of the agent before them.
    agent_writes: usize,
    patches: usize,
}

impl Stored {
    fn set_version(&mut self) {
        self.version += 1;
        self.replica["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// Applies a merge patch of the status. A patch of another version is a conflict.
    fn patch(&mut self, patch: &Value) -> (StatusCode, Value) {
        self.patches += 1;
        if self.agent_writes > 0 {
            self.agent_writes -= 1;
            self.replica["status"]["restarts"] = json!(self.patches);
            self.set_version();
        }
        if patch["metadata"]["resourceVersion"] != self.replica["metadata"]["resourceVersion"] {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict",
                "message": "the object has been modified",
            });
            return (StatusCode::CONFLICT, status);
        }
        json_patch::merge(&mut self.replica, &json!({ "status": patch["status"] }));
        self.set_version();
        (StatusCode::OK, self.replica.clone())
    }
}

/// API server with one replica, whose watches deliver nothing.
#[derive(Clone)]
struct Server(Arc<Mutex<Stored>>);

impl Server {
    fn new(replica: &ModelReplica, agent_writes: usize) -> Self {
        let mut stored = Stored {
            replica: serde_json::to_value(replica).expect("a replica has only string keys"),
            version: 0,
            agent_writes,
            patches: 0,
        };
        stored.set_version();
        Self(Arc::new(Mutex::new(stored)))
    }

    fn patches(&self) -> usize {
        lock(&self.0).patches
    }

    fn replica(&self) -> ModelReplica {
        serde_json::from_value(lock(&self.0).replica.clone()).expect("a replica")
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
                if is_watch {
                    std::future::pending::<()>().await;
                }
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let (code, answer) = server.answer(&method, &path, &body);
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = code;
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let sent = || serde_json::from_slice(body).expect("JSON");
        let list = |items: Vec<Value>| {
            let meta = json!({ "resourceVersion": "1" });
            json!({ "kind": "List", "apiVersion": "v1", "metadata": meta, "items": items })
        };
        if path.ends_with("/leases/leader") {
            let free = json!({ "metadata": { "name": "leader", "resourceVersion": "1" } });
            return (StatusCode::OK, if *method == Method::GET { free } else { sent() });
        }
        let mut stored = lock(&self.0);
        if path.ends_with("/modelreplicas/guide-1/status") && *method == Method::PATCH {
            return stored.patch(&sent());
        }
        let answer = match path {
            path if path.ends_with("/modelreplicas/guide-1") => stored.replica.clone(),
            path if path.ends_with("/modelreplicas") => list(vec![stored.replica.clone()]),
            _ => list(Vec::new()),
        };
        (StatusCode::OK, answer)
    }
}

fn bound() -> ModelReplica {
    let mut replica = ModelReplica::test("guide-1", json!({ "nodeName": "mini" }));
    replica.metadata.uid = Some("u".to_owned());
    replica
}

/// Confirms the binding of `of` as the leader of `server`. Returns the failures.
async fn confirm(server: &Server, of: Version) -> Vec<ApiError> {
    let (client, clock, tasks) = (server.client(), Clock::System, Tasks::new());
    let recorder = Recorder::spawn(&tasks, client.clone(), clock.clone(), "test", "test");
    let elector = Elector::new(
        client.clone(),
        "default",
        "leader",
        "me".to_owned(),
        clock.clone(),
    );
    let failures = Mutex::new(None);
    let stop = CancellationToken::new();
    let leading = elector.run(stop.clone(), |leadership, _| {
        let (client, clock, recorder) = (client.clone(), clock.clone(), recorder.clone());
        let (tasks, stop, failures, of) = (&tasks, &stop, &failures, of.clone());
        async move {
            let hub = HubAccess::unreachable();
            let world = World::watch(tasks, client, clock, recorder, leadership, hub, 0);
            world.synced().await;
            let snapshot = Snapshot::default();
            let node = "mini".to_owned();
            let write = PlannedWrite::from(Intent::ConfirmBinding { of, node });
            let failed = Executor::new(&world, &snapshot).run([write]).await;
            *lock(failures) = Some(failed);
            stop.cancel();
        }
    });
    tokio::time::timeout(TIMEOUT, leading)
        .await
        .expect("the scenario ends");
    tasks.cancel();
    lock(&failures).take().expect("the writes were executed")
}

#[tokio::test]
async fn confirms_binding_without_conflict_by_one_patch() {
    let server = Server::new(&bound(), 0);
    let failures = confirm(&server, Version::of(&bound())).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(server.patches(), 1);
    assert!(!is_candidate(&server.replica()));
}

#[tokio::test]
async fn repeats_conflicting_confirmation_over_the_newest_version() {
    let server = Server::new(&bound(), 1);
    let failures = confirm(&server, Version::of(&bound())).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(server.patches(), 2);
    let status = server.replica().status.expect("a status");
    assert!(is_true(&status.conditions, condition_type::SCHEDULED));
    assert_eq!(status.restarts, 1, "the agent's write stays");
}

#[tokio::test]
async fn returns_conflict_after_the_last_repetition_and_leaves_the_replica_to_the_next_pass() {
    let server = Server::new(&bound(), usize::MAX);
    let failures = confirm(&server, Version::of(&bound())).await;
    assert!(matches!(&failures[..], [ApiError::Conflict(_)]), "{failures:?}");
    assert_eq!(server.patches(), 1 + MAX_CONFIRM_RETRIES);
    assert!(is_candidate(&server.replica()), "the next pass confirms again");
}

#[tokio::test]
async fn confirms_no_binding_of_another_object_with_the_same_name() {
    let server = Server::new(&bound(), 0);
    let mut former = bound();
    former.metadata.uid = Some("former".to_owned());
    let failures = confirm(&server, Version::of(&former)).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(server.patches(), 0);
}
