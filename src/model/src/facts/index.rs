//! `model.safetensors.index.json`: the file of each tensor, and the total size of all tensors.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use rooflet_base::units::Bytes;

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
    /// Parses the index. The error describes the invalid part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|err| format!("not valid JSON: {err}"))?;
        let document = Document::deserialize(&value)
            .map_err(|_| "field `weight_map` must be an object from tensor to file".to_owned())?;
        let mut index = Self {
            total: document
                .metadata
                .total_size
                .filter(|total| (0.0..1e18).contains(total))
                .map(|total| Bytes(total as u64)),
            ..Self::default()
        };
        for (tensor, file) in document.weight_map {
            let file = file
                .as_str()
                .ok_or(format!("weight_map.{tensor} must be a file name"))?;
            // The index is downloaded, so its paths must not leave the directory.
            if file.contains(['/', '\\']) || file == ".." {
                return Err(format!(
                    "weight_map.{tensor} must be a file in the directory of the index, not `{file}`"
                ));
            }
            index.files.insert(file.to_owned());
            index.tensors.insert(tensor);
        }
        Ok(index)
    }
}
