mod choices;
mod clients;
mod numbers;
mod objects;
mod refusals;
mod strings;
mod suite;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::grammar::matcher::Automaton;
use crate::grammar::tests::{accepts, grammar, walk};

fn schema(schema: &Value) -> Json {
    serde_json::from_str(&schema.to_string()).unwrap()
}

/// Checks texts that a schema's grammar accepts, and others that it rejects.
fn check(input: Value, good: &[&str], bad: &[&str]) {
    check_schema(schema(&input), good, bad);
}

fn check_schema(input: Json, good: &[&str], bad: &[&str]) {
    let grammar = grammar(|builder| schema_rule(builder, &input).unwrap());
    for text in good {
        assert!(accepts(&grammar, text), "{input:?} must accept {text}");
        serde_json::from_str::<Value>(text).unwrap();
    }
    for text in bad {
        assert!(!accepts(&grammar, text), "{input:?} must reject {text}");
    }
}

fn refusal(input: Value) -> String {
    let input = schema(&input);
    schema_rule(&mut Builder::new(), &input).unwrap_err().to_string()
}

#[test]
fn lists_respect_item_limits() {
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
fn unique_items_do_not_repeat() {
    let colours = |extra: Value| {
        let mut all = json!({"$defs": {"c": {"enum": ["red", "blue", 3, "red"]}}, "type": "array", "items": {"$ref": "#/$defs/c"}, "uniqueItems": true});
        for (name, value) in extra.as_object().unwrap() {
            all[name] = value.clone();
        }
        all
    };
    check(
        colours(json!({})),
        &["[]", "[\"red\"]", "[3, \"blue\",\"red\"]", "[ ]"],
        &["[3,3]", "[\"red\",3,\"red\"]", "[,3]", "[3,]", "[4]"],
    );
    check(
        colours(json!({"minItems": 2, "maxItems": 2})),
        &["[3,\"red\"]"],
        &["[]", "[3]", "[3,\"red\",\"blue\"]"],
    );
    check(
        json!({"items": {"type": "boolean"}, "uniqueItems": true}),
        &["[true,false]"],
        &["[true,true]", "[true,false,true]"],
    );
    check(
        json!({"items": {"type": "string"}, "uniqueItems": true, "maxItems": 1}),
        &["[]", "[\"a\"]"],
        &["[\"a\",\"b\"]"],
    );
}

#[test]
fn free_unique_items_do_not_repeat() {
    check(
        json!({"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": true}),
        &[
            "[]",
            r#"["a"]"#,
            r#"["a", "ab","b"]"#,
            r#"["\"", "\\"]"#,
            r#"["a","a\""]"#,
        ],
        &[
            r#"["a","a"]"#,
            r#"["a","b", "a"]"#,
            r#"["a","\u0061"]"#,
            r#"["\u00e4","ä"]"#,
            r#"["\"","\""]"#,
            r#"["a",""]"#,
            "[1]",
        ],
    );
    check(
        json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "minItems": 2}),
        &["[1,2]", "[0, 1,-1]", "[1,11,111]"],
        &[
            "[1]",
            "[1,1]",
            "[1,2,1 ]",
            "[1 , 1]",
            "[-7,7,-7]",
            "[0,0]",
            "[1,01]",
        ],
    );
    check(
        json!({"type": "array", "items": {"type": ["integer", "string"]}, "uniqueItems": true, "maxItems": 2}),
        &[r#"[1,"1"]"#, r#"["",1]"#],
        &[r#"["1","1"]"#, "[1,1]", "[1,2,3]"],
    );
    // Each list has items of its own.
    let tags = json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}, "required": ["tags"]});
    check(
        json!({"type": "array", "items": tags}),
        &[r#"[{"tags":["a","b"]},{"tags":["a"]},{"tags":["b","a"]}]"#],
        &[r#"[{"tags":["a"]},{"tags":["b","b"]}]"#],
    );
}

/// Lists of unique items of all kinds: no value repeats in another spelling, and no answer gets stuck.
#[test]
fn unique_items_have_one_spelling() {
    let unique = |items: Value| json!({"type": "array", "items": items, "uniqueItems": true});
    check(
        unique(json!({"type": "string", "maxLength": 1})),
        &[r#"["a", "b",""]"#, r#"["\"","ä"]"#],
        &[r#"["a","a"]"#, r#"["ab"]"#, r#"["ä","\u00e4"]"#, r#"["",""]"#],
    );
    check(
        unique(json!({"type": "number"})),
        &["[1,1.5, -1.5]", "[0.1,10,100]", "[0,-0.000001]"],
        &[
            "[1,1.0]",
            "[1.50]",
            "[1e2]",
            "[0,-0]",
            "[0.1,0.1]",
            "[0.1234567]",
            "[1234567890.5]",
        ],
    );
    check(
        unique(json!({"type": "integer", "minimum": 8, "maximum": 10})),
        &["[8,9,10]", "[]"],
        &["[8,8]", "[8,9,10,8]", "[11]", "[8,9,10,"],
    );
    check(
        unique(json!({"type": ["string", "null"]})),
        &[r#"[null,"null"]"#],
        &["[null,null]", "[null, null]"],
    );
    let point = json!({"type": "object", "properties": {"y": {"type": "integer"}, "x": {"type": "integer"}}, "required": ["y"]});
    check(
        unique(point.clone()),
        &[r#"[{"x":1,"y":2}, {"y":2},{"x":1,"y":3}]"#],
        &[
            r#"[{"y":2,"x":1}]"#,
            r#"[{"y": 2}]"#,
            r#"[{"y":2},{"y":2}]"#,
            r#"[{"x":1,"y":2},{"y":1},{"x":1,"y":2}]"#,
        ],
    );
    // A listed object and an object of a schema have the same spelling.
    check(
        unique(
            json!({"anyOf": [point, {"const": {"y": 1.0, "x": 2}}, {"enum": [1.0, "a", 2, 3, 4, 5, 6, 7, 8, 9, 10]}]}),
        ),
        &[r#"[{"x":2,"y":1},1,10]"#],
        &[
            r#"[{"x":2,"y":1},{"x":2,"y":1}]"#,
            "[1.0]",
            "[1,1]",
            r#"[{"y":1.0,"x":2}]"#,
        ],
    );
    check(
        unique(json!({"type": "array", "items": {"type": "boolean"}})),
        &["[[],[true,true],[true]]"],
        &["[[],[]]", "[[true, true]]", "[[true],[true]]"],
    );
    check(
        json!({"uniqueItems": true}),
        &[r#"[1,"1",[1],null,true]"#, "[[1],[2]]"],
        &["[1,1]", "[[1],[1]]", "[{}]", "[1.0]"],
    );
    check(
        json!({"prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "uniqueItems": true, "minItems": 2}),
        &["[true,false]", "[false,true,1]"],
        &["[true,true]", "[true]", "[true,false,true]"],
    );
    check(
        unique(json!({"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]})),
        &["[12,1,2]", "[1,2,3,4,5,6,7,8,9,10,11,12]"],
        &["[1,1]", "[1,2,3,4,5,6,7,8,9,10,11,12,", "[13]"],
    );
    // Each list has items of its own.
    let rows = json!({"type": "array", "items": unique(json!({"type": "number"}))});
    check(rows, &["[[1,2],[1, 2],[]]"], &["[[1,2],[1,1]]"]);
}

#[test]
fn unique_items_must_exist() {
    let of = |items: Value, least: u32| json!({"type": "array", "items": items, "uniqueItems": true, "minItems": least});
    let word = json!({"type": "string", "pattern": "^(a|b)c?$"});
    check(
        of(word.clone(), 4),
        &[r#"["a","b","ac","bc"]"#],
        &[r#"["a","b","ac"]"#],
    );
    assert!(refusal(of(word, 5)).contains("no value satisfies all constraints"));
    check(
        of(json!({"type": "string"}), 3),
        &[r#"["","a","b"]"#],
        &[r#"["","a"]"#],
    );
    for (schema, message) in [
        (
            of(json!({"type": "object"}), 0),
            "uniqueItems of objects with further properties",
        ),
        (
            of(
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                0,
            ),
            "uniqueItems of objects with further properties",
        ),
        (
            of(of(json!({"type": "string"}), 0), 0),
            "uniqueItems in items of such a list",
        ),
        (
            of(json!({"type": "number", "minimum": 1e16}), 0),
            "uniqueItems of numbers with these limits",
        ),
    ] {
        let refused = refusal(schema);
        assert!(refused.contains(message), "{refused}");
    }
}

#[test]
fn equal_numbers_compare_by_value() {
    let items = json!({"enum": [1, 1.0, 2, {"a": 1, "b": 0}, {"b": -0.0, "a": 1.0}]});
    check(
        json!({"type": "array", "uniqueItems": true, "items": items}),
        &["[1,2]", "[2,{\"a\":1,\"b\":0}]"],
        &["[1,1.0]", "[1.0,1]", "[{\"a\":1,\"b\":0},{\"b\":-0.0,\"a\":1.0}]"],
    );
    let both =
        json!({"allOf": [{"enum": [1, 2, 9007199254740993_u64]}, {"enum": [1.0, 9007199254740992_u64]}]});
    check(both, &["1"], &["2", "9007199254740993"]);
    check(json!({"enum": [1, 2], "not": {"const": 2.0}}), &["1"], &["2"]);
    // Regardless of the number of digits and of exponents.
    let both = r#"{"allOf": [{"enum": [0.1000000000000000, -1.50000000000000000, 3.141592653589793238]},
        {"enum": [0.1, -15e-1, 3.141592653589793239]}]}"#;
    check_schema(
        Json::parse(both).unwrap(),
        &["0.1", "-1.5"],
        &["3.141592653589793", "1"],
    );
}

#[test]
fn drops_unsatisfiable_branches() {
    for keyword in ["anyOf", "oneOf"] {
        check(json!({keyword: [{"type": "string"}, false]}), &["\"\""], &["1"]);
    }
    let apart = json!({"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
        {"properties": {"a": {"const": 2}}, "required": ["a"]}]});
    check(apart, &["{\"a\":1}", "{\"a\":2}"], &["{}", "1"]);
}

#[test]
fn strings_and_numbers_respect_limits() {
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
fn annotations_and_trivial_keywords_constrain_nothing() {
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
    check(
        json!({"$ref": "#/$defs/A%3CB%3E%20%C3%A9~1", "$defs": {"A<B> é/": {"type": "integer"}}}),
        &["1"],
        &["null"],
    );
}

#[test]
fn resolves_combinations_and_references() {
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
fn merges_combined_schemas() {
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
fn every_generated_text_is_a_valid_value() {
    let input = schema(&json!({
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": -3.25, "maximum": 12.5}, "s": {"type": "string", "maxLength": 5},
                       "l": {"type": "array", "items": {"enum": ["a", {"b": 1}]}, "minItems": 1, "maxItems": 3},
                       "d": {"type": "string", "format": "date"}},
        "required": ["n", "l"], "additionalProperties": {"type": "integer", "minimum": 5, "maximum": 25}
    }));
    let grammar = grammar(|builder| schema_rule(builder, &input).unwrap());
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

/// The number of positions is limited by the number of possible next bytes.
#[test]
fn long_enums_share_prefixes() {
    let id = |number: u64| format!("{:06x}", number.wrapping_mul(0x9e37_79b9) & 0xff_ffff);
    let ids: Vec<String> = (0..15_000).map(id).collect();
    let input = schema(&json!({"enum": ids}));
    let grammar = grammar(|builder| schema_rule(builder, &input).unwrap());
    assert!(accepts(&grammar, &format!("\"{}\"", ids[7])));
    assert!(!accepts(&grammar, "\"12345\""));
    let mut automaton = Automaton::new(Arc::clone(&grammar)).unwrap();
    let start = automaton.start();
    let state = automaton.read(start, b"\"").unwrap();
    assert!(automaton.positions(state).count() <= 256);
    check(
        json!({"enum": ["", "a", "ab", "abc", "b", 1, 12, null]}),
        &["\"\"", "\"a\"", "\"ab\"", "\"abc\"", "\"b\"", "1", "12", "null"],
        &["\"abcd\"", "\"ac\"", "13", "nul", "\"a"],
    );
}
