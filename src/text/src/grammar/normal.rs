//! Normal form of schemas: `allOf`, `not`, conditions, references and choices next to other keywords
//! are merged into one schema, as far as possible. The grammar enforces the remaining keywords one
//! by one.

mod conditions;
mod evaluation;
mod exclusion;
mod intersection;
mod negation;
mod patterns;

use self::conditions::dependencies;
use self::evaluation::mark_evaluated;
use self::exclusion::exclude;
use self::intersection::{all_of, intersection};
use super::disjoint::disjoint_schemas;
use super::references::with_local_references;
use super::schema::{SchemaError, constrains, dereferenced, listed_values, resolved};
use super::validity::with_valid_values;
use rooflet_inference_api::openai::json::{Json, Members};

/// Maximum number of merged schemas. Choices multiply: a small schema could expand to a huge one.
const MAX_MERGES: u32 = 2_000;
/// Maximum depth of nested schemas.
const MAX_DEPTH: usize = 100;

/// Keywords that combine schemas.
const COMBINING: &[&str] = &[
    "$ref",
    "allOf",
    "anyOf",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "oneOf",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Internal keyword: names of `properties` that count as evaluated.
const EVALUATED_NAMES: &str = "rooflet:evaluatedNames";
/// Internal keyword: number of items at the beginning of a list that count as evaluated.
const EVALUATED_ITEMS: &str = "rooflet:evaluatedItems";

/// Keywords with definitions for references.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];

/// Schema in normal form.
pub(super) struct Normal {
    pub(super) schema: Json,
    /// Reason for which a part of a negation was dropped. If no value satisfies the rest, this is
    /// the error.
    pub(super) dropped: Option<SchemaError>,
}

/// Returns a schema in normal form that accepts the values of `schema`, or fewer.
pub(super) fn normal(schema: &Json) -> Result<Normal, SchemaError> {
    let schema = &with_local_references(schema)?;
    let mut normalizer = Normalizer {
        root: schema,
        merges: 0,
        depth: 0,
        evaluates: false,
        dropped: None,
    };
    let normal = normalizer.schema(schema, "#");
    match (normal, normalizer.dropped) {
        (Err(SchemaError::Empty { .. }), Some(dropped)) => Err(dropped),
        (schema, dropped) => Ok(Normal {
            schema: schema?,
            dropped,
        }),
    }
}

struct Normalizer<'a> {
    root: &'a Json,
    merges: u32,
    depth: usize,
    /// True while schemas below `unevaluatedProperties` or `unevaluatedItems` are merged.
    evaluates: bool,
    /// Reason for which a part of a negation was dropped.
    dropped: Option<SchemaError>,
}

/// Keywords of combined schemas.
#[derive(Default)]
struct Gathered {
    /// Keywords other than combinations.
    own: Members,
    choices: Vec<Choice>,
    excluded: Vec<Json>,
    /// Schemas with `contains`.
    contained: Vec<Members>,
}

struct Choice {
    schemas: Vec<Json>,
    /// True if the schemas come from a negation or a condition. A schema that is not supported is
    /// then dropped.
    derived: bool,
}

