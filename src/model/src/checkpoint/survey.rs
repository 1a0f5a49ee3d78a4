//! Check that a checkpoint has exactly the tensors that the configuration implies, in their shapes;
//! and the sum of their sizes.

use std::collections::BTreeMap;

use super::{CheckpointError, MatrixStorage, Size, StoredTensor, StoredType, TensorTable};
use crate::config::{
    AttentionConfig, DenseConfig, ExpertsConfig, FeedForwardConfig, FloatType, GatedDeltaConfig, MixerConfig,
    ModelConfig, QuantizationScheme, QueryKeyNorm, Router,
};
use crate::dimensions::CONVOLUTION_WIDTH;
use crate::facts::census::Part;

pub(super) struct Survey<'a> {
    config: &'a ModelConfig,
    tensors: &'a TensorTable,
    used: std::collections::BTreeSet<String>,
    pub(super) matrices: BTreeMap<String, MatrixStorage>,
    pub(super) parameters: u64,
    pub(super) weights_bytes: u64,
    pub(super) all: Size,
    pub(super) experts: Size,
    pub(super) element: Option<FloatType>,
}

impl<'a> Survey<'a> {
    pub(super) fn new(config: &'a ModelConfig, tensors: &'a TensorTable) -> Self {
        Self {
            config,
            tensors,
            used: std::collections::BTreeSet::new(),
            matrices: BTreeMap::new(),
            parameters: 0,
            weights_bytes: 0,
            all: Size::default(),
            experts: Size::default(),
            element: None,
        }
    }

    pub(super) fn walk(&mut self, tied: bool) -> Result<(), CheckpointError> {
        let config = self.config;
        let hidden = u64::from(config.dimensions.hidden);
        let vocabulary = u64::from(config.dimensions.vocabulary);

        self.matrix("model.embed_tokens", None, vocabulary, hidden)?;
        for (index, layer) in config.layers.iter().enumerate() {
            let module = format!("model.layers.{index}");
            for norm in config.block_norms.names() {
                self.vector(&format!("{module}.{norm}.weight"), hidden)?;
            }
            match &layer.mixer {
                MixerConfig::Attention(attention) => {
                    self.attention(&format!("{module}.self_attn"), hidden, attention)?;
                }
                MixerConfig::GatedDelta(delta) => {
                    self.gated_delta(&format!("{module}.linear_attn"), hidden, delta)?;
                }
            }
            self.feed_forward(&format!("{module}.mlp"), hidden, &layer.feed_forward)?;
        }
        self.vector("model.norm.weight", hidden)?;
        if !tied {
            self.matrix("lm_head", None, vocabulary, hidden)?;
        }
        Ok(())
    }

    fn attention(
        &mut self,
        module: &str,
        hidden: u64,
        config: &AttentionConfig,
    ) -> Result<(), CheckpointError> {
        let (query, key_value) = config.widths();
        let at = |part: &str| format!("{module}.{part}");
        if config.fused {
            self.linear(&at("qkv_proj"), query + 2 * key_value, hidden, config.qkv_bias)?;
        } else {
            let gated = if config.output_gate { 2 * query } else { query };
            self.linear(&at("q_proj"), gated, hidden, config.qkv_bias)?;
            self.linear(&at("k_proj"), key_value, hidden, config.qkv_bias)?;
            self.linear(&at("v_proj"), key_value, hidden, config.qkv_bias)?;
        }
        self.linear(&at("o_proj"), hidden, query, config.output_bias)?;
        let norms = match config.query_key_norm {
            QueryKeyNorm::None => None,
            QueryKeyNorm::Head => Some((u64::from(config.head_dim), u64::from(config.head_dim))),
            QueryKeyNorm::Full => Some((query, key_value)),
        };
        if config.sinks {
            self.vector(&at("sinks"), u64::from(config.heads))?;
        }
        if let Some((of_query, of_key)) = norms {
            self.vector(&at("q_norm.weight"), of_query)?;
            self.vector(&at("k_norm.weight"), of_key)?;
        }
        Ok(())
    }

