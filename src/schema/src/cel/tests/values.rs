//! Comparison with the values, errors and costs of expressions in kube-apiserver. `e2e/fixtures/cel_values.go`
//! writes them.

use std::fs;
use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube_cel::cel::{
    Value as Cel,
    objects::{Key, OptionalValue},
};
use serde_json::{Value, json};

use crate::cel::checker::{Checked, Decl, Environment};
use crate::cel::cost::estimate;
use crate::cel::dynamic::{self, Phase, Program};
use crate::cel::library::type_name;
use crate::cel::{LIBRARY, budget, error_text, lists, logic, pairs, parse, to_cel};
use crate::node::Node;

/// Expressions that this server rejects or accepts otherwise.
const REJECTED: &[&str] = &[
    // Messages of protobuf.
    "google.protobuf.Any{}",
    "google.protobuf.BoolValue{}",
    "google.protobuf.Duration{seconds: 5}",
    "google.protobuf.Empty{}",
    "google.protobuf.Int64Value",
    "google.protobuf.Int64Value{bogus: 1}",
    "google.protobuf.Int64Value{value: 'a'}",
    "google.protobuf.Int64Value{value: 1}",
    "google.protobuf.ListValue{}",
    "google.protobuf.NullValue.NULL_VALUE",
    "google.protobuf.StringValue{value: 'a'} == 'a'",
    "google.protobuf.Struct{}",
    "google.protobuf.Timestamp{seconds: 5}",
    "google.protobuf.Value{string_value: 'a'}",
    // The tokens that a syntax error expects.
    "{'a'}",
    "true ? true ? 1 : 2 : 3",
];

/// Expressions with another value or error.
const VALUES: &[&str] = &[
    // Indexes and keys of unusual types.
    "[1, 2][dyn('a')]",
    "[1, 2][dyn(0.5)]",
    "[1, 2][dyn(1.0)]",
    "dyn('abc')[0]",
    "dyn(1)[0]",
    "dyn(1)[?0]",
    "{1: 'a'}[dyn(1.0)]",
    "{1: 'a'}[dyn(1u)]",
    "{1u: 'a'}[dyn(1)]",
    "{dyn([1]): 1}",
    "{dyn(1.5): 'a'}",
    "{dyn(null): 1}",
    "{}[?null]",
    // Texts of errors.
    "'abc'.find(dyn('('))",
    "'abc'.matches(dyn('['))",
    "cidr('10.0.0.0')",
    "cidr('10.0.0.0/33')",
    "cidr('10.0.0.0/8').containsCIDR('x')",
    "cidr('10.0.0.0/8').containsIP('x')",
    "cidr('::ffff:10.0.0.0/104')",
    "double('NaN') < 1.0",
    "dyn('a').transformList(i, v, v)",
    "dyn('abc').map(x, x)",
    "dyn(1).all(i, v, true)",
    "dyn(1).all(x, true)",
    "dyn(null).exists(x, true)",
    "ip('01.2.3.4')",
    "ip('1.2.3')",
    "ip('::ffff:1.2.3.4')",
    "ip('fe80::1%eth0')",
    "ip.isCanonical('x')",
    "quantity('')",
    "quantity('x')",
    "semver('01.2.3')",
    "semver('1.2')",
    "semver('v1.2.3')",
    "url('')",
    "url('https://a:b')",
    "url('relative')",
    // Values of the library.
    "'%.70000f'.format([1.0]).size()",
    "[timestamp('2024-01-01T00:00:00Z')].filter(x, false).map(t, t - t).sum()",
    "quantity('1000m').isInteger()",
    "semver('1.2.3') in [semver('1.2.3+b')]",
    "semver('1.2.3+a') == semver('1.2.3+b')",
    "url('/absolute').getHost()",
    "url('https://a/?a=%zz').getQuery()",
    "url('https://a/?a=1;b=2').getQuery()",
];

fn fixture() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/fixtures/cel_values.json");
    serde_json::from_str(&fs::read_to_string(file).expect("the fixture")).expect("JSON")
}

