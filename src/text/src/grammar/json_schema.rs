//! Grammars of JSON values, from JSON Schema. Every text of such a grammar is a value that the
//! schema accepts. Not all that it accepts is in the grammar: members come in the schema's order,
//! and where a schema names members and does not speak of others, there are no others.

use std::collections::HashMap;

use super::json::Rules;
use super::normal::normal;
pub(super) use super::schema::SchemaError;
use super::schema::{Kind, NUMBER, STRING, Schema, ValueSet, check_parts, followed, resolved};
use super::{Builder, NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

/// Schemas inside schemas, references followed.
const MAX_DEPTH: usize = 100;
/// Values of which each may come once: a grammar has a state for each choice of them.
const MAX_DIFFERENT: usize = 10;

/// The rule of a schema's values.
pub(super) fn schema_rule(builder: &mut Builder, schema: &Json) -> Result<NodeId, SchemaError> {
    check_parts(schema)?;
    let schema = &normal(schema)?;
    let rules = Rules::new(builder);
    let mut compiler = Compiler {
        builder,
        rules,
        root: schema,
        references: HashMap::new(),
        scalars: HashMap::new(),
        depth: 0,
    };
    compiler.rule(schema, "#".to_owned())
}

struct Compiler<'a, 'b> {
    builder: &'b mut Builder,
    rules: Rules,
    root: &'a Json,
    /// Rules of what was referred to, also of what is being built.
    references: HashMap<&'a str, NodeId>,
    /// Rules of strings and numbers, by what is demanded of them: schemas repeat themselves.
    scalars: HashMap<String, NodeId>,
    depth: usize,
}

impl<'a> Compiler<'a, '_> {
    fn rule(&mut self, schema: &'a Json, at: String) -> Result<NodeId, SchemaError> {
        if self.depth >= MAX_DEPTH {
            return Err(SchemaError::Unsupported {
                at,
                keyword: "such deep nesting".to_owned(),
            });
        }
        self.depth += 1;
        let rule = match schema {
            Json::Bool(true) => Ok(self.rules.value),
            Json::Object(members) => self.object_schema(&Schema::new(members, at)?),
            Json::Bool(false) => Err(SchemaError::Empty { at }),
            Json::Null | Json::Number(_) | Json::String(_) | Json::Array(_) => Err(SchemaError::Invalid {
                at,
                keyword: "schema",
                expected: "an object",
            }),
        };
        self.depth -= 1;
        self.builder.check_size()?;
        rule
    }

    fn object_schema(&mut self, schema: &Schema<'a>) -> Result<NodeId, SchemaError> {
        if let Some(target) = schema.text("$ref")? {
            alone(schema, "$ref")?;
            return self.reference(schema, target);
        }
        if schema.get("const").is_some() || schema.get("enum").is_some() {
            let values = listed(schema)?.unwrap_or_default();
            return Ok(self.builder.one_of(values.iter().map(text).collect(), RETURN));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(schemas) = schema.list(keyword)? {
                return self.combination(schema, keyword, schemas);
            }
        }
        let Some(kinds) = schema.kinds()? else {
            return Ok(self.rules.value);
        };
        let mut ways = Vec::new();
        for kind in kinds {
            ways.push(self.kind(schema, kind)?);
        }
        Ok(self.builder.any_of(ways))
    }

    fn reference(&mut self, schema: &Schema<'a>, target: &'a str) -> Result<NodeId, SchemaError> {
        if let Some(rule) = self.references.get(target) {
            return Ok(*rule);
        }
        let found = resolved(self.root, target).ok_or_else(|| SchemaError::Unresolved {
            at: schema.at.clone(),
            target: target.to_owned(),
        })?;
        let reserved = self.builder.reserve();
        self.references.insert(target, reserved);
        let rule = self.rule(found, target.to_owned())?;
        if rule == reserved {
            return Err(schema.empty());
        }
        self.builder.define(reserved, rule);
        Ok(reserved)
    }

    /// Of `oneOf`, no value fits two: the normal form has seen to that.
    fn combination(
        &mut self,
        schema: &Schema<'a>,
        keyword: &'static str,
        schemas: &'a [Json],
    ) -> Result<NodeId, SchemaError> {
        alone(schema, keyword)?;
        if schemas.is_empty() {
            return Err(schema.invalid(keyword, "a list with at least one schema"));
        }
        let at = |index: usize| schema.below(&format!("{keyword}/{index}"));
        let mut ways = Vec::new();
        for (index, one) in schemas.iter().enumerate() {
            if *one != Json::Bool(false) {
                ways.push(self.rule(one, at(index))?);
            }
        }
        match ways.is_empty() {
            true => Err(schema.empty()),
            false => Ok(self.builder.any_of(ways)),
        }
    }

    fn kind(&mut self, schema: &Schema<'a>, kind: Kind) -> Result<NodeId, SchemaError> {
        match kind {
            Kind::Null => Ok(self.builder.literal(b"null", RETURN)),
            Kind::Boolean => {
                let words = ["true", "false"].map(|word| self.builder.literal(word.as_bytes(), RETURN));
                Ok(self.builder.any_of(words.to_vec()))
            }
            Kind::Integer | Kind::Number | Kind::String => self.scalar(schema, kind),
            Kind::Array => self.array(schema),
            Kind::Object => self.object(schema),
        }
    }

    fn scalar(&mut self, schema: &Schema<'a>, kind: Kind) -> Result<NodeId, SchemaError> {
        let keywords = if kind == Kind::String { STRING } else { NUMBER };
        let demands: Vec<Option<&Json>> = keywords.iter().map(|keyword| schema.get(keyword)).collect();
        let key = format!("{kind:?} {demands:?}");
        if let Some(rule) = self.scalars.get(&key) {
            return Ok(*rule);
        }
        let rule = match kind == Kind::String {
            true => self.string(schema),
            false => self.number(schema, kind == Kind::Integer),
        }?;
        self.scalars.insert(key, rule);
        Ok(rule)
    }

    fn array(&mut self, schema: &Schema<'a>) -> Result<NodeId, SchemaError> {
        let (min, max) = (schema.count("minItems")?.unwrap_or(0), schema.count("maxItems")?);
        match schema.get("uniqueItems") {
            Some(Json::Bool(true)) if max.is_none_or(|max| max > 1) => {
                return self.different(schema, (min, max));
            }
            None | Some(Json::Bool(_)) => {}
            Some(_) => return Err(schema.invalid("uniqueItems", "true or false")),
        }
        let mut first = Vec::new();
        for (index, item) in schema.list("prefixItems")?.unwrap_or_default().iter().enumerate() {
            first.push(self.rule(item, schema.below(&format!("prefixItems/{index}")))?);
        }
        let others = match schema.get("items") {
            None => Some(self.rules.value),
            Some(Json::Bool(false)) => None,
            Some(items) => Some(self.rule(items, schema.below("items"))?),
        };
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let named = count(first.len());
        let most = match (max, others) {
            (Some(max), Some(_)) => Some(max),
            (Some(max), None) => Some(max.min(named)),
            (None, Some(_)) => None,
            (None, None) => Some(named),
        };
        if most.is_some_and(|most| most < min) {
            return Err(schema.empty());
        }
        first.truncate(most.map_or(usize::MAX, |most| most as usize));
        let named = count(first.len());
        let close = self.closed(b"]");
        // From the end: what may come behind so many items.
        let mut behind = close;
        if let Some(item) = others {
            let rest = most.map(|most| most - named);
            if named == 0 {
                behind = self.items(item, min, rest, close);
            } else {
                let another = self.after_comma(item);
                behind = self
                    .builder
                    .repeat(another, min.saturating_sub(named), rest, close);
            }
        }
        for (index, item) in first.into_iter().enumerate().rev() {
            let this = match index {
                0 => {
                    let item = self.builder.call(item, behind);
                    self.spaced(item)
                }
                _ => {
                    let another = self.after_comma(item);
                    self.builder.call(another, behind)
                }
            };
            behind = match count(index) < min {
                true => this,
                false => self.builder.any_of(vec![this, close]),
            };
        }
        Ok(self.builder.literal(b"[", behind))
    }

    /// A list of values of which none comes twice: a state for each choice of those that have come.
    fn different(
        &mut self,
        schema: &Schema<'a>,
        (min, max): (u32, Option<u32>),
    ) -> Result<NodeId, SchemaError> {
        let values = match schema.get("items").and_then(|items| followed(self.root, items)) {
            Some(Json::Object(items)) if schema.get("prefixItems").is_none() => {
                listed(&Schema::new(items, schema.below("items"))?)?
            }
            Some(_) | None => None,
        };
        let Some(mut values) = values else {
            return Err(SchemaError::Unsupported {
                at: schema.at.clone(),
                keyword: "uniqueItems of anything but listed values".to_owned(),
            });
        };
        let mut known = ValueSet::default();
        values.retain(|value| known.insert(value));
        if values.len() > MAX_DIFFERENT {
            return Err(SchemaError::Unsupported {
                at: schema.at.clone(),
                keyword: format!("uniqueItems of more than {MAX_DIFFERENT} values"),
            });
        }
        let values: Vec<NodeId> = values.iter().map(|value| self.written(value)).collect();
        let close = self.closed(b"]");
        let mut behind: Vec<Option<NodeId>> = vec![None; 1 << values.len()];
        for come in (0..behind.len()).rev() {
            let count = come.count_ones();
            let mut ways: Vec<NodeId> = (count >= min).then_some(close).into_iter().collect();
            for (index, value) in values.iter().enumerate() {
                let then = behind[come | 1 << index].filter(|_| come & 1 << index == 0);
                if let Some(then) = then.filter(|_| max.is_none_or(|max| count < max)) {
                    let value = self.builder.call(*value, then);
                    let value = self.spaced(value);
                    ways.push(match count {
                        0 => value,
                        _ => self.builder.literal(b",", value),
                    });
                }
            }
            behind[come] = (!ways.is_empty()).then(|| self.builder.any_of(ways));
        }
        let first = behind[0].ok_or_else(|| schema.empty())?;
        Ok(self.builder.literal(b"[", first))
    }

    /// Items of one kind from the start of a list.
    fn items(&mut self, item: NodeId, min: u32, max: Option<u32>, close: NodeId) -> NodeId {
        if max == Some(0) {
            return close;
        }
        let another = self.after_comma(item);
        let max = max.map(|max| max - 1);
        let more = self.builder.repeat(another, min.saturating_sub(1), max, close);
        let first = self.builder.call(item, more);
        let first = self.spaced(first);
        match min {
            0 => self.builder.any_of(vec![first, close]),
            _ => first,
        }
    }

    fn written(&mut self, value: &Json) -> NodeId {
        self.builder.literal(&text(value), RETURN)
    }

    fn spaced(&mut self, next: NodeId) -> NodeId {
        let space = self.rules.space;
        self.builder.call(space, next)
    }

    fn closed(&mut self, bracket: &[u8]) -> NodeId {
        let close = self.builder.literal(bracket, RETURN);
        self.spaced(close)
    }

    /// A rule for an item that is not the first.
    fn after_comma(&mut self, item: NodeId) -> NodeId {
        let item = self.spaced(item);
        self.builder.literal(b",", item)
    }
}

