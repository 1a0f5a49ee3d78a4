//! Routing table: models and their ready replicas. An immutable value, rebuilt after every change
//! of the watched objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::estimate::Speed;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::REVISION_LABEL;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ReplicaPhase, RoutingSpec};
use rooflet_api::wire::replica_id;
use rooflet_base::quantity::parse_duration;
use rooflet_base::units::Bytes;
use rooflet_proxy::Upstream;
use rooflet_roofline::loading::{Disk, Download, Link, WeightRead};
use rooflet_roofline::published;

/// Maximum queue time if the deployment and the request set none.
const DEFAULT_QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// Namespace and name of a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) replica: String,
}

/// Ready replica, with the inputs of routing decisions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replica {
    pub(crate) target: Target,
    /// Hash of namespace and name; equal in all gateways.
    pub(crate) id: u64,
    pub(crate) upstream: Upstream,
    pub(crate) revision: Option<String>,
    /// Maximum number of concurrent requests.
    pub(crate) rows: u32,
    pub(crate) speed: Speed,
    /// Running and waiting requests of all gateways, from the agent's last report.
    pub(crate) reported: Option<u64>,
}

/// Routing settings of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Routing {
    pub(crate) queue_timeout: Duration,
    /// `None`: derived from the total rows of the replicas.
    pub(crate) max_queued: Option<usize>,
    pub(crate) fallbacks: Vec<String>,
    pub(crate) hedge_after: Option<Duration>,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            queue_timeout: DEFAULT_QUEUE_TIMEOUT,
            max_queued: None,
            fallbacks: Vec::new(),
            hedge_after: None,
        }
    }
}

impl Routing {
    fn new(spec: &RoutingSpec) -> Self {
        let default = Self::default();
        let time = |text: &String| parse_duration(text);
        Self {
            queue_timeout: spec
                .queue_timeout
                .as_ref()
                .and_then(time)
                .unwrap_or(default.queue_timeout),
            max_queued: spec.max_queued_requests.map(|most| most as usize),
            fallbacks: spec.fallbacks.clone(),
            hedge_after: spec.hedging.as_ref().and_then(|hedging| time(&hedging.after)),
        }
    }
}

/// Model, identified by namespace and served name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Model {
    pub(crate) namespace: String,
    /// Served name, as used by the workers.
    pub(crate) name: String,
    pub(crate) replicas: Vec<Replica>,
    /// Reason for the absence of ready replicas, from the deployment's status.
    pub(crate) unavailable_reason: Option<String>,
    /// Whether the deployment has desired replicas or autoscaling.
    pub(crate) has_desired_replicas: bool,
    /// Maximum concurrent requests of all desired replicas.
    pub(crate) wanted_rows: u32,
    /// Whether a replica may become ready, so that requests are queued instead of rejected.
    pub(crate) may_become_ready: bool,
    /// Whether a replica is unschedulable.
    pub(crate) is_unplaced: bool,
    /// Ids of replicas that are bound to a node and not ready.
    pub(crate) starting: Vec<u64>,
    /// Shortest time to read the weights, over the starting replicas.
    pub(crate) reading: Option<WeightRead>,
    /// Shortest remaining download of the starting replicas. `None` if one of them has its model.
    pub(crate) download: Option<Download>,
    /// Duration of the last start of a replica.
    pub(crate) last_start: Option<Duration>,
    /// Percentage of requests by revision, during a canary rollout.
    pub(crate) traffic: Vec<(String, u32)>,
    pub(crate) routing: Routing,
    /// Whether the deployment is autoscaled.
    pub(crate) autoscaled: bool,
    /// Creation time, as Unix time in seconds.
    pub(crate) created: i64,
    pub(crate) context_tokens: Option<u32>,
}

/// Failed lookup of a model by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    NotFound,
    /// Several namespaces serve the name. The field lists the qualified names.
    Ambiguous(Vec<String>),
}

/// All models, by namespace and served name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RoutingTable {
    models: BTreeMap<(String, String), Model>,
    /// Replicas on nodes whose Ready condition is Unknown.
    silent: BTreeSet<u64>,
}

