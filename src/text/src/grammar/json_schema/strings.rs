//! Strings: patterns, formats and lengths, and their combinations.

use regex_syntax::hir::Hir;

use super::{Compiler, SchemaError};
use crate::grammar::formats::{fits, format_pattern};
use crate::grammar::product::{SetOperation, combined};
use crate::grammar::regex;
use crate::grammar::regex::{Encoding, RegexError, RegexRules};
use crate::grammar::schema::Schema;
use crate::grammar::{NodeId, RETURN};
use rooflet_inference_api::openai::json::Json;

impl<'a> Compiler<'a, '_> {
    pub(super) fn string(&mut self, schema: &Schema<'a>) -> Result<NodeId, SchemaError> {
        let min = schema.count("minLength")?.unwrap_or(0);
        let max = schema.count("maxLength")?;
        if max.is_some_and(|max| min > max) {
            return Err(schema.empty());
        }
        let format = schema.text("format")?;
        let mut patterns: Vec<&str> = match schema.get("pattern") {
            None => Vec::new(),
            // The normal form has a list of merged patterns.
            Some(Json::Array(patterns)) => patterns.iter().filter_map(Json::as_str).collect(),
            Some(_) => schema.text("pattern")?.into_iter().collect(),
        };
        let excluded: Vec<&str> = match schema.get("pattern") {
            Some(Json::Array(patterns)) => {
                let excluded = |pattern: &'a Json| pattern.get("not").and_then(Json::as_str);
                patterns.iter().filter_map(excluded).collect()
            }
            _ => Vec::new(),
        };
        patterns.retain(|pattern| format.is_none_or(|format| !fits(format, pattern)));
        let spelt = format.and_then(|format| format_pattern(format, max));
        let parsed = |pattern: &str| regex::parsed(pattern).map_err(|err| pattern_error(schema, err));
        let expressions: Vec<Hir> = patterns.into_iter().map(parsed).collect::<Result<_, _>>()?;
        let spelt = spelt.as_deref().map(parsed).transpose()?;
        let mut content = None;
        for expression in &expressions {
            let rule = self.matching(schema, expression)?;
            content = Some(self.both(schema, content, rule)?);
        }
        if let Some(expression) = &spelt {
            let rule = self.matching(schema, expression)?;
            content = match self.both(schema, content, rule) {
                // The pattern takes precedence: it defines the format as the client intends it.
                Err(SchemaError::Pattern {
                    err: RegexError::TooManyStates(_),
                    ..
                }) if !expressions.is_empty() => content,
                both => Some(both?),
            };
        }
        let has_excluded = !excluded.is_empty();
        for pattern in excluded {
            let rule = match regex::parsed(pattern) {
                // No text matches.
                Err(RegexError::Empty) => continue,
                hir => self.matching(schema, &hir.map_err(|err| pattern_error(schema, err))?)?,
            };
            content = Some(self.without(schema, content, rule)?);
        }
        let mut decisive = match &expressions[..] {
            [] => spelt.as_slice().iter(),
            expressions => expressions.iter(),
        };
        let is_any = expressions.is_empty() && spelt.is_none() && !has_excluded;
        let bounded = min > 0 || max.is_some() || is_any;
        if bounded && !decisive.any(|expression| regex::implies_length(expression, min, max)) {
            let rule = self.builder.repeat(self.rules.character, min, max, RETURN);
            let counted = self.both(schema, content, rule);
            content = Some(
                counted.map_err(|err| match expressions.is_empty() && err.is_unsupported() {
                    true => SchemaError::UnsupportedCombination {
                        at: schema.at.clone(),
                        keyword: "format",
                        others: "these length limits",
                    },
                    false => err,
                })?,
            );
        }
        Ok(self.quoted(content.unwrap_or(RETURN)))
    }

    /// Intersects two rules, or returns the second if there is no first.
    fn both(
        &mut self,
        schema: &Schema<'a>,
        one: Option<NodeId>,
        other: NodeId,
    ) -> Result<NodeId, SchemaError> {
        let Some(one) = one else { return Ok(other) };
        let both = combined(self.builder, (one, other), SetOperation::Intersection);
        let both = both.map_err(|err| pattern_error(schema, err.into()))?;
        both.ok_or_else(|| schema.empty())
    }

    /// Subtracts a rule from another, or from all texts. Characters then have one spelling.
    pub(super) fn without(
        &mut self,
        schema: &Schema<'a>,
        content: Option<NodeId>,
        excluded: NodeId,
    ) -> Result<NodeId, SchemaError> {
        let any = self.any_text();
        let content = match content {
            Some(content) => self.both(schema, Some(content), any)?,
            None => any,
        };
        let rest = combined(self.builder, (content, excluded), SetOperation::Difference);
        let rest = rest.map_err(|err| pattern_error(schema, err.into()))?;
        rest.ok_or_else(|| schema.empty())
    }

    /// Builds any text, with one spelling for each character.
    pub(super) fn any_text(&mut self) -> NodeId {
        let character = self.any_character();
        self.builder.repeat(character, 0, None, RETURN)
    }

    /// Builds any character, with one spelling.
    pub(super) fn any_character(&mut self) -> NodeId {
        let mut rules = RegexRules {
            builder: self.builder,
            encoding: Encoding::Json,
        };
        rules.any_character()
    }

    pub(super) fn quoted(&mut self, content: NodeId) -> NodeId {
        let close = self.builder.literal(b"\"", RETURN);
        let content = self.builder.call(content, close);
        self.builder.literal(b"\"", content)
    }

    pub(super) fn matching(&mut self, schema: &Schema<'a>, hir: &Hir) -> Result<NodeId, SchemaError> {
        let character = self.rules.character;
        let mut rules = RegexRules {
            builder: self.builder,
            encoding: Encoding::Json,
        };
        rules
            .somewhere(hir, character)
            .map_err(|err| pattern_error(schema, err))
    }
}

fn pattern_error(schema: &Schema<'_>, err: RegexError) -> SchemaError {
    let at = schema.at.clone();
    match err {
        RegexError::TooLarge(err) => SchemaError::TooLarge(err),
        RegexError::Invalid(_)
        | RegexError::Unsupported(_)
        | RegexError::Empty
        | RegexError::TooManyStates(_) => SchemaError::Pattern { at, err },
    }
}
