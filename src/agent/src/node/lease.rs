//! Heartbeat of the node: renewal of its Lease at the API server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::holder::{Holder, OWNED_WITHIN};
use crate::connection::ConnectionState;
use rooflet_api::meta::{LEASE_DURATION, LEASE_NAMESPACE, OTHER_AGENT_ANNOTATION, lease_name};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_client::{ApiError, Attempts, Cache, Changes, FIELD_MANAGER};

/// Period of the node's heartbeat.
pub const LEASE_PERIOD: Duration = Duration::from_secs(10);

/// Lease of one node. Clones share everything.
#[derive(Clone)]
pub(crate) struct NodeLease {
    pub client: Client,
    pub node: String,
    pub holder: Holder,
    /// True if this agent held the Lease when it last read it.
    pub is_held: Arc<AtomicBool>,
    /// Description of another agent that uses the name, and the time when the Lease named it.
    pub other: Arc<Mutex<Option<(String, Instant)>>>,
    pub clock: Clock,
    pub cache: Cache<FleetNode>,
    pub changes: Changes,
    pub connection: ConnectionState,
}

impl NodeLease {
    /// Returns an error if another running agent holds the Lease.
    pub(crate) async fn check(&self) -> Result<(), ApiError> {
        if !self.is_held.load(Ordering::Relaxed) {
            self.read().await?;
        }
        Ok(())
    }

    /// Describes another agent that used the name of the node within the last minute.
    pub(crate) fn other_agent(&self) -> Option<String> {
        let now = self.clock.instant();
        let other = lock(&self.other);
        let recent = other.as_ref().filter(|(_, seen)| now - *seen < OWNED_WITHIN);
        recent.map(|(other, _)| other.clone())
    }

    /// Returns the node's Lease, if it exists.
    ///
    /// # Errors
    /// Returns an error if another running agent holds it.
    async fn read(&self) -> Result<Option<Lease>, ApiError> {
        let lease = lease_of(&self.client, &self.node).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        if let (Some(lease), Some(spec)) = (&lease, spec)
            && let Err(taken) = self.holder.check(spec, self.clock.now())
        {
            announce(&self.client, &self.holder, lease).await?;
            return Err(ApiError::Invalid(taken.to_string()));
        }
        Ok(lease)
    }

    /// Renews the Lease until `stop`.
    pub(crate) async fn renew(self, stop: CancellationToken) {
        let mut attempts = Attempts::new("renewing the node's Lease");
        let mut known = None;
        let mut changed_rx = self.changes.subscribe();
        loop {
            // An unregistered node has no Lease.
            while self.cache.get(None, &self.node).is_none() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = changed_rx.changed() => {}
                    () = tokio::time::sleep(LEASE_PERIOD) => {}
                }
            }
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = tokio::time::timeout(LEASE_PERIOD, self.renew_once(&mut known)) => outcome,
            };
            let outcome = outcome.unwrap_or_else(|_| {
                Err(ApiError::Unreachable(format!(
                    "no answer within {} s",
                    LEASE_PERIOD.as_secs()
                )))
            });
            let wait = match outcome {
                Ok(()) => {
                    attempts.succeeded();
                    self.connection.succeeded();
                    LEASE_PERIOD
                }
                Err(err) => {
                    attempts.failed(&err);
                    self.connection.failed(&err);
                    LEASE_PERIOD / 5
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Renews the Lease once. `known` is the resource version that this agent last wrote; it
    /// detects writes by others.
    async fn renew_once(&self, known: &mut Option<String>) -> Result<(), ApiError> {
        let Some(node) = self.cache.get(None, &self.node) else {
            return Ok(());
        };
        if let Some(version) = known.take() {
            match self.write(&node, Some(version)).await {
                Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {}
                outcome => return outcome.map(|version| *known = version),
            }
        }
        self.is_held.store(false, Ordering::Relaxed);
        let lease = self.read().await?;
        let announced = lease.as_ref().and_then(announced);
        if let Some(other) = announced.and_then(|other| self.holder.describe_other(other)) {
            *lock(&self.other) = Some((other, self.clock.instant()));
        }
        let version = lease.and_then(|lease| lease.resource_version());
        *known = self.write(&node, version).await?;
        self.is_held.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the Lease over `version`, or creates it. Returns the new resource version.
    async fn write(&self, node: &FleetNode, version: Option<String>) -> Result<Option<String>, ApiError> {
        let name = lease_name(&self.node);
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.to_string()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(self.clock.now())),
            ..LeaseSpec::default()
        };
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let written = match version {
            Some(version) => {
                let annotations = json!({ OTHER_AGENT_ANNOTATION: null });
                let metadata = json!({ "resourceVersion": version, "annotations": annotations });
                let patch = json!({ "metadata": metadata, "spec": spec });
                let params = PatchParams {
                    field_manager,
                    ..PatchParams::default()
                };
                leases.patch(&name, &params, &Patch::Merge(&patch)).await
            }
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some(LEASE_NAMESPACE.to_owned()),
                        owner_references: owner(node).map(|owner| vec![owner]),
                        ..ObjectMeta::default()
                    },
                    spec: Some(spec),
                };
                let params = PostParams {
                    field_manager,
                    ..PostParams::default()
                };
                leases.create(&params, &lease).await
            }
        };
        Ok(written?.resource_version())
    }
}

/// Returns the Lease of a node, if it exists.
pub(crate) async fn lease_of(client: &Client, node: &str) -> Result<Option<Lease>, ApiError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    Ok(leases.get_opt(&lease_name(node)).await?)
}

/// Returns the agent that a Lease names besides its holder.
fn announced(lease: &Lease) -> Option<&str> {
    let value = lease.annotations().get(OTHER_AGENT_ANNOTATION);
    value.map(String::as_str)
}

/// Names an agent in the Lease that another agent holds. The holder reports it as a condition of the node.
pub(crate) async fn announce(client: &Client, agent: &Holder, lease: &Lease) -> Result<(), ApiError> {
    if announced(lease).is_some() {
        return Ok(());
    }
    let annotations = json!({ OTHER_AGENT_ANNOTATION: agent.to_string() });
    let patch = json!({ "metadata": { "annotations": annotations } });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    leases
        .patch(&lease.name_any(), &params, &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Returns the owner reference that deletes the Lease together with its node.
fn owner(node: &FleetNode) -> Option<OwnerReference> {
    node.owner_ref(&())
}
