//! Exclusion of the values that `not` accepts.

use super::{empty, unsupported};
use crate::grammar::schema::{Kind, Schema, SchemaError, ValueSet, constrains};
use rooflet_inference_api::openai::json::{Json, Members};

/// Removes the values that `excluded` accepts from a schema, in the supported cases.
pub(super) fn exclude(own: &mut Members, excluded: &Json, at: &str) -> Result<(), SchemaError> {
    let unclear = || unsupported(at, "not of anything but one type, const, enum or required name");
    let Json::Object(members) = excluded else {
        return match excluded {
            Json::Bool(false) => Ok(()),
            Json::Bool(true)
            | Json::Null
            | Json::Number(_)
            | Json::String(_)
            | Json::Array(_)
            | Json::Object(_) => Err(empty(at)),
        };
    };
    let constraining: Vec<(&str, &Json)> = members
        .iter()
        .filter(|(name, value)| constrains(name, value))
        .collect();
    let (keyword, value) = match constraining[..] {
        [] => return Err(empty(at)),
        [only] => only,
        [..] => return Err(unclear()),
    };
    match (keyword, value) {
        ("type", _) => {
            let schema = Schema::new(members, at.to_owned())?;
            exclude_kinds(own, &schema.kinds()?.unwrap_or_default(), at)
        }
        ("const", value) => exclude_values(own, std::slice::from_ref(value), at),
        ("enum", Json::Array(values)) => exclude_values(own, values, at),
        ("required", Json::Array(names)) => match &names[..] {
            [Json::String(name)] => exclude_member(own, name, at),
            _ => Err(unclear()),
        },
        _ => Err(unclear()),
    }
}

/// Excludes kinds of values. Excluding integers from `number` is not supported, because no keyword
/// describes the rest.
fn exclude_kinds(own: &mut Members, kinds: &[Kind], at: &str) -> Result<(), SchemaError> {
    let all = ["null", "boolean", "number", "string", "array", "object"].map(|word| word.into());
    let words = match own.get("type") {
        Some(Json::Array(words)) => words.clone(),
        Some(word) => vec![word.clone()],
        None => all.to_vec(),
    };
    let stays = |word: &Json| {
        let kind = word.as_str().and_then(Kind::of_word);
        kind.is_some_and(|kind| kinds.iter().all(|excluded| kind.is_disjoint_from(*excluded)))
    };
    let left: Vec<Json> = words.into_iter().filter(stays).collect();
    if left.is_empty() {
        return Err(empty(at));
    }
    own.insert("type", Json::Array(left));
    Ok(())
}

fn exclude_values(own: &mut Members, values: &[Json], at: &str) -> Result<(), SchemaError> {
    let allowed = match (own.remove("const"), own.get("enum")) {
        (_, Some(Json::Array(allowed))) => allowed.clone(),
        (Some(value), _) => vec![value],
        // `null` is the only value of its kind.
        _ if values == [Json::Null] => return exclude_kinds(own, &[Kind::Null], at),
        _ => return Err(unsupported(at, "not of values without an enum or const")),
    };
    let values = ValueSet::of(values);
    let left: Vec<Json> = allowed
        .into_iter()
        .filter(|value| !values.contains(value))
        .collect();
    if left.is_empty() {
        return Err(empty(at));
    }
    own.insert("enum", Json::Array(left));
    Ok(())
}

fn exclude_member(own: &mut Members, name: &str, at: &str) -> Result<(), SchemaError> {
    let named = |list: Option<&Json>| matches!(list, Some(Json::Array(names)) if names.iter().any(|own| own.as_str() == Some(name)));
    if named(own.get("required")) {
        return Err(empty(at));
    }
    match own.get_mut("properties") {
        Some(Json::Object(properties)) => {
            properties.insert(name, Json::Bool(false));
            Ok(())
        }
        _ => Err(unsupported(at, "not of a required name without properties")),
    }
}
