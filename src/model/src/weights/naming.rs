//! Parser of weight format names as found in tables: `mlx-4bit`, `UD-Q4_K_XL`, `q4_k`, `int4`,
//! `iq3_xxs`, `bfloat16`.
//!
//! The parser of [`WeightFormat`] accepts one name per format and a few exact synonyms. This module
//! removes words around the format, and assumes the most likely format if a name has only a number
//! of bits.

use super::{UnknownWeightFormat, WeightFormat};
use crate::engine::Engine;

/// Half-widths of the uncertainty, as logarithms. The values are assumptions. The first is the
/// distance between mixes of the same number of bits, from `_S` to `_XL`. The second is for kernels
/// without a published speed.
const AMBIGUOUS_BITS: f64 = 0.10;
const UNMEASURED_KERNEL: f64 = 0.15;

/// Words without influence on the bits: publisher and training method.
const NOISE: [&str; 19] = [
    "ud",
    "i1",
    "imatrix",
    "imat",
    "mlx",
    "gguf",
    "ggml",
    "dwq",
    "awq",
    "gptq",
    "qat",
    "hf",
    "affine",
    "quant",
    "quantized",
    "quantised",
    "dynamic",
    "optiq",
    "weights",
];

/// Quantisation methods among these words. `dwq4` has 4 bits, and a bare `awq` usually means 4 bits
/// too.
const RECIPES: [&str; 4] = ["dwq", "awq", "gptq", "qat"];

/// Error for a weight format that the engine cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{engine} does not run {format}, a format of {other}: use {instead}, or --engine {other}")]
pub struct IncompatibleFormat {
    engine: Engine,
    format: WeightFormat,
    other: Engine,
    instead: WeightFormat,
}

impl IncompatibleFormat {
    /// Returns a format of nearly equal size that the engine runs.
    pub fn instead(&self) -> WeightFormat {
        self.instead
    }
}

impl WeightFormat {
    /// Returns why the engine cannot run weights in this format. `None` if no reason is known.
    pub fn incompatibility_with(self, engine: Engine) -> Option<IncompatibleFormat> {
        let bits = self.bits().body;
        let (other, instead) = match (engine, self) {
            (Engine::LlamaCpp, Self::Affine { bits, .. }) => {
                // llama.cpp has no mix of 7 bits.
                let bits = if bits == 7 { 8 } else { bits };
                (Engine::Mlx, k_mix(f64::from(bits), "")?.format)
            }
            (Engine::Mlx, gguf) if gguf.is_gguf() => {
                let bits = match bits {
                    bits if bits < 3.0 => 2,
                    bits if bits < 4.0 => 3,
                    bits if bits < 5.0 => 4,
                    bits if bits < 6.0 => 5,
                    bits if bits < 7.0 => 6,
                    _ => 8,
                };
                (Engine::LlamaCpp, Self::Affine { bits, group: 64 })
            }
            (Engine::LlamaCpp | Engine::Mlx, _) => return None,
        };
        Some(IncompatibleFormat {
            engine,
            format: self,
            other,
            instead,
        })
    }
}

/// Weight format of a name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedFormat {
    pub format: WeightFormat,
    /// Additional half-width of a prediction's interval, as a logarithm, if the name is ambiguous
    /// or the format has no measured speed.
    pub uncertainty: Option<f64>,
}

impl NamedFormat {
    fn exact(format: WeightFormat) -> Self {
        let unmeasured = matches!(format, WeightFormat::Gguf { .. });
        Self {
            format,
            uncertainty: unmeasured.then_some(UNMEASURED_KERNEL),
        }
    }

    fn assumed(format: WeightFormat, uncertainty: f64) -> Self {
        Self {
            format,
            uncertainty: Some(uncertainty),
        }
    }

    /// Returns whether the name could mean another format.
    pub fn is_ambiguous(&self) -> bool {
        let unnamed = matches!(self.format, WeightFormat::Gguf { name: None, .. });
        unnamed || self.uncertainty == Some(AMBIGUOUS_BITS)
    }

