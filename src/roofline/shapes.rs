//! Model dimensions in the terse form of published shape tables: one JSON object per model, such as
//! `{"L": 32, "d": 4096, "ff": 11008, "nh": 32, "nkv": 32, "hd": 128, "V": 32000, "mats": 3, "tied": 0}`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::dimensions::{Attention, FeedForward, Layer, ModelDimensions};

/// Shapes by model name.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct ShapeFile(BTreeMap<String, Shape>);

/// One model. Field names are the table's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    /// Layers, width, vocabulary, width of the dense block.
    #[serde(rename = "L")]
    layers: u32,
    d: u32,
    #[serde(rename = "V")]
    vocabulary: u32,
    #[serde(default)]
    ff: u32,
    mats: u32,
    #[serde(default)]
    tied: u32,
    /// Query heads, KV heads, their width.
    nh: u32,
    nkv: u32,
    hd: u32,
    /// Window of the sliding layers; every `glob`-th layer is global, with `gkv` heads of width `ghd`.
    win: Option<u32>,
    glob: Option<u32>,
    ghd: Option<u32>,
    gkv: Option<u32>,
    #[serde(default)]
    kv_shared_global: u32,
    #[serde(default)]
    qgate: u32,
    mla: Option<Latent>,
    lin: Option<Linear>,
    /// Experts, active ones, their width, that of the shared ones; leading dense layers and their width.
    #[serde(rename = "E", default)]
    experts: u32,
    #[serde(default)]
    k: u32,
    #[serde(default)]
    eff: u32,
    #[serde(default)]
    sff: u32,
    #[serde(default)]
    dense_first: u32,
    dff: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Latent {
    kv: u32,
    nope: u32,
    /// 0: queries are not compressed.
    q: u32,
    rope: u32,
    v: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Linear {
    /// Every so-manieth layer has softmax attention, the others are linear.
    every: u32,
    kd: u32,
    kh: u32,
    vd: u32,
    vh: u32,
}

/// Why a shape cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShapeError {
    #[error("not a table of model shapes")]
    Invalid {
        #[source]
        err: serde_json::Error,
    },
    #[error("there is no shape `{name}`; there are: {known}")]
    Unknown { name: String, known: String },
}

impl ShapeFile {
    pub(crate) fn parse(text: &str) -> Result<Self, ShapeError> {
        serde_json::from_str(text).map_err(|err| ShapeError::Invalid { err })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn dimensions(&self, name: &str) -> Result<ModelDimensions, ShapeError> {
        self.0
            .get(name)
            .map(Shape::dimensions)
            .ok_or_else(|| ShapeError::Unknown {
                name: name.to_owned(),
                known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
            })
    }
}

impl Shape {
    fn dimensions(&self) -> ModelDimensions {
        ModelDimensions {
            hidden: self.d,
            vocabulary: self.vocabulary,
            tied_embeddings: self.tied != 0,
            per_layer_inputs: None,
            layers: (0..self.layers)
                .map(|index| Layer {
                    attention: self.attention(index),
                    feed_forward: self.feed_forward(index),
                })
                .collect(),
        }
    }

    fn attention(&self, index: u32) -> Attention {
        let last_of = |period: u32| (index + 1).is_multiple_of(period.max(1));
        if let Some(mla) = &self.mla {
            return Attention::Latent {
                heads: self.nh,
                query_rank: Some(mla.q).filter(|rank| *rank > 0),
                kv_rank: mla.kv,
                nope_dim: mla.nope,
                rope_dim: mla.rope,
                value_dim: mla.v,
            };
        }
        if let Some(lin) = &self.lin
            && !last_of(lin.every)
        {
            return Attention::GatedDelta {
                key_heads: lin.kh,
                key_dim: lin.kd,
                value_heads: lin.vh,
                value_dim: lin.vd,
            };
        }
        let global = self.win.is_none() || self.glob.is_some_and(last_of);
        let global_kind = global && self.win.is_some();
        Attention::Grouped {
            heads: self.nh,
            kv_heads: self.gkv.filter(|_| global_kind).unwrap_or(self.nkv),
            head_dim: self.ghd.filter(|_| global_kind).unwrap_or(self.hd),
            window: self.win.filter(|_| !global),
            output_gate: self.qgate != 0,
            keys_are_values: global_kind && self.kv_shared_global != 0,
            shares_cache: false,
        }
    }

    fn feed_forward(&self, index: u32) -> FeedForward {
        if self.experts == 0 || index < self.dense_first {
            return FeedForward::Dense {
                intermediate: self.dff.filter(|_| self.experts > 0).unwrap_or(self.ff),
                matrices: self.mats,
            };
        }
        FeedForward::Experts {
            experts: self.experts,
            active: self.k,
            intermediate: self.eff,
            shared_intermediate: self.sff,
            matrices: self.mats,
        }
    }
}
