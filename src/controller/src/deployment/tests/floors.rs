//! Throughput floor: `minThroughput` in every state of a rollout, with other replicas on the chips,
//! and the measured speed of new replicas.

use super::rollouts::settled;
use super::*;
use crate::deployment::throughput::{Chips, Throughput};
use rooflet_api::meta::{DEPLOYMENT_LABEL, PROMOTE_ANNOTATION};
use rooflet_scheduler::ReplicaRequest;

fn rolling(replicas: i32, floor: &Value) -> Value {
    let bounds = json!({ "maxUnavailable": 1, "maxSurge": 0, "minThroughput": floor });
    json!({ "replicas": replicas, "strategy": { "rollingUpdate": bounds } })
}

/// Returns a Mac with memory for one replica.
fn mac(name: &str, chip: &str, gpu_cores: u32) -> FleetNode {
    let model = ServedModel::of_size(Bytes::gib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 2048);
    let mut status = FleetNodeStatus {
        models: vec![model],
        ..FleetNodeStatus::default()
    };
    status.chip.name = chip.to_owned();
    status.chip.gpu_cores = Some(gpu_cores);
    status.allocatable.memory = "2Gi".to_owned();
    set_condition(
        &mut status.conditions,
        condition_type::READY,
        Truth::True,
        "AgentReady",
        "",
        None,
        at(0),
    );
    let mut node = FleetNode::new(name, FleetNodeSpec::default());
    node.status = Some(status);
    node
}

/// Returns a scene with replicas on an M4 and an M4 Max, with the predicted speeds of these chips.
/// `floor` is relative to the speed of the M4 Max.
fn on_different_macs(floor: f64) -> Scene {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.nodes = vec![mac("air", "Apple M4", 10), mac("max", "Apple M4 Max", 40)];
    scene.step();
    let request = ReplicaRequest::new(&scene.replicas[0]);
    let fleet = scene.fleet();
    let speed = |node: &str| {
        let speed = fleet.node(node).and_then(|node| node.speed_alone(&request));
        speed.expect("both chips are in the catalogue").decode.p50
    };
    let (air, max) = (speed("air"), speed("max"));
    assert!(max > 2.0 * air, "{max} and {air}");
    for (name, node, each) in [("r1", "air", air), ("r2", "max", max)] {
        scene.run(name);
        scene.replica(name).spec.node_name = Some(node.to_owned());
        scene.predict(name, each);
    }
    scene.change(rolling(2, &json!((4.0 * max * floor) as i32)));
    scene.step();
    scene
}

#[test]
fn rollout_that_would_stop_at_the_floor_does_not_start() {
    // The M4 Max alone satisfies the floor, but it must be replaced, too.
    let mut scene = on_different_macs(0.9);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    let message = scene.condition(condition_type::PROGRESSING);
    assert!(
        message.starts_with("False ThroughputFloor: revision 2 (guide-"),
        "{message}"
    );
    assert!(
        message.contains("is not rolled out: with 1 of the new replicas on air, as"),
        "{message}"
    );
    assert_eq!(scene.step(), "", "the rollout does not start later either");
    // The M4 alone satisfies a lower floor, so both replicas are replaced, the slower one first.
    let mut scene = on_different_macs(0.1);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
}

#[test]
fn dry_run_includes_preemption_of_lower_priorities() {
    for (priority, expect) in [(0, "revision 2"), (10, "revision 2 +1")] {
        let strategy = json!({ "rollingUpdate": { "maxSurge": 1, "minThroughput": "80%" } });
        let mut scene = Scene::new(json!({ "replicas": 1, "priority": priority, "strategy": strategy }));
        scene.nodes = vec![mac("one", "Apple M4", 10), mac("two", "Apple M4", 10)];
        scene.step();
        scene.run("r1");
        let request = ReplicaRequest::new(&scene.replicas[0]);
        let speed = scene
            .fleet()
            .node("one")
            .and_then(|node| node.speed_alone(&request));
        scene.replica("r1").spec.node_name = Some("one".to_owned());
        scene.predict("r1", speed.expect("the chip is in the catalogue").decode.p50);
        let mut other = scene.replicas[0].clone();
        other.metadata.name = Some("other".to_owned());
        other
            .labels_mut()
            .insert(DEPLOYMENT_LABEL.to_owned(), "other".to_owned());
        other.spec.priority = 0;
        other.spec.node_name = Some("two".to_owned());
        scene.others = vec![other];
        scene.step();
        scene.change(new_template("other"));
        let done = scene.step();
        let message = scene.condition(condition_type::PROGRESSING);
        assert_eq!(done, expect, "priority {priority}: {message}");
        let is_refused = message.contains("would find no node");
        assert_eq!(is_refused, priority == 0, "{message}");
    }
}

