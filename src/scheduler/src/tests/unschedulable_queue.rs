//! Passes over the replicas that the queue releases, compared with passes over all replicas.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::placement::choice::Decision;
use crate::unschedulable_queue::UnschedulableQueue;

/// Maximum number of replicas for which one pass preempts others.
const MAX_PREEMPTIONS: usize = 2;

/// Event in a fleet of five nodes. Numbers select nodes and replicas.
#[derive(Debug, Clone)]
enum Event {
    Create { deployment: usize },
    End { replica: usize },
    Gone { replica: usize },
    Fail { replica: usize },
    Node { node: usize, line: String },
    Leave { node: usize },
    Move { replica: usize, node: usize },
}

fn any_event() -> impl Strategy<Value = Event> {
    let (replica, node) = (any::<usize>(), 0usize..5);
    let memory = prop::sample::select(vec![0, 4, 8, 14, 20]);
    let models = prop::sample::select(vec![
        "tiny:1",
        "tiny:1,small:3",
        "tiny:1,small:3,large:9",
        "large:5",
    ]);
    let state = prop::sample::select(vec![
        "",
        "",
        "cordoned",
        "notready",
        "taint=busy:NoSchedule",
        "drain",
    ]);
    let facts = (
        memory,
        models,
        state,
        0u8..2,
        prop::sample::select(vec!["M4", "M4_Max/40"]),
    );
    let facts = facts.prop_map(|(memory, models, state, zone, chip)| {
        format!("mem={memory} model={models} {state} chip={chip} label=zone:z{zone}")
    });
    prop_oneof![
        8 => (0usize..DEPLOYMENTS.len()).prop_map(|deployment| Event::Create { deployment }),
        2 => replica.prop_map(|replica| Event::End { replica }),
        4 => replica.prop_map(|replica| Event::Gone { replica }),
        1 => replica.prop_map(|replica| Event::Fail { replica }),
        4 => (node.clone(), facts).prop_map(|(node, line)| Event::Node { node, line }),
        1 => node.clone().prop_map(|node| Event::Leave { node }),
        1 => (replica, node).prop_map(|(replica, node)| Event::Move { replica, node }),
    ]
}

/// Templates of deployments.
const DEPLOYMENTS: [&str; 9] = [
    "model=tiny",
    "model=small",
    "model=large",
    "model=large priority=1",
    "model=small rate=20",
    "model=tiny anti=Required",
    "model=tiny spread=zone",
    "model=small select=zone:z1 priority=2",
    "model=small tolerate=busy strategy=BinPack",
];

struct Scene {
    nodes: BTreeMap<usize, FleetNode>,
    replicas: BTreeMap<ReplicaKey, ModelReplica>,
    created: i64,
    fleet: Fleet,
    queue: UnschedulableQueue,
}

