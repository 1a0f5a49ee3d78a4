//! Model of a claim: from the [`library`], or from its name and the stated sizes.

use rooflet_model::dimensions::ModelDimensions;
use rooflet_model::library;
use rooflet_model::library::Spelling;
use rooflet_model::weights::{FormatBits, WeightFormat};

/// Known properties of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KnownModel {
    /// Name for messages.
    pub(super) name: String,
    pub(super) dimensions: Option<ModelDimensions>,
    /// Total number of parameters.
    pub(super) parameters: f64,
    /// Parameters that one token uses. `None` if only the size is known, and not whether the model
    /// has experts.
    pub(super) active: Option<f64>,
}

impl KnownModel {
    pub(super) fn of_dimensions(name: &str, dimensions: ModelDimensions) -> Self {
        Self {
            name: name.to_owned(),
            parameters: dimensions.parameters() as f64,
            active: Some(dimensions.active_parameters() as f64),
            dimensions: Some(dimensions),
        }
    }

    /// Finds a model in the library, or parses its size from the name.
    pub(super) fn find(name: &str) -> Option<Self> {
        let spelling = Spelling::new(name);
        if let Some((key, dimensions)) = library::dimensions(&spelling) {
            return Some(Self::of_dimensions(key, dimensions));
        }
        let parameters = spelling.size?;
        Some(Self {
            name: name.to_owned(),
            dimensions: None,
            parameters,
            active: spelling.active,
        })
    }

    /// Returns whether the model is a mixture of experts.
    pub(super) fn is_mixture(&self) -> bool {
        match &self.dimensions {
            Some(dimensions) => dimensions.expert_layers() > 0,
            None => self.active.is_some_and(|active| active < 0.9 * self.parameters),
        }
    }

    /// Returns the minimum bytes of weights that one pass reads. All tokens may use the same
    /// experts, and an untied embedding table costs one row.
    pub(super) fn least_streamed(&self, bits: FormatBits) -> Option<f64> {
        match &self.dimensions {
            Some(dimensions) => {
                let active = dimensions.active_expert_parameters() as f64;
                Some(weigh(dimensions, active, bits))
            }
            // If only the size is known, a tenth may be an embedding table.
            None => self.active.map(|active| 0.9 * active * bits.body / 8.0),
        }
    }

    /// Returns the maximum bytes of weights that one pass for `batch` tokens reads: each token uses
    /// other experts, as far as there are any.
    pub(super) fn most_streamed(&self, bits: FormatBits, batch: f64) -> Option<f64> {
        let of_batch = |active: f64, all: f64| (batch * active).min(all).max(active);
        match &self.dimensions {
            Some(dimensions) => {
                let active = dimensions.active_expert_parameters() as f64;
                let experts = of_batch(active, dimensions.expert_parameters() as f64);
                Some(weigh(dimensions, experts, bits))
            }
            None => {
                let active = self.active?;
                let parameters = if self.is_mixture() {
                    of_batch(active, self.parameters)
                } else {
                    active
                };
                Some(0.9 * parameters * bits.body / 8.0)
            }
        }
    }

    /// Returns the bytes of weights in memory.
    pub(super) fn resident(&self, bits: FormatBits) -> f64 {
        match &self.dimensions {
            Some(dimensions) => {
                let table = dimensions.table_parameters() as f64 * bits.body / 8.0;
                weigh(dimensions, dimensions.expert_parameters() as f64, bits) + table
            }
            None => self.parameters * bits.body / 8.0,
        }
    }

    /// Returns the mean bits per weight.
    pub(super) fn mean_bits(&self, bits: FormatBits) -> f64 {
        8.0 * self.resident(bits) / self.parameters
    }
}

/// Returns the bytes of the shared weights and of `experts` expert parameters.
fn weigh(dimensions: &ModelDimensions, experts: f64, bits: FormatBits) -> f64 {
    let head = dimensions.head_parameters();
    let body = dimensions.core_parameters() - head;
    (body as f64 * bits.body + head as f64 * bits.head + experts * bits.experts) / 8.0
}

/// Returns the format at the end of a model name.
pub(super) fn format_of_name(name: &str) -> Option<String> {
    Spelling::new(name).format
}

/// Returns the parameters in a model name: 12 billion for `gemma3-12b`, which has 11.8 billion.
pub(super) fn size_of_name(name: &str) -> Option<f64> {
    Spelling::new(name).size
}

