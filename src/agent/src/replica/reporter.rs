//! Writes replica reports to the API server: statuses, finalizers, and mirrors of manifests. The
//! reporter is level-triggered: each attempt writes every difference that is not written yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::replica::Report;
use crate::replica::{Origin, ReplicaKey, is_mirror};
use crate::reports::Reports;
use rooflet_api::meta::{MIRROR_ANNOTATION, REPLICA_FINALIZER};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaSpec};
use rooflet_base::error::Chain;
use rooflet_base::latest::LatestSeen;
use rooflet_client::{ApiError, Attempts, Cache, Changes, FIELD_MANAGER, patch_status};

/// Writer of replica statuses, finalizers and mirrors.
pub(crate) struct Reporter {
    pub client: Client,
    pub node: String,
    pub cache: Cache<ModelReplica>,
    pub changes: Changes,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    /// Last reports that were written completely.
    pub written_tx: watch::Sender<Arc<Reports>>,
}

impl Reporter {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut changed_rx = self.changes.subscribe();
        let mut attempts = Attempts::new("writing statuses");
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.cache.synced() => {}
            }
            changed_rx.mark_unchanged();
            let reports = self.reports_rx.see_latest();
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                outcome = self.write(&reports) => outcome,
            };
            match outcome {
                Ok(()) => {
                    attempts.succeeded();
                    self.written_tx.send_replace(reports);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        // A closed channel of reports disables its branch.
                        Ok(()) = changed_rx.changed() => {}
                        Ok(()) = self.reports_rx.changed() => {}
                    }
                }
                Err(err) => {
                    let wait = attempts.failed(&err);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Writes all differences. Continues after a failure and returns the last error that a retry can
    /// resolve.
    async fn write(&self, reports: &Reports) -> Result<(), ApiError> {
        let mut outcome = Ok(());
        for (key, report) in reports.replicas.iter().chain(&reports.displaced) {
            match self.write_one(key, report).await {
                // The watch soon delivers the newer version, which triggers another write.
                Ok(()) | Err(ApiError::Conflict(_) | ApiError::NotFound(_) | ApiError::AlreadyExists(_)) => {}
                // The API server answers Forbidden for replicas of other nodes, whether they exist
                // or not.
                Err(ApiError::Forbidden(_)) if self.cache.get(Some(&key.namespace), &key.name).is_none() => {}
                // A restarted kube-apiserver answers Forbidden until it has loaded its roles.
                Err(err)
                    if err.is_transient()
                        || matches!(err, ApiError::Unauthorized(_) | ApiError::Forbidden(_)) =>
                {
                    outcome = Err(err);
                }
                Err(err) => {
                    warn!(replica = %key, error = %Chain(&err), "API server rejected a replica report")
                }
            }
        }
        if let Err(err) = self.remove_leftovers(&reports.replicas).await {
            outcome = Err(err);
        }
        outcome
    }

    async fn write_one(&self, key: &ReplicaKey, report: &Report) -> Result<(), ApiError> {
        let api: Api<ModelReplica> = Api::namespaced(self.client.clone(), &key.namespace);
        let object = self.cache.get(Some(&key.namespace), &key.name);
        match (&report.replica.origin, object) {
            (Origin::Api, Some(object)) if object.uid().as_deref() == Some(report.replica.uid.as_str()) => {
                if report.release {
                    return self.release(&api, &object).await;
                }
                if report.is_outdated(&object) {
                    return Ok(());
                }
                self.write_status(&api, &object, report).await
            }
            (Origin::Manifest(_), Some(object)) if is_mirror(&object) => {
                if object.metadata.deletion_timestamp.is_some() {
                    return self.release(&api, &object).await;
                }
                if shows(&object, report) {
                    return self.write_status(&api, &object, report).await;
                }
                // Mirrors are immutable: the reporter deletes and recreates them.
                self.delete(&api, &object).await
            }
            (Origin::Manifest(file), None) => {
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                let created = api
                    .create(&params, &mirror(key, file, report, &self.node))
                    .await?;
                self.cache.wrote(created);
                Ok(())
            }
            // An unrelated object has the same name, or the replica's object is gone.
            (Origin::Api | Origin::Manifest(_), _) => Ok(()),
        }
    }

    async fn write_status(
        &self,
        api: &Api<ModelReplica>,
        object: &ModelReplica,
        report: &Report,
    ) -> Result<(), ApiError> {
        if let Some(written) = patch_status(api, object, &report.status).await? {
            self.cache.wrote(written);
        }
        Ok(())
    }

    /// Removes the replica's finalizer from a deleted object.
    async fn release(&self, api: &Api<ModelReplica>, object: &ModelReplica) -> Result<(), ApiError> {
        let finalizers: Vec<_> = object
            .finalizers()
            .iter()
            .filter(|name| *name != REPLICA_FINALIZER)
            .collect();
        if finalizers.len() == object.finalizers().len() {
            return Ok(());
        }
        let patch =
            json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api
            .patch(&object.name_any(), &params, &Patch::Merge(&patch))
            .await
            .map_err(ApiError::from)
        {
            Ok(written) if written.finalizers().is_empty() => self.cache.deleted(object),
            Ok(written) => self.cache.wrote(written),
            Err(ApiError::NotFound(_)) => self.cache.deleted(object),
            Err(err) => return Err(err),
        }
        Ok(())
    }

    async fn delete(&self, api: &Api<ModelReplica>, object: &ModelReplica) -> Result<(), ApiError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api
            .delete(&object.name_any(), &params)
            .await
            .map_err(ApiError::from)
        {
            Ok(_) | Err(ApiError::NotFound(_)) => {
                self.cache.deleted(object);
                Ok(())
            }
            Err(err) => Err(err),
        }
    }

    /// Deletes mirrors whose manifests no longer exist.
    async fn remove_leftovers(&self, wanted: &BTreeMap<ReplicaKey, Report>) -> Result<(), ApiError> {
        for object in self.cache.list() {
            let key = ReplicaKey::of(&object);
            let is_wanted = wanted
                .get(&key)
                .is_some_and(|report| report.replica.origin != Origin::Api);
            if is_mirror(&object) && !is_wanted && object.metadata.deletion_timestamp.is_none() {
                let api = Api::namespaced(self.client.clone(), &key.namespace);
                self.delete(&api, &object).await?;
            }
        }
        Ok(())
    }
}

fn mirror(key: &ReplicaKey, file: &str, report: &Report, node: &str) -> ModelReplica {
    ModelReplica {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            annotations: Some(BTreeMap::from([(MIRROR_ANNOTATION.to_owned(), file.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: ModelReplicaSpec {
            priority: 0,
            ..report.replica.object_spec(node)
        },
        status: None,
    }
}

/// Returns true if a mirror matches the running replica.
fn shows(object: &ModelReplica, report: &Report) -> bool {
    let shown = crate::replica::DesiredReplica::of(object);
    shown.spec == report.replica.spec && shown.terms.objectives == report.replica.terms.objectives
}
