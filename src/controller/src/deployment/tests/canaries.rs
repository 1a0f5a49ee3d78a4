//! Canaries of deployments that are scaled to zero or drained, and promotions of earlier rollouts.

use super::rollouts::{canary, settled};
use super::*;
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION};

/// Returns a scene with a Ready canary at a pause without a time limit.
fn at_pause() -> Scene {
    let mut scene = settled(canary(1, &json!([{ "setWeight": 10 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r2");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 90), (2, 10)]);
    scene
}

fn scale_to_zero(scene: &mut Scene) {
    scene.change(json!({ "replicas": 0 }));
    for _ in 0..3 {
        scene.step();
        scene.finish();
    }
    assert!(scene.counts().is_empty());
}

#[test]
fn canary_continues_after_scaling_to_zero() {
    let mut scene = at_pause();
    let stable = scene.rollout().stable_revision;
    scale_to_zero(&mut scene);
    assert_eq!(scene.rollout().stable_revision, stable);
    assert_eq!(
        scene.rollout().step,
        Some(0),
        "the weight applies to new replicas"
    );
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown CanaryPaused: step 1 of 2 of the canary: waits, because spec.replicas is 0",
    );
    // Time without replicas is no lack of progress.
    scene.second += 100_000;
    for _ in 0..3 {
        let before = scene.deployment.status.clone();
        assert_eq!(scene.step(), "");
        assert_eq!(scene.deployment.status, before);
    }
    scene.change(json!({ "replicas": 1 }));
    assert_eq!(scene.step(), "+2");
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
    scene.run_all();
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(1, 1), (2, 1)]);
    assert_eq!(scene.traffic(), [(1, 90), (2, 10)]);
    assert_eq!(scene.rollout().step, Some(1));
}

#[test]
fn canary_without_replicas_is_promoted_and_aborted() {
    let mut scene = at_pause();
    scale_to_zero(&mut scene);
    let mut aborted = scene.clone();
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().stable_revision, Some(scene.newest()));
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
    aborted.annotate(ABORT_ANNOTATION, aborted.rollout_id());
    aborted.step();
    aborted.change(json!({ "replicas": 1 }));
    assert_eq!(aborted.step(), "+1");
    assert_eq!(aborted.counts(), [(1, 1)]);
}

#[test]
fn promoted_steps_stay_promoted_at_zero_replicas() {
    let steps = json!([{ "setWeight": 10 }, { "pause": {} }, { "pause": {} }]);
    let mut scene = settled(canary(1, &steps), 10.0);
    scene.change(new_template("other"));
    scene.step();
    scene.run("r2");
    scene.step();
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("1"));
    scene.step();
    assert_eq!(scene.rollout().step, Some(2));
    scale_to_zero(&mut scene);
    assert_eq!(scene.rollout().step, Some(2));
}

#[test]
fn template_changed_at_zero_replicas_has_no_canary() {
    let mut scene = settled(canary(1, &json!([{ "setWeight": 10 }, { "pause": {} }])), 10.0);
    scale_to_zero(&mut scene);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.step();
    assert_eq!(scene.rollout().stable_revision, Some(scene.newest()));
}

#[test]
fn promotion_applies_to_one_rollout() {
    let steps = json!([{ "setWeight": 10 }, { "pause": { "duration": "5m" } }]);
    let mut scene = settled(canary(1, &steps), 10.0);
    scene.change(new_template("other"));
    scene.step();
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    for _ in 0..3 {
        scene.step();
        scene.finish();
        scene.run_all();
    }
    assert_eq!(scene.counts(), [(2, 1)]);
    // An undo passes through the steps, too.
    scene.change(new_template("guide"));
    for _ in 0..6 {
        scene.step();
        scene.finish();
        scene.run_all();
        scene.second += 300;
    }
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
    assert_eq!(scene.counts(), [(3, 1)]);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "again as 4 +1");
    assert_eq!(scene.rollout().step, Some(0));
    // A new promotion applies.
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    scene.step();
    assert_eq!(scene.rollout().step, Some(2));
}

#[test]
fn abort_applies_to_one_rollout() {
    let mut scene = at_pause();
    scene.annotate(ABORT_ANNOTATION, scene.rollout_id());
    scene.step();
    assert!(scene.rollout().aborted.is_some());
    for name in ["guide", "other"] {
        scene.change(new_template(name));
        scene.step();
        scene.finish();
    }
    assert_eq!(scene.rollout().aborted, None);
    assert_eq!(scene.rollout().step, Some(0));
}