impl Scene {
    fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            replicas: BTreeMap::new(),
            created: 0,
            fleet: Fleet::default(),
            queue: UnschedulableQueue::without_refresh(),
        }
    }

    /// Changes the replica with this number, if there is one.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut ModelReplica)) {
        let count = self.replicas.len();
        if count > 0
            && let Some((key, replica)) = self.replicas.iter_mut().nth(number % count)
        {
            change(replica);
            self.queue.remove(key);
            self.fleet.set_replica(replica);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Create { deployment } => {
                let number = self.created;
                let line = DEPLOYMENTS[deployment];
                let mut created = replica(&format!("r{number:03} of=d{deployment} rev=1 {line}"));
                // Two replicas at a time have the same creation time.
                let time = Timestamp::from_second(number / 2).expect("a valid time");
                created.metadata.creation_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
                self.created += 1;
                self.fleet.set_replica(&created);
                self.replicas.insert(ReplicaKey::of(&created), created);
            }
            Event::End { replica } => self.change(replica, end),
            Event::Gone { replica } => {
                let count = self.replicas.len().max(1);
                if let Some(key) = self.replicas.keys().nth(replica % count).cloned() {
                    self.replicas.remove(&key);
                    self.queue.remove(&key);
                    self.fleet.remove_replica(&key);
                }
            }
            Event::Fail { replica } => self.change(replica, |replica| {
                replica.status.get_or_insert_default().phase = ReplicaPhase::Failed;
            }),
            Event::Node { node: number, line } => {
                let updated = node(&format!("n{number} {line}"));
                self.fleet.set_node(&updated);
                self.nodes.insert(number, updated);
            }
            Event::Leave { node } => {
                self.fleet.remove_node(&format!("n{node}"));
                self.nodes.remove(&node);
            }
            // A replica that a user bound, without regard to the capacity of the node.
            Event::Move { replica, node } => self.change(replica, |replica| {
                replica.spec.node_name = Some(format!("n{node}"));
            }),
        }
    }

    /// Returns the unscheduled replicas in the binder's order.
    fn waiting(&self) -> Vec<ModelReplica> {
        let is_waiting = |replica: &&ModelReplica| {
            replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
        };
        let mut waiting: Vec<_> = self.replicas.values().filter(is_waiting).cloned().collect();
        let mut oldest = BTreeMap::new();
        let deployment = |replica: &ModelReplica| replica.metadata.labels.clone();
        for replica in &waiting {
            let created = replica.metadata.creation_timestamp.clone();
            let known = oldest.entry(deployment(replica)).or_insert(created.clone());
            *known = created.min(known.take());
        }
        waiting.sort_by_key(|replica| {
            let deployment = deployment(replica);
            (
                -replica.spec.priority,
                oldest[&deployment].clone(),
                deployment,
                replica.metadata.creation_timestamp.clone(),
                replica.metadata.name.clone(),
            )
        });
        waiting
    }

    /// Returns the outcome of a pass over all unscheduled replicas, without effects.
    fn full_pass(&self) -> Outcome {
        let mut anew = Fleet::new(self.nodes.values(), self.replicas.values());
        let all: Vec<_> = self.waiting().iter().map(ReplicaRequest::new).collect();
        outcome(&decide_all(&all, &mut anew, MAX_PREEMPTIONS))
    }

    /// Runs a pass over the replicas that the queue releases.
    fn pass(&mut self, now: Timestamp) -> Outcome {
        self.queue.take_ready(&mut self.fleet, now);
        let waiting = self.waiting();
        let requests = waiting.iter().map(ReplicaRequest::new);
        let released: Vec<_> = requests
            .filter(|request| !self.queue.contains(&request.key))
            .collect();
        let decisions = decide_all(&released, &mut self.fleet, MAX_PREEMPTIONS);
        let outcome = outcome(&decisions);
        // The binder reverts its decisions. The writes arrive as changed objects.
        for request in &released {
            self.fleet.set_replica(&self.replicas[&request.key]);
        }
        for (request, decision) in released.iter().zip(decisions) {
            self.apply(request, decision, now);
        }
        outcome
    }

    fn is_any_nominated(&self) -> bool {
        let nominated = |replica: &ModelReplica| {
            let status = replica.status.as_ref();
            status.is_some_and(|status| status.nominated_node_name.is_some())
        };
        self.replicas.values().any(nominated)
    }

    fn apply(&mut self, request: &ReplicaRequest, decision: Decision, now: Timestamp) {
        let replica = self.replicas.get_mut(&decision.key).expect("it waits");
        let status = replica.status.get_or_insert_default();
        match (&decision.outcome, decision.preemption) {
            (Ok(placement), _) => {
                status.nominated_node_name = None;
                replica.spec.node_name = Some(placement.node().to_owned());
                self.fleet.set_replica(&replica.clone());
            }
            (Err(_), Some(preemption)) => {
                status.nominated_node_name = Some(preemption.node);
                self.fleet.set_replica(&replica.clone());
                for victim in preemption.victims {
                    let victim = self.replicas.get_mut(&victim).expect("it is there");
                    end(victim);
                    self.fleet.set_replica(&victim.clone());
                }
            }
            (Err(_), None) if decision.is_deferred => {}
            (Err(_), None) => {
                let created = replica.metadata.creation_timestamp.as_ref().map(|time| time.0);
                self.queue.add(request, created, None, now, &mut self.fleet);
            }
        }
    }
}

fn end(replica: &mut ModelReplica) {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
    replica.metadata.deletion_timestamp = Some(now);
}

/// Keys of placed replicas, and of replicas that preempt others.
type Outcome = (BTreeSet<ReplicaKey>, BTreeSet<ReplicaKey>);

