//! Facts about the watched objects that determine the routing table. An update of an object that
//! changes none of them, such as a heartbeat, does not change the table.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::estimate::Speed;
use super::table::{Model, Replica, Routing, Target};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::REVISION_LABEL;
use rooflet_api::v1alpha1::{
    FleetNode, LoadedModel, ModelDeployment, ModelReplica, ModelReplicaStatus, ReplicaPhase, RoutingSpec,
};
use rooflet_api::wire::replica_id;
use rooflet_base::units::Bytes;
use rooflet_proxy::Upstream;
use rooflet_roofline::loading::{Disk, Download, Link, WeightRead};
use rooflet_roofline::published;

/// Facts about a deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeploymentFacts {
    pub(super) served_name: String,
    created: i64,
    is_terminating: bool,
    replicas: i32,
    /// Maximum concurrent requests of one replica.
    rows: u32,
    autoscaled: bool,
    /// True if the deployment was rejected or is degraded. It becomes ready only if one of its
    /// replicas may become ready.
    is_stuck: bool,
    last_start: Option<Duration>,
    /// Message of the condition Ready.
    ready_message: Option<String>,
    routing: RoutingSpec,
    traffic: Vec<(String, u32)>,
}

impl DeploymentFacts {
    pub(super) fn of(deployment: &ModelDeployment) -> Self {
        let spec = &deployment.spec;
        let status = deployment.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
        let traffic = status.map_or(&[][..], |status| &status.traffic);
        Self {
            served_name: spec.serving.name.clone().unwrap_or_else(|| deployment.name_any()),
            created: created(&deployment.metadata),
            is_terminating: deployment.metadata.deletion_timestamp.is_some(),
            replicas: spec.replicas,
            rows: spec.serving.max_concurrency,
            autoscaled: spec.autoscaling.is_some(),
            is_stuck: find(condition_type::ADMITTED).is_some_and(|admitted| admitted.status == "False")
                || is_true(conditions, condition_type::DEGRADED),
            last_start: status
                .and_then(|status| status.last_start.as_ref())
                .map(|start| Duration::from_secs(u64::from(start.seconds))),
            ready_message: find(condition_type::READY).map(|ready| ready.message.clone()),
            routing: spec.routing.clone(),
            traffic: traffic
                .iter()
                .map(|share| (share.revision.clone(), share.weight.max(0).unsigned_abs()))
                .collect(),
        }
    }

    pub(super) fn add_to(&self, model: &mut Model) {
        model.created = model.created.min(self.created);
        if self.is_terminating {
            model
                .unavailable_reason
                .get_or_insert("the deployment is being deleted".to_owned());
            return;
        }
        let replicas = u32::try_from(self.replicas).unwrap_or_default();
        let rows = replicas.saturating_mul(self.rows);
        model.wanted_rows = model.wanted_rows.saturating_add(rows);
        model.has_desired_replicas |= self.replicas > 0 || self.autoscaled;
        model.may_become_ready |= model.has_desired_replicas && !self.is_stuck;
        model.autoscaled |= self.autoscaled;
        model.last_start = model.last_start.max(self.last_start);
        model.unavailable_reason = self.ready_message.clone().or(model.unavailable_reason.take());
        model.routing = Routing::new(&self.routing);
        model.traffic.extend(self.traffic.iter().cloned());
    }
}

/// Facts about a replica that serves a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReplicaFacts {
    pub(super) served_name: String,
    pub(super) id: u64,
    pub(super) node: Option<String>,
    target: Target,
    created: i64,
    is_terminating: bool,
    is_ready: bool,
    is_unplaced: bool,
    is_failed: bool,
    revision: Option<String>,
    rows: u32,
    speed: Speed,
    reported: Option<u64>,
    unloads: bool,
    loaded: Option<LoadedModel>,
    weights: Option<u64>,
    /// Bytes of the model that are not downloaded yet.
    missing_bytes: Option<u64>,
}

impl ReplicaFacts {
    /// Returns `None` if the replica has no served name.
    pub(super) fn of(replica: &ModelReplica) -> Option<Self> {
        let served_name = replica.spec.serving.name.clone()?;
        let (namespace, name) = (replica.namespace().unwrap_or_default(), replica.name_any());
        let none = ModelReplicaStatus::default();
        let status = replica.status.as_ref().unwrap_or(&none);
        let is_terminating = replica.metadata.deletion_timestamp.is_some();
        let rows = replica.spec.serving.max_concurrency;
        Some(Self {
            served_name,
            id: replica_id(&namespace, &name),
            node: replica.spec.node_name.clone(),
            target: Target {
                namespace,
                replica: name,
            },
            created: created(&replica.metadata),
            is_terminating,
            is_ready: is_true(&status.conditions, condition_type::READY) && !is_terminating,
            is_unplaced: is_unplaced(replica),
            is_failed: status.phase == ReplicaPhase::Failed,
            revision: replica.labels().get(REVISION_LABEL).cloned(),
            rows,
            speed: Speed::of(status, rows),
            reported: status
                .requests
                .as_ref()
                .map(|requests| requests.running + requests.waiting),
            unloads: replica.spec.serving.keep_alive.is_some(),
            loaded: status.model.clone(),
            weights: status
                .admission
                .as_ref()
                .map(|admission| admission.memory.weights_bytes),
            missing_bytes: status
                .download
                .as_ref()
                .map(|download| download.total_bytes.saturating_sub(download.bytes)),
        })
    }

