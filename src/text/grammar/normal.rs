//! Schemas in normal form: what `allOf`, `not`, references and choices say together with other keywords is said by one
//! schema, as far as that can be. What is left is for the grammar to hold to, one keyword beside the other.

use std::cmp::Ordering;

use super::numbers::Bound;
use super::schema::{
    Kind, Schema, SchemaError, ValueSet, are_equal, check_apart, demands, followed, listed_values, resolved,
};
use crate::openai::json::{Json, Members};

/// Schemas that are put together in all. Choices multiply: without a limit, a small schema could become a huge one.
const MAX_MERGES: u32 = 2_000;
/// Schemas inside schemas.
const MAX_DEPTH: usize = 100;

/// Keywords that bring other schemas.
const COMBINING: &[&str] = &["$ref", "allOf", "anyOf", "oneOf", "not"];

/// Keywords that hold schemas to be referred to.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];

/// Accepts what `schema` accepts, or less.
pub(super) fn normal(schema: &Json) -> Result<Json, SchemaError> {
    let mut normalizer = Normalizer {
        root: schema,
        merges: 0,
        depth: 0,
    };
    normalizer.schema(schema, "#")
}

struct Normalizer<'a> {
    root: &'a Json,
    merges: u32,
    depth: usize,
}

/// A schema's keywords, and what they were brought together with.
#[derive(Default)]
struct Gathered {
    /// Without combinations.
    own: Members,
    choices: Vec<Vec<Json>>,
    excluded: Vec<Json>,
}

