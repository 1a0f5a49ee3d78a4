//! Rows of `rooflet models list`. The module is pure.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use rooflet_api::model_requests::ModelRequests;
use rooflet_api::v1alpha1::{FleetNode, HubModel, ModelReplica, NodeModel};

/// Model on a node, or its download.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// `local://NAME` or `hf://OWNER/NAME@COMMIT`.
    pub(super) model: String,
    pub(super) node: String,
    /// Bytes of the weights in memory; for a download, bytes of all files.
    pub(super) bytes: Option<u64>,
    /// Last start of a worker with a downloaded model.
    pub(super) last_used: Option<Timestamp>,
    /// Replicas that use the model, as NAMESPACE/NAME.
    pub(super) replicas: Vec<String>,
    pub(super) state: String,
}

/// Returns the models of all nodes, and the downloads in progress.
pub(super) fn rows(nodes: &[FleetNode], replicas: &[ModelReplica]) -> Vec<Row> {
    let mut rows = Vec::new();
    for node in nodes {
        let name = node.name_any();
        let requests = ModelRequests::of(node.annotations());
        let here: Vec<&ModelReplica> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.as_deref() == Some(name.as_str()))
            .collect();
        let listed = node.status.iter().flat_map(|status| &status.models);
        rows.extend(listed.map(|model| of_model(&name, model, &here, &requests)));
        rows.extend(here.iter().filter_map(|replica| of_download(&name, replica)));
    }
    rows.sort();
    rows.dedup_by(|a, b| (&a.model, &a.node) == (&b.model, &b.node));
    rows
}

fn of_model(node: &str, model: &NodeModel, here: &[&ModelReplica], requests: &ModelRequests) -> Row {
    let source = match model.name.contains("://") {
        true => model.name.clone(),
        false => format!("local://{}", model.name),
    };
    let uses = |replica: &&&ModelReplica| replica.spec.model.text() == source;
    let users: Vec<String> = here.iter().filter(uses).map(|replica| key(replica)).collect();
    let hub: Option<HubModel> = source.parse().ok();
    let request = hub.as_ref().and_then(|hub| requests.delete.get(hub));
    let is_deleted = request.is_some_and(|at| is_requested(model, *at));
    let is_kept = hub.is_some_and(|hub| {
        requests.keep.iter().any(|kept| {
            (&kept.owner, &kept.name) == (&hub.owner, &hub.name)
                && (kept.revision.as_deref().is_none_or(|revision| revision == "main")
                    || kept.revision == hub.revision)
        })
    });
    let state = match (&model.problem, users.len()) {
        (Some(problem), _) => format!("unusable: {problem}"),
        (None, 0) if is_deleted => "deletion requested".to_owned(),
        (None, 0) if is_kept => "kept".to_owned(),
        (None, 0) => "unused".to_owned(),
        (None, 1) => "1 replica".to_owned(),
        (None, count) => format!("{count} replicas"),
    };
    Row {
        model: source,
        node: node.to_owned(),
        bytes: (model.weights_bytes > 0).then_some(model.weights_bytes),
        last_used: model.last_used_time.as_ref().map(|time| time.0),
        replicas: users,
        state,
    }
}

/// Returns whether a request with this time applies to the current download of a model.
pub(super) fn is_requested(model: &NodeModel, at: Timestamp) -> bool {
    model.downloaded_time.as_ref().is_none_or(|time| time.0 <= at)
}

/// Returns the row of a download in progress.
fn of_download(node: &str, replica: &ModelReplica) -> Option<Row> {
    let download = replica.status.as_ref()?.download.as_ref()?;
    Some(Row {
        model: replica.spec.model.text(),
        node: node.to_owned(),
        bytes: Some(download.total_bytes),
        last_used: None,
        replicas: vec![key(replica)],
        state: format!("downloading {}", download.progress),
    })
}

fn key(replica: &ModelReplica) -> String {
    format!(
        "{}/{}",
        replica.namespace().unwrap_or_default(),
        replica.name_any()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn replica(name: &str, source: &str, revision: Option<&str>, status: Value) -> ModelReplica {
        let object = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"model": {"source": source, "revision": revision}, "serving": {}, "nodeName": "mini-1"},
            "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn rows_show_users_requests_downloads_and_problems() {
        let node = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode",
            "metadata": {"name": "mini-1", "annotations": {
                "rooflet.dev/keep-models": "hf://o/kept",
                "rooflet.dev/delete-models": "hf://o/old@c1=2026-11-27T01:00:00Z",
            }},
            "spec": {},
            "status": {"models": [
                {"name": "guide", "weightsBytes": 4_000_000},
                {"name": "broken", "problem": "no config.json"},
                {"name": "hf://o/used@c0", "weightsBytes": 8, "lastUsedTime": "2026-11-26T10:00:00Z"},
                {"name": "hf://o/old@c1"},
                {"name": "hf://o/kept@c2"},
            ]},
        });
        let replicas = [
            replica("a", "hf://o/used", Some("c0"), json!({})),
            replica(
                "b",
                "hf://o/new",
                Some("c3"),
                json!({"download": {"bytes": 1, "totalBytes": 4, "progress": "25%/4B", "updatedAt": "2026-11-27T01:00:00Z"}}),
            ),
        ];
        let rows = rows(&[serde_json::from_value(node).unwrap()], &replicas);
        let shown: Vec<(&str, &str)> = rows
            .iter()
            .map(|row| (row.model.as_str(), row.state.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                ("hf://o/kept@c2", "kept"),
                ("hf://o/new@c3", "downloading 25%/4B"),
                ("hf://o/old@c1", "deletion requested"),
                ("hf://o/used@c0", "1 replica"),
                ("local://broken", "unusable: no config.json"),
                ("local://guide", "unused"),
            ]
        );
        assert_eq!(
            rows[3].last_used.map(|time| time.to_string()).as_deref(),
            Some("2026-11-26T10:00:00Z")
        );
        assert_eq!(rows[3].replicas, ["default/a"]);
    }
}