    /// Parses the name of a format. `engine` is the engine that runs the weights, if known.
    pub fn parse(name: &str, engine: Option<Engine>) -> Result<Self, UnknownWeightFormat> {
        let lower = name.trim().to_ascii_lowercase();
        if let Some(format) = exact(&lower, engine) {
            return Ok(Self::exact(format));
        }
        let apart = separate_recipe(&lower);
        let words: Vec<&str> = apart
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
            .filter(|word| !word.is_empty())
            .map(|word| word.strip_suffix(".gguf").unwrap_or(word))
            .collect();
        let names_mlx = words.iter().any(|word| matches!(*word, "mlx" | "dwq" | "affine"));
        let names_gguf = words
            .iter()
            .any(|word| matches!(*word, "ud" | "gguf" | "ggml" | "i1"));
        let engine = match (names_mlx, names_gguf) {
            (true, _) => Some(Engine::Mlx),
            (false, true) => Some(Engine::LlamaCpp),
            (false, false) => engine,
        };
        let group = words.iter().find_map(|word| group(word));
        let kept: Vec<&str> = words
            .iter()
            .filter(|word| !NOISE.contains(word) && group_word(word).is_none())
            .copied()
            .collect();
        if kept.is_empty() && words.iter().any(|word| RECIPES.contains(word)) {
            let format = likely_format("int4", engine);
            return format.ok_or_else(|| UnknownWeightFormat {
                name: name.to_owned(),
            });
        }
        // `4 bit`, `4-bit` and `4bit` are equivalent.
        let bare = kept.join("_").replace("_bits", "bit").replace("_bit", "bit");
        let bare = bare
            .strip_suffix("bits")
            .map_or(bare.clone(), |bits| format!("{bits}bit"));
        let normalized = match (group, bits_word(&bare)) {
            (Some(group), Some(bits)) if engine != Some(Engine::LlamaCpp) => format!("mlx{bits}g{group}"),
            _ => bare,
        };
        if let Some(format) = exact(&normalized, engine) {
            return Ok(Self::exact(format));
        }
        likely_format(&normalized, engine).ok_or_else(|| UnknownWeightFormat {
            name: name.to_owned(),
        })
    }
}

/// Rewrites `dwq4` as `dwq-4bit`.
fn separate_recipe(name: &str) -> String {
    for recipe in RECIPES {
        if let Some((before, after)) = name.split_once(recipe)
            && matches!(after.as_bytes(), [b'2'..=b'8'] | [b'2'..=b'8', b'-' | b'_', ..])
        {
            let (bits, rest) = after.split_at(1);
            return format!("{before}{recipe}-{bits}bit{rest}");
        }
    }
    name.to_owned()
}

/// Parses the exact name of a format. `4bit` names an MLX format; with llama.cpp it is ambiguous.
fn exact(name: &str, engine: Option<Engine>) -> Option<WeightFormat> {
    let format = name.parse().ok()?;
    let affine = matches!(format, WeightFormat::Affine { .. });
    let is_ambiguous = affine && !name.starts_with("mlx") && engine == Some(Engine::LlamaCpp);
    (!is_ambiguous).then_some(format)
}

/// Parses `g32` and `gs32` as separate words. Inside a word (`mlx4g32`), the group belongs to the
/// format's name.
fn group_word(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("gs").or_else(|| word.strip_prefix('g'))?;
    digits.parse().ok()
}

fn group(word: &str) -> Option<u32> {
    group_word(word).filter(|group| group.is_power_of_two())
}

/// Parses the number in `4bit`, `mlx4`, `4`, `q4` or `int4`.
fn bits_word(word: &str) -> Option<u32> {
    let digits = word.strip_suffix("bit").unwrap_or(word);
    let digits = ["mlx", "int", "q"]
        .iter()
        .find_map(|head| digits.strip_prefix(head))
        .unwrap_or(digits);
    digits.parse().ok()
}

