//! What the controllers know: local copies of every kind they decide by, and how they write.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PatchParams, PostParams, Preconditions};
use kube::core::object::HasStatus;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use tokio::sync::Mutex;

use super::fleet::SharedFleet;
use super::hub::Hub;
use super::intent::Version;
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

/// How long a list may take that somebody waits for.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What gateways report in their Leases is acted on at once. Nodes renew theirs all the time, a thousand of ten thousand nodes every
/// second: whether they do is looked at now and then.
fn is_of_a_gateway(lease: &Lease) -> bool {
    lease.name_any().starts_with(GATEWAY_LEASE_PREFIX)
}

/// Shared by all reconcilers. Clones are the same.
#[derive(Clone)]
pub(super) struct World {
    pub(super) nodes: Cache<FleetNode>,
    pub(super) leases: Cache<Lease>,
    pub(super) deployments: Cache<ModelDeployment>,
    pub(super) revisions: Cache<ModelRevision>,
    pub(super) replicas: Cache<ModelReplica>,
    pub(super) claims: Cache<PerformanceClaim>,
    pub(super) plans: Cache<CapacityPlan>,
    pub(super) fleet: SharedFleet,
    /// Held by who takes replicas away within a deployment's bounds, from looking at how many there are until the caches
    /// show what was deleted: two at the same moment could each take the last one that may be missing.
    pub(super) disruptions: Arc<Mutex<()>>,
    pub(super) hub: Hub,
    pub(super) changes: Changes,
    pub(super) recorder: Recorder,
    pub(super) clock: Clock,
    /// The replicas of any so many nodes are to find room on the others.
    pub(super) reserve_node_failures: usize,
    client: Client,
    leadership: Leadership,
}

impl World {
    /// Begins to watch everything, afresh: nothing that an earlier leader knew is taken over.
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
        let nodes = watch(tasks, Api::all(client.clone()), config(), &changes);
        let replicas = watch(tasks, Api::all(client.clone()), config(), &changes);
        Self {
            fleet: SharedFleet::new(nodes.clone(), replicas.clone(), &changes, reserve_node_failures),
            disruptions: Arc::default(),
            hub: Hub::new(hub, tasks.clone(), clock.clone(), changes.clone()),
            nodes,
            leases: watch_heeding(tasks, leases, config(), &changes, is_of_a_gateway),
            deployments: watch(tasks, Api::all(client.clone()), config(), &changes),
            revisions: watch(tasks, Api::all(client.clone()), config(), &changes),
            replicas,
            claims: watch(tasks, Api::all(client.clone()), config(), &changes),
            plans: watch(tasks, Api::all(client.clone()), config(), &changes),
            changes,
            recorder,
            clock,
            reserve_node_failures,
            client,
            leadership,
        }
    }

    /// Waits until every copy is complete. Nothing may be decided before.
    pub(super) async fn synced(&self) {
        self.nodes.synced().await;
        self.leases.synced().await;
        self.deployments.synced().await;
        self.revisions.synced().await;
        self.replicas.synced().await;
        self.claims.synced().await;
        self.plans.synced().await;
    }

    /// The Leases as the server has them, whatever the watch shows.
    pub(super) async fn leases_now(&self) -> Result<Vec<Lease>, ApiError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        let params = ListParams::default();
        let listed = tokio::time::timeout(LIST_TIMEOUT, api.list(&params))
            .await
            .map_err(|_| ApiError::Unreachable(format!("no answer within {} s", LIST_TIMEOUT.as_secs())))?;
        Ok(listed?.items)
    }

    /// Refuses to write for a leader that may no longer be one.
    fn may_write(&self) -> Result<(), ApiError> {
        if self.leadership.holds() {
            Ok(())
        } else {
            Err(ApiError::Conflict("this controller no longer leads".to_owned()))
        }
    }

    fn api<K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>>(
        &self,
        meta: &ObjectMeta,
    ) -> Api<K> {
        Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default())
    }

    /// Takes over the object as the server has it, whatever the watch shows: what was asked for without an answer may have
    /// been done. One that is gone is the watch's to tell.
    pub(super) async fn read_anew<K>(&self, cache: &Cache<K>, of: &Version) -> Result<(), ApiError>
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

    /// Whether the node is there, asked of the server itself: a cache may not have heard of one that came back.
    pub(super) async fn has_node(&self, name: &str) -> Result<bool, ApiError> {
        let nodes = Api::<FleetNode>::all(self.client.clone());
        Ok(nodes.get_metadata_opt(name).await?.is_some())
    }

    /// Whether the server has this very object, and nobody has asked to delete it, whatever the watch shows.
    pub(super) async fn is_there<K>(&self, object: &K) -> Result<bool, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        let api = self.api::<K>(object.meta());
        let found = api.get_metadata_opt(&object.name_any()).await?;
        Ok(found.is_some_and(|found| {
            found.metadata.uid == object.meta().uid && found.metadata.deletion_timestamp.is_none()
        }))
    }

    /// Merges `patch` into the object. To be refused when the object has changed, it must carry the resourceVersion.
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

    /// Deletes this very object, not a new one of the same name. One that is gone already is no error.
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

    /// The same as long as nobody has changed it.
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

    /// [`patch_status`] of an object in a namespace, kept in its cache. Whether anything was written.
    pub(super) async fn status<K>(
        &self,
        cache: &Cache<K>,
        object: &K,
        status: &K::Status,
    ) -> Result<bool, ApiError>
    where
        K: CachedKind + Resource<Scope = kube::core::NamespaceResourceScope> + HasStatus,
        K::Status: Serialize,
    {
        let api = self.api::<K>(object.meta());
        self.status_by(api, cache, object, status).await
    }

    /// [`patch_status`] of a FleetNode.
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
        K::Status: Serialize,
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

/// What controls the object.
pub(super) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}
