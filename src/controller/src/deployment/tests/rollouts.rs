//! Floors, canaries and rollbacks, pass by pass.

use super::*;
use rooflet_api::conditions::GOLDEN_PROMPT_FAILED;
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION, REVISION_LABEL};

impl Scene {
    /// Its node predicts so many tokens/s for each of its four streams.
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

    /// It runs on a chip of its own.
    pub(super) fn run_at(&mut self, name: &str, tokens_per_second: f64) {
        self.run(name);
        self.replica(name).spec.node_name = Some(format!("with-{name}"));
        self.predict(name, tokens_per_second);
    }

    pub(super) fn no_room_for(&mut self, name: &str) {
        let words = "0/1 nodes are available: 1 insufficient memory";
        self.say(
            name,
            condition_type::SCHEDULED,
            Truth::False,
            "InsufficientMemory",
            words,
        );
    }

    pub(super) fn rollout(&self) -> RolloutStatus {
        self.deployment.status.clone().unwrap_or_default().rollout
    }

    /// The number of each revision, and its share of the requests.
    pub(super) fn traffic(&self) -> Vec<(i64, i32)> {
        let status = self.deployment.status.clone().unwrap_or_default();
        let number = |name: &str| {
            let found = self.revisions.iter().find(|revision| revision.name_any() == name);
            found.expect("it exists").spec.revision
        };
        status
            .traffic
            .iter()
            .map(|share| (number(&share.revision), share.weight))
            .collect()
    }

    /// How many replicas each revision has, by its number.
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
        newest.expect("one").name_any()
    }

    pub(super) fn annotate(&mut self, key: &str, value: String) {
        self.deployment.annotations_mut().insert(key.to_owned(), value);
    }
}

/// `replicas` that run and were rolled out, each with 4 × `each` tokens/s.
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
fn a_floor_lets_so_many_go_as_the_rest_makes_up_for() {
    // 4 × 4 × 10 tokens/s; 70 % are 112, which three replicas have and two do not.
    let mut scene = settled(rolling(4, 2, 0, &json!("70%")), 10.0);
    assert_eq!(scene.rollout().reference_tokens_per_second, Some(40.0));
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r4(outdated) +1");
    scene.finish();
    assert_eq!(scene.step(), "");
    // The new one is as fast as two of the old ones: both may go for it.
    scene.run_at("r5", 20.0);
    assert_eq!(scene.step(), "-r3(outdated) -r2(outdated) +2");
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(120.0));
}

