//! Templates that no node can serve.

use super::*;
use rooflet_api::meta::REVISION_LABEL;

#[test]
fn a_template_that_stays_refused_misses_the_deadline() {
    let mut scene =
        Scene::new(json!({ "model": { "source": "local://gide" }, "progressDeadlineSeconds": 5 }));
    let why = "spec.model.source: no node has a directory `gide` in its --model-dir; on mini there are local://guide";
    assert_eq!(
        scene.plan(|plan| plan.requeue_after.map(|after| after.as_secs())),
        Some(5)
    );
    scene.step();
    scene.check_condition(
        condition_type::PROGRESSING,
        &format!("False ModelNotFound: {why}"),
    );
    scene.second = 5;
    assert_eq!(scene.events(), ["ProgressDeadlineExceeded"]);
    scene.step();
    let late = format!("False ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: {why}");
    scene.check_condition(condition_type::PROGRESSING, &late);
    // Another template has its own time.
    scene.change(json!({ "model": { "source": "local://guide" }, "serving": { "contextTokens": 4096 } }));
    scene.step();
    let reason = |scene: &Scene| {
        let told = scene.condition(condition_type::PROGRESSING);
        told.split(':').next().map(str::to_owned)
    };
    assert_eq!(reason(&scene).as_deref(), Some("False ContextTooLong"));
    scene.second += 5;
    scene.step();
    assert_eq!(reason(&scene).as_deref(), Some("False ProgressDeadlineExceeded"));
    // Once it can be served it goes on.
    scene.models[0] =
        ServedModel::of_size(Bytes::mib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 4096);
    assert_eq!(scene.step(), "revision 1 +1");
    assert_eq!(reason(&scene).as_deref(), Some("True RollingOut"));
    assert_eq!(scene.deployment.status.expect("written").rollout.refused, None);
}

/// Two replicas that serve, and a template that no node can.
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
fn a_refused_template_is_given_up_where_failures_are_rolled_back() {
    for strategy in [
        json!({ "rollbackOnFailure": true }),
        json!({ "type": "Canary", "canary": { "steps": [{ "setWeight": 50 }] } }),
    ] {
        let mut scene = refused(&strategy);
        scene.second += 5;
        assert_eq!(scene.step(), "");
        let told = scene.condition(condition_type::PROGRESSING);
        let first = scene.revisions[0].name_any();
        let back = format!(
            "False RolledBack: back to revision 1 ({first}): the newer one was given up (ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: spec.model.source: no node has a directory `typo`"
        );
        assert!(told.starts_with(&back), "{told}");
        scene.check_condition_begins(
            condition_type::READY,
            "False RolledBack: 2 of 2 replicas ready, and not of the template",
        );
        assert_eq!(scene.step(), "");
        assert_eq!(scene.condition(condition_type::PROGRESSING), told);
        // It is not tried again when it could be served; another template is.
        scene.models[0].name = "typo".to_owned();
        assert_eq!(scene.step(), "revision 2");
        assert_eq!(scene.step(), "");
        scene.check_condition_begins(condition_type::PROGRESSING, "False RolledBack");
        scene.change(new_template("other"));
        assert_eq!(scene.step(), "revision 3 -r2(outdated) +1");
    }
}

#[test]
fn a_refused_template_that_nobody_rolls_back_leaves_what_serves() {
    let mut scene = refused(&json!({}));
    scene.second += 5;
    assert_eq!(scene.step(), "");
    let told = scene.condition(condition_type::PROGRESSING);
    let late = "False ProgressDeadlineExceeded: no progress for 5 s; ModelNotFound: revision 1 stays, because the new template is refused: spec.model.source";
    assert!(told.starts_with(late), "{told}");
    // A pause stops the clock.
    scene.change(json!({ "paused": true }));
    scene.step();
    scene.change(json!({ "paused": false }));
    scene.step();
    scene.check_condition_begins(condition_type::PROGRESSING, "False ModelNotFound");
}

#[test]
fn a_refused_template_takes_what_came_before_it_back_as_well() {
    let canary = json!({ "type": "Canary", "canary": { "steps": [{ "setWeight": 50 }, { "pause": {} }] } });
    let mut scene = Scene::new(json!({ "replicas": 2, "progressDeadlineSeconds": 5, "strategy": canary }));
    scene.step();
    scene.run_all();
    scene.settle();
    scene.change(new_template("other"));
    assert_eq!(scene.step(), "revision 2 -r2(outdated) +1");
    scene.finish();
    scene.run("r3");
    // At its pause it could stay for ever.
    scene.step();
    scene.change(json!({ "model": { "source": "local://typo" } }));
    assert_eq!(scene.step(), "");
    scene.second += 5;
    assert_eq!(scene.step(), "-r3(outdated) +1");
    let stable = scene.revisions[0].name_any();
    assert_eq!(
        scene.replicas.last().expect("made").labels()[REVISION_LABEL],
        stable
    );
}
