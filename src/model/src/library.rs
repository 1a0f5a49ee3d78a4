//! Library of published models: dimensions by name, in all common spellings.
//!
//! `models.json` holds the dimensions, from each model's `config.json` on Hugging Face.

use std::sync::LazyLock;

use crate::dimensions::ModelDimensions;
use crate::shapes::ShapeFile;
use crate::weights::WeightFormat;

static MODELS: LazyLock<ShapeFile> = LazyLock::new(|| {
    ShapeFile::parse(include_str!("models.json")).expect("models.json is built in and a test parses it")
});

/// Names of models with the dimensions of another model in the library.
const ALIASES: &[(&str, &str)] = &[
    ("llama3.1-8b", "llama3-8b"),
    ("llama3.1-70b", "llama3-70b"),
    ("llama3.3-70b", "llama3-70b"),
    ("nemotron-nano-8b", "llama3-8b"),
    ("hermes-8b", "llama3-8b"),
    ("codellama-7b", "llama2-7b"),
    ("codellama-13b", "llama2-13b"),
    ("codellama-70b", "llama2-70b"),
    ("vicuna-7b", "llama2-7b"),
    ("vicuna-13b", "llama2-13b"),
    ("llama-7b", "llama2-7b"),
    ("llama-13b", "llama2-13b"),
    ("qwen2-0.5b", "qwen2.5-0.5b"),
    ("qwen2-7b", "qwen2.5-7b"),
    ("qwen2-72b", "qwen2.5-72b"),
    ("qwq-32b", "qwen2.5-32b"),
    ("qwen3-30b", "qwen3-30b-a3b"),
    ("qwen3-235b", "qwen3-235b-a22b"),
    ("qwen3-coder-480b", "qwen3-coder-480b-a35b"),
    ("qwen3-next-80b", "qwen3-next-80b-a3b"),
    ("qwen3.6-35b", "qwen3.6-35b-a3b"),
    ("qwen3.5-35b-a3b", "qwen3.6-35b-a3b"),
    ("qwen3.5-35b", "qwen3.6-35b-a3b"),
    ("qwen3.5-27b", "qwen3.6-27b"),
    ("gemma4-26b", "gemma4-26b-a4b"),
    ("deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
    ("deepseek-r1-distill-qwen-14b", "qwen2.5-14b"),
    ("deepseek-r1-distill-qwen-32b", "qwen2.5-32b"),
    ("deepseek-r1-distill-llama-8b", "llama3-8b"),
    ("deepseek-r1-distill-llama-70b", "llama3-70b"),
    ("deepseek-r1-0528-qwen3-8b", "qwen3-8b"),
    ("deepseek-r1-qwen3-8b", "qwen3-8b"),
    ("deepseek-r1", "deepseek-v3-671b"),
    ("deepseek-v3", "deepseek-v3-671b"),
    ("deepseek-v3.1", "deepseek-v3-671b"),
    ("deepseek-v2", "deepseek-v2-236b"),
    ("ernie4.5-21b", "ernie-4.5-21b-a3b"),
    ("glm4.5-air", "glm-4.5-air-106b"),
    ("glm4.5", "glm-4.5-355b"),
    ("glm4.6", "glm-4.5-355b"),
    ("mistral-large", "mistral-large-123b"),
    ("mistral-nemo", "mistral-nemo-12b"),
    ("mistral-small-3", "mistral-small-24b"),
    ("mistral-small-3-24b", "mistral-small-24b"),
    ("mistral-small-3.1", "mistral-small-24b"),
    ("mistral-small-3.1-24b", "mistral-small-24b"),
    ("mistral-small-3.2", "mistral-small-24b"),
    ("mistral-small-3.2-24b", "mistral-small-24b"),
    ("mixtral", "mixtral-8x7b"),
    ("codestral", "codestral-22b"),
    ("command-r", "command-r-35b"),
    ("tinyllama", "tinyllama-1.1b"),
    ("phi-3", "phi-3-mini"),
    ("phi-3-3.8b", "phi-3-mini"),
    ("phi-4-14b", "phi-4"),
    ("phi-3-14b", "phi-3-medium"),
];

/// Model of the library in a weight format.
#[derive(Debug, Clone, PartialEq)]
pub struct LibraryModel {
    /// Name in the library.
    pub key: &'static str,
    pub dimensions: ModelDimensions,
    pub format: WeightFormat,
}

/// Reason why a name does not identify a model and format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("unknown model `{name}`; {near}")]
    UnknownModel { name: String, near: String },
    #[error(
        "the name `{name}` contains no weight format; specify one of {}",
        WeightFormat::NAMES
    )]
    UnknownFormat { name: String },
    #[error(
        "the name `{name}` contains the weight format {named}, but {requested} is specified: remove one of the two"
    )]
    ConflictingFormat {
        name: String,
        named: WeightFormat,
        requested: WeightFormat,
    },
}

