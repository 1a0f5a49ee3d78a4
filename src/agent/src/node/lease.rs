//! Heartbeat of the node: renewal of its Lease at the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::holder::Holder;
use crate::connection::ConnectionState;
use rooflet_api::meta::{LEASE_DURATION, LEASE_NAMESPACE, lease_name};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
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

    /// Returns the node's Lease, if it exists.
    ///
    /// # Errors
    /// Returns an error if another running agent holds it.
    async fn read(&self) -> Result<Option<Lease>, ApiError> {
        let lease = lease_of(&self.client, &self.node).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let checked = spec.map_or(Ok(()), |spec| self.holder.check(spec, self.clock.now()));
        checked.map_err(|taken| ApiError::Invalid(taken.to_string()))?;
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
        let version = self.read().await?.and_then(|lease| lease.resource_version());
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
                let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
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

/// Returns the owner reference that deletes the Lease together with its node.
fn owner(node: &FleetNode) -> Option<OwnerReference> {
    node.owner_ref(&())
}
