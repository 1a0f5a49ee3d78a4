//! What `POST /v1/embeddings` answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::openai::request::embeddings::Encoding;

#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Embedding>,
    pub(crate) model: String,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
pub(crate) struct Embedding {
    pub(crate) object: &'static str,
    pub(crate) index: usize,
    pub(crate) embedding: EncodedEmbedding,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum EncodedEmbedding {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl EmbeddingList {
    pub(crate) fn new(
        model: String,
        vectors: Vec<Vec<f32>>,
        encoding: Encoding,
        prompt_tokens: usize,
    ) -> Self {
        let embedding = |(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: EncodedEmbedding::new(vector, encoding),
        };
        Self {
            object: "list",
            data: vectors.into_iter().enumerate().map(embedding).collect(),
            model,
            usage: EmbeddingUsage {
                prompt_tokens,
                total_tokens: prompt_tokens,
            },
        }
    }
}

impl EncodedEmbedding {
    fn new(vector: Vec<f32>, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct.pack("<2f", 1.0, -0.5)` in base64, from Python.
    #[test]
    fn base64_is_of_little_endian_floats() {
        let encoded = EncodedEmbedding::new(vec![1.0, -0.5], Encoding::Base64);
        assert_eq!(encoded, EncodedEmbedding::Base64("AACAPwAAAL8=".to_owned()));
    }
}
