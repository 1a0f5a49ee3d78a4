//! What a pass tells: of each replica, of those that a manifest has displaced, and of the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tracing::info;

use super::desired::{Desired, Wanted};
use super::observed::{Observed, WorkerState};
use super::plan::{SyncPlan, demand};
use super::said::{Said, throttle};
use super::status::{Facts, Happening, happenings, replica_status};
use super::step::{Ground, Refusal, Step};
use super::sync_loop::{Displaced, SyncLoop};
use crate::models::ModelProblem;
use crate::replica::{DesiredReplica, Origin, ReplicaKey, Report, is_mirror};
use crate::reports::Reports;
use crate::workers::Progress;
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{ModelReplica, NodeModel};
use rooflet_client::{Cache, EventType};
use rooflet_roofline::memory::Reservation;
use rooflet_roofline::published::publish_calibration;

/// The model directory is listed again after this time.
const LIST_MODELS: Duration = Duration::from_secs(5);

impl SyncLoop {
    pub(super) fn report(
        &mut self,
        desired: &Desired,
        plan: &SyncPlan,
        released: &[ReplicaKey],
        displaced: BTreeMap<ReplicaKey, Report>,
        observed: &Observed,
        now: Timestamp,
    ) {
        let mut reports = BTreeMap::new();
        self.calibrator.look(&self.workers.requests());
        // What the engine of this machine does says nothing of the chip that predictions are for.
        let comparable = observed.hardware.filter(|_| self.computes_here);
        for (key, Wanted { replica, model }) in &desired.replicas {
            let Some(step) = plan.steps.get(key) else { continue };
            let object = self.object(key, replica);
            let previous = self.previous(key, replica, object.as_deref());
            let prediction = comparable.zip(model.as_ref().ok().map(|facts| facts.served.as_ref()));
            let progress = self.workers.progress(key);
            if let (Some((hardware, model)), Some(status)) = (
                prediction,
                progress.as_ref().and_then(|progress| progress.status.as_ref()),
            ) {
                self.calibrator.observe(key, status, model, hardware);
            }
            let undisturbed = |progress: &Progress| {
                let status = progress.status.as_ref();
                status.is_none_or(|status| self.calibrator.is_undisturbed(key, status))
            };
            let prediction = prediction.filter(|_| progress.as_ref().is_none_or(undisturbed));
            let facts = Facts {
                node: &self.node,
                serving_name: &replica.spec.serving_name,
                generation: (replica.origin == Origin::Api).then_some(replica.generation),
                step,
                pull: model.as_ref().ok().and_then(|facts| facts.pull.as_ref()),
                reservation: model
                    .as_ref()
                    .ok()
                    .map(|facts| Reservation::new(&facts.served, demand(replica, facts)).total()),
                progress,
                standing: plan.standing.get(key),
                overridden: replica.terms.overridden,
                prediction,
                calibrations: &observed.calibrations,
            };
            let mut next = replica_status(&facts, &previous.status, now);
            let measured_at = throttle(&previous, &mut next, self.clock.instant());
            // Before the server was heard nobody knows what it was told last; what is new is told then.
            let heard = self.sources.api.as_ref().is_none_or(Cache::is_synced);
            let mut events = if heard {
                happenings(&previous.status, &next)
            } else {
                Vec::new()
            };
            if released.contains(key) {
                events.push(Happening {
                    kind: EventType::Normal,
                    reason: "Stopped".to_owned(),
                    message: "the worker has ended and its memory is free".to_owned(),
                });
            }
            self.publish(key, object.as_deref(), events);
            let release = *step == Step::Release;
            if heard {
                self.said.insert(
                    (key.clone(), replica.uid.clone()),
                    Said {
                        status: next.clone(),
                        measured_at,
                    },
                );
            }
            reports.insert(
                key.clone(),
                Report {
                    replica: replica.clone(),
                    status: next,
                    release,
                },
            );
        }
        self.forget(desired, &displaced);
        let (models, models_problem) = self.list_models();
        let seen = self.workers.observe();
        let next = Reports {
            promised_share: plan.promised_share,
            replicas: reports,
            displaced,
            models,
            models_problem,
            calibrations: observed.calibrations.iter().map(publish_calibration).collect(),
            reserved: seen
                .values()
                .filter(|seen| seen.worker != WorkerState::None)
                .map(|seen| seen.held.reserved)
                .sum(),
            disk_limit: Some(observed.disk_limit),
            download: self.models.download_speed(),
            engine: self.workers.engine(),
            idle: self.workers.is_idle(),
            pressure: observed.pressure,
            probing: observed.probing,
        };
        self.metrics.observe(&next);
        self.reports_tx.send_if_modified(|reports| {
            let changed = **reports != next;
            if changed {
                *reports = Arc::new(next);
            }
            changed
        });
    }

