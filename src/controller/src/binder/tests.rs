//! Steps of one pass of the binder.

use super::candidate::is_candidate;
use super::*;
use crate::fixture::node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::at;

fn replica(name: &str, created: i64, node: Option<&str>) -> ModelReplica {
    let mut replica = ModelReplica::test(name, serde_json::json!({ "nodeName": node }));
    replica.metadata.creation_timestamp = Some(Time(at(created)));
    let labels = [(DEPLOYMENT_LABEL, "guide"), (REVISION_LABEL, "guide-1")];
    replica.metadata.labels = Some(
        labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    replica
}

fn set(replica: &mut ModelReplica, kind: &str, truth: Truth, reason: &str, second: i64) {
    let status = replica.status.get_or_insert_default();
    set_condition(
        &mut status.conditions,
        kind,
        truth,
        reason,
        "set by the test",
        None,
        at(second),
    );
}

fn check(nodes: &[FleetNode], replicas: &[ModelReplica], expect: &str) {
    let mut fleet = Fleet::new(nodes, replicas);
    let find = |key: &ReplicaKey| replicas.iter().find(|replica| ReplicaKey::of(*replica) == *key);
    let candidates: Vec<_> = replicas.iter().filter(|replica| is_candidate(replica)).collect();
    let (steps, _) = plan(&mut fleet, &candidates, find, at(1000));
    let steps: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Bind { replica, node, .. } => format!("{}->{node}", replica.name_any()),
            Step::Preempt { replica, victims, .. } => {
                let victims: Vec<_> = victims.iter().map(|victim| victim.name_any()).collect();
                format!("{} instead of {}", replica.name_any(), victims.join("+"))
            }
            Step::Report { replica, .. } => format!("{} waits", replica.name_any()),
            Step::Confirm { replica, .. } => format!("{} is bound", replica.name_any()),
        })
        .collect();
    assert_eq!(steps.join(", "), expect);
}

#[test]
fn binds_the_oldest_first_and_reports_the_others() {
    let nodes = [node("a", 2)];
    let replicas = [
        replica("x", 2, None),
        replica("y", 1, None),
        replica("z", 3, None),
    ];
    check(&nodes, &replicas, "y->a, x waits, z waits");
}

#[test]
fn one_pass_decides_for_the_first_replicas_in_scheduling_order() {
    let mut replicas: Vec<_> = (0..300)
        .map(|number| replica(&format!("r-{number:03}"), 1000 - number, None))
        .collect();
    replicas[7].spec.priority = 5;
    replicas.push(replica("bound", 1, Some("a")));
    let mut left: Vec<_> = replicas.into_iter().map(Arc::new).collect();
    let (first, is_any_left) = of_one_pass(left.clone());
    assert!(is_any_left);
    let names: HashSet<_> = first.iter().map(|replica| replica.name_any()).collect();
    assert_eq!(names.len(), MAX_DECISIONS + 1);
    // The bound one, the one of the highest priority, and the oldest ones of the revision.
    assert!(names.contains("bound") && names.contains("r-007") && names.contains("r-299"));
    assert!(!names.contains("r-006"));
    let mut passes = 0;
    while !left.is_empty() {
        let (now, is_any_left) = of_one_pass(left.clone());
        left.retain(|replica| !now.contains(replica));
        assert_eq!(is_any_left, !left.is_empty());
        passes += 1;
    }
    assert_eq!(passes, 3);
}

#[test]
fn reports_an_unchanged_reason_once() {
    let nodes = [node("a", 1)];
    let mut x = replica("x", 1, None);
    let all = [&x];
    let mut fleet = Fleet::new(&nodes, all);
    let Some(Step::Report { status, .. }) = plan(&mut fleet, &all, |_| None, at(1)).0.pop() else {
        panic!("the replica does not fit");
    };
    x.status = Some(*status);
    check(&nodes, &[x], "");
}

