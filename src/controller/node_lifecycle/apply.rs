//! Watches the Leases and carries plans out.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use super::plan::{NodePlan, Observed, Step};
use crate::api::meta::{REPLICA_FINALIZER, lease_name};
use crate::api::v1alpha1::{FleetNode, ModelReplica};
use crate::client::{ApiError, EventType};
use crate::controller::runtime::{PassStatus, Reconciler};
use crate::controller::world::World;

/// When each node was last heard of, by our own clock: the clocks of two machines never agree.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    seen: HashMap<String, (Option<MicroTime>, Instant)>,
    missing: HashMap<String, Instant>,
}

impl Heartbeats {
    /// For how long each node has been silent. A node seen for the first time counts as heard of.
    pub(crate) fn silence<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
        lease: impl Fn(&str) -> Option<Lease>,
        now: Instant,
    ) -> BTreeMap<String, Duration> {
        let mut seen = HashMap::new();
        let silence = nodes
            .into_iter()
            .map(|node| {
                let name = node.name_any();
                let renewed = lease(&lease_name(&name))
                    .and_then(|lease| lease.spec)
                    .and_then(|spec| spec.renew_time);
                let since = match self.seen.remove(&name) {
                    Some((known, since)) if known == renewed => since,
                    Some(_) | None => now,
                };
                seen.insert(name.clone(), (renewed, since));
                (name, now - since)
            })
            .collect();
        self.seen = seen;
        silence
    }

    /// For how long the nodes of bound replicas have not been there.
    pub(crate) fn missing<'a>(
        &mut self,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        now: Instant,
    ) -> BTreeMap<String, Duration> {
        let mut missing = HashMap::new();
        for node in replicas
            .into_iter()
            .filter_map(|replica| replica.spec.node_name.as_ref())
        {
            if !self.seen.contains_key(node) {
                let since = self.missing.get(node).copied().unwrap_or(now);
                missing.insert(node.clone(), since);
            }
        }
        self.missing = missing;
        self.missing
            .iter()
            .map(|(node, since)| (node.clone(), now - *since))
            .collect()
    }
}

/// See the module.
pub(in crate::controller) struct NodeLifecycle {
    world: World,
    heartbeats: Heartbeats,
}

impl NodeLifecycle {
    pub(in crate::controller) fn new(world: World) -> Self {
        Self {
            world,
            heartbeats: Heartbeats::default(),
        }
    }

    async fn apply(&self, step: Step<'_>) -> Result<(), ApiError> {
        let world = &self.world;
        match step {
            Step::NodeSilent {
                node,
                status,
                message,
            } => {
                if world.node_status(node, &status).await? {
                    world
                        .recorder
                        .publish(node, EventType::Warning, "NodeNotReady", message);
                }
            }
            Step::ReplicaNotReady { replica, status } => {
                if world.status(&world.replicas, replica, &status).await? {
                    let node = replica.spec.node_name.as_deref().unwrap_or_default();
                    let message = format!("{node} does not report: no requests are sent there");
                    world
                        .recorder
                        .publish(replica, EventType::Warning, "NodeNotReady", message);
                }
            }
            Step::NodeDrained {
                node,
                status,
                drained,
            } => {
                if world.node_status(node, &status).await? && drained {
                    world
                        .recorder
                        .publish(node, EventType::Normal, "Drained", "no replica is left");
                }
            }
            Step::Evict { replica, message } => {
                world.delete(&world.replicas, replica).await?;
                let message = format!("Evicted: {message}");
                world
                    .recorder
                    .publish(replica, EventType::Warning, "Evicted", message);
            }
            Step::Release { replica, message } => {
                // An agent that lives registers its node again, and its worker still runs.
                if let Some(node) = &replica.spec.node_name
                    && world.has_node(node).await?
                {
                    return Ok(());
                }
                if replica.metadata.deletion_timestamp.is_none() {
                    world.delete(&world.replicas, replica).await?;
                }
                self.release(replica).await?;
                let message = format!("Released: {message}");
                world
                    .recorder
                    .publish(replica, EventType::Warning, "NodeDeleted", message);
            }
        }
        Ok(())
    }

    /// Takes our finalizer off the newest version of the replica.
    async fn release(&self, replica: &ModelReplica) -> Result<(), ApiError> {
        let replicas = &self.world.replicas;
        let Some(newest) = replicas.get(replica.namespace().as_deref(), &replica.name_any()) else {
            return Ok(());
        };
        let left: Vec<_> = newest
            .finalizers()
            .iter()
            .filter(|name| *name != REPLICA_FINALIZER)
            .collect();
        let patch = serde_json::json!({
            "metadata": {
                "resourceVersion": newest.metadata.resource_version,
                "finalizers": left,
            },
        });
        match self.world.patch(replicas, newest.as_ref(), &patch).await {
            Ok(_) if left.is_empty() => {
                replicas.deleted(&newest);
                Ok(())
            }
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(err) => Err(err),
        }
    }
}

impl Reconciler for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";
    const RESYNC: Duration = Duration::from_secs(15);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let (nodes, replicas) = (self.world.nodes.list(), self.world.replicas.list());
        let deployments = self.world.deployments.list();
        let nodes: Vec<_> = nodes.iter().map(AsRef::as_ref).collect();
        let replicas: Vec<_> = replicas.iter().map(AsRef::as_ref).collect();
        let (leases, instant) = (&self.world.leases, self.world.clock.instant());
        let lease = |name: &str| {
            leases
                .get(Some(crate::api::meta::LEASE_NAMESPACE), name)
                .map(|lease| lease.as_ref().clone())
        };
        let silence = self.heartbeats.silence(nodes.iter().copied(), lease, instant);
        let missing = self.heartbeats.missing(replicas.iter().copied(), instant);
        let plan = NodePlan::new(&Observed {
            nodes,
            replicas,
            deployments: deployments.iter().map(AsRef::as_ref).collect(),
            silence,
            missing,
            now: self.world.clock.now(),
        });
        pass.look_again(plan.look_again_after);
        for step in plan.steps {
            pass.note(self.apply(step).await);
        }
        pass
    }
}
