//! Comparison of previews with the simulated controller.

use std::sync::Arc;

use kube::ResourceExt;
use serde_json::json;

use super::*;
use crate::run::Run;
use rooflet_api::meta::{ABORT_ANNOTATION, DEPLOYMENT_LABEL, PROMOTE_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_controller::intent::Snapshot;
use rooflet_controller::{Change, ChangedObject, Course, Preview, PreviewOptions, ProposedChange, preview};

/// Three Macs of two sizes, and two deployments.
const FLEET: &str = r#"
duration: 30m
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 3}
    - {name: studio, chip: M2 Max, gpuCores: 30, memory: 64Gi, count: 1}
models:
  - {name: small, model: tinyllama-1.1b, quantization: mlx4, maxContextTokens: 2048}
  - {name: large, model: llama-3.1-8b, quantization: mlx4, maxContextTokens: 8192}
deployments:
  - name: small
    spec:
      replicas: 3
      model: {source: "local://small"}
      serving: {maxConcurrency: 2}
  - name: large
    spec:
      replicas: 2
      model: {source: "local://large"}
      serving: {maxConcurrency: 2}
      strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
"#;
const CHANGED_AT: Duration = Duration::from_secs(600);

fn run_until(run: &mut Run<'_>, until: Duration) {
    while let Some((at, event)) = run.world.queue.pop() {
        if at > until {
            run.world.queue.push(at, event);
            break;
        }
        run.world.now = at;
        run.handle(event);
        run.propagate();
    }
}

/// Returns deployment, revision and node of each replica, sorted.
fn placements(replicas: &[Arc<ModelReplica>]) -> Vec<[String; 3]> {
    let label = |replica: &ModelReplica, name: &str| replica.labels().get(name).cloned().unwrap_or_default();
    let mut placements: Vec<_> = replicas
        .iter()
        .map(|replica| {
            let node = replica.spec.node_name.clone().unwrap_or_default();
            [
                label(replica, DEPLOYMENT_LABEL),
                label(replica, REVISION_LABEL),
                node,
            ]
        })
        .collect();
    placements.sort();
    placements
}

fn replicas(run: &Run<'_>) -> Vec<Arc<ModelReplica>> {
    run.world.store.replicas.values().cloned().collect()
}

/// Returns the nodes of the replicas of each deployment after the courses of the preview, sorted.
fn applied(before: &[Arc<ModelReplica>], preview: &Preview) -> Vec<[String; 2]> {
    let mut nodes: Vec<_> = placements(before)
        .into_iter()
        .map(|[deployment, _, node]| [format!("default/{deployment}"), node])
        .collect();
    for replica in &preview.replicas {
        let deployment = replica.deployment.clone().expect("a deployment");
        let mut leaves = |node: &Option<String>| {
            let left = [deployment.clone(), node.clone().unwrap_or_default()];
            let at = nodes.iter().position(|known| *known == left);
            nodes.remove(at.expect("the replica exists"));
        };
        match &replica.course {
            Course::Moves { from, to, .. } => {
                leaves(&Some(from.clone()));
                nodes.push([deployment, to.clone()]);
            }
            Course::Starts { to } => nodes.push([deployment, to.clone()]),
            Course::Stops { from } => leaves(from),
            Course::Pending { from, .. } => {
                if from.is_some() {
                    leaves(from);
                }
                nodes.push([deployment, String::new()]);
            }
            Course::Stays { .. } => {}
        }
    }
    nodes.sort();
    nodes
}

fn scenario(changes: &[ChangeWhat]) -> Scenario {
    let mut scenario = Scenario::parse(FLEET).unwrap();
    let last = changes.len() - 1;
    let changes = changes.iter().cloned().enumerate();
    scenario.changes = changes
        .map(|(index, what)| ChangeAt {
            at: if index == last {
                CHANGED_AT
            } else {
                Duration::from_secs(120)
            },
            what,
        })
        .collect();
    scenario
}

