//! Size of a model's weights, by their use in a decode step. The size is exact if the tensors are
//! known; otherwise it is computed from the dimensions and a named format.

mod formats;
mod gguf;
mod naming;

use std::fmt;
use std::str::FromStr;

use crate::dimensions::ModelDimensions;
use formats::{FORMATS, FormatFacts};
pub use naming::NamedFormat;
use rooflet_base::units::Bytes;

/// Bytes of weights in memory, by the time of reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weights {
    /// Read by every step: attention, norms, dense blocks, routers, shared experts and the output
    /// head.
    pub every_step: Bytes,
    /// All routed experts. A step reads only the experts of its tokens.
    pub experts: Bytes,
    /// Not read by decode steps: an untied embedding table (except single rows), and vision and
    /// audio towers.
    pub idle: Bytes,
    /// True if the weights are packed in super-blocks with quantised scales (GGUF's K formats),
    /// which require more arithmetic to unpack.
    pub super_blocks: bool,
    /// True if the routed experts are in MXFP4, whose values llama.cpp looks up in a table. Only known
    /// for named formats.
    pub tabulated_experts: bool,
    /// True if the float type is float16 or float32, which every GPU computes natively. Otherwise
    /// it is bfloat16, the type of most published models.
    pub native_floats: bool,
}

impl Weights {
    /// Estimates the weights in a named format from the dimensions.
    pub fn estimate(dimensions: &ModelDimensions, format: WeightFormat) -> Self {
        let head = dimensions.head_parameters();
        let bits = format.bits_in(dimensions);
        let every_step = (dimensions.core_parameters() - head) as f64 * bits.body + head as f64 * bits.head;
        let experts = dimensions.expert_parameters() as f64 * bits.experts;
        let idle = dimensions.table_parameters() as f64 * bits.body;
        let bytes = |bits: f64| Bytes((bits / 8.0).round() as u64);
        Self {
            every_step: bytes(every_step),
            experts: bytes(experts),
            idle: bytes(idle),
            super_blocks: gguf::packs_super_blocks(dimensions, format),
            tabulated_experts: matches!(format, WeightFormat::Mxfp4 | WeightFormat::Mxfp4Q4)
                && dimensions.expert_layers() > 0,
            native_floats: matches!(format, WeightFormat::Float16 | WeightFormat::Float32),
        }
    }

    /// Returns this share of each size.
    pub fn scaled(&self, share: f64) -> Self {
        let scaled = |Bytes(bytes): Bytes| Bytes((bytes as f64 * share).round() as u64);
        Self {
            every_step: scaled(self.every_step),
            experts: scaled(self.experts),
            idle: scaled(self.idle),
            ..*self
        }
    }

    /// Returns the bytes in memory.
    pub fn resident(&self) -> Bytes {
        self.every_step + self.experts + self.idle
    }

    /// Returns the bytes that one decode step of `batch` sequences reads.
    pub fn streamed(&self, dimensions: &ModelDimensions, batch: u32) -> Bytes {
        let share = dimensions.touched_expert_share(batch);
        self.every_step + Bytes((self.experts.0 as f64 * share).round() as u64)
    }
}

/// Weight format as publishers name it, for models without file headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// MLX affine: `bits` per weight, plus a scale and a bias of 16 bits per group.
    Affine {
        bits: u32,
        group: u32,
    },
    // Formats without parameters have a row in `FORMATS`.
    Float16,
    BFloat16,
    Float32,
    Mxfp4,
    Mxfp4Q4,
    Mxfp8,
    Nvfp4,
    // GGUF block formats. K quants keep the output head in more bits.
    Q2K,
    Q3KS,
    Q3KM,
    Q3KL,
    Q4_0,
    Q4_1,
    Q4KS,
    Q4KM,
    Q4KXl,
    Q5_0,
    Q5_1,
    Q5KS,
    Q5KM,
    Q6K,
    Q8_0,
    Iq4Xs,
    Iq4Nl,
    /// Another mix of llama.cpp, identified by the hundredths of a bit per weight of its layers,
    /// and by its name if it has one.
    Gguf {
        hundredths: u32,
        name: Option<&'static str>,
    },
}

/// Bits per weight of the layers, of their routed experts and of the output head.
#[derive(Debug, Clone, Copy)]
pub struct FormatBits {
    pub body: f64,
    pub experts: f64,
    pub head: f64,
}

impl WeightFormat {
    /// Names of all formats, for messages.
    pub const NAMES: &str = "mlx2…mlx8 (or 4bit; mlx4g32 for groups of 32), bf16, f16, f32, mxfp4, mxfp4-q4, mxfp8, nvfp4, \
                                    q2_k, q3_k_s, q3_k_m, q3_k_l, q4_0, q4_1, q4_k_s, q4_k_m, q4_k_xl, q5_0, q5_1, q5_k_s, \
                                    q5_k_m, q6_k, q8_0, iq4_xs, iq4_nl, iq1_s…iq3_m, tq1_0, tq2_0, q2_k_s";

