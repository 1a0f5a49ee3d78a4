use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::fixture::node;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::at;

fn deployment_patch(patch: Value) -> ProposedChange {
    ProposedChange {
        object: ChangedObject::Deployment("default".to_owned(), "guide".to_owned()),
        patch,
    }
}

fn node_patch(name: &str, patch: Value) -> ProposedChange {
    ProposedChange {
        object: ChangedObject::Node(name.to_owned()),
        patch,
    }
}

fn of(snapshot: &Snapshot, change: &ProposedChange) -> Preview {
    let preview = preview(snapshot.clone(), change, 0, at(0)).expect("the change is valid");
    assert!(preview.complete);
    preview
}

/// Returns the objects of a deployment whose replicas run on the nodes.
fn running(nodes: impl IntoIterator<Item = FleetNode>, spec: Value) -> Snapshot {
    let mut deployment = ModelDeployment::test("guide", spec);
    deployment.metadata.namespace = Some("default".to_owned());
    deployment.metadata.uid = Some("uid-guide".to_owned());
    deployment.metadata.generation = Some(1);
    let snapshot = Snapshot {
        nodes: nodes.into_iter().map(Arc::new).collect(),
        deployments: vec![Arc::new(deployment)],
        ..Snapshot::default()
    };
    let mut model = Model::new(snapshot, 0, at(0));
    model.change(&deployment_patch(json!({}))).expect("valid");
    assert!(model.settle());
    model.snapshot
}

fn on<'s>(snapshot: &'s Snapshot, node: &str) -> Vec<&'s ModelReplica> {
    let replicas = snapshot.replicas.iter().map(AsRef::as_ref);
    replicas
        .filter(|replica| replica.spec.node_name.as_deref() == Some(node))
        .collect()
}

fn courses(preview: &Preview) -> Vec<&Course> {
    preview.replicas.iter().map(|replica| &replica.course).collect()
}

#[test]
fn drain_moves_replicas_to_the_nodes_that_accept_them() {
    let snapshot = running(
        [node("a", 8), node("b", 8), node("c", 8)],
        json!({ "replicas": 3 }),
    );
    let (from, staying) = (on(&snapshot, "a"), on(&snapshot, "b"));
    assert_eq!((from.len(), staying.len()), (1, 1));
    let preview = of(
        &snapshot,
        &node_patch("a", json!({ "spec": { "unschedulable": true, "drain": true } })),
    );
    let [moved] = &preview.replicas[..] else {
        panic!("{preview:?}");
    };
    assert_eq!(
        moved.replica,
        from[0]
            .metadata
            .name
            .as_ref()
            .map(|name| format!("default/{name}"))
    );
    assert_eq!(moved.deployment.as_deref(), Some("default/guide"));
    assert!(
        matches!(&moved.course, Course::Moves { from, to, .. } if from == "a" && to != "a"),
        "{moved:?}"
    );
    assert!(moved.message.contains(" moves from a to "), "{moved:?}");
}

#[test]
fn drain_reports_replicas_that_stay() {
    let mut full = node("b", 8);
    full.spec.unschedulable = true;
    let snapshot = running([node("a", 8), full], json!({ "replicas": 2 }));
    let drain = node_patch("a", json!({ "spec": { "drain": true } }));
    let preview = of(&snapshot, &drain);
    assert_eq!(preview.replicas.len(), 2, "{preview:?}");
    for replica in &preview.replicas {
        let Course::Stays { from, why } = &replica.course else {
            panic!("{replica:?}");
        };
        assert_eq!(from, "a");
        assert!(why.contains("no other node accepts a replacement"), "{why}");
    }
    // Without a change of the drain, nothing is reported.
    assert_eq!(of(&snapshot, &node_patch("a", json!({}))).replicas, []);
}

#[test]
fn scale_reports_new_stopped_and_pending_replicas() {
    let snapshot = running([node("a", 4)], json!({ "replicas": 1 }));
    let scaled = |replicas: i32| {
        of(
            &snapshot,
            &deployment_patch(json!({ "spec": { "replicas": replicas } })),
        )
    };
    let up = scaled(9);
    assert_eq!(up.replicas.len(), 8);
    let starts = courses(&up)
        .iter()
        .filter(|course| matches!(course, Course::Starts { to } if to == "a"))
        .count();
    let pending: Vec<_> = courses(&up)
        .into_iter()
        .filter_map(|course| match course {
            Course::Pending { from: None, why } => Some(why.clone()),
            Course::Pending { .. }
            | Course::Moves { .. }
            | Course::Starts { .. }
            | Course::Stops { .. }
            | Course::Stays { .. } => None,
        })
        .collect();
    assert!(
        starts > 0 && !pending.is_empty() && starts + pending.len() == 8,
        "{up:?}"
    );
    assert!(pending[0].contains("0/1 nodes are available"), "{pending:?}");
    let down = scaled(0);
    assert_eq!(
        courses(&down),
        [&Course::Stops {
            from: Some("a".to_owned())
        }]
    );
    assert_eq!(scaled(1).replicas, []);
}

#[test]
fn template_change_names_the_revisions() {
    let snapshot = running([node("a", 8), node("b", 8)], json!({ "replicas": 2 }));
    let change = deployment_patch(json!({ "spec": { "serving": { "contextTokens": 32 } } }));
    let preview = of(&snapshot, &change);
    assert_eq!(preview.replicas.len(), 2, "{preview:?}");
    for replica in &preview.replicas {
        assert_eq!(replica.revision, Some(1));
        assert!(
            matches!(
                replica.course,
                Course::Moves {
                    to_revision: Some(2),
                    ..
                }
            ),
            "{replica:?}"
        );
        assert!(replica.message.contains("(revision 2)"), "{replica:?}");
    }
    assert_eq!(preview.waiting, Vec::<String>::new());
    // A paused deployment keeps its replicas.
    let paused = deployment_patch(json!({ "spec": { "paused": true, "serving": { "contextTokens": 32 } } }));
    assert_eq!(of(&snapshot, &paused).replicas, []);
}

#[test]
fn canary_waits_after_its_first_step() {
    let strategy = json!({ "type": "Canary", "canary": { "steps": [{ "setWeight": 50 }, { "pause": {} }] } });
    let snapshot = running(
        [node("a", 8), node("b", 8)],
        json!({ "replicas": 2, "strategy": strategy }),
    );
    let preview = of(
        &snapshot,
        &deployment_patch(json!({ "spec": { "serving": { "contextTokens": 32 } } })),
    );
    assert_eq!(preview.waiting.len(), 1, "{preview:?}");
    assert!(
        preview.waiting[0].starts_with("the rollout of default/guide waits: "),
        "{preview:?}"
    );
    assert!(preview.replicas.len() < 2, "{preview:?}");
}

#[test]
fn invalid_change_is_rejected() {
    let snapshot = running([node("a", 8)], json!({ "replicas": 1 }));
    let error = |change: &ProposedChange| {
        preview(snapshot.clone(), change, 0, at(0))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&node_patch("nobody", json!({}))),
        "FleetNode \"nobody\" not found"
    );
    let wrong = deployment_patch(json!({ "spec": { "replicas": "many" } }));
    assert!(error(&wrong).contains("ModelDeployment \"guide\" is not valid"));
    let parse = |text: &str| serde_json::from_str::<ProposedChange>(text);
    assert_eq!(
        parse(r#"{"object": {"node": "a"}, "patch": {"spec": {"drain": true}}}"#).unwrap(),
        node_patch("a", json!({ "spec": { "drain": true } }))
    );
    parse(r#"{"object": {"replica": "a"}, "patch": {}}"#).unwrap_err();
}
