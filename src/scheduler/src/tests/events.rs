//! Random events: an incrementally updated fleet equals a fleet built from all objects, makes the same
//! decisions, and never reserves capacity twice.

use super::*;
use crate::fleet::node::NodeState;

/// Event in a fleet of five nodes. Numbers select nodes and replicas.
#[derive(Debug, Clone)]
enum Event {
    Create { line: String },
    Decide,
    End { replica: usize },
    Gone { replica: usize },
    Ready { replica: usize },
    Fail { replica: usize },
    Report { replica: usize, gib: u64 },
    Cordon { node: usize },
    Label { node: usize, zone: u8 },
    Leave { node: usize },
    Join { node: usize },
}

fn any_event() -> impl Strategy<Value = Event> {
    let replica = any::<usize>();
    let node = 0usize..5;
    let line = (
        0u32..3,
        prop::sample::select(vec!["tiny", "small", "large"]),
        prop::sample::select(vec!["SloSlack", "BinPack", "Spread", "Fastest"]),
        prop::sample::select(vec!["", "anti=Required", "spread=zone", "spread=zone anyway"]),
        prop::option::of(1u32..40),
        -1i32..3,
    )
        .prop_map(|(deployment, model, strategy, more, rate, priority)| {
            let rate = rate.map_or(String::new(), |rate| format!("rate={rate}"));
            format!("of=d{deployment} model={model} strategy={strategy} {more} {rate} priority={priority}")
        });
    prop_oneof![
        6 => line.prop_map(|line| Event::Create { line }),
        6 => Just(Event::Decide),
        2 => replica.prop_map(|replica| Event::End { replica }),
        2 => replica.prop_map(|replica| Event::Gone { replica }),
        2 => replica.prop_map(|replica| Event::Ready { replica }),
        1 => replica.prop_map(|replica| Event::Fail { replica }),
        1 => (replica, 0u64..8).prop_map(|(replica, gib)| Event::Report { replica, gib }),
        1 => node.clone().prop_map(|node| Event::Cordon { node }),
        1 => (node.clone(), 0u8..3).prop_map(|(node, zone)| Event::Label { node, zone }),
        1 => node.clone().prop_map(|node| Event::Leave { node }),
        1 => node.prop_map(|node| Event::Join { node }),
    ]
}

struct Scene {
    nodes: Vec<FleetNode>,
    replicas: Vec<ModelReplica>,
    created: usize,
    /// Fleet with incremental updates.
    fleet: Fleet,
}

fn fresh_node(index: usize) -> FleetNode {
    let chip = ["M4", "M4_Pro", "M4_Max/40"][index % 3];
    node(&format!(
        "n{index} chip={chip} mem={} model=tiny:1,small:3,large:9 label=zone:z{}",
        8 + 6 * index,
        index % 2
    ))
}

