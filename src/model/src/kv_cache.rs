//! Size of the KV cache, in bytes.

use rooflet_base::units::Bytes;

use crate::config::{FloatType, MixerConfig, ModelConfig};
use crate::dimensions::{Attention, CONVOLUTION_WIDTH, ModelDimensions, wide};

/// Bits of one element of the KV cache, including the scales of a quantised cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvBits(pub f64);

impl KvBits {
    pub const HALF: Self = Self(16.0);

    /// Returns the stored bits of an element of `bits`. A quantised element includes a scale and a
    /// bias of 16 bits per group of 64, so a 4-bit element has 4.5 bits.
    pub fn new(bits: u32) -> Self {
        match bits {
            16 | 32 => Self(f64::from(bits)),
            _ => Self(f64::from(bits) + 32.0 / 64.0),
        }
    }
}

impl Attention {
    /// Returns the cache bytes of a sequence of `context` tokens; 0 for a layer that shares another
    /// layer's cache.
    pub fn kv_bytes(&self, context: u32, bits: KvBits) -> Bytes {
        if let Self::Grouped {
            shares_cache: true, ..
        } = self
        {
            return Bytes::ZERO;
        }
        self.kv_read_bytes(context, bits)
    }

    /// Returns the cache bytes that a decode step reads for a sequence of `context` tokens.
    pub fn kv_read_bytes(&self, context: u32, bits: KvBits) -> Bytes {
        let elements = match *self {
            Self::Grouped {
                kv_heads,
                head_dim,
                window,
                ..
            } => {
                let tokens = window.map_or(context, |window| window.min(context));
                wide(2) * wide(kv_heads) * wide(head_dim) * wide(tokens)
            }
            Self::Latent {
                kv_rank, rope_dim, ..
            } => (wide(kv_rank) + wide(rope_dim)) * wide(context),
            // The recurrent state always has 32 bits per element.
            Self::GatedDelta {
                key_heads,
                key_dim,
                value_heads,
                value_dim,
            } => {
                let state = wide(value_heads) * wide(key_dim) * wide(value_dim);
                let keys = wide(key_heads) * wide(key_dim);
                let values = wide(value_heads) * wide(value_dim);
                let convolution = wide(CONVOLUTION_WIDTH - 1) * (wide(2) * keys + values);
                // Models computed in 32 bits keep their convolution state in 32 bits.
                let float_bytes = wide(if bits.0 >= 32.0 { 4 } else { 2 });
                return Bytes((wide(4) * state + float_bytes * convolution).0);
            }
        };
        Bytes((elements.0 as f64 * bits.0 / 8.0).round() as u64)
    }
}

impl ModelDimensions {
    /// Returns the cache bytes of a sequence of `context` tokens.
    pub fn kv_bytes(&self, context: u32, bits: KvBits) -> Bytes {
        self.layers
            .iter()
            .map(|layer| layer.attention.kv_bytes(context, bits))
            .sum()
    }
}

impl ModelConfig {
    /// Returns the cache bytes of one token, before any sliding window is full.
    pub fn kv_bytes_per_token(&self, element: FloatType) -> u64 {
        let layers = self.layers.iter().map(|layer| match &layer.mixer {
            MixerConfig::Attention(attention) => 2 * attention.widths().1,
            MixerConfig::GatedDelta(_) => 0,
        });
        layers.sum::<u64>() * element.bytes()
    }
}
