//! Tensors of a model, from the JSON headers of its safetensors files: required tensors, their
//! shapes and their bytes. The caller reads the headers; this module reads no files.

mod layout;
mod survey;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::{FloatType, ModelConfig, QuantizationScheme};
use layout::Layout;
pub use layout::Step;
pub use layout::TensorSource;
use survey::Survey;

/// Index of the files' tensors, for models with several weight files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Chat template for conversations with tools, if the model has a separate one, as saved by
/// transformers.
pub const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// Weight file of a model with one file.
pub const SINGLE_FILE: &str = "model.safetensors";

/// Maximum size of an index, which has one line per tensor.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Maximum number of weight files. The largest published models have fewer than 200.
pub const MAX_WEIGHT_FILES: usize = 1000;

/// Size of the header length at the beginning of a safetensors file, little endian.
pub const HEADER_LENGTH_BYTES: u64 = 8;

/// Maximum size of a header in the safetensors format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum StoredType {
    F32,
    F16,
    BF16,
    #[serde(rename = "F8_E4M3", alias = "F8_E5M2")]
    F8,
    /// Packed quantised weights.
    U32,
    /// Scales of Microscaling formats, and weights packed by other tools.
    U8,
    I32,
    /// All other types. An error can then name the tensor.
    #[serde(other)]
    Other,
}

/// Facts about a stored element type.
struct StoredTypeFacts {
    name: &'static str,
    /// Bytes of an element, if known.
    bytes: Option<u64>,
    /// Float type in which the engine can compute.
    float: Option<FloatType>,
}

impl StoredType {
    fn facts(self) -> StoredTypeFacts {
        let (name, bytes, float) = match self {
            Self::F32 => ("float32", Some(4), Some(FloatType::F32)),
            Self::F16 => ("float16", Some(2), Some(FloatType::F16)),
            Self::BF16 => ("bfloat16", Some(2), Some(FloatType::BF16)),
            Self::F8 => ("float8", Some(1), None),
            Self::U32 => ("packed", Some(4), None),
            Self::U8 => ("uint8", Some(1), None),
            Self::I32 => ("int32", Some(4), None),
            Self::Other => ("other", None, None),
        };
        StoredTypeFacts { name, bytes, float }
    }

    pub fn as_str(self) -> &'static str {
        self.facts().name
    }
}

/// Tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// File name in the model directory.
    pub file: String,
    pub dtype: StoredType,
    pub shape: Vec<u64>,
    /// Offset of the first byte in the file.
    pub begin: u64,
    pub bytes: u64,
}

/// All tensors of a model directory, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorTable {
    tensors: BTreeMap<String, StoredTensor>,
}

/// Reason why the safetensors files do not match the configuration.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{file}: not a safetensors file, or truncated: {problem}")]
    CorruptHeader { file: String, problem: String },
    #[error("{file}: tensor `{tensor}` is already in {other}")]
    DuplicateTensor {
        file: String,
        tensor: String,
        other: String,
    },
    #[error(
        "tensor `{tensor}` is missing in the safetensors files; {architecture} with this config.json requires it"
    )]
    MissingTensor { tensor: String, architecture: String },
    #[error("{file}: tensor `{tensor}` has shape {found:?}, config.json implies {expected:?}")]
    ShapeMismatch {
        file: String,
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error("{file}: tensor `{tensor}` has an unsupported element type, expected {expected}")]
    UnsupportedType {
        file: String,
        tensor: String,
        expected: &'static str,
    },
    #[error("{file}: tensor `{tensor}` is quantised, but config.json has no `quantization`")]
    UnexpectedQuantization { file: String, tensor: String },
    #[error("{file}: tensor `{tensor}` is not part of {architecture} with this config.json")]
    UnknownTensor {
        file: String,
        tensor: String,
        architecture: String,
    },
}

impl CheckpointError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::CorruptHeader { .. } => "CorruptWeights",
            Self::DuplicateTensor { .. }
            | Self::MissingTensor { .. }
            | Self::ShapeMismatch { .. }
            | Self::UnsupportedType { .. }
            | Self::UnexpectedQuantization { .. }
            | Self::UnknownTensor { .. } => "InvalidWeights",
        }
    }
}

/// Checks the first eight bytes of a safetensors file, and returns the length of the JSON header
/// after them.
pub fn header_bytes(file: &str, first: [u8; 8], file_bytes: u64) -> Result<u64, CheckpointError> {
    let length = u64::from_le_bytes(first);
    let corrupt = |problem| CheckpointError::CorruptHeader {
        file: file.to_owned(),
        problem,
    };
    if length > MAX_HEADER_BYTES {
        return Err(corrupt(format!(
            "header of {length} bytes, the format allows {MAX_HEADER_BYTES}"
        )));
    }
    if HEADER_LENGTH_BYTES + length > file_bytes {
        return Err(corrupt(format!(
            "header of {length} bytes in a file of {file_bytes} bytes"
        )));
    }
    Ok(length)
}

