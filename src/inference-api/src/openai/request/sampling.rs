//! Sampling parameters of a request.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::Fields;
use crate::openai::ApiError;

/// Limit of OpenAI's API.
const MAX_BIAS: f64 = 100.0;
/// Limit beyond which the penalty has no further effect.
const MAX_REPETITION_PENALTY: f64 = 100.0;

/// Sampling parameters. `None`: the default of the model's configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    /// `Some(0)`: no limit.
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Values that are added to the logits of tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// Parameters of this module.
    pub const NAMES: &[&str] = &[
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
    ];

    pub(super) fn parse(fields: &Fields) -> Result<Self, ApiError> {
        Ok(Self {
            temperature: fields.number("temperature", 0.0, 2.0)?,
            top_p: fields.number("top_p", 0.0, 1.0)?,
            top_k: parse_top_k(fields)?,
            min_p: fields.number("min_p", 0.0, 1.0)?,
            presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?,
            repetition_penalty: parse_repetition_penalty(fields)?,
            logit_bias: parse_logit_bias(fields)?,
            seed: fields.read("seed", "a 64-bit integer", |value| {
                value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
            })?,
        })
    }
}

fn parse_repetition_penalty(fields: &Fields) -> Result<Option<f32>, ApiError> {
    let expected = format!("a number above 0 and at most {MAX_REPETITION_PENALTY}");
    fields.read("repetition_penalty", &expected, |value| {
        let number = value
            .as_f64()
            .filter(|number| (0.0..=MAX_REPETITION_PENALTY).contains(number))?;
        Some(number as f32).filter(|number| *number >= f32::MIN_POSITIVE)
    })
}

fn parse_logit_bias(fields: &Fields) -> Result<BTreeMap<u32, f32>, ApiError> {
    let expected = format!(
        "an object whose names are token ids and whose values are numbers from -{MAX_BIAS} to {MAX_BIAS}"
    );
    let entry = |(token, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| bias.abs() <= MAX_BIAS)?;
        Some((token.parse().ok()?, bias as f32))
    };
    let bias = fields.read("logit_bias", &expected, |value| {
        value.as_object()?.iter().map(entry).collect::<Option<_>>()
    })?;
    Ok(bias.unwrap_or_default())
}

fn parse_top_k(fields: &Fields) -> Result<Option<u32>, ApiError> {
    fields.read("top_k", "a positive integer, or 0 for no limit", |value| {
        match value.as_i64()? {
            // Other servers use -1 for no limit.
            -1 => Some(0),
            top_k => u32::try_from(top_k).ok(),
        }
    })
}
