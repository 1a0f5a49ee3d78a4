//! Migration from kubectl's client-side apply: the annotation with the last applied configuration.

use serde_json::{Map, Value};

use super::apply::Configuration;
use super::conflict::Conflicts;
use super::field_set::FieldSet;
use super::schema::TypeSchema;
use rooflet_schema::gotext;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Limit of all annotations of an object. A configuration beyond it is not stored.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;
/// Only this manager migrates. Other managers opt out by their name.
const KUBECTL: &str = "kubectl";

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION]
        .as_str()
        .filter(|text| !text.is_empty())
}

/// Removes the conflicts about fields that the client-side apply set and nobody changed since.
pub(super) fn without_own(configuration: Configuration<'_>, conflicts: Conflicts) -> Option<Conflicts> {
    let Configuration {
        schema,
        live,
        manager,
        ..
    } = configuration;
    let own = (manager.name == KUBECTL)
        .then(|| unchanged_fields(schema, live, &manager.api_version))
        .flatten();
    let Some(own) = own else { return Some(conflicts) };
    let remaining: Vec<_> = conflicts
        .0
        .into_iter()
        .filter(|conflict| !own.contains(&conflict.path))
        .collect();
    (!remaining.is_empty()).then_some(Conflicts(remaining))
}

/// Returns the fields of the last applied configuration that have the same value in the object.
fn unchanged_fields(schema: &TypeSchema, live: &Value, api_version: &str) -> Option<FieldSet> {
    let applied: Value = serde_json::from_str(annotation(live)?).ok()?;
    if applied["apiVersion"] != api_version || schema.validate(&applied).is_err() {
        return None;
    }
    let fields = schema.members(&applied).ok()?;
    let changes = schema.compare(&applied, live).ok()?;
    Some(fields.difference(&changes.written().union(&changes.removed)))
}

/// Updates the annotation of an object that has one, so that client-side apply continues to work.
pub(super) fn updated(configuration: Configuration<'_>, mut object: Value) -> Value {
    if configuration.manager.name != KUBECTL || annotation(&object).is_none() {
        return object;
    }
    let mut applied = configuration.applied.clone();
    if let Some(annotations) = annotations_mut(&mut applied) {
        annotations.remove(ANNOTATION);
    }
    // The configuration ends with a newline, as kubectl writes it.
    let text = format!("{}\n", gotext::json(&applied));
    if let Some(annotations) = annotations_mut(&mut object) {
        annotations.insert(ANNOTATION.to_owned(), Value::from(text));
        let bytes: usize = annotations
            .iter()
            .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
            .sum();
        if bytes > ANNOTATIONS_MAX_BYTES {
            annotations.remove(ANNOTATION);
        }
    }
    object
}

fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .get_mut("metadata")?
        .get_mut("annotations")?
        .as_object_mut()
}
