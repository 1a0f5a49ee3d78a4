//! One decoder block: attention and a feed-forward part, each normalised before or after it, or both, and added to the
//! stream.

use mlx_rs::error::Result;
use mlx_rs::ops::add;
use mlx_rs::{Array, Dtype};

use super::attention::Attention;
use super::cache::LayerRows;
use super::feed_forward::FeedForward;
use super::mask::Masks;
use super::norm::RmsNorm;
use super::rope::RotaryEmbedding;
use crate::mlx::load::{LoadError, Weights};
use crate::roofline::checkpoint::ModelShape;
use crate::roofline::model::LayerConfig;

/// The largest number of half precision.
const F16_MAX: f32 = 65_504.0;

/// One layer of the decoder.
#[derive(Debug)]
pub(crate) struct Block {
    before_attention: Option<RmsNorm>,
    attention: Attention,
    after_attention: Option<RmsNorm>,
    before_feed_forward: Option<RmsNorm>,
    feed_forward: FeedForward,
    after_feed_forward: Option<RmsNorm>,
    /// Sums are kept within half precision, where the model computes in it.
    clips: bool,
}

impl Block {
    pub(crate) fn load(
        module: &str,
        config: &LayerConfig,
        rope: Option<RotaryEmbedding>,
        shape: &ModelShape,
        weights: &mut Weights,
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
            attention: Attention::load(&at("self_attn"), &config.attention, rope, shape, weights)?,
            feed_forward: FeedForward::load(&at("mlp"), &config.feed_forward, shape, weights)?,
            clips: shape.config.clips_residuals && weights.compute() == Dtype::Float16,
        })
    }

    pub(crate) fn apply(&self, x: &Array, rows: LayerRows<'_>, masks: &mut Masks) -> Result<Array> {
        let attended = match &self.before_attention {
            Some(norm) => self.attention.apply(&norm.apply(x)?, rows, masks)?,
            None => self.attention.apply(x, rows, masks)?,
        };
        let x = self.add(x, attended, self.after_attention.as_ref())?;
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
        mlx_rs::ops::clip(sum, (&bounds.0, &bounds.1))?.as_dtype(Dtype::Float16)
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        let norms = [
            &self.before_attention,
            &self.after_attention,
            &self.before_feed_forward,
            &self.after_feed_forward,
        ];
        let mut arrays: Vec<&Array> = norms.into_iter().flatten().map(RmsNorm::array).collect();
        arrays.extend(self.attention.arrays());
        arrays.extend(self.feed_forward.arrays());
        arrays
    }
}
