//! Prefetch: downloads of models for replicas that will succeed running ones.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{Desired, ResolvedReplica};
use super::observed::Observed;
use super::sync_loop::SyncLoop;
use crate::models::ASKING_HUB;
use crate::replica::{DesiredReplica, ReplicaKey};
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
                next.insert(model.clone(), (key, replica));
            }
        }
        wanted.extend(next.keys().cloned());
        self.models.retain_pulls(&wanted);
        self.prefetches.retain(|model, _| next.contains_key(model));
        if desired.stopping {
            return;
        }
        let free = observed.disk_limit - observed.reserved_disk();
        for (model, (key, replica)) in next {
            let problem = self.prefetch_model(&model, free);
            self.publish_prefetch_problem(key, replica, model, problem);
        }
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
    fn publish_prefetch_problem(
        &mut self,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        model: HubModel,
        problem: Option<(&'static str, String)>,
    ) {
        let reason = problem.as_ref().map(|(reason, _)| *reason);
        let before = self.prefetches.insert(model.clone(), reason).flatten();
        let Some((reason, message)) = problem.filter(|_| before != reason) else {
            return;
        };
        if let Some((recorder, object)) = self.recorder.as_ref().zip(self.object(key, replica)) {
            let message = format!("prefetch of {model} for the next revision: {message}");
            recorder.publish(object.as_ref(), EventType::Warning, reason, message);
        }
    }
}
