use super::*;

fn check(schema: &str, expected: &str) {
    let read = |text: &str| serde_json::from_str::<Json>(text).unwrap();
    let normal = normal(&read(schema)).map_err(|err| err.to_string());
    let normal = normal.map(|normal| serde_json::to_string(&normal.schema).unwrap());
    let expected = match expected.strip_prefix('!') {
        Some(problem) => Err(problem.to_owned()),
        None => Ok(serde_json::to_string(&read(expected)).unwrap()),
    };
    assert_eq!(normal, expected, "{schema}");
}

#[test]
fn merges_several_schemas() {
    check(r#"{"type": "string"}"#, r#"{"type": "string"}"#);
    check(
        r#"{"allOf": [{"type": ["number", "null"], "minimum": 1}, {"type": "integer", "minimum": 3, "maximum": 9}]}"#,
        r#"{"type": ["integer"], "minimum": 3, "maximum": 9}"#,
    );
    check(
        r##"{"$defs": {"p": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
            "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"b": {}}, "required": ["b"]}]}"##,
        r#"{"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "b"],
            "$defs": {"p": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}}"#,
    );
    // An additional property of one schema is a named property of the other.
    check(
        r#"{"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": false},
                      {"properties": {"a": {"minimum": 1}, "b": {}}}]}"#,
        r#"{"properties": {"a": {"type": "integer", "minimum": 1}, "b": false}, "additionalProperties": false}"#,
    );
    check(
        r#"{"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
        r#"{"anyOf": [{"required": ["a"], "properties": {"a": {}, "b": {}}}, {"required": ["b"], "properties": {"a": {}, "b": {}}}]}"#,
    );
    check(
        r#"{"type": "string", "oneOf": [{"const": "a"}, {"const": 1}]}"#,
        r#"{"anyOf": [{"const": "a", "type": "string"}]}"#,
    );
    check(
        r#"{"allOf": [{"pattern": "a"}, {"pattern": "b", "x-order": 1}, {"pattern": "c"}]}"#,
        r#"{"pattern": ["a", "b", "c"]}"#,
    );
    check(
        r#"{"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {}}, "additionalProperties": {"type": "null"}}"#,
        r#"{"properties": {"a": {}, "b": {"type": "null"}}, "additionalProperties": false}"#,
    );
    check(
        r#"{"enum": ["a", "b", "c"], "not": {"enum": ["b"]}}"#,
        r#"{"enum": ["a", "c"]}"#,
    );
    check(
        r#"{"type": ["integer", "string", "null"], "not": {"type": "number"}}"#,
        r#"{"type": ["string", "null"]}"#,
    );
    check(
        r#"{"properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}}"#,
        r#"{"properties": {"a": false, "b": {}}}"#,
    );
    check(
        r#"{"properties": {"a": {"allOf": [{"type": "null"}, {"type": "string"}]}}}"#,
        r#"{"properties": {"a": false}}"#,
    );
}

#[test]
fn ignores_unused_unsatisfiable_schemas() {
    let unsatisfiable = r#"{"allOf": [{"type": "string"}, {"type": "null"}]}"#;
    check(
        &format!(
            r#"{{"type": "boolean", "$defs": {{"D": {unsatisfiable}, "E": {{"not": {{"multipleOf": 2}}}}}}}}"#
        ),
        r#"{"type": "boolean", "$defs": {}}"#,
    );
    check(
        &format!(
            r##"{{"properties": {{"a": {{"$ref": "#/$defs/D"}}}}, "$defs": {{"D": {unsatisfiable}}}}}"##
        ),
        r##"{"properties": {"a": {"$ref": "#/$defs/D"}}, "$defs": {"D": false}}"##,
    );
    check(
        &format!(r#"{{"anyOf": [{unsatisfiable}, {{"type": "null"}}]}}"#),
        r#"{"anyOf": [false, {"type": "null"}]}"#,
    );
    check(
        r#"{"anyOf": [{"type": "string"}, {"type": "null"}], "const": null}"#,
        r#"{"anyOf": [{"type": "null", "const": null}]}"#,
    );
    check(
        r#"{"propertyNames": {"pattern": "a"}, "properties": {}, "additionalProperties": false}"#,
        r#"{"properties": {}, "additionalProperties": false}"#,
    );
    check(
        r#"{"propertyNames": {"pattern": "a"}, "properties": {}}"#,
        r#"{"properties": {}, "patternProperties": {"a": true}, "additionalProperties": false}"#,
    );
}

#[test]
fn rejects_schemas_that_cannot_be_merged() {
    for (schema, problem) in [
        (
            r#"{"allOf": [{"type": "string"}, {"type": "null"}]}"#,
            "#: no value satisfies all constraints",
        ),
        (
            r#"{"allOf": [{"format": "date"}, {"format": "time"}]}"#,
            "#: 'two different values of format' is not supported",
        ),
        (
            r##"{"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}, {}]}}}"##,
            "#/properties/a: 'recursion through combined schemas' is not supported",
        ),
        (r#"{"not": {}}"#, "#: no value satisfies all constraints"),
        (
            r#"{"type": "number", "not": {"multipleOf": 2}}"#,
            "#: 'not of anything but one type, const, enum or required name' is not supported",
        ),
    ] {
        check(schema, &format!("!{problem}"));
    }
}
