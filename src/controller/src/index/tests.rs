//! Incremental index compared with the objects from which it was built.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::binder::{are_replicas_missing, binding_intents};
use crate::deployment::{deployment_intents, intents_for};
use crate::fixture;
use crate::intent::{PlannedWrite, Snapshot};
use rooflet_api::meta::{DEPLOYMENT_LABEL, MOVE_ANNOTATION, REVISION_LABEL, controller_reference};

/// Objects of one kind by key, as the caches hold them.
type Store<K> = BTreeMap<ObjectKey, Arc<K>>;

#[derive(Debug, Default, Clone)]
struct Caches {
    nodes: Store<FleetNode>,
    deployments: Store<ModelDeployment>,
    revisions: Store<ModelRevision>,
    replicas: Store<ModelReplica>,
}

/// Object that is added, replaced or removed.
#[derive(Debug, Clone)]
enum Event {
    Node(Change<FleetNode>),
    Deployment(Change<ModelDeployment>),
    Revision(Change<ModelRevision>),
    Replica(Change<ModelReplica>),
}

fn set<K>(store: &mut Store<K>, change: &Change<K>) {
    store.remove(&change.key);
    let object = change.object.clone();
    store.extend(object.map(|object| (change.key.clone(), object)));
}

impl Caches {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Node(change) => set(&mut self.nodes, change),
            Event::Deployment(change) => set(&mut self.deployments, change),
            Event::Revision(change) => set(&mut self.revisions, change),
            Event::Replica(change) => set(&mut self.replicas, change),
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            nodes: self.nodes.values().cloned().collect(),
            deployments: self.deployments.values().cloned().collect(),
            revisions: self.revisions.values().cloned().collect(),
            replicas: self.replicas.values().cloned().collect(),
            ..Snapshot::default()
        }
    }

    fn fleet(&self) -> FollowedFleet {
        let mut fleet = FollowedFleet::new(0);
        let snapshot = self.snapshot();
        fleet.follow(&snapshot.nodes, &snapshot.replicas);
        fleet
    }
}

impl Index {
    fn apply(&mut self, event: &Event) -> Effects {
        let mut effects = Effects::default();
        match event {
            Event::Node(change) => self.apply_node(change, &mut effects),
            Event::Deployment(change) => self.apply_deployment(change, &mut effects),
            Event::Revision(change) => self.apply_revision(change, &mut effects),
            Event::Replica(change) => self.apply_replica(change, &mut effects),
        }
        effects
    }

    /// Returns the writes of the keyed passes for all deployments.
    fn deployment_writes(&self) -> BTreeMap<ObjectKey, Vec<PlannedWrite>> {
        let plan = |key: &ObjectKey| {
            let snapshot = self.deployments.snapshot(key).expect("the deployment exists");
            let writes = intents_for(self.fleet.fleet(), &snapshot, key, now()).writes;
            (key.clone(), writes)
        };
        self.deployments.keys().map(plan).collect()
    }

    /// Returns the writes of a pass of the binder over the candidates.
    fn binder_writes(&mut self) -> Vec<PlannedWrite> {
        let snapshot = Snapshot {
            replicas: self.fleet.candidates(now()),
            ..Snapshot::default()
        };
        binding_intents(&mut self.fleet, &snapshot, now()).writes
    }
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Some("default"), name)
}

fn change<K>(key: ObjectKey, object: Option<K>) -> Change<K> {
    let object = object.map(Arc::new);
    Change { key, object }
}

fn deployment(name: &str, spec: Value, observed: bool) -> ModelDeployment {
    let mut deployment = ModelDeployment::test(name, spec);
    deployment.metadata.namespace = Some("default".to_owned());
    deployment.metadata.uid = Some(format!("uid-{name}"));
    deployment.metadata.generation = Some(1);
    if observed {
        deployment.status.get_or_insert_default().observed_generation = Some(1);
    }
    deployment
}

fn node_event() -> impl Strategy<Value = Event> {
    let memory = prop_oneof![Just(None), Just(Some(2)), Just(Some(8))];
    (prop_oneof![Just("m"), Just("n")], memory, any::<bool>()).prop_map(|(name, gib, drain)| {
        let node = gib.map(|gib| {
            let mut node = fixture::node(name, gib);
            node.spec.drain = drain;
            node
        });
        Event::Node(change(ObjectKey::new(None, name), node))
    })
}

fn deployment_event() -> impl Strategy<Value = Event> {
    let replicas = prop_oneof![Just(None), Just(Some(1)), Just(Some(2))];
    let served = prop_oneof![Just(None), Just(Some("shared"))];
    (prop_oneof![Just("a"), Just("b")], replicas, served, any::<bool>()).prop_map(
        |(name, replicas, served, observed)| {
            let spec = |replicas| json!({ "replicas": replicas, "serving": { "name": served } });
            let object = replicas.map(|replicas| deployment(name, spec(replicas), observed));
            Event::Deployment(change(key(name), object))
        },
    )
}

