//! Logits masks for benchmarks: a vocabulary, a JSON Schema, and an answer within its grammar.

use std::fmt;
use std::sync::Arc;

use super::constraint::{Constraint, ConstraintError};
use super::json_schema::{SchemaError, schema_rule};
use super::vocabulary::Vocabulary;
use super::{Builder, Grammar, TooLarge};

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

/// Error of a benchmark of masks.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MaskBenchError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("schema is not valid JSON")]
    Json {
        #[from]
        err: serde_json::Error,
    },
    #[error("schema is not supported")]
    Schema(#[source] SchemaError),
    #[error(transparent)]
    TooLarge(TooLarge),
    #[error(transparent)]
    Constraint(ConstraintError),
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
    /// Returns an error if the JSON is invalid or the schema is not supported.
    pub fn new(schema: &str, vocabulary: &MaskVocabulary) -> Result<Self, MaskBenchError> {
        let schema = serde_json::from_str(schema).map_err(Failure::from)?;
        let mut builder = Builder::new();
        let start = schema_rule(&mut builder, &schema).map_err(Failure::Schema)?;
        let grammar: Grammar = builder.finish(start).map_err(Failure::TooLarge)?;
        let constraint = Constraint::new(Arc::new(grammar), Arc::clone(&vocabulary.0));
        Ok(Self(constraint.map_err(Failure::Constraint)?))
    }

    /// Computes the logits mask of the next position and returns the number of permitted tokens.
    ///
    /// # Errors
    /// Returns an error if no token is permitted or the mask is too expensive.
    pub fn mask(&mut self) -> Result<u32, MaskBenchError> {
        let mask = self.0.mask().map_err(Failure::Constraint)?;
        Ok(mask.count())
    }

    /// Appends a token to the answer.
    ///
    /// # Errors
    /// Returns an error if the token is not permitted.
    pub fn accept(&mut self, token: u32) -> Result<(), MaskBenchError> {
        Ok(self.0.accept(token).map_err(Failure::Constraint)?)
    }
}
