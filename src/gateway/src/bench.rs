//! Routing table of a synthetic fleet, for benchmarks.

use kube::ResourceExt;
use serde_json::json;

use crate::routing::index::RouteIndex;
use crate::routing::table::RoutingTable;
use crate::state::State;
use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec, ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_client::ObjectKey;

/// Replicas of each model.
const PER_MODEL: usize = 5;

/// Index of the watched objects, and the state of the gateway.
#[derive(Debug)]
pub struct RoutingTrial {
    index: RouteIndex,
    table: RoutingTable,
    state: State<()>,
    models: usize,
}

impl RoutingTrial {
    /// Creates `models` models with 5 ready replicas each, on `models` nodes in all.
    ///
    /// # Panics
    /// If a generated object is invalid.
    pub fn new(models: usize) -> Self {
        let mut trial = Self {
            index: RouteIndex::default(),
            table: RoutingTable::default(),
            state: State::new(),
            models,
        };
        for number in 0..models {
            let mut node = FleetNode::new(&node_name(number), FleetNodeSpec::default());
            let status = json!({ "endpoint": "http://127.0.0.1:7460" });
            node.status = Some(serde_json::from_value(status).expect("a valid status"));
            trial.index.set_node(&node.name_any(), Some(&node));
            let deployment = deployment(number);
            trial
                .index
                .set_deployment(&ObjectKey::of(&deployment), Some(&deployment));
            for replica in 0..PER_MODEL {
                let replica = replica_of(number, replica, models, true);
                trial.index.set_replica(&ObjectKey::of(&replica), Some(&replica));
            }
        }
        trial.publish();
        trial
    }

    /// Changes whether one replica is ready, and applies the new table to the state. Returns
    /// whether the table changed.
    pub fn change_one(&mut self, turn: usize) -> bool {
        let number = (turn / 2 * 7919) % self.models;
        let replica = replica_of(number, 0, self.models, !turn.is_multiple_of(2));
        self.index.set_replica(&ObjectKey::of(&replica), Some(&replica));
        self.publish()
    }

    fn publish(&mut self) -> bool {
        let is_changed = self.index.update();
        let table = self.index.table().clone();
        let changed = table.changed_since(&self.table);
        self.state.update(&table, &changed, Clock::System.instant());
        self.table = table;
        is_changed
    }
}

fn node_name(number: usize) -> String {
    format!("mac-{number:05}")
}

fn deployment(number: usize) -> ModelDeployment {
    let spec = json!({ "replicas": PER_MODEL, "model": { "source": "local://guide" } });
    let name = format!("d{number:05}");
    let mut deployment = ModelDeployment::new(&name, serde_json::from_value(spec).expect("a valid spec"));
    deployment.metadata.namespace = Some("default".to_owned());
    deployment
}

fn replica_of(deployment: usize, number: usize, nodes: usize, is_ready: bool) -> ModelReplica {
    let spec = json!({
        "model": { "source": "local://guide" },
        "serving": { "name": format!("d{deployment:05}"), "maxConcurrency": 4 },
        "nodeName": node_name((deployment + number) % nodes),
    });
    let name = format!("d{deployment:05}-{number}");
    let mut replica = ModelReplica::new(&name, serde_json::from_value(spec).expect("a valid spec"));
    replica.metadata.namespace = Some("default".to_owned());
    let status = json!({
        "conditions": [{
            "type": "Ready", "status": if is_ready { "True" } else { "False" }, "reason": "Serving",
            "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
        }],
    });
    replica.status = Some(serde_json::from_value(status).expect("a valid status"));
    replica
}
