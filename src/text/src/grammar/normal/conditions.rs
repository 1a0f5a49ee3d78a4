//! Conditions: `if`, dependencies, `contains`, and `oneOf` of overlapping schemas.

use super::negation::{number, without_member};
use super::{Choice, Normalizer, unsupported};
use crate::grammar::schema::SchemaError;
use rooflet_inference_api::openai::json::{Json, Members};

/// Maximum number of overlapping schemas in a `oneOf`. Each excludes all others.
const MAX_OVERLAPPING: usize = 16;
/// Maximum number of listed items before those that `contains` requires.
const MAX_FIRST_ITEMS: usize = 8;
/// Maximum number of items that `contains` requires.
const MAX_CONTAINED: u64 = 100;

impl Normalizer<'_> {
    /// Returns the schemas of a `oneOf`, each without the values of the others.
    pub(super) fn exclusive(&mut self, schemas: &[Json], at: &str) -> Vec<Json> {
        if schemas.len() > MAX_OVERLAPPING {
            return Vec::new();
        }
        let negated: Vec<Option<Json>> = schemas.iter().map(|schema| self.not(schema, at)).collect();
        let mut found = Vec::new();
        for (index, schema) in schemas.iter().enumerate() {
            let others = negated.iter().enumerate().filter(|(other, _)| *other != index);
            let others: Option<Vec<Json>> = others.map(|(_, other)| other.clone()).collect();
            found.extend(others.map(|others| all(std::iter::once(schema.clone()).chain(others))));
        }
        found
    }

    /// Returns the choice between `then` and `else`.
    pub(super) fn condition(&mut self, members: &Members, condition: &Json, at: &str) -> Option<Choice> {
        let (then, other) = (members.get("then"), members.get("else"));
        if then.is_none() && other.is_none() {
            return None;
        }
        let part = |part: Option<&Json>| part.cloned().unwrap_or(Json::Bool(true));
        let mut schemas = vec![all([condition.clone(), part(then)])];
        schemas.extend(self.not(condition, at).map(|unmet| all([unmet, part(other)])));
        Some(Choice {
            schemas,
            derived: true,
        })
    }

    /// Returns the choices of lists that contain the required items: first, or after one of the
    /// listed items.
    pub(super) fn containing(
        &mut self,
        schema: &Members,
        own: &Members,
        at: &str,
    ) -> Result<Option<Choice>, SchemaError> {
        let count = |keyword: &str| match schema.get(keyword) {
            Some(Json::Number(count)) => count.as_u64().or_else(|| {
                let count = count
                    .as_f64()
                    .filter(|count| count.fract() == 0.0 && *count >= 0.0);
                count.map(|count| count as u64)
            }),
            _ => None,
        };
        let Some(item) = schema.get("contains") else {
            return Ok(None);
        };
        let (least, most) = (count("minContains").unwrap_or(1), count("maxContains"));
        if least == 0 && most.is_none() {
            return Ok(None);
        }
        if most.is_some_and(|most| most < least) {
            return Err(super::empty(at));
        }
        if least > MAX_CONTAINED {
            return Err(unsupported(at, &format!("minContains above {MAX_CONTAINED}")));
        }
        let first = match own.get("prefixItems") {
            Some(Json::Array(first)) => first.len().min(MAX_FIRST_ITEMS),
            _ => 0,
        };
        // Other items count as well, unless the maximum excludes them.
        let other = match most {
            None => Json::Bool(true),
            Some(_) => self.not(item, at).unwrap_or(Json::Bool(false)),
        };
        let list = |before: usize| {
            let mut items = vec![other.clone(); before];
            items.extend(std::iter::repeat_n(item.clone(), least as usize));
            let mut list = Members::new([("minItems", number(before as u64 + least))]);
            if !items.is_empty() {
                list.insert("prefixItems", Json::Array(items));
            }
            if other != Json::Bool(true) {
                list.insert("items", other.clone());
            }
            list.insert(super::EVALUATED_ITEMS, number(0));
            Json::Object(list)
        };
        let places = if least == 0 { 0..=0 } else { 0..=first };
        let schemas = places.map(list).collect();
        Ok(Some(Choice {
            schemas,
            derived: true,
        }))
    }
}

/// Returns a choice for each dependency: without the member, or with all that it needs.
pub(super) fn dependencies(keyword: &str, value: &Json, at: &str) -> Result<Vec<Choice>, SchemaError> {
    let invalid = || SchemaError::Invalid {
        at: format!("{at}/{keyword}"),
        keyword: "dependencies",
        expected: "an object of schemas or lists of names",
    };
    let mut choices = Vec::new();
    for (name, needs) in value.as_object().ok_or_else(invalid)?.iter() {
        let present = |names: Vec<Json>| Json::Object(Members::new([("required", Json::Array(names))]));
        let with = match needs {
            Json::Array(names) => present([vec![Json::from(name)], names.clone()].concat()),
            Json::Bool(true) => continue,
            schema @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
                all([present(vec![Json::from(name)]), schema.clone()])
            }
        };
        choices.push(Choice {
            schemas: vec![with, without_member(name)],
            derived: true,
        });
    }
    Ok(choices)
}

fn all(schemas: impl IntoIterator<Item = Json>) -> Json {
    let schemas = schemas.into_iter().collect();
    Json::Object(Members::new([("allOf", Json::Array(schemas))]))
}
