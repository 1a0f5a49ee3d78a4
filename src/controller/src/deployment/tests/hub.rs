use std::sync::Arc;

use super::*;
use crate::deployment::HubAnswer;

const MODEL: &str = "hf://owner/guide";

fn answer(commit: &str) -> HubAnswer {
    let served = ServedModel::of_size(Bytes::mib(1), 4);
    HubAnswer::Artifact {
        commit: Some(commit.to_owned()),
        artifact: Arc::new(ArtifactSpec {
            download_bytes: 1 << 20,
            model: served.publish(format!("{MODEL}@{commit}"), "llama".to_owned(), 2048),
        }),
    }
}

fn scene() -> Scene {
    let mut scene = Scene::new(json!({}));
    scene.change(json!({ "model": { "source": MODEL } }));
    scene
}

fn queries_the_hub(scene: &Scene) -> bool {
    let fleet = scene.fleet();
    let observed = Observed {
        deployment: &scene.deployment,
        revisions: scene.revisions.iter().collect(),
        replicas: Vec::new(),
        foreign: Vec::new(),
        namesake: None,
        fleet: &fleet,
        hub: None,
        now: at(0),
    };
    observed.unknown_model().is_some()
}

#[test]
fn revision_stores_the_answer_of_the_hub() {
    let mut scene = scene();
    scene.hub = Some(HubAnswer::pending(&MODEL.parse().unwrap()));
    assert!(queries_the_hub(&scene));
    assert_eq!(scene.events(), Vec::<String>::new());
    assert_eq!(scene.step(), "");
    scene.check_condition(
        "Admitted",
        "Unknown AskingHub: waiting for the hub's answer about hf://owner/guide",
    );

    scene.hub = Some(answer("c0"));
    assert_eq!(scene.step(), "revision 1 +1");
    let model = ModelSpec {
        source: MODEL.to_owned(),
        revision: Some("c0".to_owned()),
    };
    let revision = &scene.revisions[0].spec;
    assert_eq!(revision.model, model);
    assert_eq!(revision.serving.context_tokens, Some(2048));
    assert_eq!(revision.artifact.as_ref().unwrap().download_bytes, 1 << 20);
    assert_eq!(scene.replicas[0].spec.model, model);
    assert_eq!(scene.replicas[0].spec.artifact, revision.artifact);

    // Neither a moved branch nor an unreachable hub changes an existing revision.
    scene.run_all();
    assert!(!queries_the_hub(&scene));
    for hub in [
        Some(answer("c1")),
        None,
        Some(HubAnswer::Unknown {
            reason: "HubUnreachable",
            message: String::new(),
            is_transient: true,
        }),
    ] {
        scene.hub = hub;
        assert_eq!(scene.step(), "");
        scene.check_condition("Admitted", "True Servable: the model can be served");
    }

    // While the deployment is paused, no revision is created, so the hub is not queried.
    scene.hub = Some(HubAnswer::paused(&MODEL.parse().unwrap()));
    scene.change(json!({ "paused": true, "restartedAt": "paused" }));
    assert_eq!(scene.step(), "");
    scene.check_condition(
        "Admitted",
        "Unknown Paused: spec.paused is true: the hub is queried for hf://owner/guide after the pause",
    );
    assert!(
        scene.condition("Progressing").starts_with("Unknown Paused"),
        "{}",
        scene.condition("Progressing")
    );
    scene.change(json!({ "paused": false }));

    // A restart resolves the branch again, an undo returns to the old commit.
    scene.hub = Some(answer("c1"));
    scene.change(json!({ "restartedAt": "now" }));
    assert!(queries_the_hub(&scene));
    scene.step();
    assert_eq!(scene.revisions[1].spec.model.revision.as_deref(), Some("c1"));
    let first = scene.revisions[0].spec.clone();
    scene.change(json!({ "model": first.model, "serving": first.serving, "restartedAt": null }));
    assert!(!queries_the_hub(&scene));
    assert!(scene.step().starts_with("again as 3"));
}

#[test]
fn restored_replica_with_another_commit_is_replaced() {
    let mut scene = scene();
    scene.hub = Some(answer("c1"));
    scene.step();
    scene.run_all();
    assert_eq!(scene.step(), "");
    scene.replicas[0].spec.model = ModelSpec::of_text("hf://owner/guide@c1");
    assert_eq!(scene.step(), "");
    scene.replicas[0].spec.model = ModelSpec::of_text("hf://owner/guide@c0");
    assert_eq!(scene.step(), "-r1(outdated) +1");
}

