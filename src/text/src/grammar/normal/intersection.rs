//! Intersection of two schemas.

use std::cmp::Ordering;

use super::{EVALUATED_ITEMS, EVALUATED_NAMES, empty, unsupported};
use crate::grammar::numbers::Bound;
use crate::grammar::regex::matches;
use crate::grammar::schema::{Kind, SchemaError, ValueSet, are_equal};
use rooflet_inference_api::openai::json::{Json, Members};

pub(super) fn all_of(one: &Json, other: &Json) -> Json {
    match (one, other) {
        (Json::Bool(true), schema) | (schema, Json::Bool(true)) => schema.clone(),
        (Json::Bool(false), _) | (_, Json::Bool(false)) => Json::Bool(false),
        (one, other) if one == other => one.clone(),
        (one, other) => {
            let both = Json::Array(vec![one.clone(), other.clone()]);
            Json::Object(Members::new([("allOf", both)]))
        }
    }
}

/// Intersects two schemas without combining keywords.
pub(super) fn intersection(one: &Members, other: &Members, at: &str) -> Result<Members, SchemaError> {
    if one.is_empty() {
        return Ok(other.clone());
    }
    let mut both = one.clone();
    for (keyword, value) in other.iter() {
        let Some(own) = one.get(keyword) else {
            both.insert(keyword, value.clone());
            continue;
        };
        if are_equal(own, value) {
            continue;
        }
        let merged = match keyword {
            "type" => kinds_of_both(own, value, at)?,
            "enum" => values_of_both(own, value, at)?,
            "required" | EVALUATED_NAMES => union(own, value),
            "const" => return Err(empty(at)),
            "pattern" => Some(patterns_of_both(own, value)),
            "uniqueItems" => Some(Json::Bool(true)),
            EVALUATED_ITEMS | "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                tighter(own, value, true)
            }
            "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                tighter(own, value, false)
            }
            // Merged after the loop.
            "properties" | "additionalProperties" | "patternProperties" | "items" | "prefixItems" => continue,
            _ => None,
        };
        both.insert(keyword, merged.ok_or_else(|| conflict(keyword, at))?);
    }
    if let (Some(value), Some(values)) = (both.get("const").cloned(), both.get("enum")) {
        let single = Json::Array(vec![value]);
        let merged = values_of_both(&single, values, at)?;
        both.insert("enum", merged.ok_or_else(|| conflict("enum", at))?);
        both.remove("const");
    }
    if has_unsatisfiable_list(&both) {
        return Err(empty(at));
    }
    let objects = |schema: &Members| OBJECT.iter().any(|name| schema.get(name).is_some());
    if objects(one) && objects(other) {
        members_of_both(one, other, &mut both, at)?;
    }
    items_of_both(one, other, &mut both);
    Ok(both)
}

/// Returns true if none of the listed values is of the permitted types.
fn has_unsatisfiable_list(schema: &Members) -> bool {
    let words = match schema.get("type") {
        Some(Json::Array(words)) => words.as_slice(),
        Some(word) => std::slice::from_ref(word),
        None => return false,
    };
    let kinds = words.iter().map(|word| Kind::of_word(word.as_str()?));
    let Some(kinds) = kinds.collect::<Option<Vec<Kind>>>() else {
        return false;
    };
    let is_none = |value: &Json| !kinds.iter().any(|kind| kind.fits(value));
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => is_none(value),
        (None, Some(Json::Array(values))) => values.iter().all(is_none),
        (None, _) => false,
    }
}

const OBJECT: &[&str] = &["properties", "additionalProperties", "patternProperties"];

fn conflict(keyword: &str, at: &str) -> SchemaError {
    unsupported(at, &format!("two different values of {keyword}"))
}

/// Merges lists: items at the same position satisfy both schemas.
fn items_of_both(one: &Members, other: &Members, both: &mut Members) {
    let first = |schema: &Members| match schema.get("prefixItems") {
        Some(Json::Array(first)) => first.clone(),
        Some(_) | None => Vec::new(),
    };
    let (own, theirs) = (first(one), first(other));
    let item = |schema: &Members, first: &[Json], index: usize| {
        let item = first.get(index).or_else(|| schema.get("items"));
        item.cloned().unwrap_or(Json::Bool(true))
    };
    let length = own.len().max(theirs.len());
    if length > 0 {
        let merged = (0..length).map(|index| all_of(&item(one, &own, index), &item(other, &theirs, index)));
        both.insert("prefixItems", Json::Array(merged.collect()));
    }
    if let (Some(own), Some(theirs)) = (one.get("items"), other.get("items")) {
        both.insert("items", all_of(own, theirs));
    }
}

