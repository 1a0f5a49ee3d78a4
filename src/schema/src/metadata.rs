//! Validation of object metadata: names, labels, annotations, owners, finalizers.
//!
//! Field names and texts are those of kube-apiserver. The API server sets the fields that it owns
//! (uid, creationTimestamp, …).

use std::collections::BTreeSet;

use serde_json::Value;

use super::{FieldError, gotext, names};
use rooflet_base::json_syntax::type_name;

/// Members of an owner reference in the order of kube-apiserver's type.
const OWNER_MEMBERS: [&str; 6] = [
    "apiVersion",
    "kind",
    "name",
    "uid",
    "controller",
    "blockOwnerDeletion",
];

/// Maximum size of all annotations of an object, keys and values.
const ANNOTATIONS_BYTES_MAX: u64 = 256 << 10;

/// Characters of the generated part of a name, without vowels and similar-looking characters.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;
const GENERATED_NAME_LEN_MAX: usize = 63;

/// Syntax of the names of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain: custom resources and most built-in kinds.
    Subdomain,
    /// RFC 1123 label: namespaces.
    Label,
    /// Path segment of a URL: RBAC kinds.
    PathSegment,
}

impl NameRule {
    /// Returns the errors of a name.
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => names::dns_subdomain(name),
            Self::Label => names::dns_label(name),
            Self::PathSegment => names::path_segment(name),
        }
    }

    /// Returns the errors of a `generateName`, which may end in a dash.
    fn check_prefix(self, prefix: &str) -> Vec<String> {
        match prefix.strip_suffix('-') {
            Some(stem) if !stem.is_empty() => self.check(&format!("{stem}a")),
            Some(_) | None => self.check(prefix),
        }
    }
}

/// Returns a name of `prefix` and five random characters. `random_below(n)` must return a number
/// below n.
pub fn generate_name(prefix: &str, mut random_below: impl FnMut(usize) -> usize) -> String {
    let mut end = prefix.len().min(GENERATED_NAME_LEN_MAX - SUFFIX_LEN);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let suffix = (0..SUFFIX_LEN).map(|_| {
        let index = random_below(SUFFIX_ALPHABET.len()) % SUFFIX_ALPHABET.len();
        char::from(SUFFIX_ALPHABET[index])
    });
    prefix[..end].chars().chain(suffix).collect()
}

fn text<'a>(metadata: &'a Value, key: &str) -> &'a str {
    metadata.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn texts<'a>(metadata: &'a Value, key: &str) -> Vec<&'a str> {
    metadata
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn entries<'a>(metadata: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    let map = metadata.get(key).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .map(|(name, value)| (name, value.as_str().unwrap_or_default()))
}

/// Validates `metadata` of a new object. Call it after name generation.
pub fn validate_create(metadata: &Value, rule: NameRule, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        for detail in rule.check_prefix(prefix) {
            errors.push(FieldError::invalid_text("metadata.generateName", prefix, &detail));
        }
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        for detail in rule.check(name) {
            errors.push(FieldError::invalid_text("metadata.name", name, &detail));
        }
    }
    let namespace = text(metadata, "namespace");
    if !namespaced && !namespace.is_empty() {
        errors.push(FieldError::forbidden(
            "metadata.namespace",
            "not allowed on this type",
        ));
    } else if namespaced && namespace.is_empty() {
        errors.push(FieldError::required("metadata.namespace", ""));
    } else if namespaced {
        for detail in names::dns_label(namespace) {
            errors.push(FieldError::invalid_text("metadata.namespace", namespace, &detail));
        }
    }
    validate_maps_and_owners(metadata, &mut errors);
    errors.extend(validate_finalizers(metadata));
    errors
}

/// Validates the metadata of an embedded object, whose name may be missing.
pub(super) fn validate_embedded(metadata: &Value) -> Vec<FieldError> {
    let mut named = metadata.clone();
    if let Value::Object(fields) = &mut named
        && text(metadata, "name").is_empty()
    {
        fields.insert("name".to_owned(), Value::from("unnamed"));
    }
    validate_create(
        &named,
        NameRule::PathSegment,
        !text(metadata, "namespace").is_empty(),
    )
}

