//! What an engine needs to know of each layer beside its dimensions, from the fields of `config.json`.

use serde_json::Value;

use super::architecture::Architecture;
use super::layer::{
    Activation, AttentionConfig, DenseConfig, ExpertNames, ExpertsConfig, FeedForwardConfig,
    GatedDeltaConfig, LayerConfig, MixerConfig, QueryKeyNorm, Router, SharedExpertConfig,
};
use super::rope::{Reach, parse_rope};
use super::{ModelConfigError, unsupported};
use crate::dimensions;
use crate::fields::{FieldError, Fields};

/// See the module.
pub(super) struct LayerReader<'a> {
    pub(super) architecture: Architecture,
    pub(super) text: Fields<'a>,
    pub(super) max_context_tokens: u64,
    pub(super) activation: Activation,
}

impl LayerReader<'_> {
    /// What dimensions alone do not need.
    pub(super) fn check_heads(&self) -> Result<(), FieldError> {
        let Some(heads) = self.text.optional_dimension("num_attention_heads")? else {
            return Ok(());
        };
        if let Some(kv_heads) = self.text.optional_dimension("num_key_value_heads")?
            && heads % kv_heads != 0
        {
            let expected = format!("a divisor of num_attention_heads ({heads})");
            return Err(self.text.invalid("num_key_value_heads", expected));
        }
        let hidden = self.text.dimension("hidden_size")?;
        let (field, head_dim) = match self.text.optional_dimension("head_dim")? {
            Some(head_dim) => ("head_dim", head_dim),
            None if self.has_own_head_dim() => return Ok(()),
            None if hidden % heads != 0 => {
                let expected =
                    format!("a multiple of num_attention_heads ({heads}), as head_dim is not given");
                return Err(self.text.invalid("hidden_size", expected));
            }
            None => ("hidden_size", hidden / heads),
        };
        if head_dim % 2 != 0 {
            let expected = format!("one that makes an even head size, not {head_dim}");
            return Err(self.text.invalid(field, expected));
        }
        Ok(())
    }

    /// Files may leave it out and mean another size than what the heads share.
    fn has_own_head_dim(&self) -> bool {
        match self.architecture {
            Architecture::Gemma3Text
            | Architecture::Qwen35
            | Architecture::Qwen35Moe
            | Architecture::Qwen3Next => true,
            Architecture::Glm4
            | Architecture::Glm4Moe
            | Architecture::GptOss
            | Architecture::Llama
            | Architecture::Mistral
            | Architecture::Olmo2
            | Architecture::Phi3
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::SmolLm3 => false,
        }
    }

    /// What Gemma 3's class has beside what its published models use: answers would be others without.
    pub(super) fn refuse_changes(&self) -> Result<(), ModelConfigError> {
        if self.architecture != Architecture::Gemma3Text {
            return Ok(());
        }
        if self.flag("use_bidirectional_attention")? {
            return Err(unsupported(
                &self.text,
                "use_bidirectional_attention",
                "only false is, where a model makes text",
            ));
        }
        for field in ["final_logit_softcapping", "attn_logit_softcapping"] {
            if self.text.present(field).is_some() {
                return Err(unsupported(&self.text, field, "only null is"));
            }
        }
        Ok(())
    }

    /// Layers that are said to have a window have one.
    pub(super) fn check_windows(&self) -> Result<(), FieldError> {
        let types = self.text.present("layer_types").and_then(Value::as_array);
        let sliding = types.is_some_and(|types| types.iter().any(|kind| kind == "sliding_attention"));
        if sliding
            && self.text.present("sliding_window").is_none()
            && self.architecture != Architecture::Gemma3Text
        {
            return Err(self.text.missing("sliding_window"));
        }
        Ok(())
    }

    pub(super) fn layer(
        &self,
        index: usize,
        layer: &dimensions::Layer,
    ) -> Result<LayerConfig, ModelConfigError> {
        Ok(LayerConfig {
            mixer: self.mixer(index, &layer.attention)?,
            feed_forward: self.feed_forward(&layer.feed_forward)?,
        })
    }

    fn mixer(
        &self,
        index: usize,
        attention: &dimensions::Attention,
    ) -> Result<MixerConfig, ModelConfigError> {
        match *attention {
            dimensions::Attention::Grouped {
                heads,
                kv_heads,
                head_dim,
                window,
                output_gate,
                keys_are_values: false,
                shares_cache: false,
            } => {
                let heads = (heads, kv_heads, head_dim);
                let attention = self.attention(index, heads, window, output_gate)?;
                Ok(MixerConfig::Attention(attention))
            }
            dimensions::Attention::GatedDelta {
                key_heads,
                key_dim,
                value_heads,
                value_dim,
            } => {
                if !value_heads.is_multiple_of(key_heads) {
                    let expected = format!("a multiple of linear_num_key_heads ({key_heads})");
                    return Err(self.text.invalid("linear_num_value_heads", expected).into());
                }
                if self
                    .text
                    .optional_dimension("linear_conv_kernel_dim")?
                    .unwrap_or(4)
                    != 4
                {
                    return Err(unsupported(&self.text, "linear_conv_kernel_dim", "only 4 is"));
                }
                Ok(MixerConfig::GatedDelta(GatedDeltaConfig {
                    key_heads,
                    key_dim,
                    value_heads,
                    value_dim,
                    by_head: self.architecture == Architecture::Qwen3Next,
                }))
            }
            dimensions::Attention::Grouped { .. } | dimensions::Attention::Latent { .. } => {
                Err(unsupported(&self.text, "layer_types", "only plain attention is"))
            }
        }
    }

    fn attention(
        &self,
        index: usize,
        (heads, kv_heads, head_dim): (u32, u32, u32),
        window: Option<u32>,
        output_gate: bool,
    ) -> Result<AttentionConfig, ModelConfigError> {
        let architecture = self.architecture;
        let reach = if window.is_some() {
            Reach::Window
        } else {
            Reach::Full
        };
        let rope = if self.rotates(index)? {
            let max = self.max_context_tokens;
            Some(parse_rope(&self.text, architecture, head_dim, max, reach)?)
        } else {
            None
        };
        let bias = self.text.optional_bool("attention_bias")?.unwrap_or(false);
        let (qkv_bias, output_bias) = match architecture {
            Architecture::Gemma3Text
            | Architecture::Llama
            | Architecture::Mistral
            | Architecture::Olmo2
            | Architecture::Qwen3
            | Architecture::Qwen35
            | Architecture::Qwen35Moe
            | Architecture::Qwen3Moe
            | Architecture::Qwen3Next
            | Architecture::SmolLm3 => (bias, bias),
            Architecture::Glm4 | Architecture::Glm4Moe => (bias, false),
            // The configuration of the published files says so, and its class takes it for granted.
            Architecture::GptOss => (true, true),
            Architecture::Phi3 => (false, false),
            // Qwen2 has them always and its configuration does not mention them.
            Architecture::Qwen2 => (true, false),
        };
        Ok(AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            scale: self.score_scale(head_dim)?,
            window,
            rope,
            fused: architecture == Architecture::Phi3,
            qkv_bias,
            output_bias,
            query_key_norm: match architecture {
                Architecture::Gemma3Text
                | Architecture::Qwen3
                | Architecture::Qwen35
                | Architecture::Qwen35Moe
                | Architecture::Qwen3Moe
                | Architecture::Qwen3Next => QueryKeyNorm::Head,
                Architecture::Glm4Moe if self.flag("use_qk_norm")? => QueryKeyNorm::Head,
                Architecture::Olmo2 => QueryKeyNorm::Full,
                Architecture::Glm4
                | Architecture::Glm4Moe
                | Architecture::GptOss
                | Architecture::Llama
                | Architecture::Mistral
                | Architecture::Phi3
                | Architecture::Qwen2
                | Architecture::SmolLm3 => QueryKeyNorm::None,
            },
            sinks: architecture == Architecture::GptOss,
            output_gate,
        })
    }

    fn flag(&self, field: &str) -> Result<bool, FieldError> {
        Ok(self.text.optional_bool(field)?.unwrap_or(false))
    }

    fn feed_forward(
        &self,
        dimensions: &dimensions::FeedForward,
    ) -> Result<FeedForwardConfig, ModelConfigError> {
        let architecture = self.architecture;
        match *dimensions {
            dimensions::FeedForward::Dense { intermediate, .. } => {
                Ok(FeedForwardConfig::Dense(DenseConfig {
                    intermediate,
                    activation: self.activation,
                    fused: matches!(architecture, Architecture::Glm4 | Architecture::Phi3),
                    bias: match architecture {
                        Architecture::Llama | Architecture::Mistral | Architecture::SmolLm3 => {
                            self.flag("mlp_bias")?
                        }
                        Architecture::Gemma3Text
                        | Architecture::Glm4
                        | Architecture::Glm4Moe
                        | Architecture::GptOss
                        | Architecture::Olmo2
                        | Architecture::Phi3
                        | Architecture::Qwen2
                        | Architecture::Qwen3
                        | Architecture::Qwen35
                        | Architecture::Qwen35Moe
                        | Architecture::Qwen3Moe
                        | Architecture::Qwen3Next => false,
                    },
                }))
            }
            dimensions::FeedForward::Experts {
                experts,
                active,
                intermediate,
                shared_intermediate,
                ..
            } => {
                if active > experts {
                    let expected = format!("at most the number of experts ({experts})");
                    return Err(self.text.invalid("num_experts_per_tok", expected).into());
                }
                Ok(FeedForwardConfig::Experts(ExpertsConfig {
                    experts,
                    active,
                    intermediate,
                    activation: self.activation,
                    bias: architecture == Architecture::GptOss,
                    router: self.router(experts)?,
                    names: expert_names(architecture),
                    shared: (shared_intermediate > 0).then_some(SharedExpertConfig {
                        intermediate: shared_intermediate,
                        gated: architecture != Architecture::Glm4Moe,
                    }),
                }))
            }
        }
    }

    fn router(&self, experts: u32) -> Result<Router, ModelConfigError> {
        match self.architecture {
            Architecture::GptOss => Ok(Router::ChosenSoftmax),
            Architecture::Glm4Moe => {
                let groups = self.text.optional_dimension("n_group")?.unwrap_or(1);
                if !experts.is_multiple_of(groups) {
                    let expected = format!("a divisor of n_routed_experts ({experts})");
                    return Err(self.text.invalid("n_group", expected).into());
                }
                let chosen_groups = self.text.optional_dimension("topk_group")?.unwrap_or(1);
                if chosen_groups > groups {
                    let expected = format!("at most n_group ({groups})");
                    return Err(self.text.invalid("topk_group", expected).into());
                }
                Ok(Router::Sigmoid {
                    renormalizes: self.text.optional_bool("norm_topk_prob")?.unwrap_or(true),
                    scale: self
                        .text
                        .optional_positive_float("routed_scaling_factor")?
                        .unwrap_or(1.0),
                    groups,
                    chosen_groups,
                })
            }
            Architecture::Gemma3Text
            | Architecture::Glm4
            | Architecture::Llama
            | Architecture::Mistral
            | Architecture::Olmo2
            | Architecture::Phi3
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Qwen3Next
            | Architecture::SmolLm3 => Ok(Router::Softmax {
                renormalizes: self.flag("norm_topk_prob")?,
            }),
            Architecture::Qwen35 | Architecture::Qwen35Moe => Ok(Router::Softmax {
                renormalizes: self.text.optional_bool("norm_topk_prob")?.unwrap_or(true),
            }),
        }
    }

    /// One over the root of the head's size, or of what the file names instead; rounded once, as Python's float handed
    /// to MLX is.
    fn score_scale(&self, head_dim: u32) -> Result<f32, ModelConfigError> {
        let scalar = match self.architecture {
            Architecture::Gemma3Text => {
                let stated = self.text.optional_positive_float("query_pre_attn_scalar")?;
                f64::from(stated.unwrap_or(256.0))
            }
            Architecture::Glm4
            | Architecture::Glm4Moe
            | Architecture::GptOss
            | Architecture::Llama
            | Architecture::Mistral
            | Architecture::Olmo2
            | Architecture::Phi3
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen35
            | Architecture::Qwen35Moe
            | Architecture::Qwen3Moe
            | Architecture::Qwen3Next
            | Architecture::SmolLm3 => f64::from(head_dim),
        };
        Ok(scalar.powf(-0.5) as f32)
    }

    /// SmolLM3 rotates nothing in every fourth layer, or in those whose entry of `no_rope_layers` is 0.
    fn rotates(&self, index: usize) -> Result<bool, ModelConfigError> {
        if self.architecture != Architecture::SmolLm3 {
            return Ok(true);
        }
        let Some(stated) = self.text.present("no_rope_layers") else {
            let interval = self
                .text
                .optional_dimension("no_rope_layer_interval")?
                .unwrap_or(4);
            return Ok(!(index + 1).is_multiple_of(interval as usize));
        };
        let entry = stated.as_array().and_then(|layers| layers.get(index));
        let rotates = entry.and_then(|entry| entry.as_u64().or(entry.as_bool().map(u64::from)));
        rotates.map(|rotates| rotates != 0).ok_or_else(|| {
            let expected = "a list of 0 and 1, one for each layer".to_owned();
            self.text.invalid("no_rope_layers", expected).into()
        })
    }
}

