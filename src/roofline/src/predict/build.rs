//! Build of the engine that runs a model, parsed from its name.

use rooflet_model::dimensions::{Attention, Layer, ModelDimensions};

use super::Engine;

/// Program and release of an [`Engine`]. Several programs wrap the same kernels, and releases
/// differ in speed.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineBuild {
    pub engine: Engine,
    /// Key of [`super::parameters::DecodeParameters::program_ms`].
    pub(super) program: Option<String>,
    /// Key of the parameters' `releases`.
    pub(super) release: Option<String>,
    /// True for releases of llama.cpp before 2025.
    pub(super) early: bool,
    pub(super) flash_attention: bool,
    /// True if the build uses the matrix units of GPUs that have them.
    pub(super) matrix_units: bool,
    /// True for releases from the time in which `mlx_lm.convert` stored floats as float16.
    pub(super) float16: bool,
    /// True if the program is a server with fixed costs of its own per request.
    pub(super) warm_server: bool,
    /// True if the engine was idle for seconds before each request, so that its weights were not
    /// resident for the GPU.
    pub(super) idle: bool,
}

/// Programs with their own figures, in the most common notation.
const PROGRAMS: [&str; 10] = [
    "llama.cpp",
    "mlx-lm",
    MLX_SERVER,
    "mlx-swift-lm",
    "vllm-mlx",
    "ollama",
    "ollama-mlx",
    "lmstudio-mlx",
    "lmstudio-llama.cpp",
    "ax-engine (mlx)",
];

/// mlx-lm behind its HTTP server, which adds time to every token.
const MLX_SERVER: &str = "mlx-lm server";

/// Programs that tables list as servers.
const SERVERS: [&str; 3] = ["ollama", "vllm", "lmstudio"];

/// First year whose builds of llama.cpp fuse operators and use flash attention by default.
const FIRST_CURRENT_YEAR: u32 = 2025;
/// First build number of llama.cpp of that year.
const FIRST_CURRENT_BUILD: u32 = 4_400;

/// First month (year, month) in which `mlx_lm.convert` keeps bfloat16 (ml-explore/mlx-lm, pull
/// request 117 of 2025-04-23).
const FIRST_BFLOAT_MONTH: (u32, u32) = (2025, 5);

impl EngineBuild {
    /// Parses the program and release of a table, such as `ollama`, `0.32.1`.
    pub fn named(engine: Engine, program: &str, release: &str) -> Self {
        let release = release.trim();
        let program = normalized_program(program.trim(), engine);
        let program = if program == "mlx-lm" && measures_requests(release) {
            MLX_SERVER.to_owned()
        } else {
            program
        };
        let early = engine == Engine::LlamaCpp && is_early(release);
        let lower = release.to_ascii_lowercase();
        let words = || lower.split(|c: char| !c.is_ascii_alphanumeric());
        Self {
            engine,
            release: (!release.is_empty()).then(|| format!("{program} {release}")),
            early,
            flash_attention: !early || (words().any(|word| word == "fa")),
            matrix_units: !lower.contains("metal only"),
            float16: engine == Engine::Mlx && month(release).is_some_and(|month| month < FIRST_BFLOAT_MONTH),
            warm_server: SERVERS.iter().any(|server| program.starts_with(server)),
            idle: false,
            program: Some(program),
        }
    }

    /// Returns whether its models most likely have float16 floats.
    pub(crate) fn stores_float16(&self) -> bool {
        self.float16
    }

    /// Returns the build with an engine that was idle before each request.
    pub(crate) fn idle(self) -> Self {
        Self { idle: true, ..self }
    }

    /// Returns whether the engine keeps every token in every layer, although the model has windows.
    /// llama.cpp did so until 2025, and mlx-lm implements Gemma 2 without a window.
    pub(crate) fn ignores_windows(&self, model: &ModelDimensions) -> bool {
        match self.engine {
            Engine::Mlx => alternates_windows(model),
            Engine::LlamaCpp => self.early,
        }
    }