/// Owner of a revision or replica: label and controller.
fn owner() -> impl Strategy<Value = (Option<&'static str>, Option<&'static str>)> {
    prop_oneof![
        3 => Just((Some("a"), Some("a"))),
        3 => Just((Some("b"), Some("b"))),
        1 => Just((Some("a"), None)),
        1 => Just((Some("a"), Some("b"))),
        1 => Just((None, None)),
    ]
}

fn revision_event() -> impl Strategy<Value = Event> {
    (prop_oneof![Just("a-1"), Just("b-1")], owner(), any::<bool>()).prop_map(|(name, owner, exists)| {
        let object = exists.then(|| {
            let mut revision = ModelRevision::test(name, json!({ "revision": 1 }));
            revision.metadata.namespace = Some("default".to_owned());
            revision.metadata.uid = Some(format!("uid-{name}"));
            own(&mut revision.metadata, owner, &[]);
            revision
        });
        Event::Revision(change(key(name), object))
    })
}

fn replica_event() -> impl Strategy<Value = Event> {
    let name = prop_oneof![Just("r1"), Just("r2"), Just("r3")];
    let node = prop_oneof![Just(None), Just(Some("m")), Just(Some("n")), Just(Some("gone"))];
    let state = prop_oneof![
        Just("absent"),
        Just("plain"),
        Just("ending"),
        Just("moving"),
        Just("refused")
    ];
    (name, owner(), node, state, 0i32..2).prop_map(|(name, owner, node, state, priority)| {
        let object = (state != "absent").then(|| {
            let spec = json!({ "nodeName": node, "priority": priority, "model": { "source": "local://guide" } });
            let mut replica = ModelReplica::test(name, spec);
            replica.metadata.namespace = Some("default".to_owned());
            replica.metadata.uid = Some(format!("uid-{name}"));
            own(&mut replica.metadata, owner, &[(REVISION_LABEL, "a-1")]);
            if state == "ending" {
                let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now());
                replica.metadata.deletion_timestamp = Some(time);
            }
            if state == "moving" {
                replica.annotations_mut().insert(MOVE_ANNOTATION.to_owned(), "n".to_owned());
            }
            if state == "refused" {
                let conditions = json!([{ "type": "Admitted", "status": "False", "reason": "InsufficientMemory",
                    "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z" }]);
                replica.status = serde_json::from_value(json!({ "conditions": conditions })).expect("valid");
            }
            replica
        });
        Event::Replica(change(key(name), object))
    })
}

fn own(
    meta: &mut kube::api::ObjectMeta,
    (label, controller): (Option<&str>, Option<&str>),
    labels: &[(&str, &str)],
) {
    let all = labels
        .iter()
        .copied()
        .chain(label.map(|label| (DEPLOYMENT_LABEL, label)));
    meta.labels = Some(
        all.map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    );
    let owner = controller.map(|name| deployment(name, json!({}), false));
    meta.owner_references = owner.map(|owner| controller_reference(&owner).into_iter().collect());
}

#[test]
fn unschedulable_replicas_wait_for_a_change_that_helps() {
    let mut index = Index::new(0);
    let replica = |name: &str, node: Option<&str>| {
        let spec = json!({ "nodeName": node, "model": { "source": "local://guide" } });
        let mut replica = ModelReplica::test(name, spec);
        replica.metadata.namespace = Some("default".to_owned());
        if node.is_some() {
            let conditions = json!([{ "type": "Scheduled", "status": "True", "reason": "Assigned",
                "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z" }]);
            replica.status = serde_json::from_value(json!({ "conditions": conditions })).expect("valid");
        }
        replica
    };
    let names = |index: &mut Index| {
        let candidates = index.fleet.candidates(now());
        let names: Vec<_> = candidates.iter().map(|replica| replica.name_any()).collect();
        names.join(" ")
    };
    let node = |gib| Event::Node(change(ObjectKey::new(None, "a"), Some(fixture::node("a", gib))));
    index.apply(&node(2));
    for name in ["r1", "r2", "r3"] {
        index.apply(&Event::Replica(change(key(name), Some(replica(name, None)))));
    }
    assert_eq!(names(&mut index), "r1 r2 r3");
    let writes = index.binder_writes();
    assert_eq!(
        writes.len(),
        4,
        "a binding with its confirmation, and two reports"
    );
    index.apply(&Event::Replica(change(key("r1"), Some(replica("r1", Some("a"))))));
    assert_eq!(names(&mut index), "", "the node is full");
    let mut changed = replica("r2", None);
    changed.status.get_or_insert_default().admission = None;
    index.apply(&Event::Replica(change(key("r2"), Some(changed))));
    assert_eq!(names(&mut index), "", "only the status changed");
    index.apply(&Event::Replica(change(key("r1"), None)));
    assert_eq!(names(&mut index), "r2", "the node has room for one");
    assert!(!index.binder_writes().is_empty());
    let mut changed = replica("r3", None);
    changed.spec.priority = 1;
    index.apply(&Event::Replica(change(key("r3"), Some(changed))));
    assert_eq!(names(&mut index), "r2 r3", "the binding is not written yet");
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        node_event(),
        deployment_event(),
        revision_event(),
        replica_event()
    ];
    proptest::collection::vec(event, 0..24)
}

