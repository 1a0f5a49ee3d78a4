//! Reconcilers of deployments, replicas, nodes, capacity plans and performance claims.
//!
//! Each reconciler reads caches, computes a plan with a pure function and executes the plan. The
//! loops in `runtime` run the reconcilers. If several controller processes run, one leads.
//!
//! An index follows the changes of the caches. Deployments are reconciled one by one, from a queue
//! in which user changes come first, so the cost of a change does not grow with the fleet.
//!
//! Invariants:
//! - The controllers reach the API server through [`rooflet_client`] only. They do not depend on
//!   whether the server is the embedded one or a real Kubernetes.
//! - Only the binder writes `spec.nodeName` of a replica.
//! - A second pass over unchanged objects writes nothing.

mod anonymous_access;
mod autoscaler;
mod bandwidth_history;
pub mod bench;
mod binder;
mod capacity_plan;
mod claim;
mod deployment;
mod executor;
#[cfg(test)]
mod fixture;
mod fleet;
mod fleet_metrics;
mod history;
mod hub;
mod index;
pub mod intent;
mod node_lifecycle;
mod owner;
mod preview;
mod queue;
mod runtime;
mod shared;
mod weekly;
mod world;

pub use autoscaler::{Autoscaling, FirstToken, ReadyReplica, Signals};
pub use bandwidth_history::BandwidthHistory;
pub use binder::{BINDER_RESYNC, Settling, binding_intents, bound_status, rival_intents};
pub use deployment::{deployment_intents, is_template_of};
pub use fleet::FollowedFleet;
pub use history::SpeedHistory;
pub use node_lifecycle::{Heartbeats, NODE_MONITOR_PERIOD, node_intents};
pub use preview::{
    Change, ChangedObject, Course, Preview, PreviewError, PreviewOptions, ProposedChange, ReplicaPreview,
    preview,
};

use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use rooflet_api::v1alpha1::ModelDeploymentSpec;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::metrics;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_client::{Changes, Elector, Leadership, Recorder};
use rooflet_trust::ClusterIssuer;

use fleet_metrics::FleetMetrics;
use runtime::{ControllerMetrics, KeyedReconciler, Reconciler};
use world::World;

/// Namespace of the leader's Lease. Kubernetes' own controllers use the same namespace.
const LEASE_NAMESPACE: &str = "kube-system";
const LEASE_NAME: &str = "rooflet-controller";
/// Time limit for the current passes of the reconcilers when leadership ends.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Way to move a replica of a deployment within the limits of its rollout strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mobility {
    /// `maxSurge` permits a replacement before the deletion.
    Surge,
    /// `maxUnavailable` permits a deletion before the replacement is Ready.
    Spare,
    /// The strategy permits neither.
    None,
}

impl Mobility {
    pub fn of(spec: &ModelDeploymentSpec) -> Self {
        let bounds = deployment::Bounds::of(spec);
        if bounds.max_total > bounds.desired {
            Self::Surge
        } else if bounds.min_available < bounds.desired {
            Self::Spare
        } else {
            Self::None
        }
    }
}

/// Configuration of the controllers of one process.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Identity for leader election. It must be unique among running processes. If a process keeps
    /// its identity over a restart, it leads again without waiting for its Lease to expire.
    pub identity: String,
    /// Number of simultaneous node failures for which the scheduler keeps capacity free.
    pub reserve_node_failures: usize,
    /// Access to the hub for models with an `hf://` source.
    pub hub: HubAccess,
    /// Speed of the deployments, recorded while this process leads.
    pub history: SpeedHistory,
    /// Measured bandwidth of the nodes, recorded while this process leads.
    pub bandwidths: BandwidthHistory,
    /// True on a Kubernetes cluster: the leading controller issues the certificates of the fleet.
    pub issues_certificates: bool,
}

/// Registers all metrics of the controller without starting it. The reference of metrics lists
/// them.
pub fn register_metrics(registry: &Registry) -> metrics::Result<()> {
    ControllerMetrics::register(registry)?;
    FleetMetrics::register(registry).map(drop)
}

