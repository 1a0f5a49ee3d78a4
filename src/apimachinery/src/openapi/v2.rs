//! OpenAPI v2 document of all groups, converted from the documents of OpenAPI v3. Older versions of
//! kubectl, other clients and `kubectl explain --output=plaintext-openapiv2` read it.
//!
//! Like kube-apiserver, the conversion removes what OpenAPI v2 or kubectl cannot represent: nullable values
//! and values with unknown fields have no type, and combinations of schemas are left out.

use serde_json::{Map, Value, json};

use crate::builtin::REFERENCE_PREFIX;
use rooflet_schema::{members, texts};

const DEFINITIONS: &str = "#/definitions/";
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// Converts OpenAPI v3 documents to one OpenAPI v2 document.
pub fn document<'a>(documents: impl IntoIterator<Item = &'a Value>) -> Value {
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for document in documents.into_iter().filter_map(Value::as_object) {
        for (path, item) in members(document, "paths") {
            paths.insert(path.clone(), path_item(item));
        }
        let components = document.get("components").and_then(Value::as_object);
        for (name, schema) in components
            .into_iter()
            .flat_map(|components| members(components, "schemas"))
        {
            if !definitions.contains_key(name) {
                definitions.insert(name.clone(), definition(schema));
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "definitions": definitions,
    })
}

fn path_item(item: &Value) -> Value {
    let Value::Object(item) = item else {
        return json!({});
    };
    let mut converted = Map::new();
    for (name, value) in item {
        if name == "parameters" {
            converted.insert(name.clone(), parameters(value));
        } else if METHODS.contains(&name.as_str()) {
            converted.insert(name.clone(), operation(value));
        }
    }
    Value::Object(converted)
}

/// Returns the parameters with the members of their schemas.
fn parameters(parameters: &Value) -> Value {
    let parameters = parameters.as_array().into_iter().flatten();
    let inlined = parameters.map(|parameter| {
        let mut inlined = parameter.as_object().cloned().unwrap_or_default();
        if let Some(Value::Object(schema)) = inlined.remove("schema") {
            inlined.extend(schema);
        }
        Value::Object(inlined)
    });
    Value::Array(inlined.collect())
}

fn operation(operation: &Value) -> Value {
    let mut converted = operation.as_object().cloned().unwrap_or_default();
    let mut own = parameters(&operation["parameters"]);
    let is_of_resource = operation.get("x-kubernetes-action").is_some();
    if let Some(body) = converted.remove("requestBody") {
        let (types, schema) = content(&body);
        let mut parameter = json!({"name": "body", "in": "body", "schema": schema});
        if body["required"] == true {
            parameter["required"] = Value::Bool(true);
        }
        if let Value::Array(own) = &mut own {
            own.insert(0, parameter);
        }
        converted.insert("consumes".to_owned(), types);
    } else {
        converted.insert("consumes".to_owned(), json!(["*/*"]));
    }
    if is_of_resource {
        converted.insert("parameters".to_owned(), own);
    }
    let mut produced = Value::Null;
    let mut responses = Map::new();
    for (code, response) in operation["responses"].as_object().into_iter().flatten() {
        let mut shown = json!({"description": response["description"]});
        if response.get("content").is_some() {
            let (types, schema) = content(response);
            shown["schema"] = schema;
            produced = types;
        }
        responses.insert(code.clone(), shown);
    }
    if !is_of_resource {
        converted.insert("consumes".to_owned(), produced.clone());
    }
    converted.insert("produces".to_owned(), produced);
    converted.insert("responses".to_owned(), Value::Object(responses));
    converted.insert("schemes".to_owned(), json!(["https"]));
    Value::Object(converted)
}

/// Returns the media types and the schema of a body.
fn content(body: &Value) -> (Value, Value) {
    let content = body["content"].as_object();
    let types: Vec<&String> = content.into_iter().flat_map(Map::keys).collect();
    let first = content.and_then(|content| content.values().next());
    let schema = first.map_or(Value::Null, |first| schema(&first["schema"]));
    (json!(types), schema)
}

/// Converts the schema of a kind. kubectl would reject other members of a kind with unknown fields, so its
/// schema has no properties at all.
fn definition(definition: &Value) -> Value {
    if definition["x-kubernetes-preserve-unknown-fields"] != true {
        return schema(definition);
    }
    let mut untyped = json!({"type": "object"});
    let marker = "x-kubernetes-group-version-kind";
    if let Some(kinds) = definition.get(marker) {
        untyped[marker] = kinds.clone();
    }
    untyped
}

fn schema(schema_v3: &Value) -> Value {
    let Value::Object(fields) = schema_v3 else {
        return schema_v3.clone();
    };
    let mut shown = Map::new();
    for (name, value) in fields {
        match name.as_str() {
            "$ref" => {
                shown.insert(name.clone(), reference(value));
            }
            // A reference with a description.
            "allOf" => {
                let only = value.as_array().filter(|parts| parts.len() == 1);
                let reference_to = only.and_then(|parts| parts[0].get("$ref"));
                shown.extend(reference_to.map(|target| ("$ref".to_owned(), reference(target))));
            }
            "anyOf" | "oneOf" | "not" | "nullable" | "default" => {}
            "properties" => {
                let properties =
                    members(fields, name).map(|(name, property)| (name.clone(), schema(property)));
                shown.insert(name.clone(), Value::Object(properties.collect()));
            }
            "items" | "additionalProperties" => {
                shown.insert(name.clone(), schema(value));
            }
            _ => {
                shown.insert(name.clone(), value.clone());
            }
        }
    }
    let is_set = |name: &str| fields.get(name) == Some(&Value::Bool(true));
    let has_unknown_fields = is_set("x-kubernetes-preserve-unknown-fields");
    if is_set("nullable") {
        shown.remove("type");
    }
    if is_set("nullable") || has_unknown_fields {
        shown.remove("items");
        shown.remove("properties");
    }
    let is_untyped_list = shown.get("type") == Some(&json!("array")) && !shown.contains_key("items");
    let is_untyped_object = shown.get("type") == Some(&json!("object")) && has_unknown_fields;
    if is_untyped_list || is_untyped_object {
        shown.remove("type");
    }
    // kubectl validates a required value, but cannot know that it may be null.
    let property = |name: &str| {
        fields
            .get("properties")
            .and_then(|properties| properties.get(name))
    };
    let is_nullable = |name: &str| property(name).is_some_and(|property| property["nullable"] == true);
    // Objects with unknown fields have no properties at all.
    let is_type = |name: &str| {
        has_unknown_fields
            && is_set("x-kubernetes-embedded-resource")
            && ["apiVersion", "kind"].contains(&name)
    };
    let mut required = texts(fields, "required");
    if required.iter().any(|name| is_nullable(name) || is_type(name)) {
        required.retain(|name| !is_nullable(name) && !is_type(name));
        match required.is_empty() {
            true => drop(shown.remove("required")),
            false => drop(shown.insert("required".to_owned(), json!(required))),
        }
    }
    Value::Object(shown)
}

fn reference(target: &Value) -> Value {
    let name = target
        .as_str()
        .and_then(|target| target.strip_prefix(REFERENCE_PREFIX));
    // JSONSchemaProps has a property named `$ref`, whose value is a schema.
    name.map_or_else(
        || schema(target),
        |name| Value::from(format!("{DEFINITIONS}{name}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(schema_v3: Value) -> Value {
        schema(&schema_v3)
    }

    #[test]
    fn schema_without_a_form_in_v2_loses_its_type() {
        let check = |v3: Value, v2: Value| assert_eq!(converted(v3.clone()), v2, "{v3}");
        check(
            json!({"type": "integer", "nullable": true, "minimum": 1}),
            json!({"minimum": 1}),
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        );
        check(
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!({"x-kubernetes-int-or-string": true}),
        );
        check(
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
        );
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "nullable": true}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {}}}),
        );
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-embedded-resource": true,
                "required": ["kind", "apiVersion"], "default": {}}),
            json!({"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-embedded-resource": true}),
        );
        check(
            json!({"description": "d", "allOf": [{"$ref": "#/components/schemas/x.Y"}]}),
            json!({"description": "d", "$ref": "#/definitions/x.Y"}),
        );
        check(
            json!({"type": "string", "allOf": [{"maxLength": 3}], "not": {"enum": ["a"]}}),
            json!({"type": "string"}),
        );
    }

    #[test]
    fn kind_with_unknown_fields_has_no_properties() {
        let marker = json!([{"group": "g", "version": "v1", "kind": "K"}]);
        let kind = json!({"type": "object", "description": "d", "properties": {"spec": {}},
            "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-group-version-kind": marker});
        assert_eq!(
            definition(&kind),
            json!({"type": "object", "x-kubernetes-group-version-kind": marker})
        );
    }

    #[test]
    fn bodies_become_parameters() {
        let json = |name: &str| json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}});
        let v3 = json!({"paths": {"/a": {
            "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}],
            "patch": {
                "operationId": "patchA", "x-kubernetes-action": "patch",
                "parameters": [{"name": "force", "in": "query", "schema": {"type": "boolean"}}],
                "requestBody": {"required": true, "content": json("Patch")},
                "responses": {"200": {"description": "OK", "content": json("A")}, "401": {"description": "Unauthorized"}},
            }}},
            "components": {"schemas": {"A": {"type": "object"}}}});
        let v2 = document([&v3]);
        assert_eq!(
            v2["paths"]["/a"],
            json!({
            "parameters": [{"name": "name", "in": "path", "required": true, "type": "string", "uniqueItems": true}],
            "patch": {
                "operationId": "patchA", "x-kubernetes-action": "patch", "schemes": ["https"],
                "consumes": ["application/json"], "produces": ["application/json"],
                "parameters": [
                    {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/Patch"}},
                    {"name": "force", "in": "query", "type": "boolean"},
                ],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/A"}}, "401": {"description": "Unauthorized"}},
            }})
        );
        assert_eq!(v2["definitions"], json!({"A": {"type": "object"}}));
    }
}
