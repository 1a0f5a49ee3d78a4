//! Restoration of replicas after the control plane was rebuilt. The restorer creates the objects of
//! running replicas again, so that gateways route requests to them and their deployments adopt them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::replica::{DesiredReplica, Owner, ReplicaKey};
use rooflet_api::meta::{
    ADMISSION_ANNOTATION, ADMISSION_WARN, DEPLOYMENT_LABEL, REPLICA_FINALIZER, RESTORED_ANNOTATION,
    REVISION_LABEL,
};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_base::error::Chain;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_client::{ApiError, Attempts, Changes, FIELD_MANAGER};

/// Interval of attempts. A deployment may be applied at any time.
const RETRY: Duration = Duration::from_secs(3);

/// Requested restorations.
#[derive(Debug, Default, PartialEq)]
struct Request {
    /// Replicas that another API server listed.
    replicas: BTreeMap<ReplicaKey, DesiredReplica>,
    /// Replicas that the current API server lists. A change causes an immediate attempt: a
    /// deployment may have been applied.
    listed: BTreeSet<ReplicaKey>,
}

/// Handle of the restorer. Clones share it.
#[derive(Clone)]
pub(crate) struct Restoration {
    request_tx: Arc<watch::Sender<Arc<Request>>>,
    unwanted_tx: Arc<watch::Sender<BTreeSet<ReplicaKey>>>,
}

impl Restoration {
    pub(crate) fn new() -> Self {
        Self {
            request_tx: Arc::new(watch::Sender::default()),
            unwanted_tx: Arc::new(watch::Sender::default()),
        }
    }

    /// Requests the restoration of these replicas, and of no others. `listed` are the replicas of
    /// this node that the API server lists.
    pub(crate) fn request(
        &self,
        replicas: BTreeMap<ReplicaKey, DesiredReplica>,
        listed: BTreeSet<ReplicaKey>,
    ) {
        let next = Request { replicas, listed };
        self.request_tx.send_if_modified(|request| {
            let changed = **request != next;
            if changed {
                *request = Arc::new(next);
            }
            changed
        });
    }

    /// Returns the requested replicas whose deployment the API server does not have, or which it
    /// rejects.
    pub(crate) fn unwanted(&self) -> BTreeSet<ReplicaKey> {
        self.unwanted_tx.latest()
    }

    /// Restores the requested replicas until `stop`.
    pub(crate) async fn run(self, client: Client, node: String, changes: Changes, stop: CancellationToken) {
        let mut request_rx = self.request_tx.subscribe();
        let mut attempts = Attempts::new("restoring replicas");
        let mut rejected = BTreeSet::new();
        loop {
            let request = request_rx.see_latest();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = restore_all(&client, &node, &request.replicas, &mut rejected) => outcome,
            };
            // After a failure, it is unknown which replicas are unwanted.
            let (unwanted, wait) = match outcome {
                Ok(unwanted) => {
                    attempts.succeeded();
                    (unwanted, RETRY)
                }
                Err(err) => (BTreeSet::new(), attempts.failed(&err)),
            };
            let changed = self.unwanted_tx.send_if_modified(|known| {
                let changed = *known != unwanted;
                *known = unwanted;
                changed
            });
            if changed {
                changes.mark();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = request_rx.changed() => {}
                () = tokio::time::sleep(wait), if !request.replicas.is_empty() => {}
            }
        }
    }
}

/// Restores replicas. Returns the unwanted ones. `rejected` contains the replicas whose rejection
/// was logged.
async fn restore_all(
    client: &Client,
    node: &str,
    kept: &BTreeMap<ReplicaKey, DesiredReplica>,
    rejected: &mut BTreeSet<ReplicaKey>,
) -> Result<BTreeSet<ReplicaKey>, ApiError> {
    rejected.retain(|key| kept.contains_key(key));
    let mut unwanted = BTreeSet::new();
    for (key, replica) in kept {
        let is_created = match restore(client, node, key, replica).await {
            Ok(is_created) => is_created,
            Err(err) if err.is_transient() => return Err(err),
            Err(err) => {
                if rejected.insert(key.clone()) {
                    warn!(replica = %key, error = %Chain(&err), "API server rejected the restoration of a running replica");
                }
                false
            }
        };
        if !is_created {
            unwanted.insert(key.clone());
        }
    }
    Ok(unwanted)
}

/// Creates the object of a replica if its deployment exists. Returns whether it was created.
async fn restore(
    client: &Client,
    node: &str,
    key: &ReplicaKey,
    replica: &DesiredReplica,
) -> Result<bool, ApiError> {
    let Some(owner) = &replica.terms.owner else {
        return Ok(false);
    };
    let deployments: Api<ModelDeployment> = Api::namespaced(client.clone(), &key.namespace);
    let deployment = deployments
        .get_opt(&owner.deployment)
        .await
        .map_err(ApiError::from)?;
    if deployment.is_none_or(|deployment| deployment.metadata.deletion_timestamp.is_some()) {
        return Ok(false);
    }
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), &key.namespace);
    let object = object(key, replica, owner, node);
    match replicas.create(&params, &object).await.map_err(ApiError::from) {
        Ok(_) => {
            info!(replica = %key, deployment = owner.deployment, "restored replica at the rebuilt API server");
            Ok(true)
        }
        Err(ApiError::AlreadyExists(_)) => Ok(true),
        Err(err) => Err(err),
    }
}

/// Returns the object that continues a replica of another API server.
fn object(key: &ReplicaKey, replica: &DesiredReplica, owner: &Owner, node: &str) -> ModelReplica {
    let revision = owner.revision.as_ref().map(|revision| (REVISION_LABEL, revision));
    let labels = [(DEPLOYMENT_LABEL, &owner.deployment)]
        .into_iter()
        .chain(revision);
    let override_mode = replica
        .terms
        .overridden
        .then_some((ADMISSION_ANNOTATION, ADMISSION_WARN));
    let annotations = [(RESTORED_ANNOTATION, replica.uid.as_str())]
        .into_iter()
        .chain(override_mode);
    ModelReplica {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            labels: Some(
                labels
                    .map(|(name, value)| (name.to_owned(), value.clone()))
                    .collect(),
            ),
            annotations: Some(
                annotations
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            ),
            finalizers: Some(vec![REPLICA_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: replica.object_spec(node),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn restored_object_continues_the_running_replica() {
        let mut original = ModelReplica::test("guide-1-x", json!({ "nodeName": "mini-1", "priority": 3 }));
        original.metadata.uid = Some("u1".to_owned());
        let labels = [
            (DEPLOYMENT_LABEL, "guide"),
            (REVISION_LABEL, "guide-1"),
            ("team", "a"),
        ];
        original.metadata.labels = Some(
            labels
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        );
        original.metadata.annotations =
            Some([(ADMISSION_ANNOTATION.to_owned(), ADMISSION_WARN.to_owned())].into());
        let replica = DesiredReplica::of(&original);
        let owner = replica.terms.owner.clone().expect("it has a deployment");
        let object = object(&ReplicaKey::of(&original), &replica, &owner, "mini-1");
        let metadata = &object.metadata;
        assert_eq!(metadata.annotations.as_ref().unwrap()[RESTORED_ANNOTATION], "u1");
        assert_eq!(
            metadata.finalizers.as_deref(),
            Some(&[REPLICA_FINALIZER.to_owned()][..])
        );
        assert_eq!(object.spec.node_name.as_deref(), Some("mini-1"));
        let restored = DesiredReplica::of(&object);
        assert_eq!((&restored.spec, &restored.terms), (&replica.spec, &replica.terms));
    }
}
