//! Validity of listed values: which values of `enum` and `const` satisfy the other keywords.

use super::numbers::Bound;
use super::regex::matches;
use super::schema::{Kind, SchemaError, ValueSet, are_equal, constrains, listed_values, resolved};
use rooflet_inference_api::openai::json::{Json, Members};
use std::cmp::Ordering;

/// Maximum depth of nested schemas and references.
const MAX_DEPTH: usize = 32;

/// Keeps the listed values that satisfy the other keywords, and removes these keywords. If a keyword
/// is not supported, the schema remains.
pub(super) fn with_valid_values(root: &Json, mut schema: Members, at: &str) -> Result<Members, SchemaError> {
    let listed = Json::Object(schema.clone());
    let Some(values) = listed_values(&listed) else {
        return Ok(schema);
    };
    let is_list = |name: &str| ["const", "enum", "type"].contains(&name);
    let is_other = |(name, value): (&str, &Json)| !is_list(name) && constrains(name, value);
    if !schema.iter().any(is_other) {
        return Ok(schema);
    }
    let mut left = Vec::new();
    for value in values {
        match is_valid_object(root, &schema, &value, 0) {
            Some(true) => left.push(value),
            Some(false) => {}
            None => return Ok(schema),
        }
    }
    if left.is_empty() {
        return Err(SchemaError::Empty { at: at.to_owned() });
    }
    schema.retain(|name, value| !constrains(name, value));
    schema.insert("enum", Json::Array(left));
    Ok(schema)
}

/// Returns true if the value satisfies the schema; `None` if that is unknown.
pub(super) fn is_valid(root: &Json, schema: &Json, value: &Json, depth: usize) -> Option<bool> {
    match schema {
        Json::Bool(all) => Some(*all),
        Json::Object(members) if depth < MAX_DEPTH => is_valid_object(root, members, value, depth + 1),
        Json::Null | Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
    }
}

fn is_valid_object(root: &Json, schema: &Members, value: &Json, depth: usize) -> Option<bool> {
    let keywords = schema.iter().filter(|(name, value)| constrains(name, value));
    every(keywords.map(|(keyword, limit)| satisfies(root, schema, (keyword, limit), value, depth)))
}

/// Combines results: one invalid part decides, then one unknown part.
fn every(results: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for result in results {
        match result {
            Some(false) => return Some(false),
            None => all = None,
            Some(true) => {}
        }
    }
    all
}

fn satisfies(
    root: &Json,
    schema: &Members,
    (keyword, limit): (&str, &Json),
    value: &Json,
    depth: usize,
) -> Option<bool> {
    let valid = |schema: &Json, value: &Json| is_valid(root, schema, value, depth);
    match keyword {
        "$ref" => valid(resolved(root, limit.as_str()?)?, value),
        "type" => {
            let fits = |word: &Json| Some(Kind::of_word(word.as_str()?)?.fits(value));
            match limit {
                Json::Array(words) => any(words.iter().map(fits)),
                word @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
                    fits(word)
                }
            }
        }
        "const" => Some(are_equal(limit, value)),
        "enum" => Some(ValueSet::of(list(limit)?).contains(value)),
        "allOf" => every(list(limit)?.iter().map(|schema| valid(schema, value))),
        "anyOf" => any(list(limit)?.iter().map(|schema| valid(schema, value))),
        "oneOf" => {
            let results = list(limit)?.iter().map(|schema| valid(schema, value));
            let results: Vec<bool> = results.collect::<Option<_>>()?;
            Some(results.into_iter().filter(|valid| *valid).count() == 1)
        }
        "not" => valid(limit, value).map(|valid| !valid),
        "if" => {
            let part = |name: &str| schema.get(name).map_or(Some(true), |part| valid(part, value));
            match valid(limit, value)? {
                true => part("then"),
                false => part("else"),
            }
        }
        _ => match value {
            Json::Object(members) => of_object(root, schema, (keyword, limit), members, depth),
            Json::Array(items) => of_list(root, schema, (keyword, limit), items, depth),
            Json::String(text) => of_text(keyword, limit, text),
            Json::Number(_) => of_number(keyword, limit, value),
            Json::Null | Json::Bool(_) => is_about(keyword, &[]),
        },
    }
}

fn any(results: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    every(results.map(|valid| valid.map(|valid| !valid))).map(|none| !none)
}

fn list(value: &Json) -> Option<&[Json]> {
    match value {
        Json::Array(items) => Some(items),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => None,
    }
}

fn count(limit: &Json) -> Option<usize> {
    match limit {
        Json::Number(count) => usize::try_from(count.as_u64()?).ok(),
        Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
    }
}

