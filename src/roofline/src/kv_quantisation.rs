//! Quantised KV caches: supported models and sizes. The engine's layers implement the arithmetic;
//! admission and placement need only the size.

use crate::memory::ServedModel;
use rooflet_model::config::{MixerConfig, ModelConfig};
use rooflet_model::dimensions::{Attention, ModelDimensions};
use rooflet_model::kv_cache::KvBits;

/// Numbers of elements that may share a scale and a bias, in order of preference. Larger groups
/// save little; smaller ones add a bit per element. MLX has kernels for these sizes.
const GROUPS: [u32; 2] = [64, 32];

/// Value of `spec.serving.kvCache.bits` for a cache in the engine's own type, which has 16 bits on
/// a Mac.
pub const UNQUANTISED_BITS: u32 = 16;

/// Quantisation of keys and values: groups of a head's elements with a scale and a bias, as in
/// MLX's quantised matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvQuantisation {
    bits: u32,
    group: u32,
}

/// Reason why a model's cache cannot be quantised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvQuantisationError {
    #[error("a KV cache of {0} bits is not supported; use 4 or 8 bits, or no value for the model's own type")]
    Bits(u32),
    #[error(
        "the KV cache of this model cannot be quantised: {0} of its layers keep a sliding window of tokens"
    )]
    Windows(usize),
    #[error("the KV cache of this model cannot be quantised: {0} of its layers have attention sinks")]
    Sinks(usize),
    #[error("the KV cache of this model cannot be quantised: {0} of its layers keep latent vectors")]
    Latent(usize),
    #[error(
        "the KV cache of this model cannot be quantised: its heads have {0} elements, which is not a multiple of 32"
    )]
    HeadDim(u32),
}

/// Properties of a layer with a cache.
struct Cached {
    head_dim: u32,
    has_window: bool,
    sinks: bool,
}

impl KvQuantisation {
    /// Selects the quantisation for a model that the engine can run.
    pub fn new(bits: u32, config: &ModelConfig) -> Result<Self, KvQuantisationError> {
        let cached = config.layers.iter().filter_map(|layer| match &layer.mixer {
            MixerConfig::Attention(attention) => Some(Cached {
                head_dim: attention.head_dim,
                has_window: attention.window.is_some(),
                sinks: attention.sinks,
            }),
            // The recurrent state is not quantised.
            MixerConfig::GatedDelta(_) => None,
        });
        Self::of_layers(bits, &cached.collect::<Vec<_>>())
    }

    /// Selects the quantisation for a model of which only the dimensions are known. The dimensions
    /// do not include attention sinks, so the worker checks again when it loads the model.
    pub fn of_dimensions(bits: u32, dimensions: &ModelDimensions) -> Result<Self, KvQuantisationError> {
        let mut latent = 0;
        let mut cached = Vec::new();
        for layer in &dimensions.layers {
            match layer.attention {
                Attention::Grouped { head_dim, window, .. } => cached.push(Cached {
                    head_dim,
                    has_window: window.is_some(),
                    sinks: false,
                }),
                Attention::Latent { .. } => latent += 1,
                Attention::GatedDelta { .. } => {}
            }
        }
        if latent > 0 {
            return Err(KvQuantisationError::Latent(latent));
        }
        Self::of_layers(bits, &cached)
    }

    fn of_layers(bits: u32, layers: &[Cached]) -> Result<Self, KvQuantisationError> {
        if !matches!(bits, 4 | 8) {
            return Err(KvQuantisationError::Bits(bits));
        }
        let count = |is: fn(&&Cached) -> bool| layers.iter().filter(is).count();
        let (sinks, windows) = (count(|layer| layer.sinks), count(|layer| layer.has_window));
        if sinks > 0 {
            return Err(KvQuantisationError::Sinks(sinks));
        }
        if windows > 0 {
            return Err(KvQuantisationError::Windows(windows));
        }
        let divides = |group: &u32| layers.iter().all(|layer| layer.head_dim % group == 0);
        if let Some(group) = GROUPS.into_iter().find(divides) {
            return Ok(Self { bits, group });
        }
        let [.., smallest] = GROUPS;
        let odd = layers.iter().find(|layer| layer.head_dim % smallest != 0);
        Err(KvQuantisationError::HeadDim(
            odd.map_or(0, |layer| layer.head_dim),
        ))
    }

    /// Returns the bits of an element, without its share of scale and bias.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the number of elements that share a scale and a bias.
    pub fn group(self) -> u32 {
        self.group
    }

