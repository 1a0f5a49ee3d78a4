//! `POST /v1/embeddings`.

use super::ignored::IgnoredFields;
use super::token_options::Truncation;
use super::{Body, Prompt, parse_model};
use crate::openai::ApiError;

/// Limit of OpenAI's API.
const MAX_INPUTS: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingsRequest {
    pub model: String,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// Number of leading components of a Matryoshka embedding; `None`: all.
    pub dimensions: Option<usize>,
    pub truncation: Option<Truncation>,
    pub ignored: IgnoredFields,
}

/// Encoding of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// Base64 of little-endian single-precision floats.
    Base64,
}

impl EmbeddingsRequest {
    const NAMES: &[&str] = &[
        "model",
        "input",
        "encoding_format",
        "dimensions",
        "user",
        Truncation::NAME,
    ];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Body::parse(body)?.into_fields()?;
        let ignored = IgnoredFields::take_from(&mut fields);
        fields.check_names(&[Self::NAMES], &[], |_, _| false)?;
        fields.text("user")?;
        let encoding = fields.read("encoding_format", "'float' or 'base64'", |value| {
            match value.as_str()? {
                "float" => Some(Encoding::Float),
                "base64" => Some(Encoding::Base64),
                _ => None,
            }
        })?;
        Ok(Self {
            model: parse_model(&fields)?,
            inputs: Prompt::parse_all(&fields, "input", MAX_INPUTS)?,
            encoding: encoding.unwrap_or(Encoding::Float),
            dimensions: fields.integer("dimensions", 1, usize::MAX)?,
            truncation: Truncation::parse(&fields)?,
            ignored,
        })
    }
}
