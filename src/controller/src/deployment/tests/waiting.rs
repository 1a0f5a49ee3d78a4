//! Rollouts that wait for a maintenance window or for idle replicas.

use super::rollouts::settled;
use super::*;
use rooflet_api::meta::PROMOTE_ANNOTATION;

impl Scene {
    /// Sets whether the replica has a request.
    pub(super) fn set_in_use(&mut self, name: &str, used: bool) {
        let since = Time(at(self.second));
        let status = self
            .replica(name)
            .status
            .get_or_insert_with(ModelReplicaStatus::default);
        status.requests = Some(RequestsStatus {
            running: u64::from(used),
            idle_since: (!used).then_some(since),
            ..RequestsStatus::default()
        });
    }

    fn requeue_after(&self) -> Option<u64> {
        self.plan(|plan| plan.requeue_after.map(|after| after.as_secs()))
    }
}

const WAITS: &str = "no replica is replaced before 1970-01-02T00:00:00Z, when a maintenance window opens; to continue now, run `rooflet rollout promote --full mdep/guide`";

fn nightly() -> Value {
    json!({ "maintenanceWindows": [{ "start": "00:00", "duration": "10m" }] })
}

#[test]
fn rollout_waits_for_its_window_and_pauses_after_it() {
    let mut scene = settled(json!({ "replicas": 2, "strategy": nightly() }), 10.0);
    scene.second = 3600;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!("Unknown OutsideMaintenanceWindow: {WAITS}"),
    );
    assert_eq!(scene.requeue_after(), Some(23 * 3600 - 1));
    // Scaling does not wait for a window and uses the stable revision.
    scene.change(json!({ "replicas": 3 }));
    assert_eq!(scene.step(), "+1");
    scene.run_at("r3", 10.0);
    assert_eq!(scene.counts(), [(1, 3)]);
    // Waiting for a window is no lack of progress.
    scene.second = 24 * 3600;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
    scene.finish();
    scene.run("r4");
    scene.second = 24 * 3600 + 600;
    assert_eq!(scene.step(), "", "the window has closed");
    assert_eq!(scene.counts(), [(1, 2), (2, 1)]);
    // A full promotion ignores the windows.
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    assert_eq!(scene.step(), "-r2(outdated) +1");
}

#[test]
fn surge_replica_stays_after_the_window_closes() {
    let mut strategy = nightly();
    let surge = json!({ "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    json_patch::merge(&mut strategy, &surge);
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r3");
    scene.second = 3600;
    assert_eq!(scene.step(), "");
    scene.second = 24 * 3600;
    assert_eq!(scene.step(), "-r2(outdated) +1");
}

#[test]
fn analysis_and_abort_ignore_windows() {
    let steps = json!([{ "setWeight": 50 }, { "analysis": {} }, { "pause": {} }]);
    let mut strategy = nightly();
    json_patch::merge(
        &mut strategy,
        &json!({ "type": "Canary", "canary": { "steps": steps } }),
    );
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.run("r3");
    scene.step();
    scene.second = 3600;
    scene.answer("r1", 100, 0);
    scene.answer("r3", 20, 20);
    assert_eq!(scene.step(), "-r3(outdated) +1");
    scene.check_condition_begins(condition_type::PROGRESSING, "False RolledBack");
}

#[test]
fn undo_waits_for_nothing() {
    let mut strategy = nightly();
    json_patch::merge(&mut strategy, &json!({ "waitForIdle": {} }));
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.set_in_use("r2", false);
    scene.second += 30;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    scene.finish();
    scene.run("r3");
    scene.second = 3600;
    scene.change(new_template("guide"));
    assert_eq!(scene.step(), "again as 3 -r3(outdated) +1");
}

#[test]
fn first_rollout_needs_no_window() {
    let mut scene = Scene::new(json!({ "strategy": nightly() }));
    scene.second = 3600;
    assert_eq!(scene.step(), "revision 1 +1");
}

fn patient() -> Value {
    json!({ "replicas": 2, "strategy": { "waitForIdle": { "idleFor": "30s", "atMost": "10m" } } })
}

#[test]
fn replica_in_use_stays_until_it_is_idle() {
    let mut scene = settled(patient(), 10.0);
    scene.set_in_use("r1", true);
    scene.set_in_use("r2", true);
    scene.change(new_template("other"));
    let began = at(scene.second);
    let until = at(scene.second + 600);
    assert_eq!(scene.step(), "revision 2");
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!(
            "Unknown WaitingForIdle: the next replica is replaced after 30 s without requests, at {until} at the latest: r1, r2"
        ),
    );
    assert_eq!(scene.rollout().idle_wait_started_at, Some(Time(began)));
    assert_eq!(scene.requeue_after(), Some(599));
    scene.set_in_use("r1", false);
    assert_eq!(scene.requeue_after(), Some(30));
    scene.second += 29;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.step(), "-r1(outdated) +1");
    scene.finish();
    scene.run("r3");
    // The wait for the next replica starts again.
    scene.second += 300;
    let began = at(scene.second);
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().idle_wait_started_at, Some(Time(began)));
    scene.second += 598;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.step(), "-r2(outdated) +1");
    assert_eq!(scene.rollout().idle_wait_started_at, None);
    scene.finish();
    scene.run("r4");
    assert_eq!(scene.step(), "");
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
}