#[test]
fn a_replica_whose_speed_nobody_knows_counts_nothing() {
    let mut scene = settled(rolling(2, 1, 1, &json!("50%")), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +2");
    scene.finish();
    scene.run("r3");
    scene.run("r4");
    assert_eq!(scene.step(), "", "r1 is all that is known");
    scene.check_condition(
        condition_type::PROGRESSING,
        "False ThroughputFloor: no replica can be replaced: 40.0 tokens/s are predicted now, without the next one 0.0, and spec.strategy.rollingUpdate.minThroughput holds 40.0; a maxSurge with a node that has room for one replica more, or a lower floor, would let it go on; 1 replica more than spec.replicas stays until it goes on or is taken back",
    );
    scene.predict("r3", 10.0);
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn what_would_break_the_floor_is_not_begun_and_told() {
    let mut scene = settled(rolling(1, 1, 0, &json!("80%")), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2");
    assert_eq!(scene.ready(), 1);
    scene.check_condition_begins(
        condition_type::PROGRESSING,
        "False ThroughputFloor: revision 2 (guide-",
    );
    assert_eq!(scene.events(), Vec::<String>::new(), "told once");
    // A surge gets round it, where a node has room.
    scene.change(rolling(1, 1, 1, &json!("80%")));
    assert_eq!(scene.step(), "+1");
    scene.no_room_for("r2");
    assert_eq!(scene.step(), "");
    scene.check_condition_begins(condition_type::PROGRESSING, "False ThroughputFloor");
    scene.run_at("r2", 9.0);
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn a_floor_in_tokens_per_second_holds_as_it_is() {
    let mut scene = settled(rolling(3, 2, 0, &json!(80)), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +1");
}

#[test]
fn where_no_memory_is_spare_a_surge_gives_way_to_one_replica_after_the_other() {
    let mut scene = settled(rolling(3, 1, 1, &json!(null)), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +2");
    scene.finish();
    // One takes the place of r3, for the other there is no room.
    scene.run("r4");
    scene.no_room_for("r5");
    assert_eq!(scene.step(), "-r2(outdated) +1");
    assert_eq!(scene.ready(), 2);
}

#[test]
fn a_restart_is_a_new_revision_of_the_same_template() {
    let mut scene = settled(json!({}), 10.0);
    scene.change(json!({ "restartedAt": "2026-11-21T12:00:00Z" }));
    assert_eq!(scene.step(), "revision 2 -r1(outdated) +1");
    assert_eq!(scene.revisions[0].spec.serving, scene.revisions[1].spec.serving);
}

#[test]
fn what_an_undo_writes_is_the_old_revision() {
    let mut scene = settled(json!({}), 10.0);
    scene.change(new_template("other"));
    scene.settle();
    // With the defaults of the first revision spelled out.
    let serving = serde_json::to_value(&scene.revisions[0].spec.serving).expect("serialises");
    assert_eq!(serving["contextTokens"], 2048);
    scene.change(json!({ "serving": serving }));
    assert!(scene.step().starts_with("again as 3"));
    assert_eq!(scene.revisions.len(), 2);
    // And to write the defaults of what runs is no change.
    let mut scene = settled(json!({}), 10.0);
    scene.change(json!({ "serving": serving }));
    assert_eq!(scene.step(), "");
}

fn canary(replicas: i32, steps: &Value) -> Value {
    json!({ "replicas": replicas, "strategy": { "type": "Canary", "canary": { "steps": steps } } })
}

#[test]
fn a_canary_goes_from_step_to_step() {
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
    let again = scene.plan(|plan| plan.requeue_after);
    assert_eq!(again, Some(std::time::Duration::from_secs(299)));
    scene.second += 299;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert_eq!(
        scene.traffic(),
        [(1, 90), (2, 10)],
        "more come when they are ready"
    );
    scene.finish();
    scene.run("r6");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown CanaryPaused: step 4 of 4 of the canary: waits for `rooflet rollout promote mdep/guide`",
    );
    // No pause is a lack of progress.
    scene.second += 100_000;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(1, 2), (2, 2)]);
    let step = scene.rollout().step.expect("under way");
    scene.annotate(PROMOTE_ANNOTATION, format!("{}/{step}", scene.newest()));
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
    // The promotion was of that revision only.
    scene.change(new_template("third"));
    scene.step();
    scene.finish();
    scene.run("r9");
    scene.step();
    assert_eq!(scene.traffic(), [(2, 90), (3, 10)]);
}

#[test]
fn a_canary_beside_one_replica_takes_nothing_away() {
    let mut scene = settled(canary(1, &json!([{ "setWeight": 20 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r2");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.traffic(), [(1, 80), (2, 20)]);
    scene.annotate(PROMOTE_ANNOTATION, format!("{}/full", scene.newest()));
    assert_eq!(scene.step(), "-r1(outdated)");
}

#[test]
fn a_stable_replica_that_is_lost_beside_a_canary_comes_back() {
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
fn a_canary_that_does_not_come_up_is_rolled_back_and_not_tried_again() {
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
            "False RolledBack: back to revision 1 ({}): the newer one was given up (ProgressDeadlineExceeded: no progress for 600 s)",
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
    // A changed template is tried.
    scene.change(new_template("mended"));
    assert_eq!(scene.step(), "revision 3 -r4(outdated) +1");
    assert_eq!(scene.rollout().aborted, None);
}

#[test]
fn an_abort_goes_back_and_sends_nothing_to_the_canary_meanwhile() {
    let mut scene = settled(canary(4, &json!([{ "setWeight": 50 }, { "pause": {} }])), 10.0);
    scene.change(new_template("other"));
    for _ in 0..3 {
        scene.step();
        scene.finish();
        scene.run_all();
    }
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    scene.annotate(ABORT_ANNOTATION, scene.newest());
    assert_eq!(scene.step(), "-r6(outdated) +1");
    assert_eq!(scene.traffic(), [(1, 100), (2, 0)]);
    assert_eq!(scene.events(), Vec::<String>::new(), "told once");
    // The annotation stands, and means that revision only.
    scene.change(new_template("third"));
    scene.step();
    assert_eq!(scene.rollout().aborted, None);
}

#[test]
fn a_paused_canary_keeps_its_share() {
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
    assert_eq!(scene.counts(), [(1, 2), (2, 1)], "what has proved itself");
}

#[test]
fn a_paused_rollout_keeps_what_its_surge_has_brought_to_a_node() {
    let begun = || {
        let mut scene = settled(rolling(3, 0, 2, &json!(null)), 10.0);
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 2 +2");
        scene.run_at("r4", 10.0);
        scene.change(json!({ "paused": true }));
        scene
    };
    let mut scene = begun();
    assert_eq!(scene.step(), "-r5(surplus)", "it has nothing yet");
    assert_eq!(scene.step(), "");
    assert_eq!(scene.counts(), [(1, 3), (2, 1)]);
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown Paused: spec.paused: changes of the template are not rolled out; 1 replica more than spec.replicas stays until it goes on or is taken back",
    );
    scene.finish();
    let mut resumed = scene.clone();
    resumed.change(json!({ "paused": false }));
    assert_eq!(resumed.step(), "-r3(outdated) +2");
    // Fewer that are wanted are fewer, and the surge goes first.
    scene.change(json!({ "replicas": 2 }));
    assert_eq!(scene.step(), "-r4(surplus) -r3(surplus)");

    // One that leaves its node has it for its replacement.
    let mut scene = begun();
    scene.step();
    scene.finish();
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "");
}

#[test]
fn a_canary_beside_a_lone_replica_stays_while_the_rollout_is_paused() {
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
fn only_who_asks_for_it_gets_a_rolling_update_rolled_back() {
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
    /// So many requests were answered, and so many failed.
    pub(super) fn answer(&mut self, name: &str, completed: u64, failed: u64) {
        let status = self.replica(name).status.as_mut().expect("it runs");
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

    /// A canary of one beside a stable replica, at its analysis.
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
        assert_eq!(scene.step(), "", "to wait for requests is no lack of progress");
        scene.answer("r1", 100, 1);
        scene
    }
}

#[test]
fn a_canary_that_is_as_good_passes_its_analysis() {
    let mut scene = Scene::at_analysis();
    scene.answer("r3", 30, 0);
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().step, Some(2));
    assert_eq!(
        scene.rollout().analysis.as_deref(),
        Some(
            "0.0 % of requests failed, 1.0 % with the stable revision, 10.0 tokens/s against 10.0, \
             first token after 0.200 s against 0.200 s"
        )
    );
}

#[test]
fn a_canary_whose_first_tokens_were_never_measured_is_waited_for() {
    let mut scene = Scene::at_analysis();
    scene.answer("r3", 30, 0);
    let status = scene.replica("r3").status.as_mut().expect("it runs");
    let measured = status.measured.as_mut().expect("it answered");
    measured.time_to_first_token_sample = None;
    assert_eq!(scene.step(), "");
    assert_eq!(scene.rollout().step, Some(1));
    let told = scene.condition(condition_type::PROGRESSING);
    assert!(
        told.contains(
            "0 of 20 times to the first token of prompts of which nothing was cached by the canary, 100 by"
        ),
        "{told}"
    );
}

#[test]
fn a_canary_that_fails_requests_is_rolled_back() {
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
    assert_eq!(scene.step(), "", "it is not tried again");
}

#[test]
fn a_wrong_answer_to_a_golden_prompt_is_rolled_back_at_once() {
    let mut spec = canary(2, &json!([{ "setWeight": 50 }]));
    spec["strategy"]["goldenPrompts"] = json!([{ "prompt": "Who?", "expect": { "contains": "me" } }]);
    let mut scene = settled(spec, 10.0);
    assert_eq!(scene.replicas[0].spec.golden_prompts[0].prompt, "Who?");
    // To change them restarts nothing.
    scene.change(json!({ "strategy": { "goldenPrompts": [{ "prompt": "What?" }] } }));
    assert_eq!(scene.step(), "");
    scene.change(new_template("other"));
    scene.step();
    scene.finish();
    scene.run("r3");
    let words = "golden prompt 1 of 1: the answer is empty";
    scene.say(
        "r3",
        condition_type::READY,
        Truth::False,
        GOLDEN_PROMPT_FAILED,
        words,
    );
    assert_eq!(scene.step(), "-r3(outdated) +1");
    assert_eq!(
        scene.rollout().aborted.expect("given up").reason,
        GOLDEN_PROMPT_FAILED
    );
}

#[test]
fn two_replicas_on_one_chip_are_not_worth_two() {
    let floor = json!({ "replicas": 3, "strategy": { "rollingUpdate": { "minThroughput": 80 } } });
    let mut scene = Scene::new(floor);
    scene.step();
    // One alone with 40 tokens/s, and two that share a chip and have 40 together.
    scene.run_at("r1", 10.0);
    for name in ["r2", "r3"] {
        scene.run(name);
        scene.predict(name, 10.0);
    }
    scene.step();
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(80.0));
    assert_eq!(scene.rollout().reference_tokens_per_second, Some(26.7));
    // r1 is missed, one of the others is not.
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r3(outdated) +1");
    assert_eq!(scene.rollout().predicted_tokens_per_second, Some(80.0));
}

#[test]
fn an_analysis_without_requests_ends_inconclusive_and_says_so() {
    let mut scene = Scene::at_analysis();
    scene.second += 100;
    assert_eq!(scene.step(), "");
    scene.check_condition(
        condition_type::PROGRESSING,
        "Unknown AnalysisInconclusive: step 2 of 3 of the canary: too few requests to tell, 0 of 20 requests answered by the canary, 101 by the stable revision; waits for more or for `rooflet rollout promote mdep/guide`",
    );
    assert_eq!(scene.traffic(), [(1, 50), (2, 50)]);
    // Requests that come after all decide.
    scene.answer("r3", 20, 20);
    assert_eq!(scene.step(), "-r3(outdated) +1");
}

#[test]
fn golden_prompts_may_speak_for_a_canary_that_nobody_asks() {
    for (asked, step) in [(true, 2), (false, 1)] {
        let steps = json!([{ "setWeight": 50 }, { "analysis": { "inconclusiveAfter": "1m", "ifInconclusive": "Promote" } }, { "pause": {} }]);
        let mut spec = canary(2, &steps);
        spec["strategy"]["goldenPrompts"] = json!([{ "prompt": "Who?" }]);
        let mut scene = settled(spec, 10.0);
        if !asked {
            // Replicas that exist are not asked what was added later, and these were made before.
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
        if asked {
            assert_eq!(
                scene.rollout().analysis.as_deref(),
                Some(
                    "inconclusive: 0 of 20 requests answered by the canary, 0 by the stable revision; the golden prompts were answered"
                )
            );
        }
    }
}

#[test]
fn a_canary_waits_while_its_room_is_taken_by_a_replica_that_replaces_one_that_leaves() {
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
fn what_leaves_its_node_is_replaced_within_the_surge() {
    let surge = json!({ "rollingUpdate": { "maxSurge": 1 } });
    let mut scene = Scene::new(json!({ "replicas": 2, "strategy": surge }));
    scene.step();
    scene.run_all();
    scene.step();
    scene.leave("r1", Truth::True);
    scene.leave("r2", Truth::True);
    // One more than wanted, and no more; it is no rollout.
    assert_eq!(scene.step(), "+1");
    let ready = "True AllReplicasReady: all 2 replicas answer requests";
    scene.check_condition(condition_type::READY, ready);
    assert_eq!(scene.step(), "");
    scene.run_all();
    assert_eq!(scene.step(), "");
    scene.check_condition(condition_type::READY, ready);
    // The node lifecycle takes the first.
    scene.replica("r1").metadata.deletion_timestamp = Some(Time(at(scene.second)));
    assert_eq!(scene.step(), "+1");
    scene.run_all();
    assert_eq!(scene.step(), "");
    // The second may stay after all: then there is one too many.
    scene.leave("r2", Truth::False);
    assert_eq!(scene.step(), "-r4(surplus)");
    assert_eq!(scene.step(), "");

    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run_all();
    scene.step();
    scene.leave("r1", Truth::True);
    assert_eq!(scene.step(), "", "without a surge nothing comes first");
}
