//! Official test suite of JSON Schema: number of schemas that have a grammar, and values that a
//! grammar accepts although they are invalid.

use std::collections::BTreeMap;

use super::*;
use crate::grammar::schema::constrains;

/// Maximum number of spellings of a value, which differ in the order of members.
const MAX_SPELLINGS: usize = 2_000;

/// Schema of the suite, with its values.
struct Case {
    file: String,
    description: String,
    schema: Json,
    tests: Vec<(Value, bool)>,
}

fn cases(text: &str) -> Vec<Case> {
    text.lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let word = |name: &str| line[name].as_str().unwrap().to_owned();
            let test = |test: &Value| (test[0].clone(), test[1].as_bool().unwrap());
            Case {
                file: word("file"),
                description: word("description"),
                schema: schema(&line["schema"]),
                tests: line["tests"].as_array().unwrap().iter().map(test).collect(),
            }
        })
        .collect()
}

/// Returns the compact texts of a value, with members in all orders.
fn spellings(value: &Value) -> Vec<String> {
    let join = |parts: Vec<Vec<String>>, (open, close): (&str, &str)| {
        let start = vec![String::new()];
        let all = parts.into_iter().fold(start, |texts, part| {
            let text = |text: &String| {
                let comma = if text.is_empty() { "" } else { "," };
                part.iter()
                    .map(|one| format!("{text}{comma}{one}"))
                    .collect::<Vec<_>>()
            };
            texts.iter().flat_map(text).take(MAX_SPELLINGS).collect()
        });
        all.into_iter()
            .map(|text| format!("{open}{text}{close}"))
            .collect::<Vec<_>>()
    };
    match value {
        Value::Array(items) => join(items.iter().map(spellings).collect(), ("[", "]")),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                let name = serde_json::to_string(name).unwrap();
                spellings(value)
                    .iter()
                    .map(|value| format!("{name}:{value}"))
                    .collect::<Vec<_>>()
            };
            let members: Vec<Vec<String>> = members.iter().map(member).collect();
            let mut orders: Vec<Vec<Vec<String>>> = vec![Vec::new()];
            for member in members {
                let with = |order: &Vec<Vec<String>>| {
                    (0..=order.len())
                        .map(|place| {
                            let mut order = order.clone();
                            order.insert(place, member.clone());
                            order
                        })
                        .collect::<Vec<_>>()
                };
                orders = orders.iter().flat_map(with).take(MAX_SPELLINGS).collect();
            }
            orders
                .into_iter()
                .flat_map(|order| join(order, ("{", "}")))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![value.to_string()],
    }
}

/// Result of a draft: accepted schemas by file, and violations.
#[derive(Default)]
struct Coverage {
    schemas: usize,
    accepted: usize,
    /// Valid values of the accepted schemas, and those that the grammar accepts.
    valid: usize,
    generated: usize,
    violations: Vec<String>,
    rejected: BTreeMap<String, Vec<String>>,
}

fn coverage(cases: &[Case]) -> Coverage {
    let mut coverage = Coverage::default();
    for case in cases {
        coverage.schemas += 1;
        let mut builder = Builder::new();
        let built = schema_rule(&mut builder, &case.schema);
        let grammar = built.and_then(|start| Ok(builder.finish(start)?));
        let grammar = match grammar {
            Ok(grammar) => Arc::new(grammar),
            Err(err) => {
                let rejected = coverage.rejected.entry(case.file.clone()).or_default();
                rejected.push(format!("{}: {err}", case.description));
                continue;
            }
        };
        coverage.accepted += 1;
        for (value, valid) in &case.tests {
            let accepted = spellings(value).iter().any(|text| accepts(&grammar, text));
            coverage.valid += usize::from(*valid);
            coverage.generated += usize::from(*valid && accepted);
            if accepted && !valid {
                let place = format!("{}: {}", case.file, case.description);
                coverage.violations.push(format!("{place}: {value}"));
            }
        }
    }
    coverage
}

/// Checks the numbers of accepted schemas and of accepted valid values, and prints the rejected schemas.
fn check_draft(name: &str, text: &str, expected: [(usize, usize); 2]) {
    let (optional, mandatory): (Vec<Case>, Vec<Case>) = cases(text)
        .into_iter()
        .partition(|case| case.file.starts_with("optional/"));
    let Coverage {
        schemas,
        accepted,
        valid,
        generated,
        violations,
        rejected,
    } = coverage(&mandatory);
    for (file, schemas) in rejected {
        for schema in schemas {
            println!("rejected {file}: {schema}");
        }
    }
    println!("{name}: {accepted} of {schemas} schemas, {generated} of {valid} valid values");
    assert_eq!(violations, [""; 0], "{name}");
    assert_eq!(
        [(accepted, schemas), (generated, valid)],
        expected,
        "{name}: update decision 005"
    );
    // Other formats are annotations.
    let enforced: Vec<Case> = optional.into_iter().filter(is_enforced).collect();
    let violations = coverage(&enforced).violations;
    assert!(!enforced.is_empty() && violations.is_empty(), "{violations:?}");
}

/// Returns true if the grammar enforces the format. Host names may have labels that look like
/// Punycode and are not.
fn is_enforced(case: &Case) -> bool {
    let format = case.schema.get("format");
    format.is_some_and(|format| constrains("format", format)) && !case.description.contains("(punycode)")
}

const DRAFT_2020_12: &str = include_str!("../../../../testdata/json-schema-test-suite/draft2020-12.jsonl");
const DRAFT_7: &str = include_str!("../../../../testdata/json-schema-test-suite/draft7.jsonl");

#[test]
fn schemas_of_draft_2020_12_have_grammars_of_valid_values() {
    check_draft("2020-12", DRAFT_2020_12, [(327, 383), (526, 722)]);
}

#[test]
fn schemas_of_draft_7_have_grammars_of_valid_values() {
    check_draft("7", DRAFT_7, [(226, 257), (387, 527)]);
}
