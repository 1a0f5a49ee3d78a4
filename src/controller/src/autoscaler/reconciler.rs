//! Collection of the signals and execution of the planned writes.

use std::time::Duration;

use kube::ResourceExt;

use super::demand::Gateways;
use super::first_token::{FirstToken, ReadyReplica};
use super::plan::Signals;
use super::writes::Autoscaling;
use crate::executor::Executor;
use crate::intent::{Intents, Snapshot};
use crate::owner::controller;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{MeasuredSpeed, ModelDeployment, ModelReplica};
use rooflet_client::ObjectKey;

/// Reconciler of `spec.replicas`.
pub(crate) struct Autoscaler {
    world: World,
    gateways: Gateways,
    autoscaling: Autoscaling,
}

impl Autoscaler {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            gateways: Gateways::default(),
            autoscaling: Autoscaling::default(),
        }
    }
}

/// Returns the load of one deployment from its replicas and the requests queued in gateways.
fn signals<'a>(replicas: impl Iterator<Item = &'a ModelReplica>, waiting: u64) -> Signals {
    let mut signals = Signals {
        waiting,
        ..Signals::default()
    };
    for replica in replicas {
        let Some(status) = &replica.status else { continue };
        let requests = status.requests.clone().unwrap_or_default();
        signals.running += requests.running;
        signals.waiting += requests.waiting;
        signals.completed += requests.completed;
        if is_true(&status.conditions, condition_type::READY) {
            signals.ready.push(ReadyReplica {
                uid: replica.uid().unwrap_or_default(),
                completed: requests.completed,
                first_token: status.measured.as_ref().and_then(first_token),
            });
        }
    }
    signals
}

fn first_token(measured: &MeasuredSpeed) -> Option<FirstToken> {
    Some(FirstToken {
        seconds: measured.time_to_first_token_seconds.parse().ok()?,
        requests: measured.requests,
    })
}

impl Reconciler for Autoscaler {
    const NAME: &'static str = "autoscaler";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let index = self.world.index.lock().await;
        let deployments: Vec<_> = index
            .deployments
            .autoscaled()
            .map(|(_, deployment)| deployment.clone())
            .collect();
        if deployments.is_empty() {
            self.autoscaling = Autoscaling::default();
            return pass;
        }
        let leases = self.world.leases.list();
        let waiting = self
            .gateways
            .waiting(leases.iter().map(AsRef::as_ref), self.world.clock.instant());
        let signals = |deployment: &ModelDeployment| {
            let (uid, name) = (deployment.uid().unwrap_or_default(), deployment.name_any());
            let object_key = ObjectKey::of(deployment);
            let named = index.deployments.replicas_of(&object_key);
            let own = named.map(AsRef::as_ref).filter(|replica: &&ModelReplica| {
                replica.labels().get(DEPLOYMENT_LABEL) == Some(&name)
                    && controller(&replica.metadata).is_some_and(|controller| controller.uid == uid)
            });
            let served = deployment.spec.serving.name.clone().unwrap_or(name.clone());
            let key = (deployment.namespace().unwrap_or_default(), served);
            signals(own, waiting.get(&key).copied().unwrap_or(0))
        };
        let now = self.world.clock.now();
        let Intents {
            writes,
            requeue_after,
        } = self.autoscaling.intents(&deployments, signals, now);
        drop(index);
        pass.requeue(requeue_after);
        let snapshot = Snapshot {
            deployments,
            ..Snapshot::default()
        };
        pass.record_failures(Executor::new(&self.world, &snapshot).run(writes).await);
        pass
    }
}