/// Runs the fleet with the changes, previews the last one, and compares the preview with the fleet after it.
#[track_caller]
fn compare(changes: &[ChangeWhat], proposed: &ProposedChange, seed: u64) -> Preview {
    let scenario = scenario(changes);
    let mut run = Run::new(&scenario, &RunOptions::new(seed, Policy::default())).unwrap();
    run.start();
    run_until(&mut run, CHANGED_AT - Duration::from_millis(1));
    let store = &run.world.store;
    let snapshot = Snapshot {
        nodes: store.nodes.values().cloned().collect(),
        deployments: store.deployments.values().cloned().collect(),
        revisions: store.revisions.values().cloned().collect(),
        replicas: replicas(&run),
        ..Snapshot::default()
    };
    let before = snapshot.replicas.clone();
    let preview = preview(
        snapshot,
        proposed,
        &PreviewOptions {
            reserve_node_failures: 0,
            now: run.world.clock(),
            force: false,
            keys: None,
            must_stop: &|| false,
        },
    )
    .unwrap();
    run_until(&mut run, scenario.duration);
    let after = placements(&replicas(&run)).into_iter();
    let after: Vec<_> = after
        .map(|[deployment, _, node]| [format!("default/{deployment}"), node])
        .collect();
    assert!(preview.complete);
    assert_eq!(applied(&before, &preview), after, "seed {seed}: {preview:#?}");
    preview
}

fn of_deployment(spec: serde_json::Value) -> (ChangeWhat, ProposedChange) {
    let deployment = "large".to_owned();
    let object = ChangedObject::Deployment("default".to_owned(), deployment.clone());
    let patch = json!({ "spec": spec });
    (ChangeWhat::Patch { deployment, spec }, patch_of(object, patch))
}

fn drain(node: &str) -> (ChangeWhat, ProposedChange) {
    let node = node.to_owned();
    let object = ChangedObject::Node(node.clone());
    let patch = json!({ "spec": { "drain": true } });
    (ChangeWhat::Drain { node, drain: true }, patch_of(object, patch))
}

fn patch_of(object: ChangedObject, patch: serde_json::Value) -> ProposedChange {
    let change = Change::Patch(patch);
    ProposedChange { object, change }
}

#[test]
fn preview_of_a_drain_is_what_the_controller_does() {
    let mut moved = 0;
    for node in ["mini-1", "mini-2", "mini-3", "studio-1"] {
        let (what, proposed) = drain(node);
        for seed in 1..=3 {
            let preview = compare(std::slice::from_ref(&what), &proposed, seed);
            let moves = preview.replicas.iter();
            moved += moves
                .filter(|replica| matches!(replica.course, Course::Moves { .. }))
                .count();
        }
    }
    assert!(moved > 3, "{moved}");
}

/// The other Macs are cordoned, so the replicas stay.
#[test]
fn preview_of_a_drain_without_room_is_what_the_controller_does() {
    let cordon = |node: &str| ChangeWhat::Cordon {
        node: node.to_owned(),
        cordoned: true,
    };
    for node in ["mini-1", "studio-1"] {
        let (what, proposed) = drain(node);
        let others = ["mini-1", "mini-2", "mini-3", "studio-1"]
            .into_iter()
            .filter(|other| *other != node);
        let changes: Vec<_> = others.map(cordon).chain([what]).collect();
        let preview = compare(&changes, &proposed, 1);
        let stays = |course: &Course| matches!(course, Course::Stays { why, .. } if !why.is_empty());
        assert!(
            preview.replicas.iter().all(|replica| stays(&replica.course)),
            "{preview:#?}"
        );
    }
}

#[test]
fn preview_of_a_scaling_is_what_the_controller_does() {
    for replicas in [0, 1, 3, 5, 40] {
        let (what, proposed) = of_deployment(json!({ "replicas": replicas }));
        let preview = compare(std::slice::from_ref(&what), &proposed, 1);
        assert_eq!(
            preview.replicas.len(),
            i32::abs_diff(replicas, 2) as usize,
            "{preview:#?}"
        );
    }
}

#[test]
fn preview_of_a_rollout_is_what_the_controller_does() {
    for spec in [
        json!({ "serving": { "contextTokens": 4096 } }),
        json!({ "restartedAt": "2026-01-01T00:00:00Z" }),
        json!({ "serving": { "contextTokens": 4096 }, "strategy": { "rollingUpdate": { "minThroughput": "60%" } } }),
    ] {
        let (what, proposed) = of_deployment(spec);
        let preview = compare(std::slice::from_ref(&what), &proposed, 2);
        let replaced = preview.replicas.iter();
        let replaced = replaced.filter(|replica| {
            matches!(
                replica.course,
                Course::Moves {
                    to_revision: Some(2),
                    ..
                }
            ) && replica.revision == Some(1)
        });
        assert_eq!(replaced.count(), 2, "{preview:#?}");
        assert_eq!(preview.waiting, Vec::<String>::new());
    }
}

