//! Which build of an engine runs a model, as far as its name tells.

use super::Engine;

/// Program and release behind an [`Engine`]: several programs wrap the same kernels, and each
/// release is another speed.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineBuild {
    pub engine: Engine,
    /// Key of [`super::parameters::DecodeParameters::program_ms`].
    pub(super) program: Option<String>,
    /// Key of the parameters' `releases`.
    pub(super) release: Option<String>,
    /// llama.cpp before 2025.
    pub(super) early: bool,
    pub(super) flash_attention: bool,
    /// Uses the GPU's matrix units where there are any.
    pub(super) matrix_units: bool,
    /// Of a time in which what was converted for MLX had its floats made float16.
    pub(super) float16: bool,
    /// Answers requests all the time, so that its weights stay resident. Others start, or idle
    /// between runs.
    pub(super) warm_server: bool,
}

/// Programs with figures of their own, as tables write them most often.
const PROGRAMS: [&str; 9] = [
    "llama.cpp",
    "mlx-lm",
    "mlx-swift-lm",
    "vllm-mlx",
    "ollama",
    "ollama-mlx",
    "lmstudio-mlx",
    "lmstudio-llama.cpp",
    "ax-engine (mlx)",
];

/// Programs that tables show as servers.
const SERVERS: [&str; 3] = ["ollama", "vllm", "lmstudio"];

/// The first year whose builds of llama.cpp fuse operators and use flash attention unasked.
const FIRST_CURRENT_YEAR: u32 = 2025;
/// llama.cpp numbers its builds; this is the first one of that year.
const FIRST_CURRENT_BUILD: u32 = 4_400;

/// Year and month since whose beginning `mlx_lm.convert` keeps bfloat16 (ml-explore/mlx-lm, pull
/// request 117 of 2025-04-23).
const FIRST_BFLOAT_MONTH: (u32, u32) = (2025, 5);

impl EngineBuild {
    /// The build that a table names by `program` and `release`, such as `ollama`, `0.32.1`.
    pub fn named(engine: Engine, program: &str, release: &str) -> Self {
        let release = release.trim();
        let program = spelt_as_usual(program.trim(), engine);
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
            program: Some(program),
        }
    }

    /// What it ran most likely had its floats made float16.
    pub(crate) fn is_of_float16(&self) -> bool {
        self.float16
    }

    pub fn is_warm_server(&self) -> bool {
        self.warm_server
    }

    /// Program and release as one name, where they are known.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }
}

/// A build of today of which nothing else is known.
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
        }
    }
}

/// Blanks, case and dashes do not make another program, nor does the tool of it that measured. LM
/// Studio and Ollama run both engines.
fn spelt_as_usual(name: &str, engine: Engine) -> String {
    let squeezed = |name: &str| -> String {
        let kept = name.chars().filter(char::is_ascii_alphanumeric);
        kept.map(|c| c.to_ascii_lowercase()).collect()
    };
    let asked = squeezed(name);
    let known = |program: &&&str| squeezed(program) == asked;
    let both = match (asked.as_str(), engine) {
        ("lmstudio", Engine::Mlx) => Some("lmstudio-mlx"),
        ("lmstudio", Engine::LlamaCpp) => Some("lmstudio-llama.cpp"),
        ("ollama", Engine::Mlx) => Some("ollama-mlx"),
        ("mlx", _) => Some("mlx-lm"),
        _ if asked.starts_with("llama") => Some("llama.cpp"),
        _ if asked.starts_with("mlxlm") => Some("mlx-lm"),
        (_, _) => None,
    };
    let usual = both.or_else(|| PROGRAMS.iter().find(known).copied());
    usual.unwrap_or(name).to_owned()
}

/// Whether a release's name gives a year or a build number from before [`FIRST_CURRENT_YEAR`]. Of
/// several numbers the first decides; a name without one is taken for a current build.
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

/// The first `2025-03` in a release's name, as year and month.
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
    use super::*;

    #[test]
    fn the_name_of_a_release_tells_its_age_and_its_kernels() {
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
        let float16 = |release| EngineBuild::named(Engine::Mlx, "mlx-lm", release).is_of_float16();
        assert!(float16("2024-10") && float16("mlx-lm 2025-03"));
        assert!(!float16("2025-12") && !float16("0.31.3/mlx 0.32.0") && !float16("mlx-lm 0.31.x 2026-05/06"));
    }

    #[test]
    fn a_program_is_the_same_however_it_is_spelt() {
        for (spelt, engine, usual) in [
            ("Ollama", Engine::LlamaCpp, "ollama"),
            ("Ollama", Engine::Mlx, "ollama-mlx"),
            ("LM Studio", Engine::Mlx, "lmstudio-mlx"),
            ("LM Studio (llama.cpp)", Engine::LlamaCpp, "lmstudio-llama.cpp"),
            ("llama-bench", Engine::LlamaCpp, "llama.cpp"),
            ("LLAMA_CPP", Engine::LlamaCpp, "llama.cpp"),
            ("MLX", Engine::Mlx, "mlx-lm"),
            ("mlx_lm.server", Engine::Mlx, "mlx-lm"),
            ("vLLM MLX", Engine::Mlx, "vllm-mlx"),
            ("Jan", Engine::LlamaCpp, "Jan"),
        ] {
            let named = |name: &str| EngineBuild::named(engine, name, "1.0");
            assert_eq!(named(spelt), named(usual), "{spelt}");
        }
    }
}