#[test]
fn idle_replica_is_replaced_first_and_unready_one_immediately() {
    let mut scene = settled(patient(), 10.0);
    scene.set_in_use("r2", true);
    scene.set_in_use("r1", false);
    scene.second += 60;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.finish();
    scene.run("r3");
    scene.set("r2", condition_type::READY, Truth::False, "Crashed", "");
    assert_eq!(scene.step(), "-r2(outdated) +1");
}

#[test]
fn recreate_waits_until_all_replicas_are_idle() {
    let strategy = json!({ "type": "Recreate", "waitForIdle": {} });
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.set_in_use("r1", true);
    scene.set_in_use("r2", false);
    scene.second += 60;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.set_in_use("r1", false);
    scene.second += 30;
    assert_eq!(scene.step(), "-r2(outdated) -r1(outdated)");
}

#[test]
fn progress_deadline_excludes_the_wait_for_a_window() {
    let strategy =
        json!({ "rollbackOnFailure": true, "maintenanceWindows": [{ "start": "00:00", "duration": "10m" }] });
    let mut scene = settled(json!({ "strategy": strategy }), 10.0);
    scene.second = 3600;
    scene.change(new_template("other"));
    scene.step();
    scene.second = 24 * 3600;
    assert_eq!(scene.step(), "-r1(outdated) +1");
    scene.finish();
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
    // The deadline counts from the start of the replacement, even after the window closes.
    scene.second = 24 * 3600 + 599;
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
    scene.second = 24 * 3600 + 602;
    scene.step();
    assert!(scene.rollout().aborted.is_some());
}

#[test]
fn last_start_of_the_model_is_kept_without_replicas() {
    let mut scene = Scene::new(json!({}));
    let last_start = |scene: &Scene| {
        let status = scene.deployment.status.clone().expect("a pass has run");
        status.last_start.map(|start| start.seconds)
    };
    scene.step();
    scene.set("r1", condition_type::SCHEDULED, Truth::True, "Ok", "");
    // The download is not part of the start time, because the next start needs none.
    scene.second += 500;
    scene.set("r1", condition_type::ARTIFACTS_READY, Truth::True, "Ok", "");
    scene.step();
    assert_eq!(last_start(&scene), None, "the replica is not Ready yet");
    scene.second += 30;
    scene.run("r1");
    scene.step();
    assert_eq!(last_start(&scene), Some(31));
    // The node was silent for a time, which is not a start.
    scene.set("r1", condition_type::READY, Truth::Unknown, "NodeNotReady", "");
    scene.second += 60;
    scene.run("r1");
    scene.step();
    assert_eq!(last_start(&scene), Some(31));
    scene.change(json!({ "replicas": 0 }));
    scene.step();
    scene.finish();
    scene.step();
    assert_eq!(last_start(&scene), Some(31));
    // A restarted worker is not counted, the next replica is.
    scene.change(json!({ "replicas": 1 }));
    scene.step();
    scene.run("r2");
    scene
        .replica("r2")
        .status
        .as_mut()
        .expect("the replica has a status")
        .restarts = 1;
    scene.step();
    assert_eq!(last_start(&scene), Some(31));
    scene
        .replica("r2")
        .status
        .as_mut()
        .expect("the replica has a status")
        .restarts = 0;
    scene.step();
    assert_eq!(last_start(&scene), Some(0));
    scene.change(json!({ "model": { "source": "local://other" } }));
    scene.step();
    assert_eq!(last_start(&scene), None, "the model has changed");
}
