//! Throughput floors, canaries and rollbacks, pass by pass.

use super::*;
use rooflet_api::conditions::GOLDEN_PROMPT_FAILED;
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION, REVISION_LABEL};

impl Scene {
    /// Sets a prediction of this many tokens/s for each of the replica's four streams.
    pub(super) fn predict(&mut self, name: &str, tokens_per_second: f64) {
        let status = self
            .replica(name)
            .status
            .get_or_insert_with(ModelReplicaStatus::default);
        let speed = Percentiles {
            p10: tokens_per_second * 0.8,
            p50: tokens_per_second,
            p90: tokens_per_second * 1.2,
        };
        status.admission = Some(AdmissionStatus {
            admitted: true,
            speed: Some(SpeedWorking {
                tokens_per_second: speed,
                ..SpeedWorking::default()
            }),
            ..AdmissionStatus::default()
        });
    }

    /// Makes the replica Ready on a chip of its own.
    pub(super) fn run_at(&mut self, name: &str, tokens_per_second: f64) {
        self.run(name);
        self.replica(name).spec.node_name = Some(format!("with-{name}"));
        self.predict(name, tokens_per_second);
    }

    pub(super) fn no_room_for(&mut self, name: &str) {
        let message = "0/1 nodes are available: 1 insufficient memory";
        self.set(
            name,
            condition_type::SCHEDULED,
            Truth::False,
            "InsufficientMemory",
            message,
        );
    }

    pub(super) fn rollout(&self) -> RolloutStatus {
        self.deployment.status.clone().unwrap_or_default().rollout
    }

    /// Returns the share of the requests of each revision, by its number.
    pub(super) fn traffic(&self) -> Vec<(i64, i32)> {
        let status = self.deployment.status.clone().unwrap_or_default();
        let number = |name: &str| {
            let found = self.revisions.iter().find(|revision| revision.name_any() == name);
            found.expect("the revision exists").spec.revision
        };
        status
            .traffic
            .iter()
            .map(|share| (number(&share.revision), share.weight))
            .collect()
    }

    /// Returns the number of replicas of each revision, by its number.
    pub(super) fn counts(&self) -> Vec<(i64, usize)> {
        let mut revisions: Vec<_> = self.revisions.iter().collect();
        revisions.sort_by_key(|revision| revision.spec.revision);
        let of = |name: String| {
            let is_of = |replica: &&ModelReplica| replica.labels()[REVISION_LABEL] == name;
            self.alive().filter(is_of).count()
        };
        revisions
            .into_iter()
            .map(|revision| (revision.spec.revision, of(revision.name_any())))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub(super) fn newest(&self) -> String {
        let newest = self
            .revisions
            .iter()
            .max_by_key(|revision| revision.spec.revision);
        newest.expect("a pass has created a revision").name_any()
    }

    pub(super) fn rollout_id(&self) -> String {
        self.rollout().id().expect("a pass has started a rollout")
    }

    /// Returns the promote annotation that completes the step of the current rollout.
    pub(super) fn promotion(&self, step: &str) -> String {
        format!("{}/{step}", self.rollout_id())
    }

    pub(super) fn annotate(&mut self, key: &str, value: String) {
        self.deployment.annotations_mut().insert(key.to_owned(), value);
    }
}

/// Returns a scene after a complete rollout. Each replica has 4 × `each` tokens/s.
pub(super) fn settled(spec: Value, each: f64) -> Scene {
    let mut scene = Scene::new(spec);
    scene.step();
    let names: Vec<_> = scene.replicas.iter().map(|replica| replica.name_any()).collect();
    for name in names {
        scene.run_at(&name, each);
    }
    scene.step();
    assert_eq!(scene.rollout().stable_revision, Some(scene.newest()));
    scene
}

fn rolling(replicas: i32, unavailable: i32, surge: i32, floor: &Value) -> Value {
    let bounds = json!({ "maxUnavailable": unavailable, "maxSurge": surge, "minThroughput": floor });
    json!({ "replicas": replicas, "strategy": { "rollingUpdate": bounds } })
}

#[test]
fn floor_permits_replacements_that_the_rest_compensates() {
    // The floor is 70 % of 4 × 4 × 10 tokens/s = 112. Three replicas satisfy it, two do not.
    let mut scene = settled(rolling(4, 2, 0, &json!("70%")), 10.0);
    assert_eq!(scene.rollout().reference_tokens_per_second, Some(40.0));
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r4(outdated) +1");
    scene.finish();
    assert_eq!(scene.step(), "");
    // The new replica is as fast as two old ones, so two may be replaced.
    scene.run_at("r5", 20.0);
    assert_eq!(scene.step(), "-r3(outdated) -r2(outdated) +2");
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(120.0));
}

