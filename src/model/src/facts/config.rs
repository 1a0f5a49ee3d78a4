//! Reader of a model's dimensions, layer by layer, from the fields of `config.json`.

use serde_json::{Map, Value};

use crate::dimensions::{Attention, FeedForward, Layer, ModelDimensions, PerLayerInputs};
use crate::families;
use crate::family::{Blocks, FamilyFacts, Mixing, Windows};
use crate::fields::{FieldError, Fields, MAX_PARAMETERS, Section, shortened};
use rooflet_api::v1alpha1::MAX_LAYERS;

/// Gate, up and down projections.
const GATED_MATRICES: u32 = 3;

/// Facts in `config.json` about the text model.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigFacts {
    /// `model_type` of the nested text model, or of the whole model.
    pub model_type: String,
    /// `None` if `model_type` is unknown.
    pub dimensions: Option<ModelDimensions>,
    /// Number of decoder layers, if the file has a field for it.
    pub layers: Option<u32>,
    /// `max_position_embeddings`.
    pub max_context_tokens: Option<u32>,
    /// `tie_word_embeddings`, if the file has it.
    pub tied: Option<bool>,
}

impl ConfigFacts {
    /// Reads the top-level object of `config.json`.
    pub fn new(object: &Map<String, Value>) -> Result<Self, FieldError> {
        let root = Fields::top(object);
        let outer_type = root.text("model_type")?;
        // Multimodal models nest the fields of their text model.
        let section = match root.object("text_config")? {
            Some(section) => Some(section),
            None => root.object("llm_config")?,
        };
        let text = section.as_ref().map_or(root, Section::as_fields);
        let inner_type = text.optional_text("model_type")?;
        let family = inner_type
            .and_then(families::find)
            .or_else(|| families::find(outer_type));
        let max_context_tokens = match text.optional_dimension("max_position_embeddings")? {
            Some(tokens) => Some(tokens),
            None => family.and_then(|family| family.defaults.context),
        };
        let tied = match text.optional_bool("tie_word_embeddings")? {
            Some(tied) => Some(tied),
            None => root.optional_bool("tie_word_embeddings")?,
        };
        let Some(family) = family else {
            return Ok(Self {
                model_type: shortened(inner_type.unwrap_or(outer_type)),
                dimensions: None,
                layers: text.optional_dimension("num_hidden_layers")?,
                max_context_tokens,
                tied,
            });
        };
        let reader = Reader { family, text };
        let dimensions = reader.dimensions(tied.unwrap_or(family.tied))?;
        let parameters = dimensions.parameters() as f64;
        if parameters >= MAX_PARAMETERS {
            return Err(FieldError::TooLarge { parameters });
        }
        Ok(Self {
            model_type: shortened(inner_type.unwrap_or(outer_type)),
            layers: u32::try_from(dimensions.layers.len()).ok(),
            dimensions: Some(dimensions),
            max_context_tokens,
            tied,
        })
    }
}

struct Reader<'a> {
    family: &'static FamilyFacts,
    text: Fields<'a>,
}

