//! A model's tensors, from the JSON headers of its safetensors files: what must be there, in which
//! shape, and how many bytes it is. Pure: the caller reads the headers (`model_dir.rs`), nothing
//! here reads weights.

mod layout;
mod survey;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::{FloatType, ModelConfig, QuantizationScheme};
use layout::Layout;
pub use layout::Step;
pub use layout::TensorSource;
use survey::Survey;

/// Says which file holds which tensor, where there are several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The template for conversations with tools, of a model that has another for those without, as
/// transformers saves it.
pub const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// The file of weights where there is only one.
pub const SINGLE_FILE: &str = "model.safetensors";

/// One line per tensor.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The largest published models come in fewer than 200 files.
pub const MAX_WEIGHT_FILES: usize = 1000;

/// The length of a safetensors header is the file's first eight bytes, little endian.
pub const HEADER_LENGTH_BYTES: u64 = 8;

/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Element type of a stored tensor, as far as supported checkpoints use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum StoredType {
    F32,
    F16,
    BF16,
    #[serde(rename = "F8_E4M3", alias = "F8_E5M2")]
    F8,
    /// Packed quantised weights.
    U32,
    /// Scales of the formats of Microscaling, and weights packed by other tools.
    U8,
    I32,
    /// Anything else: kept, so that the error can say which tensor has it.
    #[serde(other)]
    Other,
}

impl StoredType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F8 => "float8",
            Self::U32 => "packed",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::Other => "other",
        }
    }

    fn float(self) -> Option<FloatType> {
        match self {
            Self::F32 => Some(FloatType::F32),
            Self::F16 => Some(FloatType::F16),
            Self::BF16 => Some(FloatType::BF16),
            Self::F8 | Self::U32 | Self::U8 | Self::I32 | Self::Other => None,
        }
    }
}

/// One tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// File name within the model directory.
    pub file: String,
    pub dtype: StoredType,
    pub shape: Vec<u64>,
    pub bytes: u64,
}

/// All tensors of a model directory, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorTable {
    tensors: BTreeMap<String, StoredTensor>,
}

/// Why a set of safetensors files is not the model its configuration describes.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{file}: not a safetensors file, or cut short: {problem}")]
    CorruptHeader { file: String, problem: String },
    #[error("{file}: tensor `{tensor}` is already in {other}")]
    DuplicateTensor {
        file: String,
        tensor: String,
        other: String,
    },
    #[error(
        "tensor `{tensor}` is in none of the safetensors files; {architecture} with this config.json needs it"
    )]
    MissingTensor { tensor: String, architecture: String },
    #[error("{file}: tensor `{tensor}` has shape {found:?}, config.json implies {expected:?}")]
    ShapeMismatch {
        file: String,
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error("{file}: tensor `{tensor}` has an element type that is not supported here, expected {expected}")]
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

/// Checks the first eight bytes of a safetensors file and returns the length of the JSON header
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
    /// Adds the tensors of one file. `header` is its JSON header, `data_bytes` what follows it.
    pub fn add_file(&mut self, file: &str, header: &[u8], data_bytes: u64) -> Result<(), CheckpointError> {
        let corrupt = |problem| CheckpointError::CorruptHeader {
            file: file.to_owned(),
            problem,
        };
        let entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header)
            .map_err(|err| corrupt(format!("its header is not a JSON object: {err}")))?;
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
                .ok_or_else(|| corrupt(format!("tensor `{name}` ends before it begins")))?;
            if end > data_bytes {
                return Err(corrupt(format!(
                    "tensor `{name}` ends at byte {end} of {data_bytes}; the file was cut short"
                )));
            }
            if let Some(element_bytes) = element_bytes(dtype) {
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

fn element_bytes(dtype: StoredType) -> Option<u64> {
    match dtype {
        StoredType::F32 | StoredType::U32 | StoredType::I32 => Some(4),
        StoredType::F16 | StoredType::BF16 => Some(2),
        StoredType::F8 | StoredType::U8 => Some(1),
        StoredType::Other => None,
    }
}

/// How one matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixStorage {
    Float,
    Quantized(QuantizationScheme),
}

/// A model whose tensors are all there, in the shapes its configuration implies.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    pub config: ModelConfig,
    /// Element type of the checkpoint's float tensors, in which the model computes unless told
    /// otherwise.
    pub element: FloatType,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Weights, unpacked.
    pub parameters: u64,
    /// Bytes of the tensors that are loaded, as stored.
    pub weights_bytes: u64,
    /// Storage of each matrix, by module path.
    pub matrices: BTreeMap<String, MatrixStorage>,
    /// Tensors that are not stored under their name and in their shape.
    pub sources: BTreeMap<String, TensorSource>,
    all: Size,
    /// Of routed experts.
    experts: Size,
}

/// What tensors come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    /// Elements stored in floats, matrices and vectors alike.
    float_elements: u64,
    /// Bytes of packed weights and their small scales, which no choice of element type changes.
    packed_bytes: u64,
}

impl Size {
    fn resident_bytes(self, element: FloatType) -> u64 {
        self.packed_bytes + self.float_elements * element.bytes()
    }
}

impl ModelShape {
    /// Checks every tensor that `config` implies.
    pub fn new(config: ModelConfig, tensors: &TensorTable) -> Result<Self, CheckpointError> {
        let Layout { tensors, sources } = Layout::new(&config, tensors)?;
        let has_head = tensors.get("lm_head.weight").is_some();
        let tied = config.tie_word_embeddings.unwrap_or(!has_head);
        let mut survey = Survey::new(&config, &tensors);
        survey.walk(tied)?;
        survey.refuse_leftovers(tied)?;
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
            parameters,
            weights_bytes,
            matrices,
            sources,
            all,
            experts,
        })
    }

    /// Bytes of the weights in memory when floats are held as `element` (the CPU back end computes
    /// in float32, whatever the file holds).
    pub fn resident_bytes(&self, element: FloatType) -> u64 {
        self.all.resident_bytes(element)
    }

    /// Of them, those of routed experts.
    pub fn expert_bytes(&self, element: FloatType) -> u64 {
        self.experts.resident_bytes(element)
    }
}

#[cfg(test)]
mod tests;
