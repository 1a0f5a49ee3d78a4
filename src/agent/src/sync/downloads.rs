//! Downloads of models: for admitted replicas, for replicas that will succeed running ones, and for requests of
//! an administrator. Deletions on request.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};
use kube::ResourceExt;
use tracing::warn;

use super::desired::{Desired, ResolvedReplica};
use super::observed::Observed;
use super::plan::SyncPlan;
use super::step::Step;
use super::sync_loop::SyncLoop;
use crate::models::{ASKING_HUB, ModelProblem, PendingPull, ServableModel};
use crate::replica::{DesiredReplica, ReplicaKey};
use rooflet_api::model_requests::ModelRequests;
use rooflet_api::v1alpha1::{HubModel, ModelSource};
use rooflet_base::units::Bytes;
use rooflet_client::EventType;

/// Model to download before a replica needs it.
pub(super) struct Prefetch<'a> {
    /// Replica whose successor needs the model. `None` for a request of an administrator.
    successor: Option<(&'a ReplicaKey, &'a DesiredReplica)>,
    found: Result<ServableModel, ModelProblem>,
}

/// Downloads of one sync pass. Pure.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DownloadPlan {
    /// Downloads to start.
    starts: Vec<HubModel>,
    /// Missing bytes of all downloads that have started or start, and that fit, by directory.
    missing: BTreeMap<Utf8PathBuf, Bytes>,
    /// True if a download starts or is suspended, so that it may need space.
    needs_space: bool,
}

impl DownloadPlan {
    /// Plans the downloads of admitted replicas and, while they fit into `disk_limit`, of `prefetches`.
    pub(super) fn new(
        desired: &Desired,
        plan: &SyncPlan,
        prefetches: &BTreeMap<HubModel, Prefetch<'_>>,
        disk_limit: Bytes,
    ) -> Self {
        let mut downloads = Self::default();
        let pulls = desired.replicas.iter().filter_map(|(key, wanted)| {
            let ResolvedReplica { replica, model } = wanted;
            let found = model.as_ref().ok().filter(|_| !replica.deleting)?;
            let pull = found.pull.as_ref()?;
            let Ok(ModelSource::Hub(source)) = replica.spec.source() else {
                return None;
            };
            let is_admitted = matches!(plan.steps.get(key), Some(Step::Pull(_)));
            Some((is_admitted, (source, found.path.as_path(), pull)))
        });
        let (admitted, rejected): (Vec<_>, Vec<_>) = pulls.partition(|(is_admitted, _)| *is_admitted);
        for (_, (source, path, pull)) in &admitted {
            downloads.add(source, path, pull);
        }
        // The plan has reserved space for admitted replicas only. A rejected replica keeps its download.
        let rejected = rejected.into_iter().map(|(_, pull)| pull);
        let prefetches = prefetches.iter().filter_map(|(model, prefetch)| {
            let found = prefetch.found.as_ref().ok()?;
            Some((model.clone(), found.path.as_path(), found.pull.as_ref()?))
        });
        let (started, new): (Vec<_>, Vec<_>) = prefetches.partition(|(.., pull)| pull.is_under_way);
        // A download that has started keeps its space.
        let started = rejected.filter(|(.., pull)| pull.is_under_way).chain(started);
        let mut free = disk_limit - plan.reserved_disk;
        // Replicas can share a download with each other and with prefetches.
        let mut counted: BTreeSet<_> = downloads.missing.keys().cloned().collect();
        for (model, path, pull) in started.chain(new) {
            let fits = pull.missing() <= free;
            if (fits || pull.is_under_way) && counted.insert(path.to_owned()) {
                free = free - pull.missing();
                // Deleting unused models for a download that does not fit would not complete it.
                if fits {
                    downloads.add(&model, path, pull);
                }
            }
        }
        downloads
    }