impl Normalizer<'_> {
    fn schema(&mut self, schema: &Json, at: &str) -> Result<Json, SchemaError> {
        let Json::Object(members) = schema else {
            return Ok(schema.clone());
        };
        if self.depth >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.depth += 1;
        let flat = self.flat(&with_prefix_items(members.clone()), at);
        let whole = flat.and_then(|flat| {
            let flat = self.with_patterns(self.with_names(flat), at)?;
            self.children(flat, at)
        });
        self.depth -= 1;
        whole
    }

    /// Merges a schema into one without `allOf` and `not`. A choice or a reference remains only if
    /// it is the only keyword.
    fn flat(&mut self, members: &Members, at: &str) -> Result<Members, SchemaError> {
        let mut constraining = members.clone();
        constraining.retain(constrains);
        let simple = |name: &str| constraining.iter().all(|(own, _)| own == name);
        let combines = COMBINING.iter().any(|name| constraining.get(name).is_some());
        let is_simple = !combines || ["$ref", "anyOf", "oneOf"].into_iter().any(simple);
        if is_simple && !self.evaluates {
            constraining = members.clone();
            constraining.retain(|name, value| constrains(name, value) || DEFINITIONS.contains(&name));
            if let Some(schemas) = members.get("oneOf") {
                let schemas = self.disjoint_schemas(schemas, members, at)?.schemas;
                constraining.insert("oneOf", Json::Array(schemas));
            }
            return with_valid_values(self.root, constraining, at);
        }
        let mut gathered = Gathered::default();
        self.gather(members, at, &mut gathered)?;
        let Gathered {
            mut own,
            mut choices,
            excluded,
            contained,
        } = gathered;
        for schema in &excluded {
            match exclude(&mut own, schema, at) {
                Err(err) if err.is_unsupported() => {
                    let schemas = self.alternatives(schema, at);
                    self.dropped = Some(err);
                    choices.push(Choice {
                        schemas,
                        derived: true,
                    });
                }
                excluded => excluded?,
            }
        }
        for schema in &contained {
            choices.extend(self.containing(schema, &own, at)?);
        }
        let bare = own.is_empty() && !self.evaluates;
        let mut flat = match choices.pop() {
            None => match self.evaluates {
                true => own,
                false => with_valid_values(self.root, own, at)?,
            },
            // The choice has no other keywords next to it.
            Some(choice) if bare && choices.is_empty() && !choice.derived => {
                Members::new([("anyOf", Json::Array(choice.schemas))])
            }
            Some(choice) => {
                let mut rest = vec![Json::Object(own)];
                let other =
                    |choice: Choice| Json::Object(Members::new([("anyOf", Json::Array(choice.schemas))]));
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

    /// Replaces `propertyNames` by `properties` or `patternProperties`.
    fn with_names(&self, mut schema: Members) -> Members {
        let names = schema.get("propertyNames");
        let Some(names) = names.and_then(|names| dereferenced(self.root, names)).cloned() else {
            return schema;
        };
        let is_only = |keywords: &[&str]| {
            let mut members = names.as_object().into_iter().flat_map(Members::iter);
            members
                .all(|(name, value)| name == "type" || keywords.contains(&name) || !constrains(name, value))
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

    /// Merges the other schemas into each branch of the choice.
    fn distribute(&mut self, choice: Choice, rest: &[Json], at: &str) -> Result<Members, SchemaError> {
        let mut branches = Vec::new();
        for branch in choice.schemas {
            let parts = [std::slice::from_ref(&branch), rest].concat();
            let together = Members::new([("allOf", Json::Array(parts))]);
            self.depth += 1;
            if self.depth >= MAX_DEPTH {
                return Err(too_deep(at));
            }
            let merged = self.flat(&together, at);
            self.depth -= 1;
            match merged {
                Ok(branch) => branches.push(Json::Object(branch)),
                // An unsatisfiable branch is dropped.
                Err(SchemaError::Empty { .. }) => {}
                Err(err) if choice.derived && err.is_unsupported() => self.dropped = Some(err),
                Err(err) => return Err(err),
            }
        }
        match branches.len() {
            0 => Err(empty(at)),
            _ => Ok(Members::new([("anyOf", Json::Array(branches))])),
        }
    }

    fn gather(&mut self, members: &Members, at: &str, into: &mut Gathered) -> Result<(), SchemaError> {
        self.merges += 1;
        if self.merges > MAX_MERGES {
            return Err(unsupported(at, &format!("more than {MAX_MERGES} merged schemas")));
        }
        let members = &with_prefix_items(members.clone());
        for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
            if members
                .get(keyword)
                .is_some_and(|value| constrains(keyword, value))
            {
                let closed = self.evaluated(members, keyword, at)?;
                return self.gather(&closed, at, into);
            }
        }
        let mut own = members.clone();
        own.retain(|name, value| {
            let is_own = constrains(name, value) && !COMBINING.contains(&name);
            is_own || [EVALUATED_NAMES, EVALUATED_ITEMS].contains(&name)
        });
        match self.evaluates {
            true => mark_evaluated(&mut own),
            false => own.retain(|name, _| ![EVALUATED_NAMES, EVALUATED_ITEMS].contains(&name)),
        }
        into.own = intersection(&into.own, &own, at)?;
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
                "anyOf" => into.choices.push(Choice {
                    schemas: listed("anyOf", value, at)?.to_vec(),
                    derived: false,
                }),
                "oneOf" => into.choices.push(self.disjoint_schemas(value, members, at)?),
                "not" => into.excluded.push(value.clone()),
                "if" => into.choices.extend(self.condition(members, value, at)),
                "dependentRequired" | "dependentSchemas" | "dependencies" => {
                    into.choices.extend(dependencies(keyword, value, at)?);
                }
                "contains" => into.contained.push(members.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares the original schemas: their normal forms may accept fewer values, and so hide an
    /// overlap.
    /// If schemas overlap, each then excludes the values of the others.
    fn disjoint_schemas(
        &mut self,
        schemas: &Json,
        beside: &Members,
        at: &str,
    ) -> Result<Choice, SchemaError> {
        let schemas = listed("oneOf", schemas, at)?;
        match disjoint_schemas(self.root, schemas, beside.get("discriminator"), at) {
            Err(err @ SchemaError::Overlapping { .. }) => {
                let schemas = self.exclusive(schemas, at);
                if schemas.is_empty() {
                    return Err(err);
                }
                self.dropped = Some(err);
                Ok(Choice {
                    schemas,
                    derived: true,
                })
            }
            disjoint => Ok(Choice {
                schemas: disjoint?,
                derived: false,
            }),
        }
    }

    fn gather_schema(&mut self, schema: &Json, at: &str, into: &mut Gathered) -> Result<(), SchemaError> {
        match schema {
            Json::Bool(true) => Ok(()),
            Json::Bool(false) => Err(empty(at)),
            Json::Object(members) => {
                self.depth += 1;
                if self.depth >= MAX_DEPTH {
                    return Err(unsupported(at, "recursion through combined schemas"));
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

    /// Normalizes the schemas inside a merged schema.
    fn children(&mut self, mut flat: Members, at: &str) -> Result<Json, SchemaError> {
        for keyword in ["items", "additionalProperties"] {
            if let Some(inner) = flat.get(keyword).cloned() {
                let inner = match self.schema(&inner, &format!("{at}/{keyword}")) {
                    // There are no further items or properties.
                    Err(SchemaError::Empty { .. }) => Json::Bool(false),
                    schema => schema?,
                };
                flat.insert(keyword, inner);
            }
        }
        if let Some(Json::Array(first)) = flat.get("prefixItems").cloned() {
            let mut normal = Vec::new();
            for (index, schema) in first.iter().enumerate() {
                match self.schema(schema, &format!("{at}/prefixItems/{index}")) {
                    // The list ends before this item.
                    Err(SchemaError::Empty { .. }) | Ok(Json::Bool(false)) => {
                        flat.insert("items", Json::Bool(false));
                        break;
                    }
                    schema => normal.push(schema?),
                }
            }
            flat.insert("prefixItems", Json::Array(normal));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Json::Array(inner)) = flat.get(keyword).cloned() {
                let place = |index: usize| format!("{at}/{keyword}/{index}");
                let schema = |(index, schema)| match self.schema(schema, &place(index)) {
                    // The branch is unsatisfiable.
                    Err(SchemaError::Empty { .. }) => Ok(Json::Bool(false)),
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
                    // The definition is not used.
                    Err(_) if DEFINITIONS.contains(&keyword) && !refers_to(self.root, name) => continue,
                    // The property must be absent, or the reference to it is rejected.
                    Err(SchemaError::Empty { .. }) => Json::Bool(false),
                    schema => schema?,
                };
                if schema == Json::Bool(false) && keyword == "properties" && is_required(&flat, name) {
                    return Err(empty(&format!("{at}/properties/{name}")));
                }
                normal.insert(name, schema);
            }
            flat.insert(keyword, Json::Object(normal));
        }
        Ok(Json::Object(flat))
    }
}

fn is_required(schema: &Members, name: &str) -> bool {
    let Some(Json::Array(names)) = schema.get("required") else {
        return false;
    };
    names.iter().any(|own| own.as_str() == Some(name))
}

/// Returns true if a reference to this definition, or to a part of it, may exist.
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

/// Converts list schemas of drafts before 2020-12, which zod generates for OpenAI's client.
fn with_prefix_items(mut schema: Members) -> Members {
    if let Some(first @ Json::Array(_)) = schema.get("items").cloned() {
        schema.insert("prefixItems", first);
        schema.remove("items");
        if let Some(others) = schema.remove("additionalItems") {
            schema.insert("items", others);
        }
    }
    // Without a list of items, the keyword has no effect.
    schema.remove("additionalItems");
    schema
}

/// Returns an expression with the length limits of a schema.
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

fn too_deep(at: &str) -> SchemaError {
    unsupported(at, &format!("nesting deeper than {MAX_DEPTH} levels"))
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
                expected: "a list of at least one schema",
            })
        }
    }
}

#[cfg(test)]
mod tests;
