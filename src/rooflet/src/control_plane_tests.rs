//! Tests of the controllers with the embedded API server in one process over real HTTP. The tests
//! act as the agent.

mod sleep;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::object::HasStatus;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::meta::{LEASE_NAMESPACE, REPLICA_FINALIZER, REVISION_LABEL, lease_name};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelReplicaStatus, ModelRevision};
use rooflet_apiserver::{ApiServer, ApiServerConfig};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::{ApiError, CachedKind, KubeconfigSource, connect, patch_status};
use rooflet_controller as controller;
use rooflet_controller::{ControllerConfig, SpeedHistory};
use rooflet_pki as pki;
use rooflet_pki::{Authority, AuthorityKind, Revocations, ServingCertificate, Token, UserCertificates};
use rooflet_roofline::memory::ServedModel;
use rooflet_store::Store;
use rooflet_testing::TempDir;

/// Timeout of every wait. It is long because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

struct Fixture {
    client: Client,
    kubeconfig: Utf8PathBuf,
    tasks: Tasks,
    _directory: TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl Fixture {
    async fn start() -> Self {
        // Only the first call in a process installs the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let directory = TempDir::new();
        let authority = Arc::new(
            Authority::open(directory.as_ref(), AuthorityKind::Serving, &Clock::System)
                .expect("an authority"),
        );
        let token = Token::open(directory.as_ref()).expect("a token");
        let config = rooflet_apiserver::store_config(directory.path().join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let tasks = Tasks::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let kubeconfig = directory.path().join("kubeconfig");
        pki::kubeconfig::write(
            kubeconfig.as_std_path(),
            &url,
            &authority.certificate_pem(),
            pki::kubeconfig::Credentials::Token(token.reveal()),
        )
        .expect("written");
        let certificate = ServingCertificate::issue(authority, [], Clock::System).expect("a certificate");
        let clients =
            Authority::open(directory.as_ref(), AuthorityKind::Client, &Clock::System).expect("another");
        let users =
            UserCertificates::new(&clients, Revocations::default(), Clock::System).expect("a trust anchor");
        let tls = Some(Arc::new(
            certificate.server_config(&users).expect("a configuration"),
        ));
        let config = ApiServerConfig {
            tls,
            users: Some(users),
            ..ApiServerConfig::new(token)
        };
        let server =
            ApiServer::new(config, store, Clock::System, &Registry::new()).expect("a fresh registry");
        let definitions: Vec<_> = rooflet_api::crd::all()
            .iter()
            .map(|definition| serde_json::to_value(definition).expect("serialises"))
            .collect();
        server
            .install_crds(&definitions)
            .await
            .expect("sound definitions");
        server.serve(listener, &tasks).await.expect("serves");
        let client = connect(&KubeconfigSource::File(kubeconfig.clone()), &Clock::System)
            .await
            .expect("a good kubeconfig");
        Self {
            client,
            kubeconfig,
            tasks,
            _directory: directory,
        }
    }

    fn control(&self, identity: &str) -> Tasks {
        let tasks = Tasks::new();
        let config = ControllerConfig {
            identity: identity.to_owned(),
            reserve_node_failures: 0,
            hub: HubAccess::unreachable(),
            history: SpeedHistory::default(),
            bandwidths: rooflet_controller::BandwidthHistory::default(),
            issues_certificates: false,
        };
        controller::run(
            config,
            self.client.clone(),
            Clock::System,
            &tasks,
            &Registry::new(),
        )
        .expect("a fresh registry");
        tasks
    }

    fn api<K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Registers a node like its agent.
    async fn join(&self, name: &str, gib: u32) {
        let api: Api<FleetNode> = Api::all(self.client.clone());
        let node = FleetNode::new(name, Default::default());
        api.create(&PostParams::default(), &node).await.expect("created");
        let status = json!({ "status": {
            "allocatable": { "memory": format!("{gib}Gi") },
            "models": [ServedModel::of_size(Bytes::gib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 2048)],
            "conditions": [{ "type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        }});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .expect("patched");
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let lease = json!({ "metadata": { "name": lease_name(name) }, "spec": { "holderIdentity": name } });
        let lease = serde_json::from_value(lease).expect("valid");
        leases
            .create(&PostParams::default(), &lease)
            .await
            .expect("created");
    }

    async fn deploy(&self, name: &str, spec: Value) {
        let deployment = ModelDeployment::test(name, spec);
        self.api()
            .create(&PostParams::default(), &deployment)
            .await
            .expect("created");
    }

    async fn change(&self, name: &str, spec: Value) {
        let patch = json!({ "spec": spec });
        self.api::<ModelDeployment>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("patched");
    }

    async fn list<K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>>(&self) -> Vec<K> {
        self.api::<K>()
            .list(&ListParams::default())
            .await
            .expect("listed")
            .items
    }

    /// Acts as the agents: runs bound replicas and releases deleted ones.
    async fn play_agents(&self) {
        for replica in self.list::<ModelReplica>().await {
            if replica.spec.node_name.is_none() {
                continue;
            }
            // After a write conflict, the next round retries.
            if replica.metadata.deletion_timestamp.is_some() {
                let patch = json!({ "metadata": { "finalizers": [] } });
                drop(
                    self.api::<ModelReplica>()
                        .patch(&replica.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                        .await,
                );
            } else {
                let mut status: ModelReplicaStatus = replica.status().cloned().unwrap_or_default();
                let now = Clock::System.now();
                for kind in [
                    condition_type::SCHEDULED,
                    condition_type::ADMITTED,
                    condition_type::ARTIFACTS_READY,
                    condition_type::READY,
                ] {
                    set_condition(&mut status.conditions, kind, Truth::True, "Ok", "", None, now);
                }
                drop(patch_status(&self.api(), &replica, &status).await);
            }
        }
    }

    async fn condition(&self, name: &str, kind: &str) -> String {
        let deployment = self.api::<ModelDeployment>().get(name).await.expect("there");
        let generation = deployment.metadata.generation;
        let status = deployment.status.unwrap_or_default();
        let found = status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == kind);
        found
            .filter(|found| found.observed_generation == generation)
            .map_or_else(String::new, |found| {
                format!("{} {}: {}", found.status, found.reason, found.message)
            })
    }

    /// Runs the agents until the condition starts with `start`.
    async fn until_condition(&self, name: &str, kind: &str, start: &str) {
        let mut last = String::new();
        let reached = tokio::time::timeout(DEADLINE, async {
            loop {
                self.play_agents().await;
                last = self.condition(name, kind).await;
                if last.starts_with(start) {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        });
        let outcome = reached.await;
        assert!(outcome.is_ok(), "{kind} is still: {last}");
    }
}

async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let reached = tokio::time::timeout(DEADLINE, async {
        while !check().await {
            tokio::time::sleep(POLL).await;
        }
    });
    assert!(reached.await.is_ok(), "not reached: {what}");
}

#[tokio::test]
async fn deployment_is_bound_rolled_out_scaled_and_deleted() {
    let fixture = Fixture::start().await;
    let _controller = fixture.control("one");
    fixture.deploy("guide", json!({ "replicas": 2 })).await;
    fixture
        .until_condition("guide", condition_type::ADMITTED, "False NoNodes")
        .await;
    fixture.join("a", 2).await;
    fixture.join("b", 2).await;
    fixture
        .until_condition("guide", condition_type::READY, "True AllReplicasReady")
        .await;

    let replicas = fixture.list::<ModelReplica>().await;
    let mut nodes: Vec<_> = replicas
        .iter()
        .filter_map(|replica| replica.spec.node_name.clone())
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "b"], "one on each: two do not fit on one");
    for replica in &replicas {
        assert_eq!(replica.finalizers(), [REPLICA_FINALIZER]);
        assert_eq!(replica.spec.serving.context_tokens, Some(2048));
        let revision = &replica.labels()[REVISION_LABEL];
        assert!(replica.name_any().starts_with(&format!("{revision}-")));
        let conditions = &replica.status.as_ref().expect("reported").conditions;
        assert!(
            rooflet_api::conditions::is_true(conditions, condition_type::SCHEDULED),
            "{conditions:?}"
        );
    }
    let deployment = fixture
        .api::<ModelDeployment>()
        .get("guide")
        .await
        .expect("there");
    assert_eq!(deployment.status.expect("written").ready.as_deref(), Some("2/2"));

    // A replica that does not fit is reported on replica and deployment.
    fixture.change("guide", json!({ "replicas": 3 })).await;
    let why = "False InsufficientMemory: 0/2 nodes are available: 2 ";
    fixture
        .until_condition("guide", condition_type::SCHEDULED, why)
        .await;
    fixture.change("guide", json!({ "replicas": 2 })).await;
    fixture
        .until_condition("guide", condition_type::READY, "True AllReplicasReady")
        .await;

    // In-place update: the new replica reuses the memory of the replica that it replaces.
    fixture
        .change("guide", json!({ "serving": { "contextTokens": 1024 } }))
        .await;
    fixture
        .until_condition(
            "guide",
            condition_type::PROGRESSING,
            "True RolloutComplete: revision 2",
        )
        .await;
    assert_eq!(fixture.list::<ModelRevision>().await.len(), 2);
    let contexts: Vec<_> = fixture
        .list::<ModelReplica>()
        .await
        .iter()
        .map(|replica| replica.spec.serving.context_tokens)
        .collect();
    assert_eq!(contexts, [Some(1024), Some(1024)]);

    let events: Api<Event> = fixture.api();
    until("events of each kind", || async {
        let events = events.list(&ListParams::default()).await.expect("listed").items;
        let recorded = |kind: &str, reason: &str| {
            events.iter().any(|event| {
                event.involved_object.kind.as_deref() == Some(kind)
                    && event.involved_object.uid.is_some()
                    && event.reason.as_deref() == Some(reason)
            })
        };
        recorded("ModelDeployment", "RevisionCreated")
            && recorded("ModelDeployment", "ReplicaCreated")
            && recorded("ModelDeployment", "InsufficientMemory")
            && recorded("ModelDeployment", "RolloutComplete")
            && recorded("ModelReplica", "Scheduled")
            && recorded("ModelReplica", "FailedScheduling")
    })
    .await;

    let deployments = fixture.api::<ModelDeployment>();
    deployments
        .delete("guide", &DeleteParams::default())
        .await
        .expect("deleted");
    until("nothing is left", || async {
        fixture.play_agents().await;
        fixture.list::<ModelReplica>().await.is_empty() && fixture.list::<ModelRevision>().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn wrong_authority_token_and_port_have_distinct_errors() {
    let fixture = Fixture::start().await;
    let good = std::fs::read_to_string(&fixture.kubeconfig).expect("written");
    let outcome = async |kubeconfig: String| {
        let path = fixture.kubeconfig.with_file_name("changed");
        std::fs::write(&path, kubeconfig).expect("written");
        let client = connect(&KubeconfigSource::File(path), &Clock::System)
            .await
            .expect("well formed");
        let err = client.list_api_groups().await.expect_err("it must not work");
        ApiError::from(err).to_string()
    };
    let token = good
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "))
        .expect("a token");
    let url = good
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "))
        .expect("a URL");
    let message = outcome(good.replace(token, "rooflet_wrong")).await;
    let rejected = format!("API server {url} rejected the credentials");
    assert!(
        message.starts_with(&rejected) && message.contains("join again or replace the kubeconfig"),
        "{message}"
    );

    let other = TempDir::new();
    let authority =
        Authority::open(other.as_ref(), AuthorityKind::Serving, &Clock::System).expect("another authority");
    let path = other.path().join("kubeconfig");
    let token = Token::open(other.as_ref()).expect("a token");
    pki::kubeconfig::write(
        path.as_std_path(),
        url.trim_matches(['"', '\'']),
        &authority.certificate_pem(),
        pki::kubeconfig::Credentials::Token(token.reveal()),
    )
    .expect("written");
    let message = outcome(std::fs::read_to_string(&path).expect("written")).await;
    assert!(message.contains("is not trusted"), "{message}");

    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let closed = format!("https://{}", port.local_addr().expect("bound"));
    drop(port);
    let message = outcome(good.replace(url.trim_matches(['"', '\'']), &closed)).await;
    assert!(message.contains("check that it is running"), "{message}");
}

#[tokio::test]
async fn replica_of_a_deleted_node_is_replaced() {
    let fixture = Fixture::start().await;
    let _controller = fixture.control("one");
    fixture.join("a", 8).await;
    fixture.deploy("guide", json!({})).await;
    fixture
        .until_condition("guide", condition_type::READY, "True")
        .await;
    let before = fixture.list::<ModelReplica>().await.remove(0);
    let nodes: Api<FleetNode> = Api::all(fixture.client.clone());
    nodes
        .delete("a", &DeleteParams::default())
        .await
        .expect("deleted");
    fixture.join("b", 8).await;
    until("a replica on b", || async {
        let replicas = fixture.list::<ModelReplica>().await;
        replicas.iter().all(|replica| replica.uid() != before.uid())
            && replicas
                .iter()
                .any(|replica| replica.spec.node_name.as_deref() == Some("b"))
    })
    .await;
}

#[tokio::test]
async fn second_controller_takes_over_after_the_leader_stops() {
    let fixture = Fixture::start().await;
    let one = fixture.control("one");
    let leases: Api<Lease> = Api::namespaced(fixture.client.clone(), "kube-system");
    let holder = || async {
        let lease = leases.get_opt("rooflet-controller").await.expect("asked")?;
        lease.spec?.holder_identity
    };
    until("one leads", || async { holder().await.as_deref() == Some("one") }).await;
    let _two = fixture.control("two");
    fixture.join("a", 8).await;
    fixture.deploy("guide", json!({ "replicas": 3 })).await;
    fixture
        .until_condition("guide", condition_type::READY, "True")
        .await;
    assert_eq!(
        fixture.list::<ModelReplica>().await.len(),
        3,
        "only one controller creates replicas"
    );
    assert_eq!(holder().await.as_deref(), Some("one"));
    one.cancel();
    one.join(DEADLINE).await.expect("stops cleanly");
    until("two leads", || async { holder().await.as_deref() == Some("two") }).await;
    fixture.change("guide", json!({ "replicas": 1 })).await;
    fixture
        .until_condition("guide", condition_type::READY, "True AllReplicasReady: all 1")
        .await;
}
