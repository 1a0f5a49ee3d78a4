//! Grammars of JSON values, from JSON Schema.
//!
//! Every text of such a grammar is a value that the schema accepts. The grammar does not contain
//! all accepted values: properties are in the order of the schema. If a schema names properties
//! without `additionalProperties`, others are not generated.

use std::collections::HashMap;

use super::json::Rules;
use super::normal::{Normal, normal};
pub(super) use super::schema::SchemaError;
use super::schema::{Kind, NUMBER, STRING, Schema, canonical, check_parts, dereferenced, resolved};
use super::{Builder, NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

/// Maximum depth of nested schemas, including references.
const MAX_DEPTH: usize = 100;

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
        is_canonical: false,
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
    /// True in the items of a list whose items must differ: each value has one spelling.
    is_canonical: bool,
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
            let texts = values.iter().map(|value| self.text(value)).collect();
            return Ok(self.builder.one_of(texts, RETURN));
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
        let rule = match self.is_canonical && kind != Kind::String {
            true => self.canonical_number(schema, rule, kind == Kind::Integer)?,
            false => rule,
        };
        self.scalars.insert(key, rule);
        Ok(rule)
    }

    /// Returns the compact JSON of a listed value.
    fn text(&self, value: &Json) -> Vec<u8> {
        match self.is_canonical {
            true => canonical(value).into_bytes(),
            false => serde_json::to_vec(value).expect("JSON values serialize"),
        }
    }

    fn value_literal(&mut self, value: &Json) -> NodeId {
        let text = self.text(value);
        self.builder.literal(&text, RETURN)
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