#[derive(Deserialize)]
struct HeaderEntry {
    dtype: StoredType,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl TensorTable {
    /// Adds the tensors of one file. `header` is its JSON header; `data_bytes` is the length of the
    /// data after it.
    pub fn add_file(&mut self, file: &str, header: &[u8], data_bytes: u64) -> Result<(), CheckpointError> {
        let corrupt = |problem| CheckpointError::CorruptHeader {
            file: file.to_owned(),
            problem,
        };
        let entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header)
            .map_err(|err| corrupt(format!("the header is not a JSON object: {err}")))?;
        let mut spans = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            if name == "__metadata__" {
                continue;
            }
            let HeaderEntry {
                dtype,
                shape,
                data_offsets: (begin, end),
            } = serde_json::from_value(value)
                .map_err(|err| corrupt(format!("entry of tensor `{name}`: {err}")))?;
            let bytes = end
                .checked_sub(begin)
                .ok_or_else(|| corrupt(format!("tensor `{name}` ends before its start")))?;
            if end > data_bytes {
                return Err(corrupt(format!(
                    "tensor `{name}` ends at byte {end} of {data_bytes}; the file is truncated"
                )));
            }
            if let Some(element_bytes) = dtype.facts().bytes {
                let expected = shape
                    .iter()
                    .try_fold(element_bytes, |product, size| product.checked_mul(*size));
                if expected != Some(bytes) {
                    return Err(corrupt(format!(
                        "tensor `{name}` of shape {shape:?} has {bytes} bytes"
                    )));
                }
            }
            spans.push((begin, end));
            let tensor = StoredTensor {
                file: file.to_owned(),
                dtype,
                shape,
                begin: HEADER_LENGTH_BYTES + header.len() as u64 + begin,
                bytes,
            };
            if let Some(other) = self.tensors.get(&name) {
                return Err(CheckpointError::DuplicateTensor {
                    file: file.to_owned(),
                    tensor: name,
                    other: other.file.clone(),
                });
            }
            self.tensors.insert(name, tensor);
        }
        spans.sort_unstable();
        if spans.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(corrupt("two tensors overlap".to_owned()));
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &StoredTensor)> {
        self.tensors.iter()
    }
}

/// Storage of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixStorage {
    Float,
    Quantized(QuantizationScheme),
}

/// Model with all required tensors in the shapes that its configuration implies.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    pub config: ModelConfig,
    /// Element type of the checkpoint's float tensors; the default type of computation.
    pub element: FloatType,
    /// True if the head is the embedding table.
    pub tied: bool,
    /// Tensors of a stored head that `config.json` ties to the embedding table, each with the
    /// tensor of that table. The head is unused if they are equal. If they differ, the model has a
    /// head of its own, as in transformers: the caller sets
    /// [`tie_word_embeddings`](ModelConfig::tie_word_embeddings) to false.
    pub head_copies: Vec<(StoredTensor, StoredTensor)>,
    /// Number of unpacked parameters.
    pub parameters: u64,
    /// Bytes of the loaded tensors as stored.
    pub weights_bytes: u64,
    /// Storage of each matrix, by module path.
    pub matrices: BTreeMap<String, MatrixStorage>,
    /// Sources of the tensors that are stored under another name or in another shape.
    pub sources: BTreeMap<String, TensorSource>,
    all: Size,
    /// Size of the routed experts.
    experts: Size,
}

/// Size of a set of tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    /// Number of elements stored in floats, in matrices and vectors.
    float_elements: u64,
    /// Bytes of packed weights and their packed scales, which do not depend on the element type.
    packed_bytes: u64,
}

impl Size {
    fn resident_bytes(self, element: FloatType) -> u64 {
        self.packed_bytes + self.float_elements * element.bytes()
    }
}

/// Returns the tensors of a stored head with those of the embedding table; none without a head.
/// `None` if a tensor of the head has no counterpart with the same type and shape.
fn head_copies(tensors: &TensorTable) -> Option<Vec<(StoredTensor, StoredTensor)>> {
    let of_head = tensors
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("lm_head.")?, tensor)));
    of_head
        .map(|(part, head)| {
            let table = tensors.get(&format!("model.embed_tokens.{part}"))?;
            let is_alike = (table.dtype, &table.shape) == (head.dtype, &head.shape);
            is_alike.then(|| (head.clone(), table.clone()))
        })
        .collect()
}

impl ModelShape {
    /// Checks every tensor that `config` implies.
    pub fn new(config: ModelConfig, tensors: &TensorTable) -> Result<Self, CheckpointError> {
        let Layout { tensors, sources } = Layout::new(&config, tensors)?;
        let has_head = tensors.get("lm_head.weight").is_some();
        let head_copies = if config.tie_word_embeddings == Some(true) {
            head_copies(&tensors)
        } else {
            Some(Vec::new())
        };
        // A head in another format or shape is not a copy of the embedding table.
        let tied = config.tie_word_embeddings.unwrap_or(!has_head) && head_copies.is_some();
        let mut survey = Survey::new(&config, &tensors);
        survey.walk(tied)?;
        survey.reject_unused(tied)?;
        let Survey {
            matrices,
            parameters,
            weights_bytes,
            all,
            experts,
            element,
            ..
        } = survey;
        Ok(Self {
            element: element.unwrap_or(FloatType::F32),
            config,
            tied,
            head_copies: head_copies.unwrap_or_default(),
            parameters,
            weights_bytes,
            matrices,
            sources,
            all,
            experts,
        })
    }

    /// Returns the bytes of the weights in memory with floats stored as `element`. The CPU back end
    /// computes in float32, independent of the files.
    pub fn resident_bytes(&self, element: FloatType) -> u64 {
        self.all.resident_bytes(element)
    }

    /// Returns the bytes of the routed experts.
    pub fn expert_bytes(&self, element: FloatType) -> u64 {
        self.experts.resident_bytes(element)
    }
}

#[cfg(test)]
mod tests;