#[test]
fn chip_time_of_other_deployments_is_excluded() {
    let scene = on_different_macs(0.9);
    let own = scene.replicas[1].clone();
    let total = |others: &[ModelReplica]| {
        let fleet = Fleet::new(&scene.nodes, scene.replicas.iter().chain(others));
        Throughput::of(Chips::new(&fleet, &scene.deployment), [&own]).total()
    };
    let mut other = own.clone();
    other.metadata.name = Some("other".to_owned());
    other
        .labels_mut()
        .insert(DEPLOYMENT_LABEL.to_owned(), "other".to_owned());
    let alone = total(&[]);
    assert!(alone > 0.0);
    // Two deployments without objectives have half of the chip each.
    assert!((total(&[other.clone()]) - alone / 2.0).abs() < 1e-6);
    // Objectives of other deployments reserve their share.
    let speed = alone / 4.0;
    other.spec.objectives.decode_tokens_per_second = Some(speed * 0.4);
    let left = total(&[other]) / alone;
    assert!((0.3..0.6).contains(&left), "{left}");
}

#[test]
fn unpredictable_throughput_stops_the_rollout() {
    for floor in [json!("50%"), json!(10)] {
        let mut scene = Scene::new(rolling(2, &floor));
        scene.step();
        scene.run_all();
        scene.step();
        assert_eq!(scene.rollout().reference_tokens_per_second, None);
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 2");
        let message = scene.condition(condition_type::PROGRESSING);
        assert!(
            message.starts_with("False ThroughputFloor: revision 2 (")
                && message.contains("cannot be predicted"),
            "{message}"
        );
        // Without a floor, or with predictions, the rollout continues.
        let mut unbound = scene.clone();
        unbound.change(json!({ "strategy": { "rollingUpdate": { "minThroughput": null } } }));
        assert_eq!(unbound.step(), "-r2(outdated) +1");
        for name in ["r1", "r2"] {
            scene.replica(name).spec.node_name = Some(format!("with-{name}"));
            scene.predict(name, 10.0);
        }
        assert_eq!(scene.step(), "-r2(outdated) +1");
    }
}

#[test]
fn floor_applies_to_the_first_replacement() {
    let mut scene = settled(rolling(1, &json!("80%")), 10.0);
    scene.change(new_template("other"));
    scene.step();
    let message = scene.condition(condition_type::PROGRESSING);
    assert!(
        message.contains(
            "is not rolled out: before any replica is replaced, 40.0 tokens/s would be predicted and 0.0 without the next replica; \
             spec.strategy.rollingUpdate.minThroughput requires 32.0"
        ),
        "{message}"
    );
}

/// Sets measurements of this number of answers, at `part` of the predicted speed.
fn measure(scene: &mut Scene, name: &str, answers: u64, part: f64) {
    let predicted = 20.0;
    let percentiles = |p50: f64| Percentiles {
        p10: p50 * 0.9,
        p50,
        p90: p50 * 1.1,
    };
    let status = scene.replica(name).status.as_mut().expect("the replica runs");
    status.measured = Some(MeasuredSpeed {
        tokens_per_second_sample: Some(Sample {
            count: answers,
            p10: predicted * part * 0.9,
            p50: predicted * part,
            p90: predicted * part * 1.1,
        }),
        predicted: Some(PredictedSpeed {
            tokens_per_second: percentiles(predicted),
            ..PredictedSpeed::default()
        }),
        ..MeasuredSpeed::default()
    });
}

#[test]
fn much_slower_new_replicas_stop_the_rollout() {
    let begun = || {
        let mut scene = settled(rolling(3, &json!(null)), 10.0);
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 2 -r3(outdated) +1");
        scene.finish();
        scene.run_at("r4", 10.0);
        scene
    };
    let mut scene = begun();
    measure(&mut scene, "r4", 40, 0.3);
    assert_eq!(scene.step(), "");
    scene.check_condition(
        condition_type::PROGRESSING,
        "False SlowerThanPredicted: no more replicas are replaced: the new replicas reach 30 % of their predicted tokens/s, over 40 answers; run `rooflet rollout undo mdep/guide` to return to the previous revision, or `rooflet rollout promote --full mdep/guide` to continue",
    );
    scene.second += 3600;
    assert_eq!(scene.step(), "", "a pause is no lack of progress");
    assert_eq!(scene.rollout().aborted, None);
    // A promotion overrides the pause.
    let full = scene.promotion("full");
    scene.annotate(PROMOTE_ANNOTATION, full);
    assert_eq!(scene.step(), "-r2(outdated) +1");

    // No pause with few answers, small differences, or an equally slow stable revision.
    for (answers, part, stable) in [(19, 0.3, 1.0), (40, 0.6, 1.0), (40, 0.3, 0.4)] {
        let mut scene = begun();
        measure(&mut scene, "r4", answers, part);
        measure(&mut scene, "r1", 40, stable);
        assert_eq!(scene.step(), "-r2(outdated) +1", "{answers} {part} {stable}");
    }
}

#[test]
fn surge_replica_stays_while_the_rollout_is_paused() {
    let strategy = json!({ "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run_at("r3", 10.0);
    measure(&mut scene, "r3", 40, 0.3);
    for _ in 0..3 {
        assert_eq!(scene.step(), "", "a deletion would start the surge again");
    }
    let message = scene.condition(condition_type::PROGRESSING);
    assert!(
        message.starts_with("False SlowerThanPredicted")
            && message.ends_with(
                "; 1 replica more than spec.replicas remains until the rollout continues or is undone"
            ),
        "{message}"
    );
    scene.change(new_template("guide"));
    assert_eq!(scene.step(), "again as 3 -r3(outdated)");
}
