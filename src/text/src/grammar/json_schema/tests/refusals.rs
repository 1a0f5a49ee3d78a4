//! What cannot be held to.

use super::super::objects::MAX_NAME_BYTES;
use super::*;

#[test]
fn what_cannot_be_held_to_is_refused_by_name() {
    let cases = [
        (
            json!({"type": "object", "propertyNames": {"minLength": 2, "pattern": "a"}}),
            "#: 'propertyNames of anything but listed names or, where no others are named, one pattern or lengths' is not supported",
        ),
        (
            json!({"type": "object", "propertyNames": {"format": "uuid"}, "additionalProperties": {}}),
            "#: 'propertyNames of anything but listed names or, where no others are named, one pattern or lengths' is not supported",
        ),
        (
            json!({"type": "object", "minProperties": 2}),
            "#: 'minProperties' together with so few named members is not supported",
        ),
        (
            json!({"type": "object", "minProperties": 2, "maxProperties": 1}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"properties": {"a": {}}, "minProperties": 2}),
            "#: 'minProperties' together with so few named members is not supported",
        ),
        (
            json!({"properties": {"a": {}}, "additionalProperties": false, "minProperties": 2}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"type": "string", "pattern": "^a", "maxLength": 0}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"type": "string", "pattern": "a(?!.*)"}),
            "#: 'pattern': no text fits it",
        ),
        (
            json!({"type": "string", "pattern": "(a(?=b))*"}),
            "#: 'pattern': it uses a look-ahead that is repeated, which is not supported",
        ),
        (
            json!({"type": "string", "pattern": "^(?=.*a.{25}$).*$"}),
            "#: 'pattern': it takes too many states to hold to together with what else is asked; shorter lengths may help",
        ),
        (
            json!({"type": "string", "format": "hostname", "maxLength": 200}),
            "#: 'format' together with such lengths is not supported",
        ),
        (
            json!({"patternProperties": {"^(?=a)": {}}}),
            "#/patternProperties: 'pattern': it uses a look-ahead among names, which is not supported",
        ),
        (
            json!({"type": "string", "pattern": ["a"]}),
            "#: 'pattern' must be a string",
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}),
            "#: 'patternProperties of several patterns' is not supported",
        ),
        (
            json!({"properties": {"ab": {}}, "patternProperties": {"^a": {}}}),
            "#: 'patternProperties' together with names that it fits is not supported",
        ),
        (
            json!({"properties": {"a": {"not": {}}}, "required": ["a"]}),
            "#/properties/a: nothing can be both of what it asks for",
        ),
        (
            json!({"items": {"uniqueItems": true}}),
            "#/items: 'uniqueItems of anything but listed values' is not supported",
        ),
        (
            json!({"items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}, "uniqueItems": true}),
            "#: 'uniqueItems of more than 10 values' is not supported",
        ),
        (
            json!({"items": {"enum": [1, 2, 2]}, "uniqueItems": true, "minItems": 3}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"items": {}, "uniqueItems": "yes"}),
            "#: 'uniqueItems' must be true or false",
        ),
        (
            json!({"type": "text"}),
            "#: 'type' must be a JSON type's name, or a list of them",
        ),
        (
            json!({"type": "string", "format": "iri"}),
            "#: 'format of 'iri'' is not supported",
        ),
        (
            json!({"$ref": "#/$defs/x"}),
            "#: '$ref' is '#/$defs/x', which is not in this schema",
        ),
        (json!({"$ref": "#"}), "#: nothing can be both of what it asks for"),
        (
            json!({"oneOf": [{"minLength": 3}, {"type": "number"}]}),
            "#: two of the schemas of 'oneOf' may fit the same value; use 'anyOf'",
        ),
        (
            json!({"oneOf": [{"enum": [[1], "a"]}, {"const": [1.0]}]}),
            "#: two of the schemas of 'oneOf' may fit the same value; use 'anyOf'",
        ),
        (
            json!({"anyOf": [false, false]}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"type": "string", "pattern": "^a[^\\s\\S]$"}),
            "#: 'pattern': no text fits it",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "#: two of the schemas of 'oneOf' may fit the same value; use 'anyOf'",
        ),
        (
            json!({"type": "integer", "minimum": 2, "maximum": 1}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"type": "number", "multipleOf": 0.3333}),
            "#: 'multipleOf of such a number' is not supported",
        ),
        (
            json!({"type": "integer", "multipleOf": 997, "minimum": -9_000_000_000_000_000_i64}),
            "#: 'multipleOf with such bounds' is not supported",
        ),
        (
            json!({"type": "string", "pattern": "("}),
            "#: 'pattern': it cannot be read: unclosed group",
        ),
        (
            json!({"type": "string", "pattern": "(?<=a)"}),
            "#: 'pattern': it cannot be read: look-around, including look-ahead and look-behind, is not supported",
        ),
        (
            json!({"type": "string", "pattern": "a\\b"}),
            "#: 'pattern': it uses a condition inside the text, which is not supported",
        ),
        (
            json!({"type": "array", "minItems": -1}),
            "#: 'minItems' must be a whole number, and not too large",
        ),
        (json!({"required": "a"}), "#: 'required' must be a list"),
        (
            json!({"properties": {"a": false}, "required": ["a"]}),
            "#/properties/a: nothing can be both of what it asks for",
        ),
        (json!(5), "#: 'schema' must be an object"),
    ];
    for (asked, expected) in cases {
        assert_eq!(refusal(asked.clone()), expected, "{asked}");
    }
    let mut deep = json!({});
    for _ in 0..MAX_DEPTH {
        deep = json!({"items": deep});
    }
    assert!(refusal(deep).contains("such deep nesting"));
    let name = "x".repeat(MAX_NAME_BYTES + 1);
    assert!(
        refusal(json!({"properties": {name: {}}, "additionalProperties": true})).contains("such long names")
    );
    let many: Vec<String> = (0..15_000)
        .map(|at| format!("{at} {name}", name = "x".repeat(40)))
        .collect();
    assert!(refusal(json!({"enum": many})).contains("too large"));
}

/// A second is far more than these take; by the square of their sizes they take minutes and hours.
#[test]
fn large_schemas_are_understood_soon_or_refused() {
    let words = |prefix: &str, count: usize| (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
    let (one, other) = (words("a", 9_000), words("b", 9_000));
    check(
        json!({"enum": one, "not": {"enum": other}}),
        &[r#""a8999""#],
        &[r#""b0""#],
    );
    assert_eq!(
        refusal(json!({"enum": words("a", 20_000), "not": {"enum": ["a0"]}})),
        "the schema has more than 20000 values and members in all, which is the most that is taken"
    );
    let branches = |count: usize| (0..count).map(|at| json!({"const": at})).collect::<Vec<_>>();
    check(json!({"oneOf": branches(256)}), &["255"], &["256"]);
    for schema in [
        json!({"oneOf": branches(257)}),
        json!({"type": "integer", "oneOf": branches(257)}),
    ] {
        assert_eq!(
            refusal(schema),
            "#: 'oneOf' has 257 schemas, of which each is held against every other: up to 256 are taken; use 'anyOf'"
        );
    }
}