impl RoutingTable {
    pub(crate) fn new<'a>(
        deployments: impl IntoIterator<Item = &'a ModelDeployment>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
    ) -> Self {
        let mut table = Self::default();
        for deployment in deployments {
            table.add_deployment(deployment);
        }
        let (silent, reporting): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| is_silent(node));
        let silent: BTreeSet<_> = silent.into_iter().map(FleetNode::name_any).collect();
        let hosts: BTreeMap<_, _> = reporting.into_iter().filter_map(host).collect();
        for replica in replicas {
            if replica
                .spec
                .node_name
                .as_ref()
                .is_some_and(|node| silent.contains(node))
            {
                table.silent.insert(id(replica));
            }
            table.add_replica(replica, &hosts);
        }
        table
    }

    #[cfg(test)]
    pub(crate) fn of_models(models: impl IntoIterator<Item = Model>) -> Self {
        Self {
            models: models.into_iter().map(|model| (model.key(), model)).collect(),
            ..Self::default()
        }
    }

    fn model(&mut self, namespace: &str, name: &str) -> &mut Model {
        let key = (namespace.to_owned(), name.to_owned());
        self.models.entry(key).or_insert_with(|| Model {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            created: i64::MAX,
            ..Model::default()
        })
    }

    fn add_deployment(&mut self, deployment: &ModelDeployment) {
        let namespace = deployment.namespace().unwrap_or_default();
        let name = deployment
            .spec
            .serving
            .name
            .clone()
            .unwrap_or_else(|| deployment.name_any());
        let status = deployment.status.clone().unwrap_or_default();
        let find = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind);
        let ready = find(condition_type::READY);
        // A rejected or degraded deployment becomes ready only if one of its replicas may; see
        // `add_replica`.
        let is_stuck = find(condition_type::ADMITTED).is_some_and(|admitted| admitted.status == "False")
            || is_true(&status.conditions, condition_type::DEGRADED);
        let model = self.model(&namespace, &name);
        model.created = model.created.min(created(&deployment.metadata));
        if deployment.metadata.deletion_timestamp.is_some() {
            model
                .unavailable_reason
                .get_or_insert("the deployment is being deleted".to_owned());
            return;
        }
        let autoscaled = deployment.spec.autoscaling.is_some();
        let replicas = u32::try_from(deployment.spec.replicas).unwrap_or_default();
        let rows = replicas.saturating_mul(deployment.spec.serving.max_concurrency);
        model.wanted_rows = model.wanted_rows.saturating_add(rows);
        model.has_desired_replicas |= deployment.spec.replicas > 0 || autoscaled;
        model.may_become_ready |= model.has_desired_replicas && !is_stuck;
        model.autoscaled |= autoscaled;
        let last_start = status
            .last_start
            .map(|start| Duration::from_secs(u64::from(start.seconds)));
        model.last_start = model.last_start.max(last_start);
        model.unavailable_reason = ready
            .map(|ready| ready.message.clone())
            .or(model.unavailable_reason.take());
        model.routing = Routing::new(&deployment.spec.routing);
        let shares = status.traffic.iter();
        model
            .traffic
            .extend(shares.map(|share| (share.revision.clone(), share.weight.max(0).unsigned_abs())));
    }

    fn add_replica(&mut self, replica: &ModelReplica, hosts: &BTreeMap<String, Host>) {
        let Some(name) = &replica.spec.serving.name else {
            return;
        };
        let namespace = replica.namespace().unwrap_or_default();
        let status = replica.status.clone().unwrap_or_default();
        let id = id(replica);
        let is_terminating = replica.metadata.deletion_timestamp.is_some();
        let host = replica.spec.node_name.as_ref().and_then(|node| hosts.get(node));
        let is_ready = is_true(&status.conditions, condition_type::READY) && !is_terminating;
        let (Some(host), true) = (host, is_ready) else {
            // A replica that is not ready does not define a model without a deployment.
            let Some(model) = self.models.get_mut(&(namespace, name.clone())) else {
                return;
            };
            if !is_terminating && replica.spec.node_name.is_some() {
                model.starting.push(id);
                let weights = status.admission.map(|admission| admission.memory.weights_bytes);
                let reading = host
                    .zip(weights)
                    .map(|(host, bytes)| WeightRead::new(Bytes(bytes), &host.disk));
                let download = status.download.as_ref().zip(host).and_then(|(download, host)| {
                    let missing = download.total_bytes.saturating_sub(download.bytes);
                    Download::new(Bytes(missing), &host.link)
                });
                let soonest = |a: &Download, b: &Download| a.seconds.total_cmp(&b.seconds);
                model.download = match (model.starting.len(), model.download, download) {
                    (1, _, download) => download,
                    (_, Some(known), Some(download)) => {
                        Some(known).into_iter().chain([download]).min_by(soonest)
                    }
                    (_, _, _) => None,
                };
                let soonest = |a: &WeightRead, b: &WeightRead| a.seconds.total_cmp(&b.seconds);
                model.reading = model.reading.into_iter().chain(reading).min_by(soonest);
            }
            if !is_terminating && is_unplaced(replica) {
                model.is_unplaced = true;
                return;
            }
            // The successor of a terminating replica may not exist yet, and the agent restarts a
            // crashed worker. A Failed replica does not recover.
            model.may_become_ready |= model.has_desired_replicas && status.phase != ReplicaPhase::Failed;
            return;
        };
        let target = Target {
            namespace: namespace.clone(),
            replica: replica.name_any(),
        };
        let rows = replica.spec.serving.max_concurrency;
        let endpoint = Replica {
            id,
            target,
            upstream: host.upstream.clone(),
            revision: replica.labels().get(REVISION_LABEL).cloned(),
            rows,
            speed: Speed::of(&status, rows),
            reported: status
                .requests
                .map(|requests| requests.running + requests.waiting),
        };
        let model = self.model(&namespace, name);
        model.created = model.created.min(created(&replica.metadata));
        model.context_tokens = model
            .context_tokens
            .max(status.model.map(|model| model.context_tokens));
        model.replicas.push(endpoint);
    }

    /// Returns the model for a served name or `namespace/name`.
    pub(crate) fn find(&self, requested: &str) -> Result<&Model, LookupError> {
        let mut same_name = self.models.values().filter(|model| model.name == requested);
        match (same_name.next(), same_name.next()) {
            (Some(model), None) => return Ok(model),
            (Some(_), Some(_)) => {
                let all = self.models.values().filter(|model| model.name == requested);
                return Err(LookupError::Ambiguous(all.map(Model::full_name).collect()));
            }
            (None, _) => {}
        }
        let (namespace, name) = requested.split_once('/').ok_or(LookupError::NotFound)?;
        self.models
            .get(&(namespace.to_owned(), name.to_owned()))
            .ok_or(LookupError::NotFound)
    }

    /// Returns the model with this [`Model::key`].
    pub(crate) fn get(&self, key: &(String, String)) -> Option<&Model> {
        self.models.get(key)
    }

    /// Returns whether the replica's node has stopped reporting.
    pub(crate) fn is_silent(&self, replica: u64) -> bool {
        self.silent.contains(&replica)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Model> {
        self.models.values()
    }

    /// Returns all models, each with its shortest unambiguous name.
    pub(crate) fn models(&self) -> impl Iterator<Item = (String, &Model)> {
        self.models.values().map(|model| {
            let name = match self.find(&model.name) {
                Ok(found) if std::ptr::eq(found, model) => model.name.clone(),
                Ok(_) | Err(_) => model.full_name(),
            };
            (name, model)
        })
    }
}

impl Model {
    pub(crate) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Returns the hash of the replica's namespace and name.
fn id(replica: &ModelReplica) -> u64 {
    replica_id(&replica.namespace().unwrap_or_default(), &replica.name_any())
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

/// Node whose agent serves requests.
struct Host {
    upstream: Upstream,
    disk: Disk,
    link: Link,
}

fn host(node: &FleetNode) -> Option<(String, Host)> {
    let status = node.status.as_ref()?;
    let upstream = status.endpoint.as_deref()?.parse().ok()?;
    let measured = status.probe.as_ref().map(|probe| &probe.measurements);
    let disk = Disk::new(measured.and_then(published::disk_read));
    let link = Link::new(status.download.map(|speed| speed.median_bytes_per_second));
    Some((node.name_any(), Host { upstream, disk, link }))
}

/// Returns whether the node has stopped reporting. The gateway sends no requests to such nodes.
fn is_silent(node: &FleetNode) -> bool {
    node.status.as_ref().is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.type_ == condition_type::READY && condition.status == "Unknown")
    })
}

fn created(meta: &kube::api::ObjectMeta) -> i64 {
    meta.creation_timestamp
        .as_ref()
        .map_or(0, |created| created.0.as_second())
}
