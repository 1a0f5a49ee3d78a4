//! Watches the Leases and carries plans out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::heard::{Heard, Heartbeats};
use super::observed::Observed;
use super::plan::{NodePlan, Step};
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::meta::{LEASE_NAMESPACE, REPLICA_FINALIZER, lease_name};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_client::{ApiError, EventType};

/// See the module.
pub(crate) struct NodeLifecycle {
    world: World,
    heartbeats: Heartbeats,
}

impl NodeLifecycle {
    pub(crate) fn new(world: World) -> Self {
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
            Step::NodeSkewed {
                node,
                status,
                message,
            } => {
                if world.node_status(node, &status).await?
                    && let Some(message) = message
                {
                    world
                        .recorder
                        .publish(node, EventType::Warning, "VersionSkew", message);
                }
            }
            Step::ReplicaLeaving {
                replica,
                status,
                cause,
            } => {
                if world.status(&world.replicas, replica, &status).await?
                    && let Some(cause) = cause
                {
                    let message = format!("{cause}: its replacement comes first");
                    world
                        .recorder
                        .publish(replica, EventType::Normal, "ReplacementRequested", message);
                }
            }
            Step::Evict { replica, message } => {
                // It may have come back since.
                world.delete_unchanged(&world.replicas, replica).await?;
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

    /// For how long which nodes are silent.
    async fn hear(&mut self, seen: &Seen, pass: &mut PassStatus) -> Heard {
        let nodes: Vec<_> = seen.nodes.iter().map(AsRef::as_ref).collect();
        let replicas: Vec<_> = seen.replicas.iter().map(AsRef::as_ref).collect();
        let leases = &self.world.leases;
        let lease = |name: &str| {
            let lease = leases.get(Some(LEASE_NAMESPACE), name)?;
            Some(lease.as_ref().clone())
        };
        let instant = self.world.clock.instant();
        let mut heard = self.heartbeats.observe(&nodes, &replicas, lease, instant);
        let doubtful = heard.doubtful(&nodes);
        pass.note(self.confirm(&mut heard, doubtful).await);
        heard
    }

    /// Asks the server itself before nodes are taken for silent: a watch may have stalled.
    async fn confirm(&mut self, heard: &mut Heard, doubtful: Vec<String>) -> Result<(), ApiError> {
        if doubtful.is_empty() {
            return Ok(());
        }
        let listed = self.world.leases_now().await;
        let now = self.world.clock.instant();
        let mut leases: HashMap<String, _> = match &listed {
            Ok(leases) => leases
                .iter()
                .map(|lease| (lease.name_any(), lease.resource_version()))
                .collect(),
            Err(_) => HashMap::new(),
        };
        for node in doubtful {
            let silence = match &listed {
                Ok(_) => {
                    let version = leases.remove(&lease_name(&node)).flatten();
                    self.heartbeats.confirm(&node, version, now)
                }
                // It may well have been heard of; nobody can tell.
                Err(_) => Duration::ZERO,
            };
            heard.silence.insert(node, silence);
        }
        listed.map(drop)
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

/// Renewals of Leases wake nobody: this is how late the node life controller may see one. Kubernetes'
/// `--node-monitor-period`.
pub const NODE_MONITOR_PERIOD: Duration = Duration::from_secs(5);

impl Reconciler for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";
    const RESYNC: Duration = NODE_MONITOR_PERIOD;

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let seen = Seen::of(&self.world);
        let heard = self.hear(&seen, &mut pass).await;
        let mut plan = seen.plan(&self.world, heard.clone());
        let (seen_again, mut _disruptions);
        if plan.steps.iter().any(|step| matches!(step, Step::Evict { .. })) {
            // Others may have taken away what these count on.
            _disruptions = self.world.disruptions.lock().await;
            seen_again = Seen::of(&self.world);
            plan = seen_again.plan(&self.world, heard);
        }
        pass.requeue(plan.requeue_after);
        for step in plan.steps {
            pass.note(self.apply(step).await);
        }
        pass
    }
}

/// What the caches hold at a moment.
struct Seen {
    nodes: Vec<Arc<FleetNode>>,
    replicas: Vec<Arc<ModelReplica>>,
    deployments: Vec<Arc<ModelDeployment>>,
}

impl Seen {
    fn of(world: &World) -> Self {
        Self {
            nodes: world.nodes.list(),
            replicas: world.replicas.list(),
            deployments: world.deployments.list(),
        }
    }

    fn plan(&self, world: &World, heard: Heard) -> NodePlan<'_> {
        NodePlan::new(&Observed {
            nodes: self.nodes.iter().map(AsRef::as_ref).collect(),
            replicas: self.replicas.iter().map(AsRef::as_ref).collect(),
            deployments: self.deployments.iter().map(AsRef::as_ref).collect(),
            heard,
            reserve_node_failures: world.reserve_node_failures,
            version: env!("CARGO_PKG_VERSION"),
            now: world.clock.now(),
        })
    }
}
