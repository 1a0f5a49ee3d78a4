//! OpenAPI v3 documents, one per group and version, for `kubectl apply`, `explain` and `diff`.
//!
//! The layout is that of kube-apiserver: paths with the parameters of each verb (kubectl looks up
//! `fieldValidation` on PATCH), operations with action and kind, and all referenced schemas, so
//! that each document is self-contained.

mod declaration;
pub mod message;
mod operations;
mod roots;
pub mod v2;
pub mod v3_protobuf;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub use declaration::declaration;

use crate::builtin::{self, REFERENCE_PREFIX};
use crate::verb::Verb;
use rooflet_schema::members;

pub use roots::{Root, root_document};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
const API_VERSION_DESCRIPTION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND_DESCRIPTION: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA_DESCRIPTION: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_METADATA_DESCRIPTION: &str = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// Description of a resource for its document.
#[derive(Clone, Debug)]
pub struct ResourceInfo<'a> {
    pub kind: &'a str,
    pub list_kind: &'a str,
    pub plural: &'a str,
    pub namespaced: bool,
    /// Verbs in discovery: `create delete deletecollection get list patch update watch`.
    pub verbs: &'a [Verb],
    pub has_status: bool,
    pub has_scale: bool,
    /// Paths of the fields of a custom resource that field selectors support, without leading dot.
    pub selectable_fields: &'a [String],
    pub schema: SchemaSource<'a>,
}

/// Source of a resource's schema.
#[derive(Clone, Copy, Debug)]
pub enum SchemaSource<'a> {
    /// `openAPIV3Schema` of a CRD's version.
    Custom(&'a Value),
    /// Kind of [`builtin`].
    BuiltIn,
}

/// Returns the document of `/openapi/v3/apis/GROUP/VERSION` (or `api/v1` for the core group).
pub fn document(group: &str, version: &str, resources: &[ResourceInfo<'_>]) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in resources {
        let names = Names::of(group, version, resource);
        operations::add_paths(&mut paths, group, version, resource, &names);
        add_schemas(&mut schemas, group, version, resource, &names);
    }
    for name in ["DeleteOptions", "ListMeta", "ObjectMeta", "Patch", "Status"] {
        add_definition(&mut schemas, &format!("{META}.{name}"));
    }
    let is_built_in = |resource: &ResourceInfo<'_>| matches!(resource.schema, SchemaSource::BuiltIn);
    let has_built_in = resources.iter().any(is_built_in);
    if has_built_in {
        roots::add_resource_list(&mut paths, group, version);
        add_definition(&mut schemas, &format!("{META}.APIResourceList"));
    }
    if resources.iter().any(|resource| resource.has_scale) {
        add_definition(&mut schemas, SCALE);
    }
    add_referenced(&mut schemas);
    let mut document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    // As in kube-apiserver, documents of custom kinds alone have none.
    if has_built_in {
        document["components"]["securitySchemes"] = security_schemes();
    }
    document
}

fn security_schemes() -> Value {
    json!({"BearerToken": {"type": "apiKey", "description": "Bearer Token authentication", "in": "header",
        "name": "authorization"}})
}

/// Names of the definitions of a resource.
struct Names {
    kind: String,
    list: String,
}

impl Names {
    fn of(group: &str, version: &str, resource: &ResourceInfo<'_>) -> Self {
        let model = |kind: &str| {
            let reversed: Vec<&str> = group.split('.').rev().collect();
            format!("{}.{version}.{kind}", reversed.join("."))
        };
        let built_in = match resource.schema {
            SchemaSource::Custom(_) => None,
            SchemaSource::BuiltIn => builtin::definition_name(group, version, resource.kind),
        };
        match built_in {
            Some(name) => Self {
                kind: name.to_owned(),
                list: format!("{name}List"),
            },
            None => Self {
                kind: model(resource.kind),
                list: model(resource.list_kind),
            },
        }
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE_PREFIX}{name}")})
}

fn described_reference(name: &str, description: &str) -> Value {
    json!({"description": description, "allOf": [reference(name)]})
}

fn add_definition(schemas: &mut Map<String, Value>, name: &str) {
    if !schemas.contains_key(name)
        && let Some(definition) = builtin::definition(name)
    {
        schemas.insert(name.to_owned(), definition);
    }
}

