//! Whether no value fits two schemas, which `oneOf` asks of each two of its own: where that is
//! plain to see, or where a member that tells them apart is made to be there.

use std::collections::{HashMap, HashSet};

use super::formats;
use super::numbers::Bound;
use super::schema::{Kind, Schema, SchemaError, ValueSet, followed, listed_values, resolved};
use rooflet_inference_api::openai::json::{Json, Members};

/// Schemas of a `oneOf`: each is held against every other.
pub(super) const MAX_ONE_OF: usize = 256;
/// References and choices, one inside the other.
const MAX_DEPTH: usize = 16;
/// What the ways of all the schemas may weigh, each having its share; choices beyond are not looked
/// into.
const MAX_WEIGHT: usize = 80_000;
/// Of a part, besides its names: each way is held against many.
const PART_WEIGHT: usize = 64;

/// One way to fit a schema, its choices made.
struct Way<'a> {
    /// All that a value has to fit.
    parts: Vec<&'a Json>,
    /// `None`: any.
    kinds: Option<Vec<Kind>>,
    /// Other kinds do not fit.
    typed: bool,
    required: HashSet<&'a str>,
    members: HashMap<&'a str, Vec<&'a Json>>,
    /// Names of the parts that take no others.
    closed: Vec<HashSet<&'a str>>,
}

