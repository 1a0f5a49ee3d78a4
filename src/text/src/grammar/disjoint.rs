//! Proof that the schemas of a `oneOf` are pairwise disjoint, so that each value matches one of
//! them. If only a property separates two schemas, that property becomes required.

use std::collections::{HashMap, HashSet};

use super::formats;
use super::numbers::Bound;
use super::schema::{Kind, Schema, SchemaError, ValueSet, dereferenced, listed_values, resolved};
use rooflet_inference_api::openai::json::{Json, Members};

/// Maximum number of schemas in a `oneOf`. Each is compared with every other.
pub(super) const MAX_ONE_OF: usize = 256;
/// Maximum depth of nested references and choices.
const MAX_DEPTH: usize = 16;
/// Maximum weight of the branches of all schemas, in equal shares. Choices beyond are not expanded.
const MAX_WEIGHT: usize = 80_000;
/// Weight of a part, in addition to its names. Each branch is compared with many others.
const PART_WEIGHT: usize = 64;

/// Branch of a schema: one selection for each of its choices.
struct Branch<'a> {
    /// Schemas that a value must all satisfy.
    parts: Vec<&'a Json>,
    /// Permitted kinds of values. `None`: all kinds.
    kinds: Option<Vec<Kind>>,
    /// True if values of other kinds are rejected.
    typed: bool,
    required: HashSet<&'a str>,
    members: HashMap<&'a str, Vec<&'a Json>>,
    /// Property names of the parts that reject additional properties.
    closed: Vec<HashSet<&'a str>>,
}

/// Returns the schemas of a `oneOf` in a form in which no value matches two of them.
///
/// If two schemas differ only in the values of a property, or have a discriminator, that property
/// becomes required. Clients that read a discriminator need it in any case.
pub(super) fn disjoint_schemas(
    root: &Json,
    schemas: &[Json],
    discriminator: Option<&Json>,
    at: &str,
) -> Result<Vec<Json>, SchemaError> {
    let at = at.to_owned();
    if schemas.len() > MAX_ONE_OF {
        let schemas = schemas.len();
        return Err(SchemaError::TooManyBranches { at, schemas });
    }
    let all: Vec<Vec<Branch<'_>>> = schemas
        .iter()
        .map(|schema| {
            let branches = branches(root, schema, 0, &mut (MAX_WEIGHT / schemas.len()));
            branches
                .into_iter()
                .map(|parts| Branch::new(root, parts))
                .collect()
        })
        .collect();
    let discriminator = discriminator
        .and_then(|discriminator| discriminator.get("propertyName"))
        .and_then(Json::as_str);
    let mut tags: Vec<Vec<&str>> = vec![Vec::new(); schemas.len()];
    for (index, one) in all.iter().enumerate() {
        for (other_index, other) in all[..index].iter().enumerate() {
            let separator = discriminator.filter(|name| separates(one, other, name));
            if separator.is_none() && pairs(one, other).all(|(one, other)| one.is_disjoint_from(other)) {
                continue;
            }
            let Some(tag) = separator.or_else(|| tag(one, other)) else {
                return Err(SchemaError::Overlapping { at });
            };
            for (index, branches) in [(index, one), (other_index, other)] {
                let required = branches.iter().all(|branch| branch.required.contains(tag));
                if !required && !tags[index].contains(&tag) {
                    tags[index].push(tag);
                }
            }
        }
    }
    let with_tags = |(schema, tags): (&Json, Vec<&str>)| {
        if tags.is_empty() {
            return schema.clone();
        }
        let tags = tags.into_iter().map(Json::from).collect();
        let required = Members::new([("required", Json::Array(tags))]);
        let both = vec![schema.clone(), Json::Object(required)];
        Json::Object(Members::new([("allOf", Json::Array(both))]))
    };
    Ok(schemas.iter().zip(tags).map(with_tags).collect())
}

fn pairs<'w, T>(one: &'w [T], other: &'w [T]) -> impl Iterator<Item = (&'w T, &'w T)> {
    one.iter()
        .flat_map(|own| other.iter().map(move |theirs| (own, theirs)))
}

