//! Logits masks for benchmarks: a vocabulary, a JSON Schema, and an answer within its grammar.

use std::fmt;
use std::sync::Arc;

use super::constraint::Constraint;
use super::json_schema::schema_rule;
use super::vocabulary::Vocabulary;
use super::{Builder, Grammar};

/// Vocabulary, prepared for masks.
#[derive(Debug)]
pub struct MaskVocabulary(Arc<Vocabulary>);

impl MaskVocabulary {
    /// Creates a vocabulary from the bytes of each token, in order of the token ids. Tokens that
    /// never occur in text have no bytes.
    #[must_use]
    pub fn new(tokens: Vec<Vec<u8>>) -> Self {
        Self(Arc::new(Vocabulary::of(tokens, Vec::new())))
    }
}

/// Answer that follows a schema.
#[derive(Clone)]
pub struct MaskBench(Constraint);

impl fmt::Debug for MaskBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MaskBench").finish_non_exhaustive()
    }
}

impl MaskBench {
    /// Builds the grammar of a JSON Schema.
    ///
    /// # Errors
    /// Returns a description of the invalid JSON or the unsupported schema.
    pub fn new(schema: &str, vocabulary: &MaskVocabulary) -> Result<Self, String> {
        let schema = serde_json::from_str(schema).map_err(|err| err.to_string())?;
        let mut builder = Builder::new();
        let start = schema_rule(&mut builder, &schema).map_err(|err| err.to_string())?;
        let grammar: Grammar = builder.finish(start).map_err(|err| err.to_string())?;
        let constraint = Constraint::new(Arc::new(grammar), Arc::clone(&vocabulary.0));
        constraint.map(Self).map_err(|err| err.to_string())
    }

    /// Computes the logits mask of the next position and returns the number of permitted tokens.
    ///
    /// # Errors
    /// Returns a description of the failure if no token is permitted or the mask is too expensive.
    pub fn mask(&mut self) -> Result<u32, String> {
        self.0
            .mask()
            .map(|mask| mask.count())
            .map_err(|err| err.to_string())
    }

    /// Appends a token to the answer.
    ///
    /// # Errors
    /// Returns a description of the failure if the token is not permitted.
    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token).map_err(|err| err.to_string())
    }
}