/// Returns the writes with generated names removed, in a comparable form.
fn comparable(writes: &[PlannedWrite]) -> Vec<String> {
    let mut texts: Vec<_> = writes.iter().map(|write| format!("{write:?}")).collect();
    texts.sort();
    texts
}

proptest! {
    #[test]
    fn keyed_passes_plan_the_writes_of_a_full_pass(events in events()) {
        let (mut caches, mut index) = (Caches::default(), Index::new(0));
        for event in &events {
            caches.apply(event);
            index.apply(event);
        }
        let mut fleet = caches.fleet();
        let full = deployment_intents(fleet.fleet(), &caches.snapshot(), now()).writes;
        let keyed: Vec<_> = index.deployment_writes().into_values().flatten().collect();
        prop_assert_eq!(comparable(&keyed), comparable(&full));
        let full = binding_intents(&mut fleet, &caches.snapshot(), now()).writes;
        prop_assert_eq!(index.binder_writes(), full);
        let Snapshot { deployments, replicas, .. } = caches.snapshot();
        let is_missing = are_replicas_missing(&deployments, &replicas);
        prop_assert_eq!(index.deployments.are_replicas_missing(), is_missing);
    }

    #[test]
    fn change_wakes_every_reconciler_whose_writes_change(events in events()) {
        let mut index = Index::new(0);
        for event in &events {
            let (deployments, binder) = (index.deployment_writes(), index.binder_writes());
            let effects = index.apply(event);
            for (key, writes) in index.deployment_writes() {
                let before = deployments.get(&key).map(|writes| comparable(writes));
                let is_changed = before != Some(comparable(&writes));
                let is_queued = effects.deployments.contains_key(&key) || effects.fleet;
                prop_assert!(is_queued || !is_changed, "{key:?} is not queued after {event:?}");
            }
            let writes = index.binder_writes();
            let is_changed = writes != binder && !writes.is_empty();
            prop_assert!(effects.binder || !is_changed, "the binder does not wake after {event:?}");
        }
    }
}

#[test]
fn step_of_a_start_is_less_urgent_than_a_change_of_readiness() {
    let mut index = Index::new(0);
    let mut apply = |phase: &str, ready: &str| {
        let mut replica = ModelReplica::test("guide-1-x", json!({ "nodeName": "mini" }));
        replica.metadata.labels = Some([(DEPLOYMENT_LABEL.to_owned(), "guide".to_owned())].into());
        let condition = json!({ "type": "Ready", "status": ready, "reason": phase, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "phase": phase, "conditions": [condition] });
        replica.status = Some(serde_json::from_value(status).expect("a status"));
        let change = Change {
            key: ObjectKey::of(&replica),
            object: Some(Arc::new(replica)),
        };
        let mut effects = Effects::default();
        index.apply_replica(&change, &mut effects);
        effects
            .deployments
            .get(&ObjectKey::new(Some("default"), "guide"))
            .copied()
    };
    assert_eq!(
        apply("Pending", "False"),
        Some(Priority::Dependent),
        "a new replica"
    );
    assert_eq!(apply("Loading", "False"), Some(Priority::Progress));
    assert_eq!(apply("Warming", "False"), Some(Priority::Progress));
    assert_eq!(apply("Ready", "True"), Some(Priority::Dependent));
    assert_eq!(apply("Failed", "False"), Some(Priority::Dependent));
}

#[test]
fn a_change_of_a_known_deployment_precedes_new_deployments() {
    let priority = |observed: Option<i64>| {
        let mut changed = deployment("guide", json!({}), false);
        changed.metadata.generation = Some(2);
        changed.status.get_or_insert_default().observed_generation = observed;
        let key = ObjectKey::new(changed.metadata.namespace.as_deref(), "guide");
        let mut effects = Effects::default();
        Index::new(0).apply_deployment(&change(key.clone(), Some(changed)), &mut effects);
        effects.deployments.get(&key).copied()
    };
    assert_eq!(priority(None), Some(Priority::Created));
    assert_eq!(
        priority(Some(-1)),
        Some(Priority::Created),
        "the definition's default"
    );
    assert_eq!(priority(Some(1)), Some(Priority::Changed));
    assert_eq!(priority(Some(2)), Some(Priority::Dependent));
}