/// Finds the model of `name`, with its weights in `format` or else in the format at the end of the
/// name.
pub fn find(name: &str, format: Option<WeightFormat>) -> Result<LibraryModel, LibraryError> {
    let spelling = Spelling::new(name);
    let found = lookup(&spelling).and_then(|key| Some((key, MODELS.dimensions(key).ok()?)));
    let Some((key, dimensions)) = found else {
        return Err(LibraryError::UnknownModel {
            name: name.to_owned(),
            near: near(name, &spelling),
        });
    };
    let named = spelling.weight_format();
    if let (Some(requested), Some(named)) = (format, named)
        && !named.may_be(requested)
    {
        let name = name.to_owned();
        return Err(LibraryError::ConflictingFormat {
            name,
            named,
            requested,
        });
    }
    let format = format.or(named).or_else(|| trained_format(key));
    let format = format.ok_or_else(|| LibraryError::UnknownFormat {
        name: name.to_owned(),
    })?;
    Ok(LibraryModel {
        key,
        dimensions,
        format,
    })
}

/// Returns the weight format in which a model was trained and published, if it is not a float type.
fn trained_format(key: &str) -> Option<WeightFormat> {
    key.starts_with("gpt-oss").then_some(WeightFormat::Mxfp4)
}

/// Returns the name of the format in which a published model was trained, if it is not a float type.
pub fn trained_format_of(spelling: &Spelling) -> Option<String> {
    let format = trained_format(lookup(spelling)?)?;
    Some(format.to_string())
}

/// Returns the library name and the dimensions of a model.
pub fn dimensions(spelling: &Spelling) -> Option<(&'static str, ModelDimensions)> {
    let key = lookup(spelling)?;
    Some((key, MODELS.dimensions(key).ok()?))
}

/// Maximum number of proposed names.
const MAX_PROPOSALS: usize = 3;

/// Proposes similar names, otherwise lists the models of the same family, otherwise all models.
fn near(name: &str, spelling: &Spelling) -> String {
    let similar = similar(name, spelling.format.is_some());
    if !similar.is_empty() {
        return format!("did you mean {}?", similar.join(", "));
    }
    let family: String = spelling
        .words
        .first()
        .map(|word| word.chars().take_while(char::is_ascii_alphabetic).collect())
        .unwrap_or_default();
    let names = |prefix: &str| {
        let same = MODELS.names().filter(|name| name.starts_with(prefix));
        same.collect::<Vec<_>>().join(", ")
    };
    match names(&family) {
        same if family.is_empty() || same.is_empty() => format!("known models: {}", names("")),
        same => format!("known models of this family: {same}"),
    }
}