impl Normalizer<'_> {
    fn schema(&mut self, schema: &Json, at: &str) -> Result<Json, SchemaError> {
        let Json::Object(members) = schema else {
            return Ok(schema.clone());
        };
        if members
            .get("pattern")
            .is_some_and(|pattern| pattern.as_str().is_none())
        {
            return Err(SchemaError::Invalid {
                at: at.to_owned(),
                keyword: "pattern",
                expected: "a string",
            });
        }
        if self.depth >= MAX_DEPTH {
            return Err(unsupported(at, "such deep nesting"));
        }
        self.depth += 1;
        let flat = self.flat(&with_prefix_items(members.clone()), at);
        let whole = flat.and_then(|flat| self.children(self.with_names(flat), at));
        self.depth -= 1;
        whole
    }

    /// One schema without `allOf` and `not`, and with a choice or a reference only where that is all.
    fn flat(&mut self, members: &Members, at: &str) -> Result<Members, SchemaError> {
        let mut asked = members.clone();
        asked.retain(demands);
        let simple = |name: &str| asked.iter().all(|(own, _)| own == name);
        let combines = COMBINING.iter().any(|name| asked.get(name).is_some());
        if !combines || ["$ref", "anyOf", "oneOf"].into_iter().any(simple) {
            asked = members.clone();
            asked.retain(|name, value| demands(name, value) || DEFINITIONS.contains(&name));
            return Ok(asked);
        }
        let mut gathered = Gathered::default();
        self.gather(&asked, at, &mut gathered)?;
        let Gathered {
            mut own,
            mut choices,
            excluded,
        } = gathered;
        for schema in &excluded {
            exclude(&mut own, schema, at)?;
        }
        let bare = own.is_empty();
        let mut flat = match choices.pop() {
            None => own,
            // Nothing beside it.
            Some(choice) if bare && choices.is_empty() => Members::new([("anyOf", Json::Array(choice))]),
            Some(choice) => {
                let mut rest = vec![Json::Object(own)];
                let other = |choice| Json::Object(Members::new([("anyOf", Json::Array(choice))]));
                rest.extend(choices.into_iter().map(other));
                self.distribute(choice, &rest, at)?
            }
        };
        for name in DEFINITIONS {
            if let Some(definitions) = members.get(name) {
                flat.insert(name, definitions.clone());
            }
        }
        Ok(flat)
    }

    /// Says what names there may be by members of those names, or of those of a pattern.
    fn with_names(&self, mut schema: Members) -> Members {
        let names = schema.get("propertyNames");
        let Some(names) = names.and_then(|names| followed(self.root, names)).cloned() else {
            return schema;
        };
        let is_only = |keywords: &[&str]| {
            let mut members = names.as_object().into_iter().flat_map(Members::iter);
            members.all(|(name, value)| name == "type" || keywords.contains(&name) || !demands(name, value))
        };
        let others = schema
            .get("additionalProperties")
            .cloned()
            .unwrap_or(Json::Bool(true));
        let own = schema.get("properties").cloned();
        let has_patterns = schema.get("patternProperties").is_some();
        let named = own.as_ref().and_then(Json::as_object);
        let is_bare = !has_patterns && named.is_none_or(Members::is_empty);
        let pattern = names.get("pattern").and_then(Json::as_str);
        let pattern = match pattern.filter(|_| is_only(&["pattern"])) {
            Some(pattern) => Some(pattern.to_owned()),
            None => lengths(&names).filter(|_| is_only(&["minLength", "maxLength"])),
        };
        let (keyword, members) = match (listed_values(&names), pattern) {
            (Some(values), _) if (is_only(&["enum"]) || is_only(&["const"])) && !has_patterns => {
                let mut members = Members::default();
                for name in values.iter().filter_map(Json::as_str) {
                    let own = own.as_ref().and_then(|own| own.get(name));
                    members.insert(name, own.unwrap_or(&others).clone());
                }
                ("properties", members)
            }
            (None, Some(_)) if is_bare && others == Json::Bool(false) => ("properties", Members::default()),
            (None, Some(pattern)) if is_bare => ("patternProperties", Members::new([(&*pattern, others)])),
            _ => return schema,
        };
        schema.remove("propertyNames");
        schema.insert(keyword, Json::Object(members));
        schema.insert("additionalProperties", Json::Bool(false));
        schema
    }

    /// Each of the choices together with all else.
    fn distribute(&mut self, choice: Vec<Json>, rest: &[Json], at: &str) -> Result<Members, SchemaError> {
        let mut ways = Vec::new();
        for way in choice {
            let parts = [std::slice::from_ref(&way), rest].concat();
            let together = Members::new([("allOf", Json::Array(parts))]);
            self.depth += 1;
            if self.depth >= MAX_DEPTH {
                return Err(unsupported(at, "such deep nesting"));
            }
            let merged = self.flat(&together, at);
            self.depth -= 1;
            match merged {
                Ok(way) => ways.push(Json::Object(way)),
                // No value is both, which the other ways may be.
                Err(SchemaError::Empty { .. }) => {}
                Err(err) => return Err(err),
            }
        }
        match ways.len() {
            0 => Err(empty(at)),
            _ => Ok(Members::new([("anyOf", Json::Array(ways))])),
        }
    }

    fn gather(&mut self, members: &Members, at: &str, into: &mut Gathered) -> Result<(), SchemaError> {
        self.merges += 1;
        if self.merges > MAX_MERGES {
            return Err(unsupported(at, "so many combinations"));
        }
        let mut own = members.clone();
        own.retain(|name, value| demands(name, value) && !COMBINING.contains(&name));
        into.own = together(&into.own, &own, at)?;
        for (keyword, value) in members.iter() {
            match keyword {
                "$ref" => {
                    let target = value.as_str().ok_or(SchemaError::Invalid {
                        at: at.to_owned(),
                        keyword: "$ref",
                        expected: "a string",
                    })?;
                    let found = resolved(self.root, target).ok_or_else(|| SchemaError::Unresolved {
                        at: at.to_owned(),
                        target: target.to_owned(),
                    })?;
                    self.gather_schema(&found.clone(), at, into)?;
                }
                "allOf" => {
                    for schema in listed("allOf", value, at)? {
                        self.gather_schema(schema, at, into)?;
                    }
                }
                "anyOf" => into.choices.push(listed("anyOf", value, at)?.to_vec()),
                "oneOf" => {
                    let schemas = listed("oneOf", value, at)?;
                    check_apart(self.root, schemas, at)?;
                    into.choices.push(schemas.to_vec());
                }
                "not" => into.excluded.push(value.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    fn gather_schema(&mut self, schema: &Json, at: &str, into: &mut Gathered) -> Result<(), SchemaError> {
        match schema {
            Json::Bool(true) => Ok(()),
            Json::Bool(false) => Err(empty(at)),
            Json::Object(members) => {
                self.depth += 1;
                if self.depth >= MAX_DEPTH {
                    return Err(unsupported(at, "such a recursion"));
                }
                let gathered = self.gather(members, at, into);
                self.depth -= 1;
                gathered
            }
            Json::Null | Json::Number(_) | Json::String(_) | Json::Array(_) => Err(SchemaError::Invalid {
                at: at.to_owned(),
                keyword: "schema",
                expected: "an object",
            }),
        }
    }

    /// The schemas inside one that is flat.
    fn children(&mut self, mut flat: Members, at: &str) -> Result<Json, SchemaError> {
        for keyword in ["items", "additionalProperties"] {
            if let Some(inner) = flat.get(keyword).cloned() {
                let inner = self.schema(&inner, &format!("{at}/{keyword}"))?;
                flat.insert(keyword, inner);
            }
        }
        for keyword in ["prefixItems", "anyOf", "oneOf"] {
            if let Some(Json::Array(inner)) = flat.get(keyword).cloned() {
                let place = |index: usize| format!("{at}/{keyword}/{index}");
                let schema = |(index, schema)| match self.schema(schema, &place(index)) {
                    // No way at all.
                    Err(SchemaError::Empty { .. }) if keyword != "prefixItems" => Ok(Json::Bool(false)),
                    schema => schema,
                };
                let inner = inner.iter().enumerate().map(schema);
                let inner = inner.collect::<Result<_, _>>()?;
                flat.insert(keyword, Json::Array(inner));
            }
        }
        for keyword in ["properties", "patternProperties", "$defs", "definitions"] {
            let Some(Json::Object(inner)) = flat.get(keyword).cloned() else {
                continue;
            };
            let mut normal = Members::default();
            for (name, schema) in inner.iter() {
                let schema = match self.schema(schema, &format!("{at}/{keyword}/{name}")) {
                    // Nobody asks for it.
                    Err(_) if DEFINITIONS.contains(&keyword) && !refers_to(self.root, name) => continue,
                    // It can only be missing, or is refused where it is referred to.
                    Err(SchemaError::Empty { .. }) if keyword != "patternProperties" => Json::Bool(false),
                    schema => schema?,
                };
                normal.insert(name, schema);
            }
            flat.insert(keyword, Json::Object(normal));
        }
        Ok(Json::Object(flat))
    }
}

/// Whether there may be a reference to a definition of this name, or to a part of it.
fn refers_to(schema: &Json, name: &str) -> bool {
    match schema {
        Json::Array(items) => items.iter().any(|item| refers_to(item, name)),
        Json::Object(members) => members.iter().any(|(keyword, value)| match (keyword, value) {
            ("$ref", Json::String(target)) => target.contains(name) || target.contains(['%', '~']),
            (_, value) => refers_to(value, name),
        }),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// Lists as drafts before 2020-12 wrote them, and zod still does for OpenAI's client.
fn with_prefix_items(mut schema: Members) -> Members {
    if let Some(first @ Json::Array(_)) = schema.get("items").cloned() {
        schema.insert("prefixItems", first);
        schema.remove("items");
        if let Some(others) = schema.remove("additionalItems") {
            schema.insert("items", others);
        }
    }
    schema
}

/// The pattern of texts of a schema's lengths.
fn lengths(schema: &Json) -> Option<String> {
    let length = |keyword: &str| match schema.get(keyword) {
        None => Some(String::new()),
        Some(Json::Number(length)) => Some(u32::try_from(length.as_u64()?).ok()?.to_string()),
        Some(_) => None,
    };
    match (length("minLength")?, length("maxLength")?) {
        (least, most) if least.is_empty() && most.is_empty() => None,
        (least, most) if least.is_empty() => Some(format!(r"^[\s\S]{{0,{most}}}$")),
        (least, most) => Some(format!(r"^[\s\S]{{{least},{most}}}$")),
    }
}

fn unsupported(at: &str, keyword: &str) -> SchemaError {
    SchemaError::Unsupported {
        at: at.to_owned(),
        keyword: keyword.to_owned(),
    }
}

fn empty(at: &str) -> SchemaError {
    SchemaError::Empty { at: at.to_owned() }
}

fn listed<'a>(keyword: &'static str, value: &'a Json, at: &str) -> Result<&'a [Json], SchemaError> {
    match value {
        Json::Array(schemas) if !schemas.is_empty() => Ok(schemas),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => {
            Err(SchemaError::Invalid {
                at: at.to_owned(),
                keyword,
                expected: "a list with at least one schema",
            })
        }
    }
}

fn all_of(one: &Json, other: &Json) -> Json {
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

/// What both ask for. Neither brings other schemas that stand beside it.
fn together(one: &Members, other: &Members, at: &str) -> Result<Members, SchemaError> {
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
            "required" => union(own, value),
            "pattern" => Some(patterns_of_both(own, value)),
            "uniqueItems" => Some(Json::Bool(true)),
            "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                farther(own, value, true)
            }
            "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                farther(own, value, false)
            }
            "items" if one.get("prefixItems").is_none() && other.get("prefixItems").is_none() => {
                Some(all_of(own, value))
            }
            // Below.
            "properties" | "additionalProperties" => continue,
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
    if lists_in_vain(&both) {
        return Err(empty(at));
    }
    let objects = |schema: &Members| OBJECT.iter().any(|name| schema.get(name).is_some());
    if objects(one) && objects(other) {
        if one.get("patternProperties").is_some() || other.get("patternProperties").is_some() {
            return Err(conflict("patternProperties", at));
        }
        members_of_both(one, other, &mut both);
    }
    let arrays = |schema: &Members, name: &str| schema.get(name).is_some();
    let mixed = |one: &Members, other: &Members| arrays(one, "prefixItems") && arrays(other, "items");
    if mixed(one, other) || mixed(other, one) {
        return Err(conflict("prefixItems", at));
    }
    Ok(both)
}

/// Whether no value that a schema lists is of its types.
fn lists_in_vain(schema: &Members) -> bool {
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
    unsupported(at, &format!("two different {keyword} at once"))
}

/// Names of one schema are what the other one calls additional.
fn members_of_both(one: &Members, other: &Members, both: &mut Members) {
    let properties = |schema: &Members| match schema.get("properties") {
        Some(Json::Object(properties)) => properties.clone(),
        Some(_) | None => Members::default(),
    };
    let additional = |schema: &Members| schema.get("additionalProperties").cloned();
    let (own, theirs) = (properties(one), properties(other));
    let (own_others, their_others) = (additional(one), additional(other));
    let mut merged = Members::default();
    for (name, schema) in own.iter() {
        let there = theirs.get(name).or(their_others.as_ref());
        merged.insert(
            name,
            there.map_or_else(|| schema.clone(), |there| all_of(schema, there)),
        );
    }
    for (name, schema) in theirs.iter().filter(|(name, _)| own.get(name).is_none()) {
        merged.insert(
            name,
            own_others
                .as_ref()
                .map_or_else(|| schema.clone(), |there| all_of(schema, there)),
        );
    }
    // A member that nothing can be is one that must not be there.
    merged.retain(|_, schema| *schema != Json::Bool(false));
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

/// A list of what a text has to fit.
fn patterns_of_both(one: &Json, other: &Json) -> Json {
    let listed = |value: &Json| match value {
        Json::Array(patterns) => patterns.clone(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
            vec![value.clone()]
        }
    };
    Json::Array([listed(one), listed(other)].concat())
}

fn farther(one: &Json, other: &Json, larger: bool) -> Option<Json> {
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

/// Takes out of a schema what another one accepts, where that is plain to see.
fn exclude(own: &mut Members, excluded: &Json, at: &str) -> Result<(), SchemaError> {
    let unclear = || unsupported(at, "not of such a schema");
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
    let asked: Vec<(&str, &Json)> = members
        .iter()
        .filter(|(name, value)| demands(name, value))
        .collect();
    let (keyword, value) = match asked[..] {
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

/// `number` has the integers, and what is left of it without them has no name.
fn exclude_kinds(own: &mut Members, kinds: &[Kind], at: &str) -> Result<(), SchemaError> {
    let all = ["null", "boolean", "number", "string", "array", "object"].map(|word| word.into());
    let words = match own.get("type") {
        Some(Json::Array(words)) => words.clone(),
        Some(word) => vec![word.clone()],
        None => all.to_vec(),
    };
    let stays = |word: &Json| {
        let kind = word.as_str().and_then(Kind::of_word);
        kind.is_some_and(|kind| kinds.iter().all(|excluded| kind.is_apart_from(*excluded)))
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
        // All values of a kind that has but one.
        _ if values == [Json::Null] => return exclude_kinds(own, &[Kind::Null], at),
        _ => return Err(unsupported(at, "not of values beside anything but an enum")),
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
    let closed = matches!(own.get("additionalProperties"), None | Some(Json::Bool(false)))
        && own.get("patternProperties").is_none();
    match own.get_mut("properties") {
        Some(Json::Object(properties)) if closed => {
            properties.remove(name);
            Ok(())
        }
        _ => Err(unsupported(at, "not of a member beside unnamed ones")),
    }
}

#[cfg(test)]
mod tests;