#[test]
fn promotion_of_a_complete_rollout_does_not_move_replicas_early() {
    let strategy = json!({ "maintenanceWindows": [{ "start": "00:00", "duration": "10m" }] });
    let mut scene = settled(json!({ "strategy": strategy }), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    scene.finish();
    scene.run("r2");
    scene.step();
    assert_eq!(scene.rollout().stable_revision, Some(scene.newest()));
    scene.second = 3600;
    scene.change(json!({ "placement": { "nodeSelector": { "zone": "x" } } }));
    assert_eq!(scene.step(), "");
    scene.check_condition_begins(condition_type::PROGRESSING, "Unknown OutsideMaintenanceWindow");
}

/// Returns a scene with a Ready canary at a pause, and a surge for the replacement of the stable replica.
fn at_pause_with_surge() -> Scene {
    let mut scene = at_pause();
    let rolling = json!({ "maxSurge": 1, "maxUnavailable": 0 });
    scene.change(json!({ "strategy": { "rollingUpdate": rolling } }));
    assert_eq!(scene.step(), "");
    scene
}

#[test]
fn leaving_stable_replica_is_replaced_beside_its_canary() {
    for paused in [false, true] {
        let mut scene = at_pause_with_surge();
        scene.change(json!({ "paused": paused }));
        scene.leave("r1", Truth::True);
        assert_eq!(scene.step(), "+1", "paused: {paused}");
        assert_eq!(scene.counts(), [(1, 2), (2, 1)]);
        assert_eq!(scene.step(), "");
        // A pause that begins now deletes neither the replacement nor the canary.
        let mut later = scene.clone();
        later.change(json!({ "paused": true }));
        assert_eq!(later.step(), "");
        scene.run("r3");
        assert_eq!(scene.step(), "");
        assert_eq!(scene.traffic(), [(1, 90), (2, 10)]);
        // The drain is cancelled, so one stable replica is surplus.
        let mut cancelled = scene.clone();
        cancelled.leave("r1", Truth::False);
        cancelled.step();
        assert_eq!(cancelled.counts(), [(1, 1), (2, 1)]);
        // The node lifecycle deletes the replica.
        scene.replicas.retain(|replica| replica.name_any() != "r1");
        assert_eq!(scene.step(), "");
        assert_eq!(scene.counts(), [(1, 1), (2, 1)]);
        assert_eq!(scene.traffic(), [(1, 90), (2, 10)]);
    }
}

#[test]
fn leaving_stable_replica_is_replaced_beside_an_aborted_canary() {
    let mut scene = at_pause_with_surge();
    scene.leave("r1", Truth::True);
    scene.annotate(ABORT_ANNOTATION, scene.rollout_id());
    assert_eq!(scene.step(), "+1");
    assert_eq!(scene.step(), "");
    scene.run("r3");
    assert_eq!(scene.step(), "-r2(outdated)");
    scene.finish();
    assert_eq!(scene.step(), "");
    assert!(scene.traffic().is_empty());
    assert_eq!(scene.counts(), [(1, 2)]);
}

#[test]
fn paused_canary_keeps_a_single_stable_replica() {
    // A lost stable replica is created again.
    let mut scene = at_pause();
    scene.change(json!({ "paused": true }));
    scene.replicas.retain(|replica| replica.name_any() != "r1");
    assert_eq!(scene.step(), "+1");
    assert_eq!(scene.counts(), [(1, 1), (2, 1)]);
    assert_eq!(scene.step(), "");
    // A canary without a node does not stay.
    let mut scene = at_pause_with_surge();
    scene.change(json!({ "paused": true }));
    scene.replica("r2").spec.node_name = None;
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "-r2(surplus) +1");
    scene.finish();
    assert_eq!(scene.step(), "");
    // A canary with all requests has replaced the stable replica.
    let mut scene = settled(canary(1, &json!([{ "setWeight": 100 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.finish();
    scene.run("r2");
    scene.step();
    scene.change(json!({ "paused": true }));
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 0), (2, 100)]);
}

#[test]
fn canary_below_its_floor_waits_at_zero_replicas() {
    let mut spec = canary(1, &json!([{ "setWeight": 10 }, { "pause": {} }]));
    spec["strategy"]["rollingUpdate"] = json!({ "minThroughput": "50%" });
    let mut scene = Scene::new(spec);
    scene.step();
    scene.run_all();
    scene.step();
    let stable = scene.rollout().stable_revision;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.check_condition_begins(condition_type::PROGRESSING, "False ThroughputFloor");
    assert_eq!(scene.rollout().step, Some(0));
    let before = scene.deployment.status.clone();
    scene.step();
    assert_eq!(scene.deployment.status, before);
    scale_to_zero(&mut scene);
    assert_eq!(scene.rollout().stable_revision, stable);
    scene.check_condition_begins(condition_type::PROGRESSING, "Unknown CanaryPaused: step 1 of 2");
    scene.change(json!({ "replicas": 1 }));
    scene.step();
    assert_eq!(scene.rollout().stable_revision, stable);
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
}
