//! Names of weight formats as tables write them: `mlx-4bit`, `UD-Q4_K_XL`, `q4_k`, `int4`,
//! `iq3_xxs`, `bfloat16`.
//!
//! [`WeightFormat`]'s own parser knows each format by its one name and a few others that mean just
//! the same. Here the words around it are taken off, and a name that says no more than a number of
//! bits is taken for the likeliest format of so many.

use super::{UnknownWeightFormat, WeightFormat};
use crate::engine::Engine;

/// Half-widths, as logarithms, of what a guess leaves open; assumed. Mixes of one number of bits,
/// from `_S` to `_XL`, are that far apart; of kernels that nobody published a rate for, the speed
/// too is a guess.
const GUESSED_BITS: f64 = 0.10;
const UNMEASURED_KERNEL: f64 = 0.15;

/// Words beside a format that change nothing of its bits: who made the file, and how it was
/// trained.
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

/// Of those, ways to quantise: `dwq4` is 4 bits so made, and `awq` alone is 4 bits most often.
const RECIPES: [&str; 4] = ["dwq", "awq", "gptq", "qat"];

/// Weights in a format that an engine cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{engine} does not run {format}, a format of {other} alone: write {instead}, or --engine {other}")]
pub struct ForeignFormat {
    engine: Engine,
    format: WeightFormat,
    other: Engine,
    instead: WeightFormat,
}

impl WeightFormat {
    /// Why weights in this format do not run on `engine`; `None` where nothing is known against it.
    pub fn foreign_to(self, engine: Engine) -> Option<ForeignFormat> {
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
        Some(ForeignFormat {
            engine,
            format: self,
            other,
            instead,
        })
    }
}

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedFormat {
    pub format: WeightFormat,
    /// The name leaves open which format it is, or nobody measured it: the half-width that a
    /// prediction's interval gets beside its own, as a logarithm.
    pub doubt: Option<f64>,
}

impl NamedFormat {
    fn sure(format: WeightFormat) -> Self {
        let unmeasured = matches!(format, WeightFormat::Gguf { .. });
        Self {
            format,
            doubt: unmeasured.then_some(UNMEASURED_KERNEL),
        }
    }

    fn guess(format: WeightFormat, doubt: f64) -> Self {
        Self {
            format,
            doubt: Some(doubt),
        }
    }

    /// Whether the name could be that of another format too.
    pub fn is_guess(&self) -> bool {
        let unnamed = matches!(self.format, WeightFormat::Gguf { name: None, .. });
        unnamed || self.doubt == Some(GUESSED_BITS)
    }

    /// Of weights that run on `engine`, where it is known.
    pub fn understand(name: &str, engine: Option<Engine>) -> Result<Self, UnknownWeightFormat> {
        let lower = name.trim().to_ascii_lowercase();
        if let Some(format) = exact(&lower, engine) {
            return Ok(Self::sure(format));
        }
        let apart = recipe_apart(&lower);
        let words: Vec<&str> = apart
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
            .filter(|word| !word.is_empty())
            .map(|word| word.strip_suffix(".gguf").unwrap_or(word))
            .collect();
        let said_mlx = words.iter().any(|word| matches!(*word, "mlx" | "dwq" | "affine"));
        let said_gguf = words
            .iter()
            .any(|word| matches!(*word, "ud" | "gguf" | "ggml" | "i1"));
        let engine = match (said_mlx, said_gguf) {
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
            let guessed = guess("int4", engine);
            return guessed.ok_or_else(|| UnknownWeightFormat {
                name: name.to_owned(),
            });
        }
        // `4 bit`, `4-bit` and `4bit` are one word.
        let bare = kept.join("_").replace("_bits", "bit").replace("_bit", "bit");
        let bare = bare
            .strip_suffix("bits")
            .map_or(bare.clone(), |bits| format!("{bits}bit"));
        let spelt = match (group, bits_word(&bare)) {
            (Some(group), Some(bits)) if engine != Some(Engine::LlamaCpp) => format!("mlx{bits}g{group}"),
            _ => bare,
        };
        if let Some(format) = exact(&spelt, engine) {
            return Ok(Self::sure(format));
        }
        guess(&spelt, engine).ok_or_else(|| UnknownWeightFormat {
            name: name.to_owned(),
        })
    }
}