fn outcome(decisions: &[Decision]) -> Outcome {
    let keys = |is_member: fn(&Decision) -> bool| {
        let members = decisions.iter().filter(|decision| is_member(decision));
        members.map(|decision| decision.key.clone()).collect()
    };
    (
        keys(|decision| decision.outcome.is_ok()),
        keys(|decision| decision.preemption.is_some()),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn passes_over_the_released_replicas_equal_passes_over_all(
        rounds in prop::collection::vec(prop::collection::vec(any_event(), 1..6), 1..24),
    ) {
        let mut scene = Scene::new();
        for events in rounds {
            for event in events {
                scene.happen(event);
            }
            // No periodic attempts: the time stands still.
            let now = Timestamp::UNIX_EPOCH;
            for pass in 0.. {
                prop_assert!(pass < 100, "the passes do not end");
                let expected = (!scene.is_any_nominated()).then(|| scene.full_pass());
                let outcome = scene.pass(now);
                // If a nominated replica gets another node, the nominated node is free in the next pass.
                if let Some(expected) = expected {
                    prop_assert_eq!(&outcome, &expected);
                }
                if outcome == Outcome::default() {
                    break;
                }
            }
            prop_assert_eq!(scene.full_pass(), Outcome::default(), "no node accepts a waiting replica");
        }
    }
}

/// Returns a queue with `count` replicas of 9 GiB, in a fleet of one node of 8 GiB.
fn full_queue(count: i64, mut queue: UnschedulableQueue) -> (UnschedulableQueue, Fleet) {
    let mut fleet = Fleet::new(&[node("n mem=8 model=large:9,small:3")], &[]);
    fleet.take_growth();
    for number in 0..count {
        let request = ReplicaRequest::new(&replica(&format!("r{number:03} of=d rev=1 model=large")));
        let created = Timestamp::from_second(number).expect("a valid time");
        queue.add(&request, Some(created), None, Timestamp::UNIX_EPOCH, &mut fleet);
    }
    queue.take_ready(&mut fleet, Timestamp::UNIX_EPOCH);
    (queue, fleet)
}

fn names(keys: Vec<ReplicaKey>) -> String {
    let names: Vec<_> = keys.into_iter().map(|key| key.name).collect();
    names.join(" ")
}

#[test]
fn changed_node_releases_as_many_replicas_as_it_can_hold() {
    let now = Timestamp::UNIX_EPOCH;
    let (mut queue, mut fleet) = full_queue(100, UnschedulableQueue::without_refresh());
    fleet.set_node(&node("n mem=9 model=large:9,small:3"));
    assert_eq!(
        names(queue.take_ready(&mut fleet, now)),
        "",
        "a model of 9 GiB needs more"
    );
    fleet.set_node(&node("n mem=24 model=large:9,small:3"));
    assert_eq!(
        names(queue.take_ready(&mut fleet, now)),
        "r000 r001",
        "the oldest"
    );
    let small = replica("small of=other on=n model=small");
    fleet.set_replica(&small);
    assert_eq!(
        names(queue.take_ready(&mut fleet, now)),
        "",
        "a binding releases no capacity"
    );
    fleet.remove_replica(&ReplicaKey::of(&small));
    assert_eq!(names(queue.take_ready(&mut fleet, now)), "r002 r003");
}

#[test]
fn few_waiting_replicas_are_released_by_every_changed_node() {
    let (mut queue, mut fleet) = full_queue(3, UnschedulableQueue::default());
    fleet.set_node(&node("n mem=8 model=large:9,small:3 cordoned"));
    let released = queue.take_ready(&mut fleet, Timestamp::UNIX_EPOCH);
    assert_eq!(names(released), "r000 r001 r002", "their reason has changed");
}

#[test]
fn every_replica_is_attempted_periodically() {
    let (mut queue, mut fleet) = full_queue(100, UnschedulableQueue::default());
    let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
    assert_eq!(queue.take_ready(&mut fleet, at(9)).len(), 0);
    assert_eq!(
        queue.take_ready(&mut fleet, at(10)).len(),
        64,
        "the size of a round"
    );
    assert_eq!(queue.take_ready(&mut fleet, at(11)).len(), 0);
    assert_eq!(queue.take_ready(&mut fleet, at(20)).len(), 36);
    assert!(queue.is_empty());
}

#[test]
fn replica_is_attempted_when_a_rejection_expires() {
    let (mut queue, mut fleet) = full_queue(3, UnschedulableQueue::default());
    let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
    let request = ReplicaRequest::new(&replica("refused of=e rev=1 model=large"));
    queue.add(&request, None, Some(at(5)), at(0), &mut fleet);
    assert_eq!(names(queue.take_ready(&mut fleet, at(4))), "");
    assert_eq!(names(queue.take_ready(&mut fleet, at(5))), "refused");
}