fn expert_names(architecture: Architecture) -> ExpertNames {
    match architecture {
        Architecture::GptOss => ExpertNames {
            router: "router",
            experts: "experts",
            shared: "shared_experts",
        },
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => ExpertNames {
            router: "gate",
            experts: "switch_mlp",
            shared: "shared_expert",
        },
        Architecture::Gemma3Text
        | Architecture::Glm4
        | Architecture::Glm4Moe
        | Architecture::Llama
        | Architecture::Mistral
        | Architecture::Olmo2
        | Architecture::Phi3
        | Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::SmolLm3 => ExpertNames {
            router: "gate",
            experts: "switch_mlp",
            shared: "shared_experts",
        },
    }
}

pub(super) fn parse_activation(
    text: &Fields<'_>,
    architecture: Architecture,
) -> Result<Activation, ModelConfigError> {
    let (field, default, activation) = match architecture {
        Architecture::Gemma3Text => ("hidden_activation", "gelu_pytorch_tanh", Activation::GeluTanh),
        Architecture::GptOss => {
            let limit = text.optional_positive_float("swiglu_limit")?.unwrap_or(7.0);
            ("hidden_act", "silu", Activation::ClampedSilu { limit })
        }
        Architecture::Glm4
        | Architecture::Glm4Moe
        | Architecture::Llama
        | Architecture::Mistral
        | Architecture::Olmo2
        | Architecture::Phi3
        | Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Qwen35
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Moe
        | Architecture::Qwen3Next
        | Architecture::SmolLm3 => ("hidden_act", "silu", Activation::Silu),
    };
    match text.optional_text(field)? {
        Some(name) if name != default => Err(unsupported(text, field, &format!("only {default} is"))),
        Some(_) | None => Ok(activation),
    }
}