#[test]
fn replica_without_prediction_does_not_count_for_the_floor() {
    let mut scene = settled(rolling(2, 1, 1, &json!("50%")), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +2");
    scene.finish();
    scene.run("r3");
    scene.run("r4");
    assert_eq!(scene.step(), "", "only r1 has a prediction");
    scene.check_condition(
        condition_type::PROGRESSING,
        "False ThroughputFloor: no replica can be replaced: 40.0 tokens/s are predicted now and 0.0 without the next replica, but spec.strategy.rollingUpdate.minThroughput requires 40.0; to continue, permit a surge on a node with room for one more replica, or lower the floor; 1 replica more than spec.replicas remains until the rollout continues or is undone",
    );
    scene.predict("r3", 10.0);
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn rollout_below_the_floor_does_not_start_and_is_reported() {
    let mut scene = settled(rolling(1, 1, 0, &json!("80%")), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    assert_eq!(scene.ready(), 1);
    scene.check_condition_begins(
        condition_type::PROGRESSING,
        "False ThroughputFloor: revision 2 (guide-",
    );
    assert_eq!(scene.events(), Vec::<String>::new(), "reported once");
    // With a surge, the rollout can start if a node has room.
    scene.change(rolling(1, 1, 1, &json!("80%")));
    assert_eq!(scene.step(), "+1");
    scene.no_room_for("r2");
    assert_eq!(scene.step(), "");
    scene.check_condition_begins(condition_type::PROGRESSING, "False ThroughputFloor");
    scene.run_at("r2", 9.0);
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn absolute_floor_applies() {
    let mut scene = settled(rolling(3, 2, 0, &json!(80)), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +1");
}

#[test]
fn unschedulable_surge_is_replaced_by_single_replacements() {
    let mut scene = settled(rolling(3, 1, 1, &json!(null)), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +2");
    scene.finish();
    // One new replica replaces r3, the other finds no room.
    scene.run("r4");
    scene.no_room_for("r5");
    assert_eq!(scene.step(), "-r2(outdated) +1");
    assert_eq!(scene.ready(), 2);
}

#[test]
fn restart_creates_a_revision_of_the_same_template() {
    let mut scene = settled(json!({}), 10.0);
    scene.change(json!({ "restartedAt": "2026-11-21T12:00:00Z" }));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    assert_eq!(scene.revisions[0].spec.serving, scene.revisions[1].spec.serving);
}

#[test]
fn undo_with_explicit_defaults_reuses_the_old_revision() {
    let mut scene = settled(json!({}), 10.0);
    scene.change(new_template("other"));
    scene.settle();
    // The undo writes the defaults of the first revision explicitly.
    let serving =
        serde_json::to_value(&scene.revisions[0].spec.serving).expect("a spec has only string keys");
    assert_eq!(serving["contextTokens"], 2048);
    scene.change(json!({ "serving": serving }));
    assert!(scene.step().starts_with("again as 3"));
    assert_eq!(scene.revisions.len(), 2);
    // Explicit defaults of the current revision are no change.
    let mut scene = settled(json!({}), 10.0);
    scene.change(json!({ "serving": serving }));
    assert_eq!(scene.step(), "");
}

pub(super) fn canary(replicas: i32, steps: &Value) -> Value {
    json!({ "replicas": replicas, "strategy": { "type": "Canary", "canary": { "steps": steps } } })
}

#[test]
fn canary_advances_step_by_step() {
    let steps =
        json!([{ "setWeight": 10 }, { "pause": { "duration": "5m" } }, { "setWeight": 50 }, { "pause": {} }]);
    let mut scene = settled(canary(4, &steps), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r4(outdated) +1");
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
    scene.finish();
    scene.run("r5");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 90), (2, 10)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown CanaryPaused: step 2 of 4 of the canary: waits 300 s",
    );
    let requeue_after = scene.plan(|plan| plan.requeue_after);
    assert_eq!(requeue_after, Some(std::time::Duration::from_secs(299)));
    scene.second += 299;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert_eq!(
        scene.traffic(),
        [(1, 90), (2, 10)],
        "the share rises when enough canaries are Ready"
    );
    scene.finish();
    scene.run("r6");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown CanaryPaused: step 4 of 4 of the canary: waits for `rooflet rollout promote mdep/guide`",
    );
    // A pause is no lack of progress.
    scene.second += 100_000;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(1, 2), (2, 2)]);
    let step = scene.rollout().step.expect("the canary is in progress");
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion(&step.to_string()));
    assert_eq!(scene.step(), "-r2(outdated) +1");
    assert!(scene.traffic().is_empty());
    scene.finish();
    scene.run("r7");
    scene.step();
    scene.finish();
    scene.run("r8");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(2, 4)]);
    assert_eq!(scene.rollout().stable_revision, Some(scene.newest()));
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
    // The promotion applies to its revision only.
    scene.change(new_template("third"));
    scene.step();
    scene.finish();
    scene.run("r9");
    scene.step();
    assert_eq!(scene.traffic(), [(2, 90), (3, 10)]);
}