/// Returns the names that differ from `name` by a typing error, the most similar first. A different
/// number is a different model, not a typing error.
fn similar(name: &str, has_format: bool) -> Vec<&'static str> {
    let lower = name.to_ascii_lowercase();
    let last = lower.rsplit('/').next().unwrap_or(&lower);
    let base = match last.rsplit_once('-') {
        Some((base, _)) if has_format => base,
        Some(_) | None => last,
    };
    let digits = |text: &str| -> String { text.chars().filter(char::is_ascii_digit).collect() };
    let most = 1 + base.len() / 8;
    let mut found: Vec<(usize, &'static str)> = MODELS
        .names()
        .filter(|known| digits(known) == digits(base))
        .map(|known| (distance(known, base), known))
        .filter(|(distance, _)| *distance <= most)
        .collect();
    found.sort_unstable();
    found
        .into_iter()
        .take(MAX_PROPOSALS)
        .map(|(_, known)| known)
        .collect()
}

/// Returns the Damerau-Levenshtein distance: insertions, deletions, substitutions and swaps of
/// neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, first) in rows[0].iter_mut().enumerate() {
        *first = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let substitution = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitution.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// Parsed model name: `mlx-community/gemma-3-12b-it-4bit` is family `gemma3` with 12 billion
/// parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Spelling {
    /// Words in order, with version numbers joined to the word before them.
    words: Vec<String>,
    pub size: Option<f64>,
    pub active: Option<f64>,
    /// Weight format in the name.
    pub format: Option<String>,
}

/// Words without influence on the dimensions.
const NOISE: &[&str] = &[
    "instruct",
    "it",
    "chat",
    "base",
    "mlx",
    "gguf",
    "meta",
    "qat",
    "dwq",
    "hf",
    "community",
    "preview",
    "thinking",
    "text",
    "model",
    "quantized",
    "unsloth",
    "awq",
    "gptq",
    "ud",
];

impl Spelling {
    pub fn new(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        let base = lower
            .rsplit('/')
            .next()
            .unwrap_or(&lower)
            .trim_end_matches(".gguf");
        let mut parsed = Self {
            words: Vec::new(),
            size: None,
            active: None,
            format: None,
        };
        let mut joins = false;
        let words = base.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
        let pieces: Vec<&str> = words
            .flat_map(split_format)
            .filter(|piece| !piece.is_empty())
            .collect();
        let mut at = 0;
        while let Some(piece) = pieces.get(at).copied() {
            at += 1;
            let rest = &pieces[at - 1..];
            if let Some((format, length)) = format_in(rest) {
                parsed.format.get_or_insert(format);
                at += length - 1;
                joins = false;
            } else if let Some(size) = size(piece) {
                parsed.size.get_or_insert(size);
                joins = false;
            } else if let Some(active) = piece.strip_prefix('a').and_then(size) {
                parsed.active.get_or_insert(active);
                joins = false;
            } else if piece.starts_with(|c: char| c.is_ascii_digit()) {
                // `llama-3.1` is `llama3.1`. Dates (`2507`) and later numbers are not versions.
                let version = piece.trim_end_matches(".0");
                let is_version = version.len() < 4 && version.chars().all(|c| c.is_ascii_digit() || c == '.');
                match parsed.words.last_mut().filter(|_| joins && is_version) {
                    Some(word) => word.push_str(version),
                    None if piece.contains('x') => parsed.words.push(piece.to_owned()),
                    None => {}
                }
                joins = false;
            } else if !NOISE.contains(&piece) && !is_release(piece) {
                let bare = piece.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
                joins = bare.len() == piece.len();
                parsed.words.push(piece.to_owned());
            }
        }
        parsed
    }

    /// Returns the weight format of the name. `4bit` is MLX's default format of 4 bits.
    fn weight_format(&self) -> Option<WeightFormat> {
        let name = self.format.as_deref()?;
        let affine = name.strip_suffix("bit").map(|bits| format!("mlx{bits}"));
        affine.as_deref().unwrap_or(name).parse().ok()
    }
}