/// Immutable fields, in the order of errors.
const IMMUTABLE: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Validates `metadata` of an update. Kinds with `unconditional` updates accept a missing
/// resourceVersion. Errors are repeated as often as kube-apiserver runs the same checks.
pub fn validate_update(metadata: &Value, old: &Value, unconditional: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_maps_and_owners(metadata, &mut errors);
    for _ in 0..2 {
        errors.extend(validate_changes(metadata, old, unconditional));
    }
    errors
}

fn validate_changes(metadata: &Value, old: &Value, unconditional: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old
        .get("deletionTimestamp")
        .is_some_and(|timestamp| !timestamp.is_null())
    {
        let known = texts(old, "finalizers");
        let added: BTreeSet<&str> = texts(metadata, "finalizers")
            .into_iter()
            .filter(|name| !known.contains(name))
            .collect();
        if !added.is_empty() {
            let quoted: Vec<String> = added.into_iter().map(gotext::quote).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                quoted.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &detail));
        }
    }
    if !unconditional && text(metadata, "resourceVersion").is_empty() {
        let detail = "must be specified for an update";
        errors.push(FieldError::invalid_text("metadata.resourceVersion", "", detail));
    }
    let generation = |metadata: &Value| {
        metadata
            .get("generation")
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    if generation(metadata) < generation(old) {
        let shown = Value::from(generation(metadata));
        errors.push(FieldError::invalid(
            "metadata.generation",
            &shown,
            "must not be decremented",
        ));
    }
    for key in IMMUTABLE {
        let present = |metadata: &Value| metadata.get(key).filter(|value| !value.is_null()).cloned();
        let (new, old) = (present(metadata), present(old));
        if new != old {
            let missing = || {
                if key.contains("Timestamp") || key.contains("Seconds") {
                    Value::Null
                } else {
                    Value::from("")
                }
            };
            let shown = new.unwrap_or_else(missing);
            errors.push(FieldError::invalid(
                format!("metadata.{key}"),
                &shown,
                "field is immutable",
            ));
        }
    }
    validate_maps_and_owners(metadata, &mut errors);
    errors
}

fn validate_maps_and_owners(metadata: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in entries(metadata, "labels") {
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid_text("metadata.labels", key, &detail));
        }
        for detail in names::label_value(value) {
            errors.push(FieldError::invalid_text("metadata.labels", value, &detail));
        }
    }
    let mut annotation_bytes = 0;
    for (key, value) in entries(metadata, "annotations") {
        annotation_bytes += (key.len() + value.len()) as u64;
        for detail in names::qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid_text("metadata.annotations", key, &detail));
        }
    }
    if annotation_bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(FieldError::too_long(
            "metadata.annotations",
            ANNOTATIONS_BYTES_MAX,
        ));
    }
    validate_owners(metadata, errors);
}

fn validate_owners(metadata: &Value, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "metadata.ownerReferences";
    let Some(all) = metadata.get("ownerReferences") else {
        return;
    };
    let mut controller: Option<String> = None;
    for owner in all.as_array().into_iter().flatten() {
        let version = text(owner, "apiVersion");
        if version.is_empty() || version.ends_with('/') {
            errors.push(FieldError::invalid_text(
                format!("{FIELD}.apiVersion"),
                version,
                "version must not be empty",
            ));
        }
        for key in ["kind", "name", "uid"] {
            let value = text(owner, key);
            if value.is_empty() {
                errors.push(FieldError::invalid_text(
                    format!("{FIELD}.{key}"),
                    value,
                    "must not be empty",
                ));
            }
        }
        if version == "v1" && text(owner, "kind") == "Event" {
            errors.push(FieldError::invalid(
                FIELD,
                owner,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let name = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                None => controller = Some(name),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    let shown = gotext::json_in_order(all, &OWNER_MEMBERS);
                    errors.push(FieldError::invalid_shown(FIELD, &shown, &detail));
                }
            }
        }
    }
}

fn validate_finalizers(metadata: &Value) -> Vec<FieldError> {
    const FIELD: &str = "metadata.finalizers";
    let finalizers = texts(metadata, "finalizers");
    let mut errors = Vec::new();
    for finalizer in &finalizers {
        for detail in names::qualified_name(finalizer) {
            errors.push(FieldError::invalid_text(FIELD, finalizer, &detail));
        }
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let shown = Value::from(finalizers);
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(FIELD, &shown, detail));
    }
    errors
}

