//! The controllers: ModelDeployments become bound ModelReplicas, silent nodes are detected, CapacityPlans and PerformanceClaims are
//! evaluated.
//!
//! Each reconciler reads caches, plans as a pure function and executes the plan; all of them run in the loop of `runtime`. One of
//! several controller processes leads.
//!
//! Invariants:
//! - The controllers reach the API server through [`rooflet_client`] only, so the embedded server and a real Kubernetes are alike.
//! - Only the binder writes `spec.nodeName` of a replica.
//! - A second pass over unchanged objects writes nothing.

mod autoscaler;
mod binder;
mod capacity_plan;
mod claim;
mod deployment;
mod executor;
#[cfg(test)]
mod fixture;
mod fleet;
mod hub;
pub mod intent;
mod node_lifecycle;
mod runtime;
mod weekly;
mod world;

pub use autoscaler::{Answering, Autoscaling, FirstToken, Signals};
pub use binder::{BINDER_RESYNC, Settling, binding_intents, bound_status, rival_intents};
pub use deployment::{deployment_intents, is_template_of};
pub use fleet::FollowedFleet;
pub use node_lifecycle::{Heartbeats, NODE_MONITOR_PERIOD, node_intents};

use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use rooflet_api::v1alpha1::ModelDeploymentSpec;
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::metrics;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_client::{Elector, Leadership, Recorder};

use runtime::{ControllerMetrics, Reconciler};
use world::World;

/// The Lease of the leader, beside those of Kubernetes' own controllers.
const LEASE_NAMESPACE: &str = "kube-system";
const LEASE_NAME: &str = "rooflet-controller";
/// How long reconcilers may take to finish a pass when leadership ends.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Whether replicas of a deployment can be moved while all of them serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mobility {
    /// The replacement comes first.
    Surge,
    /// One may be missing meanwhile.
    Spare,
    /// Neither is allowed.
    None,
}

impl Mobility {
    pub fn of(spec: &ModelDeploymentSpec) -> Self {
        let bounds = deployment::Bounds::of(spec);
        if bounds.max_total > bounds.wanted {
            Self::Surge
        } else if bounds.min_available < bounds.wanted {
            Self::Spare
        } else {
            Self::None
        }
    }
}

/// How this controller takes part.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// Must differ between processes that may run at the same time. One that stays the same over a restart of the
    /// same process lets it go on at once instead of waiting for its own lease to expire.
    pub identity: String,
    /// The replicas of any so many nodes are to find room on the others.
    pub reserve_node_failures: usize,
    /// Where models of `hf://` sources are.
    pub hub: HubAccess,
}

/// Starts the controllers: they wait to lead, and act while they do.
pub fn run(
    config: ControllerConfig,
    client: Client,
    clock: Clock,
    tasks: &Tasks,
    registry: &Registry,
) -> metrics::Result<()> {
    let metrics = ControllerMetrics::register(registry)?;
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
    let (hub, reserve_node_failures) = (config.hub, config.reserve_node_failures);
    tasks.spawn("controller", move |stop| {
        Box::pin(async move {
            elector
                .run(stop, |leadership, stop| {
                    let term = Term {
                        client: client.clone(),
                        clock: clock.clone(),
                        recorder: recorder.clone(),
                        metrics: metrics.clone(),
                        leadership,
                        hub: hub.clone(),
                        reserve_node_failures,
                    };
                    term.run(stop)
                })
                .await;
            Ok::<(), std::convert::Infallible>(())
        })
    });
    Ok(())
}

/// One time of leading.
struct Term {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    metrics: ControllerMetrics,
    leadership: Leadership,
    hub: HubAccess,
    reserve_node_failures: usize,
}

impl Term {
    async fn run(self, stop: CancellationToken) {
        let tasks = Tasks::new();
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
                self.start(&tasks, &world, deployment::DeploymentReconciler::new(world.clone()));
                self.start(&tasks, &world, binder::Binder::new(world.clone()));
                self.start(&tasks, &world, autoscaler::Autoscaler::new(world.clone()));
                self.start(&tasks, &world, claim::ClaimJudge::new(world.clone()));
                self.start(&tasks, &world, node_lifecycle::NodeLifecycle::new(world.clone()));
                self.start(&tasks, &world, capacity_plan::CapacityPlans::new(world.clone()));
                let broken = tasks.stop_token();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = broken.cancelled() => {}
                }
            }
        }
        tasks.cancel();
        if let Err(why) = tasks.join(STOP_GRACE).await {
            tracing::warn!(why, "the controllers did not stop cleanly");
        }
    }

    fn start<R: Reconciler>(&self, tasks: &Tasks, world: &World, reconciler: R) {
        let (changes, clock, metrics) = (
            world.changes.subscribe(),
            self.clock.clone(),
            self.metrics.clone(),
        );
        tasks.spawn(R::NAME, move |stop| {
            Box::pin(async move {
                runtime::run(reconciler, changes, clock, metrics, stop).await;
                Ok::<(), std::convert::Infallible>(())
            })
        });
    }
}
