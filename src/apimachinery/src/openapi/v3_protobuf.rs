//! OpenAPI v3 documents in protobuf. The messages and field numbers are those of gnostic's `OpenAPIv3.proto`.

use serde_json::Value;

use super::message::{Message, list, object};

/// Encodes a document of a group version.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut message = Message::default();
    message.text(1, &document["openapi"]);
    message.nested(2, |info| {
        info.text(1, &document["info"]["title"]);
        info.text(6, &document["info"]["version"]);
    });
    message.nested(4, |paths| {
        for (path, item) in object(&document["paths"]) {
            paths.named(1, path, |message| path_item(message, item));
        }
    });
    message.nested(5, |components| {
        components.nested(1, |schemas| {
            for (name, found) in object(&document["components"]["schemas"]) {
                schemas.named(1, name, |message| schema_or_reference(message, found));
            }
        });
        security_schemes(components, &document["components"]["securitySchemes"]);
    });
    message.into_bytes()
}

fn security_schemes(components: &mut Message, schemes: &Value) {
    if schemes.is_null() {
        return;
    }
    components.nested(7, |message| {
        for (name, scheme) in object(schemes) {
            message.named(1, name, |either| {
                either.nested(1, |message| {
                    for (field, member) in [(1, "type"), (2, "description"), (3, "name"), (4, "in")] {
                        message.text(field, &scheme[member]);
                    }
                });
            });
        }
    });
}

