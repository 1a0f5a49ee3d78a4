//! Conditions and events of a deployment.

use super::*;

#[test]
fn unknown_model_is_refused_with_the_known_models() {
    let mut scene = Scene::new(json!({ "model": { "source": "local://gide" } }));
    assert_eq!(scene.events(), ["ModelNotFound"], "a reason is reported once");
    assert_eq!(scene.step(), "");
    let why = "spec.model.source: no node has a directory `gide` in its --model-dir; on mini: models found: local://guide";
    scene.check_condition(condition_type::ADMITTED, &format!("False ModelNotFound: {why}"));
    scene.check_condition(condition_type::READY, &format!("False ModelNotFound: {why}"));
    scene.models[0].name = "gide".to_owned();
    scene.models[0].problem = Some("model.safetensors: the header is cut short".to_owned());
    scene.step();
    scene.check_condition(
        condition_type::ADMITTED,
        "False ModelNotServable: model `gide` cannot be served: model.safetensors: the header is cut short (on mini)",
    );
    scene.models.clear();
    scene.step();
    scene.check_condition_begins(condition_type::ADMITTED, "False NoNodes");
    scene.models = Scene::new(json!({})).models;
    scene.change(json!({ "model": { "source": "local://guide" }, "serving": { "contextTokens": 4096 } }));
    scene.step();
    scene.check_condition_begins(condition_type::ADMITTED, "False ContextTooLong");
    scene.change(json!({ "serving": { "contextTokens": 1024 } }));
    assert_eq!(scene.step(), "revision 1 +1");
    assert_eq!(scene.revisions[0].spec.serving.context_tokens, Some(1024));
}

#[test]
fn refused_template_keeps_and_repairs_the_serving_replicas() {
    let mut scene = Scene::new(json!({ "replicas": 2 }));
    scene.step();
    scene.run_all();
    scene.settle();
    scene.change(json!({ "model": { "source": "local://typo" } }));
    assert_eq!(scene.step(), "");
    scene.check_condition_begins(
        condition_type::PROGRESSING,
        "False ModelNotFound: revision 1 stays, because the new template is refused: spec.model.source",
    );
    scene.check_condition(
        condition_type::AVAILABLE,
        "True MinimumReplicasAvailable: 2 of 2 replicas answer requests",
    );
    scene.check_condition_begins(condition_type::READY, "False ModelNotFound");
    scene.replicas.remove(0);
    assert_eq!(scene.step(), "+1");
}

#[test]
fn shared_served_name_is_reported() {
    let mut scene = Scene::new(json!({ "serving": { "name": "chat" } }));
    scene.namesake = Some("older");
    assert!(scene.events().contains(&"ServedNameShared".to_owned()));
    assert_eq!(scene.step(), "revision 1 +1", "the deployment serves anyway");
    scene.check_condition(
        condition_type::NAME_SHARED,
        "True ServedNameShared: the older deployment older has the same served name `chat`: gateways send its requests to replicas of both; set spec.serving.name of guide to another name",
    );
    assert!(!scene.events().contains(&"ServedNameShared".to_owned()));
    scene.namesake = None;
    scene.step();
    scene.check_condition(condition_type::NAME_SHARED, "absent");
}

#[test]
fn problem_of_a_replica_is_in_the_conditions() {
    let mut scene = Scene::new(json!({ "replicas": 1 }));
    scene.step();
    let why = "0/1 nodes are available: 1 cordoned";
    scene.set("r1", condition_type::SCHEDULED, Truth::False, "NodeCordoned", why);
    scene.step();
    scene.check_condition(condition_type::SCHEDULED, &format!("False NodeCordoned: {why}"));
    scene.check_condition(
        condition_type::READY,
        &format!("False NodeCordoned: 0 of 1 replicas ready: r1: NodeCordoned: {why}"),
    );
    scene.run("r1");
    scene.settle();
    let replica = scene
        .replica("r1")
        .status
        .as_mut()
        .expect("the replica has a status");
    replica.phase = ReplicaPhase::Failed;
    replica.restarts = 3;
    replica.last_termination = Some(Termination {
        reason: "OutOfMemory".to_owned(),
        message: "Metal ran out of memory".to_owned(),
        ..Termination::default()
    });
    scene.set(
        "r1",
        condition_type::READY,
        Truth::False,
        "CrashLoop",
        "the worker is started again in 40 s",
    );
    scene.step();
    scene.check_condition(
        condition_type::DEGRADED,
        "True CrashLoop: r1 on mini: the worker is started again in 40 s; its worker ended with OutOfMemory: Metal ran \
         out of memory",
    );
    // A failing replica does not restart the rollout.
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
}

