//! Reports of an agent to the API server: statuses of replicas and of the node. The functions that
//! derive them are the real ones.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::scenario::planted::Bug;
use crate::world::World;
use crate::world::event::Write;
use crate::world::node::DISK;
use rooflet_agent::Reports;
use rooflet_agent::node::{NodeFacts, ProbeState, node_status};
use rooflet_agent::replica::{DesiredReplica, ReplicaKey, Report};
use rooflet_agent::sync::{
    Desired, Facts, Observed, ResolvedReplica, Step, SyncPlan, WorkerState, demand, replica_status,
};
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::REPLICA_FINALIZER;
use rooflet_api::v1alpha1::{
    FleetNode, FleetNodeSpec, ModelReplica, ModelReplicaStatus, PowerSource, ThermalState,
};
use rooflet_controller::intent::{Intent, Version};
use rooflet_host::{Power, Presence};
use rooflet_roofline::memory::Reservation;

/// Returns the time since the last input of a user at the Mac.
pub fn idle(user_is_present: bool) -> Duration {
    match user_is_present {
        true => Duration::ZERO,
        false => Duration::from_secs(3600),
    }
}

/// Returns the power state of a Mac. `thermal` is the slowdown of the chip.
pub fn power(thermal: f64, on_battery: bool) -> Power {
    Power {
        thermal_state: match thermal >= HOT_FACTOR {
            true => ThermalState::Serious,
            false => ThermalState::Nominal,
        },
        source: match on_battery {
            true => PowerSource::Battery,
            false => PowerSource::Ac,
        },
        low_power_mode: None,
    }
}

/// Returns the last reported status, with the current conditions of other writers.
fn previous(
    last_statuses: &BTreeMap<(ReplicaKey, String), ModelReplicaStatus>,
    key: &ReplicaKey,
    replica: &DesiredReplica,
    object: Option<&ModelReplica>,
) -> ModelReplicaStatus {
    const OURS: [&str; 4] = [
        condition_type::ADMITTED,
        condition_type::ARTIFACTS_READY,
        condition_type::LOADED,
        condition_type::READY,
    ];
    let written = object.and_then(|object| object.status.clone());
    let Some(mut last) = last_statuses.get(&(key.clone(), replica.uid.clone())).cloned() else {
        return written.unwrap_or_default();
    };
    for theirs in written.into_iter().flat_map(|status| status.conditions) {
        if OURS.contains(&theirs.type_.as_str()) {
            continue;
        }
        match last
            .conditions
            .iter_mut()
            .find(|known| known.type_ == theirs.type_)
        {
            Some(known) => *known = theirs,
            None => last.conditions.insert(0, theirs),
        }
    }
    last
}

/// Minimum slowdown at which a Mac reports the thermal state Serious.
const HOT_FACTOR: f64 = 1.5;