    /// Returns the key of the program.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    /// Returns whether the program builds a detokenizer from the whole vocabulary for each request.
    /// mlx-lm's `stream_generate` does so before the prefill (`tokenizer_utils.py`).
    pub(super) fn builds_detokenizers(&self) -> bool {
        self.program() == Some("mlx-lm")
    }

    /// Returns whether a rate in tables of this build counts the whole answer, including its
    /// prefill. llmfit divides the tokens of an answer by the time of the request. Only for Ollama,
    /// which reports the time of its decode, it uses that time (`bench.rs`).
    pub(crate) fn measures_whole_answers(&self) -> bool {
        let from_llmfit = self.release().is_some_and(|release| release.contains("llmfit"));
        from_llmfit
            && !self
                .program()
                .is_some_and(|program| program.starts_with("ollama"))
    }

    pub fn is_warm_server(&self) -> bool {
        self.warm_server
    }

    /// Returns program and release as one name, if known.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }
}

/// Returns a current build without known program or release.
impl From<Engine> for EngineBuild {
    fn from(engine: Engine) -> Self {
        Self {
            engine,
            program: None,
            release: None,
            early: false,
            flash_attention: true,
            matrix_units: true,
            float16: false,
            warm_server: false,
            idle: false,
        }
    }
}

/// Normalises the name of a program. Blanks, case, dashes and the name of the measuring tool are
/// ignored. LM Studio and Ollama run both engines.
fn normalized_program(name: &str, engine: Engine) -> String {
    let squeezed = |name: &str| -> String {
        let kept = name.chars().filter(char::is_ascii_alphanumeric);
        kept.map(|c| c.to_ascii_lowercase()).collect()
    };
    let wanted = squeezed(name);
    let known = |program: &&&str| squeezed(program) == wanted;
    let both = match (wanted.as_str(), engine) {
        ("lmstudio", Engine::Mlx) => Some("lmstudio-mlx"),
        ("lmstudio", Engine::LlamaCpp) => Some("lmstudio-llama.cpp"),
        ("ollama", Engine::Mlx) => Some("ollama-mlx"),
        ("mlx", _) => Some("mlx-lm"),
        _ if wanted.starts_with("llama") => Some("llama.cpp"),
        _ if wanted.starts_with("mlxlmserver") => Some(MLX_SERVER),
        _ if wanted.starts_with("mlxlm") => Some("mlx-lm"),
        (_, _) => None,
    };
    let usual = both.or_else(|| PROGRAMS.iter().find(known).copied());
    usual.unwrap_or(name).to_owned()
}

/// Returns whether the release's name shows that rates were measured through an HTTP server (llmfit
/// measures all programs in this way).
fn measures_requests(release: &str) -> bool {
    let lower = release.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "server" | "llmfit"))
}

/// Returns whether dense layers with and without window alternate, as in Gemma 2.
fn alternates_windows(model: &ModelDimensions) -> bool {
    let windowed = |layer: &Layer| matches!(layer.attention, Attention::Grouped { window: Some(_), .. });
    let alternating = model
        .layers
        .windows(2)
        .all(|pair| windowed(&pair[0]) != windowed(&pair[1]));
    model.layers.len() > 1 && alternating && model.expert_layers() == 0
}

/// Returns whether a release has a year or build number before [`FIRST_CURRENT_YEAR`]. The first of
/// several numbers decides. A name without number is a current build.
fn is_early(release: &str) -> bool {
    release
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| matches!(word.trim_start_matches('b').len(), 4 | 5))
        .find_map(|word| word.trim_start_matches('b').parse::<u32>().ok())
        .is_some_and(|number| match number {
            2000..FIRST_CURRENT_YEAR => true,
            FIRST_CURRENT_YEAR..2100 => false,
            build => build < FIRST_CURRENT_BUILD,
        })
}

/// Returns the first `2025-03` in a release's name as year and month.
fn month(release: &str) -> Option<(u32, u32)> {
    let words: Vec<&str> = release.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    words.windows(2).find_map(|pair| {
        let year = pair[0].parse().ok().filter(|year| (2000..2100).contains(year))?;
        let month = pair[1].parse().ok().filter(|month| (1..=12).contains(month))?;
        Some((year, month))
    })
}

