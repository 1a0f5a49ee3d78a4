//! Rejected schemas.

use super::super::objects::MAX_NAME_BYTES;
use super::*;

#[test]
fn rejects_unsupported_schemas_by_keyword() {
    let cases = [
        (
            json!({"type": "object", "propertyNames": {"minLength": 2, "pattern": "a"}}),
            "#: 'propertyNames other than listed names or, without named properties, one pattern or length limits' is not supported",
        ),
        (
            json!({"type": "object", "propertyNames": {"format": "uuid"}, "additionalProperties": {}}),
            "#: 'propertyNames other than listed names or, without named properties, one pattern or length limits' is not supported",
        ),
        (
            json!({"type": "object", "minProperties": 2}),
            "#: 'minProperties' together with fewer named properties is not supported",
        ),
        (
            json!({"type": "object", "minProperties": 2, "maxProperties": 1}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"properties": {"a": {}}, "minProperties": 2}),
            "#: 'minProperties' together with fewer named properties is not supported",
        ),
        (
            json!({"properties": {"a": {}}, "additionalProperties": false, "minProperties": 2}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"type": "string", "pattern": "^a", "maxLength": 0}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"type": "string", "pattern": "a(?!.*)"}),
            "#: 'pattern': no text matches the expression",
        ),
        (
            json!({"type": "string", "pattern": "(a(?=b))*"}),
            "#: 'pattern': the expression uses a repeated look-ahead, which is not supported",
        ),
        (
            json!({"type": "string", "pattern": "^(?=.*a.{25}$).*$"}),
            "#: 'pattern': its combination with the other constraints has too many states; use shorter lengths",
        ),
        (
            json!({"type": "string", "format": "hostname", "maxLength": 200}),
            "#: 'format' together with these length limits is not supported",
        ),
        (
            json!({"patternProperties": {"^(?=a)": {}}}),
            "#/patternProperties: 'pattern': the expression uses a look-ahead for property names, which is not supported",
        ),
        (
            json!({"type": "string", "pattern": ["a"]}),
            "#: 'pattern' must be a string",
        ),
        (
            json!({"properties": {"a": {"not": {}}}, "required": ["a"]}),
            "#/properties/a: no value satisfies all constraints",
        ),
        (
            json!({"items": {"type": "object"}, "uniqueItems": true}),
            "#/items: 'uniqueItems of objects with further properties' is not supported",
        ),
        (
            json!({"items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}, "uniqueItems": true, "minItems": 12}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"items": {"enum": [1, 2, 2]}, "uniqueItems": true, "minItems": 3}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"items": {}, "uniqueItems": "yes"}),
            "#: 'uniqueItems' must be true or false",
        ),
        (
            json!({"type": "text"}),
            "#: 'type' must be a JSON type name or a list of JSON type names",
        ),
        (
            json!({"$ref": "#/$defs/x"}),
            "#: '$ref' refers to '#/$defs/x', which is not part of this schema",
        ),
        (json!({"$ref": "#"}), "#: no value satisfies all constraints"),
        (
            json!({"anyOf": [false, false]}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"type": "string", "pattern": "^a[^\\s\\S]$"}),
            "#: 'pattern': no text matches the expression",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "#: two schemas of 'oneOf' may accept the same value; use 'anyOf' instead",
        ),
        (
            json!({"type": "integer", "minimum": 2, "maximum": 1}),
            "#: no value satisfies all constraints",
        ),
        (
            json!({"type": "number", "multipleOf": 0.3333}),
            "#: 'multipleOf of this value' is not supported",
        ),
        (
            json!({"type": "integer", "multipleOf": 997, "minimum": -9_000_000_000_000_000_i64}),
            "#: 'multipleOf with these bounds' is not supported",
        ),
        (
            json!({"type": "string", "pattern": "("}),
            "#: 'pattern': the expression is invalid: unclosed group",
        ),
        (
            json!({"type": "string", "pattern": "(?<=a)"}),
            "#: 'pattern': the expression is invalid: look-around, including look-ahead and look-behind, is not supported",
        ),
        (
            json!({"type": "string", "pattern": "a\\b"}),
            "#: 'pattern': the expression uses an inner anchor or a word boundary, which is not supported",
        ),
        (
            json!({"type": "array", "minItems": -1}),
            "#: 'minItems' must be an integer from 0 to 4294967295",
        ),
        (json!({"required": "a"}), "#: 'required' must be a list"),
        (
            json!({"properties": {"a": false}, "required": ["a"]}),
            "#/properties/a: no value satisfies all constraints",
        ),
        (json!(5), "#: 'schema' must be an object"),
    ];
    for (input, expected) in cases {
        assert_eq!(refusal(input.clone()), expected, "{input}");
    }
    let mut deep = json!({});
    for _ in 0..MAX_DEPTH {
        deep = json!({"items": deep});
    }
    assert!(refusal(deep).contains("nesting deeper than 100 levels"));
    let name = "x".repeat(MAX_NAME_BYTES + 1);
    assert!(
        refusal(json!({"properties": {name: {}}, "additionalProperties": true}))
            .contains("names longer than 256 bytes")
    );
    let many: Vec<String> = (0..15_000)
        .map(|at| format!("{at} {name}", name = "x".repeat(40)))
        .collect();
    assert!(refusal(json!({"enum": many})).contains("more than 200000 nodes"));
}

/// The limit is a second. Quadratic algorithms would take minutes or hours.
#[test]
fn large_schemas_are_processed_quickly_or_rejected() {
    let words = |prefix: &str, count: usize| (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
    let (one, other) = (words("a", 9_000), words("b", 9_000));
    check(
        json!({"enum": one, "not": {"enum": other}}),
        &[r#""a8999""#],
        &[r#""b0""#],
    );
    assert_eq!(
        refusal(json!({"enum": words("a", 20_000), "not": {"enum": ["a0"]}})),
        "the schema has more than 20000 values and members in total, which is the maximum"
    );
    let branches = |count: usize| (0..count).map(|at| json!({"const": at})).collect::<Vec<_>>();
    check(json!({"oneOf": branches(256)}), &["255"], &["256"]);
    for schema in [
        json!({"oneOf": branches(257)}),
        json!({"type": "integer", "oneOf": branches(257)}),
    ] {
        assert_eq!(
            refusal(schema),
            "#: 'oneOf' has 257 schemas, but at most 256 are supported; use 'anyOf' instead"
        );
    }
}
