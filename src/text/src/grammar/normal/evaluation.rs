//! `unevaluatedProperties` and `unevaluatedItems`: the schema of members and items that no other
//! keyword of the same schema describes.

use super::negation::number;
use super::{EVALUATED_ITEMS, EVALUATED_NAMES, Normalizer, all_of};
use crate::grammar::schema::{SchemaError, ValueSet};
use rooflet_inference_api::openai::json::{Json, Members};

/// Number of evaluated items if `items` describes all of them.
const ALL_ITEMS: u64 = u32::MAX as u64;

impl Normalizer<'_> {
    /// Merges a schema, and applies its `unevaluatedProperties` and `unevaluatedItems`.
    pub(super) fn evaluated(
        &mut self,
        members: &Members,
        keyword: &'static str,
        at: &str,
    ) -> Result<Members, SchemaError> {
        let mut members = members.clone();
        let (names, items) = (
            members.remove("unevaluatedProperties"),
            members.remove("unevaluatedItems"),
        );
        self.depth += 1;
        if self.depth >= super::MAX_DEPTH {
            return Err(super::unsupported(at, &format!("recursion through {keyword}")));
        }
        let outer = std::mem::replace(&mut self.evaluates, true);
        let flat = self.flat(&members, at);
        self.evaluates = outer;
        self.depth -= 1;
        let mut flat = flat?;
        apply(&mut flat, names.as_ref(), items.as_ref());
        Ok(flat)
    }
}

fn apply(flat: &mut Members, names: Option<&Json>, items: Option<&Json>) {
    if let Some(Json::Array(branches)) = flat.get_mut("anyOf") {
        for branch in branches {
            if let Json::Object(branch) = branch {
                apply(branch, names, items);
            }
        }
        return;
    }
    let known = match flat.remove(EVALUATED_NAMES) {
        Some(Json::Array(known)) => ValueSet::of(&known),
        _ => ValueSet::default(),
    };
    let count = match flat.remove(EVALUATED_ITEMS) {
        Some(Json::Number(count)) => count.as_u64().unwrap_or(0),
        _ => 0,
    };
    // `additionalProperties` evaluates all members.
    if let Some(others) = names.filter(|_| flat.get("additionalProperties").is_none()) {
        if let Some(Json::Object(properties)) = flat.get_mut("properties") {
            for (name, schema) in properties.iter_mut() {
                if !known.contains(&Json::from(name)) {
                    *schema = all_of(schema, others);
                }
            }
        }
        flat.insert("additionalProperties", others.clone());
    }
    if let Some(others) = items.filter(|_| count < ALL_ITEMS) {
        if let Some(Json::Array(first)) = flat.get_mut("prefixItems") {
            for schema in first.iter_mut().skip(count as usize) {
                *schema = all_of(schema, others);
            }
        }
        let length = match flat.get("prefixItems") {
            Some(Json::Array(first)) => first.len(),
            _ => 0,
        };
        let rest = flat
            .get("items")
            .map_or_else(|| others.clone(), |items| all_of(items, others));
        // Items beyond the merged list may be evaluated too, but none is generated.
        debug_assert!(count <= length as u64 || count == ALL_ITEMS);
        flat.insert("items", rest);
    }
}

/// Marks members and items that the keywords of this schema describe as evaluated.
pub(super) fn mark_evaluated(own: &mut Members) {
    if own.get(EVALUATED_NAMES).is_none() {
        let properties = own.get("properties").and_then(Json::as_object);
        let names = properties
            .into_iter()
            .flat_map(Members::iter)
            .map(|(name, _)| Json::from(name));
        let names = names.collect();
        own.insert(EVALUATED_NAMES, Json::Array(names));
    }
    if own.get(EVALUATED_ITEMS).is_none() {
        let count = match (own.get("items"), own.get("prefixItems")) {
            (Some(_), _) => ALL_ITEMS,
            (None, Some(Json::Array(first))) => first.len() as u64,
            (None, _) => 0,
        };
        own.insert(EVALUATED_ITEMS, number(count));
    }
}
