//! Schemas whose values another schema rejects. `not`, conditions and overlapping choices use them.
//!
//! The result may accept fewer values than the exact complement, but never a value that the
//! excluded schema accepts.

use super::{EVALUATED_ITEMS, EVALUATED_NAMES, Normalizer, with_prefix_items};
use crate::grammar::numbers::Bound;
use crate::grammar::schema::{Kind, constrains, resolved};
use rooflet_inference_api::openai::json::{Json, Members, Number};

const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl Normalizer<'_> {
    /// Returns schemas that together accept values that `excluded` rejects, one schema for each way
    /// to violate a keyword.
    pub(super) fn alternatives(&mut self, excluded: &Json, at: &str) -> Vec<Json> {
        let Json::Object(members) = excluded else {
            return match excluded {
                Json::Bool(false) => vec![Json::Bool(true)],
                Json::Null
                | Json::Bool(_)
                | Json::Number(_)
                | Json::String(_)
                | Json::Array(_)
                | Json::Object(_) => Vec::new(),
            };
        };
        let members = &with_prefix_items(members.clone());
        let mut found = Vec::new();
        for (keyword, value) in members
            .iter()
            .filter(|(keyword, value)| constrains(keyword, value))
        {
            found.extend(self.violations(members, keyword, value, at));
        }
        found
    }

    fn violations(&mut self, members: &Members, keyword: &str, value: &Json, at: &str) -> Vec<Json> {
        match keyword {
            "$ref" => {
                let target = value
                    .as_str()
                    .and_then(|target| resolved(self.root, target))
                    .cloned();
                self.not(&target.unwrap_or(Json::Bool(true)), at)
                    .into_iter()
                    .collect()
            }
            "type" => other_kinds(&words(value)),
            "const" => other_values(std::slice::from_ref(value)),
            "enum" => other_values(list(value)),
            "anyOf" | "oneOf" => {
                let all: Option<Vec<Json>> = list(value).iter().map(|schema| self.not(schema, at)).collect();
                all.map(|all| alternative([("allOf", Json::Array(all))]))
                    .into_iter()
                    .collect()
            }
            "allOf" => list(value)
                .iter()
                .filter_map(|schema| self.not(schema, at))
                .collect(),
            "not" if !self.evaluates => vec![value.clone()],
            "if" => self.violations_of_condition(members, value, at),
            "properties" => {
                let mut found = Vec::new();
                for (name, schema) in value.as_object().into_iter().flat_map(Members::iter) {
                    found.extend(self.not(schema, at).map(|schema| with_member(name, schema)));
                }
                found
            }
            "additionalProperties" if members.get("properties").is_none() && *value == Json::Bool(false) => {
                match members.get("patternProperties") {
                    None => vec![typed("object", [("minProperties", number(1))])],
                    Some(_) => Vec::new(),
                }
            }
            "required" => list(value)
                .iter()
                .filter_map(Json::as_str)
                .map(without_member)
                .collect(),
            "dependentRequired" | "dependencies" | "dependentSchemas" => {
                self.violations_of_dependencies(value, at)
            }
            "prefixItems" => {
                let mut found = Vec::new();
                for (index, schema) in list(value).iter().enumerate() {
                    found.extend(self.not(schema, at).map(|schema| with_item(index, schema)));
                }
                found
            }
            "items" => {
                let first = members.get("prefixItems").map_or(0, |first| list(first).len());
                self.not(value, at)
                    .map(|schema| with_item(first, schema))
                    .into_iter()
                    .collect()
            }
            "contains" => {
                let counts = ["minContains", "maxContains"]
                    .iter()
                    .any(|name| members.get(name).is_some());
                let other = self.not(value, at).filter(|_| !counts);
                other
                    .map(|other| typed("array", [("items", other)]))
                    .into_iter()
                    .collect()
            }
            _ => violations_of_limit(keyword, value),
        }
    }

    /// Returns a schema that excludes `schema`, if the grammar supports it.
    pub(super) fn not(&mut self, schema: &Json, at: &str) -> Option<Json> {
        let negated = alternative([("not", schema.clone())]);
        let evaluates = std::mem::take(&mut self.evaluates);
        let supported = self.schema(&negated, at).is_ok();
        self.evaluates = evaluates;
        supported.then_some(negated)
    }

    fn violations_of_condition(&mut self, members: &Members, condition: &Json, at: &str) -> Vec<Json> {
        let mut found = Vec::new();
        if let Some(other) = members.get("then").and_then(|schema| self.not(schema, at)) {
            found.push(alternative([(
                "allOf",
                Json::Array(vec![condition.clone(), other]),
            )]));
        }
        let unmet = self.not(condition, at);
        let other = members.get("else").and_then(|schema| self.not(schema, at));
        if let (Some(unmet), Some(other)) = (unmet, other) {
            found.push(alternative([("allOf", Json::Array(vec![unmet, other]))]));
        }
        found
    }

    fn violations_of_dependencies(&mut self, value: &Json, at: &str) -> Vec<Json> {
        let mut found = Vec::new();
        for (name, needs) in value.as_object().into_iter().flat_map(Members::iter) {
            let present = typed("object", [("required", Json::Array(vec![Json::from(name)]))]);
            let unmet: Vec<Json> = match needs {
                Json::Array(names) => names
                    .iter()
                    .filter_map(Json::as_str)
                    .map(without_member)
                    .collect(),
                schema @ (Json::Null
                | Json::Bool(_)
                | Json::Number(_)
                | Json::String(_)
                | Json::Object(_)) => self.not(schema, at).into_iter().collect(),
            };
            let both = |unmet| alternative([("allOf", Json::Array(vec![present.clone(), unmet]))]);
            found.extend(unmet.into_iter().map(both));
        }
        found
    }
}

