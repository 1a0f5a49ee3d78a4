use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::fixture::node;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::at;

fn deployment_patch(patch: Value) -> ProposedChange {
    ProposedChange {
        object: ChangedObject::Deployment("default".to_owned(), "guide".to_owned()),
        change: Change::Patch(patch),
    }
}

fn node_patch(name: &str, patch: Value) -> ProposedChange {
    ProposedChange {
        object: ChangedObject::Node(name.to_owned()),
        change: Change::Patch(patch),
    }
}

fn of(snapshot: &Snapshot, change: &ProposedChange) -> Preview {
    let preview = preview(snapshot.clone(), change, &options(&|| false)).expect("the change is valid");
    assert!(preview.complete);
    preview
}

fn options(must_stop: &dyn Fn() -> bool) -> PreviewOptions<'_> {
    PreviewOptions {
        reserve_node_failures: 0,
        now: at(0),
        force: false,
        keys: None,
        must_stop,
    }
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
    assert_eq!(model.settle(&|| false), Ok(()));
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
        preview(snapshot.clone(), change, &options(&|| false))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&node_patch("nobody", json!({}))),
        "FleetNode \"nobody\" not found"
    );
    for (patch, expected) in [
        (
            json!({ "spec": { "replicas": "many" } }),
            "spec.replicas: Invalid value: \"string\"",
        ),
        (
            json!({ "spec": { "replicas": -1 } }),
            "spec.replicas: Invalid value: -1",
        ),
        (
            json!({ "spec": { "replicas": 100_000 } }),
            "spec.replicas: Invalid value: 100000",
        ),
        (
            json!({ "spec": { "replicas": 2_002 } }),
            "spec.replicas: Invalid value: 2002: a preview adds at most",
        ),
        (
            json!({ "spec": { "serving": { "contextTokens": 0 } } }),
            "spec.serving.contextTokens: Invalid value: 0",
        ),
        (
            json!({ "spec": { "replica": 2 } }),
            "unknown field \"spec.replica\"",
        ),
        (
            json!({ "metadata": { "name": "y" } }),
            "metadata.name: Invalid value: \"y\": field is immutable",
        ),
        (
            json!({ "kind": "FleetNode" }),
            "kind: Invalid value: \"FleetNode\": field is immutable",
        ),
        (json!([1]), "patch: Invalid value: must be a JSON object"),
    ] {
        let error = error(&deployment_patch(patch));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(
        of(
            &snapshot,
            &deployment_patch(json!({ "status": { "replicas": "many" } }))
        )
        .replicas,
        []
    );
    let parse = |text: &str| serde_json::from_str::<ProposedChange>(text);
    assert_eq!(
        parse(r#"{"object": {"node": "a"}, "patch": {"spec": {"drain": true}}}"#).unwrap(),
        node_patch("a", json!({ "spec": { "drain": true } }))
    );
    assert_eq!(
        parse(r#"{"object": {"node": "a"}, "delete": true}"#)
            .unwrap()
            .change,
        Change::Delete
    );
    for change in [
        r#"{"object": {"node": "a"}}"#,
        r#"{"object": {"node": "a"}, "delete": false}"#,
        r#"{"object": {"node": "a"}, "delete": true, "patch": {}}"#,
    ] {
        let error = parse(change).unwrap_err().to_string();
        assert!(
            error.contains("either patch, a JSON merge patch, or \"delete\": true"),
            "{error}"
        );
    }
    for object in [
        r#"{"replica": "a"}"#,
        r#"{"deployment": ["a"]}"#,
        r#"{"deployment": "a"}"#,
        r#"{"node": ""}"#,
        r#"{"node": "a", "deployment": ["a", "b"]}"#,
        "1",
    ] {
        let error = parse(&format!(r#"{{"object": {object}, "patch": {{}}}}"#)).unwrap_err();
        assert!(
            error.to_string().starts_with("object must be {\"node\": NAME}"),
            "{error}"
        );
    }
}

#[test]
fn rejected_template_is_reported_with_its_reason() {
    let snapshot = running([node("a", 8)], json!({ "replicas": 1 }));
    let source = |source: &str| deployment_patch(json!({ "spec": { "model": { "source": source } } }));
    let preview = of(&snapshot, &source("local://none"));
    assert_eq!(preview.replicas, []);
    assert_eq!(preview.waiting.len(), 1, "{preview:?}");
    assert!(
        preview.waiting[0].starts_with("default/guide is not admitted: ModelNotFound: "),
        "{preview:?}"
    );
    let hub = of(&snapshot, &source("hf://mlx-community/Qwen3-8B-4bit"));
    assert!(
        hub.waiting
            .iter()
            .any(|line| line.contains("a preview does not query the hub")),
        "{hub:?}"
    );
}

#[test]
fn preview_that_must_stop_is_incomplete() {
    let snapshot = running([node("a", 8)], json!({ "replicas": 1 }));
    let scaled = deployment_patch(json!({ "spec": { "replicas": 3 } }));
    let preview = preview(snapshot, &scaled, &options(&|| true)).expect("valid");
    assert!(!preview.complete);
    let reason = preview.incomplete_reason.as_deref();
    assert_eq!(reason, Some("the preview ended at its time limit"));
}

#[test]
fn forced_drain_deletes_replicas_that_would_stay() {
    let mut full = node("b", 8);
    full.spec.unschedulable = true;
    let snapshot = running([node("a", 8), full], json!({ "replicas": 2 }));
    let drain = node_patch("a", json!({ "spec": { "unschedulable": true, "drain": true } }));
    let forced = PreviewOptions {
        force: true,
        ..options(&|| false)
    };
    let preview = preview(snapshot, &drain, &forced).expect("valid");
    assert_eq!(preview.replicas.len(), 2, "{preview:?}");
    for course in courses(&preview) {
        assert!(
            matches!(course, Course::Pending { from: Some(from), .. } if from == "a"),
            "{preview:?}"
        );
    }
}

fn delete(object: ChangedObject) -> ProposedChange {
    let change = Change::Delete;
    ProposedChange { object, change }
}

fn guide() -> ChangedObject {
    ChangedObject::Deployment("default".to_owned(), "guide".to_owned())
}

#[test]
fn deletion_of_a_deployment_reports_freed_memory_and_names_in_other_objects() {
    let mut snapshot = running([node("a", 8), node("b", 8)], json!({ "replicas": 2 }));
    for replica in &mut snapshot.replicas {
        let status = Arc::make_mut(replica).status.as_mut();
        status.expect("a status").reserved_memory = Some("2Gi".to_owned());
    }
    let deployment = |name: &str, spec: Value| {
        let mut deployment = ModelDeployment::test(name, spec);
        deployment.metadata.namespace = Some("default".to_owned());
        deployment.metadata.uid = Some(format!("uid-{name}"));
        Arc::new(deployment)
    };
    let fallback = json!({ "replicas": 0, "routing": { "fallbacks": ["guide"] } });
    snapshot.deployments.push(deployment("other", fallback));
    let key = |namespace: &str, name: &str, models: Value| {
        let mut key: ApiKey = serde_json::from_value(json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "APIKey", "metadata": { "name": name },
            "spec": { "secretHash": "0".repeat(64), "models": models },
        }))
        .expect("a key");
        key.metadata.namespace = Some(namespace.to_owned());
        Arc::new(key)
    };
    let keys = vec![
        key("default", "all", json!([])),
        key("default", "one", json!(["guide"])),
        key("default", "two", json!(["guide", "other"])),
        key("elsewhere", "one", json!(["guide"])),
    ];
    let with = |snapshot: &Snapshot, keys| {
        let options = PreviewOptions {
            keys,
            ..options(&|| false)
        };
        preview(snapshot.clone(), &delete(guide()), &options).expect("valid")
    };
    let deleted = with(&snapshot, Some(keys));
    assert_eq!(deleted.replicas.len(), 2, "{deleted:?}");
    assert!(
        deleted
            .replicas
            .iter()
            .all(|replica| matches!(replica.course, Course::Stops { .. })),
        "{deleted:?}"
    );
    assert_eq!(
        deleted.notes,
        [
            "frees 4.0 GiB of reserved memory on a and b",
            "no deployment serves the model name \"guide\": gateways reject its requests with 404",
            "default/other has \"guide\" in spec.routing.fallbacks: gateways skip this fallback",
            "the API key default/one permits only \"guide\", and no other model",
            "the API key default/two has \"guide\" in spec.models",
        ]
    );
    assert!(
        with(&snapshot, None)
            .notes
            .contains(&"API keys are not checked, because they could not be listed".to_owned())
    );
    // Another deployment serves the same name.
    let same_name = json!({ "replicas": 0, "serving": { "name": "guide" } });
    snapshot.deployments.push(deployment("twin", same_name));
    let deleted = with(&snapshot, None);
    assert_eq!(
        deleted.notes[1..],
        ["the model name \"guide\" is still served by default/twin"]
    );
}

#[test]
fn deletion_of_a_node_moves_its_replicas_and_revokes_its_certificates() {
    let snapshot = running(
        [node("a", 8), node("b", 8), node("c", 8)],
        json!({ "replicas": 3 }),
    );
    let deleted = of(&snapshot, &delete(ChangedObject::Node("a".to_owned())));
    assert!(
        matches!(courses(&deleted)[..], [Course::Moves { from, to, .. }] if from == "a" && to != "a"),
        "{deleted:?}"
    );
    assert_eq!(
        deleted.notes,
        [
            "the replicas of a stop before replacements start: to move them first, run `rooflet drain a`",
            "the certificates of a are revoked: to return, its Mac must join again with a new token",
        ]
    );
    let error = preview(
        snapshot,
        &delete(ChangedObject::Node("nobody".to_owned())),
        &options(&|| false),
    );
    assert_eq!(error.unwrap_err().to_string(), "FleetNode \"nobody\" not found");
}

#[test]
fn taint_evicts_when_the_toleration_ends() {
    let toleration = json!([{ "key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }]);
    let snapshot = running(
        [node("a", 8), node("b", 8)],
        json!({ "replicas": 2, "placement": { "tolerations": toleration } }),
    );
    let tainted = |effect: &str| {
        let taint = json!([
            { "key": "maintenance", "effect": "NoSchedule" },
            { "key": "maintenance", "effect": effect },
        ]);
        of(
            &snapshot,
            &node_patch("a", json!({ "spec": { "taints": taint } })),
        )
    };
    let preview = tainted("NoExecute");
    let [moved] = &preview.replicas[..] else {
        panic!("{preview:?}");
    };
    assert_eq!(moved.after_seconds, Some(300));
    assert!(
        moved.message.starts_with("after 300 s, default/guide-"),
        "{moved:?}"
    );
    assert!(
        matches!(&moved.course, Course::Moves { from, to, .. } if from == "a" && to == "b"),
        "{moved:?}"
    );
    assert_eq!(tainted("PreferNoSchedule").replicas, []);
}

#[test]
fn autoscaler_keeps_a_count_within_its_bounds() {
    let autoscaling = json!({ "minReplicas": 1, "maxReplicas": 3 });
    let snapshot = running(
        [node("a", 8)],
        json!({ "replicas": 2, "autoscaling": autoscaling }),
    );
    let scaled = |replicas: i32| {
        of(
            &snapshot,
            &deployment_patch(json!({ "spec": { "replicas": replicas } })),
        )
    };
    let beyond = scaled(9);
    let count = |wanted: fn(&Course) -> bool| {
        courses(&beyond)
            .into_iter()
            .filter(|course| wanted(course))
            .count()
    };
    let started = count(|course| matches!(course, Course::Starts { .. }));
    assert_eq!(
        started,
        count(|course| matches!(course, Course::Stops { .. })) + 1,
        "{beyond:?}"
    );
    assert_eq!(
        beyond.notes,
        [
            "the autoscaler sets spec.replicas of default/guide to 3, because spec.autoscaling permits counts within 1 to 3"
        ]
    );
    let within = scaled(1);
    assert_eq!(within.replicas.len(), 1, "{within:?}");
    assert!(within.notes[0].contains("this count may not last"), "{within:?}");
    assert_eq!(
        of(&snapshot, &deployment_patch(json!({}))).notes,
        Vec::<String>::new()
    );
}