    /// Adds the replica to its model. `host` is the replica's node, if the node reports. A replica
    /// that is not ready does not create the entry of a model without a deployment.
    pub(super) fn add_to(&self, model: &mut Option<Model>, host: Option<&Host>, new: impl FnOnce() -> Model) {
        let (Some(host), true) = (host, self.is_ready) else {
            if let Some(model) = model {
                self.add_unready_to(model, host);
            }
            return;
        };
        let model = model.get_or_insert_with(new);
        model.created = model.created.min(self.created);
        let context_tokens = self.loaded.as_ref().map(|loaded| loaded.context_tokens);
        model.context_tokens = model.context_tokens.max(context_tokens);
        let loaded = model.loaded.take().into_iter().chain(self.loaded.clone());
        model.loaded = loaded.max_by_key(|loaded| loaded.weights_bytes);
        model.replicas.push(Replica {
            id: self.id,
            target: self.target.clone(),
            upstream: host.upstream.clone(),
            revision: self.revision.clone(),
            rows: self.rows,
            speed: self.speed,
            reported: self.reported,
            unloads: self.unloads,
        });
    }

    fn add_unready_to(&self, model: &mut Model, host: Option<&Host>) {
        if !self.is_terminating && self.node.is_some() {
            model.starting.push(self.id);
            let reading = host
                .zip(self.weights)
                .map(|(host, bytes)| WeightRead::new(Bytes(bytes), &host.disk));
            let download = host
                .zip(self.missing_bytes)
                .and_then(|(host, missing)| Download::new(Bytes(missing), &host.link));
            let soonest = |a: &Download, b: &Download| a.seconds.total_cmp(&b.seconds);
            model.download = match (model.starting.len(), model.download, download) {
                (1, _, download) => download,
                (_, Some(known), Some(download)) => Some(known).into_iter().chain([download]).min_by(soonest),
                (_, _, _) => None,
            };
            let soonest = |a: &WeightRead, b: &WeightRead| a.seconds.total_cmp(&b.seconds);
            model.reading = model.reading.into_iter().chain(reading).min_by(soonest);
        }
        if !self.is_terminating && self.is_unplaced {
            model.is_unplaced = true;
            return;
        }
        // The successor of a terminating replica may not exist yet, and the agent restarts a
        // crashed worker. A Failed replica does not recover.
        model.may_become_ready |= model.has_desired_replicas && !self.is_failed;
    }
}

/// Returns whether the replica is unschedulable and no preemption is pending for it.
fn is_unplaced(replica: &ModelReplica) -> bool {
    let status = replica.status.as_ref();
    let is_rejected =
        |condition: &Condition| condition.type_ == condition_type::SCHEDULED && condition.status == "False";
    replica.spec.node_name.is_none()
        && status.is_some_and(|status| {
            status.nominated_node_name.is_none() && status.conditions.iter().any(is_rejected)
        })
}

/// Facts about a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NodeFacts {
    /// The node has stopped reporting. The gateway sends no requests to it.
    Silent,
    /// `None` if the node has no valid endpoint.
    Reporting(Option<Host>),
}

impl NodeFacts {
    pub(super) fn of(node: &FleetNode) -> Self {
        let is_silent = node.status.as_ref().is_some_and(|status| {
            let mut conditions = status.conditions.iter();
            conditions
                .any(|condition| condition.type_ == condition_type::READY && condition.status == "Unknown")
        });
        match is_silent {
            true => Self::Silent,
            false => Self::Reporting(Host::of(node)),
        }
    }

    pub(super) fn host(&self) -> Option<&Host> {
        match self {
            Self::Silent => None,
            Self::Reporting(host) => host.as_ref(),
        }
    }
}

/// Node whose agent serves requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Host {
    upstream: Upstream,
    disk: Disk,
    link: Link,
}

impl Host {
    fn of(node: &FleetNode) -> Option<Self> {
        let status = node.status.as_ref()?;
        let name = node.metadata.name.as_deref()?;
        let upstream = Upstream::of_node(status.endpoint.as_deref()?, name).ok()?;
        let disk = Disk::new(published::node_disk_read(status));
        let link = Link::new(
            status
                .download
                .as_ref()
                .map(|speed| speed.median_bytes_per_second),
        );
        Some(Self { upstream, disk, link })
    }
}

fn created(meta: &kube::api::ObjectMeta) -> i64 {
    meta.creation_timestamp
        .as_ref()
        .map_or(0, |created| created.0.as_second())
}