fn add_schemas(
    schemas: &mut Map<String, Value>,
    group: &str,
    version: &str,
    resource: &ResourceInfo<'_>,
    names: &Names,
) {
    let marker = |kind: &str| json!([{"group": group, "version": version, "kind": kind}]);
    match resource.schema {
        SchemaSource::BuiltIn => add_definition(schemas, &names.kind),
        SchemaSource::Custom(schema) => {
            let mut schema = published(schema);
            if let Value::Object(fields) = &mut schema {
                fields.insert(
                    "x-kubernetes-group-version-kind".to_owned(),
                    marker(resource.kind),
                );
                fields.extend(selectable_fields(resource));
                let properties = fields.entry("properties").or_insert_with(|| json!({}));
                if let Value::Object(properties) = properties {
                    properties.extend(type_properties());
                    let metadata = described_reference(&format!("{META}.ObjectMeta"), METADATA_DESCRIPTION);
                    properties.insert("metadata".to_owned(), metadata);
                }
            }
            schemas.insert(names.kind.clone(), schema);
        }
    }
    if !resource.verbs.contains(&Verb::List) {
        return;
    }
    let mut properties = type_properties();
    let items_description = format!(
        "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
        resource.plural
    );
    let items = json!({"description": items_description, "type": "array", "items": reference(&names.kind)});
    properties.insert("items".to_owned(), items);
    let metadata = described_reference(&format!("{META}.ListMeta"), LIST_METADATA_DESCRIPTION);
    properties.insert("metadata".to_owned(), metadata);
    let mut list = json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": marker(resource.list_kind),
    });
    if let Value::Object(list) = &mut list {
        list.extend(selectable_fields(resource));
    }
    schemas.insert(names.list.clone(), list);
}

/// Returns the marker with the paths that field selectors support, if there are any.
fn selectable_fields(resource: &ResourceInfo<'_>) -> Option<(String, Value)> {
    let paths = resource.selectable_fields.iter();
    let paths: Vec<Value> = paths.map(|path| json!({"fieldPath": path})).collect();
    (!paths.is_empty()).then(|| ("x-kubernetes-selectable-fields".to_owned(), Value::from(paths)))
}

fn type_properties() -> Map<String, Value> {
    let text = |description: &str| json!({"description": description, "type": "string"});
    Map::from_iter([
        ("apiVersion".to_owned(), text(API_VERSION_DESCRIPTION)),
        ("kind".to_owned(), text(KIND_DESCRIPTION)),
    ])
}

/// Like [`type_properties`], for an object in a field.
fn embedded_type_properties() -> Map<String, Value> {
    let conventions =
        "More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let text = |description: String| json!({"description": description, "type": "string"});
    let version = format!(
        "apiVersion defines the versioned schema of this representation of an object. {conventions}#resources"
    );
    let kind = format!(
        "kind is a string value representing the type of this object. In CamelCase. {conventions}#types-kinds"
    );
    Map::from_iter([
        ("apiVersion".to_owned(), text(version)),
        ("kind".to_owned(), text(kind)),
    ])
}

/// Returns the published form of a CRD's schema: with the types of int-or-string values and the
/// metadata of embedded resources.
fn published(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return schema.clone();
    };
    let mut shown = fields.clone();
    let properties: Map<String, Value> = members(fields, "properties")
        .map(|(name, property)| (name.clone(), published(property)))
        .collect();
    if !properties.is_empty() {
        shown.insert("properties".to_owned(), Value::Object(properties));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = fields.get(key) {
            shown.insert(key.to_owned(), published(child));
        }
    }
    if fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) && !shown.contains_key("anyOf") {
        shown.insert(
            "anyOf".to_owned(),
            json!([{"type": "integer"}, {"type": "string"}]),
        );
    }
    if fields.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        let mut properties = shown
            .get("properties")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        properties.extend(embedded_type_properties());
        let metadata = described_reference(&format!("{META}.ObjectMeta"), METADATA_DESCRIPTION);
        properties.insert("metadata".to_owned(), metadata);
        shown.insert("properties".to_owned(), Value::Object(properties));
        let mut required = rooflet_schema::texts(fields, "required");
        for key in ["kind", "apiVersion"] {
            if !required.iter().any(|name| name == key) {
                required.push(key.to_owned());
            }
        }
        shown.insert("required".to_owned(), Value::from(required));
    }
    Value::Object(shown)
}

/// Adds all definitions that the document references.
fn add_referenced(schemas: &mut Map<String, Value>) {
    let mut todo: Vec<String> = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for schema in schemas.values() {
        references(schema, &mut todo);
    }
    while let Some(name) = todo.pop() {
        if seen.insert(name.clone()) {
            add_definition(schemas, &name);
            if let Some(schema) = schemas.get(&name) {
                references(schema, &mut todo);
            }
        }
    }
}

