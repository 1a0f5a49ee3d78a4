//! Progress deadlines of replicas that start again and again.

use super::rollouts::{canary, settled};
use super::*;

const PERIOD: i64 = 60;

fn with_canary() -> Scene {
    let steps = json!([{ "setWeight": 50 }, { "pause": {} }]);
    let mut scene = settled(canary(2, &steps), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    scene.finish();
    scene
}

#[test]
fn worker_that_crashes_in_its_warm_up_exceeds_the_deadline() {
    let mut scene = with_canary();
    scene.replica("r3").spec.node_name = Some("mini".to_owned());
    for _ in 0..9 {
        scene.set("r3", condition_type::LOADED, Truth::True, "Loaded", "");
        scene.step();
        scene.set("r3", condition_type::LOADED, Truth::False, "Waiting", "");
        scene.second += PERIOD;
        scene.step();
    }
    assert_eq!(scene.rollout().aborted, None);
    scene.second += PERIOD;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    scene.check_condition_begins(condition_type::PROGRESSING, "False RolledBack");
}

/// Lets the node refuse every replica of the scene until the deadline. Returns the name of the last one.
fn refuse_until_deadline(scene: &mut Scene) -> String {
    let began = scene.second;
    loop {
        let name = scene.alive().last().expect("a replica").name_any();
        scene.replica(&name).spec.node_name = Some("mini".to_owned());
        scene.set(&name, condition_type::SCHEDULED, Truth::True, "Scheduled", "");
        scene.step();
        if scene.second - began > 600 {
            return name;
        }
        scene.set(&name, condition_type::ADMITTED, Truth::False, "Quarantined", "m");
        scene.second += PERIOD;
        assert_eq!(scene.step(), format!("-{name}(refused) +1"));
        scene.finish();
    }
}

#[test]
fn refused_replicas_exceed_the_deadline() {
    let mut scene = with_canary();
    refuse_until_deadline(&mut scene);
    scene.check_condition_begins(condition_type::PROGRESSING, "False RolledBack");

    let mut scene = Scene::new(json!({}));
    scene.step();
    refuse_until_deadline(&mut scene);
    scene.check_condition_begins(condition_type::PROGRESSING, "False ProgressDeadlineExceeded");
    // The condition does not change when the controller creates the next replica.
    let name = scene.alive().last().expect("a replica").name_any();
    scene.set(&name, condition_type::ADMITTED, Truth::False, "Quarantined", "m");
    scene.second += PERIOD;
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "False ProgressDeadlineExceeded");
    // Real progress continues the rollout.
    scene.run_all();
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
    assert_eq!(scene.rollout().progress, None);
}

#[test]
fn every_started_replica_extends_the_deadline() {
    let mut scene = settled(
        json!({ "replicas": 3, "strategy": { "rollbackOnFailure": true } }),
        10.0,
    );
    scene.change(new_template("other"));
    for _ in 0..3 {
        scene.step();
        scene.finish();
        scene.second += 500;
        scene.run_all();
    }
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
}

#[test]
fn later_move_of_replicas_has_a_new_deadline() {
    let mut scene = settled(json!({ "replicas": 2 }), 10.0);
    scene.run_all();
    scene.second += 10_000;
    scene.change(json!({ "placement": { "nodeSelector": { "zone": "x" } } }));
    assert_eq!(scene.step(), "-r2(outdated) +1");
    scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
    scene.finish();
    scene.second += 500;
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
    scene.second += 200;
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "False ProgressDeadlineExceeded");
}

/// Moves all four replicas, one every 200 s.
fn check_move(scene: &mut Scene) {
    for _ in 0..4 {
        scene.step();
        scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
        scene.finish();
        scene.second += 200;
        scene.step();
        scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
        scene.run_all();
    }
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
}

#[test]
fn move_after_a_pause_or_a_refused_template_has_a_new_deadline() {
    let placement = json!({ "nodeSelector": { "zone": "x" } });
    let mut scene = settled(json!({ "replicas": 4 }), 10.0);
    scene.run_all();
    scene.change(json!({ "paused": true }));
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "Unknown Paused");
    scene.change(json!({ "paused": false, "placement": placement }));
    check_move(&mut scene);

    let mut scene = settled(json!({ "replicas": 4 }), 10.0);
    scene.run_all();
    scene.change(json!({ "serving": { "contextTokens": 4096 } }));
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "False ContextTooLong");
    scene.change(json!({ "serving": { "contextTokens": null }, "placement": placement }));
    check_move(&mut scene);
}
