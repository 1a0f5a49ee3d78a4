//! OpenAPI v2 document in protobuf, the only form that kubectl requests. The messages and field numbers are
//! those of gnostic's `OpenAPIv2.proto`.

use serde_json::{Map, Value};

use rooflet_apimachinery::openapi::message::{Message, list, object};

/// Encodes an OpenAPI v2 document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut message = Message::default();
    message.text(1, &document["swagger"]);
    message.nested(2, |info| {
        info.text(1, &document["info"]["title"]);
        info.text(2, &document["info"]["version"]);
    });
    message.nested(8, |paths| {
        for (path, item) in object(&document["paths"]) {
            paths.named(2, path, |message| path_item(message, item));
        }
    });
    message.nested(9, |definitions| {
        for (name, definition) in object(&document["definitions"]) {
            definitions.named(1, name, |message| schema(message, definition));
        }
    });
    message.into_bytes()
}

fn path_item(message: &mut Message, item: &Value) {
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(found) = item.get(method) {
            message.nested(field, |message| operation(message, found));
        }
    }
    parameters(message, 9, &item["parameters"]);
}

fn operation(message: &mut Message, operation: &Value) {
    message.texts(1, &operation["tags"]);
    message.text(3, &operation["description"]);
    message.text(5, &operation["operationId"]);
    message.texts(6, &operation["produces"]);
    message.texts(7, &operation["consumes"]);
    parameters(message, 8, &operation["parameters"]);
    message.nested(9, |responses| {
        for (code, response) in object(&operation["responses"]) {
            responses.named(1, code, |value| {
                value.nested(1, |message| {
                    message.text(1, &response["description"]);
                    if let Some(found) = response.get("schema") {
                        message.nested(2, |item| item.nested(1, |message| schema(message, found)));
                    }
                });
            });
        }
    });
    message.texts(10, &operation["schemes"]);
    message.extensions(13, operation);
}

fn parameters(message: &mut Message, field: u64, parameters: &Value) {
    for parameter in list(parameters) {
        message.nested(field, |item| {
            item.nested(1, |message| match parameter["in"].as_str() {
                Some("body") => message.nested(1, |body| {
                    body.text(1, &parameter["description"]);
                    body.text(2, &parameter["name"]);
                    body.text(3, &parameter["in"]);
                    body.bool(4, &parameter["required"]);
                    body.nested(5, |message| schema(message, &parameter["schema"]));
                }),
                // The numbers of type and unique items differ between parameters of query and path.
                Some("path") => message.nested(2, |other| {
                    other.nested(4, |path| simple_parameter(path, parameter, 5, 19));
                }),
                _ => message.nested(2, |other| {
                    other.nested(3, |query| simple_parameter(query, parameter, 6, 20));
                }),
            });
        });
    }
}

fn simple_parameter(message: &mut Message, parameter: &Value, kind: u64, unique_items: u64) {
    message.bool(1, &parameter["required"]);
    message.text(2, &parameter["in"]);
    message.text(3, &parameter["description"]);
    message.text(4, &parameter["name"]);
    message.text(kind, &parameter["type"]);
    message.bool(unique_items, &parameter["uniqueItems"]);
}

fn schema(message: &mut Message, schema_v2: &Value) {
    let empty = Map::new();
    let fields = schema_v2.as_object().unwrap_or(&empty);
    for (name, value) in fields {
        match name.as_str() {
            "$ref" => message.text(1, value),
            "format" => message.text(2, value),
            "title" => message.text(3, value),
            "description" => message.text(4, value),
            "default" => message.any(5, value),
            "multipleOf" => message.double(6, value),
            "maximum" => message.double(7, value),
            "exclusiveMaximum" => message.bool(8, value),
            "minimum" => message.double(9, value),
            "exclusiveMinimum" => message.bool(10, value),
            "maxLength" => message.integer(11, value),
            "minLength" => message.integer(12, value),
            "pattern" => message.text(13, value),
            "maxItems" => message.integer(14, value),
            "minItems" => message.integer(15, value),
            "uniqueItems" => message.bool(16, value),
            "maxProperties" => message.integer(17, value),
            "minProperties" => message.integer(18, value),
            "required" => message.texts(19, value),
            "enum" => list(value).for_each(|value| message.any(20, value)),
            "additionalProperties" => message.nested(21, |item| match value.as_bool() {
                Some(allowed) => item.flag(2, allowed),
                None => item.nested(1, |message| schema(message, value)),
            }),
            "type" => message.nested(22, |item| item.text(1, value)),
            "items" => message.nested(23, |item| item.nested(1, |message| schema(message, value))),
            "properties" => message.nested(25, |properties| {
                for (name, property) in object(value) {
                    properties.named(1, name, |message| schema(message, property));
                }
            }),
            "externalDocs" => message.nested(29, |docs| {
                docs.text(1, &value["description"]);
                docs.text(2, &value["url"]);
            }),
            "example" => message.any(30, value),
            _ => {}
        }
    }
    message.extensions(31, schema_v2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Bytes of the documented wire format: tag, length, content.
    #[test]
    fn document_has_the_wire_format_of_gnostic() {
        let document = json!({"swagger": "2.0", "info": {"title": "t", "version": "1"}, "paths": {},
            "definitions": {"K": {"type": "object", "maxLength": 300, "minimum": 1,
                "x-kubernetes-preserve-unknown-fields": true}}});
        let mut expect = b"\x0a\x032.0\x12\x06\x0a\x01t\x12\x011\x42\x00".to_vec();
        let schema = [
            b"\x58\xac\x02".as_slice(),
            b"\x49\x00\x00\x00\x00\x00\x00\xf0\x3f",
            b"\xb2\x01\x08\x0a\x06object",
            b"\xfa\x01\x2f\x0a\x24x-kubernetes-preserve-unknown-fields\x12\x07\x12\x05true\n",
        ]
        .concat();
        let named = [b"\x0a\x01K\x12".as_slice(), &[schema.len() as u8], &schema].concat();
        let definitions = [b"\x0a".as_slice(), &[named.len() as u8], &named].concat();
        expect.extend([b"\x4a".as_slice(), &[definitions.len() as u8], &definitions].concat());
        assert_eq!(encode(&document), expect);
    }
}
