//! Lists of unique strings and integers. Marked nodes let the constraint of an answer compare the items.

use super::{Compiler, Kind, Schema, SchemaError, dereferenced};
use crate::grammar::{ByteSet, NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

impl<'a> Compiler<'a, '_> {
    /// Builds a list of unique items that are not listed. Every unfinished item must have infinitely many
    /// continuations: otherwise, an answer could reach an item that repeats another one and cannot
    /// continue.
    pub(super) fn unique_items(
        &mut self,
        schema: &Schema<'a>,
        (min, max): (u32, Option<u32>),
    ) -> Result<NodeId, SchemaError> {
        let unsupported = || SchemaError::Unsupported {
            at: schema.at.clone(),
            keyword: "uniqueItems of other items than integers, strings or listed values".to_owned(),
        };
        let items = schema
            .get("items")
            .and_then(|items| dereferenced(self.root, items));
        let Some(Json::Object(items)) = items.filter(|_| schema.get("prefixItems").is_none()) else {
            return Err(unsupported());
        };
        let items = Schema::new(items, schema.below("items"))?;
        if max.is_some_and(|max| min > max) {
            return Err(schema.empty());
        }
        let kinds = items.kinds()?.unwrap_or_default();
        let is_free = |kind: &Kind| matches!(kind, Kind::String | Kind::Integer);
        if kinds.is_empty() || !kinds.iter().all(is_free) || items.constrains_beyond(&["type", "minLength"]) {
            return Err(unsupported());
        }
        let (mut first, mut others) = (Vec::new(), Vec::new());
        if kinds.contains(&Kind::String) {
            let string = self.unique_string(items.count("minLength")?.unwrap_or(0));
            first.push(string);
            others.push(string);
        }
        if kinds.contains(&Kind::Integer) {
            let natural = self.unique_integers();
            // No further digit can follow a zero, so that it is permitted only where it cannot repeat
            // another item.
            let zero = self.builder.literal(b"0", RETURN);
            self.builder.mark_unique_item(zero);
            first.push(zero);
            first.extend(natural);
            others.extend(natural);
        }
        let (first, others) = (self.builder.any_of(first), self.builder.any_of(others));
        let close = self.closed(b"]");
        let another = self.after_comma(others);
        let rest = max.map(|max| max - 1);
        let more = self.builder.repeat(another, min.saturating_sub(1), rest, close);
        let first = self.builder.call(first, more);
        let first = self.spaced(first);
        let content = match min {
            0 => self.builder.any_of(vec![first, close]),
            _ => first,
        };
        let list = self.builder.literal(b"[", content);
        self.builder.mark_unique_list(list);
        Ok(list)
    }

    fn unique_string(&mut self, min_length: u32) -> NodeId {
        let close = self.builder.literal(b"\"", RETURN);
        let character = self.rules.character;
        let characters = self.builder.repeat(character, min_length, None, close);
        let string = self.builder.literal(b"\"", characters);
        self.builder.mark_unique_item(string);
        string
    }

    /// Builds positive and negative integers.
    fn unique_integers(&mut self) -> [NodeId; 2] {
        let digit = self.builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
        let digits = self.builder.repeat(digit, 0, None, RETURN);
        let positive = self.builder.bytes(ByteSet::range(b'1', b'9'), digits);
        let after_sign = self.builder.bytes(ByteSet::range(b'1', b'9'), digits);
        let negative = self.builder.literal(b"-", after_sign);
        for first in [positive, negative] {
            self.builder.mark_unique_item(first);
        }
        [positive, negative]
    }
}
