//! Lists, also of items that must differ. A marked node lets the constraint of an answer compare the items,
//! which then have one spelling of each value.

use super::{Compiler, Schema, SchemaError, dereferenced, listed};
use crate::grammar::NodeId;
use crate::grammar::matcher::has_texts;
use crate::grammar::product::{SetOperation, combined};
use crate::grammar::schema::ValueSet;
use rooflet_inference_api::openai::json::Json;

/// Maximum number of listed values whose lists are built with a state for each subset.
const MAX_SUBSETS_OF: usize = 10;

/// Rules of the items of a list.
struct ItemRules {
    /// Rules of `prefixItems`.
    first: Vec<NodeId>,
    /// Rule of further items; `None` if there are none.
    others: Option<NodeId>,
}

impl<'a> Compiler<'a, '_> {
    pub(super) fn array(&mut self, schema: &Schema<'a>) -> Result<NodeId, SchemaError> {
        let (min, max) = (schema.count("minItems")?.unwrap_or(0), schema.count("maxItems")?);
        let is_unique = match schema.get("uniqueItems") {
            Some(Json::Bool(is_unique)) => *is_unique && max.is_none_or(|max| max > 1),
            None => false,
            Some(_) => return Err(schema.invalid("uniqueItems", "true or false")),
        };
        if is_unique && let Some(list) = self.different(schema, (min, max))? {
            return Ok(list);
        }
        let rules = match is_unique {
            true => self.unique_item_rules(schema, min)?,
            false => self.item_rules(schema)?,
        };
        let ItemRules { mut first, others } = rules;
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
        let list = self.builder.literal(b"[", after);
        if is_unique {
            self.builder.mark_unique_list(list);
        }
        Ok(list)
    }

    fn item_rules(&mut self, schema: &Schema<'a>) -> Result<ItemRules, SchemaError> {
        let mut first = Vec::new();
        for (index, item) in schema.list("prefixItems")?.unwrap_or_default().iter().enumerate() {
            first.push(self.rule(item, schema.below(&format!("prefixItems/{index}")))?);
        }
        let others = match schema.get("items") {
            None => Some(self.rules.value),
            Some(Json::Bool(false)) => None,
            Some(items) => Some(self.rule(items, schema.below("items"))?),
        };
        Ok(ItemRules { first, others })
    }

    /// Builds the rules of items that must differ. At least `min` of them must exist, so that no answer gets
    /// stuck.
    fn unique_item_rules(&mut self, schema: &Schema<'a>, min: u32) -> Result<ItemRules, SchemaError> {
        let unsupported = |keyword: &str| SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: keyword.to_owned(),
        };
        if self.is_canonical {
            return Err(unsupported("uniqueItems in items of such a list"));
        }
        let rules = self.canonical(|compiler| compiler.item_rules(schema))?;
        for index in 1..min {
            let prefix = rules.first.get(index as usize).copied();
            let (rule, needed) = match (prefix, rules.others) {
                (Some(rule), _) => (rule, index + 1),
                (None, Some(rule)) => (rule, min),
                (None, None) => break,
            };
            match has_texts(self.builder, rule, needed.into()) {
                Some(true) => {}
                Some(false) if rules.first.is_empty() => return Err(schema.empty()),
                Some(false) | None => return Err(unsupported("uniqueItems with 'minItems' of these items")),
            }
            if prefix.is_none() {
                break;
            }
        }
        Ok(rules)
    }

    /// Builds with one spelling of each value: without white space, with sorted members, and with numbers and
    /// characters in one form.
    fn canonical<T>(&mut self, build: impl FnOnce(&mut Self) -> T) -> T {
        let character = self.any_character();
        let rules = self.rules.canonical(self.builder, character);
        let before = (
            std::mem::replace(&mut self.rules, rules),
            std::mem::take(&mut self.references),
            std::mem::take(&mut self.targets),
            std::mem::take(&mut self.scalars),
        );
        self.is_canonical = true;
        let built = build(self);
        self.is_canonical = false;
        (self.rules, self.references, self.targets, self.scalars) = before;
        built
    }

    /// Limits a rule of numbers to their canonical texts.
    pub(super) fn canonical_number(
        &mut self,
        schema: &Schema<'a>,
        rule: NodeId,
        whole: bool,
    ) -> Result<NodeId, SchemaError> {
        let canonical = match whole {
            true => self.rules.integer,
            false => self.rules.number,
        };
        if rule == canonical {
            return Ok(rule);
        }
        let both = combined(self.builder, (rule, canonical), SetOperation::Intersection);
        both.ok().flatten().ok_or_else(|| SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: "uniqueItems of numbers with these limits".to_owned(),
        })
    }

    /// Builds a list of few listed values that must differ, with a state for each subset of the values. `None`
    /// for other items.
    fn different(
        &mut self,
        schema: &Schema<'a>,
        (min, max): (u32, Option<u32>),
    ) -> Result<Option<NodeId>, SchemaError> {
        let items = schema
            .get("items")
            .and_then(|items| dereferenced(self.root, items));
        let Some(Json::Object(items)) = items.filter(|_| schema.get("prefixItems").is_none()) else {
            return Ok(None);
        };
        let Some(mut values) = listed(&Schema::new(items, schema.below("items"))?)? else {
            return Ok(None);
        };
        let mut known = ValueSet::default();
        values.retain(|value| known.insert(value));
        if values.len() > MAX_SUBSETS_OF {
            return Ok(None);
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
        Ok(Some(self.builder.literal(b"[", first)))
    }

    /// Builds items of the same rule, from the start of a list.
    pub(super) fn items(&mut self, item: NodeId, min: u32, max: Option<u32>, close: NodeId) -> NodeId {
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
}
