//! Decoder block: a token mixer (attention or gated delta) and a feed-forward part. Each of them
//! has a norm before it, after it, or both, and its output is added to the residual stream.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::add;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::attention::Attention;
use super::cache::LayerRows;
use super::feed_forward::FeedForward;
use super::gated_delta::GatedDelta;
use super::kernels::Kernels;
use super::mask::Masks;
use super::norm::RmsNorm;
use super::rope::RotaryEmbedding;
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::{LayerConfig, MixerConfig};

/// Largest value of half precision.
const F16_MAX: f32 = 65_504.0;

/// Token mixer of a layer.
#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    GatedDelta(Box<GatedDelta>),
}

impl Mixer {
    fn load(
        module: &str,
        config: &MixerConfig,
        rope: Option<RotaryEmbedding>,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        Ok(match config {
            MixerConfig::Attention(config) => {
                let module = format!("{module}.self_attn");
                Self::Attention(Box::new(Attention::load(&module, config, rope, shape, weights)?))
            }
            MixerConfig::GatedDelta(config) => {
                let module = format!("{module}.linear_attn");
                Self::GatedDelta(Box::new(GatedDelta::load(
                    &module, config, shape, weights, kernels,
                )?))
            }
        })
    }

    fn apply(&self, x: &Array, rows: LayerRows<'_>, masks: &mut Masks) -> Result<Array> {
        match self {
            Self::Attention(attention) => attention.apply(x, rows, masks),
            Self::GatedDelta(delta) => delta.apply(x, rows),
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Attention(attention) => attention.arrays(),
            Self::GatedDelta(delta) => delta.arrays(),
        }
    }
}

/// Layer of the decoder.
#[derive(Debug)]
pub(super) struct Block {
    before_attention: Option<RmsNorm>,
    mixer: Mixer,
    after_attention: Option<RmsNorm>,
    before_feed_forward: Option<RmsNorm>,
    feed_forward: FeedForward,
    after_feed_forward: Option<RmsNorm>,
    /// Set if sums are clipped to the range of half precision, in which the model computes.
    clips: bool,
}

impl Block {
    pub(super) fn load(
        module: &str,
        config: &LayerConfig,
        rope: Option<RotaryEmbedding>,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        let at = |part: &str| format!("{module}.{part}");
        let norms = shape.config.block_norms;
        let mut norm = |name: Option<&str>| {
            name.map(|name| RmsNorm::load(&at(&format!("{name}.weight")), &shape.config, weights))
                .transpose()
        };
        Ok(Self {
            before_attention: norm(norms.before_attention)?,
            after_attention: norm(norms.after_attention)?,
            before_feed_forward: norm(norms.before_feed_forward)?,
            after_feed_forward: norm(norms.after_feed_forward)?,
            mixer: Mixer::load(module, &config.mixer, rope, shape, weights, kernels)?,
            feed_forward: FeedForward::load(&at("mlp"), &config.feed_forward, shape, weights, kernels)?,
            clips: shape.config.clips_residuals && weights.compute() == Dtype::Float16,
        })
    }

    pub(super) fn apply(&self, x: &Array, rows: LayerRows<'_>, masks: &mut Masks) -> Result<Array> {
        let needed = rows.select_needed(x)?;
        let attended = match &self.before_attention {
            Some(norm) => self.mixer.apply(&norm.apply(x)?, rows, masks)?,
            None => self.mixer.apply(x, rows, masks)?,
        };
        let x = self.add(&needed, attended, self.after_attention.as_ref())?;
        let transformed = match &self.before_feed_forward {
            Some(norm) => self.feed_forward.apply(&norm.apply(&x)?)?,
            None => self.feed_forward.apply(&x)?,
        };
        self.add(&x, transformed, self.after_feed_forward.as_ref())
    }

    fn add(&self, x: &Array, change: Array, norm: Option<&RmsNorm>) -> Result<Array> {
        let change = match norm {
            Some(norm) => norm.apply(&change)?,
            None => change,
        };
        if !self.clips {
            return add(x, change);
        }
        let sum = x
            .as_dtype(Dtype::Float32)?
            .add(change.as_dtype(Dtype::Float32)?)?;
        let bounds = (Array::from_f32(-F16_MAX), Array::from_f32(F16_MAX));
        rooflet_mlx::mlx_rs::ops::clip(sum, (&bounds.0, &bounds.1))?.as_dtype(Dtype::Float16)
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let norms = [
            &self.before_attention,
            &self.after_attention,
            &self.before_feed_forward,
            &self.after_feed_forward,
        ];
        let mut arrays: Vec<&Array> = norms.into_iter().flatten().map(RmsNorm::array).collect();
        arrays.extend(self.mixer.arrays());
        arrays.extend(self.feed_forward.arrays());
        arrays
    }
}