/// Returns a schema of which no property or item counts as evaluated.
fn alternative<const N: usize>(members: [(&str, Json); N]) -> Json {
    let mut members = Members::new(members);
    members.insert(EVALUATED_NAMES, Json::Array(Vec::new()));
    members.insert(EVALUATED_ITEMS, number(0));
    Json::Object(members)
}

fn typed<const N: usize>(kind: &str, members: [(&str, Json); N]) -> Json {
    let mut schema = alternative(members);
    if let Json::Object(members) = &mut schema {
        members.insert("type", Json::from(kind));
    }
    schema
}

pub(super) fn number(value: u64) -> Json {
    Json::Number(Number::from(value))
}

fn with_member(name: &str, schema: Json) -> Json {
    let properties = Json::Object(Members::new([(name, schema)]));
    typed(
        "object",
        [
            ("required", Json::Array(vec![Json::from(name)])),
            ("properties", properties),
        ],
    )
}

pub(super) fn without_member(name: &str) -> Json {
    typed(
        "object",
        [(
            "properties",
            Json::Object(Members::new([(name, Json::Bool(false))])),
        )],
    )
}

fn with_item(index: usize, schema: Json) -> Json {
    let mut items = vec![Json::Bool(true); index];
    items.push(schema);
    typed(
        "array",
        [
            ("prefixItems", Json::Array(items)),
            ("minItems", number(index as u64 + 1)),
        ],
    )
}

fn list(value: &Json) -> &[Json] {
    match value {
        Json::Array(items) => items,
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => &[],
    }
}

fn words(value: &Json) -> Vec<&str> {
    match value {
        Json::String(word) => vec![word],
        value @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            list(value).iter().filter_map(Json::as_str).collect()
        }
    }
}

/// Returns a schema of the kinds that are not listed. Integers exclude all numbers.
fn other_kinds(words: &[&str]) -> Vec<Json> {
    let is_listed = |kind: &&str| words.contains(kind) || (*kind == "number" && words.contains(&"integer"));
    let others: Vec<Json> = KINDS
        .into_iter()
        .filter(|kind| !is_listed(kind))
        .map(Json::from)
        .collect();
    match others.is_empty() {
        true => Vec::new(),
        false => vec![alternative([("type", Json::Array(others))])],
    }
}

fn other_values(values: &[Json]) -> Vec<Json> {
    let kinds: Vec<&str> = KINDS
        .into_iter()
        .filter(|word| {
            let kind = Kind::of_word(word);
            values.iter().any(|value| kind == Some(Kind::of(value)))
        })
        .collect();
    let mut found = other_kinds(&kinds);
    let texts: Vec<String> = values
        .iter()
        .filter_map(Json::as_str)
        .map(regex_syntax::escape)
        .collect();
    if !texts.is_empty() {
        let pattern = format!("^(?:{})$", texts.join("|"));
        found.push(typed("string", [("pattern", other_text(&pattern))]));
    }
    if let [Json::Bool(value)] = values {
        found.push(alternative([("const", Json::Bool(!value))]));
    }
    let mut numbers: Vec<(Bound, &Number)> = Vec::new();
    for value in values {
        if let Json::Number(value) = value {
            match Bound::new(value, true) {
                Some(bound) => numbers.push((bound, value)),
                None => return found,
            }
        }
    }
    numbers.sort_by(|one, other| one.0.order(&other.0));
    if let (Some((_, first)), Some((_, last))) = (numbers.first(), numbers.last()) {
        let limit = |number: &Number| Json::Number(number.clone());
        found.push(typed("number", [("exclusiveMaximum", limit(first))]));
        found.push(typed("number", [("exclusiveMinimum", limit(last))]));
        for between in numbers.windows(2) {
            let limits = [
                ("exclusiveMinimum", limit(between[0].1)),
                ("exclusiveMaximum", limit(between[1].1)),
            ];
            found.push(typed("number", limits));
        }
    }
    found
}

/// Returns the value of `pattern` for texts that do not match an expression.
fn other_text(pattern: &str) -> Json {
    let excluded = Json::Object(Members::new([("not", Json::from(pattern))]));
    Json::Array(vec![excluded])
}

fn violations_of_limit(keyword: &str, value: &Json) -> Vec<Json> {
    let opposite = match keyword {
        "minimum" => "exclusiveMaximum",
        "maximum" => "exclusiveMinimum",
        "exclusiveMinimum" => "maximum",
        "exclusiveMaximum" => "minimum",
        "minLength" => "maxLength",
        "maxLength" => "minLength",
        "minItems" => "maxItems",
        "maxItems" => "minItems",
        "minProperties" => "maxProperties",
        "maxProperties" => "minProperties",
        "pattern" => {
            let pattern = value.as_str().map(other_text);
            return pattern
                .map(|pattern| typed("string", [("pattern", pattern)]))
                .into_iter()
                .collect();
        }
        _ => return Vec::new(),
    };
    let (kind, limit) = match (keyword, value) {
        ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", value) => {
            ("number", Some(value.clone()))
        }
        (_, Json::Number(count)) => {
            let kind = match &keyword[3..] {
                "Length" => "string",
                "Items" => "array",
                _ => "object",
            };
            let limit = match keyword.starts_with("min") {
                true => count.as_u64().and_then(|count| count.checked_sub(1)),
                false => count.as_u64().map(|count| count + 1),
            };
            (kind, limit.map(number))
        }
        _ => return Vec::new(),
    };
    limit
        .map(|limit| typed(kind, [(opposite, limit)]))
        .into_iter()
        .collect()
}