impl Reader<'_> {
    fn dimensions(&self, tied_embeddings: bool) -> Result<ModelDimensions, FieldError> {
        let layers = self.text.dimension("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(self
                .text
                .invalid("num_hidden_layers", format!("at most {MAX_LAYERS}")));
        }
        let hidden = self.text.dimension("hidden_size")?;
        let plan = self.attention_plan(layers, hidden)?;
        let blocks = self.blocks()?;
        let shared_from = layers - self.count("num_kv_shared_layers")?.min(layers);
        Ok(ModelDimensions {
            hidden,
            vocabulary: self.or_default("vocab_size", self.family.defaults.vocabulary)?,
            tied_embeddings,
            per_layer_inputs: self.per_layer_inputs()?,
            layers: (0..layers)
                .map(|index| {
                    let mut attention = plan.layer(index);
                    let shared = index >= shared_from && shared_from > 0;
                    if let Attention::Grouped { shares_cache, .. } = &mut attention {
                        *shares_cache = shared;
                    }
                    Layer {
                        attention,
                        feed_forward: blocks.layer(index, shared),
                    }
                })
                .collect(),
        })
    }

    fn per_layer_inputs(&self) -> Result<Option<PerLayerInputs>, FieldError> {
        let width = self.count("hidden_size_per_layer_input")?;
        if width == 0 {
            return Ok(None);
        }
        let vocabulary = self.or_default("vocab_size_per_layer_input", self.family.defaults.vocabulary)?;
        Ok(Some(PerLayerInputs { vocabulary, width }))
    }

    fn or_default(&self, field: &str, default: Option<u32>) -> Result<u32, FieldError> {
        match self.text.optional_dimension(field)? {
            Some(value) => Ok(value),
            None => default.ok_or_else(|| self.text.missing(field)),
        }
    }

    /// Returns a dimension that may be 0; absent and null mean 0.
    fn count(&self, field: &str) -> Result<u32, FieldError> {
        if self
            .text
            .present(field)
            .is_some_and(|value| value.as_u64() == Some(0))
        {
            return Ok(0);
        }
        Ok(self.text.optional_dimension(field)?.unwrap_or(0))
    }

    fn attention_plan(&self, layers: u32, hidden: u32) -> Result<AttentionPlan, FieldError> {
        let defaults = self.family.defaults;
        let heads = self.or_default("num_attention_heads", defaults.heads)?;
        if self.family.mixing == Mixing::Latent {
            let latent = Attention::Latent {
                heads,
                query_rank: self.text.optional_dimension("q_lora_rank")?,
                kv_rank: self.text.dimension("kv_lora_rank")?,
                nope_dim: self.text.dimension("qk_nope_head_dim")?,
                rope_dim: self.text.dimension("qk_rope_head_dim")?,
                value_dim: self.text.dimension("v_head_dim")?,
            };
            return Ok(AttentionPlan::uniform(latent, layers));
        }
        let kv_heads = self.or_default("num_key_value_heads", Some(defaults.kv_heads.unwrap_or(heads)))?;
        let is_derived = defaults.head_dim.is_none() && self.text.optional_dimension("head_dim")?.is_none();
        if is_derived && !hidden.is_multiple_of(heads) {
            let expected =
                format!("a multiple of num_attention_heads ({heads}), because head_dim is not set");
            return Err(self.text.invalid("hidden_size", expected));
        }
        let head_dim = self.or_default("head_dim", Some(defaults.head_dim.unwrap_or(hidden / heads)))?;
        let keys_are_values = self.text.optional_bool("attention_k_eq_v")?.unwrap_or(false);
        let global_heads = match self.text.optional_dimension("num_global_key_value_heads")? {
            Some(global) if keys_are_values => global,
            Some(_) | None => kv_heads,
        };
        for (field, kv_heads) in [
            ("num_key_value_heads", kv_heads),
            ("num_global_key_value_heads", global_heads),
        ] {
            if !heads.is_multiple_of(kv_heads) {
                let expected = format!("a divisor of num_attention_heads ({heads})");
                return Err(self.text.invalid(field, expected));
            }
        }
        let grouped = |kv_heads, head_dim, window, keys_are_values| Attention::Grouped {
            heads,
            kv_heads,
            head_dim,
            window,
            output_gate: self.family.output_gate(),
            keys_are_values,
            shares_cache: false,
        };
        let global_dim = self
            .text
            .optional_dimension("global_head_dim")?
            .unwrap_or(head_dim);
        let window = self.window()?;
        let linear = match self.family.mixing {
            Mixing::GatedDelta => Attention::GatedDelta {
                key_heads: self.text.dimension("linear_num_key_heads")?,
                key_dim: self.text.dimension("linear_key_head_dim")?,
                value_heads: self.text.dimension("linear_num_value_heads")?,
                value_dim: self.text.dimension("linear_value_head_dim")?,
            },
            Mixing::Attention(_) | Mixing::Latent => grouped(kv_heads, head_dim, None, false),
        };
        Ok(AttentionPlan {
            full: grouped(global_heads, global_dim, None, keys_are_values),
            sliding: grouped(kv_heads, head_dim, window, false),
            linear,
            kinds: self.kinds(layers, window.is_some())?,
        })
    }

    fn window(&self) -> Result<Option<u32>, FieldError> {
        // Qwen files have a window together with `use_sliding_window: false`.
        if self.text.optional_bool("use_sliding_window")? == Some(false) {
            return Ok(None);
        }
        let stated = self.text.optional_dimension("sliding_window")?;
        Ok(stated.or(self.family.defaults.window))
    }

    fn kinds(&self, layers: u32, has_window: bool) -> Result<Vec<Kind>, FieldError> {
        if let Some(types) = self.text.present("layer_types") {
            return self.stated_kinds(types, layers);
        }
        let every = |period: u32, other: Kind| {
            (0..layers)
                .map(|index| {
                    if (index + 1).is_multiple_of(period.max(1)) {
                        Kind::Full
                    } else {
                        other
                    }
                })
                .collect()
        };
        let all = |kind| vec![kind; layers as usize];
        Ok(match self.family.mixing {
            Mixing::GatedDelta => {
                let interval = self.text.optional_dimension("full_attention_interval")?;
                every(interval.unwrap_or(4), Kind::Linear)
            }
            Mixing::Latent | Mixing::Attention(Windows::Never) => all(Kind::Full),
            Mixing::Attention(_) if !has_window => all(Kind::Full),
            Mixing::Attention(Windows::Always) => all(Kind::Sliding),
            Mixing::Attention(Windows::Upper) => {
                // Without `use_sliding_window`, the model does not use the window.
                if self.text.optional_bool("use_sliding_window")? != Some(true) {
                    return Ok(all(Kind::Full));
                }
                let first = self.count("max_window_layers")?;
                (0..layers)
                    .map(|index| if index < first { Kind::Full } else { Kind::Sliding })
                    .collect()
            }
            Mixing::Attention(Windows::ExceptEvery(period)) => {
                let stated = match self.text.optional_dimension("sliding_window_pattern")? {
                    Some(stated) => Some(stated),
                    None => self.text.optional_dimension("_sliding_window_pattern")?,
                };
                every(stated.unwrap_or(period), Kind::Sliding)
            }
        })
    }

    fn stated_kinds(&self, types: &Value, layers: u32) -> Result<Vec<Kind>, FieldError> {
        let expected = || {
            self.text.invalid(
                "layer_types",
                format!(
                    "a list of {layers} entries, one per layer, of full_attention, sliding_attention, linear_attention"
                ),
            )
        };
        let types = types.as_array().ok_or_else(expected)?;
        // Files that count prediction heads as layers list them too.
        if types.len() < layers as usize {
            return Err(expected());
        }
        types
            .iter()
            .take(layers as usize)
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(Kind::Full),
                Some("sliding_attention") => Ok(Kind::Sliding),
                Some("linear_attention") => Ok(Kind::Linear),
                Some(_) | None => Err(expected()),
            })
            .collect()
    }

    fn blocks(&self) -> Result<BlockPlan, FieldError> {
        let text = &self.text;
        let routed = |experts, active, intermediate, shared_intermediate| FeedForward::Experts {
            experts,
            active,
            intermediate,
            shared_intermediate,
            matrices: GATED_MATRICES,
        };
        let dense = |intermediate| FeedForward::Dense {
            intermediate,
            matrices: GATED_MATRICES,
        };
        let all = |block| BlockPlan {
            dense: block,
            routed: block,
            routes: Routes::Never,
            shared_cache_width_factor: 1,
        };
        match self.family.blocks {
            Blocks::Dense => Ok(all(dense(text.dimension("intermediate_size")?))),
            Blocks::Routed => {
                let experts = text.dimension("num_local_experts")?;
                let active = match text.present("num_experts_per_tok") {
                    Some(_) => self.active("num_experts_per_tok", experts)?,
                    None => self.active("experts_per_token", experts)?,
                };
                Ok(all(routed(
                    experts,
                    active,
                    text.dimension("intermediate_size")?,
                    0,
                )))
            }
            Blocks::DensePlusExperts => {
                let intermediate = text.dimension("intermediate_size")?;
                // Layers that share a cache may have twice the width instead.
                let double = text.optional_bool("use_double_wide_mlp")?.unwrap_or(false);
                let plan = if text.optional_bool("enable_moe_block")?.unwrap_or(false) {
                    let experts = text.dimension("num_experts")?;
                    let active = self.active("top_k_experts", experts)?;
                    let expert = match text.optional_dimension("moe_intermediate_size")? {
                        Some(size) => size,
                        None => text.dimension("expert_intermediate_size")?,
                    };
                    all(routed(experts, active, expert, intermediate))
                } else {
                    all(dense(intermediate))
                };
                Ok(BlockPlan {
                    shared_cache_width_factor: if double { 2 } else { 1 },
                    ..plan
                })
            }
            Blocks::Sparse => {
                // Transformers 5 writes `num_local_experts`.
                let field = match text.present("num_experts") {
                    None if text.present("num_local_experts").is_some() => "num_local_experts",
                    Some(_) => "num_experts",
                    None => return Err(text.missing("num_experts")),
                };
                let experts = self.count(field)?;
                if experts == 0 {
                    return Ok(all(dense(text.dimension("intermediate_size")?)));
                }
                let step = text.optional_dimension("decoder_sparse_step")?.unwrap_or(1);
                let dense_layers = self.indices("mlp_only_layers")?;
                let routed = routed(
                    experts,
                    self.active("num_experts_per_tok", experts)?,
                    text.dimension("moe_intermediate_size")?,
                    self.count("shared_expert_intermediate_size")?,
                );
                let has_dense = step > 1 || !dense_layers.is_empty();
                Ok(BlockPlan {
                    // Models without dense layers may omit the width of dense layers.
                    dense: if has_dense {
                        dense(text.dimension("intermediate_size")?)
                    } else {
                        routed
                    },
                    routed,
                    routes: Routes::Step { step, dense_layers },
                    shared_cache_width_factor: 1,
                })
            }
            Blocks::AfterDense => {
                let experts = self.count("n_routed_experts")?;
                if experts == 0 {
                    return Ok(all(dense(text.dimension("intermediate_size")?)));
                }
                let expert = text.dimension("moe_intermediate_size")?;
                let shared = self.count("n_shared_experts")?.checked_mul(expert);
                let shared = shared
                    .ok_or_else(|| text.invalid("n_shared_experts", "a number of experts".to_owned()))?;
                let active = self.active("num_experts_per_tok", experts)?;
                Ok(BlockPlan {
                    dense: dense(text.dimension("intermediate_size")?),
                    routed: routed(experts, active, expert, shared),
                    routes: Routes::From {
                        first: self.count("first_k_dense_replace")?,
                        step: text.optional_dimension("moe_layer_freq")?.unwrap_or(1),
                    },
                    shared_cache_width_factor: 1,
                })
            }
        }
    }

    /// Returns the number of experts per token, which is at most `experts`.
    fn active(&self, field: &str, experts: u32) -> Result<u32, FieldError> {
        match self.text.dimension(field)? {
            active if active <= experts => Ok(active),
            _ => Err(self
                .text
                .invalid(field, format!("at most the number of experts ({experts})"))),
        }
    }

    fn indices(&self, field: &str) -> Result<Vec<u32>, FieldError> {
        let Some(value) = self.text.present(field) else {
            return Ok(Vec::new());
        };
        let index = |value: &Value| value.as_u64().and_then(|index| u32::try_from(index).ok());
        value
            .as_array()
            .and_then(|list| list.iter().map(index).collect())
            .ok_or_else(|| self.text.invalid(field, "a list of layer numbers".to_owned()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding,
    Linear,
}

struct AttentionPlan {
    full: Attention,
    sliding: Attention,
    linear: Attention,
    kinds: Vec<Kind>,
}

impl AttentionPlan {
    fn uniform(attention: Attention, layers: u32) -> Self {
        Self {
            full: attention,
            sliding: attention,
            linear: attention,
            kinds: vec![Kind::Full; layers as usize],
        }
    }

    fn layer(&self, index: u32) -> Attention {
        match self.kinds[index as usize] {
            Kind::Full => self.full,
            Kind::Sliding => self.sliding,
            Kind::Linear => self.linear,
        }
    }
}

struct BlockPlan {
    dense: FeedForward,
    routed: FeedForward,
    routes: Routes,
    /// Factor of the width of blocks whose layers share a cache.
    shared_cache_width_factor: u32,
}

enum Routes {
    /// All layers have the same block.
    Never,
    Step {
        step: u32,
        dense_layers: Vec<u32>,
    },
    From {
        first: u32,
        step: u32,
    },
}

impl BlockPlan {
    fn layer(&self, index: u32, shares_cache: bool) -> FeedForward {
        let is_routed = match &self.routes {
            Routes::Never => true,
            Routes::Step { step, dense_layers } => {
                (index + 1).is_multiple_of(*step) && !dense_layers.contains(&index)
            }
            Routes::From { first, step } => index >= *first && index.is_multiple_of(*step),
        };
        let block = if is_routed { self.routed } else { self.dense };
        match block {
            FeedForward::Dense {
                intermediate,
                matrices,
            } if shares_cache => FeedForward::Dense {
                intermediate: intermediate.saturating_mul(self.shared_cache_width_factor),
                matrices,
            },
            FeedForward::Dense { .. } | FeedForward::Experts { .. } => block,
        }
    }
}
