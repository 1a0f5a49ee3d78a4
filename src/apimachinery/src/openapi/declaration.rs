//! Declaration of a kind for expressions, from its published schema.

use serde_json::{Map, Value, json};

use super::{Names, REFERENCE_PREFIX, ResourceInfo, add_referenced, add_schemas};
use rooflet_schema::cel::checker::Decl;

/// Returns the declaration of the objects of a resource, or `None` if expressions cannot read them.
pub fn declaration(group: &str, version: &str, resource: &ResourceInfo<'_>) -> Option<Decl> {
    let names = Names::of(group, version, resource);
    let mut schemas = Map::new();
    add_schemas(&mut schemas, group, version, resource, &names);
    add_referenced(&mut schemas);
    let root = resolved(&reference(&names.kind), &schemas, &mut Vec::new());
    Decl::of(root.as_object()?, true)
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE_PREFIX}{name}")})
}

/// Returns the name of the schema that a schema refers to.
fn referenced(schema: &Value) -> Option<&str> {
    let own = schema.get("$ref").and_then(Value::as_str);
    let wrapped = || schema["allOf"].as_array()?.iter().find_map(referenced);
    own.and_then(|own| own.strip_prefix(REFERENCE_PREFIX))
        .or_else(wrapped)
}

/// Replaces references by schemas. As in kube-apiserver, a circular reference is an object without
/// fields. `open` are the names of the enclosing schemas.
fn resolved<'a>(schema: &'a Value, schemas: &'a Map<String, Value>, open: &mut Vec<&'a str>) -> Value {
    let name = referenced(schema);
    let target = name.and_then(|name| schemas.get(name)).unwrap_or(schema);
    if let Some(name) = name {
        if open.contains(&name) {
            return json!({"type": "object"});
        }
        open.push(name);
    }
    let mut result = Map::new();
    for (member, value) in target.as_object().into_iter().flatten() {
        let value = match (member.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let properties = properties.iter();
                let resolved =
                    properties.map(|(name, property)| (name.clone(), resolved(property, schemas, open)));
                Value::Object(resolved.collect())
            }
            ("additionalProperties" | "items", Value::Object(_)) => resolved(value, schemas, open),
            _ => value.clone(),
        };
        result.insert(member.clone(), value);
    }
    if target["format"] == "int-or-string" {
        result.insert("x-kubernetes-int-or-string".to_owned(), Value::Bool(true));
    }
    if name.is_some() {
        open.pop();
    }
    Value::Object(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::SchemaSource;
    use rooflet_schema::cel::checker::{Checked, Environment};

    #[test]
    fn declares_fields_of_built_in_and_custom_kinds() {
        let info = |kind: &'static str, schema| ResourceInfo {
            kind,
            list_kind: "List",
            plural: "things",
            namespaced: true,
            verbs: &[],
            has_status: false,
            has_scale: false,
            selectable_fields: &[],
            schema,
        };
        let rejects = |info: &ResourceInfo<'_>, group: &str, source: &str| {
            let decl = declaration(group, "v1", info).expect("a declaration");
            let environment = Environment::default().with_decl("object", &decl, "Thing");
            Checked::of(source, &environment).is_err()
        };
        let config_map = info("ConfigMap", SchemaSource::BuiltIn);
        assert!(!rejects(
            &config_map,
            "",
            "object.data['a'] == 'b' && object.metadata.labels.x == 'y'"
        ));
        assert!(!rejects(
            &config_map,
            "",
            "object.metadata.ownerReferences[0].uid == 'u' && object.immutable"
        ));
        assert!(!rejects(
            &config_map,
            "",
            "object.metadata.creationTimestamp > timestamp('2020-01-01T00:00:00Z')"
        ));
        assert!(rejects(&config_map, "", "object.data == 1"));
        assert!(rejects(&config_map, "", "object.bogus == 1"));
        let definition = info("CustomResourceDefinition", SchemaSource::BuiltIn);
        let schema = "object.spec.versions[0].schema.openAPIV3Schema";
        let group = "apiextensions.k8s.io";
        assert!(!rejects(&definition, group, &format!("{schema}.title == 'a'")));
        assert!(rejects(&definition, group, &format!("{schema}.not.title == 'a'")));
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "port": {"x-kubernetes-int-or-string": true}}}}});
        let custom = info("Widget", SchemaSource::Custom(&schema));
        assert!(!rejects(
            &custom,
            "example.com",
            "object.spec.port == 'a' && object.metadata.uid == 'u'"
        ));
        assert!(rejects(&custom, "example.com", "object.spec.bogus == 1"));
    }
}