#[cfg(test)]
mod tests {
    use rooflet_model::shapes::ShapeFile;

    use super::*;

    #[test]
    fn parses_age_and_kernels_of_a_release() {
        let build = |release: &str| EngineBuild::named(Engine::LlamaCpp, "llama.cpp", release);
        for early in [
            "8e672ef (2023-11) or later community build",
            "2024-05 (no flash-attn)",
            "22df85ff (2707) fa",
        ] {
            assert!(build(early).early, "{early}");
        }
        for current in [
            "b10050",
            "2026-05/06 build",
            "e9fd8dc (7825)",
            "afe65aa",
            "PR16634 tensor API",
            "",
        ] {
            assert!(!build(current).early, "{current}");
        }
        assert!(build("22df85ff (2707) fa").flash_attention);
        assert!(!build("2024-05 (no flash-attn)").flash_attention);
        assert!(!build("Metal only, 2026-03").matrix_units);
        assert!(!EngineBuild::named(Engine::Mlx, "mlx-lm", "2024-10").early);
        let float16 = |release| EngineBuild::named(Engine::Mlx, "mlx-lm", release).stores_float16();
        assert!(float16("2024-10") && float16("mlx-lm 2025-03"));
        assert!(!float16("2025-12") && !float16("0.31.3/mlx 0.32.0") && !float16("mlx-lm 0.31.x 2026-05/06"));
    }

    #[test]
    fn rates_of_requests_are_those_of_a_server() {
        let program = |name, release| {
            let build = EngineBuild::named(Engine::Mlx, name, release);
            build.program().unwrap_or_default().to_owned()
        };
        assert_eq!(program("mlx-lm", "llmfit 2026-08/09"), "mlx-lm server");
        assert_eq!(program("mlx-lm", "server git 77c33b14"), "mlx-lm server");
        assert_eq!(program("mlx-lm", "0.31.3"), "mlx-lm");
        assert_eq!(program("ollama-mlx", "llmfit 1.1.6"), "ollama-mlx");
    }

    /// mlx-lm's gemma2.py creates plain caches, and its gemma3_text.py rotating ones.
    #[test]
    fn only_some_engines_keep_tokens_outside_the_window() {
        let shapes = ShapeFile::parse(include_str!("../../../model/src/shapes.json")).unwrap();
        let model = |name: &str| shapes.dimensions(name).unwrap();
        let mlx = EngineBuild::from(Engine::Mlx);
        assert!(mlx.ignores_windows(&model("gemma2-2b")));
        for windowed in ["gemma3-12b", "gemma4-31b", "gpt-oss-20b", "llama3-8b"] {
            assert!(!mlx.ignores_windows(&model(windowed)), "{windowed}");
        }
        let llama = |release| EngineBuild::named(Engine::LlamaCpp, "llama.cpp", release);
        assert!(llama("2024-05 (no flash-attn)").ignores_windows(&model("gemma2-2b")));
        assert!(!llama("b10050").ignores_windows(&model("gemma2-2b")));
    }

    #[test]
    fn normalizes_names_of_programs() {
        for (name, engine, normalized) in [
            ("Ollama", Engine::LlamaCpp, "ollama"),
            ("Ollama", Engine::Mlx, "ollama-mlx"),
            ("LM Studio", Engine::Mlx, "lmstudio-mlx"),
            ("LM Studio (llama.cpp)", Engine::LlamaCpp, "lmstudio-llama.cpp"),
            ("llama-bench", Engine::LlamaCpp, "llama.cpp"),
            ("LLAMA_CPP", Engine::LlamaCpp, "llama.cpp"),
            ("MLX", Engine::Mlx, "mlx-lm"),
            ("mlx_lm.generate", Engine::Mlx, "mlx-lm"),
            ("mlx_lm.server", Engine::Mlx, "mlx-lm server"),
            ("vLLM MLX", Engine::Mlx, "vllm-mlx"),
            ("Jan", Engine::LlamaCpp, "Jan"),
        ] {
            let named = |name: &str| EngineBuild::named(engine, name, "1.0");
            assert_eq!(named(name), named(normalized), "{name}");
        }
    }
}
