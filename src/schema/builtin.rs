//! Schemas of the built-in kinds, derived from the types of `k8s-openapi` with their doc comments.
//!
//! One engine treats all kinds: what a CRD says in its schema, these types say here. Built-ins differ in
//! that a wrong type is a decoding error of the whole body (400), not a list of causes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use k8s_openapi::{
    Resource,
    api::{
        authentication::v1::{SelfSubjectReview, TokenReview},
        authorization::v1::{
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        },
        autoscaling::v1::Scale,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event as CoreEvent, Namespace, Secret, ServiceAccount},
        events::v1::Event,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, ObjectMeta, Patch, Status},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{StructuralSchema, node::members};

/// Where definitions stand in an OpenAPI v3 document.
pub(crate) const REFERENCE_PREFIX: &str = "#/components/schemas/";

/// A built-in kind: its type's definition, and the compiled form of it.
#[derive(Debug)]
pub(crate) struct BuiltInKind {
    /// `io.k8s.api.core.v1.ConfigMap`.
    pub(crate) definition: String,
    schema: StructuralSchema,
    expanded: Value,
}

struct Catalogue {
    definitions: BTreeMap<String, Value>,
    /// By [`key`].
    kinds: BTreeMap<String, BuiltInKind>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::build);

/// The definition with this name, e.g. `io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta`.
pub(crate) fn definition(name: &str) -> Option<&'static Value> {
    CATALOGUE.definitions.get(name)
}

fn key(group: &str, version: &str, kind: &str) -> String {
    format!("{group}/{version}/{kind}")
}

/// A built-in kind by group, version and kind.
pub(crate) fn kind(group: &str, version: &str, kind: &str) -> Option<&'static BuiltInKind> {
    CATALOGUE.kinds.get(&key(group, version, kind))
}

impl BuiltInKind {
    /// Drops unknown fields, and answers their paths, sorted.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = self.schema.prune(object);
        if self.definition.ends_with(".CustomResourceDefinition") {
            prune_crd_schemas(object, &mut unknown);
            unknown.sort();
        }
        unknown
    }

    /// The text of a real server's decoder when a field has the wrong JSON type, e.g. `json: cannot
    /// unmarshal number into Go struct field ConfigMap.data of type string`.
    pub(crate) fn decode_error(&self, object: &Value) -> Option<String> {
        let name = self.definition.rsplit('.').next().unwrap_or_default();
        decode_error(&self.expanded, object, name, "")
    }
}

impl Catalogue {
    fn build() -> Self {
        let mut generator = SchemaSettings::openapi3()
            .with(|settings| settings.transforms.clear())
            .into_generator();
        let mut names: Vec<((&str, &str, &str), String)> = Vec::new();
        macro_rules! kinds {
            ($($kind:ty),+ $(,)?) => { $( names.push(name_of::<$kind>(&mut generator)); )+ };
        }
        kinds!(
            ConfigMap,
            CoreEvent,
            Namespace,
            Secret,
            ServiceAccount,
            Event,
            Lease,
            CustomResourceDefinition,
            SelfSubjectAccessReview,
            SelfSubjectRulesReview,
            SubjectAccessReview,
            LocalSubjectAccessReview,
            SelfSubjectReview,
            TokenReview,
            Role,
            RoleBinding,
            ClusterRole,
            ClusterRoleBinding,
            CertificateSigningRequest,
            Scale,
        );
        generator.subschema_for::<ObjectMeta>();
        generator.subschema_for::<ListMeta>();
        generator.subschema_for::<DeleteOptions>();
        generator.subschema_for::<Patch>();
        generator.subschema_for::<Status>();
        let mut definitions: BTreeMap<String, Value> =
            generator.take_definitions(false).into_iter().collect();
        for definition in definitions.values_mut() {
            wrap_references(definition);
        }
        mark_lists(&mut definitions);
        let mut kinds = BTreeMap::new();
        for (gvk, name) in names {
            let (group, version, kind) = gvk;
            if let Some(Value::Object(definition)) = definitions.get_mut(&name) {
                let marker = json!([{"group": group, "version": version, "kind": kind}]);
                definition.insert("x-kubernetes-group-version-kind".to_owned(), marker);
            }
            let mut expanded = expand(&definitions, &name, &mut Vec::new());
            drop_required(&mut expanded);
            let schema = StructuralSchema::trusted(&expanded);
            kinds.insert(
                key(group, version, kind),
                BuiltInKind {
                    definition: name,
                    schema,
                    expanded,
                },
            );
        }
        Self { definitions, kinds }
    }
}

