//! Reports of a sync pass: status and events of every replica, and the state of the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tracing::info;

use super::desired::{Desired, ResolvedReplica};
use super::last_status::{LastStatus, throttle};
use super::observed::{Observed, WorkerState};
use super::plan::{SyncPlan, demand};
use super::status::{Facts, ReplicaEvent, replica_status, status_events};
use super::step::{Refusal, RefusalKind, Step};
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

/// Interval at which the model directory is listed.
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
        self.calibrator.update_load(&self.workers.requests());
        // The engine of a simulated machine computes on another chip, so its speed is not
        // comparable with predictions.
        let comparable = observed.hardware.filter(|_| self.computes_here);
        for (key, ResolvedReplica { replica, model }) in &desired.replicas {
            let Some(step) = plan.steps.get(key) else { continue };
            let object = self.object(key, replica);
            let previous = self.previous(key, replica, object.as_deref());
            let prediction = comparable.zip(model.as_ref().ok().map(|facts| facts.served.as_ref()));
            let progress = self.workers.progress(key);
            if let (Some((hardware, model)), Some(status)) = (
                prediction,
                progress.as_ref().and_then(|progress| progress.status.as_ref()),
            ) {
                self.calibrator.observe(key, status, model, hardware, now);
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
                running_admission: plan.running_admission.get(key),
                overridden: replica.terms.overridden,
                prediction,
                calibrations: &observed.calibrations,
            };
            let mut next = replica_status(&facts, &previous.status, now);
            let measured_at = throttle(&previous, &mut next, self.clock.instant());
            // Until the API server's objects are synced, the last reported status is unknown, so
            // events wait.
            let is_synced = self.sources.api.as_ref().is_none_or(Cache::is_synced);
            let mut events = if is_synced {
                status_events(&previous.status, &next)
            } else {
                Vec::new()
            };
            if released.contains(key) {
                events.push(ReplicaEvent {
                    kind: EventType::Normal,
                    reason: "Stopped".to_owned(),
                    message: "worker exited and released its memory".to_owned(),
                });
            }
            self.publish(key, object.as_deref(), events);
            let release = *step == Step::Release;
            if is_synced {
                self.last_statuses.insert(
                    (key.clone(), replica.uid.clone()),
                    LastStatus {
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
        self.prune(desired, &displaced);
        let (models, models_problem) = self.list_models();
        let seen = self.workers.observe();
        let next = Reports {
            reserved_share: plan.reserved_share,
            replicas: reports,
            displaced,
            models,
            models_problem,
            calibrations: observed.calibrations.iter().map(publish_calibration).collect(),
            calibration_reset: self.calibrator.reset().cloned(),
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
            watchdog_panics: observed.watchdog_panics,
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

    /// Publishes the events of a replica. Without an object at the API server, logs them instead.
    fn publish(&self, key: &ReplicaKey, object: Option<&ModelReplica>, events: Vec<ReplicaEvent>) {
        for event in events {
            match (&self.recorder, object) {
                (Some(recorder), Some(object)) => {
                    recorder.publish(object, event.kind, &event.reason, event.message);
                }
                _ => info!(replica = %key, reason = event.reason, "{}", event.message),
            }
        }
    }

    /// Removes the state of replicas that no longer exist.
    fn prune(&mut self, desired: &Desired, displaced: &BTreeMap<ReplicaKey, Report>) {
        self.last_statuses.retain(|(key, uid), _| {
            let wanted = desired.replicas.get(key).map(|wanted| &wanted.replica);
            let displaced = displaced.get(key).map(|report| &report.replica);
            wanted
                .into_iter()
                .chain(displaced)
                .any(|replica| replica.uid == *uid)
        });
        self.calibrator.retain(|key| desired.replicas.contains_key(key));
    }

    /// Reports replicas that a manifest displaced. They have no process, so their finalizer is
    /// removed once they are deleted.
    pub(super) fn report_displaced(
        &mut self,
        displaced: Vec<Displaced>,
        now: Timestamp,
    ) -> BTreeMap<ReplicaKey, Report> {
        let mut reports = BTreeMap::new();
        for Displaced { key, replica, file } in displaced {
            let object = self.object(&key, &replica);
            let LastStatus {
                status: previous,
                measured_at,
            } = self.previous(&key, &replica, object.as_deref());
            let facts = Facts {
                node: &self.node,
                serving_name: &replica.spec.serving_name,
                generation: Some(replica.generation),
                step: &Step::Refuse(Refusal {
                    kind: RefusalKind::Temporary,
                    reason: "NameTaken".to_owned(),
                    message: format!(
                        "manifest {file} on this node defines a replica with this name: delete this replica, or rename the manifest's deployment"
                    ),
                    admission: None,
                }),
                pull: None,
                reservation: None,
                progress: None,
                running_admission: None,
                overridden: false,
                prediction: None,
                calibrations: &[],
            };
            let status = replica_status(&facts, &previous, now);
            if let (Some(recorder), Some(object)) = (&self.recorder, &object) {
                for event in status_events(&previous, &status) {
                    recorder.publish(object.as_ref(), event.kind, &event.reason, event.message);
                }
            }
            let release = replica.deleting;
            self.last_statuses.insert(
                (key.clone(), replica.uid.clone()),
                LastStatus {
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

    /// Returns the object that shows this replica at the API server: its own object, or the mirror
    /// of a manifest.
    pub(super) fn object(&self, key: &ReplicaKey, replica: &DesiredReplica) -> Option<Arc<ModelReplica>> {
        let object = self.sources.api.as_ref()?.get(Some(&key.namespace), &key.name)?;
        let is_it = match replica.origin {
            Origin::Api => object.uid().as_deref() == Some(replica.uid.as_str()),
            Origin::Manifest(_) => is_mirror(&object),
        };
        is_it.then_some(object)
    }

    /// Returns the last status of a replica, with the current conditions of other writers.
    fn previous(
        &self,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        object: Option<&ModelReplica>,
    ) -> LastStatus {
        let written = object.and_then(|object| object.status.clone());
        let Some(mut last) = self
            .last_statuses
            .get(&(key.clone(), replica.uid.clone()))
            .cloned()
        else {
            return LastStatus {
                status: written.unwrap_or_default(),
                measured_at: self.clock.instant(),
            };
        };
        const OWN: [&str; 4] = [
            condition_type::ADMITTED,
            condition_type::ARTIFACTS_READY,
            condition_type::LOADED,
            condition_type::READY,
        ];
        for foreign in written.into_iter().flat_map(|status| status.conditions) {
            if OWN.contains(&foreign.type_.as_str()) {
                continue;
            }
            match last
                .status
                .conditions
                .iter_mut()
                .find(|known| known.type_ == foreign.type_)
            {
                Some(known) => *known = foreign,
                None => last.status.conditions.insert(0, foreign),
            }
        }
        last
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