fn references(schema: &Value, into: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let name = fields
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|text| text.strip_prefix(REFERENCE_PREFIX));
            into.extend(name.map(str::to_owned));
            fields.values().for_each(|field| references(field, into));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERBS: [Verb; 8] = [
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Create,
        Verb::Update,
        Verb::Watch,
    ];

    fn gizmos() -> Value {
        let schema = json!({"description": "A Gizmo.", "type": "object", "properties": {
            "spec": {"type": "object", "description": "Wanted.", "properties": {"port": {"x-kubernetes-int-or-string": true}},
                "x-kubernetes-validations": [{"rule": "true"}]}}});
        let resource = ResourceInfo {
            kind: "Gizmo",
            list_kind: "GizmoList",
            plural: "gizmos",
            namespaced: true,
            verbs: &VERBS,
            has_status: true,
            has_scale: true,
            selectable_fields: &["spec.port".to_owned()],
            schema: SchemaSource::Custom(&schema),
        };
        document("shop.example.com", "v1", &[resource])
    }

    #[test]
    fn crd_schema_is_published_with_metadata_and_markers() {
        let document = gizmos();
        let schema = &document["components"]["schemas"]["com.example.shop.v1.Gizmo"];
        assert_eq!(schema["description"], json!("A Gizmo."));
        assert_eq!(
            schema["properties"]["metadata"]["allOf"][0]["$ref"],
            json!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        );
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["x-kubernetes-validations"], json!([{"rule": "true"}]));
        assert_eq!(
            spec["properties"]["port"]["anyOf"],
            json!([{"type": "integer"}, {"type": "string"}])
        );
        assert_eq!(
            schema["x-kubernetes-selectable-fields"],
            json!([{"fieldPath": "spec.port"}])
        );
        assert_eq!(
            document["components"]["schemas"]["com.example.shop.v1.GizmoList"]["x-kubernetes-group-version-kind"],
            json!([{"group": "shop.example.com", "version": "v1", "kind": "GizmoList"}])
        );
    }

    #[test]
    fn patch_operations_have_the_field_validation_parameter() {
        let document = gizmos();
        let patch =
            &document["paths"]["/apis/shop.example.com/v1/namespaces/{namespace}/gizmos/{name}"]["patch"];
        assert_eq!(
            patch["operationId"],
            json!("patchShopExampleComV1NamespacedGizmo")
        );
        assert_eq!(patch["tags"], json!(["shopExampleCom_v1"]));
        assert_eq!(patch["x-kubernetes-action"], json!("patch"));
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "shop.example.com", "version": "v1", "kind": "Gizmo"})
        );
        let names: Vec<&str> = patch["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|p| p["name"].as_str())
            .collect();
        assert!(names.contains(&"fieldValidation"), "{names:?}");
    }

    #[test]
    fn all_references_are_defined() {
        let core = |kind: &'static str, list_kind, plural| ResourceInfo {
            kind,
            list_kind,
            plural,
            namespaced: true,
            verbs: &VERBS,
            has_status: false,
            has_scale: false,
            selectable_fields: &[],
            schema: SchemaSource::BuiltIn,
        };
        let documents = [
            gizmos(),
            document(
                "",
                "v1",
                &[
                    core("ConfigMap", "ConfigMapList", "configmaps"),
                    core("Event", "EventList", "events"),
                ],
            ),
            document(
                "apiextensions.k8s.io",
                "v1",
                &[core(
                    "CustomResourceDefinition",
                    "CustomResourceDefinitionList",
                    "customresourcedefinitions",
                )],
            ),
        ];
        for document in documents {
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(!found.is_empty());
            for name in found {
                assert!(
                    document["components"]["schemas"].get(&name).is_some(),
                    "{name} is not defined"
                );
            }
        }
    }

    #[test]
    fn references_of_the_v2_document_are_defined() {
        let document = v2::document([&gizmos()]);
        let text = document.to_string();
        assert!(!text.contains(REFERENCE_PREFIX), "{text}");
        let mut referenced = text.split("\"$ref\":\"#/definitions/").skip(1);
        assert!(referenced.clone().count() > 5);
        assert!(referenced.all(|rest| {
            let name = rest.split('"').next().unwrap_or_default();
            document["definitions"].get(name).is_some()
        }));
    }

    #[test]
    fn core_group_has_api_v1_paths_and_names() {
        let resource = ResourceInfo {
            kind: "ConfigMap",
            list_kind: "ConfigMapList",
            plural: "configmaps",
            namespaced: true,
            verbs: &VERBS,
            has_status: false,
            has_scale: false,
            selectable_fields: &[],
            schema: SchemaSource::BuiltIn,
        };
        let document = document("", "v1", &[resource]);
        let list = &document["paths"]["/api/v1/configmaps"]["get"];
        assert_eq!(list["operationId"], json!("listCoreV1ConfigMapForAllNamespaces"));
        assert_eq!(
            list["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            json!("#/components/schemas/io.k8s.api.core.v1.ConfigMapList")
        );
        let delete = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps"]["delete"];
        assert_eq!(
            delete["operationId"],
            json!("deleteCoreV1CollectionNamespacedConfigMap")
        );
    }
}