    fn gated_delta(
        &mut self,
        module: &str,
        hidden: u64,
        config: &GatedDeltaConfig,
    ) -> Result<(), CheckpointError> {
        let at = |part: &str| format!("{module}.{part}");
        let heads = u64::from(config.value_heads);
        let keys = u64::from(config.key_heads) * u64::from(config.key_dim);
        let values = heads * u64::from(config.value_dim);
        let channels = 2 * keys + values;
        if config.by_head {
            self.linear(&at("in_proj_qkvz"), channels + values, hidden, false)?;
            self.linear(&at("in_proj_ba"), 2 * heads, hidden, false)?;
        } else {
            self.linear(&at("in_proj_qkv"), channels, hidden, false)?;
            self.linear(&at("in_proj_z"), values, hidden, false)?;
            self.linear(&at("in_proj_b"), heads, hidden, false)?;
            self.linear(&at("in_proj_a"), heads, hidden, false)?;
        }
        self.linear(&at("out_proj"), hidden, values, false)?;
        let width = u64::from(CONVOLUTION_WIDTH);
        self.parameters += channels * width;
        self.use_float(&at("conv1d.weight"), &[channels, width, 1])?;
        self.vector(&at("dt_bias"), heads)?;
        self.vector(&at("A_log"), heads)?;
        self.vector(&at("norm.weight"), u64::from(config.value_dim))
    }

    fn feed_forward(
        &mut self,
        module: &str,
        hidden: u64,
        config: &FeedForwardConfig,
    ) -> Result<(), CheckpointError> {
        match config {
            FeedForwardConfig::Dense(config) => self.dense(module, hidden, config),
            FeedForwardConfig::Experts(config) => self.experts(module, hidden, config),
        }
    }

    fn dense(&mut self, module: &str, hidden: u64, config: &DenseConfig) -> Result<(), CheckpointError> {
        let intermediate = u64::from(config.intermediate);
        let at = |part: &str| format!("{module}.{part}");
        if config.fused {
            self.linear(&at("gate_up_proj"), 2 * intermediate, hidden, config.bias)?;
        } else {
            self.linear(&at("gate_proj"), intermediate, hidden, config.bias)?;
            self.linear(&at("up_proj"), intermediate, hidden, config.bias)?;
        }
        self.linear(&at("down_proj"), hidden, intermediate, config.bias)
    }

    fn experts(&mut self, module: &str, hidden: u64, config: &ExpertsConfig) -> Result<(), CheckpointError> {
        let (experts, intermediate) = (u64::from(config.experts), u64::from(config.intermediate));
        let router = format!("{module}.{}", config.names.router);
        self.linear(&router, experts, hidden, config.bias)?;
        if let Router::Sigmoid { .. } = config.router {
            self.vector(&format!("{router}.e_score_correction_bias"), experts)?;
        }
        let before = self.all;
        for (part, rows, columns) in [
            ("gate_proj", intermediate, hidden),
            ("up_proj", intermediate, hidden),
            ("down_proj", hidden, intermediate),
        ] {
            let part = format!("{module}.{}.{part}", config.names.experts);
            self.matrix(&part, Some(experts), rows, columns)?;
            if config.bias {
                self.parameters += experts * rows;
                self.use_float(&format!("{part}.bias"), &[experts, rows])?;
            }
        }
        self.experts.float_elements += self.all.float_elements - before.float_elements;
        self.experts.packed_bytes += self.all.packed_bytes - before.packed_bytes;
        if let Some(shared) = &config.shared {
            let dense = DenseConfig {
                intermediate: shared.intermediate,
                activation: config.activation,
                fused: false,
                bias: config.bias,
            };
            self.dense(&format!("{module}.{}", config.names.shared), hidden, &dense)?;
            if shared.gated {
                let gate = format!("{module}.{}_gate", config.names.shared);
                self.linear(&gate, 1, hidden, false)?;
            }
        }
        Ok(())
    }

    fn linear(&mut self, module: &str, rows: u64, columns: u64, bias: bool) -> Result<(), CheckpointError> {
        self.matrix(module, None, rows, columns)?;
        if bias {
            self.vector(&format!("{module}.bias"), rows)?;
        }
        Ok(())
    }

