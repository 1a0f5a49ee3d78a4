//! What a model's weights weigh, by what a decode step reads of them. Exact where the tensors are
//! known, computed from the dimensions and a named format where they are not.

mod gguf;
mod naming;

use std::fmt;
use std::str::FromStr;

use crate::dimensions::ModelDimensions;
use gguf::HEAD_BITS;
pub use naming::NamedFormat;
use rooflet_base::units::Bytes;

/// Weights in memory, by when they are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weights {
    /// By every step: attention, norms, dense blocks, routers, shared experts and the output head.
    pub every_step: Bytes,
    /// All routed experts; a step reads those that its tokens chose.
    pub experts: Bytes,
    /// Never by a decode step: an untied embedding table (one row is), towers for images and sound.
    pub idle: Bytes,
    /// Packed in super-blocks, scales of scales: GGUF's K formats, which take more arithmetic to
    /// unpack.
    pub super_blocks: bool,
    /// Floats are of a type that every GPU computes with, float16 or float32. Else they are
    /// bfloat16, as most that are published are.
    pub native_floats: bool,
}

impl Weights {
    /// In the format `format`, from dimensions alone.
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
            native_floats: matches!(format, WeightFormat::Float16 | WeightFormat::Float32),
        }
    }

    /// This share of each.
    pub fn scaled(&self, share: f64) -> Self {
        let scaled = |Bytes(bytes): Bytes| Bytes((bytes as f64 * share).round() as u64);
        Self {
            every_step: scaled(self.every_step),
            experts: scaled(self.experts),
            idle: scaled(self.idle),
            ..*self
        }
    }

    /// Held in memory.
    pub fn resident(&self) -> Bytes {
        self.every_step + self.experts + self.idle
    }

    /// Read by one decode step of `batch` sequences.
    pub fn streamed(&self, dimensions: &ModelDimensions, batch: u32) -> Bytes {
        let share = dimensions.touched_expert_share(batch);
        self.every_step + Bytes((self.experts.0 as f64 * share).round() as u64)
    }
}