/// Weight format of a claim, with its most likely and its minimum bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimedFormat {
    /// Most likely bits, for sizes.
    pub(super) likely: FormatBits,
    /// Minimum bits of any build of this name, for limits.
    pub(super) least: FormatBits,
    /// Relative size difference between builds of this name.
    pub(super) spread: f64,
    /// Nominal bits: 4 for a format of 4.5 bits.
    pub(super) nominal: f64,
    /// Exact format, if the name identifies one.
    named: Option<WeightFormat>,
}

impl ClaimedFormat {
    /// Returns the smallest format of any model: two bits and the scales of a group.
    pub(super) fn fewest() -> Self {
        let bits = FormatBits {
            body: 2.06,
            experts: 2.06,
            head: 2.06,
        };
        Self {
            likely: bits,
            least: bits,
            spread: 0.0,
            nominal: 2.0,
            named: None,
        }
    }

    /// Returns the format with its most likely bits for this model.
    pub(super) fn of(self, model: &KnownModel) -> Self {
        match (self.named, &model.dimensions) {
            (Some(format), Some(dimensions)) => Self {
                likely: format.bits_in(dimensions),
                ..self
            },
            (_, _) => self,
        }
    }

    /// Parses the name of a format. `engine` resolves ambiguous names.
    pub(super) fn parse(name: &str, engine: Option<&str>) -> Option<Self> {
        let lower = name.trim().to_ascii_lowercase().replace([' ', '-'], "_");
        let same = |bits: f64| FormatBits {
            body: bits,
            experts: bits,
            head: bits,
        };
        let exact = |format: WeightFormat, nominal: f64, spread: f64| {
            let bits = format.bits();
            let fewest = bits.body.min(bits.experts).min(bits.head);
            Self {
                likely: bits,
                least: same(fewest * (1.0 - spread / 2.0)),
                spread,
                nominal,
                named: Some(format),
            }
        };
        if let Ok(format) = lower.parse::<WeightFormat>() {
            let bits = format.bits();
            let k_mix = lower.contains("_k");
            let spread = if k_mix || bits.body > bits.experts {
                0.06
            } else {
                0.0
            };
            let named = exact(format, bits.experts.floor(), spread);
            // Builds distribute the bits of a mix differently, but the format of the output head is
            // constant.
            let least = if k_mix {
                FormatBits {
                    head: bits.head,
                    ..named.least
                }
            } else {
                named.least
            };
            return Some(Self { least, ..named });
        }
        // Only a number of bits: `4bit`, `int4`, `q4`, `w4a16`, `4`.
        let family = |bits: f64, likely: f64, spread: f64| Self {
            likely: same(likely),
            // The smallest overhead is an 8-bit scale per block of 32.
            least: same(bits + 0.25_f64.min(likely - bits)),
            spread,
            nominal: bits,
            named: None,
        };
        let compact = lower.replace('_', "");
        let digits: String = compact
            .chars()
            .skip_while(|c| !c.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect();
        let bits: f64 = digits.parse().ok()?;
        let head: String = compact.chars().take_while(|c| !c.is_ascii_digit()).collect();
        let tail = &compact[(head.len() + digits.len()).min(compact.len())..];
        let is_gguf = matches!(head.as_str(), "q" | "iq" | "ud") || engine.is_some_and(is_gguf_engine);
        let known_head = matches!(
            head.as_str(),
            "" | "q"
                | "iq"
                | "ud"
                | "int"
                | "w"
                | "mlx"
                | "fp"
                | "float"
                | "awq"
                | "gptq"
                | "bf"
                | "f"
                | "dwq"
        );
        if !known_head || !(1.0..=32.0).contains(&bits) {
            return None;
        }
        if bits >= 16.0 {
            return Some(family(bits, bits, 0.0));
        }
        if matches!(head.as_str(), "fp" | "float") {
            return Some(family(bits, bits + 0.5, 0.1));
        }
        if is_gguf {
            // Mixes from `_S` to `_XL` with the same number of bits differ by about 18 %.
            let likely = match tail {
                "0" => bits + 0.5,
                "1" => bits + 1.0,
                _ => bits + 0.5,
            };
            return Some(family(bits, likely, if tail == "0" { 0.0 } else { 0.18 }));
        }
        let mlx = tail.starts_with('g')
            || matches!(head.as_str(), "mlx" | "dwq")
            || engine.is_some_and(|engine| engine.to_ascii_lowercase().contains("mlx"));
        let affine = group(name).filter(|_| matches!(head.as_str(), "" | "int" | "mlx" | "dwq"));
        if let Some(format) = affine.and_then(|group| format!("mlx{bits}g{group}").parse().ok()) {
            return Some(exact(format, bits, 0.0));
        }
        // Without an engine, `4bit` means MLX's 4.5 bits. Limits use the minimum bits.
        Some(family(bits, bits + 0.5, if mlx { 0.0 } else { 0.02 }))
    }
}

/// Parses the group size in a format's name: `g32`, `gs 32`, `group size 32`, `groups of 32`.
fn group(name: &str) -> Option<u32> {
    let lower = name.to_ascii_lowercase();
    let mut words = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    let digits = words.by_ref().find_map(|word| {
        let at = word.rfind('g')?;
        let (head, tail) = (&word[..at], &word[at + 1..]);
        let number = tail.trim_start_matches(char::is_alphabetic);
        let is_group = matches!(
            &tail[..tail.len() - number.len()],
            "" | "s" | "roup" | "roups" | "roupsize"
        );
        let behind_bits = head.is_empty() || head.ends_with(|c: char| c.is_ascii_digit());
        (is_group && behind_bits).then(|| number.to_owned())
    })?;
    if !digits.is_empty() {
        return digits.parse().ok();
    }
    words
        .find(|word| !matches!(*word, "size" | "sizes" | "of" | "is"))?
        .parse()
        .ok()
}

/// Returns the group size in a format's name if no tool supports it. GPTQ and AWQ support larger
/// groups, and NVFP4 uses 16.
pub(super) fn impossible_group(name: &str) -> Option<u32> {
    let lower = name.to_ascii_lowercase();
    let others = ["gptq", "awq", "nvfp4"].iter().any(|other| lower.contains(other));
    group(name).filter(|group| !others && ![32, 64, 128].contains(group))
}

fn is_gguf_engine(engine: &str) -> bool {
    let engine = engine.to_ascii_lowercase();
    !engine.contains("mlx")
        && ["llama", "gguf", "kobold", "ggml"]
            .iter()
            .any(|word| engine.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_size_of_model_outside_the_library() {
        let known = |name| KnownModel::find(name).map(|model| (model.dimensions.is_some(), model.active));
        assert_eq!(known("Foo-30B-A3B"), Some((false, Some(3e9))));
        assert_eq!(known("gemma"), None);
    }

    #[test]
    fn parses_formats_by_bits_and_by_name() {
        let bits = |name, engine| ClaimedFormat::parse(name, engine).map(|format| format.likely.body);
        assert_eq!(bits("mlx4", None), Some(4.5));
        assert_eq!(bits("4bit", None), Some(4.5));
        assert_eq!(bits("4-bit", Some("mlx-lm")), Some(4.5));
        assert_eq!(bits("Q4_K_M", None), Some(4.85));
        assert_eq!(bits("Q4", Some("ollama")), Some(4.5));
        assert_eq!(bits("int8", None), Some(8.5));
        assert_eq!(bits("bf16", None), Some(16.0));
        assert_eq!(bits("FP8", None), Some(8.5));
        assert_eq!(bits("excellent", None), None);
        for (name, likely) in [
            ("mlx4g32", 5.0),
            ("mlx4 g128", 4.25),
            ("4-bit group size 32", 5.0),
            ("4bit, group_size=128", 4.25),
            ("4 bits in groups of 64", 4.5),
            ("8bit-gs32", 9.0),
        ] {
            assert_eq!(bits(name, None), Some(likely), "{name}");
            assert_eq!(impossible_group(name), None, "{name}");
        }
    }

    #[test]
    fn finds_unsupported_group_sizes() {
        for (name, group) in [
            ("4-bit group size 65", Some(65)),
            ("mlx4 g65", Some(65)),
            ("mlx4g65", Some(65)),
            ("4bit-gs100", Some(100)),
            ("4bit in groups of 7", Some(7)),
            ("gptq 4bit g1024", None),
            ("nvfp4 group size 16", None),
            ("Q8_0 (gguf)", None),
            ("q4_k_m", None),
            ("gptq4", None),
            ("gguf-q4", None),
        ] {
            assert_eq!(impossible_group(name), group, "{name}");
        }
    }
}