#[test]
fn canary_beside_a_single_replica_keeps_it() {
    let mut scene = settled(canary(1, &json!([{ "setWeight": 20 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r2");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 80), (2, 20)]);
    scene.annotate(PROMOTE_ANNOTATION, scene.promotion("full"));
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn lost_stable_replica_is_recreated_during_a_canary() {
    let mut scene = settled(canary(4, &json!([{ "setWeight": 25 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.run("r5");
    scene.step();
    scene.replicas.retain(|replica| replica.name_any() != "r1");
    assert_eq!(scene.step(), "+1");
    assert_eq!(scene.counts(), [(1, 3), (2, 1)]);
}

#[test]
fn canary_without_progress_is_rolled_back_and_not_retried() {
    let mut scene = settled(canary(2, &json!([{ "setWeight": 50 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    scene.finish();
    scene.second += 600;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert_eq!(scene.counts(), [(1, 2)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!(
            "False RolledBack: back to revision 1 ({}): the rollout of the new revision was aborted (ProgressDeadlineExceeded: no progress for 600 s)",
            scene.revisions[0].name_any()
        ),
    );
    scene.finish();
    scene.run("r4");
    scene.second += 10_000;
    for _ in 0..3 {
        assert_eq!(scene.step(), "");
    }
    assert!(scene.traffic().is_empty());
    scene.check_condition_begins(condition_type::READY, "False RolledBack");
    scene.check_condition_begins(condition_type::AVAILABLE, "True");
    // A new template is rolled out.
    scene.change(new_template("mended"));
    assert_eq!(scene.step(), "revision 3 -r4(outdated) +1");
    assert_eq!(scene.rollout().aborted, None);
}

#[test]
fn abort_rolls_back_and_removes_the_canarys_share() {
    let mut scene = settled(canary(4, &json!([{ "setWeight": 50 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    for _ in 0..3 {
        scene.step();
        scene.finish();
        scene.run_all();
    }
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    scene.annotate(ABORT_ANNOTATION, scene.rollout_id());
    assert_eq!(scene.step(), "-r6(outdated) +1");
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
    assert_eq!(scene.events(), Vec::<String>::new(), "reported once");
    // The annotation remains but applies to its revision only.
    scene.change(new_template("third"));
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
}

#[test]
fn paused_canary_keeps_its_share() {
    let mut scene = settled(canary(2, &json!([{ "setWeight": 50 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.run("r3");
    scene.step();
    scene.change(json!({ "paused": true }));
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    scene.change(json!({ "replicas": 3 }));
    assert_eq!(scene.step(), "+1");
    assert_eq!(
        scene.counts(),
        [(1, 2), (2, 1)],
        "a new replica gets the stable revision"
    );
}

#[test]
fn paused_rollout_keeps_scheduled_surge_replicas() {
    let begun = || {
        let mut scene = settled(rolling(3, 0, 2, &json!(null)), 10.0);
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 2 +2");
        scene.run_at("r4", 10.0);
        scene.change(json!({ "paused": true }));
        scene
    };
    let mut scene = begun();
    assert_eq!(scene.step(), "-r5(surplus)", "r5 has no node");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(1, 3), (2, 1)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown Paused: spec.paused is true: changes of the template are not rolled out; 1 replica more than spec.replicas remains until the rollout continues or is undone",
    );
    scene.finish();
    let mut resumed = scene.clone();
    resumed.change(json!({ "paused": false }));
    assert_eq!(resumed.step(), "-r3(outdated) +2");
    // Scaling down deletes the surge replica first.
    scene.change(json!({ "replicas": 2 }));
    assert_eq!(scene.step(), "-r4(surplus) -r3(surplus)");

    // A leaving replica needs the surge for its replacement.
    let mut scene = begun();
    scene.step();
    scene.finish();
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "");
}

#[test]
fn canary_beside_a_single_replica_stays_while_paused() {
    let mut scene = settled(canary(1, &json!([{ "setWeight": 20 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r2");
    scene.step();
    scene.change(json!({ "paused": true }));
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 80), (2, 20)]);
}

#[test]
fn rolling_update_is_rolled_back_only_if_enabled() {
    for (rolls_back, expect) in [(false, ""), (true, "-r2(outdated) +1")] {
        let strategy = json!({ "strategy": { "rollbackOnFailure": rolls_back } });
        let mut scene = settled(strategy, 10.0);
        scene.change(new_template("other"));
        scene.step();
        scene.finish();
        scene.second += 600;
        assert_eq!(scene.step(), expect);
    }
}

impl Scene {
    /// Sets the numbers of completed and failed requests, with equal speeds.
    pub(super) fn answer(&mut self, name: &str, completed: u64, failed: u64) {
        let status = self.replica(name).status.as_mut().expect("the replica runs");
        status.requests = Some(RequestsStatus {
            completed,
            failed,
            ..RequestsStatus::default()
        });
        let sample = |median: f64| Sample {
            count: completed,
            p10: median * 0.9,
            p50: median,
            p90: median * 1.1,
        };
        status.measured = Some(MeasuredSpeed {
            tokens_per_second_sample: Some(sample(10.0)),
            time_to_first_token_sample: Some(sample(0.2)),
            ..MeasuredSpeed::default()
        });
    }

    /// Returns a scene with one canary and one stable replica at the analysis step.
    fn at_analysis() -> Self {
        let steps = json!([{ "setWeight": 50 }, { "analysis": {} }, { "pause": {} }]);
        let mut scene = settled(canary(2, &steps), 10.0);
        scene.change(new_template("other"));
        scene.step();
        scene.finish();
        scene.run("r3");
        scene.step();
        scene.check_condition(
            condition_type::PROGRESSING,
            &format!("True Analysing: step 2 of 3 of the canary: 0 of 20 requests answered by the canary, 0 by the stable revision; waits until {}", at(scene.second - 1 + 1800)),
        );
        scene.second += 1700;
        assert_eq!(scene.step(), "", "waiting for requests is no lack of progress");
        scene.answer("r1", 100, 1);
        scene
    }
}

#[test]
fn equally_good_canary_passes_its_analysis() {
    let mut scene = Scene::at_analysis();
    scene.answer("r3", 30, 0);
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().step, Some(2));
    assert_eq!(
        scene.rollout().analysis.as_deref(),
        Some(
            "0.0 % of requests failed, 1.0 % with the stable revision, 10.0 tokens/s, 10.0 with the stable revision, \
             time to first token 0.200 s, 0.200 s with the stable revision"
        )
    );
}

#[test]
fn analysis_waits_for_times_to_first_token() {
    let mut scene = Scene::at_analysis();
    scene.answer("r3", 30, 0);
    let status = scene.replica("r3").status.as_mut().expect("the replica runs");
    let measured = status.measured.as_mut().expect("the replica has measurements");
    measured.time_to_first_token_sample = None;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().step, Some(1));
    let condition = scene.condition(condition_type::PROGRESSING);
    let expect = "0 of 20 times to first token of uncached prompts by the canary, 100 by";
    assert!(condition.contains(expect), "{condition}");
}

#[test]
fn canary_with_failed_requests_is_rolled_back() {
    let mut scene = Scene::at_analysis();
    scene.answer("r3", 20, 10);
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert!(
        scene
            .condition(condition_type::PROGRESSING)
            .ends_with("(AnalysisFailed: 33.3 % of requests failed, 1.0 % with the stable revision)"),
        "{}",
        scene.condition(condition_type::PROGRESSING)
    );
    scene.finish();
    scene.run("r4");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.step(), "", "the canary is not retried");
}

#[test]
fn failed_golden_prompt_rolls_back_immediately() {
    let mut spec = canary(2, &json!([{ "setWeight": 50 }]));
    spec["strategy"]["goldenPrompts"] = json!([{ "prompt": "Who?", "expect": { "contains": "me" } }]);
    let mut scene = settled(spec, 10.0);
    assert_eq!(scene.replicas[0].spec.golden_prompts[0].prompt, "Who?");
    // A change of the golden prompts restarts nothing.
    scene.change(json!({ "strategy": { "goldenPrompts": [{ "prompt": "What?" }] } }));
    assert_eq!(scene.step(), "");
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.run("r3");
    let message = "golden prompt 1 of 1: the answer is empty";
    scene.set(
        "r3",
        condition_type::READY,
        Truth::False,
        GOLDEN_PROMPT_FAILED,
        message,
    );
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert_eq!(
        scene.rollout().aborted.expect("the rollout was aborted").reason,
        GOLDEN_PROMPT_FAILED
    );
}

#[test]
fn replicas_on_one_chip_share_its_throughput() {
    let floor = json!({ "replicas": 3, "strategy": { "rollingUpdate": { "minThroughput": 80 } } });
    let mut scene = Scene::new(floor);
    scene.step();
    // One replica with 40 tokens/s alone, and two that share a chip with 40 tokens/s.
    scene.run_at("r1", 10.0);
    for name in ["r2", "r3"] {
        scene.run(name);
        scene.predict(name, 10.0);
    }
    scene.step();
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(80.0));
    assert_eq!(scene.rollout().reference_tokens_per_second, Some(26.7));
    // Without r1, the throughput would fall below the floor. Without r3, it stays the same.
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +1");
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(80.0));
}

#[test]
fn analysis_without_requests_becomes_inconclusive() {
    let mut scene = Scene::at_analysis();
    scene.second += 100;
    assert_eq!(scene.step(), "");
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown AnalysisInconclusive: step 2 of 3 of the canary: too few requests for a result, 0 of 20 requests answered by the canary, 101 by the stable revision; waits for more or for `rooflet rollout promote mdep/guide`",
    );
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    // Later requests still decide.
    scene.answer("r3", 20, 20);
    assert_eq!(scene.step(), "-r3(outdated) +1");
}

#[test]
fn golden_prompts_promote_an_inconclusive_canary() {
    for (has_prompts, step) in [(true, 2), (false, 1)] {
        let steps = json!([{ "setWeight": 50 }, { "analysis": { "inconclusiveAfter": "1m", "ifInconclusive": "Promote" } }, { "pause": {} }]);
        let mut spec = canary(2, &steps);
        spec["strategy"]["goldenPrompts"] = json!([{ "prompt": "Who?" }]);
        let mut scene = settled(spec, 10.0);
        if !has_prompts {
            // The existing replicas were created with the golden prompts, the canary is not.
            scene.change(json!({ "strategy": { "goldenPrompts": null } }));
        }
        scene.change(new_template("other"));
        scene.step();
        scene.finish();
        scene.run("r3");
        scene.step();
        scene.second += 60;
        scene.step();
        assert_eq!(scene.rollout().step, Some(step));
        if has_prompts {
            assert_eq!(
                scene.rollout().analysis.as_deref(),
                Some(
                    "inconclusive: 0 of 20 requests answered by the canary, 0 by the stable revision; all golden prompts passed"
                )
            );
        }
    }
}

#[test]
fn canary_waits_while_a_leaving_replica_uses_the_surge() {
    let strategy = json!({
        "type": "Canary",
        "canary": { "steps": [{ "setWeight": 1 }] },
        "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 }
    });
    let mut scene = Scene::new(json!({ "replicas": 1, "strategy": strategy }));
    scene.step();
    scene.run_all();
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "+1");
    scene.change(new_template("other"));
    scene.step();
    assert_eq!(scene.alive().count(), 2);
    scene.replicas.retain(|replica| replica.name_any() != "r1");
    scene.run_all();
    scene.step();
    assert_eq!(scene.alive().count(), 2);
}

#[test]
fn leaving_replicas_are_replaced_within_the_surge() {
    let surge = json!({ "rollingUpdate": { "maxSurge": 1 } });
    let mut scene = Scene::new(json!({ "replicas": 2, "strategy": surge }));
    scene.step();
    scene.run_all();
    scene.step();
    scene.leave("r1", Truth::True);
    scene.leave("r2", Truth::True);
    // One replacement at a time, which is not a rollout.
    assert_eq!(scene.step(), "+1");
    let ready = "True AllReplicasReady: all 2 replicas answer requests";
    scene.check_condition(condition_type::READY, ready);
    assert_eq!(scene.step(), "");
    scene.run_all();
    assert_eq!(scene.step(), "");
    scene.check_condition(condition_type::READY, ready);
    // The node lifecycle deletes the first replica.
    scene.replica("r1").metadata.deletion_timestamp = Some(Time(at(scene.second)));
    assert_eq!(scene.step(), "+1");
    scene.run_all();
    assert_eq!(scene.step(), "");
    // The second replica may stay, so one replica is surplus.
    scene.leave("r2", Truth::False);
    assert_eq!(scene.step(), "-r4(surplus)");
    assert_eq!(scene.step(), "");

    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run_all();
    scene.step();
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "", "without a surge, no replacement is created");
}