#[test]
fn refusal_of_the_hub_is_reported() {
    let mut scene = scene();
    scene.hub = Some(HubAnswer::Unknown {
        reason: "ModelGated",
        message: "spec.model.source: it is gated".to_owned(),
        is_transient: false,
    });
    assert_eq!(scene.events(), ["ModelGated"]);
    scene.step();
    scene.check_condition("Admitted", "False ModelGated: spec.model.source: it is gated");

    let HubAnswer::Artifact { commit, artifact } = answer("c0") else {
        unreachable!();
    };
    let mut broken = ArtifactSpec::clone(&artifact);
    broken.model.problem = Some("model_type `x` is not supported".to_owned());
    scene.hub = Some(HubAnswer::Artifact {
        commit,
        artifact: Arc::new(broken),
    });
    scene.step();
    scene.check_condition(
        "Admitted",
        "False ModelNotServable: spec.model.source: hf://owner/guide cannot be served: model_type `x` is not supported",
    );

    scene.hub = Some(answer("c0"));
    scene.change(json!({ "serving": { "contextTokens": 4096 } }));
    scene.step();
    scene.check_condition(
        "Admitted",
        "False ContextTooLong: spec.serving.contextTokens: 4096 is more than the maximum of 2048 tokens of model `hf://owner/guide`",
    );
}

#[test]
fn advancing_download_is_progress() {
    let mut scene = scene();
    scene.hub = Some(answer("c0"));
    scene.change(json!({ "progressDeadlineSeconds": 5 }));
    scene.step();
    scene.replica("r1").spec.node_name = Some("mini".to_owned());
    let downloaded = |scene: &mut Scene, second| {
        scene.second = second;
        let status = ModelReplicaStatus {
            phase: ReplicaPhase::Pulling,
            download: Some(DownloadStatus::new(second as u64, 100, Time(at(second)))),
            ..ModelReplicaStatus::default()
        };
        scene.replica("r1").status = Some(status);
        scene.step();
        scene.condition("Progressing")
    };
    for second in [4, 8, 12] {
        assert!(downloaded(&mut scene, second).starts_with("True RollingOut"));
    }
    scene.second = 17;
    scene.step();
    assert!(
        scene
            .condition("Progressing")
            .starts_with("False ProgressDeadlineExceeded")
    );
}

/// Returns a node with the models of these commits.
fn with_commits(commits: &[&str]) -> FleetNode {
    let models = commits.iter().filter_map(|commit| match answer(commit) {
        HubAnswer::Artifact { artifact, .. } => Some(artifact.model.clone()),
        HubAnswer::Unknown { .. } => None,
    });
    mini(models.collect())
}

/// Returns a scene that runs the first commit and rolls out the second.
fn changing(strategy: Value) -> Scene {
    let mut scene = scene();
    scene.hub = Some(answer("c0"));
    scene.nodes = vec![with_commits(&["c0"])];
    scene.change(json!({ "strategy": strategy }));
    scene.step();
    scene.run_all();
    scene.step();
    scene.hub = Some(answer("c1"));
    scene.change(json!({ "restartedAt": "now" }));
    scene
}

fn requested_downloads(scene: &Scene) -> Vec<Option<&str>> {
    let annotation = |replica: &'_ ModelReplica| replica.annotations().get("rooflet.dev/prepare").cloned();
    let models = scene.replicas.iter().map(annotation);
    models
        .map(|model| model.map(|model| if model.ends_with("@c1") { "c1" } else { "other" }))
        .collect()
}

#[test]
fn in_place_replacement_waits_for_the_download() {
    let in_place = json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } });
    for strategy in [in_place.clone(), json!({ "type": "Recreate" })] {
        let mut scene = changing(strategy);
        assert_eq!(scene.step(), "revision 2 ~r1");
        assert_eq!(requested_downloads(&scene), [Some("c1")]);
        scene.check_condition(
            "Progressing",
            "True Preparing: the replicas on mini are replaced after hf://owner/guide@c1 is downloaded there",
        );
        // The wait has no limit.
        scene.second += 10_000;
        assert_eq!(scene.step(), "");
        scene.nodes = vec![with_commits(&["c0", "c1"])];
        assert!(scene.step().starts_with("-r1(outdated)"));
    }
    // An undo cancels the download and does not wait for it.
    let mut scene = changing(in_place.clone());
    scene.step();
    scene.change(json!({ "restartedAt": null }));
    assert_eq!(scene.step(), "again as 3 ~r1");
    assert_eq!(requested_downloads(&scene), [None]);

    // A missing node and a node without disk space are not waited for.
    let mut scene = changing(in_place.clone());
    scene.nodes[0].metadata.name = Some("other".to_owned());
    assert!(scene.step().contains("-r1(outdated)"));
    let mut scene = changing(in_place);
    scene.nodes[0].status.as_mut().unwrap().allocatable.disk = Some("0".to_owned());
    assert!(scene.step().contains("-r1(outdated)"));

    // With a surge, the old replica serves during the download.
    let mut scene = changing(json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } }));
    assert_eq!(scene.step(), "revision 2 +1");
    scene.run("r2");
    assert_eq!(scene.step(), "-r1(outdated)");
}
