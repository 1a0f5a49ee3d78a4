//! `POST /v1/embeddings`.

use super::{Body, Prompt, parse_model};
use crate::openai::ApiError;

/// Limit of OpenAI's API.
const MAX_INPUTS: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingsRequest {
    pub model: String,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
}

/// Encoding of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// Base64 of little-endian single-precision floats.
    Base64,
}

impl EmbeddingsRequest {
    const NAMES: &[&str] = &["model", "input", "encoding_format", "user"];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let fields = Body::parse(body)?.into_fields()?;
        for (name, value) in fields.iter().filter(|(name, _)| !Self::NAMES.contains(name)) {
            if name != "dimensions" {
                return Err(ApiError::unknown_parameter(name));
            }
            if !value.is_null() {
                return Err(ApiError::unsupported(
                    name,
                    "'dimensions' is not supported by this server: embeddings have the size of the model's hidden states.",
                ));
            }
        }
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
        })
    }
}