/// Returns the most likely format of a name with a number of bits.
fn likely_format(name: &str, engine: Option<Engine>) -> Option<NamedFormat> {
    let digits_at = name.find(|c: char| c.is_ascii_digit())?;
    let (head, rest) = name.split_at(digits_at);
    let length = rest
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(rest.len());
    let (number, tail) = rest.split_at(length);
    let bits: f64 = number.trim_end_matches('.').parse().ok()?;
    let head = head.trim_end_matches('_');
    let is_llama_cpp = engine == Some(Engine::LlamaCpp);
    match head {
        "iq" | "tq" => gguf_by_bits(bits + 0.3),
        "q" if tail.starts_with("_k") => k_mix(bits, tail),
        "fp" | "float" | "f" | "e" => match (bits as u32, is_llama_cpp) {
            (8, true) => Some(NamedFormat::assumed(WeightFormat::Q8_0, AMBIGUOUS_BITS)),
            (8, false) => Some(NamedFormat::assumed(WeightFormat::Mxfp8, AMBIGUOUS_BITS)),
            (4, _) => Some(NamedFormat::assumed(WeightFormat::Nvfp4, AMBIGUOUS_BITS)),
            _ => None,
        },
        "" | "q" | "int" | "uint" | "w" | "mlx" | "i" | "u" => {
            // In `w4a16` the second number is that of activations. `0.5bpw` and `4.0bit` are
            // average bits.
            let whole = (bits.fract() == 0.0).then_some(bits as u32);
            let mlx = engine == Some(Engine::Mlx) || head == "mlx";
            match whole {
                Some(16) => Some(NamedFormat::assumed(WeightFormat::BFloat16, AMBIGUOUS_BITS)),
                Some(bits @ 2..=8) if mlx || (engine.is_none() && head != "q") => Some(NamedFormat::assumed(
                    WeightFormat::Affine { bits, group: 64 },
                    AMBIGUOUS_BITS,
                )),
                Some(8) => Some(NamedFormat::assumed(WeightFormat::Q8_0, AMBIGUOUS_BITS)),
                Some(_) => k_mix(bits, ""),
                None => gguf_by_bits(bits),
            }
        }
        _ => None,
    }
}

/// Returns the medium K mix with this number of bits. Mixes with a suffix (`_L`, `_XL`) keep at
/// least the embedding table and the head in 8 bits or more.
fn k_mix(bits: f64, tail: &str) -> Option<NamedFormat> {
    let format = match (bits as u32, tail) {
        (2, _) => WeightFormat::Q2K,
        (3, "_k_xl") => WeightFormat::Q3KL,
        (3, _) => WeightFormat::Q3KM,
        (4, _) => WeightFormat::Q4KM,
        (5, _) => WeightFormat::Q5KM,
        (6, _) => WeightFormat::Q6K,
        (8, _) => WeightFormat::Q8_0,
        _ => return gguf_by_bits(bits + 0.3),
    };
    Some(NamedFormat::assumed(format, AMBIGUOUS_BITS))
}

