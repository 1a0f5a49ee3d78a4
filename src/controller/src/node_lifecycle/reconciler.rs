//! Watches the Leases and executes the plan's writes.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;

use super::heard::{Heard, Heartbeats};
use super::writes::intents_with_reserve;
use crate::executor::Executor;
use crate::intent::Snapshot;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::meta::{LEASE_NAMESPACE, lease_name};
use rooflet_client::ApiError;

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

    /// For how long which nodes are silent.
    async fn hear(&mut self, seen: &Snapshot, pass: &mut PassStatus) -> Heard {
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
}

/// Renewals of Leases wake nobody: this is how late the node life controller may see one. Kubernetes'
/// `--node-monitor-period`.
pub const NODE_MONITOR_PERIOD: Duration = Duration::from_secs(5);

impl Reconciler for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";
    const RESYNC: Duration = NODE_MONITOR_PERIOD;

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let mut snapshot = observe(&self.world);
        let heard = self.hear(&snapshot, &mut pass).await;
        let world = &self.world;
        let plan = |snapshot: &Snapshot, heard| {
            intents_with_reserve(snapshot, heard, world.reserve_node_failures, world.clock.now())
        };
        let mut intents = plan(&snapshot, heard.clone());
        let mut _disruptions;
        if intents.writes.iter().any(|write| write.intent.disrupts()) {
            // Another reconciler may have deleted replicas that these evictions rely on.
            _disruptions = world.disruptions.lock().await;
            snapshot = observe(world);
            intents = plan(&snapshot, heard);
        }
        pass.requeue(intents.requeue_after);
        pass.note_failures(Executor::new(world, &snapshot).run(intents.writes).await);
        pass
    }
}

/// Returns the current content of the caches.
fn observe(world: &World) -> Snapshot {
    Snapshot {
        nodes: world.nodes.list(),
        replicas: world.replicas.list(),
        deployments: world.deployments.list(),
        ..Snapshot::default()
    }
}
