//! Templates that no node can serve.

use super::*;
use rooflet_api::meta::REVISION_LABEL;

#[test]
fn template_that_stays_refused_exceeds_the_deadline() {
    let mut scene =
        Scene::new(json!({ "model": { "source": "local://gide" }, "progressDeadlineSeconds": 5 }));
    let why = "spec.model.source: no node has a directory `gide` in its --model-dir; on mini: models found: local://guide";
    assert_eq!(
        scene.plan(|plan| plan.requeue_after.map(|after| after.as_secs())),
        Some(5)
    );
    scene.step();
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!("False ModelNotFound: {why}"),
    );
    scene.check_condition(condition_type::STALLED, "absent");
    scene.second = 5;
    assert_eq!(scene.events(), ["ProgressDeadlineExceeded"]);
    scene.step();
    let late = format!("False ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: {why}");
    scene.check_condition(condition_type::PROGRESSING, &late);
    scene.check_condition(condition_type::STALLED, &late.replacen("False", "True", 1));
    // A new template has a new deadline.
    scene.change(json!({ "model": { "source": "local://guide" }, "serving": { "contextTokens": 4096 } }));
    scene.step();
    let reason = |scene: &Scene| {
        let condition = scene.condition(condition_type::PROGRESSING);
        condition.split(':').next().map(str::to_owned)
    };
    assert_eq!(reason(&scene).as_deref(), Some("False ContextTooLong"));
    scene.check_condition(condition_type::STALLED, "absent");
    scene.second += 5;
    scene.step();
    assert_eq!(reason(&scene).as_deref(), Some("False ProgressDeadlineExceeded"));
    // If a node can serve the template, the rollout continues.
    scene.models[0] =
        ServedModel::of_size(Bytes::mib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 4096);
    assert_eq!(scene.step(), "revision 1 +1");
    assert_eq!(reason(&scene).as_deref(), Some("True RollingOut"));
    assert_eq!(
        scene.deployment.status.expect("a pass has run").rollout.refused,
        None
    );
}

/// Returns a scene with two Ready replicas and a template that no node can serve.
fn refused(strategy: &Value) -> Scene {
    let mut scene = Scene::new(json!({ "replicas": 2, "progressDeadlineSeconds": 5, "strategy": strategy }));
    scene.step();
    scene.run_all();
    scene.settle();
    scene.change(json!({ "model": { "source": "local://typo" } }));
    assert_eq!(scene.step(), "");
    scene
}

#[test]
fn refused_template_is_rolled_back_if_enabled() {
    for strategy in [
        json!({ "rollbackOnFailure": true }),
        json!({ "type": "Canary", "canary": { "steps": [{ "setWeight": 50 }] } }),
    ] {
        let mut scene = refused(&strategy);
        scene.second += 5;
        assert_eq!(scene.step(), "");
        let condition = scene.condition(condition_type::PROGRESSING);
        let first = scene.revisions[0].name_any();
        let back = format!(
            "False RolledBack: back to revision 1 ({first}): the rollout of the new revision was aborted (ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: spec.model.source: no node has a directory `typo`"
        );
        assert!(condition.starts_with(&back), "{condition}");
        scene.check_condition_begins(
            condition_type::READY,
            "False RolledBack: 2 of 2 replicas ready, but not of the current template",
        );
        assert_eq!(scene.step(), "");
        assert_eq!(scene.condition(condition_type::PROGRESSING), condition);
        // The template is not retried when a node can serve it, but a new template is rolled out.
        scene.models[0].name = "typo".to_owned();
        assert_eq!(scene.step(), "revision 2");
        assert_eq!(scene.step(), "");
        scene.check_condition_begins(condition_type::PROGRESSING, "False RolledBack");
        scene.check_condition_begins(condition_type::STALLED, "True RolledBack");
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 3 -r2(outdated) +1");
    }
}

#[test]
fn refused_template_without_rollback_keeps_the_serving_replicas() {
    let mut scene = refused(&json!({}));
    scene.second += 5;
    assert_eq!(scene.step(), "");
    let condition = scene.condition(condition_type::PROGRESSING);
    let late = "False ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: revision 1 stays, because the new template is refused: spec.model.source";
    assert!(condition.starts_with(late), "{condition}");
    // A pause resets the deadline.
    scene.change(json!({ "paused": true }));
    scene.step();
    scene.change(json!({ "paused": false }));
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "False ModelNotFound");
}

#[test]
fn refused_template_rolls_back_an_unfinished_canary() {
    let canary = json!({ "type": "Canary", "canary": { "steps": [{ "setWeight": 50 }, { "pause": {} }] } });
    let mut scene = Scene::new(json!({ "replicas": 2, "progressDeadlineSeconds": 5, "strategy": canary }));
    scene.step();
    scene.run_all();
    scene.settle();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    scene.finish();
    scene.run("r3");
    // The canary pauses without a time limit.
    scene.step();
    scene.change(json!({ "model": { "source": "local://typo" } }));
    assert_eq!(scene.step(), "");
    scene.second += 5;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    let stable = scene.revisions[0].name_any();
    assert_eq!(
        scene
            .replicas
            .last()
            .expect("the pass created a replica")
            .labels()[REVISION_LABEL],
        stable
    );
}
