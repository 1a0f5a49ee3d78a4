//! Properties of random fleets: memory is never reserved twice, in any order.

use super::*;

fn any_node(index: usize) -> impl Strategy<Value = FleetNode> {
    (
        0u64..40,
        1u64..12,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(memory, weights, cordoned, not_ready)| {
            let mut line = format!("n{index} mem={memory} model=guide:{weights}");
            if cordoned {
                line.push_str(" cordoned");
            }
            if not_ready {
                line.push_str(" notready");
            }
            node(&line)
        })
}

fn any_replica(index: usize) -> impl Strategy<Value = ModelReplica> {
    let on = prop::option::of(0usize..6);
    (
        on,
        0u32..3,
        1u32..4096,
        any::<bool>(),
        prop::option::of(0u64..20),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(on, deployment, context, ending, reserved, file)| {
            let mut line = format!("r{index} of=d{deployment} context={context}");
            if let Some(node) = on {
                line.push_str(&format!(" on=n{node}"));
                if ending {
                    line.push_str(" ending");
                }
                if let Some(gib) = reserved {
                    line.push_str(&format!(" reserved={gib}"));
                }
            }
            if file {
                line.push_str(" file");
            }
            replica(&line)
        })
}

pub(super) fn any_fleet() -> impl Strategy<Value = (Vec<FleetNode>, Vec<ModelReplica>)> {
    let nodes: Vec<_> = (0..5).map(any_node).collect();
    let replicas = (0usize..14).prop_flat_map(|count| (0..count).map(any_replica).collect::<Vec<_>>());
    (nodes, replicas)
}

/// Binds one replica at a time like the binder, each on a fleet rebuilt from the objects.
fn bind_one_by_one(nodes: &[FleetNode], replicas: &mut [ModelReplica]) {
    for at in 0..replicas.len() {
        if replicas[at].spec.node_name.is_some() {
            continue;
        }
        let mut fleet = Fleet::new(nodes, replicas.iter());
        if let Ok(placement) = place(&ReplicaRequest::new(&replicas[at]), &mut fleet) {
            replicas[at].spec.node_name = Some(placement.node().to_owned());
        }
    }
}

proptest! {
    #[test]
    fn never_reserves_memory_twice((nodes, replicas) in any_fleet().prop_shuffle_replicas()) {
        let before = Fleet::new(&nodes, &replicas);
        let requests: Vec<_> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
            .map(ReplicaRequest::new)
            .collect();
        let decisions = bind_all(&requests, &mut before.clone());
        let mut bound = replicas.clone();
        for decision in &decisions {
            if let Ok(placement) = &decision.outcome {
                let replica = bound.iter_mut().find(|replica| ReplicaKey::of(*replica) == decision.key);
                replica.expect("one of them").spec.node_name = Some(placement.node().to_owned());
            }
        }
        // Rebuild the fleet from the objects, without its reservations.
        let after = Fleet::new(&nodes, &bound);
        for (before, after) in before.nodes.iter().zip(&after.nodes) {
            // If a node was overcommitted before, nothing may be added.
            let limit = before.allocatable.max(before.load.reserved);
            prop_assert!(after.load.reserved <= limit, "{}: {} of {}", after.name, after.load.reserved, limit);
        }
        prop_assert_eq!(decisions.len(), requests.len());
    }

    #[test]
    fn rebuilt_fleet_is_never_overcommitted((nodes, mut replicas) in any_fleet()) {
        let before = Fleet::new(&nodes, &replicas);
        bind_one_by_one(&nodes, &mut replicas);
        let after = Fleet::new(&nodes, &replicas);
        for (before, after) in before.nodes.iter().zip(&after.nodes) {
            let limit = before.allocatable.max(before.load.reserved);
            prop_assert!(after.load.reserved <= limit, "{}: {} of {}", after.name, after.load.reserved, limit);
        }
    }

    #[test]
    fn decisions_do_not_depend_on_the_order_of_nodes((nodes, replicas) in any_fleet()) {
        let requests: Vec<_> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
            .map(ReplicaRequest::new)
            .collect();
        let decide = |nodes: &[FleetNode]| bind_all(&requests, &mut Fleet::new(nodes, &replicas));
        let reversed: Vec<_> = nodes.iter().rev().cloned().collect();
        prop_assert_eq!(decide(&nodes), decide(&reversed));
    }
}

trait ShuffleReplicas {
    fn prop_shuffle_replicas(self) -> BoxedStrategy<(Vec<FleetNode>, Vec<ModelReplica>)>;
}

impl<S: Strategy<Value = (Vec<FleetNode>, Vec<ModelReplica>)> + 'static> ShuffleReplicas for S {
    fn prop_shuffle_replicas(self) -> BoxedStrategy<(Vec<FleetNode>, Vec<ModelReplica>)> {
        self.prop_flat_map(|(nodes, replicas)| (Just(nodes), Just(replicas).prop_shuffle()))
            .boxed()
    }
}