    fn add(&mut self, model: &HubModel, path: &Utf8Path, pull: &PendingPull) {
        self.missing.insert(path.to_owned(), pull.missing());
        self.needs_space |= !pull.is_under_way || pull.problem.is_some();
        if !pull.is_under_way {
            self.starts.push(model.clone());
        }
    }
}

impl SyncLoop {
    /// Downloads the models of admitted replicas, and models to prefetch while the disk has unreserved space.
    /// Stops downloads that no replica needs.
    pub(super) fn download(&mut self, desired: &Desired, plan: &SyncPlan, observed: &Observed) {
        let prefetches = self.prefetches(desired);
        let used = self.used(desired, &prefetches);
        if !desired.stopping {
            let downloads = DownloadPlan::new(desired, plan, &prefetches, observed.disk_limit);
            if downloads.needs_space {
                // All downloads need their space together, although they run one after another.
                let missing = self.workers.missing_disk(downloads.missing.into_values().sum());
                self.models.remove_unused(&used, missing);
            }
            for model in &downloads.starts {
                self.models.pull(model);
            }
        }
        self.used_models = Some(used);
        for (model, prefetch) in prefetches {
            self.publish_prefetch_problem(model, &prefetch);
        }
    }

    /// Returns the models to prefetch, and stops downloads that nothing needs. While the agent is stopping,
    /// returns no models.
    fn prefetches<'a>(&mut self, desired: &'a Desired) -> BTreeMap<HubModel, Prefetch<'a>> {
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
            return BTreeMap::new();
        }
        let inspect = |(model, successor): (HubModel, _)| {
            let found = self.models.inspect(&ModelSource::Hub(model.clone()));
            (model, Prefetch { successor, found })
        };
        next.into_iter().map(inspect).collect()
    }

    /// Returns the directories of all desired models and of all models to prefetch, including models whose state
    /// is currently unknown.
    fn used(
        &self,
        desired: &Desired,
        prefetches: &BTreeMap<HubModel, Prefetch<'_>>,
    ) -> BTreeSet<Utf8PathBuf> {
        let replicas = desired.replicas.values().filter_map(|wanted| {
            let source = wanted.replica.spec.source();
            self.directory(&wanted.model, &source.ok()?)
        });
        let prefetched = prefetches.iter().filter_map(|(model, prefetch)| {
            let source = ModelSource::Hub(model.clone());
            self.directory(&prefetch.found, &source)
        });
        replicas.chain(prefetched).collect()
    }

    fn directory(
        &self,
        found: &Result<ServableModel, ModelProblem>,
        source: &ModelSource,
    ) -> Option<Utf8PathBuf> {
        match found {
            Ok(found) => Some(found.path.clone()),
            Err(_) => self.models.downloaded_to(source),
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

    /// Publishes a problem as an event. Conditions describe only the running model.
    /// A model without a successor is logged: no object describes it.
    fn publish_prefetch_problem(&mut self, model: HubModel, prefetch: &Prefetch<'_>) {
        let problem = match &prefetch.found {
            Ok(found) => {
                let pull = found.pull.as_ref();
                let problem = pull.and_then(|pull| pull.problem.as_ref());
                problem.map(|problem| (problem.reason, &problem.message))
            }
            Err(problem) => (problem.reason != ASKING_HUB).then_some((problem.reason, &problem.message)),
        };
        let reason = problem.map(|(reason, _)| reason);
        let before = self.prefetches.insert(model.clone(), reason).flatten();
        let Some((reason, message)) = problem.filter(|_| before != reason) else {
            return;
        };
        let Some((key, replica)) = prefetch.successor else {
            warn!(%model, reason, problem = message, "failed to prefetch a model on request");
            return;
        };
        if let Some((recorder, object)) = self.recorder.as_ref().zip(self.object(key, replica)) {
            let message = format!("prefetch of {model} for the next revision: {message}");
            recorder.publish(object.as_ref(), EventType::Warning, reason, message);
        }
    }
}

#[cfg(test)]
mod tests;