fn name_of<K: Resource + JsonSchema>(
    generator: &mut SchemaGenerator,
) -> ((&'static str, &'static str, &'static str), String) {
    generator.subschema_for::<K>();
    ((K::GROUP, K::VERSION, K::KIND), K::schema_name().into_owned())
}

/// OpenAPI 3.0 ignores what stands beside a `$ref`: wrap it, as a real server does.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.len() > 1
                && let Some(reference) = fields.remove("$ref")
            {
                fields.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
            fields.values_mut().for_each(wrap_references);
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Merge strategies of `ObjectMeta`'s lists, which the generated types do not carry.
fn mark_lists(definitions: &mut BTreeMap<String, Value>) {
    let Some(meta) = definitions.get_mut("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") else {
        return;
    };
    let marks = [
        (
            "ownerReferences",
            json!({"x-kubernetes-list-map-keys": ["uid"], "x-kubernetes-list-type": "map",
                "x-kubernetes-patch-merge-key": "uid", "x-kubernetes-patch-strategy": "merge"}),
        ),
        (
            "finalizers",
            json!({"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}),
        ),
        ("managedFields", json!({"x-kubernetes-list-type": "atomic"})),
    ];
    for (list, mark) in marks {
        if let (Some(Value::Object(property)), Value::Object(mark)) =
            (meta.pointer_mut(&format!("/properties/{list}")), mark)
        {
            property.extend(mark);
        }
    }
}

/// The name a `$ref`, bare or wrapped, leads to.
pub(super) fn reference(schema: &Map<String, Value>) -> Option<&str> {
    let wrapped = || schema.get("allOf")?.as_array()?.first()?.get("$ref");
    schema
        .get("$ref")
        .or_else(wrapped)?
        .as_str()?
        .strip_prefix(REFERENCE_PREFIX)
}

/// A definition with its references resolved. Free-form types and recursion are left open.
fn expand(definitions: &BTreeMap<String, Value>, name: &str, within: &mut Vec<String>) -> Value {
    let open = json!({"x-kubernetes-preserve-unknown-fields": true});
    let Some(definition) = definitions
        .get(name)
        .filter(|_| !within.iter().any(|outer| outer == name))
    else {
        return open;
    };
    let is_open = definition.get("type") == Some(&Value::from("object"))
        && definition.get("properties").is_none()
        && definition.get("additionalProperties").is_none();
    if is_open || definition.get("oneOf").is_some() || name.ends_with(".JSONSchemaProps") {
        return open;
    }
    within.push(name.to_owned());
    let mut expanded = expand_node(definitions, definition, within);
    within.pop();
    if let Value::Object(expanded) = &mut expanded {
        // The struct a decoder would name in its errors.
        expanded.insert(
            "title".to_owned(),
            Value::from(name.rsplit('.').next().unwrap_or_default()),
        );
    }
    expanded
}

fn expand_node(definitions: &BTreeMap<String, Value>, node: &Value, within: &mut Vec<String>) -> Value {
    let Value::Object(fields) = node else {
        return node.clone();
    };
    if let Some(name) = reference(fields) {
        return expand(definitions, name, within);
    }
    let mut expanded = Map::new();
    for key in [
        "type",
        "format",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
    ] {
        if let Some(value) = fields.get(key) {
            expanded.insert(key.to_owned(), value.clone());
        }
    }
    let properties: Map<String, Value> = members(fields, "properties")
        .map(|(name, property)| (name.clone(), expand_node(definitions, property, within)))
        .collect();
    if !properties.is_empty() {
        expanded.insert("properties".to_owned(), Value::Object(properties));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = fields.get(key) {
            expanded.insert(key.to_owned(), expand_node(definitions, child, within));
        }
    }
    Value::Object(expanded)
}

/// Built-in kinds say themselves what they require, in words of their own.
fn drop_required(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("required");
            fields.values_mut().for_each(drop_required);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_required),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn decode_error(schema: &Value, value: &Value, within: &str, path: &str) -> Option<String> {
    let wrong = || {
        let actual = match value {
            Value::Bool(_) => "bool",
            Value::Number(number) if !number.is_f64() => "number",
            Value::Number(number) => {
                return Some(mismatch(&format!("number {number}"), within, path, schema));
            }
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Null => return None,
        };
        Some(mismatch(actual, within, path, schema))
    };
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    match (kind, value) {
        (_, Value::Null) | ("", _) => None,
        ("object", Value::Object(fields)) => {
            let within = schema.get("title").and_then(Value::as_str).unwrap_or(within);
            let properties = schema.get("properties").and_then(Value::as_object);
            fields.iter().find_map(|(name, field)| {
                match (
                    properties.and_then(|all| all.get(name)),
                    schema.get("additionalProperties"),
                ) {
                    (Some(property), _) => {
                        decode_error(property, field, within, &super::path::join(path, name))
                    }
                    (None, Some(values)) => decode_error(values, field, within, path),
                    (None, None) => None,
                }
            })
        }
        ("array", Value::Array(items)) => {
            let child = schema.get("items")?;
            items
                .iter()
                .find_map(|item| decode_error(child, item, within, path))
        }
        ("string", Value::String(text)) => time_error(schema, text),
        ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => None,
        ("integer", Value::Number(number)) => {
            let narrow = schema.get("format") == Some(&Value::from("int32"));
            let fits = number
                .as_i64()
                .is_some_and(|n| !narrow || i32::try_from(n).is_ok());
            if fits {
                None
            } else {
                Some(mismatch(&format!("number {number}"), within, path, schema))
            }
        }
        _ => wrong(),
    }
}

fn mismatch(actual: &str, within: &str, path: &str, schema: &Value) -> String {
    format!(
        "json: cannot unmarshal {actual} into Go struct field {within}.{path} of type {}",
        go_type(schema)
    )
}

fn go_type(schema: &Value) -> String {
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("format")) {
        ("string", "byte") => "[]uint8".to_owned(),
        ("integer", "int32") => "int32".to_owned(),
        ("integer", _) => "int64".to_owned(),
        ("boolean", _) => "bool".to_owned(),
        ("number", _) => "float64".to_owned(),
        ("array", _) => format!("[]{}", schema.get("items").map(go_type).unwrap_or_default()),
        ("object", _) => match (text("title"), schema.get("additionalProperties")) {
            ("", Some(values)) => format!("map[string]{}", go_type(values)),
            ("", None) => "map[string]interface {}".to_owned(),
            (title, _) => format!("v1.{title}"),
        },
        (other, _) => other.to_owned(),
    }
}

/// Exactly six decimals, as Lease and Event times are written: `2006-01-02T15:04:05.000000Z`.
fn is_micro_time(text: &str) -> bool {
    let decimals = text
        .split_once('.')
        .map(|(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    decimals == Some(6) && text.parse::<jiff::Timestamp>().is_ok()
}

fn time_error(schema: &Value, text: &str) -> Option<String> {
    let title = schema.get("title").and_then(Value::as_str).unwrap_or_default();
    let (layout, fits) = match title {
        "Time" => (
            "2006-01-02T15:04:05Z07:00",
            text.parse::<jiff::Timestamp>().is_ok(),
        ),
        "MicroTime" => ("2006-01-02T15:04:05.000000Z07:00", is_micro_time(text)),
        _ => return None,
    };
    if fits {
        return None;
    }
    // Go names the first part that does not fit: the fraction when the rest is a time, else the year.
    let part = match text.parse::<jiff::Timestamp>() {
        Ok(_) => (
            text.get(19..).unwrap_or_default().to_owned(),
            ".000000".to_owned(),
        ),
        Err(_) => (text.to_owned(), "2006".to_owned()),
    };
    let quote = super::gotext::quote;
    Some(format!(
        "parsing time {} as {}: cannot parse {} as {}",
        quote(text),
        quote(layout),
        quote(&part.0),
        quote(&part.1)
    ))
}

/// Keywords of a CRD's schema; anything else in one is an unknown field.
static SCHEMA_KEYWORDS: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let properties = definition(name)
        .and_then(|schema| schema.get("properties"))
        .and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect()
});

fn prune_crd_schemas(crd: &mut Value, unknown: &mut Vec<String>) {
    let versions = crd.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for (index, version) in versions.into_iter().flatten().enumerate() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            prune_schema(
                schema,
                &format!("spec.versions[{index}].schema.openAPIV3Schema"),
                unknown,
            );
        }
    }
}

fn prune_schema(schema: &mut Value, path: &str, unknown: &mut Vec<String>) {
    let Value::Object(fields) = schema else { return };
    fields.retain(|key, value| {
        let path = format!("{path}.{key}");
        match (key.as_str(), value) {
            (key, _) if !SCHEMA_KEYWORDS.contains(key) => {
                unknown.push(path);
                return false;
            }
            ("properties" | "patternProperties" | "definitions", Value::Object(children)) => {
                for (name, child) in children {
                    prune_schema(child, &format!("{path}.{name}"), unknown);
                }
            }
            ("items" | "additionalProperties" | "additionalItems" | "not", child) => {
                prune_schema(child, &path, unknown);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                for (index, branch) in branches.iter_mut().enumerate() {
                    prune_schema(branch, &format!("{path}[{index}]"), unknown);
                }
            }
            _ => {}
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_documented_schemas() {
        let config_map = kind("", "v1", "ConfigMap").unwrap();
        assert_eq!(config_map.definition, "io.k8s.api.core.v1.ConfigMap");
        let schema = definition(&config_map.definition).unwrap();
        assert_eq!(
            schema["description"],
            json!("ConfigMap holds configuration data for pods to consume.")
        );
        assert_eq!(
            schema["properties"]["metadata"]["allOf"][0]["$ref"],
            json!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        );
        assert_eq!(
            schema["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "ConfigMap"}])
        );
        assert!(kind("apps", "v1", "Deployment").is_none());
    }

    #[test]
    fn unknown_fields_are_named() {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "zip": 1},
            "data": {"any": "x"}, "bogus": 1});
        assert_eq!(
            kind("", "v1", "ConfigMap").unwrap().prune(&mut object),
            ["bogus", "metadata.zip"]
        );
        let mut crd = json!({"spec": {"group": "g", "nope": 1, "versions": [{"name": "v1", "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object", "oops": 1, "default": {"free": 1}}}}}}]}});
        assert_eq!(
            kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
                .unwrap()
                .prune(&mut crd),
            [
                "spec.nope",
                "spec.versions[0].schema.openAPIV3Schema.properties.spec.oops"
            ]
        );
        assert_eq!(
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["default"],
            json!({"free": 1})
        );
    }

    #[test]
    fn wrong_types_are_decoding_errors() {
        let check = |group: &str, kind_name: &str, object: Value, expect: Option<&str>| {
            let found = kind(group, "v1", kind_name).unwrap().decode_error(&object);
            assert_eq!(found.as_deref(), expect, "{object}");
        };
        check(
            "",
            "ConfigMap",
            json!({"data": {"a": "x"}, "metadata": {"creationTimestamp": null}}),
            None,
        );
        check(
            "",
            "ConfigMap",
            json!({"data": {"a": 1}}),
            Some("json: cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        );
        check(
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"leaseDurationSeconds": "x"}}),
            Some(
                "json: cannot unmarshal string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
            ),
        );
        check(
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"renewTime": "2026-01-01T00:00:00.123456Z"}}),
            None,
        );
        check(
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"renewTime": "2026-01-01T00:00:00.5Z"}}),
            Some(
                r#"parsing time "2026-01-01T00:00:00.5Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".5Z" as ".000000""#,
            ),
        );
        check(
            "",
            "Event",
            json!({"involvedObject": []}),
            Some(
                "json: cannot unmarshal array into Go struct field Event.involvedObject of type v1.ObjectReference",
            ),
        );
    }
}
