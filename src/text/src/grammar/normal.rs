//! Schemas in normal form: what `allOf`, `not`, references and choices say together with other
//! keywords is said by one schema, as far as that can be. What is left is for the grammar to hold
//! to, one keyword beside the other.

mod exclusion;
mod intersection;

use self::exclusion::exclude;
use self::intersection::together;
use super::apart::told_apart;
use super::schema::{SchemaError, demands, followed, listed_values, resolved};
use rooflet_inference_api::openai::json::{Json, Members};

/// Schemas that are put together in all. Choices multiply: without a limit, a small schema could
/// become a huge one.
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

    /// One schema without `allOf` and `not`, and with a choice or a reference only where that is
    /// all.
    fn flat(&mut self, members: &Members, at: &str) -> Result<Members, SchemaError> {
        let mut asked = members.clone();
        asked.retain(demands);
        let simple = |name: &str| asked.iter().all(|(own, _)| own == name);
        let combines = COMBINING.iter().any(|name| asked.get(name).is_some());
        if !combines || ["$ref", "anyOf", "oneOf"].into_iter().any(simple) {
            asked = members.clone();
            asked.retain(|name, value| demands(name, value) || DEFINITIONS.contains(&name));
            if let Some(schemas) = members.get("oneOf") {
                asked.insert("oneOf", Json::Array(self.told_apart(schemas, members, at)?));
            }
            return Ok(asked);
        }
        let mut gathered = Gathered::default();
        self.gather(members, at, &mut gathered)?;
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
                "oneOf" => into.choices.push(self.told_apart(value, members, at)?),
                "not" => into.excluded.push(value.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Held against each other as they came: a value of what is left of one in normal form may fit
    /// all of another.
    fn told_apart(&self, schemas: &Json, beside: &Members, at: &str) -> Result<Vec<Json>, SchemaError> {
        let schemas = listed("oneOf", schemas, at)?;
        told_apart(self.root, schemas, beside.get("discriminator"), at)
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

#[cfg(test)]
mod tests;