const NUMBER: &[&str] = &[
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
const TEXT: &[&str] = &["minLength", "maxLength", "pattern", "format"];
const LIST: &[&str] = &["items", "prefixItems", "minItems", "maxItems", "uniqueItems"];
const OBJECT: &[&str] = &[
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "propertyNames",
];

/// Returns true if the keyword is about values of other kinds only, otherwise `None`.
fn is_about(keyword: &str, own: &[&str]) -> Option<bool> {
    let known = [NUMBER, TEXT, LIST, OBJECT]
        .iter()
        .any(|keywords| keywords.contains(&keyword));
    (known && !own.contains(&keyword)).then_some(true)
}

fn of_number(keyword: &str, limit: &Json, value: &Json) -> Option<bool> {
    let (Json::Number(limit), Json::Number(value)) = (limit, value) else {
        return is_about(keyword, NUMBER);
    };
    if keyword == "multipleOf" {
        let (step, value) = (limit.as_u64()?, value.as_f64()?);
        return (step > 0 && value.abs() < 2f64.powi(53)).then(|| value % step as f64 == 0.0);
    }
    let order = Bound::new(value, false)?.order(&Bound::new(limit, false)?);
    match keyword {
        "minimum" => Some(order != Ordering::Less),
        "maximum" => Some(order != Ordering::Greater),
        "exclusiveMinimum" => Some(order == Ordering::Greater),
        "exclusiveMaximum" => Some(order == Ordering::Less),
        _ => is_about(keyword, NUMBER),
    }
}

fn of_text(keyword: &str, limit: &Json, text: &str) -> Option<bool> {
    let length = text.chars().count();
    match keyword {
        "minLength" => Some(length >= count(limit)?),
        "maxLength" => Some(length <= count(limit)?),
        "pattern" => match limit {
            Json::String(pattern) => matches(pattern, text),
            Json::Array(patterns) => every(patterns.iter().map(|pattern| match pattern {
                Json::String(pattern) => matches(pattern, text),
                excluded @ (Json::Null
                | Json::Bool(_)
                | Json::Number(_)
                | Json::Array(_)
                | Json::Object(_)) => matches(excluded.get("not")?.as_str()?, text).map(|matches| !matches),
            })),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => None,
        },
        _ => is_about(keyword, TEXT),
    }
}

fn of_list(
    root: &Json,
    schema: &Members,
    (keyword, limit): (&str, &Json),
    items: &[Json],
    depth: usize,
) -> Option<bool> {
    let valid = |schema: &Json, value: &Json| is_valid(root, schema, value, depth);
    match keyword {
        "minItems" => Some(items.len() >= count(limit)?),
        "maxItems" => Some(items.len() <= count(limit)?),
        "prefixItems" => every(
            list(limit)?
                .iter()
                .zip(items)
                .map(|(schema, item)| valid(schema, item)),
        ),
        "items" if list(limit).is_none() => {
            let first = schema.get("prefixItems").and_then(list).map_or(0, <[Json]>::len);
            every(items.iter().skip(first).map(|item| valid(limit, item)))
        }
        "uniqueItems" => {
            let mut known = ValueSet::default();
            Some(items.iter().all(|item| known.insert(item)))
        }
        _ => is_about(keyword, LIST),
    }
}

fn of_object(
    root: &Json,
    schema: &Members,
    (keyword, limit): (&str, &Json),
    members: &Members,
    depth: usize,
) -> Option<bool> {
    let valid = |schema: &Json, value: &Json| is_valid(root, schema, value, depth);
    match keyword {
        "required" => every(
            list(limit)?
                .iter()
                .map(|name| Some(members.get(name.as_str()?).is_some())),
        ),
        "minProperties" => Some(members.iter().count() >= count(limit)?),
        "maxProperties" => Some(members.iter().count() <= count(limit)?),
        "properties" => every(
            limit
                .as_object()?
                .iter()
                .map(|(name, schema)| match members.get(name) {
                    Some(value) => valid(schema, value),
                    None => Some(true),
                }),
        ),
        "propertyNames" => every(members.iter().map(|(name, _)| valid(limit, &Json::from(name)))),
        "patternProperties" => {
            let patterns = limit.as_object()?;
            every(patterns.iter().flat_map(|(pattern, schema)| {
                members
                    .iter()
                    .map(move |(name, value)| match matches(pattern, name)? {
                        true => is_valid(root, schema, value, depth),
                        false => Some(true),
                    })
            }))
        }
        "additionalProperties" => {
            let named = schema.get("properties").and_then(Json::as_object);
            let patterns = schema.get("patternProperties").and_then(Json::as_object);
            every(members.iter().map(|(name, value)| {
                let mut is_described = named.is_some_and(|named| named.get(name).is_some());
                for (pattern, _) in patterns.into_iter().flat_map(Members::iter) {
                    is_described |= matches(pattern, name)?;
                }
                if is_described {
                    Some(true)
                } else {
                    valid(limit, value)
                }
            }))
        }
        _ => is_about(keyword, OBJECT),
    }
}
