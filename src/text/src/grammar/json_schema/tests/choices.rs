//! `oneOf`: detection of disjoint schemas.

use super::*;
use crate::grammar::validity::is_valid;

/// Returns the schema that pydantic generates for models with a default tag, which is not required.
fn pets(cat: Value, dog: Value, discriminator: Option<&str>) -> Value {
    let pet = |tag: Value, name: &str, kind: &str| json!({"type": "object", "properties": {"kind": tag, name: {"type": kind}}, "required": [name]});
    let mut union = json!({"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]});
    if let Some(name) = discriminator {
        let mapping = json!({"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"});
        union["discriminator"] = json!({"mapping": mapping, "propertyName": name});
    }
    json!({"type": "object", "properties": {"pet": union}, "required": ["pet"],
        "$defs": {"Cat": pet(cat, "lives", "integer"), "Dog": pet(dog, "good", "boolean")}})
}

fn tag(value: &str) -> Value {
    json!({"const": value, "default": value, "type": "string"})
}

#[test]
fn tag_becomes_required_to_separate_objects() {
    let word = json!({"$ref": "#/$defs/Word", "default": "dog"});
    let mut referred = pets(tag("cat"), word, None);
    referred["$defs"]["Word"] = json!({"enum": ["dog", "wolf"]});
    for input in [
        pets(tag("cat"), tag("dog"), Some("kind")),
        pets(tag("cat"), tag("dog"), None),
        pets(tag("cat"), json!({"enum": ["dog", "wolf"]}), Some("kind")),
        referred,
    ] {
        check(
            input,
            &[
                r#"{"pet":{"kind":"cat","lives":9}}"#,
                r#"{"pet":{"good":true,"kind":"dog"}}"#,
            ],
            &[
                r#"{"pet":{"lives":9}}"#,
                r#"{"pet":{"good":true}}"#,
                r#"{"pet":{"kind":"dog","lives":9}}"#,
                r#"{"pet":{"good":true,"kind":"cat"}}"#,
                r#"{"pet":{"good":true,"kind":"cow"}}"#,
            ],
        );
    }
    // A discriminator becomes required, although other properties separate the objects.
    let closed = |kind: &str, name: &str| json!({"type": "object", "properties": {"kind": tag(kind), name: {"type": "null"}}, "required": [name], "additionalProperties": false});
    let mut either = json!({"oneOf": [closed("a", "x"), closed("b", "y")]});
    let (bare, whole) = (r#"{"x":null}"#, r#"{"kind":"a","x":null}"#);
    check(either.clone(), &[bare, whole], &[r#"{"kind":"b","x":null}"#]);
    either["discriminator"] = json!({"propertyName": "kind"});
    check(either, &[whole], &[bare]);
}

/// Schemas that pydantic generates for a union of unions and for a tree of tagged nodes.
#[test]
fn choices_are_disjoint_if_all_branches_are() {
    let leaf = |kind: &str, colour: &str| json!({"type": "object", "properties": {"kind": tag(kind), "colour": tag(colour)}, "required": []});
    let cats = json!({"oneOf": [leaf("cat", "black"), leaf("cat", "white")], "discriminator": {"propertyName": "colour"}});
    check(
        json!({"oneOf": [cats, leaf("dog", "black")], "discriminator": {"propertyName": "kind"}}),
        &[
            r#"{"colour":"white","kind":"cat"}"#,
            r#"{"colour":"black","kind":"dog"}"#,
            r#"{"kind":"dog"}"#,
        ],
        &["{}", r#"{"kind":"cat"}"#, r#"{"colour":"white"}"#],
    );
    let node = json!({"type": "object", "properties": {"op": tag("neg"), "of": {"$ref": "#/$defs/E"}}, "required": ["of"]});
    let number =
        json!({"allOf": [{"properties": {"op": tag("num")}}, {"type": "object", "required": ["op"]}]});
    check(
        json!({"$ref": "#/$defs/E", "$defs": {"E": {"oneOf": [node, number], "discriminator": {"propertyName": "op"}}}}),
        &[r#"{"of":{"of":{"op":"num"},"op":"neg"},"op":"neg"}"#],
        &["{}", r#"{"of":{"of":{"op":"num"}},"op":"neg"}"#],
    );
    check(
        json!({"oneOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "integer"}]}),
        &["\"a\"", "null", "1"],
        &["true"],
    );
}

#[test]
fn accepts_disjoint_schemas() {
    let closed = |name: &str| json!({"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name], "additionalProperties": false});
    let one_of = |one: Value, other: Value| json!({"oneOf": [one, other]});
    for (one, other, good, bad) in [
        (
            closed("a"),
            closed("b"),
            &[r#"{"a":true}"#, r#"{"b":false}"#][..],
            &["{}", r#"{"a":true,"b":true}"#][..],
        ),
        // One schema that forbids the property is enough.
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}),
            json!({"type": "object", "properties": {"a": false, "b": {"type": "null"}}}),
            &[r#"{"a":null}"#, "{}", r#"{"b":null}"#],
            &[r#"{"a":null,"b":null}"#],
        ),
        (
            json!({"type": "integer", "maximum": 3}),
            json!({"type": "integer", "minimum": 5, "maximum": 8}),
            &["3", "5", "8"],
            &["4", "9"],
        ),
        (
            json!({"type": "number", "exclusiveMaximum": 0.5}),
            json!({"type": ["integer", "null"], "minimum": 0.50}),
            &["0.4", "-1", "1", "null"],
            &["0.5", "0.6"],
        ),
        (
            json!({"type": "number", "maximum": 1, "exclusiveMaximum": 4}),
            json!({"type": "number", "exclusiveMinimum": 1, "minimum": 0}),
            &["1", "1.5"],
            &["\"\""],
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!({"type": "string", "minLength": 3, "maxLength": 4}),
            &[r#""""#, r#""ab""#, r#""abcd""#],
            &[r#""abcde""#],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1}),
            json!({"type": "array", "items": {"type": "null"}, "minItems": 2}),
            &["[]", "[1]", "[null,null]"],
            &["[null]", "[1,2]"],
        ),
        (
            json!({"type": "string", "format": "date"}),
            json!({"type": "string", "format": "date-time"}),
            &[r#""2024-02-29""#, r#""2024-02-29T00:00:00Z""#],
            &[r#""2024""#],
        ),
        (
            json!({"type": ["string", "integer"], "format": "email", "maximum": 1}),
            json!({"type": ["string", "integer"], "format": "uuid", "minimum": 2}),
            &["1", "2", r#""a@b.ch""#],
            &[r#""a""#],
        ),
    ] {
        check(one_of(one.clone(), other.clone()), good, bad);
        check(one_of(other, one), good, bad);
    }
}

#[test]
fn overlapping_schemas_exclude_the_values_of_each_other() {
    let object = |name: &str, value: Value| json!({"type": "object", "properties": {name: value}});
    let requiring =
        |name: &str, value: Value| json!({"type": "object", "properties": {name: value}, "required": [name]});
    let leaf = |name: &str, kind: &str| json!({"type": "object", "properties": {"kind": tag(kind)}, "required": [name]});
    for (one, other) in [
        // Without `additionalProperties`, each object may have the other's property.
        (requiring("a", json!({})), requiring("b", json!({}))),
        (object("a", tag("x")), object("a", json!({"type": "string"}))),
        (
            object("a", json!({"enum": ["x", "y"]})),
            object("a", json!({"enum": ["y", "z"]})),
        ),
        // Null has no properties.
        (
            json!({"type": ["object", "null"], "properties": {"a": {"const": 1}}}),
            json!({"type": ["object", "null"], "properties": {"a": {"const": 2}}}),
        ),
        // The other's pattern may match the name.
        (
            requiring("a", json!({})),
            json!({"type": "object", "patternProperties": {"a": {}}, "additionalProperties": false}),
        ),
        (
            json!({"type": "integer", "maximum": 5}),
            json!({"type": "integer", "minimum": 5}),
        ),
        (json!({"maximum": 3}), json!({"type": "string"})),
        (
            json!({"type": ["integer", "string"], "maximum": 3}),
            json!({"type": ["integer", "string"], "minimum": 5}),
        ),
        (
            json!({"type": "string", "maxLength": 3}),
            json!({"type": "string", "minLength": 3}),
        ),
        // A date is also a host name.
        (
            json!({"type": "string", "format": "date"}),
            json!({"type": "string", "format": "hostname"}),
        ),
        (
            json!({"type": "string", "pattern": "^a"}),
            json!({"type": "string", "pattern": "^b"}),
        ),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"type": ["integer", "null"]}),
        ),
        // A value that the inner tag excludes still satisfies the original schema.
        (
            json!({"oneOf": [leaf("x", "one"), leaf("y", "two")]}),
            json!({"type": "object", "properties": {"kind": false}}),
        ),
        (
            json!({"oneOf": [{"$ref": "#"}, {"type": "null"}]}),
            json!({"type": "null"}),
        ),
    ] {
        for input in [json!({"oneOf": [one, other]}), json!({"oneOf": [other, one]})] {
            let root = schema(&input);
            let mut builder = Builder::new();
            let rule = match schema_rule(&mut builder, &root) {
                Ok(rule) => rule,
                Err(err) => {
                    assert!(err.is_unsupported(), "{input}: {err}");
                    continue;
                }
            };
            let grammar = Arc::new(builder.finish(rule).unwrap());
            for seed in 0..8 {
                let text = walk(&grammar, seed);
                // Doubles do not hold all numbers of the grammar.
                let Ok(value) = Json::parse(&text) else { continue };
                let is_valid = |one: &Value| is_valid(&root, &schema(one), &value, 0) != Some(false);
                assert!(!(is_valid(&one) && is_valid(&other)), "{input}: {text}");
            }
        }
    }
}

/// A quadratic algorithm would take much longer than a second.
#[test]
fn large_choices_are_processed_quickly() {
    let numbers = || 0..256;
    let name = |number: usize| format!("T{number}");
    let union: Vec<Value> = numbers()
        .map(|at| json!({"$ref": format!("#/$defs/{}", name(at))}))
        .collect();
    let mut input = json!({"oneOf": union, "discriminator": {"propertyName": "kind"}, "$defs": {}});
    for at in numbers() {
        input["$defs"][name(at)] = json!({"properties": {"kind": tag(&name(at)), "a": {}, "b": {}}});
    }
    check(input.clone(), &[r#"{"b":1,"kind":"T255"}"#], &[r#"{"b":1}"#]);
    // Thousands of branches are not expanded, and so are not known to be disjoint.
    let choices: Vec<Value> = (0..6)
        .map(|_| json!({"anyOf": vec![json!({"type": ["string", "null"]}); 100]}))
        .collect();
    let problem = refusal(json!({"oneOf": [{"allOf": choices}, {"type": "string"}]}));
    assert!(problem.contains("more than 2000 merged schemas"), "{problem}");
    let mut input =
        json!({"oneOf": [{"$ref": "#/$defs/0"}, {"type": "string"}], "$defs": {"20": {"type": "null"}}});
    for at in 0..20 {
        let next = json!({"$ref": format!("#/$defs/{}", at + 1)});
        input["$defs"][at.to_string()] = json!({"anyOf": vec![next; 50]});
    }
    let mut builder = Builder::new();
    let rule = schema_rule(&mut builder, &schema(&input));
    assert!(rule.is_err_and(|err| err.is_unsupported()));
}
