//! Model of the autoscaler's passes and inputs. The plan is the real one.

use kube::ResourceExt;

use crate::world::World;
use rooflet_agent::replica::ReplicaKey;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::ModelDeployment;
use rooflet_controller::intent::Intents;
use rooflet_controller::{ReadyReplica, Signals};

impl World<'_> {
    /// Returns true if a first pass must be scheduled. Passes are periodic and independent of
    /// changes.
    pub(crate) fn autoscaler_is_due(&mut self) -> bool {
        self.control.autoscaler.due_at.is_none() && self.scenario.autoscales()
    }

    /// Plans with the current figures of replicas and gateways.
    pub(crate) fn autoscale(&mut self) -> Intents {
        let (deployments, now) = (self.control.view.deployments(), self.clock());
        let mut autoscaling = std::mem::take(&mut self.control.autoscaling);
        let intents = autoscaling.intents(&deployments, |deployment| self.signals(deployment), now);
        self.control.autoscaling = autoscaling;
        intents
    }

    fn signals(&self, deployment: &ModelDeployment) -> Signals {
        let name = deployment.name_any();
        let mut signals = Signals {
            waiting: self.queued_for(deployment.spec.serving.name.as_deref().unwrap_or(&name)),
            ..Signals::default()
        };
        for replica in self.control.view.replicas() {
            let node = replica.spec.node_name.as_ref();
            let Some(index) = node.and_then(|node| self.by_name.get(node)) else {
                continue;
            };
            let worker = self.nodes[*index].workers.get(&ReplicaKey::of(&replica));
            if let Some(worker) = worker.filter(|_| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name)) {
                signals.running += worker.running.len() as u64;
                signals.waiting += worker.waiting.len() as u64;
                signals.completed += worker.completed;
                if worker.accepts() {
                    signals.ready.push(ReadyReplica {
                        uid: replica.uid().unwrap_or_default(),
                        completed: worker.completed,
                        first_token: worker.first_token(),
                    });
                }
            }
        }
        signals
    }
}