/// Spawns the controllers. They run while this process is the leader.
pub fn run(
    config: ControllerConfig,
    client: Client,
    clock: Clock,
    tasks: &Tasks,
    registry: &Registry,
) -> metrics::Result<()> {
    let metrics = ControllerMetrics::register(registry)?;
    let fleet_metrics = FleetMetrics::register(registry)?;
    let recorder = Recorder::spawn(
        tasks,
        client.clone(),
        clock.clone(),
        "rooflet-controller",
        config.identity.clone(),
    );
    let elector = Elector::new(
        client.clone(),
        LEASE_NAMESPACE,
        LEASE_NAME,
        config.identity,
        clock.clone(),
    );
    let (hub, history, bandwidths) = (config.hub, config.history, config.bandwidths);
    let (reserve_node_failures, issues_certificates) =
        (config.reserve_node_failures, config.issues_certificates);
    tasks.spawn("controller", move |stop| {
        Box::pin(async move {
            elector
                .run(stop, |leadership, stop| {
                    let term = Term {
                        client: client.clone(),
                        clock: clock.clone(),
                        recorder: recorder.clone(),
                        metrics: metrics.clone(),
                        fleet_metrics: fleet_metrics.clone(),
                        leadership,
                        hub: hub.clone(),
                        history: history.clone(),
                        bandwidths: bandwidths.clone(),
                        reserve_node_failures,
                        issues_certificates,
                    };
                    term.run(stop)
                })
                .await;
            Ok::<(), std::convert::Infallible>(())
        })
    });
    Ok(())
}

/// Period of leadership.
struct Term {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    metrics: ControllerMetrics,
    fleet_metrics: FleetMetrics,
    leadership: Leadership,
    hub: HubAccess,
    history: SpeedHistory,
    bandwidths: BandwidthHistory,
    reserve_node_failures: usize,
    issues_certificates: bool,
}

impl Term {
    async fn run(self, stop: CancellationToken) {
        let tasks = Tasks::new();
        if self.issues_certificates {
            let (client, clock) = (self.client.clone(), self.clock.clone());
            ClusterIssuer { client, clock }.start(&tasks);
        }
        let world = World::watch(
            &tasks,
            self.client.clone(),
            self.clock.clone(),
            self.recorder.clone(),
            self.leadership.clone(),
            self.hub.clone(),
            self.reserve_node_failures,
        );
        tokio::select! {
            () = stop.cancelled() => {}
            () = world.synced() => {
                let _shown = self.fleet_metrics.show(&world);
                self.follow(&tasks, &world);
                self.record(&tasks, &world);
                self.start_keyed(&tasks, &world, deployment::DeploymentReconciler::new(world.clone()));
                let (all, wakeups) = (&world.changes, &world.index.wakeups);
                self.start(&tasks, &wakeups.binder, binder::Binder::new(world.clone()));
                self.start(&tasks, &wakeups.autoscaler, autoscaler::Autoscaler::new(world.clone()));
                let anonymous_access = anonymous_access::AnonymousAccess::new(world.clone());
                self.start(&tasks, &wakeups.autoscaler, anonymous_access);
                self.start(&tasks, all, claim::ClaimReconciler::new(world.clone()));
                let node_lifecycle = node_lifecycle::NodeLifecycle::new(world.clone());
                self.start(&tasks, &wakeups.node_lifecycle, node_lifecycle);
                self.start(&tasks, all, capacity_plan::CapacityPlanReconciler::new(world.clone()));
                let broken = tasks.stop_token();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = broken.cancelled() => {}
                }
            }
        }
        tasks.cancel();
        if let Err(error) = tasks.join(STOP_GRACE).await {
            tracing::warn!(%error, "controllers did not stop within the grace period");
        }
    }

    /// Spawns the task that records the speed of the deployments and the bandwidth of the nodes.
    fn record(&self, tasks: &Tasks, world: &World) {
        let (history, bandwidths) = (self.history.clone(), self.bandwidths.clone());
        let world = world.clone();
        tasks.spawn("history", move |stop| {
            Box::pin(async move {
                history.follow(&bandwidths, &world, &stop).await;
                Ok::<(), std::convert::Infallible>(())
            })
        });
    }

    /// Spawns the task that applies the changes of the caches to the index.
    fn follow(&self, tasks: &Tasks, world: &World) {
        let (index, changes) = (world.index.clone(), world.changes.subscribe());
        tasks.spawn("index", move |stop| {
            Box::pin(async move {
                index.follow(changes, stop).await;
                Ok::<(), std::convert::Infallible>(())
            })
        });
    }

    fn start_keyed<R: KeyedReconciler>(&self, tasks: &Tasks, world: &World, reconciler: R) {
        let (queue, clock, metrics) = (
            world.index.queue.clone(),
            self.clock.clone(),
            self.metrics.clone(),
        );
        tasks.spawn(R::NAME, move |stop| {
            Box::pin(async move {
                runtime::run_keyed(reconciler, queue, clock, metrics, stop).await;
                Ok::<(), std::convert::Infallible>(())
            })
        });
    }

    fn start<R: Reconciler>(&self, tasks: &Tasks, changes: &Changes, reconciler: R) {
        let (changes, clock, metrics) = (changes.subscribe(), self.clock.clone(), self.metrics.clone());
        tasks.spawn(R::NAME, move |stop| {
            Box::pin(async move {
                runtime::run(reconciler, changes, clock, metrics, stop).await;
                Ok::<(), std::convert::Infallible>(())
            })
        });
    }
}
