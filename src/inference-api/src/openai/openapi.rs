//! OpenAPI document of the inference API. The document is written by hand. A test compares its
//! parameters with the supported ones.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};

const DOCUMENT: &str = include_str!("openapi.json");

/// Handles `GET /openapi.json`.
pub async fn show() -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT).into_response()
}

/// Returns the property names of an object schema.
#[cfg(test)]
pub fn properties_of(schema: &str) -> std::collections::BTreeSet<String> {
    let document: serde_json::Value = serde_json::from_str(DOCUMENT).expect("the document is JSON");
    let properties = &document["components"]["schemas"][schema]["properties"];
    let properties = properties.as_object().expect("an object schema");
    properties.keys().cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn document_describes_all_model_endpoints() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let ollama = crate::ollama::routes::BY_MODEL;
        for path in crate::openai::routes::BY_MODEL.into_iter().chain(ollama) {
            assert!(document["paths"][path]["post"].is_object(), "{path}");
        }
    }

    #[test]
    fn all_references_resolve() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 40);
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("inside the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
