//! Size of each part of a model. The names of tensors decide their part; they are the names of
//! published MLX and transformers checkpoints.

use std::collections::BTreeMap;

use super::stored::StoredFormat;
use crate::checkpoint::{StoredTensor, StoredType, TensorTable};
use rooflet_base::units::Bytes;

/// Part of a model. Parts differ in whether and when the engine reads their tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Token embedding table.
    Embedding,
    /// Second embedding table with one vector per token and layer.
    PerLayerEmbedding,
    Head,
    /// Softmax, latent and linear attention.
    Attention,
    /// Dense feed-forward blocks.
    Dense,
    Router,
    SharedExpert,
    RoutedExpert,
    Norm,
    /// Vision towers and their projections into the model.
    Vision,
    /// Audio towers.
    Audio,
    /// Multi-token prediction layers.
    Prediction,
    /// All other tensors. They count as read by every step.
    Other,
}

impl Part {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::PerLayerEmbedding => "per-layer embedding",
            Self::Head => "output head",
            Self::Attention => "attention",
            Self::Dense => "feed-forward",
            Self::Router => "routers",
            Self::SharedExpert => "shared experts",
            Self::RoutedExpert => "routed experts",
            Self::Norm => "norms",
            Self::Vision => "vision tower",
            Self::Audio => "audio tower",
            Self::Prediction => "multi-token prediction",
            Self::Other => "other",
        }
    }

    /// Returns whether a text-only engine loads the part.
    pub fn is_loaded(self) -> bool {
        !matches!(self, Self::Vision | Self::Audio | Self::Prediction)
    }

    /// Returns the part of a tensor by its name. `layers` is the number of decoder layers. Files
    /// that number multi-token prediction layers like decoder layers use indices from `layers` on.
    pub fn of(name: &str, layers: Option<u32>) -> Self {
        let segments: Vec<&str> = name.split('.').collect();
        let any = |words: &[&str]| segments.iter().any(|segment| words.contains(segment));
        let starts = |words: &[&str]| {
            segments
                .iter()
                .any(|segment| words.iter().any(|start| segment.starts_with(start)))
        };
        if starts(&[
            "vision",
            "visual",
            "image",
            "multi_modal_projector",
            "mm_projector",
            "embed_vision",
        ]) {
            return Self::Vision;
        }
        if starts(&["audio", "embed_audio", "speech"]) {
            return Self::Audio;
        }
        if any(&["mtp", "eh_proj", "enorm", "hnorm", "shared_head"]) || is_after_decoder(&segments, layers) {
            return Self::Prediction;
        }
        if starts(&["embed_tokens_per_layer"]) {
            return Self::PerLayerEmbedding;
        }
        if any(&[
            "embed_tokens",
            "wte",
            "tok_embeddings",
            "token_embd",
            "word_embeddings",
        ]) {
            return Self::Embedding;
        }
        if any(&["lm_head", "embed_out"]) || segments.first() == Some(&"output") {
            return Self::Head;
        }
        if any(&["shared_expert", "shared_experts", "shared_mlp"]) {
            return Self::SharedExpert;
        }
        if any(&["experts", "switch_mlp", "switch_glu"]) {
            return Self::RoutedExpert;
        }
        if any(&["gate", "router", "shared_expert_gate"]) {
            return Self::Router;
        }
        // Attention precedes norms, because norms inside attention belong to it.
        if any(&["self_attn", "linear_attn", "attention", "attn"]) {
            return Self::Attention;
        }
        if segments.iter().any(|segment| segment.contains("norm")) {
            return Self::Norm;
        }
        if any(&["mlp", "feed_forward", "ffn", "block_sparse_moe"]) {
            return Self::Dense;
        }
        Self::Other
    }
}

/// Returns whether the tensor belongs to a layer after the last decoder layer.
fn is_after_decoder(segments: &[&str], layers: Option<u32>) -> bool {
    let Some(layers) = layers else { return false };
    segments
        .windows(2)
        .find(|pair| pair[0] == "layers")
        .and_then(|pair| pair[1].parse::<u32>().ok())
        .is_some_and(|index| index >= layers)
}

/// Size of one part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of unpacked parameters.
    pub parameters: u64,
    /// Bytes as stored.
    pub bytes: Bytes,
    /// Part of `bytes` in 16-bit floats.
    pub half_floats: Bytes,
}

/// Sizes of a checkpoint's parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    parts: BTreeMap<Part, Tally>,
    /// Bytes per element type.
    pub element_types: BTreeMap<StoredType, Bytes>,
}

impl Census {
    pub fn new(tensors: &TensorTable, format: &StoredFormat, layers: Option<u32>) -> Self {
        let mut census = Self::default();
        for (name, tensor) in tensors.iter() {
            let tally = census.parts.entry(Part::of(name, layers)).or_default();
            tally.parameters += parameters(name, tensor, tensors, format);
            tally.bytes += Bytes(tensor.bytes);
            if matches!(tensor.dtype, StoredType::F16 | StoredType::BF16) {
                tally.half_floats += Bytes(tensor.bytes);
            }
            *census.element_types.entry(tensor.dtype).or_default() += Bytes(tensor.bytes);
        }
        census
    }

    pub fn part(&self, part: Part) -> Tally {
        self.parts.get(&part).copied().unwrap_or_default()
    }

    /// Returns the bytes of tensors of one element type.
    pub(super) fn bytes(&self, dtype: StoredType) -> Bytes {
        self.element_types.get(&dtype).copied().unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Part, Tally)> {
        self.parts.iter().map(|(part, tally)| (*part, *tally))
    }

    pub(super) fn sum(&self, selected: impl Fn(Part) -> bool) -> Tally {
        let mut sum = Tally::default();
        for (_, tally) in self.iter().filter(|(part, _)| selected(*part)) {
            sum.parameters += tally.parameters;
            sum.bytes += tally.bytes;
            sum.half_floats += tally.half_floats;
        }
        sum
    }
}

/// Returns the number of parameters in a tensor. Scales and biases of packed matrices are not
/// parameters.
fn parameters(name: &str, tensor: &StoredTensor, tensors: &TensorTable, format: &StoredFormat) -> u64 {
    let elements = tensor
        .shape
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size))
        .unwrap_or(u64::MAX);
    let (module, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let has = |leaf: &str| tensors.get(&format!("{module}.{leaf}")).is_some();
    match leaf {
        "scales" | "biases" if has("weight") => 0,
        // MLX packs weights into 32-bit words.
        "weight" if tensor.dtype == StoredType::U32 && has("scales") => {
            elements.saturating_mul(32) / u64::from(format.of(module).packed_bits())
        }
        // GPTQ and AWQ pack weights into 32-bit words too.
        "qweight" if has("scales") => {
            elements.saturating_mul(32) / u64::from(format.of(module).packed_bits())
        }
        "qzeros" | "scales" | "g_idx" if has("qweight") => 0,
        "weight_scale_inv" | "weight_scale" | "input_scale" => 0,
        // The original gpt-oss files pack two 4-bit weights per byte, with separate scales.
        _ if name.ends_with("_blocks") => elements.saturating_mul(2),
        _ if name.ends_with("_scales") => 0,
        _ => elements,
    }
}