impl Scene {
    fn new() -> Self {
        let nodes: Vec<_> = (0..5).map(fresh_node).collect();
        let fleet = Fleet::new(&nodes, []);
        Self {
            nodes,
            replicas: Vec::new(),
            created: 0,
            fleet,
        }
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut ModelReplica)) {
        let count = self.replicas.len();
        if count > 0 {
            let replica = &mut self.replicas[at % count];
            change(replica);
            self.fleet.set_replica(replica);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Create { line } => {
                let replica = replica(&format!("r{} {line}", self.created));
                self.created += 1;
                self.fleet.set_replica(&replica);
                self.replicas.push(replica);
            }
            Event::Decide => self.decide(),
            Event::End { replica } => self.change(replica, |replica| {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                replica.metadata.deletion_timestamp = Some(now);
            }),
            Event::Gone { replica } => {
                if !self.replicas.is_empty() {
                    let gone = self.replicas.remove(replica % self.replicas.len());
                    self.fleet.remove_replica(&ReplicaKey::of(&gone));
                }
            }
            Event::Ready { replica } => self.change(replica, |replica| {
                set_ready(replica.status.get_or_insert_default());
            }),
            Event::Fail { replica } => self.change(replica, |replica| {
                replica.status.get_or_insert_default().phase = ReplicaPhase::Failed;
            }),
            // At most the computed amount, so that agents do not overcommit nodes.
            Event::Report { replica, gib } => self.change(replica, |replica| {
                let most = match replica.spec.model.source.as_str() {
                    "local://tiny" => 1,
                    "local://small" => 3,
                    _ => 9,
                };
                replica.status.get_or_insert_default().reserved_memory = Some(format!("{}Gi", gib.min(most)));
            }),
            Event::Cordon { node } => self.change_node(node, |node| node.spec.unschedulable ^= true),
            Event::Label { node, zone } => self.change_node(node, |node| {
                node.metadata.labels = Some(BTreeMap::from([("zone".to_owned(), format!("z{zone}"))]));
            }),
            Event::Leave { node } => {
                let name = format!("n{node}");
                self.nodes
                    .retain(|node| node.metadata.name.as_deref() != Some(&name));
                self.fleet.remove_node(&name);
            }
            Event::Join { node } => {
                let fresh = fresh_node(node);
                if self
                    .nodes
                    .iter()
                    .all(|known| known.metadata.name != fresh.metadata.name)
                {
                    self.fleet.set_node(&fresh);
                    self.nodes.push(fresh);
                }
            }
        }
    }

    fn change_node(&mut self, index: usize, change: impl FnOnce(&mut FleetNode)) {
        let name = format!("n{index}");
        let found = self
            .nodes
            .iter_mut()
            .find(|node| node.metadata.name.as_deref() == Some(&name));
        if let Some(node) = found {
            change(node);
            self.fleet.set_node(node);
        }
    }

    /// Like the binder: decides, undoes the changes to the fleet, and applies the results to the
    /// objects.
    fn decide(&mut self) {
        let mut waiting: Vec<_> = self
            .replicas
            .iter()
            .filter(|replica| {
                replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
            })
            .cloned()
            .collect();
        waiting.sort_by_key(|replica| (-replica.spec.priority, replica.metadata.name.clone()));
        let requests: Vec<_> = waiting.iter().map(ReplicaRequest::new).collect();
        let decisions = decide_all(&requests, &mut self.fleet, 2);
        let mut anew = Fleet::new(&self.nodes, &self.replicas);
        assert_eq!(decisions, decide_all(&requests, &mut anew, 2));
        for replica in &waiting {
            self.fleet.set_replica(replica);
        }
        for decision in decisions {
            let find = |replica: &&mut ModelReplica| ReplicaKey::of(&**replica) == decision.key;
            let replica = self.replicas.iter_mut().find(find).expect("it waits");
            let status = replica.status.get_or_insert_default();
            match (&decision.outcome, &decision.preemption) {
                (Ok(placement), _) => {
                    status.nominated_node_name = None;
                    replica.spec.node_name = Some(placement.node().to_owned());
                }
                (Err(_), Some(preemption)) => {
                    status.nominated_node_name = Some(preemption.node.clone());
                }
                (Err(_), None) => {}
            }
            let priority = replica.spec.priority;
            self.fleet.set_replica(&replica.clone());
            for victim in decision
                .preemption
                .into_iter()
                .flat_map(|preemption| preemption.victims)
            {
                let find = |replica: &&mut ModelReplica| ReplicaKey::of(&**replica) == victim;
                let replica = self.replicas.iter_mut().find(find).expect("it is there");
                assert!(replica.spec.priority < priority, "only of a lower priority");
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                replica.metadata.deletion_timestamp = Some(now);
                self.fleet.set_replica(&replica.clone());
            }
        }
    }

    fn check(&self) {
        let anew = Fleet::new(&self.nodes, &self.replicas);
        assert_eq!(self.fleet.nodes.len(), anew.nodes.len());
        for model in ["tiny", "small", "large", "none"] {
            assert_eq!(self.fleet.offer(model), anew.offer(model), "{model}");
        }
        for (node, anew) in self.fleet.nodes.iter().zip(&anew.nodes) {
            let figures = |node: &NodeState| {
                (
                    node.name.clone(),
                    node.load.clone(),
                    node.residents.clone(),
                    node.nominees.clone(),
                    node.copies.clone(),
                )
            };
            assert_eq!(figures(node), figures(anew));
            let load = &node.load;
            assert!(
                load.reserved <= node.allocatable,
                "{}: {} reserved",
                node.name,
                load.reserved
            );
            let share: f64 = load.commitments.iter().map(|one| one.share).sum();
            assert!(share <= 1.0 + 1e-6, "{}: {share} of the chip's time", node.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn incremental_fleet_equals_rebuilt_fleet(events in prop::collection::vec(any_event(), 1..60)) {
        let mut scene = Scene::new();
        for event in events {
            scene.happen(event);
            scene.check();
        }
    }
}

/// A nomination remains while its node is missing.
#[test]
fn nomination_survives_absence_of_its_node() {
    let create = |line: &str| Event::Create {
        line: line.to_owned(),
    };
    let large = "of=d0 model=large strategy=SloSlack rate=25 priority=0";
    let tiny = "of=d0 model=tiny strategy=SloSlack priority=0";
    let events = [
        create(large),
        create(tiny),
        create(tiny),
        Event::Decide,
        create("of=d1 model=large strategy=SloSlack rate=25 priority=1"),
        Event::Decide,
        Event::Ready { replica: 0 },
        create(tiny),
        Event::Leave { node: 2 },
        Event::Join { node: 2 },
    ];
    let mut scene = Scene::new();
    for event in events {
        scene.happen(event);
        scene.check();
    }
    let nominees: usize = scene.fleet.nodes.iter().map(|node| node.nominees.len()).sum();
    assert_eq!(nominees, 1);
}