/// Starts a rollout whose first replica waits for a promotion.
fn canary() -> ChangeWhat {
    let steps = json!([{ "setWeight": 50 }, { "pause": {} }]);
    let (what, _) = of_deployment(json!({
        "serving": { "contextTokens": 4096 },
        "strategy": { "type": "Canary", "canary": { "steps": steps } },
    }));
    what
}

/// Returns the identifier of the canary's rollout.
fn id_of_canary() -> String {
    let scenario = scenario(&[canary(), drain("mini-1").0]);
    let mut run = Run::new(&scenario, &RunOptions::new(1, Policy::default())).unwrap();
    run.start();
    run_until(&mut run, CHANGED_AT - Duration::from_millis(1));
    let deployments = run.world.store.deployments.values();
    let large = deployments
        .into_iter()
        .find(|deployment| deployment.name_any() == "large")
        .expect("the deployment");
    let rollout = &large.status.as_ref().expect("a status").rollout;
    rollout.id().expect("a rollout")
}

fn annotation(key: &str, value: String) -> (ChangeWhat, ProposedChange) {
    let deployment = "large".to_owned();
    let object = ChangedObject::Deployment("default".to_owned(), deployment.clone());
    let patch = json!({ "metadata": { "annotations": { key: value } } });
    let what = ChangeWhat::Annotate {
        deployment,
        key: key.to_owned(),
        value,
    };
    (what, patch_of(object, patch))
}

#[test]
fn preview_of_a_promotion_is_what_the_controller_does() {
    let id = id_of_canary();
    for steps in ["1", "full"] {
        let (what, proposed) = annotation(PROMOTE_ANNOTATION, format!("{id}/{steps}"));
        let preview = compare(&[canary(), what], &proposed, 1);
        assert!(!preview.replicas.is_empty(), "{preview:#?}");
    }
}

#[test]
fn preview_of_an_abort_is_what_the_controller_does() {
    let (what, proposed) = annotation(ABORT_ANNOTATION, id_of_canary());
    let preview = compare(&[canary(), what], &proposed, 1);
    assert_eq!(preview.replicas.len(), 1, "{preview:#?}");
}

#[test]
fn preview_of_an_undo_is_what_the_controller_does() {
    let (changed, _) = of_deployment(json!({ "serving": { "contextTokens": 4096 } }));
    let (undone, proposed) = of_deployment(json!({ "serving": { "contextTokens": null } }));
    let preview = compare(&[changed, undone], &proposed, 1);
    assert_eq!(preview.replicas.len(), 2, "{preview:#?}");
}

#[test]
fn preview_of_a_deletion_is_what_the_controller_does() {
    let deployment = "large".to_owned();
    let proposed = ProposedChange {
        object: ChangedObject::Deployment("default".to_owned(), deployment.clone()),
        change: Change::Delete,
    };
    let delete = ChangeWhat::Delete { deployment };
    let preview = compare(&[delete], &proposed, 1);
    assert_eq!(preview.replicas.len(), 2, "{preview:#?}");
}

/// One deployment tolerates the taint for a time, the other one does not.
#[test]
fn preview_of_a_taint_is_what_the_controller_does() {
    let tolerations = json!([{ "key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }]);
    let (tolerates, _) = of_deployment(json!({ "placement": { "tolerations": tolerations } }));
    let taint = json!([
        { "key": "maintenance", "effect": "NoSchedule" },
        { "key": "maintenance", "effect": "NoExecute" },
    ]);
    let mut delayed = 0;
    for node in ["mini-1", "mini-2", "mini-3", "studio-1"] {
        let proposed = patch_of(
            ChangedObject::Node(node.to_owned()),
            json!({ "spec": { "taints": taint } }),
        );
        let what = ChangeWhat::Taint {
            node: node.to_owned(),
            taints: serde_json::from_value(taint.clone()).unwrap(),
        };
        let preview = compare(&[tolerates.clone(), what], &proposed, 1);
        for replica in &preview.replicas {
            let is_tolerant = replica.deployment.as_deref() == Some("default/large");
            assert_eq!(replica.after_seconds, is_tolerant.then_some(300), "{replica:?}");
            delayed += usize::from(is_tolerant);
        }
    }
    assert!(delayed > 0, "no replica tolerates the taint");
}
