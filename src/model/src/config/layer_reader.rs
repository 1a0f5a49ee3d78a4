//! Reader of each layer's engine configuration, beyond its dimensions, from the fields of
//! `config.json`.

use serde_json::Value;

use super::architecture::{Architecture, Bias, DefaultActivation, DefaultRouter};
use super::error::{ModelConfigError, unsupported};
use super::layer::{
    Activation, AttentionConfig, DenseConfig, ExpertsConfig, FeedForwardConfig, GatedDeltaConfig,
    LayerConfig, MixerConfig, QueryKeyNorm, Router, SharedExpertConfig,
};
use super::rope::{Reach, parse_rope};
use crate::dimensions;
use crate::family::Defaults;
use crate::fields::{FieldError, Fields};

pub(super) struct LayerReader<'a> {
    pub(super) architecture: &'static Architecture,
    pub(super) defaults: Defaults,
    pub(super) text: Fields<'a>,
    pub(super) max_context_tokens: u64,
    pub(super) activation: Activation,
}

impl LayerReader<'_> {
    /// Checks head sizes beyond the checks of the dimensions.
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
            // Some families omit `head_dim` and have a default other than `hidden_size / heads`.
            None if self.defaults.head_dim.is_some() => return Ok(()),
            None if hidden % heads != 0 => {
                let expected =
                    format!("a multiple of num_attention_heads ({heads}), because head_dim is not set");
                return Err(self.text.invalid("hidden_size", expected));
            }
            None => ("hidden_size", hidden / heads),
        };
        if head_dim % 2 != 0 {
            let expected = format!("a value that results in an even head size, not {head_dim}");
            return Err(self.text.invalid(field, expected));
        }
        Ok(())
    }

    /// Rejects field values that change the output and that the engine does not implement.
    pub(super) fn check_supported(&self) -> Result<(), ModelConfigError> {
        for field in self.architecture.only_false {
            if self.flag(field)? {
                let supported = "the only supported value is false";
                return Err(unsupported(&self.text, field, supported));
            }
        }
        for field in self.architecture.only_null {
            if self.text.present(field).is_some() {
                return Err(unsupported(&self.text, field, "the only supported value is null"));
            }
        }
        Ok(())
    }

    /// Checks that the file has a window if a layer uses one.
    pub(super) fn check_windows(&self) -> Result<(), FieldError> {
        let types = self.text.present("layer_types").and_then(Value::as_array);
        let sliding = types.is_some_and(|types| types.iter().any(|kind| kind == "sliding_attention"));
        if sliding && self.text.present("sliding_window").is_none() && self.defaults.window.is_none() {
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
                    return Err(unsupported(
                        &self.text,
                        "linear_conv_kernel_dim",
                        "the only supported value is 4",
                    ));
                }
                Ok(MixerConfig::GatedDelta(GatedDeltaConfig {
                    key_heads,
                    key_dim,
                    value_heads,
                    value_dim,
                    by_head: self.architecture.delta_inputs_by_head,
                }))
            }
            dimensions::Attention::Grouped { .. } | dimensions::Attention::Latent { .. } => Err(unsupported(
                &self.text,
                "layer_types",
                "only plain attention is supported",
            )),
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
            Some(parse_rope(&self.text, architecture.rope, head_dim, max, reach)?)
        } else {
            None
        };
        let bias = self.text.optional_bool("attention_bias")?.unwrap_or(false);
        Ok(AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            scale: self.score_scale(head_dim)?,
            window,
            rope,
            fused: architecture.fused_attention,
            qkv_bias: architecture.qkv_bias.resolve(bias),
            output_bias: architecture.output_bias.resolve(bias),
            query_key_norm: match architecture.query_key_norm_field {
                Some(field) if !self.flag(field)? => QueryKeyNorm::None,
                Some(_) | None => architecture.query_key_norm,
            },
            sinks: architecture.sinks,
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
                    fused: architecture.fused_feed_forward,
                    bias: match architecture.feed_forward_bias {
                        Bias::Stated => self.flag("mlp_bias")?,
                        fixed @ (Bias::Always | Bias::Never) => fixed.resolve(false),
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
                    bias: architecture.expert_bias,
                    router: self.router(experts)?,
                    names: architecture.expert_names,
                    shared: (shared_intermediate > 0).then_some(SharedExpertConfig {
                        intermediate: shared_intermediate,
                        gated: architecture.gates_shared_expert,
                    }),
                }))
            }
        }
    }

    fn router(&self, experts: u32) -> Result<Router, ModelConfigError> {
        match self.architecture.router {
            DefaultRouter::SelectedSoftmax => Ok(Router::SelectedSoftmax),
            DefaultRouter::Sigmoid => {
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
            DefaultRouter::Softmax { renormalizes } => Ok(Router::Softmax {
                renormalizes: self.text.optional_bool("norm_topk_prob")?.unwrap_or(renormalizes),
            }),
        }
    }

    /// Returns one over the square root of the head size, or of the configured scalar. The result
    /// is rounded once, like a Python float that is passed to MLX.
    fn score_scale(&self, head_dim: u32) -> Result<f32, ModelConfigError> {
        let scalar = match self.architecture.query_scalar {
            Some(default) => {
                let stated = self.text.optional_positive_float("query_pre_attn_scalar")?;
                f64::from(stated.unwrap_or(default))
            }
            None => f64::from(head_dim),
        };
        Ok(scalar.powf(-0.5) as f32)
    }

    /// Returns whether the layer has rotary embedding. Some families omit it in every n-th layer,
    /// or in layers whose entry of `no_rope_layers` is 0.
    fn rotates(&self, index: usize) -> Result<bool, ModelConfigError> {
        let Some(default) = self.architecture.unrotated_interval else {
            return Ok(true);
        };
        let Some(stated) = self.text.present("no_rope_layers") else {
            let interval = self
                .text
                .optional_dimension("no_rope_layer_interval")?
                .unwrap_or(default);
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

pub(super) fn parse_activation(
    text: &Fields<'_>,
    architecture: &Architecture,
) -> Result<Activation, ModelConfigError> {
    let DefaultActivation {
        field,
        name: default,
        activation,
    } = architecture.activation;
    let activation = match activation {
        Activation::ClampedSilu { limit } => Activation::ClampedSilu {
            limit: text.optional_positive_float("swiglu_limit")?.unwrap_or(limit),
        },
        Activation::Silu | Activation::GeluTanh => activation,
    };
    match text.optional_text(field)? {
        Some(name) if name != default => Err(unsupported(
            text,
            field,
            &format!("the only supported value is {default}"),
        )),
        Some(_) | None => Ok(activation),
    }
}
