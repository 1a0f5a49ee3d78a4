//! Masks by themselves, for benchmarks: a vocabulary, a JSON Schema, and a text that is held to it.

use std::fmt;
use std::sync::Arc;

use super::constraint::Constraint;
use super::json_schema::schema_rule;
use super::vocabulary::Vocabulary;
use super::{Builder, Grammar};

/// A vocabulary, ready to be masked.
#[derive(Debug)]
pub struct MaskVocabulary(Arc<Vocabulary>);

impl MaskVocabulary {
    /// From the bytes that each token adds to a text, in order of the tokens' ids; none where no
    /// text has it.
    #[must_use]
    pub fn new(tokens: Vec<Vec<u8>>) -> Self {
        Self(Arc::new(Vocabulary::of(tokens, Vec::new())))
    }
}

/// One answer that is held to a schema.
#[derive(Clone)]
pub struct MaskTrial(Constraint);

impl fmt::Debug for MaskTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MaskTrial").finish_non_exhaustive()
    }
}

impl MaskTrial {
    /// Makes a grammar of a JSON Schema, given as JSON.
    ///
    /// # Errors
    /// What is wrong with the JSON, or what the schema asks for and cannot be held to, in words.
    pub fn new(schema: &str, vocabulary: &MaskVocabulary) -> Result<Self, String> {
        let schema = serde_json::from_str(schema).map_err(|err| err.to_string())?;
        let mut builder = Builder::new();
        let start = schema_rule(&mut builder, &schema).map_err(|err| err.to_string())?;
        let grammar: Grammar = builder.finish(start).map_err(|err| err.to_string())?;
        let constraint = Constraint::new(Arc::new(grammar), Arc::clone(&vocabulary.0));
        constraint.map(Self).map_err(|err| err.to_string())
    }

    /// Finds which tokens may come next; returns how many of the vocabulary's.
    ///
    /// # Errors
    /// Why there is none, or why that is not found out, in words.
    pub fn mask(&mut self) -> Result<u32, String> {
        self.0
            .mask()
            .map(|mask| mask.count())
            .map_err(|err| err.to_string())
    }

    /// Takes a token, by its id.
    ///
    /// # Errors
    /// Why it is none that may come next, in words.
    pub fn take(&mut self, token: u32) -> Result<(), String> {
        self.0.take(token).map_err(|err| err.to_string())
    }
}