#[test]
fn preempts_once_and_keeps_the_freed_memory_for_the_preemptor() {
    let nodes = [node("a", 2)];
    let mut low = replica("low", 1, Some("a"));
    set(&mut low, condition_type::SCHEDULED, Truth::True, "Assigned", 1);
    let mut high = replica("high", 2, None);
    high.spec.priority = 5;
    let all = [&low, &high];
    let mut fleet = Fleet::new(&nodes, all);
    let find = |key: &ReplicaKey| all.into_iter().find(|replica| ReplicaKey::of(*replica) == *key);
    let (steps, unplaced) = plan(&mut fleet, &all, find, at(1000));
    assert!(unplaced.is_empty(), "the next pass confirms the nomination");
    let [
        Step::Preempt {
            status,
            victims,
            message,
            ..
        },
    ] = &steps[..]
    else {
        panic!("{steps:?}");
    };
    assert_eq!(victims.len(), 1);
    assert!(
        message.starts_with("preempting replicas of lower priority on a: default/low; before: 0/1"),
        "{message}"
    );
    assert_eq!(status.nominated_node_name.as_deref(), Some("a"));
    high.status = Some(status.as_ref().clone());
    low.metadata.deletion_timestamp = Some(Time(at(1000)));
    // No second preemption, and no other replica uses the freed memory.
    let late = replica("late", 3, None);
    check(&nodes, &[low, high.clone(), late.clone()], "late waits");
    check(&nodes, &[high, late], "high->a, late waits");
}

#[test]
fn confirms_a_binding_without_condition() {
    let nodes = [node("a", 8)];
    let mut bound = replica("x", 1, Some("a"));
    check(&nodes, std::slice::from_ref(&bound), "x is bound");
    set(&mut bound, condition_type::SCHEDULED, Truth::True, "Assigned", 1);
    check(&nodes, &[bound], "");
    let mut mirror = replica("m", 1, Some("a"));
    let annotations = [(MIRROR_ANNOTATION.to_owned(), String::new())];
    mirror.metadata.annotations = Some(annotations.into());
    check(&nodes, &[mirror], "");
}

#[test]
fn replacement_of_a_moving_replica_is_bound_to_the_target_node() {
    let nodes = ["a", "b", "c"].map(|name| node(name, 8));
    let mut moving = replica("x", 1, Some("a"));
    set(&mut moving, condition_type::SCHEDULED, Truth::True, "Assigned", 1);
    let annotations = [(rooflet_api::meta::MOVE_ANNOTATION.to_owned(), "c".to_owned())];
    moving.metadata.annotations = Some(annotations.into());
    check(&nodes, &[moving.clone(), replica("y", 2, None)], "y->c");
    // If the target does not exist, any node but the current one.
    check(&nodes[..2], &[moving.clone(), replica("y", 2, None)], "y->b");
    check(&nodes[..1], &[moving.clone(), replica("y", 2, None)], "y waits");
    // Replicas of other deployments are not affected.
    let mut other = replica("z", 2, None);
    other.metadata.labels = None;
    check(&nodes[..1], &[moving, other], "z->a");
}

#[test]
fn node_that_rejected_a_sibling_is_excluded_for_a_time() {
    let nodes = [node("a", 8)];
    let mut refused = replica("x", 1, Some("a"));
    set(
        &mut refused,
        condition_type::SCHEDULED,
        Truth::True,
        "Assigned",
        1,
    );
    set(
        &mut refused,
        condition_type::ADMITTED,
        Truth::False,
        "MemoryInUse",
        950,
    );
    let all = [refused.clone(), replica("y", 2, None)];
    check(&nodes, &all, "y waits");
    check(&[node("a", 8), node("b", 8)], &all, "y->b");
    let conditions = &mut refused.status.as_mut().expect("set").conditions;
    for condition in conditions {
        condition.last_transition_time = Time(at(900));
    }
    check(&nodes, &[refused, replica("y", 2, None)], "y->a");
}