/// Returns a property whose values separate the objects of both schemas.
fn tag<'a>(one: &[Branch<'a>], other: &[Branch<'a>]) -> Option<&'a str> {
    let parts = one.first()?.parts.iter();
    let mut names = parts.flat_map(|part| properties(part)).map(|(name, _)| name);
    names.find(|name| separates(one, other, name))
}

fn separates(one: &[Branch<'_>], other: &[Branch<'_>], name: &str) -> bool {
    pairs(one, other).all(|(one, other)| {
        let objects = |branch: &Branch<'_>| branch.kinds.as_deref() == Some(&[Kind::Object]);
        objects(one) && objects(other) && one.differs_in(other, name)
    })
}

/// Returns the branches of a schema, each as the list of schemas that a value must satisfy. Choices
/// that are not expanded only shorten these lists.
fn branches<'a>(root: &'a Json, schema: &'a Json, depth: usize, room: &mut usize) -> Vec<Vec<&'a Json>> {
    let mut found = vec![vec![schema]];
    if depth == MAX_DEPTH || *room == 0 {
        return found;
    }
    *room -= 1;
    let target = schema.get("$ref").and_then(Json::as_str);
    let target = target.and_then(|target| resolved(root, target));
    for part in target.into_iter().chain(list(schema, "allOf")) {
        let more = branches(root, part, depth + 1, room);
        found = all_of(found, &more, room);
    }
    for keyword in ["anyOf", "oneOf"] {
        let choice = list(schema, keyword).iter();
        let mut more = Vec::new();
        for branch in choice {
            more.extend(branches(root, branch, depth + 1, room));
        }
        if !more.is_empty() {
            found = all_of(found, &more, room);
        }
    }
    found
}

/// Returns all combinations of both lists, or the first list if there is no room for them.
fn all_of<'a>(one: Vec<Vec<&'a Json>>, other: &[Vec<&'a Json>], room: &mut usize) -> Vec<Vec<&'a Json>> {
    let weight = |branches: &[Vec<&Json>]| -> usize {
        let parts = branches.iter().flatten();
        parts
            .map(|part| PART_WEIGHT + properties(part).count() + list(part, "required").len())
            .sum()
    };
    let whole = weight(&one) * other.len() + weight(other) * one.len();
    let Some(left) = room.checked_sub(whole) else {
        return one;
    };
    *room = left;
    pairs(&one, other)
        .map(|(own, theirs)| [own.as_slice(), theirs].concat())
        .collect()
}

fn list<'a>(schema: &'a Json, keyword: &str) -> &'a [Json] {
    match schema.get(keyword) {
        Some(Json::Array(items)) => items,
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) | None => &[],
    }
}

fn properties(schema: &Json) -> impl Iterator<Item = (&str, &Json)> {
    let properties = schema.get("properties").and_then(Json::as_object);
    properties.into_iter().flat_map(Members::iter)
}

impl<'a> Branch<'a> {
    fn new(root: &'a Json, parts: Vec<&'a Json>) -> Self {
        let (kinds, typed) = kinds(&parts);
        let mut members: HashMap<&str, Vec<&Json>> = HashMap::new();
        let mut closed = Vec::new();
        for part in &parts {
            for (name, schema) in properties(part) {
                let schema = dereferenced(root, schema).unwrap_or(schema);
                members.entry(name).or_default().push(schema);
            }
            let others = part.get("additionalProperties");
            if others == Some(&Json::Bool(false)) && part.get("patternProperties").is_none() {
                closed.push(properties(part).map(|(name, _)| name).collect());
            }
        }
        let required = parts.iter().flat_map(|part| list(part, "required"));
        Self {
            required: required.filter_map(Json::as_str).collect(),
            kinds,
            typed,
            members,
            closed,
            parts,
        }
    }

    /// Returns true if it is certain that no value matches both branches.
    fn is_disjoint_from(&self, other: &Self) -> bool {
        let nothing = |branch: &Self| branch.parts.contains(&&Json::Bool(false));
        if nothing(self) || nothing(other) || self.any_part(other, lists_are_disjoint) {
            return true;
        }
        let (Some(own), Some(theirs)) = (&self.kinds, &other.kinds) else {
            return false;
        };
        // A keyword of one kind accepts all values of other kinds.
        let typed = self.typed && other.typed;
        pairs(own, theirs).all(|(own, theirs)| {
            (typed && own.is_disjoint_from(*theirs)) || self.is_disjoint_as(other, *own, *theirs)
        })
    }