/// Returns warnings about finalizers that a create (without `old`) or an update adds.
pub fn finalizer_warnings(metadata: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(|old| texts(old, "finalizers")).unwrap_or_default();
    let added: BTreeSet<&str> = texts(metadata, "finalizers")
        .into_iter()
        .filter(|name| !known.contains(name))
        .collect();
    let mut warnings = Vec::new();
    for finalizer in added {
        let quoted = gotext::quote(finalizer);
        for detail in names::qualified_name(finalizer) {
            warnings.push(format!("metadata.finalizers: {quoted}: {detail}"));
        }
        if finalizer.contains('/') || ["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer) {
            continue;
        }
        let path = if finalizer.contains('.') {
            " including a path (/)"
        } else {
            ""
        };
        warnings.push(format!(
            "metadata.finalizers: {quoted}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    warnings
}

/// Types of the metadata fields.
const TYPES: [(&str, Shape); 15] = [
    ("annotations", Shape::TextMap),
    ("creationTimestamp", Shape::Time),
    ("deletionGracePeriodSeconds", Shape::Integer),
    ("deletionTimestamp", Shape::Time),
    ("finalizers", Shape::TextList),
    ("generateName", Shape::Text),
    ("generation", Shape::Integer),
    ("labels", Shape::TextMap),
    ("managedFields", Shape::ObjectList("v1.ManagedFieldsEntry")),
    ("name", Shape::Text),
    ("namespace", Shape::Text),
    ("ownerReferences", Shape::ObjectList("v1.OwnerReference")),
    ("resourceVersion", Shape::Text),
    ("selfLink", Shape::Text),
    ("uid", Shape::Text),
];

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Integer,
    Time,
    TextMap,
    TextList,
    ObjectList(&'static str),
}

/// Decoding error of metadata, in the wording of Go's decoder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeMetadataError {
    #[error("json: cannot unmarshal {found} into Go struct field ObjectMeta.{field} of type {expected}")]
    Type {
        found: &'static str,
        field: String,
        expected: String,
    },
    #[error(
        "parsing time {0} as \"2006-01-02T15:04:05Z07:00\": cannot parse {0} as \"2006\"",
        gotext::quote(text)
    )]
    Time { text: String },
}

/// Checks the JSON types of metadata fields.
pub(crate) fn check_types(metadata: &Value) -> Result<(), DecodeMetadataError> {
    let Some(fields) = metadata.as_object() else {
        if metadata.is_null() {
            return Ok(());
        }
        return Err(DecodeMetadataError::Type {
            found: type_name(metadata),
            field: "metadata".to_owned(),
            expected: "v1.ObjectMeta".to_owned(),
        });
    };
    for (name, shape) in TYPES {
        if let Some(value) = fields.get(name).filter(|value| !value.is_null()) {
            check_shape(name, value, shape)?;
        }
    }
    Ok(())
}