#[test]
fn same_problem_of_several_replicas_is_reported_once() {
    let mut scene = Scene::new(json!({ "replicas": 4 }));
    scene.step();
    scene.run("r1");
    for (name, free) in [("r2", "3.1"), ("r3", "2.9"), ("r4", "2.9")] {
        let why = format!("0/1 nodes are available: 1 insufficient memory (5 GiB asked, {free} GiB free)");
        scene.set(
            name,
            condition_type::SCHEDULED,
            Truth::False,
            "InsufficientMemory",
            &why,
        );
    }
    scene.step();
    scene.check_condition(
        condition_type::READY,
        "False InsufficientMemory: 1 of 4 replicas ready: r2, r3, r4: InsufficientMemory: 0/1 nodes are available: 1 \
         insufficient memory (5 GiB asked, 3.1 GiB free)",
    );
    scene.check_condition(
        condition_type::AVAILABLE,
        "False MinimumReplicasUnavailable: 1 of 4 replicas answer requests; the minimum is 3: 3 InsufficientMemory",
    );
}

#[test]
fn rollout_without_progress_is_reported_after_the_deadline() {
    let mut scene = Scene::new(json!({ "progressDeadlineSeconds": 60 }));
    scene.step();
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RollingOut");
    let wait = scene
        .plan(|plan| plan.requeue_after)
        .expect("the deadline requires another pass");
    scene.second += i64::try_from(wait.as_secs()).expect("the wait is short");
    scene.step();
    scene.check_condition_begins(
        condition_type::PROGRESSING,
        "False ProgressDeadlineExceeded: no progress for 60 s",
    );
    scene.run("r1");
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "True RolloutComplete");
}

#[test]
fn refused_replica_is_replaced_and_kept_until_the_refusal_expires() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    scene.run("r1");
    let refused = |scene: &mut Scene, name: &str| {
        scene.set(name, condition_type::READY, Truth::False, "Refused", "not loaded");
        scene.set(
            name,
            condition_type::ADMITTED,
            Truth::False,
            "MemoryInUse",
            "it needs 2 GiB",
        );
    };
    refused(&mut scene, "r1");
    assert_eq!(scene.step(), "+1");
    scene.check_condition(
        condition_type::ADMITTED,
        "False MemoryInUse: r1 on mini: it needs 2 GiB",
    );
    assert_eq!(scene.step(), "", "the refused replica excludes its node");
    let mut placed = scene.clone();
    placed.run("r2");
    assert_eq!(placed.step(), "-r1(refused)");
    scene.second += 60;
    assert_eq!(scene.step(), "-r1(refused)");
}

/// A quarantined model or a node without usable memory must not prevent serving on another node.
#[test]
fn replica_with_a_permanent_refusal_is_replaced() {
    for reason in ["Quarantined", "MemoryStaysWired"] {
        let mut scene = Scene::new(json!({}));
        scene.step();
        scene.run("r1");
        scene.set("r1", condition_type::READY, Truth::False, reason, "not loaded");
        scene.set("r1", condition_type::ADMITTED, Truth::False, reason, "why");
        assert_eq!(scene.step(), "+1", "{reason}");
    }
}

