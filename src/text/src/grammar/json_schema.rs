//! Grammars of JSON values, from JSON Schema.
//!
//! Every text of such a grammar is a value that the schema accepts. The grammar does not contain
//! all accepted values: properties are in the order of the schema. If a schema names properties
//! without `additionalProperties`, others are not generated.

use std::collections::HashMap;

use super::json::Rules;
use super::normal::{Normal, normal};
pub(super) use super::schema::SchemaError;
use super::schema::{Kind, NUMBER, STRING, Schema, ValueSet, check_parts, dereferenced, resolved};
use super::{Builder, NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

/// Maximum depth of nested schemas, including references.
const MAX_DEPTH: usize = 100;
/// Maximum number of listed values with `uniqueItems`. The grammar has a state for each subset.
const MAX_DIFFERENT: usize = 10;

/// Builds the rule of a schema's values.
pub(super) fn schema_rule(builder: &mut Builder, schema: &Json) -> Result<NodeId, SchemaError> {
    check_parts(schema)?;
    let Normal { schema, dropped } = normal(schema)?;
    let schema = &schema;
    let rules = Rules::new(builder);
    let mut compiler = Compiler {
        builder,
        rules,
        root: schema,
        references: HashMap::new(),
        targets: Vec::new(),
        scalars: HashMap::new(),
        depth: 0,
    };
    match (compiler.rule(schema, "#".to_owned()), dropped) {
        (Err(SchemaError::Empty { .. }), Some(dropped)) => Err(dropped),
        (rule, _) => rule,
    }
}

struct Compiler<'a, 'b> {
    builder: &'b mut Builder,
    rules: Rules,
    root: &'a Json,
    /// Rules of reference targets, including those under construction.
    references: HashMap<&'a str, NodeId>,
    /// Targets of `references` in the order of their construction.
    targets: Vec<&'a str>,
    /// Rules of strings and numbers by their constraints, because schemas repeat them.
    scalars: HashMap<String, NodeId>,
    depth: usize,
}

impl<'a> Compiler<'a, '_> {
    fn rule(&mut self, schema: &'a Json, at: String) -> Result<NodeId, SchemaError> {
        if self.depth >= MAX_DEPTH {
            return Err(SchemaError::Unsupported {
                at,
                keyword: format!("nesting deeper than {MAX_DEPTH} levels"),
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
            require_alone(schema, "$ref")?;
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
        let mut branches = Vec::new();
        for kind in kinds {
            branches.push(self.kind(schema, kind)?);
        }
        Ok(self.builder.any_of(branches))
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
        let before = self.targets.len();
        self.references.insert(target, reserved);
        self.targets.push(target);
        let rule = self.rule(found, target.to_owned());
        let rule = rule.and_then(|rule| match rule == reserved {
            true => Err(schema.empty()),
            false => Ok(rule),
        });
        if rule.is_err() {
            // Rules that were built meanwhile may contain this one.
            for target in self.targets.drain(before..) {
                self.references.remove(target);
            }
        }
        let rule = rule?;
        self.builder.define(reserved, rule);
        Ok(reserved)
    }

    /// Builds `anyOf` and `oneOf` alike: the normal form has made the schemas of `oneOf` disjoint.
    fn combination(
        &mut self,
        schema: &Schema<'a>,
        keyword: &'static str,
        schemas: &'a [Json],
    ) -> Result<NodeId, SchemaError> {
        require_alone(schema, keyword)?;
        if schemas.is_empty() {
            return Err(schema.invalid(keyword, "a list of at least one schema"));
        }
        let at = |index: usize| schema.below(&format!("{keyword}/{index}"));
        let mut branches = Vec::new();
        for (index, one) in schemas.iter().enumerate() {
            match self.rule(one, at(index)) {
                // No value satisfies this branch.
                Err(SchemaError::Empty { .. }) => {}
                rule => branches.push(rule?),
            }
        }
        match branches.is_empty() {
            true => Err(schema.empty()),
            false => Ok(self.builder.any_of(branches)),
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
        let constraints: Vec<Option<&Json>> = keywords.iter().map(|keyword| schema.get(keyword)).collect();
        let key = format!("{kind:?} {constraints:?}");
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
        // From the last item to the first: the rest of the list after each item.
        let mut after = close;
        if let Some(item) = others {
            let rest = most.map(|most| most - named);
            if named == 0 {
                after = self.items(item, min, rest, close);
            } else {
                let another = self.after_comma(item);
                after = self
                    .builder
                    .repeat(another, min.saturating_sub(named), rest, close);
            }
        }
        for (index, item) in first.into_iter().enumerate().rev() {
            let this = match index {
                0 => {
                    let item = self.builder.call(item, after);
                    self.spaced(item)
                }
                _ => {
                    let another = self.after_comma(item);
                    self.builder.call(another, after)
                }
            };
            after = match count(index) < min {
                true => this,
                false => self.builder.any_of(vec![this, close]),
            };
        }
        Ok(self.builder.literal(b"[", after))
    }

    /// Builds a list of unique values, with a state for each subset of the values.
    fn different(
        &mut self,
        schema: &Schema<'a>,
        (min, max): (u32, Option<u32>),
    ) -> Result<NodeId, SchemaError> {
        let values = match schema
            .get("items")
            .and_then(|items| dereferenced(self.root, items))
        {
            Some(Json::Object(items)) if schema.get("prefixItems").is_none() => {
                listed(&Schema::new(items, schema.below("items"))?)?
            }
            Some(_) | None => None,
        };
        let Some(mut values) = values else {
            return self.unique_items(schema, (min, max));
        };
        let mut known = ValueSet::default();
        values.retain(|value| known.insert(value));
        if values.len() > MAX_DIFFERENT {
            return Err(SchemaError::Unsupported {
                at: schema.at.clone(),
                keyword: format!("uniqueItems with more than {MAX_DIFFERENT} values"),
            });
        }
        let values: Vec<NodeId> = values.iter().map(|value| self.value_literal(value)).collect();
        let close = self.closed(b"]");
        let mut after: Vec<Option<NodeId>> = vec![None; 1 << values.len()];
        for used in (0..after.len()).rev() {
            let count = used.count_ones();
            let mut branches: Vec<NodeId> = (count >= min).then_some(close).into_iter().collect();
            for (index, value) in values.iter().enumerate() {
                let then = after[used | 1 << index].filter(|_| used & 1 << index == 0);
                if let Some(then) = then.filter(|_| max.is_none_or(|max| count < max)) {
                    let value = self.builder.call(*value, then);
                    let value = self.spaced(value);
                    branches.push(match count {
                        0 => value,
                        _ => self.builder.literal(b",", value),
                    });
                }
            }
            after[used] = (!branches.is_empty()).then(|| self.builder.any_of(branches));
        }
        let first = after[0].ok_or_else(|| schema.empty())?;
        Ok(self.builder.literal(b"[", first))
    }

    /// Builds items of the same rule, from the start of a list.
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

    fn value_literal(&mut self, value: &Json) -> NodeId {
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

    /// Builds the rule of an item that is not the first.
    fn after_comma(&mut self, item: NodeId) -> NodeId {
        let item = self.spaced(item);
        self.builder.literal(b",", item)
    }
}

/// Returns the compact JSON of a value.
fn text(value: &Json) -> Vec<u8> {
    serde_json::to_vec(value).expect("JSON values serialize")
}

/// Returns the values that a schema lists, limited to its types, or both values of a boolean.
/// `None` if it lists none.
fn listed(schema: &Schema<'_>) -> Result<Option<Vec<Json>>, SchemaError> {
    let (keyword, values) = match (schema.get("const"), schema.list("enum")?) {
        (Some(value), _) => ("const", std::slice::from_ref(value)),
        (None, Some(values)) => ("enum", values),
        (None, None) => {
            let boolean = schema.kinds()?.is_some_and(|kinds| kinds == [Kind::Boolean]);
            return Ok(boolean.then(|| vec![Json::Bool(true), Json::Bool(false)]));
        }
    };
    if schema.constrains_beyond(&[keyword, "type"]) {
        return Err(unsupported_combination(schema, keyword));
    }
    if values.iter().any(is_rounded) {
        return Err(SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: format!("{keyword} with an integer beyond 64 bits"),
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

/// Returns true if the value was an integer that was rounded when it was parsed.
fn is_rounded(value: &Json) -> bool {
    matches!(value, Json::Number(number) if number.is_rounded_whole())
}

/// Rejects `keyword` next to other constraining keywords.
fn require_alone(schema: &Schema<'_>, keyword: &'static str) -> Result<(), SchemaError> {
    if schema.constrains_beyond(&[keyword]) {
        return Err(unsupported_combination(schema, keyword));
    }
    Ok(())
}

fn unsupported_combination(schema: &Schema<'_>, keyword: &'static str) -> SchemaError {
    SchemaError::UnsupportedCombination {
        at: schema.at.clone(),
        keyword,
        others: "other keywords",
    }
}

mod lists;
mod numbers;
mod objects;
mod strings;
#[cfg(test)]
mod tests;
