//! Pruning: drops unknown fields and reports them for strict field validation.

use serde_json::{Map, Value};

use super::{
    node::{Additional, Node},
    path::Path,
};

const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Fields of `metav1.ObjectMeta`.
const OBJECT_META_FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

const OWNER_REFERENCE_FIELDS: [&str; 6] = [
    "apiVersion",
    "blockOwnerDeletion",
    "controller",
    "kind",
    "name",
    "uid",
];

const MANAGED_FIELDS_ENTRY_FIELDS: [&str; 7] = [
    "apiVersion",
    "fieldsType",
    "fieldsV1",
    "manager",
    "operation",
    "subresource",
    "time",
];

/// Prunes a resource. Type and object metadata are always known. Returns the dropped paths in the
/// order of strict decoding.
pub(super) fn prune_resource(value: &mut Value, node: &Node) -> Vec<String> {
    let mut unknown = Vec::new();
    let root = Path::Root;
    if let Value::Object(fields) = value {
        if let Some(metadata) = fields.get_mut("metadata") {
            prune_metadata(metadata, &root.child("metadata"), &mut unknown);
        }
        prune_fields(fields, node, true, &root, &mut unknown);
    }
    unknown.sort();
    unknown
}

/// Prunes a value that is not a resource, such as a default.
pub(super) fn prune_value(value: &mut Value, node: &Node) {
    prune(value, Some(node), &Path::Root, &mut Vec::new());
}

/// Drops unknown fields in the metadata of embedded resources, and nothing else. The schema need not be
/// valid.
pub(super) fn prune_embedded_metadata(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            if schema["x-kubernetes-embedded-resource"] == true
                && let Some(metadata) = fields.get_mut("metadata")
            {
                prune_metadata(metadata, &Path::Root, &mut Vec::new());
            }
            for (name, field) in fields {
                let property = schema["properties"].get(name);
                prune_embedded_metadata(field, property.unwrap_or(&schema["additionalProperties"]));
            }
        }
        Value::Array(items) => {
            for item in items {
                prune_embedded_metadata(item, &schema["items"]);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Drops unknown fields. As in Go, null stands for the empty value.
fn prune_metadata(metadata: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) {
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    let Value::Object(fields) = metadata else { return };
    retain_known(fields, &OBJECT_META_FIELDS, path, unknown);
    fields.retain(|_, value| !value.is_null());
    for (list, known) in [
        ("ownerReferences", &OWNER_REFERENCE_FIELDS[..]),
        ("managedFields", &MANAGED_FIELDS_ENTRY_FIELDS),
    ] {
        let Some(Value::Array(items)) = fields.get_mut(list) else {
            continue;
        };
        let path = path.child(list);
        for (index, item) in items.iter_mut().enumerate() {
            if let Value::Object(item) = item {
                retain_known(item, known, &path.index(index), unknown);
            }
        }
    }
}

fn retain_known(fields: &mut Map<String, Value>, known: &[&str], path: &Path<'_>, unknown: &mut Vec<String>) {
    fields.retain(|name, _| {
        let keep = known.contains(&name.as_str());
        if !keep {
            unknown.push(path.child(name).openapi());
        }
        keep
    });
}

fn prune(value: &mut Value, node: Option<&Node>, path: &Path<'_>, unknown: &mut Vec<String>) {
    match (value, node) {
        (Value::Object(fields), None) => {
            for (name, _) in std::mem::take(fields) {
                unknown.push(path.child(&name).openapi());
            }
        }
        (Value::Object(fields), Some(node)) => {
            if node.embedded
                && let Some(metadata) = fields.get_mut("metadata")
            {
                prune_metadata(metadata, &path.child("metadata"), unknown);
            }
            prune_fields(fields, node, node.embedded, path, unknown);
        }
        (Value::Array(items), node) => {
            let child = node.and_then(|node| node.items.as_deref());
            if child.is_none() && node.is_some_and(|node| node.preserve_unknown) {
                return;
            }
            for (index, item) in items.iter_mut().enumerate() {
                prune(item, child, &path.index(index), unknown);
            }
        }
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => {}
    }
}

fn prune_fields(
    fields: &mut Map<String, Value>,
    node: &Node,
    is_resource: bool,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) {
    fields.retain(|name, field| {
        if is_resource && META_FIELDS.contains(&name.as_str()) {
            return true;
        }
        match (node.property(name), &node.additional) {
            (Some(property), _) => prune(field, Some(property), &path.child(name), unknown),
            (None, Additional::Schema(child)) => prune(field, Some(child), &path.child(name), unknown),
            (None, _) if node.preserve_unknown => {}
            (None, Additional::Any | Additional::Forbidden) => {
                prune(field, None, &path.child(name), unknown);
            }
            (None, Additional::Unset) => {
                unknown.push(path.child(name).openapi());
                return false;
            }
        }
        true
    });
}