    /// Compares two branches for values of these kinds.
    fn is_disjoint_as(&self, other: &Self, own: Kind, theirs: Kind) -> bool {
        if own.is_disjoint_from(theirs) {
            return false;
        }
        match own {
            Kind::Null | Kind::Boolean => false,
            Kind::Integer | Kind::Number => self.any_part(other, ranges_are_disjoint),
            Kind::String => self.any_part(other, |one, other| {
                let format = |part: &'_ Json| part.get("format").and_then(Json::as_str).map(str::to_owned);
                let formats = format(one).zip(format(other));
                counts_are_disjoint(one, other, ("minLength", "maxLength"))
                    || formats.is_some_and(|(one, other)| formats::are_disjoint(&one, &other))
            }),
            Kind::Array => self.any_part(other, |one, other| {
                counts_are_disjoint(one, other, ("minItems", "maxItems"))
            }),
            Kind::Object => {
                let counts = |one: &Json, other: &Json| {
                    counts_are_disjoint(one, other, ("minProperties", "maxProperties"))
                };
                let required = |name: &&&str| other.required.contains(**name);
                self.required.iter().any(|name| other.forbids(name))
                    || other.required.iter().any(|name| self.forbids(name))
                    || self
                        .required
                        .iter()
                        .filter(required)
                        .any(|name| self.differs_in(other, name))
                    || self.any_part(other, counts)
            }
        }
    }

    fn any_part(&self, other: &Self, are_disjoint: impl Fn(&Json, &Json) -> bool) -> bool {
        pairs(&self.parts, &other.parts).any(|(own, theirs)| are_disjoint(own, theirs))
    }

    fn forbids(&self, name: &str) -> bool {
        let members = self.members.get(name);
        members.is_some_and(|members| members.contains(&&Json::Bool(false)))
            || self.closed.iter().any(|names| !names.contains(name))
    }

    /// Returns true if no value of this property matches both branches.
    fn differs_in(&self, other: &Self, name: &str) -> bool {
        let Some((own, theirs)) = self.members.get(name).zip(other.members.get(name)) else {
            return false;
        };
        pairs(own, theirs).any(|(own, theirs)| lists_are_disjoint(own, theirs))
    }
}

/// Returns the kinds of values that satisfy all parts, and whether other kinds are rejected.
/// Without `type` or listed values, these are the kinds that the keywords constrain. The grammar
/// only generates values of these kinds.
fn kinds(parts: &[&Json]) -> (Option<Vec<Kind>>, bool) {
    let of = |part: &Json| {
        let members = part.as_object()?;
        let at = String::new();
        Schema { members, at }.kinds().ok()?
    };
    let typed = parts.iter().filter(|part| part.get("type").is_some());
    if let Some(kinds) = typed.clone().find_map(|part| of(part)) {
        return (Some(kinds), true);
    }
    if let Some(values) = parts.iter().find_map(|part| listed_values(part)) {
        return (Some(values.iter().map(Kind::of).collect()), true);
    }
    let mut about: Vec<Kind> = parts.iter().filter_map(|part| of(part)).flatten().collect();
    let mut known = Vec::new();
    about.retain(|kind| {
        let new = !known.contains(kind);
        known.push(*kind);
        new
    });
    ((!about.is_empty()).then_some(about), false)
}

/// Returns true if both schemas list their values and have none in common.
fn lists_are_disjoint(one: &Json, other: &Json) -> bool {
    let lists = listed_values(one).zip(listed_values(other));
    lists.is_some_and(|(one, other)| {
        let other = ValueSet::of(&other);
        one.iter().all(|value| !other.contains(value))
    })
}

fn ranges_are_disjoint(one: &Json, other: &Json) -> bool {
    let bounds = |part: &Json| {
        let members = part.as_object()?;
        let at = String::new();
        Schema { members, at }.bounds().ok()
    };
    let Some(((min, max), (other_min, other_max))) = bounds(one).zip(bounds(other)) else {
        return false;
    };
    let is_below = |most: Option<Bound>, least: Option<Bound>| {
        let both = most.zip(least);
        both.is_some_and(|(most, least)| most.is_below(&least))
    };
    is_below(max, other_min) || is_below(other_max, min)
}

/// Compares two count ranges, given the keywords of minimum and maximum.
fn counts_are_disjoint(one: &Json, other: &Json, (least, most): (&'static str, &'static str)) -> bool {
    let count = |part: &Json, keyword| match part.get(keyword) {
        Some(Json::Number(number)) => number.as_u64(),
        Some(Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_)) | None => None,
    };
    let is_below = |one: &Json, other: &Json| {
        count(one, most)
            .zip(count(other, least))
            .is_some_and(|(most, least)| most < least)
    };
    is_below(one, other) || is_below(other, one)
}