#[test]
fn measured_speed_is_compared_with_prediction_and_objectives() {
    let mut scene = Scene::new(json!({ "objectives": { "decodeTokensPerSecond": 80.0,
        "timeToFirstToken": { "max": "500ms" } } }));
    let pairs = |scene: &Scene| {
        let status = scene.deployment.status.clone().expect("a pass has run");
        [status.tokens_per_second, status.time_to_first_token].map(|pair| pair.expect("the pass sets both"))
    };
    let interval = |p50: f64| Percentiles {
        p10: p50 * 0.9,
        p50,
        p90: p50 * 1.1,
    };
    scene.step();
    scene.run("r1");
    scene.step();
    assert_eq!(pairs(&scene), ["-/-", "-/-"]);
    scene.check_condition_begins(condition_type::OBJECTIVES_MET, "Unknown NotMeasured");
    scene.check_condition(condition_type::PREDICTION_ACCURATE, "absent");
    // Prediction at admission: all streams busy, with full context.
    scene
        .replica("r1")
        .status
        .as_mut()
        .expect("the replica has a status")
        .admission = Some(AdmissionStatus {
        speed: Some(SpeedWorking {
            tokens_per_second: interval(70.0),
            time_to_first_token_seconds: interval(1.0),
            ..SpeedWorking::default()
        }),
        ..AdmissionStatus::default()
    });
    scene.step();
    assert_eq!(pairs(&scene), ["70.0/-", "1.00s/-"]);
    let measured = MeasuredSpeed {
        tokens_per_second: "85.14".to_owned(),
        time_to_first_token_seconds: "0.7".to_owned(),
        requests: 9,
        predicted: Some(PredictedSpeed {
            tokens_per_second: interval(90.0),
            time_to_first_token_seconds: interval(0.5),
            ..PredictedSpeed::default()
        }),
        ..MeasuredSpeed::default()
    };
    scene
        .replica("r1")
        .status
        .as_mut()
        .expect("the replica has a status")
        .measured = Some(measured.clone());
    scene.step();
    assert_eq!(pairs(&scene), ["90.0/85.1", "500ms/700ms"]);
    // The prediction of a replica without requests is for full streams, so it is excluded.
    scene.change(json!({ "replicas": 2 }));
    scene.step();
    let admission = scene
        .replica("r1")
        .status
        .clone()
        .expect("the replica has a status")
        .admission;
    scene.run("r2");
    scene
        .replica("r2")
        .status
        .as_mut()
        .expect("the replica has a status")
        .admission = admission;
    scene.step();
    assert_eq!(pairs(&scene), ["90.0/85.1", "500ms/700ms"]);
    scene.change(json!({ "replicas": 1 }));
    assert_eq!(scene.step(), "-r2(surplus)");
    scene.finish();
    scene.check_condition(
        condition_type::OBJECTIVES_MET,
        "False ObjectivesMissed: first token after 0.70 s, spec.objectives.timeToFirstToken.max is 500ms",
    );
    scene.check_condition(condition_type::PREDICTION_ACCURATE, "absent");
    let mut measure = |rate: &str, expected: &str, event: &[&str]| {
        scene
            .replica("r1")
            .status
            .as_mut()
            .expect("the replica has a status")
            .measured = Some(MeasuredSpeed {
            tokens_per_second: rate.to_owned(),
            requests: 10,
            ..measured.clone()
        });
        let events = scene.events();
        let reported: Vec<_> = events
            .iter()
            .filter(|reason| reason.contains("Predicted"))
            .collect();
        assert_eq!(reported, event);
        scene.step();
        scene.check_condition(condition_type::PREDICTION_ACCURATE, expected);
    };
    let expected =
        |rate: &str| format!("r1 on mini: {rate} tokens/s measured, 90.0 predicted (81.0 to 99.0)");
    measure("85.1", &format!("True AsPredicted: {}", expected("85.1")), &[]);
    measure(
        "80.9",
        &format!("False SlowerThanPredicted: {}", expected("80.9")),
        &["SlowerThanPredicted"],
    );
    measure(
        "99.1",
        &format!("False FasterThanPredicted: {}", expected("99.1")),
        &["FasterThanPredicted"],
    );
    measure(
        "99.0",
        &format!("True AsPredicted: {}", expected("99.0")),
        &["AsPredicted"],
    );
    scene
        .replica("r1")
        .status
        .as_mut()
        .expect("the replica has a status")
        .measured = Some(MeasuredSpeed {
        tokens_per_second: "90".to_owned(),
        requests: 10,
        prefill: Some(MeasuredPrefill {
            seconds: "0.56".to_owned(),
            requests: 10,
            predicted: Some(PredictedPrefill {
                seconds: interval(0.5),
                ..PredictedPrefill::default()
            }),
        }),
        ..measured.clone()
    });
    scene.step();
    scene.check_condition(
        condition_type::PREDICTION_ACCURATE,
        "False SlowerThanPredicted: r1 on mini: first tokens measured after 0.56 s, predicted after 0.50 s (0.45 to 0.55)",
    );
    scene
        .replica("r1")
        .status
        .as_mut()
        .expect("the replica has a status")
        .measured = None;
    scene.step();
    scene.check_condition_begins(condition_type::PREDICTION_ACCURATE, "Unknown NotMeasured");
    scene.change(json!({ "objectives": null }));
    scene.step();
    scene.check_condition(condition_type::OBJECTIVES_MET, "absent");
}

#[test]
fn speed_of_a_simulated_chip_is_not_compared() {
    let mut scene = Scene::new(json!({}));
    scene.simulated = true;
    scene.step();
    scene.check_condition(condition_type::PREDICTION_ACCURATE, "absent");
    scene.run("r1");
    scene.step();
    assert_eq!(
        scene.condition(condition_type::PREDICTION_ACCURATE),
        "Unknown SimulatedChip: r1 on mini: the node's chip is simulated, so its measurements are not the speed of that chip"
    );
}

#[test]
fn admission_despite_the_prediction_is_reported() {
    for reason in ["AdmissionOverridden", "Overcommitted"] {
        let mut scene = Scene::new(json!({}));
        scene.step();
        scene.run("r1");
        scene.set(
            "r1",
            condition_type::ADMITTED,
            Truth::True,
            reason,
            "it needs 2 GiB",
        );
        assert!(scene.events().contains(&reason.to_owned()));
        scene.step();
        scene.check_condition(
            condition_type::ADMITTED,
            &format!("True {reason}: r1 on mini: it needs 2 GiB"),
        );
        assert!(!scene.events().contains(&reason.to_owned()));
    }
}

#[test]
fn condition_change_emits_one_event() {
    let mut scene = Scene::new(json!({}));
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
    scene.set(
        "r1",
        condition_type::SCHEDULED,
        Truth::False,
        "InsufficientMemory",
        "no",
    );
    assert_eq!(scene.events(), ["InsufficientMemory"]);
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
    scene.run("r1");
    assert_eq!(scene.events(), ["RolloutComplete", "Recovered"]);
    scene.step();
    assert_eq!(scene.events(), [""; 0]);
}