    /// Checks the shape of a tensor, marks it as used and adds its bytes.
    fn use_tensor(&mut self, name: &str, expected: &[u64]) -> Result<&'a StoredTensor, CheckpointError> {
        let tensor = self
            .tensors
            .get(name)
            .ok_or_else(|| CheckpointError::MissingTensor {
                tensor: name.to_owned(),
                architecture: self.config.architecture.to_string(),
            })?;
        if tensor.shape != expected {
            return Err(CheckpointError::ShapeMismatch {
                file: tensor.file.clone(),
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        self.used.insert(name.to_owned());
        self.weights_bytes += tensor.bytes;
        Ok(tensor)
    }

    fn use_float(&mut self, name: &str, expected: &[u64]) -> Result<(), CheckpointError> {
        let tensor = self.use_tensor(name, expected)?;
        let element = tensor
            .dtype
            .facts()
            .float
            .ok_or_else(|| CheckpointError::UnsupportedType {
                file: tensor.file.clone(),
                tensor: name.to_owned(),
                expected: "F32, F16 or BF16",
            })?;
        self.element.get_or_insert(element);
        self.all.float_elements += tensor.bytes / element.bytes();
        Ok(())
    }

    fn vector(&mut self, name: &str, size: u64) -> Result<(), CheckpointError> {
        self.parameters += size;
        self.use_float(name, &[size])
    }

    /// Checks a matrix or a stack of matrices.
    fn matrix(
        &mut self,
        module: &str,
        stack: Option<u64>,
        rows: u64,
        columns: u64,
    ) -> Result<(), CheckpointError> {
        self.parameters += stack.unwrap_or(1) * rows * columns;
        let sized = |columns: u64| -> Vec<u64> { stack.into_iter().chain([rows, columns]).collect() };
        let weight = format!("{module}.weight");
        let scales = format!("{module}.scales");
        // A quantised checkpoint may store any matrix in floats. Quantised matrices have scales.
        let storage = match self.tensors.get(&scales) {
            None => MatrixStorage::Float,
            Some(tensor) => {
                let scheme = self.config.quantization.as_ref().and_then(|q| q.scheme(module));
                let scheme = scheme.ok_or_else(|| CheckpointError::UnexpectedQuantization {
                    file: tensor.file.clone(),
                    tensor: scales.clone(),
                })?;
                MatrixStorage::Quantized(scheme)
            }
        };
        match storage {
            MatrixStorage::Float => self.use_float(&weight, &sized(columns))?,
            MatrixStorage::Quantized(QuantizationScheme {
                mode,
                group_size,
                bits,
            }) => {
                let groups = columns / u64::from(group_size);
                self.use_packed(&weight, &sized(columns * u64::from(bits) / 32), StoredType::U32)?;
                if mode.has_biases() {
                    self.use_float(&scales, &sized(groups))?;
                    self.use_float(&format!("{module}.biases"), &sized(groups))?;
                } else {
                    self.use_packed(&scales, &sized(groups), StoredType::U8)?;
                }
            }
        }
        self.matrices.insert(module.to_owned(), storage);
        Ok(())
    }

    fn use_packed(&mut self, name: &str, expected: &[u64], dtype: StoredType) -> Result<(), CheckpointError> {
        let packed = self.use_tensor(name, expected)?;
        if packed.dtype != dtype {
            return Err(CheckpointError::UnsupportedType {
                file: packed.file.clone(),
                tensor: name.to_owned(),
                expected: if dtype == StoredType::U8 { "U8" } else { "U32" },
            });
        }
        self.all.packed_bytes += packed.bytes;
        Ok(())
    }

    /// Rejects unused tensors, because ignoring them would change the model's output. Known
    /// redundant tensors are accepted.
    pub(super) fn reject_unused(&self, tied: bool) -> Result<(), CheckpointError> {
        let layers = u32::try_from(self.config.layers.len()).ok();
        let architecture = self.config.architecture;
        let is_multimodal = self.config.is_multimodal;
        let redundant = |name: &str| {
            let part = Part::of(name, layers);
            name.ends_with("rotary_emb.inv_freq")
                || (tied && name.starts_with("lm_head."))
                || (architecture.has_prediction_layers && part == Part::Prediction)
                || (is_multimodal && part == Part::Vision)
        };
        match self
            .tensors
            .iter()
            .find(|(name, _)| !self.used.contains(*name) && !redundant(name))
        {
            None => Ok(()),
            Some((name, tensor)) => Err(CheckpointError::UnknownTensor {
                file: tensor.file.clone(),
                tensor: name.clone(),
                architecture: self.config.architecture.to_string(),
            }),
        }
    }
}
