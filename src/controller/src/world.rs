//! Local caches of the kinds that the reconcilers read, and writes to the API server.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PatchParams, PostParams, Preconditions};
use kube::core::object::HasStatus;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use tokio::sync::Mutex;

use super::hub::Hub;
use super::intent::Version;
use super::shared::SharedIndex;
use rooflet_api::meta::{GATEWAY_LEASE_PREFIX, LEASE_NAMESPACE};
use rooflet_api::v1alpha1::{
    CapacityPlan, FleetNode, ModelDeployment, ModelReplica, ModelRevision, PerformanceClaim,
};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_client::{
    ApiError, Cache, CachedKind, Changes, FIELD_MANAGER, Leadership, Recorder, patch_status, watch,
    watch_heeding,
};

/// Timeout of a list request.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns true for the Lease of a gateway.
///
/// Changes of these Leases trigger a pass of the autoscaler, because they contain the gateways'
/// demand. Renewals by nodes trigger no pass: 10,000 nodes renew 1,000 Leases per second. The node
/// lifecycle reads the Leases of nodes periodically.
fn is_gateway_lease(lease: &Lease) -> bool {
    lease.name_any().starts_with(GATEWAY_LEASE_PREFIX)
}

/// Caches and API access that all reconcilers share. Clones share their state.
#[derive(Clone)]
pub(super) struct World {
    pub(super) nodes: Cache<FleetNode>,
    pub(super) leases: Cache<Lease>,
    pub(super) deployments: Cache<ModelDeployment>,
    pub(super) revisions: Cache<ModelRevision>,
    pub(super) replicas: Cache<ModelReplica>,
    pub(super) claims: Cache<PerformanceClaim>,
    pub(super) plans: Cache<CapacityPlan>,
    pub(super) index: SharedIndex,
    /// Serializes reconcilers that delete replicas within a deployment's bounds. A reconciler holds
    /// the lock from counting the replicas until the caches contain the deletions. Otherwise two
    /// reconcilers could each delete the last replica that may be unavailable.
    pub(super) disruptions: Arc<Mutex<()>>,
    pub(super) hub: Hub,
    /// Notifies of every change, except renewals of Leases.
    pub(super) changes: Changes,
    pub(super) recorder: Recorder,
    pub(super) clock: Clock,
    /// Number of simultaneous node failures for which the scheduler keeps capacity free.
    pub(super) reserve_node_failures: usize,
    client: Client,
    leadership: Leadership,
}

impl World {
    /// Starts the watches of all kinds with empty caches.
    pub(super) fn watch(
        tasks: &Tasks,
        client: Client,
        clock: Clock,
        recorder: Recorder,
        leadership: Leadership,
        hub: HubAccess,
        reserve_node_failures: usize,
    ) -> Self {
        let changes = Changes::new();
        let config = watcher::Config::default;
        let leases = Api::namespaced(client.clone(), LEASE_NAMESPACE);
        let nodes = watch(tasks, Api::all(client.clone()), config(), &clock, &changes);
        let replicas = watch(tasks, Api::all(client.clone()), config(), &clock, &changes);
        let deployments = watch(tasks, Api::all(client.clone()), config(), &clock, &changes);
        let revisions = watch(tasks, Api::all(client.clone()), config(), &clock, &changes);
        let index = SharedIndex::new(
            &nodes,
            &deployments,
            &revisions,
            &replicas,
            reserve_node_failures,
            clock.clone(),
        );
        // Leases contain the gateways' demand.
        let demand = &index.wakeups.autoscaler;
        Self {
            disruptions: Arc::default(),
            hub: Hub::new(hub, tasks.clone(), clock.clone(), index.queue.clone()),
            nodes,
            leases: watch_heeding(tasks, leases, config(), &clock, demand, is_gateway_lease),
            index,
            deployments,
            revisions,
            replicas,
            claims: watch(tasks, Api::all(client.clone()), config(), &clock, &changes),
            plans: watch(tasks, Api::all(client.clone()), config(), &clock, &changes),
            changes,
            recorder,
            clock,
            reserve_node_failures,
            client,
            leadership,
        }
    }

    /// Waits until every cache contains the initial list. Reconcilers must not run earlier.
    pub(super) async fn synced(&self) {
        self.nodes.synced().await;
        self.leases.synced().await;
        self.deployments.synced().await;
        self.revisions.synced().await;
        self.replicas.synced().await;
        self.claims.synced().await;
        self.plans.synced().await;
    }