    /// Tells what happened to a replica: the API server, or the log where no object shows it.
    fn publish(&self, key: &ReplicaKey, object: Option<&ModelReplica>, events: Vec<Happening>) {
        for event in events {
            match (&self.recorder, object) {
                (Some(recorder), Some(object)) => {
                    recorder.publish(object, event.kind, &event.reason, event.message);
                }
                _ => info!(replica = %key, reason = event.reason, "{}", event.message),
            }
        }
    }

    /// Drops what is kept of replicas that are gone.
    fn forget(&mut self, desired: &Desired, displaced: &BTreeMap<ReplicaKey, Report>) {
        self.said.retain(|(key, uid), _| {
            let wanted = desired.replicas.get(key).map(|wanted| &wanted.replica);
            let displaced = displaced.get(key).map(|report| &report.replica);
            wanted
                .into_iter()
                .chain(displaced)
                .any(|replica| replica.uid == *uid)
        });
        self.calibrator.retain(|key| desired.replicas.contains_key(key));
    }

    /// Tells those that a manifest displaced; they have no process, so they may go when they are deleted.
    pub(super) fn report_displaced(
        &mut self,
        displaced: Vec<Displaced>,
        now: Timestamp,
    ) -> BTreeMap<ReplicaKey, Report> {
        let mut reports = BTreeMap::new();
        for Displaced { key, replica, file } in displaced {
            let object = self.object(&key, &replica);
            let Said {
                status: previous,
                measured_at,
            } = self.previous(&key, &replica, object.as_deref());
            let facts = Facts {
                node: &self.node,
                serving_name: &replica.spec.serving_name,
                generation: Some(replica.generation),
                step: &Step::Refuse(Refusal {
                    ground: Ground::NotNow,
                    reason: "NameTaken".to_owned(),
                    message: format!(
                        "the manifest {file} on this node runs a replica of this name: delete this one, or rename the manifest's deployment"
                    ),
                    admission: None,
                }),
                pull: None,
                reservation: None,
                progress: None,
                standing: None,
                overridden: false,
                prediction: None,
                calibrations: &[],
            };
            let status = replica_status(&facts, &previous, now);
            if let (Some(recorder), Some(object)) = (&self.recorder, &object) {
                for event in happenings(&previous, &status) {
                    recorder.publish(object.as_ref(), event.kind, &event.reason, event.message);
                }
            }
            let release = replica.deleting;
            self.said.insert(
                (key.clone(), replica.uid.clone()),
                Said {
                    status: status.clone(),
                    measured_at,
                },
            );
            reports.insert(
                key,
                Report {
                    replica,
                    status,
                    release,
                },
            );
        }
        reports
    }

    /// The object that shows this replica: its own, or the mirror of a manifest.
    pub(super) fn object(&self, key: &ReplicaKey, replica: &DesiredReplica) -> Option<Arc<ModelReplica>> {
        let object = self.sources.api.as_ref()?.get(Some(&key.namespace), &key.name)?;
        let is_it = match replica.origin {
            Origin::Api => object.uid().as_deref() == Some(replica.uid.as_str()),
            Origin::Manifest(_) => is_mirror(&object),
        };
        is_it.then_some(object)
    }

    /// What was said last, with the conditions of other writers as they are now.
    fn previous(&self, key: &ReplicaKey, replica: &DesiredReplica, object: Option<&ModelReplica>) -> Said {
        let written = object.and_then(|object| object.status.clone());
        let Some(mut said) = self.said.get(&(key.clone(), replica.uid.clone())).cloned() else {
            return Said {
                status: written.unwrap_or_default(),
                measured_at: self.clock.instant(),
            };
        };
        const OURS: [&str; 4] = [
            condition_type::ADMITTED,
            condition_type::ARTIFACTS_READY,
            condition_type::LOADED,
            condition_type::READY,
        ];
        for theirs in written.into_iter().flat_map(|status| status.conditions) {
            if OURS.contains(&theirs.type_.as_str()) {
                continue;
            }
            match said
                .status
                .conditions
                .iter_mut()
                .find(|known| known.type_ == theirs.type_)
            {
                Some(known) => *known = theirs,
                None => said.status.conditions.insert(0, theirs),
            }
        }
        said
    }

    fn list_models(&mut self) -> (Vec<NodeModel>, Option<ModelProblem>) {
        let now = self.clock.instant();
        match &self.listed {
            Some((at, models, problem)) if now - *at < LIST_MODELS => (models.clone(), problem.clone()),
            _ => {
                let (models, problem) = match self.models.list() {
                    Ok(models) => (models, None),
                    Err(problem) => (Vec::new(), Some(problem)),
                };
                self.listed = Some((now, models.clone(), problem.clone()));
                (models, problem)
            }
        }
    }
}
