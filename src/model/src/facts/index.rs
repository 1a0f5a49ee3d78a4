//! `model.safetensors.index.json`: the file of each tensor, and the total size of all tensors.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use rooflet_base::units::Bytes;

/// Error of parsing an index.
#[derive(Debug, thiserror::Error)]
pub enum WeightIndexError {
    #[error("not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("field `weight_map` must be an object from tensor to file")]
    WeightMap,
    #[error("weight_map.{0} must be a file name")]
    FileName(String),
    #[error("weight_map.{tensor} must be a file in the directory of the index, not `{file}`")]
    OtherDirectory { tensor: String, file: String },
}

/// Index of a model with several weight files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightIndex {
    /// Size of all tensors, if the index has it.
    pub total: Option<Bytes>,
    pub tensors: BTreeSet<String>,
    /// File names, without directories.
    pub files: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    metadata: Metadata,
    weight_map: Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    /// Float, because some tools write one.
    #[serde(default)]
    total_size: Option<f64>,
}

impl WeightIndex {
    /// Parses the index.
    pub fn parse(text: &str) -> Result<Self, WeightIndexError> {
        let value: Value = serde_json::from_str(text).map_err(WeightIndexError::Json)?;
        let document = Document::deserialize(&value).map_err(|_| WeightIndexError::WeightMap)?;
        let mut index = Self {
            total: document
                .metadata
                .total_size
                .filter(|total| (0.0..1e18).contains(total))
                .map(|total| Bytes(total as u64)),
            ..Self::default()
        };
        for (tensor, file) in document.weight_map {
            let Some(file) = file.as_str() else {
                return Err(WeightIndexError::FileName(tensor));
            };
            // The index is downloaded, so its paths must not leave the directory.
            if file.contains(['/', '\\']) || file == ".." {
                let file = file.to_owned();
                return Err(WeightIndexError::OtherDirectory { tensor, file });
            }
            index.files.insert(file.to_owned());
            index.tensors.insert(tensor);
        }
        Ok(index)
    }
}