fn check_shape(name: &str, value: &Value, shape: Shape) -> Result<(), DecodeMetadataError> {
    let wrong = |value: &Value, expected: &str| {
        Err(DecodeMetadataError::Type {
            found: type_name(value),
            field: format!("metadata.{name}"),
            expected: expected.to_owned(),
        })
    };
    match (shape, value) {
        (Shape::Text, Value::String(_)) => Ok(()),
        (Shape::Text, other) => wrong(other, "string"),
        (Shape::Integer, Value::Number(number)) if number.is_i64() => Ok(()),
        (Shape::Integer, other) => wrong(other, "int64"),
        (Shape::Time, Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(_) => Ok(()),
            Err(_) => Err(DecodeMetadataError::Time { text: text.clone() }),
        },
        (Shape::Time, other) => wrong(other, "string"),
        (Shape::TextMap, Value::Object(map)) => map
            .values()
            .find(|value| !value.is_string())
            .map_or(Ok(()), |value| wrong(value, "string")),
        (Shape::TextMap, other) => wrong(other, "map[string]string"),
        (Shape::TextList, Value::Array(items)) => items
            .iter()
            .find(|item| !item.is_string())
            .map_or(Ok(()), |item| wrong(item, "string")),
        (Shape::TextList, other) => wrong(other, "[]string"),
        (Shape::ObjectList(element), Value::Array(items)) => items
            .iter()
            .find(|item| !item.is_object())
            .map_or(Ok(()), |item| wrong(item, element)),
        (Shape::ObjectList(element), other) => wrong(other, &format!("[]{element}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn create(metadata: Value) -> Vec<String> {
        validate_create(&metadata, NameRule::Subdomain, true)
            .iter()
            .map(FieldError::summary)
            .collect()
    }

    #[test]
    fn create_requires_valid_metadata() {
        assert_eq!(create(json!({"name": "a.b", "namespace": "n"})), [""; 0]);
        assert_eq!(
            create(json!({"generateName": "a-", "name": "a-x", "namespace": "n"})),
            [""; 0]
        );
        assert_eq!(
            create(json!({"namespace": "n"})),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(
            create(json!({"name": "A", "namespace": "n"})),
            [
                r#"metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#
            ]
        );
        assert_eq!(
            create(json!({"name": "a", "namespace": "n", "ownerReferences": [
                {"apiVersion": "g/v1", "kind": "K", "name": "x", "uid": "1", "controller": true},
                {"apiVersion": "g/v1", "kind": "K", "name": "y", "controller": true}]})),
            [
                r#"metadata.ownerReferences.uid: Invalid value: "": must not be empty"#,
                r#"metadata.ownerReferences: Invalid value: [{"apiVersion":"g/v1","kind":"K","name":"x","uid":"1","controller":true},{"apiVersion":"g/v1","kind":"K","name":"y","controller":true}]: Only one reference can have Controller set to true. Found "true" in references for K/x and K/y"#
            ]
        );
        let big = "x".repeat(256 << 10);
        assert_eq!(
            create(json!({"name": "a", "namespace": "n", "annotations": {"k": big}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        let cluster = validate_create(
            &json!({"name": "a", "namespace": "n"}),
            NameRule::Subdomain,
            false,
        );
        assert_eq!(
            cluster[0].summary(),
            "metadata.namespace: Forbidden: not allowed on this type"
        );
    }

    #[test]
    fn update_rejects_changed_identity_and_new_finalizers_during_deletion() {
        let old =
            json!({"name": "a", "namespace": "n", "uid": "1", "resourceVersion": "5", "finalizers": ["x/y"]});
        let update = |change: Value, old: &Value| -> Vec<String> {
            let mut new = old.clone();
            overlay(&mut new, change);
            validate_update(&new, old, false)
                .iter()
                .map(FieldError::summary)
                .collect()
        };
        assert_eq!(update(json!({}), &old), [""; 0]);
        assert_eq!(
            update(json!({"uid": "2"}), &old),
            [r#"metadata.uid: Invalid value: "2": field is immutable"#; 2]
        );
        assert_eq!(
            update(json!({"resourceVersion": ""}), &old),
            [r#"metadata.resourceVersion: Invalid value: "": must be specified for an update"#; 2]
        );
        let mut dying = old;
        dying["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(
            update(json!({"finalizers": ["x/y", "new/z"]}), &dying),
            [r#"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"new/z"}"#;
                2]
        );
    }

    fn overlay(target: &mut Value, change: Value) {
        if let (Some(target), Value::Object(change)) = (target.as_object_mut(), change) {
            target.extend(change);
        }
    }

    #[test]
    fn warns_about_unqualified_finalizers() {
        let warn = |names: Value| finalizer_warnings(&json!({"finalizers": names}), None);
        assert_eq!(
            warn(json!(["mine", "orphan", "a.b/c"])),
            [
                r#"metadata.finalizers: "mine": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"#
            ]
        );
        assert_eq!(
            finalizer_warnings(&json!({"finalizers": ["m"]}), Some(&json!({"finalizers": ["m"]}))),
            [""; 0]
        );
    }

    #[test]
    fn generated_names_respect_the_length_limit() {
        let name = generate_name("job-", |bound| bound - 1);
        assert_eq!(name, "job-99999");
        assert_eq!(generate_name(&"a".repeat(80), |_| 0).len(), 63);
        assert_eq!(generate_name(&"é".repeat(40), |_| 0).len(), 63);
    }

    #[test]
    fn decoding_errors_match_go_wording() {
        assert_eq!(
            check_types(&json!({"name": "a", "labels": {"a": "b"}, "creationTimestamp": null})),
            Ok(())
        );
        assert_eq!(
            check_types(&json!({"labels": {"a": 1}})).unwrap_err().to_string(),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
        );
        assert!(check_types(&json!({"creationTimestamp": "noon"})).is_err());
    }
}
