//! Rollouts that wait for a better time: for a window, and for replicas that nobody uses.

use super::rollouts::settled;
use super::*;
use rooflet_api::meta::PROMOTE_ANNOTATION;

impl Scene {
    /// It has a request now, or has none any more.
    pub(super) fn use_it(&mut self, name: &str, used: bool) {
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

const WAITS: &str = "no replica is replaced before 1970-01-02T00:00:00Z, when a maintenance window opens; `rooflet rollout promote --full mdep/guide` goes on now";

fn nightly() -> Value {
    json!({ "maintenanceWindows": [{ "start": "00:00", "duration": "10m" }] })
}

#[test]
fn a_rollout_waits_for_its_window_and_stops_with_it() {
    let mut scene = settled(json!({ "replicas": 2, "strategy": nightly() }), 10.0);
    scene.second = 3600;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!("Unknown OutsideMaintenanceWindow: {WAITS}"),
    );
    assert_eq!(scene.requeue_after(), Some(23 * 3600 - 1));
    // What is only scaled waits for no window; the revision that has proved itself is taken.
    scene.change(json!({ "replicas": 3 }));
    assert_eq!(scene.step(), "+1");
    scene.run_at("r3", 10.0);
    assert_eq!(scene.counts(), [(1, 3)]);
    // Hours of waiting are no lack of progress.
    scene.second = 24 * 3600;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
    scene.finish();
    scene.run("r4");
    scene.second = 24 * 3600 + 600;
    assert_eq!(scene.step(), "", "it has closed");
    assert_eq!(scene.counts(), [(1, 2), (2, 1)]);
    // Whoever cannot wait says so.
    scene.annotate(PROMOTE_ANNOTATION, format!("{}/full", scene.newest()));
    assert_eq!(scene.step(), "-r2(outdated) +1");
}

#[test]
fn a_window_that_closes_takes_no_surge_away() {
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
fn a_canary_is_analysed_and_given_up_at_any_time() {
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
fn a_rollout_that_is_taken_back_waits_for_nothing() {
    let mut strategy = nightly();
    json_patch::merge(&mut strategy, &json!({ "waitForIdle": {} }));
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.use_it("r2", false);
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
fn a_first_rollout_needs_no_window() {
    let mut scene = Scene::new(json!({ "strategy": nightly() }));
    scene.second = 3600;
    assert_eq!(scene.step(), "revision 1 +1");
}

fn patient() -> Value {
    json!({ "replicas": 2, "strategy": { "waitForIdle": { "idleFor": "30s", "atMost": "10m" } } })
}

#[test]
fn a_replica_in_use_stays_until_it_is_idle() {
    let mut scene = settled(patient(), 10.0);
    scene.use_it("r1", true);
    scene.use_it("r2", true);
    scene.change(new_template("other"));
    let began = at(scene.second);
    let until = at(scene.second + 600);
    assert_eq!(scene.step(), "revision 2");
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!(
            "Unknown WaitingForIdle: the next replica goes when it has had no request for 30 s, at {until} at the latest: r1, r2"
        ),
    );
    assert_eq!(scene.rollout().idle_wait_started_at, Some(Time(began)));
    assert_eq!(scene.requeue_after(), Some(599));
    scene.use_it("r1", false);
    assert_eq!(scene.requeue_after(), Some(30));
    scene.second += 29;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.step(), "-r1(outdated) +1");
    scene.finish();
    scene.run("r3");
    // The next one is waited for anew.
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
fn one_that_does_not_answer_is_not_waited_for_and_an_idle_one_goes_first() {
    let mut scene = settled(patient(), 10.0);
    scene.use_it("r2", true);
    scene.use_it("r1", false);
    scene.second += 60;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    scene.finish();
    scene.run("r3");
    scene.say("r2", condition_type::READY, Truth::False, "Crashed", "");
    assert_eq!(scene.step(), "-r2(outdated) +1");
}

#[test]
fn recreating_waits_until_all_are_idle() {
    let strategy = json!({ "type": "Recreate", "waitForIdle": {} });
    let mut scene = settled(json!({ "replicas": 2, "strategy": strategy }), 10.0);
    scene.use_it("r1", true);
    scene.use_it("r2", false);
    scene.second += 60;
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    scene.use_it("r1", false);
    scene.second += 30;
    assert_eq!(scene.step(), "-r2(outdated) -r1(outdated)");
}

#[test]
fn a_canary_whose_window_opens_after_its_deadline_is_not_given_up_for_that() {
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
    // From then on it counts, also when the window has closed: nothing waits for it.
    scene.second = 24 * 3600 + 599;
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
    scene.second = 24 * 3600 + 602;
    scene.step();
    assert!(scene.rollout().aborted.is_some());
}

#[test]
fn the_last_start_of_the_same_model_is_remembered_when_no_replica_is_left() {
    let mut scene = Scene::new(json!({}));
    let told = |scene: &Scene| {
        let status = scene.deployment.status.clone().expect("planned before");
        status.last_start.map(|start| start.seconds)
    };
    scene.step();
    scene.say("r1", condition_type::SCHEDULED, Truth::True, "Ok", "");
    // Its model had to be downloaded, as it will not have to be again.
    scene.second += 500;
    scene.say("r1", condition_type::ARTIFACTS_READY, Truth::True, "Ok", "");
    scene.step();
    assert_eq!(told(&scene), None, "it does not answer yet");
    scene.second += 30;
    scene.run("r1");
    scene.step();
    assert_eq!(told(&scene), Some(31));
    // Its node was silent for a while: that is no start.
    scene.say("r1", condition_type::READY, Truth::Unknown, "NodeNotReady", "");
    scene.second += 60;
    scene.run("r1");
    scene.step();
    assert_eq!(told(&scene), Some(31));
    scene.change(json!({ "replicas": 0 }));
    scene.step();
    scene.finish();
    scene.step();
    assert_eq!(told(&scene), Some(31));
    // A worker that was started again tells nothing, the next replica does.
    scene.change(json!({ "replicas": 1 }));
    scene.step();
    scene.run("r2");
    scene.replica("r2").status.as_mut().expect("said before").restarts = 1;
    scene.step();
    assert_eq!(told(&scene), Some(31));
    scene.replica("r2").status.as_mut().expect("said before").restarts = 0;
    scene.step();
    assert_eq!(told(&scene), Some(0));
    scene.change(json!({ "model": { "source": "local://other" } }));
    scene.step();
    assert_eq!(told(&scene), None, "that was another model");
}
