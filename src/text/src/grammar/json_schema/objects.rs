//! Objects: properties, their order and number.

use super::{Compiler, SchemaError};
use crate::grammar::json::member;
use crate::grammar::names::name_except;
use crate::grammar::regex;
use crate::grammar::schema::Schema;
use crate::grammar::{NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

/// Maximum length of a property name next to additional properties, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// Named property of an object.
struct Property {
    name: String,
    /// Rule of name, colon and value.
    rule: NodeId,
    required: bool,
}

impl<'a> Compiler<'a, '_> {
    pub(super) fn object(&mut self, schema: &Schema<'a>) -> Result<NodeId, SchemaError> {
        let expected = "an object of schemas";
        let properties = match schema.get("properties") {
            None => None,
            Some(Json::Object(properties)) => Some(properties),
            Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
                return Err(schema.invalid("properties", expected));
            }
        };
        let mut required = Vec::new();
        for name in schema.list("required")?.unwrap_or_default() {
            let name = name
                .as_str()
                .ok_or_else(|| schema.invalid("required", "a list of names"))?;
            if !required.contains(&name) {
                required.push(name);
            }
        }
        let patterns = match schema.get("patternProperties") {
            None => Vec::new(),
            Some(Json::Object(patterns)) => patterns.iter().collect(),
            Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
                return Err(schema.invalid("patternProperties", expected));
            }
        };
        let others = match schema.get("additionalProperties") {
            Some(Json::Bool(false)) => None,
            Some(others) => Some(self.rule(others, schema.below("additionalProperties"))?),
            None if properties.is_some() || !patterns.is_empty() => None,
            None => Some(self.rules.value),
        };
        let mut names: Vec<&str> = Vec::new();
        let mut members = Vec::new();
        for (name, value) in properties.into_iter().flat_map(|properties| properties.iter()) {
            if names.contains(&name) {
                continue;
            }
            if *value == Json::Bool(false) && !required.contains(&name) {
                names.push(name);
                continue;
            }
            let value = self.rule(value, schema.below(&format!("properties/{name}")))?;
            names.push(name);
            members.push(self.property(name, value, required.contains(&name)));
        }
        if self.is_canonical && (others.is_some() || !patterns.is_empty()) {
            return Err(SchemaError::Unsupported {
                at: schema.at.clone(),
                keyword: "uniqueItems of objects with further properties".to_owned(),
            });
        }
        if !patterns.is_empty() {
            // The normal form has merged the patterns into the named properties that match.
            if let Some(missing) = required.iter().find(|name| !names.contains(name)) {
                let at = schema.below(&format!("required/{missing}"));
                return Err(SchemaError::Empty { at });
            }
            let others = self.patterned(schema, &patterns, &names, others)?;
            return self.members(schema, members, others);
        }
        for name in required {
            if !names.contains(&name) {
                // Without `additionalProperties`, a required property may have any value.
                let value = match schema.get("additionalProperties") {
                    None => self.rules.value,
                    Some(_) => others.ok_or_else(|| schema.empty())?,
                };
                names.push(name);
                members.push(self.property(name, value, true));
            }
        }
        if others.is_some() && names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(SchemaError::Unsupported {
                at: schema.at.clone(),
                keyword: format!("additionalProperties next to names longer than {MAX_NAME_BYTES} bytes"),
            });
        }
        let others = others.map(|value| self.other_member(&names, value));
        self.members(schema, members, others)
    }

    /// Builds the properties whose names match exactly one pattern, and `others` for names that
    /// match none.
    fn patterned(
        &mut self,
        schema: &Schema<'a>,
        patterns: &[(&'a str, &'a Json)],
        names: &[&str],
        others: Option<NodeId>,
    ) -> Result<Option<NodeId>, SchemaError> {
        let at = schema.below("patternProperties");
        let mut expressions = Vec::new();
        for (pattern, _) in patterns {
            let hir = regex::parsed(pattern);
            let hir = hir.map_err(|err| SchemaError::Pattern { at: at.clone(), err })?;
            expressions.push(self.matching(schema, &hir)?);
        }
        let quoted: Vec<NodeId> = names.iter().map(|name| self.name_content(name)).collect();
        let mut branches = Vec::new();
        for (index, (pattern, value)) in patterns.iter().enumerate() {
            if **value == Json::Bool(false) {
                continue;
            }
            let value = self.rule(value, format!("{at}/{pattern}"))?;
            let excluded = expressions
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            let excluded: Vec<NodeId> = excluded
                .map(|(_, rule)| *rule)
                .chain(quoted.iter().copied())
                .collect();
            let name = match excluded.is_empty() {
                true => Some(expressions[index]),
                false => self.name_without(schema, Some(expressions[index]), excluded)?,
            };
            branches.extend(name.map(|name| self.named(name, value)));
        }
        if let Some(value) = others {
            let excluded = expressions.iter().chain(&quoted).copied().collect();
            let name = self.name_without(schema, None, excluded)?;
            branches.extend(name.map(|name| self.named(name, value)));
        }
        Ok((!branches.is_empty()).then(|| self.builder.any_of(branches)))
    }

    /// Subtracts the names of these rules; `None` if no name is left.
    fn name_without(
        &mut self,
        schema: &Schema<'a>,
        name: Option<NodeId>,
        excluded: Vec<NodeId>,
    ) -> Result<Option<NodeId>, SchemaError> {
        let excluded = self.builder.any_of(excluded);
        match self.without(schema, name, excluded) {
            Err(SchemaError::Empty { .. }) => Ok(None),
            name => name.map(Some),
        }
    }

    fn named(&mut self, name: NodeId, value: NodeId) -> NodeId {
        let name = self.quoted(name);
        member(self.builder, self.rules.space, name, value)
    }

    /// Builds the content of a name between its quotes.
    fn name_content(&mut self, name: &str) -> NodeId {
        let text = serde_json::to_string(name).expect("a string is JSON");
        self.builder.literal(&text.as_bytes()[1..text.len() - 1], RETURN)
    }

    fn property(&mut self, name: &str, value: NodeId, required: bool) -> Property {
        let text = serde_json::to_string(name).expect("a string is JSON");
        let literal = self.builder.literal(text.as_bytes(), RETURN);
        Property {
            name: name.to_owned(),
            rule: member(self.builder, self.rules.space, literal, value),
            required,
        }
    }

    /// Builds the named properties in their order, then others, within the limits of their number.
    fn members(
        &mut self,
        schema: &Schema<'a>,
        mut members: Vec<Property>,
        others: Option<NodeId>,
    ) -> Result<NodeId, SchemaError> {
        if self.is_canonical {
            members.sort_by(|one, other| one.name.cmp(&other.name));
        }
        let (least, most) = (
            schema.count("minProperties")?.unwrap_or(0),
            schema.count("maxProperties")?,
        );
        // The rest of the object by number of properties so far; all larger numbers are equivalent.
        let last = most.unwrap_or(least.max(1));
        let counts = |index: usize| 0..=u32::try_from(index).map_or(last, |index| index.min(last));
        let required = members.iter().filter(|member| member.required).count() as u64;
        let close = self.closed(b"}");
        let mut next = Vec::new();
        for count in counts(members.len()) {
            let missing = least.saturating_sub(count);
            let room = most.map(|most| most - count);
            next.push(match others {
                _ if room.is_some_and(|room| room < missing) => None,
                None => (missing == 0).then_some(close),
                Some(other) if missing <= 1 && count == 0 => Some(self.items(other, missing, room, close)),
                Some(other) if missing <= 1 => {
                    let another = self.after_comma(other);
                    Some(self.builder.repeat(another, missing, room, close))
                }
                // Two additional properties may have the same name and count as one.
                Some(_) => None,
            });
        }
        for (index, Property { rule, required, .. }) in members.into_iter().enumerate().rev() {
            let with: Vec<Option<NodeId>> = next
                .iter()
                .map(|next| {
                    let this = self.builder.call(rule, (*next)?);
                    Some(self.spaced(this))
                })
                .collect();
            next = counts(index)
                .map(|count| {
                    let with = match count {
                        _ if most == Some(count) => None,
                        0 => with[1],
                        _ => with[last.min(count + 1) as usize].map(|with| self.builder.literal(b",", with)),
                    };
                    let without = next[count as usize].filter(|_| !required);
                    let branches: Vec<NodeId> = with.into_iter().chain(without).collect();
                    (!branches.is_empty()).then(|| self.builder.any_of(branches))
                })
                .collect();
            self.builder.check_size()?;
        }
        let Some(first) = next[0] else {
            // Further properties might satisfy the limits, but without `additionalProperties` none
            // are generated next to named ones.
            let unconstrained = others.is_some() || schema.get("additionalProperties").is_none();
            let possible =
                unconstrained && most.is_none_or(|most| least <= most && required <= u64::from(most));
            return Err(match possible {
                true => SchemaError::UnsupportedCombination {
                    at: schema.at.clone(),
                    keyword: "minProperties",
                    others: "fewer named properties",
                },
                false => schema.empty(),
            });
        };
        Ok(self.builder.literal(b"{", first))
    }

    /// Builds a property with another name than these. The name contains no escapes, because an
    /// escaped name could equal one of them.
    fn other_member(&mut self, names: &[&str], value: NodeId) -> NodeId {
        let names: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| !name.contains(['"', '\\']) && !name.contains(|c: char| c < ' '))
            .collect();
        let close = self.builder.literal(b"\"", RETURN);
        let any = self.rules.plain_character;
        let rest = name_except(self.builder, any, &names, close);
        let name = self.builder.literal(b"\"", rest);
        member(self.builder, self.rules.space, name, value)
    }
}
