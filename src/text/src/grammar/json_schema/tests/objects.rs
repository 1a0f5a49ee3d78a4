//! Properties of objects: order, names and additional ones.

use super::*;

#[test]
fn properties_follow_schema_order() {
    let person = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Person", "type": "object",
        "properties": {"a name": {"type": "string"}, "b": {"type": "integer", "description": "…"}, "c": {"type": ["boolean", "null"]}},
        "required": ["a name", "c"], "additionalProperties": false
    });
    check(
        person,
        &[
            r#"{"a name":"x","b":1,"c":true}"#,
            r#"{"a name": "", "c": null}"#,
            "{\n  \"a name\": \"x\",\n  \"c\": false\n}",
        ],
        &[
            "{}",
            r#"{"a name":"x"}"#,
            r#"{"c":true,"a name":"x"}"#,
            r#"{"a name":"x","c":true,"d":1}"#,
            r#"{"a name":"x","b":1.5,"c":true}"#,
            r#"{"a name":"x","c":true,}"#,
            r#"{"a name":"x","c":true} "#,
            r#"{,"a name":"x","c":true}"#,
            "[]",
        ],
    );
    check(
        json!({"type": "object", "properties": {"a": {}, "b": {}}}),
        &["{}", "{ }", r#"{"a":[]}"#, r#"{"b":{"x":1}}"#, r#"{"a":1,"b":2}"#],
        &[r#"{"c":1}"#, r#"{"b":1,"a":2}"#],
    );
}

#[test]
fn additional_properties_follow_their_schema() {
    check(
        json!({"type": "object", "properties": {"ab": {"type": "integer"}}, "required": ["ab"], "additionalProperties": {"type": "boolean"}}),
        &[
            r#"{"ab":1}"#,
            r#"{"ab":1,"a":true,"abc":false,"b":true,"":true,"é":true}"#,
        ],
        &[
            r#"{"ab":1,"ab":true}"#,
            r#"{"ab":1,"a":1}"#,
            r#"{"a":true}"#,
            r#"{"ab":1,"\u0061b":true}"#,
        ],
    );
    check(
        json!({"type": "object"}),
        &["{}", r#"{"x":{"y":[1,"z"]}}"#],
        &["[]"],
    );
    check(
        json!({"required": ["x"]}),
        &[r#"{"x":1}"#, r#"{"x":null,"y":2}"#],
        &["{}"],
    );
    check(json!({}), &["1", "\"a\"", "[1, {}]", "null"], &["", "nul"]);
}

#[test]
fn property_names_may_be_listed_or_match_a_pattern() {
    check(
        json!({"type": "object", "propertyNames": {"$ref": "#/$defs/E"}, "additionalProperties": {"type": "integer"},
               "required": ["b"], "$defs": {"E": {"type": "string", "title": "E", "enum": ["a", "b"]}}}),
        &[r#"{"b":1}"#, r#"{"a":1,"b":2}"#],
        &["{}", r#"{"a":1}"#, r#"{"b":1,"c":1}"#, r#"{"b":null}"#],
    );
    check(
        json!({"type": "object", "propertyNames": {"pattern": "^k"}, "additionalProperties": {"type": "integer"}}),
        &["{}", r#"{"k":1,"kx":2}"#],
        &[r#"{"x":1}"#, r#"{"k":null}"#],
    );
}

#[test]
fn pattern_properties_match_their_names() {
    check(
        json!({"properties": {"id": {"type": "integer"}}, "required": ["id"],
               "patternProperties": {"^x-[a-z]+$": {"type": "string"}}}),
        &[r#"{"id":1}"#, r#"{"id":1,"x-a":"b","x-bc":""}"#],
        &[
            r#"{"x-a":"b"}"#,
            r#"{"id":1,"x-a":1}"#,
            r#"{"id":1,"x-":""}"#,
            r#"{"id":1,"y":""}"#,
        ],
    );
    check(
        json!({"patternProperties": {"a": {"type": "null"}}, "additionalProperties": false}),
        &["{}", r#"{"bab":null}"#],
        &[r#"{"b":null}"#],
    );
}

#[test]
fn property_count_is_limited() {
    check(
        json!({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 1, "maxProperties": 2}),
        &[
            r#"{"a":1}"#,
            r#"{"c":1}"#,
            r#"{"a":1,"c":1}"#,
            r#"{ "b": 1, "c": 1}"#,
        ],
        &["{}", r#"{"a":1,"b":1,"c":1}"#, r#"{,"a":1}"#],
    );
    check(
        json!({"properties": {"a": {}, "b": {}}, "required": ["b"], "minProperties": 2}),
        &[r#"{"a":1,"b":1}"#],
        &[r#"{"b":1}"#, r#"{"a":1}"#],
    );
    check(
        json!({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2}),
        &[r#"{"x":null}"#, r#"{"x":null,"y":null}"#],
        &["{}", r#"{"x":null,"y":null,"z":null}"#],
    );
    check(
        json!({"properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": {}, "minProperties": 2}),
        &[r#"{"a":1,"b":1}"#, r#"{"a":1,"x":1}"#, r#"{"a":1,"b":1,"x":1}"#],
        &[r#"{"a":1}"#],
    );
    check(
        json!({"type": "object", "maxProperties": 0}),
        &["{}"],
        &[r#"{"a":1}"#],
    );
    check(
        json!({"allOf": [{"patternProperties": {"^x": {}}, "minProperties": 1}, {"minProperties": 0, "maxProperties": 3}, {"maxProperties": 1}]}),
        &[r#"{"x":1}"#],
        &["{}", r#"{"x":1,"xx":1}"#],
    );
}

#[test]
fn property_names_have_length_limits() {
    check(
        json!({"type": "object", "propertyNames": {"type": "string", "minLength": 1}, "additionalProperties": {"type": "null"}, "minProperties": 1}),
        &[r#"{"x":null}"#, r#"{"é\n":null,"long":null}"#],
        &["{}", r#"{"":null}"#, r#"{"x":1}"#],
    );
    check(
        json!({"propertyNames": {"minLength": 2, "maxLength": 3}}),
        &["{}", r#"{"éé":1}"#, r#"{"abc":1}"#],
        &[r#"{"a":1}"#, r#"{"abcd":1}"#],
    );
    check(
        json!({"propertyNames": {"maxLength": 1}}),
        &[r#"{"":1}"#, r#"{"a":1}"#],
        &[r#"{"aa":1}"#],
    );
}

#[test]
fn several_patterns_and_additional_properties_have_disjoint_names() {
    check(
        json!({"type": "object", "properties": {"ab": {"type": "integer"}},
               "patternProperties": {"^a": {"minimum": 3}, "^b": {"type": "null"}},
               "additionalProperties": {"type": "boolean"}}),
        &[
            r#"{"ab":3,"ac":3}"#,
            r#"{"b":null,"c":true,"ax":5}"#,
            r#"{"c":true}"#,
        ],
        &[
            r#"{"ab":2}"#,
            r#"{"ab":3,"ab":3.5}"#,
            r#"{"ac":2}"#,
            r#"{"b":true}"#,
            r#"{"c":1}"#,
            r#"{"\u0061c":true}"#,
        ],
    );
}

#[test]
fn conditions_and_dependencies_restrict_properties() {
    check(
        json!({"type": "object", "properties": {"country": {"enum": ["US", "CA"]}, "code": {"type": "string"}},
               "required": ["country", "code"],
               "if": {"properties": {"country": {"const": "US"}}},
               "then": {"properties": {"code": {"pattern": "^[0-9]+$"}}},
               "else": {"properties": {"code": {"pattern": "^[A-Z]+$"}}}}),
        &[
            r#"{"country":"US","code":"12"}"#,
            r#"{"country":"CA","code":"AB"}"#,
        ],
        &[
            r#"{"country":"US","code":"AB"}"#,
            r#"{"country":"CA","code":"12"}"#,
        ],
    );
    check(
        json!({"properties": {"card": {"type": "integer"}, "address": {"type": "string"}},
               "dependentRequired": {"card": ["address"]}}),
        &["{}", r#"{"address":"x"}"#],
        &[r#"{"card":1}"#],
    );
    check(
        json!({"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": {}},
               "unevaluatedProperties": false}),
        &["{}", r#"{"a":1}"#, r#"{"b":2}"#],
        &[r#"{"c":1}"#],
    );
}
