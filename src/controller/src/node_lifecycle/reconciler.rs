//! Observation of Leases and execution of the planned writes.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;

use super::heartbeats::{Heartbeats, Timings};
use super::writes::intents_with_reserve;
use crate::executor::Executor;
use crate::intent::Snapshot;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::meta::{LEASE_NAMESPACE, lease_name};
use rooflet_client::ApiError;

/// Reconciler of nodes and of the replicas on them.
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

    /// Returns the durations of node states.
    async fn observe_timings(&mut self, snapshot: &Snapshot, pass: &mut PassStatus) -> Timings {
        let nodes: Vec<_> = snapshot.nodes.iter().map(AsRef::as_ref).collect();
        let replicas: Vec<_> = snapshot.replicas.iter().map(AsRef::as_ref).collect();
        let leases = &self.world.leases;
        let lease = |name: &str| {
            let lease = leases.get(Some(LEASE_NAMESPACE), name)?;
            Some(lease.as_ref().clone())
        };
        let instant = self.world.clock.instant();
        let mut timings = self.heartbeats.observe(&nodes, &replicas, lease, instant);
        let newly_silent = timings.newly_silent(&nodes);
        pass.record(self.confirm(&mut timings, newly_silent).await);
        timings
    }

    /// Lists the Leases on the server before nodes are reported as silent, because the watch may
    /// have stalled.
    async fn confirm(&mut self, timings: &mut Timings, newly_silent: Vec<String>) -> Result<(), ApiError> {
        if newly_silent.is_empty() {
            return Ok(());
        }
        let listed = self.world.list_leases().await;
        let now = self.world.clock.instant();
        let mut leases: HashMap<String, _> = match &listed {
            Ok(leases) => leases
                .iter()
                .map(|lease| (lease.name_any(), lease.resource_version()))
                .collect(),
            Err(_) => HashMap::new(),
        };
        for node in newly_silent {
            let silence = match &listed {
                Ok(_) => {
                    let version = leases.remove(&lease_name(&node)).flatten();
                    self.heartbeats.confirm(&node, version, now)
                }
                // Without the list, a missed renewal is possible.
                Err(_) => Duration::ZERO,
            };
            timings.silence.insert(node, silence);
        }
        listed.map(drop)
    }
}

/// Maximum delay until the node lifecycle observes a renewal, because renewals trigger no pass.
/// Kubernetes' `--node-monitor-period`.
pub const NODE_MONITOR_PERIOD: Duration = Duration::from_secs(5);

impl Reconciler for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";
    const RESYNC: Duration = NODE_MONITOR_PERIOD;
    // A pass reads the whole fleet. During a drain, every change can cause one.
    const MIN_PERIOD: Duration = Duration::from_millis(200);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let mut snapshot = observe(&self.world);
        let timings = self.observe_timings(&snapshot, &mut pass).await;
        let world = &self.world;
        let plan = |snapshot: &Snapshot, timings| {
            intents_with_reserve(snapshot, timings, world.reserve_node_failures, world.clock.now())
        };
        let mut intents = plan(&snapshot, timings.clone());
        let mut _disruptions;
        if intents.writes.iter().any(|write| write.intent.disrupts()) {
            // Another reconciler may have deleted replicas that these evictions rely on.
            _disruptions = world.disruptions.lock().await;
            snapshot = observe(world);
            intents = plan(&snapshot, timings);
        }
        pass.requeue(intents.requeue_after);
        pass.record_failures(Executor::new(world, &snapshot).run(intents.writes).await);
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