/// A format of weights as publishers name it, where only its name is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// MLX affine: `bits` per weight, and a scale and a bias of 16 bits per group.
    Affine {
        bits: u32,
        group: u32,
    },
    Float16,
    BFloat16,
    Float32,
    Mxfp4,
    Mxfp8,
    Nvfp4,
    /// GGUF block formats; K quants keep the output head in more bits.
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
    /// Another mix of llama.cpp, known by the hundredths of a bit that its layers have per weight,
    /// and its name if it is a usual one.
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
    /// Every name that parses, for messages.
    pub const NAMES: &str = "mlx2…mlx8 (or 4bit; mlx4g32 for groups of 32), bf16, f16, f32, mxfp4, mxfp8, nvfp4, \
                                    q2_k, q3_k_s, q3_k_m, q3_k_l, q4_0, q4_1, q4_k_s, q4_k_m, q4_k_xl, q5_0, q5_1, q5_k_s, \
                                    q5_k_m, q6_k, q8_0, iq4_xs, iq4_nl, iq1_s…iq3_m, tq1_0, tq2_0, q2_k_s";

    /// Names that stand for one format each.
    const NAMED: [(Self, &str); 23] = [
        (Self::Float16, "f16"),
        (Self::BFloat16, "bf16"),
        (Self::Float32, "f32"),
        (Self::Mxfp4, "mxfp4"),
        (Self::Mxfp8, "mxfp8"),
        (Self::Nvfp4, "nvfp4"),
        (Self::Q2K, "q2_k"),
        (Self::Q3KS, "q3_k_s"),
        (Self::Q3KM, "q3_k_m"),
        (Self::Q3KL, "q3_k_l"),
        (Self::Q4_0, "q4_0"),
        (Self::Q4_1, "q4_1"),
        (Self::Q4KS, "q4_k_s"),
        (Self::Q4KM, "q4_k_m"),
        (Self::Q4KXl, "q4_k_xl"),
        (Self::Q5_0, "q5_0"),
        (Self::Q5_1, "q5_1"),
        (Self::Q5KS, "q5_k_s"),
        (Self::Q5KM, "q5_k_m"),
        (Self::Q6K, "q6_k"),
        (Self::Q8_0, "q8_0"),
        (Self::Iq4Xs, "iq4_xs"),
        (Self::Iq4Nl, "iq4_nl"),
    ];

    /// What `llama-quantize` says of its formats of few bits, in hundredths of a bit per weight; of
    /// Q2_K_S what its files have. Nobody published how fast they run.
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

    /// Whether files under this name have other sizes, because it names a mix of formats.
    pub fn is_mix(self) -> bool {
        gguf::is_mix(self)
    }

    /// Whether weights of this name may be in `other`, too: `4bit` leaves the groups open.
    pub fn admits(self, other: Self) -> bool {
        if let (Self::Affine { bits, .. }, Self::Affine { bits: others, .. }) = (self, other) {
            return bits == others;
        }
        self == other
    }

    /// Whether it is one of llama.cpp's own.
    pub fn is_gguf(self) -> bool {
        match self {
            Self::Affine { .. }
            | Self::Float16
            | Self::BFloat16
            | Self::Float32
            | Self::Mxfp4
            | Self::Mxfp8
            | Self::Nvfp4 => false,
            Self::Q2K
            | Self::Q3KS
            | Self::Q3KM
            | Self::Q3KL
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q4KS
            | Self::Q4KM
            | Self::Q4KXl
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q5KS
            | Self::Q5KM
            | Self::Q6K
            | Self::Q8_0
            | Self::Iq4Xs
            | Self::Iq4Nl
            | Self::Gguf { .. } => true,
        }
    }

    /// MLX: `b + 32/g`. The formats of Microscaling: 4.25, 8.25 and 4.5. GGUF: from the block
    /// layouts of the format's specification; K-mixes are averages over published files, and the
    /// head is Q6_K (see `gguf`, also for what a model's dimensions change). `XL` mixes differ from
    /// file to file.
    pub fn bits(self) -> FormatBits {
        let same = |bits: f64| FormatBits {
            body: bits,
            experts: bits,
            head: bits,
        };
        let with_head = |bits: f64| FormatBits {
            head: HEAD_BITS,
            ..same(bits)
        };
        match self {
            Self::Affine { bits, group } => same(f64::from(bits) + 32.0 / f64::from(group)),
            Self::Float16 | Self::BFloat16 => same(16.0),
            Self::Float32 => same(32.0),
            // Published for models of experts (gpt-oss): everything else stays at 8 bits.
            Self::Mxfp4 => FormatBits {
                body: 8.5,
                experts: 4.25,
                head: 8.5,
            },
            Self::Mxfp8 => same(8.25),
            Self::Nvfp4 => same(4.5),
            Self::Q4_0 => with_head(4.5),
            Self::Q4_1 => with_head(5.0),
            Self::Q5_0 => with_head(5.5),
            Self::Q5_1 => with_head(6.0),
            Self::Iq4Xs => with_head(4.25),
            Self::Iq4Nl => with_head(4.5),
            Self::Q2K => with_head(3.30),
            Self::Q3KS => with_head(3.44),
            Self::Q3KL => with_head(4.23),
            Self::Q8_0 => same(8.5),
            Self::Q6K => same(6.5625),
            Self::Q3KM => with_head(3.86),
            Self::Q4KS => with_head(4.54),
            Self::Q5KS => with_head(5.50),
            Self::Q4KM => with_head(4.85),
            // Of a model with experts, all else is in 8 bits: see `gguf`.
            Self::Q4KXl => FormatBits {
                body: 5.2,
                experts: 4.85,
                head: HEAD_BITS,
            },
            Self::Q5KM => with_head(5.69),
            Self::Gguf { hundredths, .. } => {
                let bits = f64::from(hundredths) / 100.0;
                FormatBits {
                    head: bits.max(HEAD_BITS),
                    ..same(bits)
                }
            }
        }
    }
}

impl WeightFormat {
    /// Bits per weight in a model of these dimensions.
    pub fn bits_in(self, dimensions: &ModelDimensions) -> FormatBits {
        gguf::bits(dimensions, self)
    }

    /// Of its bytes, those in floats of 16 bits that an engine computes with: scales and offsets,
    /// or all of them. The block formats of GGUF are computed with as they are.
    pub(super) fn half_share(self) -> f64 {
        match self {
            Self::Affine { bits, group } => {
                let scales = 32.0 / f64::from(group);
                scales / (f64::from(bits) + scales)
            }
            Self::Float16 | Self::BFloat16 => 1.0,
            Self::Float32 | Self::Mxfp4 | Self::Mxfp8 | Self::Nvfp4 => 0.0,
            Self::Q2K
            | Self::Q3KS
            | Self::Q3KM
            | Self::Q3KL
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q4KS
            | Self::Q4KM
            | Self::Q4KXl
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q5KS
            | Self::Q5KM
            | Self::Q6K
            | Self::Q8_0
            | Self::Iq4Xs
            | Self::Iq4Nl
            | Self::Gguf { .. } => 0.0,
        }
    }
}

/// The name is not one of [`WeightFormat::NAMES`].
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
            // llama.cpp's own names for its middle mixes, and for the format of gpt-oss.
            "q3_k" => "q3_k_m",
            "q4_k" => "q4_k_m",
            "q5_k" => "q5_k_m",
            "mxfp4_moe" => "mxfp4",
            other => other,
        };
        if let Some((format, _)) = Self::NAMED.iter().find(|(_, known)| *known == lower) {
            return Ok(*format);
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
        let name = Self::NAMED.iter().find(|(format, _)| format == self);
        f.write_str(name.expect("every format but MLX's has one name").1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::ShapeFile;

    /// Sizes of the files of Llama 2 7B, as its GGUF repositories list them, in 10⁹ bytes.
    #[test]
    fn a_format_s_name_tells_the_size_of_published_files() {
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
