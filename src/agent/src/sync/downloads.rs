//! Prefetch: downloads of models for replicas that will succeed running ones, and for requests of an
//! administrator. Deletions on request.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use tracing::warn;

use super::desired::{Desired, ResolvedReplica};
use super::observed::Observed;
use super::sync_loop::SyncLoop;
use crate::models::ASKING_HUB;
use crate::replica::{DesiredReplica, ReplicaKey};
use rooflet_api::model_requests::ModelRequests;
use rooflet_api::v1alpha1::{HubModel, ModelSource};
use rooflet_base::units::Bytes;
use rooflet_client::EventType;

impl SyncLoop {
    /// Downloads the models of successors while the disk has unreserved space, and stops downloads
    /// that no replica needs.
    pub(super) fn prefetch(&mut self, desired: &Desired, observed: &Observed) {
        // A rejected replica keeps its download. A replica that is being deleted does not.
        let here = desired
            .replicas
            .iter()
            .filter(|(_, wanted)| !wanted.replica.deleting);
        let mut wanted = BTreeSet::new();
        let mut next = BTreeMap::new();
        for (key, ResolvedReplica { replica, .. }) in here {
            if let Ok(ModelSource::Hub(model)) = replica.spec.source() {
                wanted.insert(model);
            }
            if let Some(model) = &replica.next {
                next.insert(model.clone(), Some((key, replica)));
            }
        }
        for model in self.model_requests().keep {
            next.entry(model).or_insert(None);
        }
        wanted.extend(next.keys().cloned());
        self.models.retain_pulls(&wanted);
        self.prefetches.retain(|model, _| next.contains_key(model));
        if desired.stopping {
            return;
        }
        let free = observed.disk_limit - observed.reserved_disk();
        for (model, successor) in next {
            let problem = self.prefetch_model(&model, free);
            self.publish_prefetch_problem(successor, model, problem);
        }
    }

    /// Deletes downloaded models that an administrator does not want and no replica uses.
    pub(super) fn delete_requested(&self, desired: &Desired) {
        let Some(used) = self.used_models.as_ref().filter(|_| !desired.stopping) else {
            return;
        };
        for (model, requested) in self.model_requests().delete {
            self.models.delete(&model, requested, used);
        }
    }

    /// Returns the requests in the annotations of this node's FleetNode.
    fn model_requests(&self) -> ModelRequests {
        let nodes = self.sources.nodes.as_ref();
        let node = nodes.and_then(|nodes| nodes.get(None, &self.node));
        node.map_or_else(ModelRequests::default, |node| {
            ModelRequests::of(node.annotations())
        })
    }

    /// Starts a download if it fits into `free` and is not running. Returns the problem of the
    /// download, if it has one.
    fn prefetch_model(&mut self, model: &HubModel, free: Bytes) -> Option<(&'static str, String)> {
        let source = ModelSource::Hub(model.clone());
        let used = self.used_models.get_or_insert_default();
        used.extend(self.models.downloaded_to(&source));
        let found = match self.models.inspect(&source) {
            Ok(found) => found,
            Err(problem) => {
                return (problem.reason != ASKING_HUB).then_some((problem.reason, problem.message));
            }
        };
        used.insert(found.path);
        let pull = found.pull?;
        if pull.missing() <= free {
            let missing = self.workers.missing_disk(pull.missing());
            self.models.pull(&source, used, missing);
        }
        let problem = pull.problem?;
        Some((problem.reason, problem.message))
    }

    /// Publishes a problem as an event. Conditions describe only the running model.
    /// A model without a successor is logged: no object describes it.
    fn publish_prefetch_problem(
        &mut self,
        successor: Option<(&ReplicaKey, &DesiredReplica)>,
        model: HubModel,
        problem: Option<(&'static str, String)>,
    ) {
        let reason = problem.as_ref().map(|(reason, _)| *reason);
        let before = self.prefetches.insert(model.clone(), reason).flatten();
        let Some((reason, message)) = problem.filter(|_| before != reason) else {
            return;
        };
        let Some((key, replica)) = successor else {
            warn!(%model, reason, problem = message, "failed to prefetch a model on request");
            return;
        };
        if let Some((recorder, object)) = self.recorder.as_ref().zip(self.object(key, replica)) {
            let message = format!("prefetch of {model} for the next revision: {message}");
            recorder.publish(object.as_ref(), EventType::Warning, reason, message);
        }
    }
}