/// The schemas of a `oneOf`, of which no value fits two: those that only a member's values tell
/// apart, or that their discriminator does, with that member required. Who reads by a discriminator
/// needs it.
pub(super) fn told_apart(
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
    let all: Vec<Vec<Way<'_>>> = schemas
        .iter()
        .map(|schema| {
            let ways = ways(root, schema, 0, &mut (MAX_WEIGHT / schemas.len()));
            ways.into_iter().map(|parts| Way::new(root, parts)).collect()
        })
        .collect();
    let discriminator = discriminator
        .and_then(|discriminator| discriminator.get("propertyName"))
        .and_then(Json::as_str);
    let mut tags: Vec<Vec<&str>> = vec![Vec::new(); schemas.len()];
    for (index, one) in all.iter().enumerate() {
        for (other_index, other) in all[..index].iter().enumerate() {
            let told = discriminator.filter(|name| tells_apart(one, other, name));
            if told.is_none() && pairs(one, other).all(|(one, other)| one.is_apart_from(other)) {
                continue;
            }
            let Some(tag) = told.or_else(|| tag(one, other)) else {
                return Err(SchemaError::Overlapping { at });
            };
            for (index, ways) in [(index, one), (other_index, other)] {
                let required = ways.iter().all(|way| way.required.contains(tag));
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

/// A member whose values tell objects of the two apart, where it is there.
fn tag<'a>(one: &[Way<'a>], other: &[Way<'a>]) -> Option<&'a str> {
    let parts = one.first()?.parts.iter();
    let mut names = parts.flat_map(|part| properties(part)).map(|(name, _)| name);
    names.find(|name| tells_apart(one, other, name))
}

fn tells_apart(one: &[Way<'_>], other: &[Way<'_>], name: &str) -> bool {
    pairs(one, other).all(|(one, other)| {
        let objects = |way: &Way<'_>| way.kinds.as_deref() == Some(&[Kind::Object]);
        objects(one) && objects(other) && one.differs_in(other, name)
    })
}

/// The ways to fit a schema, each as the parts that a value has to fit. What is not looked into
/// only leaves out parts.
fn ways<'a>(root: &'a Json, schema: &'a Json, depth: usize, room: &mut usize) -> Vec<Vec<&'a Json>> {
    let mut found = vec![vec![schema]];
    if depth == MAX_DEPTH || *room == 0 {
        return found;
    }
    *room -= 1;
    let target = schema.get("$ref").and_then(Json::as_str);
    let target = target.and_then(|target| resolved(root, target));
    for part in target.into_iter().chain(list(schema, "allOf")) {
        let more = ways(root, part, depth + 1, room);
        found = all_of(found, &more, room);
    }
    for keyword in ["anyOf", "oneOf"] {
        let choice = list(schema, keyword).iter();
        let mut more = Vec::new();
        for way in choice {
            more.extend(ways(root, way, depth + 1, room));
        }
        if !more.is_empty() {
            found = all_of(found, &more, room);
        }
    }
    found
}

/// Each of the one together with each of the other, where there is room for them; the former alone
/// otherwise.
fn all_of<'a>(one: Vec<Vec<&'a Json>>, other: &[Vec<&'a Json>], room: &mut usize) -> Vec<Vec<&'a Json>> {
    let weight = |ways: &[Vec<&Json>]| -> usize {
        let parts = ways.iter().flatten();
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

impl<'a> Way<'a> {
    fn new(root: &'a Json, parts: Vec<&'a Json>) -> Self {
        let (kinds, typed) = kinds(&parts);
        let mut members: HashMap<&str, Vec<&Json>> = HashMap::new();
        let mut closed = Vec::new();
        for part in &parts {
            for (name, schema) in properties(part) {
                let schema = followed(root, schema).unwrap_or(schema);
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

    /// Whether no value fits both; where that is not plain to see, no.
    fn is_apart_from(&self, other: &Self) -> bool {
        let nothing = |way: &Self| way.parts.contains(&&Json::Bool(false));
        if nothing(self) || nothing(other) || self.any_part(other, lists_are_apart) {
            return true;
        }
        let (Some(own), Some(theirs)) = (&self.kinds, &other.kinds) else {
            return false;
        };
        // Keywords of one kind do not rule out the others.
        let typed = self.typed && other.typed;
        pairs(own, theirs).all(|(own, theirs)| {
            (typed && own.is_apart_from(*theirs)) || self.is_apart_as(other, *own, *theirs)
        })
    }

    /// Among values of these kinds.
    fn is_apart_as(&self, other: &Self, own: Kind, theirs: Kind) -> bool {
        if own.is_apart_from(theirs) {
            return false;
        }
        match own {
            Kind::Null | Kind::Boolean => false,
            Kind::Integer | Kind::Number => self.any_part(other, ranges_are_apart),
            Kind::String => self.any_part(other, |one, other| {
                let format = |part: &'_ Json| part.get("format").and_then(Json::as_str).map(str::to_owned);
                let formats = format(one).zip(format(other));
                counts_are_apart(one, other, ("minLength", "maxLength"))
                    || formats.is_some_and(|(one, other)| formats::are_apart(&one, &other))
            }),
            Kind::Array => self.any_part(other, |one, other| {
                counts_are_apart(one, other, ("minItems", "maxItems"))
            }),
            Kind::Object => {
                let counts = |one: &Json, other: &Json| {
                    counts_are_apart(one, other, ("minProperties", "maxProperties"))
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

    fn any_part(&self, other: &Self, are_apart: impl Fn(&Json, &Json) -> bool) -> bool {
        pairs(&self.parts, &other.parts).any(|(own, theirs)| are_apart(own, theirs))
    }

    fn forbids(&self, name: &str) -> bool {
        let members = self.members.get(name);
        members.is_some_and(|members| members.contains(&&Json::Bool(false)))
            || self.closed.iter().any(|names| !names.contains(name))
    }

    /// Whether no value of this member fits both.
    fn differs_in(&self, other: &Self, name: &str) -> bool {
        let Some((own, theirs)) = self.members.get(name).zip(other.members.get(name)) else {
            return false;
        };
        pairs(own, theirs).any(|(own, theirs)| lists_are_apart(own, theirs))
    }
}

/// What kinds of values fit all parts, and whether other kinds do not. Without a type or listed
/// values, these are the kinds that the keywords are about, of which the grammar's values are.
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

/// Whether both list their values, and have none in common.
fn lists_are_apart(one: &Json, other: &Json) -> bool {
    let lists = listed_values(one).zip(listed_values(other));
    lists.is_some_and(|(one, other)| {
        let other = ValueSet::of(&other);
        one.iter().all(|value| !other.contains(value))
    })
}

fn ranges_are_apart(one: &Json, other: &Json) -> bool {
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

/// By the keywords of the least and the most.
fn counts_are_apart(one: &Json, other: &Json, (least, most): (&'static str, &'static str)) -> bool {
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