/// Returns whether the word is a release such as `v0.3` or `v1.0`.
fn is_release(piece: &str) -> bool {
    matches!(
        piece.strip_prefix('v').and_then(|rest| rest.chars().next()),
        Some('0' | '1')
    )
}

/// Parses a number of parameters: `12b`, `0.5b`, `270m`. `8x7b` (Mixtral) stays a word.
fn size(piece: &str) -> Option<f64> {
    let (number, scale) = match piece.strip_suffix('b') {
        Some(number) => (number, 1e9),
        None => (piece.strip_suffix('m')?, 1e6),
    };
    number.parse::<f64>().ok().filter(|n| *n > 0.0).map(|n| n * scale)
}

/// Splits `llama-2-7b.Q4_0` into `llama-2-7b` and `Q4_0`.
fn split_format(piece: &str) -> impl Iterator<Item = &str> {
    let is_format = |rest: &str| format_in(&[rest]).is_some();
    let (name, format) = match piece.rsplit_once('.') {
        Some((name, format)) if is_format(format) => (name, Some(format)),
        Some(_) | None => (piece, None),
    };
    std::iter::once(name).chain(format)
}

/// Returns the weight format at the start of `pieces`, and its number of pieces.
fn format_in(pieces: &[&str]) -> Option<(String, usize)> {
    let piece = *pieces.first()?;
    if let Some(bits) = piece.strip_suffix("bit").filter(|bits| !bits.is_empty()) {
        return bits.parse::<u32>().ok().map(|bits| (format!("{bits}bit"), 1));
    }
    if pieces.get(1) == Some(&"bit") && piece.parse::<u32>().is_ok_and(|bits| bits <= 16) {
        return Some((format!("{piece}bit"), 2));
    }
    // `mxfp4-q4`: experts in mxfp4, all other matrices in 4 bits.
    if piece == "mxfp4"
        && let Some(other) = pieces.get(1).filter(|other| matches!(**other, "q4" | "q8"))
    {
        return Some((format!("mxfp4-{other}"), 2));
    }
    if matches!(
        piece,
        "bf16" | "f16" | "fp16" | "f32" | "fp32" | "mxfp4" | "mxfp8" | "nvfp4" | "int4" | "int8"
    ) {
        return Some((piece.to_owned(), 1));
    }
    let digits = piece.strip_prefix("iq").or_else(|| piece.strip_prefix('q'))?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let suffix = pieces[1..]
        .iter()
        .take_while(|piece| {
            matches!(
                **piece,
                "k" | "m" | "s" | "l" | "xl" | "xs" | "xxs" | "nl" | "0" | "1"
            )
        })
        .count();
    Some((pieces[..=suffix].join("_"), 1 + suffix))
}

/// Finds the key in `models.json`.
fn lookup(spelling: &Spelling) -> Option<&'static str> {
    let aliases = ALIASES.iter().map(|(alias, key)| (*alias, *key));
    let keys = MODELS.names().map(|key| (key, key));
    keys.chain(aliases)
        .filter_map(|(known, key)| Some((match_quality(&Spelling::new(known), spelling)?, key)))
        .max_by(|(a, _), (b, _)| a.cmp(b))
        .map(|(_, key)| key)
}