fn gguf_by_bits(bits: f64) -> Option<NamedFormat> {
    (1.0..=16.0).contains(&bits).then(|| {
        let hundredths = (bits * 100.0).round() as u32;
        NamedFormat::exact(WeightFormat::Gguf {
            hundredths,
            name: None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::Weights;
    use super::*;
    use crate::shapes::ShapeFile;

    fn parsed(name: &str, engine: Option<Engine>) -> (String, bool) {
        let named = NamedFormat::parse(name, engine).unwrap();
        (named.format.to_string(), named.uncertainty.is_none())
    }

    #[test]
    fn parses_common_spellings_of_a_format() {
        for (name, format) in [
            ("mlx-4bit", "mlx4"),
            ("MLX 4-bit", "mlx4"),
            ("4 bit", "mlx4"),
            ("mlx4-dwq", "mlx4"),
            ("4bit-DWQ", "mlx4"),
            ("dwq4", "mlx4"),
            ("DWQ6", "mlx6"),
            ("mlx-dwq4-g32", "mlx4g32"),
            ("mlx4g16", "mlx4g16"),
            ("4bit-g32", "mlx4g32"),
            ("mlx-mxfp4", "mxfp4"),
            ("MXFP4", "mxfp4"),
            ("mxfp4_moe", "mxfp4"),
            ("mxfp4-q8", "mxfp4"),
            ("MXFP4-Q4", "mxfp4-q4"),
            ("bfloat16", "bf16"),
            ("float16", "f16"),
            ("FP16", "f16"),
            ("Q4_K", "q4_k_m"),
            ("q5_k", "q5_k_m"),
            ("Q4-K-M", "q4_k_m"),
            ("q4_k_m.gguf", "q4_k_m"),
            ("UD-Q4_K_XL", "q4_k_xl"),
            ("i1-Q4_K_S", "q4_k_s"),
            ("Q8_0 (GGUF)", "q8_0"),
        ] {
            let (found, sure) = parsed(name, None);
            assert!(found == format && sure, "{name}: {found} {sure}");
        }
    }

    #[test]
    fn bits_without_format_select_a_likely_format_of_the_engine() {
        let (mlx, llama) = (Some(Engine::Mlx), Some(Engine::LlamaCpp));
        for (name, engine, format) in [
            ("q4", llama, "q4_k_m"),
            ("4bit", llama, "q4_k_m"),
            ("q4", None, "q4_k_m"),
            ("q4", mlx, "mlx4"),
            ("int4", None, "mlx4"),
            ("awq", mlx, "mlx4"),
            ("AWQ", None, "mlx4"),
            ("gptq", llama, "q4_k_m"),
            ("dwq", None, "mlx4"),
            ("int8", llama, "q8_0"),
            ("w4a16", None, "mlx4"),
            ("fp8", None, "mxfp8"),
            ("fp8", llama, "q8_0"),
            ("q3_k_xl", None, "q3_k_l"),
            ("ud-q2_k_xl", None, "q2_k"),
            ("q6_k_l", None, "q6_k"),
        ] {
            assert_eq!(parsed(name, engine), (format.to_owned(), false), "{name}");
            assert!(NamedFormat::parse(name, engine).unwrap().is_ambiguous(), "{name}");
        }
        for name in ["iq9_x", "ud-iq1_xxl", "tq3_0", "4.65bpw"] {
            let bits = NamedFormat::parse(name, None).unwrap();
            assert_eq!(bits.uncertainty, Some(UNMEASURED_KERNEL), "{name}");
        }
        for name in ["excellent", "", "q", "x4", "fp3", "999bit"] {
            assert!(NamedFormat::parse(name, None).is_err(), "{name}");
        }
    }

    #[test]
    fn rejects_formats_of_the_other_engine() {
        for (name, engine, instead) in [
            ("mlx4", Engine::LlamaCpp, Some("q4_k_m")),
            ("mlx8", Engine::LlamaCpp, Some("q8_0")),
            ("mlx7", Engine::LlamaCpp, Some("q8_0")),
            ("mlx4", Engine::Mlx, None),
            ("q4_k_m", Engine::Mlx, Some("mlx4")),
            ("q8_0", Engine::Mlx, Some("mlx8")),
            ("iq1_s", Engine::Mlx, Some("mlx2")),
            ("q4_k_m", Engine::LlamaCpp, None),
            ("bf16", Engine::LlamaCpp, None),
            ("mxfp4", Engine::LlamaCpp, None),
            ("mxfp4", Engine::Mlx, None),
        ] {
            let format: WeightFormat = name.parse().unwrap();
            let found = format
                .incompatibility_with(engine)
                .map(|foreign| foreign.instead.to_string());
            assert_eq!(found.as_deref(), instead, "{name} {engine}");
        }
    }

    /// File sizes in MiB of Llama 3.2 3B, as listed in one publisher's repository.
    #[test]
    fn estimates_size_of_published_low_bit_files() {
        let shapes = ShapeFile::parse(include_str!("../models.json")).unwrap();
        let dimensions = shapes.dimensions("llama3.2-3b").unwrap();
        for (name, mebibytes) in [
            ("iq1_s", 828.0),
            ("iq1_m", 882.0),
            ("iq2_xxs", 971.0),
            ("iq2_xs", 1050.0),
            ("iq2_s", 1101.0),
            ("iq2_m", 1173.0),
            ("q2_k_s", 1216.0),
            ("iq3_xxs", 1287.0),
            ("iq3_xs", 1409.0),
            ("iq3_s", 1472.0),
            ("iq3_m", 1526.0),
        ] {
            let format = NamedFormat::parse(name, None).unwrap().format;
            let size = Weights::estimate(&dimensions, format).resident().0 as f64 / f64::from(1 << 20);
            assert!((size / mebibytes - 1.0).abs() < 0.05, "{name}: {size} MiB");
        }
    }
}