/// Compares a result for each case, except those that are known to differ. `own` returns `None` for cases that it
/// does not compare.
fn compare(member: &str, known: &[&str], own: impl Fn(&Value, &str) -> Option<Value>) {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().expect("a list");
    let mut wrong = Vec::new();
    for case in cases {
        let expression = case["expression"].as_str().expect("a text");
        let Some(own) = own(&fixture, expression) else {
            continue;
        };
        let theirs = match (member, case.get(member)) {
            ("rejected", rejected) => rejected.cloned().unwrap_or_default(),
            ("value", Some(value)) => json!({"value": parsed(value)}),
            ("value", None) if case.get("error").is_some() => json!({"error": error(&case["error"])}),
            (_, Some(value)) => value.clone(),
            (_, None) => continue,
        };
        match (own == theirs, known.contains(&expression)) {
            (true, true) => wrong.push(format!("{expression}: does not differ")),
            (false, false) => wrong.push(format!("{expression}\n    {own}\n    {theirs}")),
            (true, false) | (false, true) => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

/// Returns the text of an error. Rules have no names of types in errors of overloads.
fn error(error: &Value) -> &str {
    let text = error.as_str().unwrap_or_default();
    let text = text
        .strip_prefix("program instantiation failed: ")
        .unwrap_or(text);
    match text.starts_with("no such overload") {
        true => "no such overload",
        false => text,
    }
}

/// Returns the declaration of `self`.
fn decl(fixture: &Value) -> Decl {
    let schema = fixture["schema"].as_object().expect("an object");
    Decl::of(schema, false).expect("a declaration")
}

fn environment(decl: &Decl) -> Environment<'_> {
    Environment::default().with_decl("self", decl, "selfType")
}

#[test]
fn rejections_equal_those_of_kubernetes() {
    compare("rejected", REJECTED, |fixture, expression| {
        let decl = decl(fixture);
        let checked = Checked::of(expression, &environment(&decl));
        Some(checked.err().map_or(Value::Null, |err| json!(err.to_string())))
    });
}

#[test]
fn estimated_costs_equal_those_of_kubernetes() {
    compare("cost", &[], |fixture, expression| {
        let decl = decl(fixture);
        let rule = format!("[{expression}].size() == 1");
        let checked = Checked::new(&rule, &decl, false).ok()?;
        Some(json!(estimate(&checked.program, &decl, &checked.typing)))
    });
}

#[test]
fn values_equal_those_of_kubernetes() {
    compare("value", VALUES, |fixture, expression| {
        let decl = decl(fixture);
        Checked::of(expression, &environment(&decl)).ok()?;
        let node = Node::compile(&fixture["schema"], |_, _| Vec::new());
        let mut shapes = lists::Shapes::default();
        let program = pairs::replaced(lists::typed(parse(expression).ok()?, &node, &mut shapes));
        let program = budget::metered(logic::replaced(program), &["self"]);
        let mut scope = LIBRARY.new_inner_scope();
        scope.add_variable_from_value("self", to_cel(&fixture["self"], Some(&node)));
        for (name, shape) in shapes.into_variables() {
            scope.add_variable_from_value(name, shape);
        }
        budget::refill();
        Some(match Cel::resolve(&program, &scope) {
            Ok(value) => json!({"value": shown(&value)}),
            Err(err) => json!({"error": error_text(&err)}),
        })
    });
}

/// Admission policies evaluate expressions without a schema.
#[test]
fn values_without_schema_equal_those_of_kubernetes() {
    compare("value", VALUES, |fixture, expression| {
        if expression.contains("self") {
            return None;
        }
        let decl = decl(fixture);
        Checked::of(expression, &environment(&decl)).ok()?;
        let program = Program::compile(expression, &[]).ok()?;
        dynamic::start(Phase::Expressions);
        let found = program.evaluate(&dynamic::variables(), &|_| None);
        Some(match found {
            Ok(value) => json!({"value": shown(&value)}),
            Err(error) => json!({"error": error}),
        })
    });
}

/// Returns a value in the form of the fixture. Numbers are texts that are equal for equal numbers.
fn shown(value: &Cel) -> Value {
    match value {
        Cel::Null => Value::Null,
        Cel::Bool(flag) => json!(flag),
        Cel::String(text) => json!(text.as_str()),
        Cel::Int(number) => json!(number),
        Cel::UInt(number) => json!({"uint": number}),
        Cel::Float(number) => json!({"double": number.to_string()}),
        Cel::Bytes(bytes) => json!({"bytes": STANDARD.encode(bytes.as_slice())}),
        Cel::Timestamp(time) => {
            let time = time.to_utc().format("%Y-%m-%dT%H:%M:%S.%9fZ");
            json!({"timestamp": time.to_string()})
        }
        Cel::Duration(duration) => json!({"duration": duration.num_nanoseconds()}),
        Cel::List(items) => items.iter().map(shown).collect(),
        Cel::Map(map) => {
            let entries = map.map.iter();
            let mut entries: Vec<Value> = entries
                .map(|(key, value)| json!([shown_key(key), shown(value)]))
                .collect();
            entries.sort_by_key(|entry| entry[0].to_string());
            json!({"map": entries})
        }
        Cel::Opaque(opaque) => {
            if let Some(name) = type_name(value) {
                return json!({"type": name});
            }
            match <&OptionalValue>::try_from(value).map(OptionalValue::value) {
                Ok(content) => {
                    json!({"optional": content.iter().map(|value| shown(value)).collect::<Vec<_>>()})
                }
                Err(_) => json!({"object": opaque.runtime_type_name()}),
            }
        }
        Cel::Function(..) => json!("function"),
    }
}

fn shown_key(key: &Key) -> Value {
    match key {
        Key::Int(number) => json!(number),
        Key::Uint(number) => json!({"uint": number}),
        Key::Bool(flag) => json!(flag),
        Key::String(text) => json!(Arc::clone(text)),
    }
}

/// Returns a value of the fixture with numbers in the form of [`shown`].
fn parsed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(parsed).collect(),
        Value::Object(fields) => {
            if let Some(number) = fields.get("double").and_then(Value::as_str) {
                let number: f64 = number.parse().expect("a number");
                return json!({"double": number.to_string()});
            }
            fields
                .iter()
                .map(|(name, field)| (name.clone(), parsed(field)))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