/// How a value is written.
fn text(value: &Json) -> Vec<u8> {
    serde_json::to_vec(value).expect("names are strings and memory does not fail")
}

/// The values that a schema lists, as far as they are of its types; both of a boolean's. `None`: it
/// lists none.
fn listed(schema: &Schema<'_>) -> Result<Option<Vec<Json>>, SchemaError> {
    let (keyword, values) = match (schema.get("const"), schema.list("enum")?) {
        (Some(value), _) => ("const", std::slice::from_ref(value)),
        (None, Some(values)) => ("enum", values),
        (None, None) => {
            let boolean = schema.kinds()?.is_some_and(|kinds| kinds == [Kind::Boolean]);
            return Ok(boolean.then(|| vec![Json::Bool(true), Json::Bool(false)]));
        }
    };
    if schema.demands_more_than(&[keyword, "type"]) {
        return Err(together(schema, keyword));
    }
    if values.iter().any(is_rounded) {
        return Err(SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: format!("{keyword} of a whole number beyond 64 bits"),
        });
    }
    let kinds = match schema.get("type") {
        Some(_) => schema.kinds()?,
        None => None,
    };
    let fits = |value: &&Json| {
        let fits = |kinds: &Vec<Kind>| kinds.iter().any(|kind| kind.fits(value));
        kinds.as_ref().is_none_or(fits)
    };
    let values: Vec<Json> = values.iter().filter(fits).cloned().collect();
    match values.is_empty() {
        true => Err(schema.empty()),
        false => Ok(Some(values)),
    }
}

/// Whether it was a whole number that was rounded when it was read.
fn is_rounded(value: &Json) -> bool {
    matches!(value, Json::Number(number) if number.is_rounded_whole())
}

/// Refuses a combination of `keyword` with others that demand something.
fn alone(schema: &Schema<'_>, keyword: &'static str) -> Result<(), SchemaError> {
    if schema.demands_more_than(&[keyword]) {
        return Err(together(schema, keyword));
    }
    Ok(())
}

fn together(schema: &Schema<'_>, keyword: &'static str) -> SchemaError {
    SchemaError::Together {
        at: schema.at.clone(),
        keyword,
        others: "others",
    }
}

mod numbers;
mod objects;
mod strings;
#[cfg(test)]
mod tests;