    /// Hundredths of a bit per weight of llama.cpp's low-bit formats, as listed by
    /// `llama-quantize`. Q2_K_S is computed from published files. No speed is published for these
    /// formats.
    const FEW_BITS: [(&str, u32); 13] = [
        ("iq1_s", 156),
        ("iq1_m", 175),
        ("iq2_xxs", 206),
        ("iq2_xs", 231),
        ("iq2_s", 250),
        ("iq2_m", 270),
        ("iq3_xxs", 306),
        ("iq3_xs", 330),
        ("iq3_s", 344),
        ("iq3_m", 366),
        ("tq1_0", 169),
        ("tq2_0", 206),
        ("q2_k_s", 270),
    ];

    /// Returns whether the format is a mix, so that files of this name differ in size.
    pub fn is_mix(self) -> bool {
        gguf::is_mix(self)
    }

    /// Returns whether weights of this named format may be stored as `other`. `4bit` leaves the
    /// group size open.
    pub fn may_be(self, other: Self) -> bool {
        if let (Self::Affine { bits, .. }, Self::Affine { bits: others, .. }) = (self, other) {
            return bits == others;
        }
        self == other
    }

    /// Returns whether the format belongs to llama.cpp.
    pub fn is_gguf(self) -> bool {
        FormatFacts::of(self).is_gguf
    }

    /// Returns the bits per weight if the rows of all matrices fit the blocks of the format.
    pub fn bits(self) -> FormatBits {
        FormatFacts::of(self).bits
    }

    /// Returns the bits per weight in a model of these dimensions.
    pub fn bits_in(self, dimensions: &ModelDimensions) -> FormatBits {
        gguf::bits(dimensions, self)
    }

    /// Returns the share of bytes in 16-bit floats that an engine computes with.
    pub(super) fn half_share(self) -> f64 {
        FormatFacts::of(self).half_share
    }
}

/// Error for a name that is not in [`WeightFormat::NAMES`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a known weight format; known: {}", WeightFormat::NAMES)]
pub struct UnknownWeightFormat {
    name: String,
}

impl FromStr for WeightFormat {
    type Err = UnknownWeightFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownWeightFormat {
            name: name.to_owned(),
        };
        let lower = name.to_ascii_lowercase();
        let lower = match lower.as_str() {
            "fp16" | "float16" | "half" => "f16",
            "fp32" | "float32" => "f32",
            "bfloat16" => "bf16",
            // Names that llama.cpp uses for its medium mixes, and names of the format of gpt-oss.
            "q3_k" => "q3_k_m",
            "q4_k" => "q4_k_m",
            "q5_k" => "q5_k_m",
            "mxfp4_moe" | "mxfp4-q8" | "mxfp4_q8" => "mxfp4",
            "mxfp4_q4" => "mxfp4-q4",
            other => other,
        };
        if let Some(row) = FORMATS.iter().find(|row| row.name == lower) {
            return Ok(row.format);
        }
        if let Some((name, hundredths)) = Self::FEW_BITS.iter().find(|(known, _)| *known == lower) {
            return Ok(Self::Gguf {
                hundredths: *hundredths,
                name: Some(name),
            });
        }
        let affine = lower
            .strip_prefix("mlx")
            .or_else(|| lower.strip_suffix("bit").map(|bits| bits.trim_end_matches('-')))
            .ok_or_else(unknown)?;
        let (bits, group) = affine.split_once('g').unwrap_or((affine, "64"));
        let bits = bits.parse().ok().filter(|bits| (2..=8).contains(bits));
        let group = group
            .parse()
            .ok()
            .filter(|group| [16, 32, 64, 128].contains(group));
        Ok(Self::Affine {
            bits: bits.ok_or_else(unknown)?,
            group: group.ok_or_else(unknown)?,
        })
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Affine { bits, group } = self {
            return match group {
                64 => write!(f, "mlx{bits}"),
                _ => write!(f, "mlx{bits}g{group}"),
            };
        }
        if let Self::Gguf { hundredths, name } = self {
            return match name {
                Some(name) => f.write_str(name),
                None => write!(f, "GGUF of {} bits", f64::from(*hundredths) / 100.0),
            };
        }
        let row = FORMATS.iter().find(|row| row.format == *self);
        f.write_str(row.expect("every format without parameters has a row").name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::ShapeFile;

    /// File sizes of Llama 2 7B, as listed in its GGUF repositories, in 10⁹ bytes.
    #[test]
    fn estimates_size_of_published_gguf_files() {
        let shapes = ShapeFile::parse(include_str!("shapes.json")).unwrap();
        let dimensions = shapes.dimensions("llama2-7b").unwrap();
        for (name, gigabytes) in [
            ("q2_k", 2.83),
            ("q3_k_s", 2.95),
            ("q3_k_m", 3.30),
            ("q3_k_l", 3.60),
            ("q4_0", 3.83),
            ("q4_1", 4.24),
            ("q5_0", 4.65),
            ("q5_1", 5.06),
            ("q4_k_s", 3.86),
            ("q4_k_m", 4.08),
            ("q5_k_s", 4.65),
            ("q5_k_m", 4.78),
            ("q6_k", 5.53),
            ("q8_0", 7.16),
            ("f16", 13.48),
        ] {
            let format: WeightFormat = name.parse().unwrap();
            assert_eq!(format.to_string(), name);
            let size = Weights::estimate(&dimensions, format).resident().0 as f64 / 1e9;
            assert!((size / gigabytes - 1.0).abs() < 0.02, "{name}: {size} GB");
        }
    }
}