/// Merges properties. Named properties of one schema are additional properties of the other.
fn members_of_both(one: &Members, other: &Members, both: &mut Members, at: &str) -> Result<(), SchemaError> {
    let properties = |schema: &Members| match schema.get("properties") {
        Some(Json::Object(properties)) => properties.clone(),
        Some(_) | None => Members::default(),
    };
    let additional = |schema: &Members| schema.get("additionalProperties").cloned();
    let (own, theirs) = (properties(one), properties(other));
    let (own_others, their_others) = (additional(one), additional(other));
    let patterns = |schema: &Members| match schema.get("patternProperties") {
        Some(Json::Object(patterns)) => patterns.clone(),
        Some(_) | None => Members::default(),
    };
    let (own_patterns, their_patterns) = (patterns(one), patterns(other));
    if their_others.is_some() && !their_patterns.is_empty() && own_patterns.iter().next().is_some()
        || own_others.is_some() && !own_patterns.is_empty() && their_patterns.iter().next().is_some()
    {
        return Err(conflict("patternProperties", at));
    }
    // Schema of a name that the other schema does not list.
    let elsewhere = |name: &str, patterns: &Members, others: &Option<Json>| {
        let others = others.clone()?;
        let is_patterned = patterns
            .iter()
            .any(|(pattern, _)| matches(pattern, name) != Some(false));
        (!is_patterned).then_some(others)
    };
    let mut merged = Members::default();
    for (name, schema) in own.iter() {
        let there = theirs.get(name).cloned();
        let there = there.or_else(|| elsewhere(name, &their_patterns, &their_others));
        let schema = there.map_or_else(|| schema.clone(), |there| all_of(schema, &there));
        merged.insert(name, schema);
    }
    for (name, schema) in theirs.iter().filter(|(name, _)| own.get(name).is_none()) {
        let there = elsewhere(name, &own_patterns, &own_others);
        let schema = there.map_or_else(|| schema.clone(), |there| all_of(schema, &there));
        merged.insert(name, schema);
    }
    let mut both_patterns = Members::default();
    for (patterns, others, there) in [
        (&own_patterns, &their_others, &their_patterns),
        (&their_patterns, &own_others, &own_patterns),
    ] {
        for (pattern, schema) in patterns.iter() {
            let limit = others.as_ref().or_else(|| there.get(pattern));
            let schema = limit.map_or_else(|| schema.clone(), |limit| all_of(schema, limit));
            both_patterns.insert(pattern, schema);
        }
    }
    if !both_patterns.is_empty() {
        both.insert("patternProperties", Json::Object(both_patterns));
    }
    let others = match (own_others, their_others) {
        (Some(own), Some(theirs)) => Some(all_of(&own, &theirs)),
        (own, theirs) => own.or(theirs),
    };
    if !merged.is_empty() || both.get("properties").is_some() {
        both.insert("properties", Json::Object(merged));
    }
    if let Some(others) = others {
        both.insert("additionalProperties", others);
    }
    Ok(())
}

fn kinds_of_both(one: &Json, other: &Json, at: &str) -> Result<Option<Json>, SchemaError> {
    let words = |value: &Json| -> Option<Vec<String>> {
        match value {
            Json::String(word) => Some(vec![word.clone()]),
            Json::Array(words) => words
                .iter()
                .map(|word| word.as_str().map(str::to_owned))
                .collect(),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => None,
        }
    };
    let (Some(one), Some(other)) = (words(one), words(other)) else {
        return Ok(None);
    };
    let has = |words: &[String], word: &str| words.iter().any(|own| own == word);
    let within =
        |word: &String, others: &[String]| has(others, word) || (word == "integer" && has(others, "number"));
    let mut both: Vec<String> = one.iter().filter(|word| within(word, &other)).cloned().collect();
    both.extend(
        other
            .into_iter()
            .filter(|word| within(word, &one) && !has(&one, word)),
    );
    if both.is_empty() {
        return Err(empty(at));
    }
    Ok(Some(Json::Array(both.into_iter().map(Json::String).collect())))
}

fn values_of_both(one: &Json, other: &Json, at: &str) -> Result<Option<Json>, SchemaError> {
    let (Json::Array(one), Json::Array(other)) = (one, other) else {
        return Ok(None);
    };
    let other = ValueSet::of(other);
    let both: Vec<Json> = one
        .iter()
        .filter(|value| other.contains(value))
        .cloned()
        .collect();
    if both.is_empty() {
        return Err(empty(at));
    }
    Ok(Some(Json::Array(both)))
}

fn union(one: &Json, other: &Json) -> Option<Json> {
    let (Json::Array(one), Json::Array(other)) = (one, other) else {
        return None;
    };
    let own = ValueSet::of(one);
    let more = other.iter().filter(|name| !own.contains(name));
    Some(Json::Array(one.iter().chain(more).cloned().collect()))
}

/// Returns the list of patterns that a string must match.
fn patterns_of_both(one: &Json, other: &Json) -> Json {
    let listed = |value: &Json| match value {
        Json::Array(patterns) => patterns.clone(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
            vec![value.clone()]
        }
    };
    Json::Array([listed(one), listed(other)].concat())
}

fn tighter(one: &Json, other: &Json, larger: bool) -> Option<Json> {
    let (Json::Number(left), Json::Number(right)) = (one, other) else {
        return None;
    };
    let order = match (Bound::new(left, false), Bound::new(right, false)) {
        (Some(left), Some(right)) => left.order(&right),
        (_, _) => left.as_f64()?.total_cmp(&right.as_f64()?),
    };
    let left_is_larger = order == Ordering::Greater;
    Some(if left_is_larger == larger { one } else { other }.clone())
}
