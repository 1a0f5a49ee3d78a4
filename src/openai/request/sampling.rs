//! How tokens are to be chosen, as far as the request says.

use super::fields::Fields;
use crate::openai::ApiError;

/// `None` = as the model's own configuration has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SamplingOptions {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// `Some(0)` = no limit.
    pub(crate) top_k: Option<u32>,
    pub(crate) seed: Option<u64>,
}

impl SamplingOptions {
    /// The parameters that are read here.
    pub(super) const NAMES: &[&str] = &["temperature", "top_p", "top_k", "seed"];

    pub(super) fn parse(fields: &Fields) -> Result<Self, ApiError> {
        Ok(Self {
            temperature: fields.number("temperature", 0.0, 2.0)?,
            top_p: fields.number("top_p", 0.0, 1.0)?,
            top_k: parse_top_k(fields)?,
            seed: fields.read("seed", "a 64-bit integer", |value| {
                value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
            })?,
        })
    }
}

fn parse_top_k(fields: &Fields) -> Result<Option<u32>, ApiError> {
    fields.read("top_k", "a positive integer, or 0 for no limit", |value| {
        match value.as_i64()? {
            // Other servers write "no limit" as -1.
            -1 => Some(0),
            top_k => u32::try_from(top_k).ok(),
        }
    })
}
