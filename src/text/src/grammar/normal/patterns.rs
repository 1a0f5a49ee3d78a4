//! `patternProperties`: schemas of the named properties that match a pattern.

use super::{Normalizer, all_of};
use crate::grammar::regex;
use crate::grammar::schema::SchemaError;
use rooflet_inference_api::openai::json::{Json, Members};

impl Normalizer<'_> {
    /// Merges the schemas of patterns into those of the named properties that match.
    pub(super) fn with_patterns(&self, mut schema: Members, at: &str) -> Result<Members, SchemaError> {
        let Some(Json::Object(patterns)) = schema.get("patternProperties").cloned() else {
            return Ok(schema);
        };
        if patterns.is_empty() {
            schema.remove("patternProperties");
            return Ok(schema);
        }
        let mut properties = match schema.get("properties") {
            Some(Json::Object(properties)) => properties.clone(),
            Some(_) | None => Members::default(),
        };
        let others = schema.get("additionalProperties").cloned();
        let required = match schema.get("required") {
            Some(Json::Array(names)) => names.clone(),
            Some(_) | None => Vec::new(),
        };
        let mut named: Vec<String> = properties.iter().map(|(name, _)| name.to_owned()).collect();
        for name in required.iter().filter_map(Json::as_str) {
            if properties.get(name).is_none() {
                named.push(name.to_owned());
            }
        }
        let mut compiled = Vec::new();
        for (pattern, value) in patterns.iter() {
            let fits = regex::compiled(pattern).map_err(|err| SchemaError::Pattern {
                at: format!("{at}/patternProperties"),
                err,
            })?;
            compiled.push((fits, value));
        }
        for name in &named {
            let own = properties.get(name).cloned();
            let mut matching = compiled.iter().filter(|(fits, _)| fits.is_match(name)).peekable();
            let start = match (&own, matching.peek()) {
                (Some(own), _) => own.clone(),
                (None, Some(_)) => Json::Bool(true),
                (None, None) => others.clone().unwrap_or(Json::Bool(true)),
            };
            let whole = matching.fold(start, |whole, (_, value)| all_of(&whole, value));
            properties.insert(name, whole);
        }
        if !properties.is_empty() {
            schema.insert("properties", Json::Object(properties));
        }
        Ok(schema)
    }
}
