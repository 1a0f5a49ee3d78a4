use serde_json::{Value, json};

use super::*;
use crate::text::grammar::tests::{accepts, grammar, walk};

fn schema(schema: &Value) -> Json {
    serde_json::from_str(&schema.to_string()).unwrap()
}

/// Texts that a schema's grammar takes, and others that it does not.
fn check(asked: Value, good: &[&str], bad: &[&str]) {
    let asked = schema(&asked);
    let grammar = grammar(|builder| schema_rule(builder, &asked).unwrap());
    for text in good {
        assert!(accepts(&grammar, text), "{asked:?} must take {text}");
        serde_json::from_str::<Value>(text).unwrap();
    }
    for text in bad {
        assert!(!accepts(&grammar, text), "{asked:?} must not take {text}");
    }
}

fn refusal(asked: Value) -> String {
    let asked = schema(&asked);
    schema_rule(&mut Builder::new(), &asked).unwrap_err().to_string()
}

#[test]
fn objects_have_their_members_in_order() {
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
fn other_members_are_as_the_schema_says() {
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
fn lists_have_their_lengths() {
    let numbers = |extra: Value| {
        let mut all = json!({"type": "array", "items": {"type": "integer"}});
        for (name, value) in extra.as_object().unwrap() {
            all[name] = value.clone();
        }
        all
    };
    check(
        numbers(json!({})),
        &["[]", "[1]", "[1, 2,3]", "[\n 1,\n 2\n]"],
        &["[", "[1,]", "[,1]", "[\"a\"]"],
    );
    check(
        numbers(json!({"minItems": 2, "maxItems": 3})),
        &["[1,2]", "[1,2,3]"],
        &["[]", "[1]", "[1,2,3,4]"],
    );
    check(numbers(json!({"maxItems": 0})), &["[]"], &["[1]"]);
    check(numbers(json!({"minItems": 1})), &["[1]", "[1,2]"], &["[]"]);
    let pair = json!({"prefixItems": [{"type": "string"}, {"type": "null"}], "items": false, "minItems": 1});
    check(
        pair,
        &["[\"a\"]", "[\"a\",null]"],
        &["[]", "[\"a\",null,1]", "[null]"],
    );
    check(
        json!({"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}),
        &["[]", "[\"a\"]", "[\"a\",null]"],
        &["[null]", "[\"a\",1]"],
    );
    let open = json!({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "minItems": 2, "maxItems": 3});
    check(
        open,
        &["[\"a\",1]", "[\"a\",1,2]"],
        &["[\"a\"]", "[\"a\",1,2,3]", "[1,1]"],
    );
}

#[test]
fn strings_and_numbers_are_bounded() {
    check(
        json!({"type": "string", "minLength": 1, "maxLength": 3}),
        &[r#""a""#, r#""äöü""#, r#""\n\"\u00e9""#, "\"👋👋👋\""],
        &[r#""""#, r#""abcd""#, "\"\n\"", r#""\ud800""#, "\"a"],
    );
    check(
        json!({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}),
        &[r#""AB-12""#],
        &[r#""AB-""#, r#""xAB-1""#, "\"AB-٣\""],
    );
    check(
        json!({"pattern": "b\"?"}),
        &[r#""abc""#, r#""b""#, r#""b\"""#],
        &[r#""ac""#],
    );
    check(
        json!({"type": "integer", "minimum": -1, "exclusiveMaximum": 11}),
        &["-1", "0", "9", "10"],
        &["-2", "11", "-0", "01"],
    );
    check(
        json!({"type": "number", "minimum": 0.5, "maximum": 1}),
        &["0.5", "0.75", "1", "1.0"],
        &["0.49", "1.1", "0"],
    );
    check(
        json!({"type": "number"}),
        &["-0.5e+10", "0", "12E3"],
        &["01", ".5", "1.", "+1"],
    );
}

#[test]
fn formats_are_held_to() {
    let format = |name: &str| json!({"type": "string", "format": name});
    check(
        format("date"),
        &[
            r#""2026-02-28""#,
            r#""2026-12-31""#,
            r#""2028-02-29""#,
            r#""2000-02-29""#,
        ],
        &[
            r#""2026-02-29""#,
            r#""1900-02-29""#,
            r#""2026-02-30""#,
            r#""2026-04-31""#,
            r#""26-01-01""#,
        ],
    );
    check(
        format("date-time"),
        &[r#""2026-11-21T09:05:00Z""#, r#""2026-11-21T23:59:59.5+01:00""#],
        &[r#""2026-11-21""#, r#""2026-11-21T24:00:00Z""#],
    );
    check(
        format("uuid"),
        &[r#""123e4567-e89b-12d3-a456-426614174000""#],
        &[r#""123e4567""#],
    );
    check(
        format("ipv4"),
        &[r#""255.0.10.1""#],
        &[r#""256.0.0.1""#, r#""1.2.3""#],
    );
    check(
        format("email"),
        &[r#""a.b+c@example.org""#],
        &[r#""a@b""#, r#""@b.org""#],
    );
    check(
        format("duration"),
        &[r#""P1Y2M3DT4H5M6S""#, r#""PT36H""#, r#""P2W""#, r#""P1DT5M""#],
        &[
            r#""P""#,
            r#""PT""#,
            r#""P1D2W""#,
            r#""P1Y2D""#,
            r#""1D""#,
            r#""P1DT""#,
        ],
    );
    check(
        format("hostname"),
        &[r#""localhost""#, r#""a-1.example.org""#],
        &[r#""""#, r#""-a""#, r#""a-.b""#, r#""a..b""#, r#""a_b""#],
    );
    check(
        format("ipv6"),
        &[
            r#""::""#,
            r#""::1""#,
            r#""1::""#,
            r#""2001:db8::8a2e:370:7334""#,
            r#""1:2:3:4:5:6:7:8""#,
            r#""1:2:3:4:5:6:7::""#,
            r#""1::8""#,
        ],
        &[
            r#"":""#,
            r#""1:2:3:4:5:6:7""#,
            r#""1::2::3""#,
            r#""1:2:3:4:5:6:7::8""#,
            r#""12345::""#,
        ],
    );
    check(
        format("uri"),
        &[
            r#""https://example.org""#,
            r#""http://a.b:80/x/y%20z?q=1&r#s""#,
            r#""mailto:a@b.org""#,
            r#""urn:isbn:1""#,
        ],
        &[
            r#""example.org""#,
            r#""https://""#,
            r#""a:b c""#,
            r#""a:%2""#,
            r#""1a:b""#,
        ],
    );
    check(
        format("base64"),
        &[r#""""#, r#""YQ==""#, r#""YWI=""#, r#""YWJj""#],
        &[r#""YQ""#, r#""YQ=""#, r#""Y_==""#],
    );
    check(
        format("uuid4"),
        &[r#""123e4567-e89b-42d3-a456-426614174000""#],
        &[r#""123e4567-e89b-12d3-a456-426614174000""#],
    );
    check(format("password"), &[r#""any \"text\"""#], &["1"]);
}

#[test]
fn a_text_fits_all_that_is_demanded_of_it() {
    check(
        json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}),
        &[r#""ab""#, r#""abc""#],
        &[r#""a""#, r#""abcd""#, r#""aB""#],
    );
    check(
        json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2}),
        &[r#""ab""#, r#""abcdefgh""#],
        &[r#""a""#, r#""aB""#],
    );
    check(
        json!({"type": "string", "format": "ends_with", "allOf": [{"pattern": "^é.*"}, {"pattern": ".*\"$"}]}),
        &[r#""é\"""#, r#""é…\"""#],
        &[r#""é""#, r#""\"""#, r#""e\"""#],
    );
    check(
        json!({"type": "string", "format": "date", "pattern": "^2028-02"}),
        &[r#""2028-02-29""#],
        &[r#""2028-03-01""#, r#""2028-02-30""#, r#""2028-02""#],
    );
    // The expression says what the client means by a format that nobody else knows.
    check(
        json!({"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"}),
        &[r#""V1StGXR8_Z5jdHi6B-myT""#],
        &[r#""V1StGXR8""#],
    );
    check(
        json!({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}),
        &[r#""https://example.org/""#],
        &[r#""""#],
    );
    for most in [60, 500, 501, 2048, 1_000_000] {
        let long = format!("\"https://example.org/{}\"", "x".repeat(most - 19));
        check(
            json!({"type": "string", "format": "uri", "maxLength": most}),
            &[r#""https://example.org/a?b=c#d""#],
            &[&long],
        );
    }
    check(
        json!({"type": "string", "format": "uri", "maxLength": 12}),
        &[r#""http://a.org""#],
        &[r#""https://a.org""#],
    );
    check(
        json!({"type": "string", "pattern": "^(?=.{2,3}$)(?!.*ab)[a-c]*$"}),
        &[r#""aa""#, r#""bca""#],
        &[r#""a""#, r#""aab""#, r#""aaaa""#],
    );
    check(
        json!({"type": "string", "pattern": "(?!a)"}),
        &[r#""""#, r#""ba""#, r#""aba""#],
        &[],
    );
    check(
        json!({"type": "string", "pattern": "^(?!a)"}),
        &[r#""""#, r#""ba""#],
        &[r#""a""#, r#""\u0061""#, r#""abc""#],
    );
    check(
        json!({"type": "string", "pattern": "^$|^a+$|^b"}),
        &[r#""""#, r#""aa""#, r#""bc""#],
        &[r#""ac""#, r#""cb""#],
    );
    check(
        json!({"type": "string", "pattern": "^[(?=]+$"}),
        &[r#""(=?""#],
        &[r#""a""#],
    );
}

/// What is begun can be ended, however the demands bear on each other.
#[test]
fn no_text_is_begun_in_vain() {
    let demands = [
        json!({"pattern": "^[ab]*c[0-9]{3}$", "maxLength": 6}),
        json!({"format": "email", "maxLength": 12}),
        json!({"pattern": "^a?(?=[bc]{2,3}$)(?!bb)[a-z]*$"}),
    ];
    for demand in demands {
        let asked = schema(&demand);
        let grammar = grammar(|builder| schema_rule(builder, &asked).unwrap());
        for seed in 0..40 {
            // It fails where nothing can follow.
            let text = walk(&grammar, seed);
            assert!(text.chars().count() <= 14, "{text}");
        }
    }
}

#[test]
fn annotations_and_what_is_always_met_demand_nothing() {
    check(
        json!({"type": "object", "$anchor": "a", "x-order": ["a"], "nullable": true, "minProperties": 0, "propertyNames": {"type": "string"},
               "contentSchema": {}, "properties": {"a": {"type": "integer", "x-hint": {"minimum": 5}}}, "additionalProperties": {"type": "null"}}),
        &["{}", r#"{"a":1,"b":null}"#],
        &["null", r#"{"a":null}"#, r#"{"b":1}"#],
    );
    check(
        json!({"$ref": "#/$defs/n", "x-order": 1, "$defs": {"n": {"type": "integer"}}}),
        &["1"],
        &["null"],
    );
}

#[test]
fn names_may_be_listed_or_of_a_pattern() {
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
fn schemas_are_combined_and_referred_to() {
    check(
        json!({"enum": ["a", 1, null, {"x": [1.5]}]}),
        &[r#""a""#, "1", "null", r#"{"x":[1.5]}"#],
        &[r#""b""#],
    );
    check(json!({"type": "string", "enum": ["a", 1]}), &[r#""a""#], &["1"]);
    check(json!({"const": "é\""}), &[r#""é\"""#], &[r#""é""#]);
    check(
        json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        &["1", "null"],
        &["true"],
    );
    check(json!({"allOf": [{"type": "integer"}]}), &["1"], &["null"]);
    let tree = json!({
        "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "w": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                           "required": ["v", "w"], "additionalProperties": false}},
        "$ref": "#/$defs/node"
    });
    check(
        tree,
        &[
            r#"{"v":1,"w":null}"#,
            r#"{"v":1,"w":{"v":2,"w":{"v":3,"w":null}}}"#,
        ],
        &[r#"{"v":1,"w":{"v":2,"w":null}"#, r#"{"v":1}"#],
    );
    let shape = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"], "additionalProperties": false});
    let shapes = json!({"oneOf": [shape("circle"), shape("square"), {"type": "integer"}], "discriminator": {"propertyName": "kind"}});
    check(
        shapes,
        &[r#"{"kind":"circle"}"#, r#"{"kind":"square"}"#, "1"],
        &[r#"{"kind":"x"}"#],
    );
}

#[test]
fn schemas_are_put_together() {
    let base = json!({"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "additionalProperties": false});
    let mut either = base.clone();
    either["anyOf"] = json!([{"required": ["a"]}, {"required": ["b"]}]);
    check(
        either,
        &[r#"{"a":1}"#, r#"{"b":"x"}"#, r#"{"a":1,"b":"x"}"#],
        &["{}", r#"{"c":1}"#],
    );
    check(
        json!({"allOf": [base, {"required": ["a"]}, {"properties": {"a": {"minimum": 5, "maximum": 6}}}]}),
        &[r#"{"a":5}"#, r#"{"a":6,"b":""}"#],
        &[r#"{"a":4}"#, r#"{"b":""}"#],
    );
    check(json!({"anyOf": [{}], "type": "string"}), &["\"a\""], &["1"]);
    check(
        json!({"type": ["integer", "string"], "not": {"type": "integer"}}),
        &["\"a\""],
        &["1"],
    );
    check(
        json!({"properties": {"a": false, "b": {}}}),
        &["{}", r#"{"b":1}"#],
        &[r#"{"a":1}"#],
    );
}

#[test]
fn multiples_are_told_digit_by_digit() {
    check(
        json!({"type": "integer", "multipleOf": 7}),
        &["0", "7", "14", "-21", "7000", "1001"],
        &["1", "07", "-0", "15", "7.0", "-"],
    );
    check(
        json!({"type": "number", "multipleOf": 5, "minimum": 0}),
        &["0", "5", "10", "12345"],
        &["-5", "6"],
    );
    check(
        json!({"type": "integer", "multipleOf": 5, "minimum": -7, "exclusiveMaximum": 10}),
        &["-5", "0", "5"],
        &["10", "-10", "1"],
    );
    check(
        json!({"type": "integer", "multipleOf": 5, "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64}),
        &["0", "-5", "9007199254740990"],
        &["1", "-0", "9007199254740995", "-9007199254740995"],
    );
    check(
        json!({"type": "integer", "multipleOf": 7, "exclusiveMinimum": 7}),
        &["14", "7007"],
        &["0", "7", "-14", "15"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99.5}),
        &["0", "0.01", "99.5", "99.50", "42"],
        &["-0.01", "99.51", "0.001", "100"],
    );
    check(
        json!({"type": "integer", "multipleOf": 0.01, "minimum": 3}),
        &["3", "10"],
        &["2", "3.5"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.01}),
        &["0", "1.5", "-2.25", "10"],
        &["1.005", ".5", "1e2"],
    );
}

#[test]
fn members_have_names_of_a_pattern() {
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
fn what_cannot_be_held_to_is_refused_by_name() {
    let cases = [
        (
            json!({"type": "object", "propertyNames": {"minLength": 2}}),
            "#: 'propertyNames' is not supported",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            "#: 'minProperties' is not supported",
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
            "#/items: 'uniqueItems' is not supported",
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
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "#: two of the schemas of 'oneOf' may fit the same value; use 'anyOf'",
        ),
        (
            json!({"type": "integer", "minimum": 2, "maximum": 1}),
            "#: nothing can be both of what it asks for",
        ),
        (
            json!({"type": "number", "multipleOf": 2.5}),
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
    let many: Vec<String> = (0..30_000).map(|at| format!("name {at}")).collect();
    assert!(refusal(json!({"enum": many})).contains("too large"));
}

/// As zod writes any integer; a real schema has many.
#[test]
fn many_members_have_wide_bounds() {
    let member = |at: i64| json!({"type": "integer", "minimum": -9_007_199_254_740_991_i64 + at / 2, "maximum": 9_007_199_254_740_991_i64});
    let properties: serde_json::Map<String, Value> =
        (0..120).map(|at| (format!("p{at:03}"), member(at))).collect();
    check(
        json!({"type": "object", "properties": properties, "additionalProperties": false}),
        &[r#"{"p000":-9007199254740991,"p001":9007199254740991,"p119":0}"#],
        &[
            r#"{"p000":-9007199254740992}"#,
            r#"{"p003":-9007199254740991}"#,
            r#"{"p001":9007199254740992}"#,
        ],
    );
    check(
        json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}),
        &["-9223372036854775808", "18446744073709551615"],
        &["-9223372036854775809", "18446744073709551616"],
    );
    check(
        json!({"type": "integer", "minimum": u64::MAX - 1, "exclusiveMinimum": u64::MAX - 2}),
        &["18446744073709551614"],
        &["18446744073709551613"],
    );
}

/// Whatever is chosen, the value is one.
#[test]
fn every_walk_is_a_value() {
    let asked = schema(&json!({
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": -3.25, "maximum": 12.5}, "s": {"type": "string", "maxLength": 5},
                       "l": {"type": "array", "items": {"enum": ["a", {"b": 1}]}, "minItems": 1, "maxItems": 3},
                       "d": {"type": "string", "format": "date"}},
        "required": ["n", "l"], "additionalProperties": {"type": "integer", "minimum": 5, "maximum": 25}
    }));
    let grammar = grammar(|builder| schema_rule(builder, &asked).unwrap());
    for seed in 0..60 {
        let text = walk(&grammar, seed);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}"));
        let n = value["n"].as_f64().unwrap();
        assert!((-3.25..=12.5).contains(&n), "{text}");
        assert!((1..=3).contains(&value["l"].as_array().unwrap().len()), "{text}");
        assert!(
            value
                .get("s")
                .is_none_or(|s| s.as_str().unwrap().chars().count() <= 5),
            "{text}"
        );
        for (name, value) in value.as_object().unwrap() {
            assert!(
                ["n", "s", "l", "d"].contains(&name.as_str()) || (5..=25).contains(&value.as_i64().unwrap()),
                "{text}"
            );
        }
    }
}

/// What pydantic 2.14 (`TypeAdapter.json_schema`) and zod 4.6 (`toJSONSchema`, also for draft 7, which OpenAI's
/// client takes) make of their field types, one a line:
/// its name, whether it can be held to, and the schema.
#[test]
fn schemas_of_clients_can_be_held_to() {
    let recorded = include_str!("clients.txt");
    for line in recorded.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.splitn(3, ' ');
        let (name, held, text) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        let asked = serde_json::from_str(text).unwrap();
        let mut builder = Builder::new();
        let rule = schema_rule(&mut builder, &asked);
        match held {
            "yes" => assert!(
                builder
                    .finish(rule.unwrap_or_else(|err| panic!("{name}: {err}")))
                    .is_ok()
            ),
            "no" => assert!(rule.is_err_and(|err| err.is_unsupported()), "{name}"),
            _ => panic!("{line}"),
        }
    }
}