fn path_item(message: &mut Message, item: &Value) {
    for (field, method) in [(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (10, "patch")] {
        if let Some(found) = item.get(method) {
            message.nested(field, |message| operation(message, found));
        }
    }
    parameters(message, 13, &item["parameters"]);
}

fn operation(message: &mut Message, operation: &Value) {
    message.texts(1, &operation["tags"]);
    message.text(3, &operation["description"]);
    message.text(5, &operation["operationId"]);
    parameters(message, 6, &operation["parameters"]);
    if let Some(body) = operation.get("requestBody") {
        message.nested(7, |either| {
            either.nested(1, |message| {
                message.text(1, &body["description"]);
                content(message, 2, body);
                message.bool(3, &body["required"]);
            });
        });
    }
    message.nested(8, |responses| {
        for (code, response) in object(&operation["responses"]) {
            responses.named(2, code, |either| {
                either.nested(1, |message| {
                    message.text(1, &response["description"]);
                    content(message, 3, response);
                });
            });
        }
    });
    message.extensions(13, operation);
}

fn parameters(message: &mut Message, field: u64, parameters: &Value) {
    for parameter in list(parameters) {
        message.nested(field, |either| {
            either.nested(1, |message| {
                message.text(1, &parameter["name"]);
                message.text(2, &parameter["in"]);
                message.text(3, &parameter["description"]);
                message.bool(4, &parameter["required"]);
                if let Some(found) = parameter.get("schema") {
                    message.nested(10, |message| schema_or_reference(message, found));
                }
            });
        });
    }
}

/// Adds the media types of a body or response.
fn content(message: &mut Message, field: u64, body: &Value) {
    let Some(types) = body.get("content") else {
        return;
    };
    message.nested(field, |message| {
        for (name, media_type) in object(types) {
            message.named(1, name, |message| {
                if let Some(found) = media_type.get("schema") {
                    message.nested(1, |message| schema_or_reference(message, found));
                }
            });
        }
    });
}

fn schema_or_reference(message: &mut Message, found: &Value) {
    match found.get("$ref") {
        Some(target) => message.nested(2, |reference| {
            reference.text(1, target);
            reference.text(3, &found["description"]);
        }),
        None => message.nested(1, |message| schema(message, found)),
    }
}

/// Form of a member of a schema.
#[derive(Clone, Copy)]
enum Form {
    Flag,
    Text,
    Texts,
    Integer,
    Double,
    Any,
    Anys,
    Documentation,
    Schema,
    Schemas,
    Items,
    Properties,
    AdditionalProperties,
    Default,
}

/// Number, name and form of the members of a schema.
const MEMBERS: &[(u64, &str, Form)] = &[
    (1, "nullable", Form::Flag),
    (6, "externalDocs", Form::Documentation),
    (7, "example", Form::Any),
    (9, "title", Form::Text),
    (10, "multipleOf", Form::Double),
    (11, "maximum", Form::Double),
    (12, "exclusiveMaximum", Form::Flag),
    (13, "minimum", Form::Double),
    (14, "exclusiveMinimum", Form::Flag),
    (15, "maxLength", Form::Integer),
    (16, "minLength", Form::Integer),
    (17, "pattern", Form::Text),
    (18, "maxItems", Form::Integer),
    (19, "minItems", Form::Integer),
    (20, "uniqueItems", Form::Flag),
    (21, "maxProperties", Form::Integer),
    (22, "minProperties", Form::Integer),
    (23, "required", Form::Texts),
    (24, "enum", Form::Anys),
    (25, "type", Form::Text),
    (26, "allOf", Form::Schemas),
    (27, "oneOf", Form::Schemas),
    (28, "anyOf", Form::Schemas),
    (29, "not", Form::Schema),
    (30, "items", Form::Items),
    (31, "properties", Form::Properties),
    (32, "additionalProperties", Form::AdditionalProperties),
    (33, "default", Form::Default),
    (34, "description", Form::Text),
    (35, "format", Form::Text),
];

fn schema(message: &mut Message, schema_v3: &Value) {
    for (number, name, form) in MEMBERS {
        if let Some(value) = schema_v3.get(name) {
            member(message, *number, value, *form);
        }
    }
    message.extensions(36, schema_v3);
}

fn member(message: &mut Message, number: u64, value: &Value, form: Form) {
    match form {
        Form::Flag => message.bool(number, value),
        Form::Text => message.text(number, value),
        Form::Texts => message.texts(number, value),
        Form::Integer => message.integer(number, value),
        Form::Double => message.double(number, value),
        Form::Any => message.any(number, value),
        Form::Anys => list(value).for_each(|value| message.any(number, value)),
        Form::Documentation => message.nested(number, |documentation| {
            documentation.text(1, &value["description"]);
            documentation.text(2, &value["url"]);
        }),
        Form::Schema => message.nested(number, |message| schema(message, value)),
        Form::Schemas => {
            for found in list(value) {
                message.nested(number, |message| schema_or_reference(message, found));
            }
        }
        Form::Items => message.nested(number, |items| {
            items.nested(1, |message| schema_or_reference(message, value));
        }),
        Form::Properties => message.nested(number, |properties| {
            for (name, property) in object(value) {
                properties.named(1, name, |message| schema_or_reference(message, property));
            }
        }),
        Form::AdditionalProperties => message.nested(number, |item| match value.as_bool() {
            Some(allowed) => item.flag(2, allowed),
            None => item.nested(1, |message| schema_or_reference(message, value)),
        }),
        Form::Default => message.nested(number, |message| default(message, value)),
    }
}

/// Adds a default. The message has no field for lists and objects.
fn default(message: &mut Message, value: &Value) {
    match value {
        Value::Number(number) => message.number(1, number.as_f64().unwrap_or_default()),
        Value::Bool(flag) => message.flag(2, *flag),
        Value::String(text) => message.bytes(3, text.as_bytes()),
        Value::Null | Value::Array(_) | Value::Object(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Message that gnostic 0.7.0 encodes for the document, in hexadecimal.
    const ENCODED: &str = "0a05332e302e3012060a017432013122d1010ace010a022f7012c70132a5010a01611a01642a016f3a2b0a29 \
        12250a230a032a2f2a121c0a1a12180a16232f636f6d706f6e656e74732f736368656d61732f4b1801424d12 \
        320a03323030122b0a290a024f4b1a230a210a106170706c69636174696f6e2f6a736f6e120d0a0b0a09ca01 \
        06737472696e6712170a0334303112100a0e0a0c556e617574686f72697a65646a1e0a13782d6b756265726e \
        657465732d616374696f6e12071205706f73740a6a1d0a1b0a016e1204706174682001520e0a0ca00101ca01 \
        06737472696e672ae7020ae4020ae1020a014b12db020ad802b001ac02ba010161ca01066f626a656374fa01 \
        f7010a250a016112200a1e59000000000000f83f69000000000000f0bf8a02090900000000000000000a1b0a \
        016212160a14c201041202780ac20105120322220a8a02021a000a0e0a016312090a0708018a020210000a2b \
        0a016412260a24d2011a12180a16232f636f6d706f6e656e74732f736368656d61732f4c8a0200920201440a \
        0c0a016512070a0582020210000a170a016612120a1082020d0a0b0a09ca0106737472696e670a2e0a016712 \
        290a27ca01056172726179f2011c0a1a12180a16232f636f6d706f6e656e74732f736368656d61732f4c0a1d \
        0a016812180a16e2010c0a0aca0107696e7465676572ea0104ba010161a202490a1f782d6b756265726e6574 \
        65732d67726f75702d76657273696f6e2d6b696e64122612242d2067726f75703a2022220a20206b696e643a \
        204b0a202076657273696f6e3a2076310a";

    #[test]
    fn document_has_the_bytes_of_gnostic() {
        let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let parameter = json!({"name": "n", "in": "path", "required": true,
            "schema": {"type": "string", "uniqueItems": true}});
        let text = json!({"application/json": {"schema": {"type": "string"}}});
        let post = json!({"tags": ["a"], "description": "d", "operationId": "o", "x-kubernetes-action": "post",
            "requestBody": {"content": {"*/*": {"schema": reference("K")}}, "required": true},
            "responses": {"200": {"description": "OK", "content": text}, "401": {"description": "Unauthorized"}}});
        let properties = json!({
            "a": {"default": 0, "maximum": 1.5, "minimum": -1},
            "b": {"default": "", "enum": ["x", ""]},
            "c": {"default": false, "nullable": true},
            "d": {"default": {}, "allOf": [reference("L")], "description": "D"},
            "e": {"additionalProperties": false},
            "f": {"additionalProperties": {"type": "string"}},
            "g": {"items": reference("L"), "type": "array"},
            "h": {"not": {"required": ["a"]}, "anyOf": [{"type": "integer"}]}});
        let kind = json!({"type": "object", "required": ["a"], "minProperties": 300, "properties": properties,
            "x-kubernetes-group-version-kind": [{"group": "", "kind": "K", "version": "v1"}]});
        let document = json!({"openapi": "3.0.0", "info": {"title": "t", "version": "1"},
            "paths": {"/p": {"parameters": [parameter], "post": post}}, "components": {"schemas": {"K": kind}}});
        let encoded: String = encode(&document)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(encoded, ENCODED.replace(' ', ""));
    }
}