/// Returns the quality of a match; more common words are better. `None` if the names do not match.
fn match_quality(known: &Spelling, queried: &Spelling) -> Option<(usize, bool)> {
    let near = |known: f64, queried: f64| (known / queried - 1.0).abs() < 0.02;
    let mut words = queried.words.iter();
    let has_all_words = known
        .words
        .iter()
        .all(|word| words.any(|queried| queried == word));
    let sized = match (known.size, queried.size) {
        (Some(known), Some(queried)) => near(known, queried),
        // Without sizes, all words must match, because the words alone distinguish the members of a
        // family.
        (None, None) => known.words == queried.words,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let active = match (known.active, queried.active) {
        (Some(known), Some(queried)) => near(known, queried),
        (None, _) | (_, None) => true,
    };
    (has_all_words && !known.words.is_empty() && sized && active)
        .then_some((known.words.len(), known.active.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_models_by_common_spellings() {
        let cases = [
            ("gemma-3-12b-it-4bit", "gemma3-12b"),
            ("mlx-community/gemma-3-12b-it-qat-4bit", "gemma3-12b"),
            ("Gemma 3 12B", "gemma3-12b"),
            ("gemma3:27b", "gemma3-27b"),
            ("Qwen2.5-7B", "qwen2.5-7b"),
            ("qwen2.5-coder-7b-instruct", "qwen2.5-7b"),
            ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"),
            ("Llama-3.2-3B-Instruct", "llama3.2-3b"),
            ("llama3.2:3b", "llama3.2-3b"),
            ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama3-8b"),
            ("Llama 3.3 70B", "llama3-70b"),
            ("llama-2-70b-3bit", "llama2-70b"),
            ("LLaMA-7B v2", "llama2-7b"),
            ("Qwen3-30B", "qwen3-30b-a3b"),
            ("Qwen3-Coder-30B-A3B-Instruct-MLX-4bit", "qwen3-30b-a3b"),
            ("Qwen3-Coder-Next-4bit", "qwen3-coder-next"),
            ("qwen3:32b", "qwen3-32b"),
            ("Qwen3-4B-Instruct-2507", "qwen3-4b"),
            ("gpt-oss-120b MXFP4", "gpt-oss-120b"),
            ("DeepSeek-R1-Distill-Qwen-7B-4bit", "qwen2.5-7b"),
            // The model has an untied head, unlike the base model.
            (
                "DeepSeek-R1-Distill-Qwen-1.5B-4bit",
                "deepseek-r1-distill-qwen-1.5b",
            ),
            ("llama-2-7b.Q4_0.gguf", "llama2-7b"),
            ("mixtral-8x7b-instruct-v0.1.Q4_K_M.gguf", "mixtral-8x7b"),
            ("Qwen3-8B.Q8_0.gguf", "qwen3-8b"),
            ("Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-24b"),
            ("mistral-small3.2:24b", "mistral-small-24b"),
            ("DeepSeek-R1", "deepseek-v3-671b"),
            ("DeepSeek-V3 Q4", "deepseek-v3-671b"),
            ("DeepSeek-Coder-V2-Lite-Instruct", "deepseek-coder-v2-lite"),
            ("Mistral-7B-Instruct-v0.3", "mistral-7b"),
            ("Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
            ("Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
            ("mixtral:8x22b", "mixtral-8x22b"),
            ("Phi-4-mini-instruct", "phi-4-mini"),
            ("phi-4", "phi-4"),
            ("Phi-3.5-mini-instruct", "phi-3.5-mini"),
            ("Phi-3-medium-4k-instruct", "phi-3-medium"),
            ("gemma-4-26b-a4b-it-4bit", "gemma4-26b-a4b"),
            ("Qwen3.5-9B-MLX-4bit", "qwen3.5-9b"),
            ("GLM-4.5-Air", "glm-4.5-air-106b"),
            ("glm-4-9b-chat", "glm-4-9b"),
            ("Kimi-K2-Instruct", "kimi-k2"),
            ("MiniMax-M2", "minimax-m2"),
            ("SmolLM3-3B", "smollm3-3b"),
            ("baidu_ERNIE-4.5-21B-A3B-PT", "ernie-4.5-21b-a3b"),
            ("Codestral-22B-v0.1", "codestral-22b"),
        ];
        for (name, key) in cases {
            assert_eq!(lookup(&Spelling::new(name)), Some(key), "{name}");
        }
        for unknown in ["gemma", "Foo-12B", "qwen2.5-9b", "llama", "DeepSeek-V2-Lite", ""] {
            assert_eq!(lookup(&Spelling::new(unknown)), None, "{unknown}");
        }
        for (name, format) in [
            ("gemma-3-12b-it-4bit", "4bit"),
            ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "q4_k_m"),
            ("gpt-oss-20b MXFP4", "mxfp4"),
            ("Qwen2.5-7B-bf16", "bf16"),
            ("x-Q8_0", "q8_0"),
        ] {
            assert_eq!(Spelling::new(name).format.as_deref(), Some(format), "{name}");
        }
    }

    #[test]
    fn rejects_format_that_contradicts_the_name() {
        let find = |name: &str, format: &str| find(name, Some(format.parse().unwrap()));
        for (name, format) in [
            ("qwen3-8b-4bit", "mlx4"),
            ("qwen3-8b-4bit", "mlx4g32"),
            ("qwen3-8b", "mlx8"),
            ("gpt-oss-20b MXFP4", "mxfp4"),
        ] {
            assert!(find(name, format).is_ok(), "{name} {format}");
        }
        for (name, format) in [
            ("qwen3-8b-4bit", "mlx8"),
            ("qwen3-8b-bf16", "mlx4"),
            ("Qwen3-8B.Q8_0.gguf", "q4_k_m"),
        ] {
            let message = find(name, format).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(format), "{message}");
        }
    }

    /// Numbers of parameters as published on the model cards.
    #[test]
    fn dimensions_match_published_number_of_parameters() {
        let cards = [
            ("codellama-34b", 33.7),
            ("command-r-35b", 35.0),
            ("deepseek-v2-236b", 236.0),
            ("deepseek-v3-671b", 671.0),
            ("gemma2-9b", 9.24),
            ("gemma2-27b", 27.2),
            ("gemma3-12b", 11.77),
            ("glm-4.5-355b", 355.0),
            ("glm-4.5-air-106b", 106.0),
            ("kimi-k2", 1026.0),
            ("llama2-13b", 13.0),
            ("llama3-8b", 8.03),
            ("mistral-large-123b", 123.0),
            ("mixtral-8x22b", 141.0),
            ("olmo2-7b", 7.3),
            ("olmo2-13b", 13.7),
            ("phi-3-mini", 3.82),
            ("qwen2.5-7b", 7.62),
            ("qwen2.5-72b", 72.7),
            ("qwen3-235b-a22b", 235.0),
            ("qwen3-coder-480b-a35b", 480.0),
            ("yi-34b", 34.4),
        ];
        for (key, billions) in cards {
            let parameters = MODELS.dimensions(key).unwrap().parameters() as f64;
            let error = parameters / (billions * 1e9) - 1.0;
            assert!(error.abs() < 0.02, "{key}: {:.2}", parameters / 1e9);
        }
    }

    #[test]
    fn finds_model_by_name_and_format() {
        let found = |name, format: Option<&str>| {
            find(name, format.map(|format| format.parse().unwrap()))
                .map(|model| (model.key, model.format.to_string()))
        };
        let four = Ok(("qwen3-8b", "mlx4".to_owned()));
        assert_eq!(found("qwen3-8b", Some("mlx4")), four);
        assert_eq!(found("mlx-community/Qwen3-8B-4bit", None), four);
        let message = |name| found(name, None).unwrap_err().to_string();
        assert!(message("qwen3-8b").contains("contains no weight format"));
        let unknown = message("qwen99-7b-4bit");
        assert!(
            unknown.contains("`qwen99-7b-4bit`; known models of this family: qwen2")
                && !unknown.contains("gemma"),
            "{unknown}"
        );
        assert!(message("nobody").contains("known models: "));
        for (typed, meant) in [
            ("qwne3-8b", "qwen3-8b"),
            ("qwen3-8bb", "qwen3-8b"),
            ("mistal-large-123b-4bit", "mistral-large-123b"),
        ] {
            let unknown = message(typed);
            assert!(unknown.contains(&format!("; did you mean {meant}")), "{unknown}");
        }
    }
}