impl World<'_> {
    pub(crate) fn make_reports(
        &mut self,
        node: usize,
        desired: &Desired,
        plan: &SyncPlan,
        observed: &Observed,
        now: Timestamp,
    ) {
        let state = &self.nodes[node];
        let mut reports = BTreeMap::new();
        for (key, ResolvedReplica { replica, model }) in &desired.replicas {
            let Some(step) = plan.steps.get(key) else { continue };
            let object = state
                .view
                .replica(&(Some(key.namespace.clone()), key.name.clone()));
            let object = object.filter(|object| object.uid().as_deref() == Some(replica.uid.as_str()));
            let previous = previous(&state.last_statuses, key, replica, object.as_deref());
            let facts = Facts {
                node: &state.machine.name,
                serving_name: &replica.spec.serving_name,
                generation: Some(replica.generation),
                step,
                pull: None,
                reservation: model
                    .as_ref()
                    .ok()
                    .map(|facts| Reservation::new(&facts.served, demand(replica, facts)).total()),
                progress: state.progress(key),
                running_admission: plan.running_admission.get(key),
                overridden: replica.terms.overridden,
                prediction: observed
                    .hardware
                    .zip(model.as_ref().ok().map(|facts| facts.served.as_ref())),
                calibrations: &[],
            };
            let status = replica_status(&facts, &previous, now);
            let early = self.planted.has(Bug::ReleasedWhileDraining)
                && replica.deleting
                && matches!(step, Step::Stop(_) | Step::AwaitStop);
            let report = Report {
                replica: replica.clone(),
                status,
                release: *step == Step::Release || early,
            };
            reports.insert(key.clone(), report);
        }
        let reserved = observed
            .replicas
            .values()
            .filter(|seen| seen.worker != WorkerState::None);
        let reserved = reserved.map(|seen| seen.held.reserved).sum();
        let state = &mut self.nodes[node];
        if state.synced {
            state.last_statuses = reports
                .iter()
                .map(|(key, report)| ((key.clone(), report.replica.uid.clone()), report.status.clone()))
                .collect();
        }
        state.reports = Reports {
            replicas: reports,
            models: state.machine.class.published.clone(),
            reserved,
            disk_limit: Some(observed.disk_limit),
            reserved_share: plan.reserved_share,
            idle: state.workers.is_empty(),
            pressure: observed.pressure,
            ..Reports::default()
        };
    }

    pub(crate) fn replica_writes(&self, node: usize) -> Vec<Write> {
        let state = &self.nodes[node];
        let mut writes = Vec::new();
        for (key, report) in &state.reports.replicas {
            let object = state
                .view
                .replica(&(Some(key.namespace.clone()), key.name.clone()));
            let Some(object) =
                object.filter(|object| object.uid().as_deref() == Some(report.replica.uid.as_str()))
            else {
                continue;
            };
            let of = Version::of(object.as_ref());
            if report.release {
                if object.finalizers().iter().any(|name| name == REPLICA_FINALIZER) {
                    writes.push(Write::RemoveFinalizer { of });
                }
            } else if object.status.as_ref() != Some(&report.status)
                && (self.planted.has(Bug::GenerationUnchecked) || !report.is_outdated(&object))
            {
                let status = Box::new(report.status.clone());
                writes.push(Intent::ReplicaStatus { of, status }.into());
            }
        }
        writes
    }

    pub(crate) fn node_writes(&mut self, node: usize) -> Vec<Write> {
        let state = &self.nodes[node];
        let name = &state.machine.name;
        let Some(object) = state.view.node(name) else {
            let mut object = FleetNode::new(name, FleetNodeSpec::default());
            let mut labels = state.machine.class.labels.clone();
            labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
            object.metadata.labels = Some(labels);
            return vec![Write::Register(Box::new(object))];
        };
        let identity = state.machine.identity();
        let probe = ProbeState::simulated();
        let endpoint = format!("http://{name}:7446");
        let facts = NodeFacts {
            identity: &identity,
            machine_id: identity.machine_id.as_deref().unwrap_or_default(),
            memory: state.memory(),
            disk: Some(DISK),
            power: power(state.thermal, state.on_battery > 0),
            presence: Presence {
                lid_closed: Some(state.lid_closed > 0),
                idle: Some(idle(state.user_present > 0)),
            },
            leaked: None,
            quiet: state
                .machine
                .class
                .quiet_hours
                .contain(state.time_of_day(self.clock())),
            matrix_unit_kernels: None,
            is_anonymous: false,
            other_agent: None,
            endpoint: &endpoint,
            has_gateway_log: false,
            probe: &probe,
            reports: &state.reports,
            generation: object.metadata.generation,
            stopping: false,
        };
        let previous = object.status.clone().unwrap_or_default();
        let status = node_status(&facts, &previous, state.local_time(self.clock()));
        let now = self.now;
        let of = Version::of(object.as_ref());
        let state = &mut self.nodes[node];
        if state.is_connected() {
            state.renewing_since.get_or_insert(now);
        }
        if previous == status {
            return Vec::new();
        }
        vec![
            Intent::NodeStatus {
                of,
                status: Box::new(status),
            }
            .into(),
        ]
    }
}