/// `dwq4` as `dwq-4bit`.
fn recipe_apart(name: &str) -> String {
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

/// A name that stands for one format. `4bit` is MLX's; what llama.cpp runs under that name is one
/// of its mixes.
fn exact(name: &str, engine: Option<Engine>) -> Option<WeightFormat> {
    let format = name.parse().ok()?;
    let affine = matches!(format, WeightFormat::Affine { .. });
    let elsewhere = affine && !name.starts_with("mlx") && engine == Some(Engine::LlamaCpp);
    (!elsewhere).then_some(format)
}

/// `g32` and `gs32` among other words; inside one (`mlx4g32`) it is the format's own.
fn group_word(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("gs").or_else(|| word.strip_prefix('g'))?;
    digits.parse().ok()
}

fn group(word: &str) -> Option<u32> {
    group_word(word).filter(|group| group.is_power_of_two())
}

/// The number in `4bit`, `mlx4`, `4`, `q4` or `int4`.
fn bits_word(word: &str) -> Option<u32> {
    let digits = word.strip_suffix("bit").unwrap_or(word);
    let digits = ["mlx", "int", "q"]
        .iter()
        .find_map(|head| digits.strip_prefix(head))
        .unwrap_or(digits);
    digits.parse().ok()
}

/// A number of bits, and what stands beside it.
fn guess(name: &str, engine: Option<Engine>) -> Option<NamedFormat> {
    let digits_at = name.find(|c: char| c.is_ascii_digit())?;
    let (head, rest) = name.split_at(digits_at);
    let length = rest
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(rest.len());
    let (number, tail) = rest.split_at(length);
    let bits: f64 = number.trim_end_matches('.').parse().ok()?;
    let head = head.trim_end_matches('_');
    let of_gguf = engine == Some(Engine::LlamaCpp);
    match head {
        "iq" | "tq" => gguf_by_bits(bits + 0.3),
        "q" if tail.starts_with("_k") => k_mix(bits, tail),
        "fp" | "float" | "f" | "e" => match (bits as u32, of_gguf) {
            (8, true) => Some(NamedFormat::guess(WeightFormat::Q8_0, GUESSED_BITS)),
            (8, false) => Some(NamedFormat::guess(WeightFormat::Mxfp8, GUESSED_BITS)),
            (4, _) => Some(NamedFormat::guess(WeightFormat::Nvfp4, GUESSED_BITS)),
            _ => None,
        },
        "" | "q" | "int" | "uint" | "w" | "mlx" | "i" | "u" => {
            // `w4a16` says what activations are, `0.5bpw` and `4.0bit` are bits on average.
            let whole = (bits.fract() == 0.0).then_some(bits as u32);
            let mlx = engine == Some(Engine::Mlx) || head == "mlx";
            match whole {
                Some(16) => Some(NamedFormat::guess(WeightFormat::BFloat16, GUESSED_BITS)),
                Some(bits @ 2..=8) if mlx || (engine.is_none() && head != "q") => Some(NamedFormat::guess(
                    WeightFormat::Affine { bits, group: 64 },
                    GUESSED_BITS,
                )),
                Some(8) => Some(NamedFormat::guess(WeightFormat::Q8_0, GUESSED_BITS)),
                Some(_) => k_mix(bits, ""),
                None => gguf_by_bits(bits),
            }
        }
        _ => None,
    }
}

/// The middle one of the K mixes of so many bits. Those with a word of their own (`_L`, `_XL`) keep
/// table and head, or more, in 8 bits or more.
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
    Some(NamedFormat::guess(format, GUESSED_BITS))
}

fn gguf_by_bits(bits: f64) -> Option<NamedFormat> {
    (1.0..=16.0).contains(&bits).then(|| {
        let hundredths = (bits * 100.0).round() as u32;
        NamedFormat::sure(WeightFormat::Gguf {
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

    fn understood(name: &str, engine: Option<Engine>) -> (String, bool) {
        let named = NamedFormat::understand(name, engine).unwrap();
        (named.format.to_string(), named.doubt.is_none())
    }

    #[test]
    fn a_format_is_known_however_it_is_spelt() {
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
            let (found, sure) = understood(name, None);
            assert!(found == format && sure, "{name}: {found} {sure}");
        }
    }

    #[test]
    fn bits_alone_are_a_guess_that_the_engine_decides() {
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
            assert_eq!(understood(name, engine), (format.to_owned(), false), "{name}");
            assert!(
                NamedFormat::understand(name, engine).unwrap().is_guess(),
                "{name}"
            );
        }
        for name in ["iq9_x", "ud-iq1_xxl", "tq3_0", "4.65bpw"] {
            let bits = NamedFormat::understand(name, None).unwrap();
            assert_eq!(bits.doubt, Some(UNMEASURED_KERNEL), "{name}");
        }
        for name in ["excellent", "", "q", "x4", "fp3", "999bit"] {
            assert!(NamedFormat::understand(name, None).is_err(), "{name}");
        }
    }

    #[test]
    fn a_format_of_the_other_engine_is_foreign() {
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
            let said = format
                .foreign_to(engine)
                .map(|foreign| foreign.instead.to_string());
            assert_eq!(said.as_deref(), instead, "{name} {engine}");
        }
    }

    /// Sizes in MiB of one person's files of Llama 3.2 3B, as its repository lists them.
    #[test]
    fn formats_of_few_bits_weigh_what_published_files_do() {
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
            let format = NamedFormat::understand(name, None).unwrap().format;
            let size = Weights::estimate(&dimensions, format).resident().0 as f64 / f64::from(1 << 20);
            assert!((size / mebibytes - 1.0).abs() < 0.05, "{name}: {size} MiB");
        }
    }
}