    /// Returns the bits of an element including its share of a scale and a bias of `element_bits`
    /// each.
    pub fn stored_bits(self, element_bits: f64) -> KvBits {
        KvBits(f64::from(self.bits) + 2.0 * element_bits / f64::from(self.group))
    }
}

impl ServedModel {
    /// Returns the model with a quantised KV cache. `None` if its cache is already quantised or
    /// cannot be.
    pub(super) fn quantised(&self, bits: u32) -> Option<Self> {
        let unquantised = self.kv_bits == KvBits::new(16) || self.kv_bits == KvBits::new(32);
        let quantised = unquantised.then(|| self.clone().with_kv_bits(Some(bits)));
        quantised.and_then(Result::ok)
    }

    /// Returns the model with the KV cache of `spec.serving.kvCache.bits`. `None` is the engine's
    /// own type.
    pub fn with_kv_bits(self, bits: Option<u32>) -> Result<Self, KvQuantisationError> {
        let Some(bits) = bits.filter(|bits| *bits != UNQUANTISED_BITS) else {
            return Ok(self);
        };
        let quantisation = KvQuantisation::of_dimensions(bits, &self.cost.dimensions)?;
        Ok(Self {
            kv_bits: quantisation.stored_bits(self.kv_bits.0),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Demand, Reservation};
    use crate::predict::ModelCost;
    use rooflet_model::library;
    use rooflet_model::weights::Weights;

    fn model(name: &str) -> ServedModel {
        let found = library::find(&format!("{name}-4bit"), None).unwrap();
        ServedModel {
            cost: ModelCost {
                weights: Weights::estimate(&found.dimensions, found.format),
                dimensions: found.dimensions,
            },
            kv_bits: KvBits::HALF,
        }
    }

    /// Qwen3-8B has 36 layers of 8 KV heads of 128 elements, 144 KiB per token in 16 bits. Groups
    /// of 64 with a scale and a bias of 16 bits result in 8.5 and 4.5 bits.
    #[test]
    fn reservation_is_proportional_to_the_bits() {
        let demand = Demand {
            context_tokens: 16_384,
            max_concurrency: 4,
        };
        let plain = model("qwen3-8b");
        let reserved = |bits| {
            let served = plain.clone().with_kv_bits(bits).unwrap();
            Reservation::new(&served, demand).kv_cache.0
        };
        let whole = 147_456 * 16_384 * 4;
        assert_eq!(reserved(None), whole);
        assert_eq!(reserved(Some(16)), whole);
        assert_eq!(reserved(Some(8)), whole * 17 / 32);
        assert_eq!(reserved(Some(4)), whole * 9 / 32);
    }

    #[test]
    fn scales_have_the_width_of_the_computation() {
        let mut wide = model("qwen3-8b");
        wide.kv_bits = KvBits::new(32);
        assert_eq!(wide.with_kv_bits(Some(8)).unwrap().kv_bits, KvBits(9.0));
    }

    /// The heads of Phi-3-mini have 96 elements.
    #[test]
    fn head_size_determines_the_group() {
        let of = |head_dim| {
            let cached = Cached {
                head_dim,
                has_window: false,
                sinks: false,
            };
            KvQuantisation::of_layers(8, &[cached])
        };
        assert_eq!(of(128).unwrap().group(), 64);
        assert_eq!(of(96).unwrap().group(), 32);
        assert_eq!(of(96).unwrap().stored_bits(16.0), KvBits(9.0));
        assert_eq!(of(80).unwrap_err(), KvQuantisationError::HeadDim(80));
    }

    #[test]
    fn errors_name_the_reason_why_a_cache_cannot_be_quantised() {
        let error = |bits, name| model(name).with_kv_bits(Some(bits)).unwrap_err();
        assert_eq!(error(6, "qwen3-8b"), KvQuantisationError::Bits(6));
        assert!(matches!(error(8, "gemma3-12b"), KvQuantisationError::Windows(_)));
        assert!(matches!(error(8, "kimi-k2"), KvQuantisationError::Latent(_)));

        let config = |name: &str| {
            let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/fixtures/models");
            let text = std::fs::read_to_string(format!("{models}/{name}/config.json")).unwrap();
            ModelConfig::parse(&text).unwrap()
        };
        let error = |bits, name| KvQuantisation::new(bits, &config(name)).unwrap_err();
        assert!(matches!(error(8, "gpt-oss"), KvQuantisationError::Sinks(_)));
        assert_eq!(error(4, "qwen3"), KvQuantisationError::HeadDim(16));
        let text = error(8, "gemma3").to_string();
        assert!(text.contains("sliding window"), "{text}");
    }
}
