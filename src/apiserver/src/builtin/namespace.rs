//! Namespace: phase, `spec.finalizers`, and the name label.

use serde_json::{Value, json};

use crate::object;

/// Label with the name of the namespace, for selectors.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
const ACTIVE: &str = "Active";
const TERMINATING: &str = "Terminating";

/// Namespaces that the server creates at its first start.
pub(crate) fn initial_namespaces() -> [&'static str; 4] {
    ["default", "kube-node-lease", "kube-public", "kube-system"]
}

pub(super) fn spec_finalizers(namespace: &Value) -> impl Iterator<Item = &str> {
    namespace["spec"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

pub(crate) fn is_terminating(namespace: &Value) -> bool {
    object::is_being_deleted(namespace)
}

pub(super) fn default(namespace: &mut Value) {
    let name = object::name(namespace).to_owned();
    if !name.is_empty() {
        let metadata = object::metadata_mut(namespace);
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(NAMESPACE_NAME_LABEL.to_owned(), Value::from(name));
        }
    }
    for (field, empty) in [("spec", json!({})), ("status", json!({}))] {
        if let Some(map) = namespace.as_object_mut() {
            map.entry(field).or_insert(empty);
        }
    }
}

pub(super) fn prepare_create(namespace: &mut Value) {
    // A generated name is set only after the first call of `default`.
    default(namespace);
    namespace["status"] = json!({"phase": ACTIVE});
    let mut finalizers: Vec<String> = spec_finalizers(namespace).map(str::to_owned).collect();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push("kubernetes".to_owned());
    }
    namespace["spec"]["finalizers"] = json!(finalizers);
}

pub(super) fn prepare_update(namespace: &mut Value, old: &Value, subresource: &str) {
    let keep = |namespace: &mut Value, field: &str| {
        if let Some(map) = namespace.as_object_mut() {
            object::set_or_remove(map, field, old.get(field).cloned());
        }
    };
    match subresource {
        "status" => keep(namespace, "spec"),
        "finalize" => keep(namespace, "status"),
        _ => {
            keep(namespace, "spec");
            keep(namespace, "status");
        }
    }
}

/// Sets the phase to Terminating. The namespace controller deletes the content, then removes the
/// finalizer.
pub(crate) fn mark_terminating(namespace: &mut Value) {
    namespace["status"]["phase"] = Value::from(TERMINATING);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_namespace_has_phase_finalizer_and_label() {
        let mut namespace = json!({"metadata": {"name": "a"}, "status": {"phase": "Odd"}});
        default(&mut namespace);
        prepare_create(&mut namespace);
        assert_eq!(
            namespace,
            json!({"metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "a"}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
        );
    }

    #[test]
    fn only_the_finalize_subresource_changes_the_spec() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let emptied = json!({"metadata": {"name": "a"}, "spec": {}, "status": {}});
        let mut main = emptied.clone();
        prepare_update(&mut main, &old, "");
        assert_eq!(main, old);
        let mut finalize = emptied.clone();
        prepare_update(&mut finalize, &old, "finalize");
        assert_eq!(
            finalize,
            json!({"metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Active"}})
        );
    }
}