    /// Lists the Leases on the server, bypassing the cache.
    pub(super) async fn list_leases(&self) -> Result<Vec<Lease>, ApiError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let params = ListParams::default();
        let listed = tokio::time::timeout(LIST_TIMEOUT, api.list(&params))
            .await
            .map_err(|_| {
                ApiError::Unreachable(format!(
                    "the request timed out after {} s",
                    LIST_TIMEOUT.as_secs()
                ))
            })?;
        Ok(listed?.items)
    }

    /// Returns an error unless this process still holds the leader's Lease.
    fn may_write(&self) -> Result<(), ApiError> {
        if self.leadership.holds() {
            Ok(())
        } else {
            Err(ApiError::Conflict(
                "this controller is no longer the leader".to_owned(),
            ))
        }
    }

    fn api<K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>>(
        &self,
        meta: &ObjectMeta,
    ) -> Api<K> {
        Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default())
    }

    /// Reads the object from the server into the cache, bypassing the watch.
    ///
    /// Used after a write without a response, because the server may have executed the write. If
    /// the object does not exist, the cache stays unchanged: the watch delivers the deletion.
    pub(super) async fn refresh<K>(&self, cache: &Cache<K>, of: &Version) -> Result<(), ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        let namespace = of.namespace.as_deref().unwrap_or_default();
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let found = api.get_opt(&of.name).await?;
        if let Some(found) = found {
            cache.wrote(found);
        }
        Ok(())
    }

    pub(super) async fn create<K>(&self, cache: &Cache<K>, object: &K) -> Result<K, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope> + Serialize,
    {
        self.may_write()?;
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = self.api::<K>(object.meta()).create(&params, object).await?;
        cache.wrote(created.clone());
        Ok(created)
    }

    /// Returns whether the node exists on the server. The cache may miss a node that was recreated.
    pub(super) async fn has_node(&self, name: &str) -> Result<bool, ApiError> {
        let nodes = Api::<FleetNode>::all(self.client.clone());
        Ok(nodes.get_metadata_opt(name).await?.is_some())
    }

    /// Returns whether the server has the object with this UID, without a deletion timestamp.
    pub(super) async fn exists<K>(&self, object: &K) -> Result<bool, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        let api = self.api::<K>(object.meta());
        let found = api.get_metadata_opt(&object.name_any()).await?;
        Ok(found.is_some_and(|found| {
            found.metadata.uid == object.meta().uid && found.metadata.deletion_timestamp.is_none()
        }))
    }

    /// Sends a merge patch of the object.
    ///
    /// The server rejects the patch of a changed object only if `patch` contains the
    /// resourceVersion.
    pub(super) async fn patch<K>(
        &self,
        cache: &Cache<K>,
        object: &K,
        patch: &serde_json::Value,
    ) -> Result<K, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        self.may_write()?;
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api::<K>(object.meta());
        let patched = api
            .patch(&object.name_any(), &params, &kube::api::Patch::Merge(patch))
            .await?;
        cache.wrote(patched.clone());
        Ok(patched)
    }

    /// Deletes the object if its UID matches. Succeeds if the object no longer exists.
    pub(super) async fn delete<K>(&self, cache: &Cache<K>, object: &K) -> Result<(), ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        match self.delete_if(cache, object, None).await {
            Err(ApiError::Conflict(_)) => {
                cache.deleted(object);
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// Deletes the object if its UID and resourceVersion match.
    pub(super) async fn delete_unchanged<K>(&self, cache: &Cache<K>, object: &K) -> Result<(), ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        self.delete_if(cache, object, object.resource_version()).await
    }

    async fn delete_if<K>(
        &self,
        cache: &Cache<K>,
        object: &K,
        resource_version: Option<String>,
    ) -> Result<(), ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        self.may_write()?;
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version,
        });
        let deleted = self
            .api::<K>(object.meta())
            .delete(&object.name_any(), &params)
            .await
            .map_err(ApiError::from);
        match deleted {
            Ok(either) => match either.left() {
                Some(left) if !left.finalizers().is_empty() => cache.wrote(left),
                Some(_) | None => cache.deleted(object),
            },
            Err(ApiError::NotFound(_)) => cache.deleted(object),
            Err(err) => return Err(err),
        }
        Ok(())
    }

    /// Writes the status of a namespaced object with [`patch_status`] and updates the cache.
    /// Returns whether the status changed.
    pub(super) async fn status<K>(
        &self,
        cache: &Cache<K>,
        object: &K,
        status: &K::Status,
    ) -> Result<bool, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope> + HasStatus,
        K::Status: Serialize + PartialEq + Default,
    {
        let api = self.api::<K>(object.meta());
        self.status_by(api, cache, object, status).await
    }

    /// Writes the status of a FleetNode with [`patch_status`] and updates the cache. Returns
    /// whether the status changed.
    pub(super) async fn node_status(
        &self,
        node: &FleetNode,
        status: &rooflet_api::v1alpha1::FleetNodeStatus,
    ) -> Result<bool, ApiError> {
        let api = Api::all(self.client.clone());
        self.status_by(api, &self.nodes, node, status).await
    }

    async fn status_by<K>(
        &self,
        api: Api<K>,
        cache: &Cache<K>,
        object: &K,
        status: &K::Status,
    ) -> Result<bool, ApiError>
    where
        K: CachedKind + HasStatus,
        K::Status: Serialize + PartialEq + Default,
    {
        self.may_write()?;
        let written = patch_status(&api, object, status).await?;
        let changed = written.is_some();
        if let Some(written) = written {
            cache.wrote(written);
        }
        Ok(changed)
    }
}
