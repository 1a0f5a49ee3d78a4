//! Response of `POST /v1/embeddings`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::openai::request::embeddings::Encoding;

#[derive(Debug, Serialize)]
pub struct EmbeddingList {
    pub object: &'static str,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
pub struct Embedding {
    pub object: &'static str,
    pub index: usize,
    pub embedding: EncodedEmbedding,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EncodedEmbedding {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
pub struct EmbeddingUsage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
}

impl EmbeddingList {
    pub fn new(model: String, vectors: Vec<Vec<f32>>, encoding: Encoding, prompt_tokens: usize) -> Self {
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

/// Keeps the first `dimensions` components of a Matryoshka embedding, and scales them to length 1.
/// A zero vector stays zero.
pub fn truncated(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    vector.truncate(dimensions);
    let squares: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
    let scale = if squares > 0.0 {
        squares.sqrt().recip()
    } else {
        0.0
    };
    vector
        .into_iter()
        .map(|value| (f64::from(value) * scale) as f32)
        .collect()
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

    /// 3, 4 and 5 are a Pythagorean triple.
    #[test]
    fn truncated_embedding_has_length_one() {
        assert_eq!(truncated(vec![3.0, -4.0, 12.0], 2), [0.6, -0.8]);
        assert_eq!(truncated(vec![0.0, 1.0], 1), [0.0]);
        assert_eq!(truncated(vec![0.0, 1.0], 2), [0.0, 1.0]);
    }

    /// Reference: `struct.pack("<2f", 1.0, -0.5)` in base64, from Python.
    #[test]
    fn base64_encodes_little_endian_floats() {
        let encoded = EncodedEmbedding::new(vec![1.0, -0.5], Encoding::Base64);
        assert_eq!(encoded, EncodedEmbedding::Base64("AACAPwAAAL8=".to_owned()));
    }
}
