//! Whether a model fits a machine, how fast it would be there, and the smallest change that would
//! make it fit. Pure: `rooflet fit` asks for one machine or for every chip there is.

mod advice;

pub use self::advice::Suggestion;
use crate::chip::ChipVariant;
use crate::kv_quantisation::{KvQuantisation, KvQuantisationError, UNQUANTISED_BITS};
use crate::loading::Disk;
use crate::memory::{RUNTIME_OVERHEAD, activation_bytes, allocatable, cache_bytes, last_that};
use crate::predict::calibration::Calibration;
use crate::predict::{Basis, Engine, Hardware, Interval, Parameters, Prediction, Workload};
use rooflet_base::units::Bytes;
use rooflet_model::facts::{ModelFacts, WeightsSource};
use rooflet_model::kv_cache::KvBits;

/// The most streams that are looked for.
const MOST_STREAMS: u32 = 1024;

/// How the model is to be served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    pub engine: Engine,
    pub context_tokens: u32,
    pub concurrency: u32,
    pub prompt_tokens: u32,
    /// Of a prompt whose beginning was asked before, the tokens whose keys and values are kept;
    /// below `prompt_tokens`.
    pub cached_tokens: u32,
    pub kv_bits: u32,
}

/// What is to hold and run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub name: String,
    pub memory: Bytes,
    /// What models may use of it.
    pub limit: Bytes,
    /// Whether the machine was asked for its limit.
    pub limit_basis: Basis,
    /// `None`: nobody can tell how fast it is.
    pub hardware: Option<Hardware>,
    /// Its engine computes in 32 bits, as MLX does on a CPU, and holds every float so.
    pub in_float32: bool,
    /// What its own runs have taught.
    pub calibrations: Vec<Calibration>,
    /// Bytes per second that its disk was measured to read.
    pub disk_read: Option<Interval>,
}

impl Machine {
    /// A chip of the catalogue with this much memory.
    pub fn of_chip(chip: &'static ChipVariant, memory: Bytes) -> Self {
        Self {
            name: chip.name.clone(),
            memory,
            limit: allocatable(memory, None),
            limit_basis: Basis::Nominal,
            hardware: Some(Hardware::Chip(chip)),
            in_float32: false,
            calibrations: Vec::new(),
            disk_read: None,
        }
    }
}

/// Times to the first token of other beginnings than an engine that idles and knows nothing of the
/// prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OtherFirstTokens {
    /// The beginning of the prompt is cached; `None` where nothing is said to be.
    pub prefix_hit: Option<Interval>,
    /// The weights are read from the disk first. Starting the process and its first kernels come on
    /// top.
    pub cold_load: Interval,
    pub cold_load_basis: Basis,
}

/// Memory that serving takes at most, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    pub weights: Bytes,
    /// Keys and values of all tokens. `None`: the model's family is not known.
    pub kv: Option<Bytes>,
    /// What the caches take that hold them, which grow in steps.
    pub kv_reserved: Option<Bytes>,
    pub activations: Bytes,
    pub runtime: Bytes,
}

impl MemoryNeed {
    pub fn total(&self) -> Bytes {
        self.weights + self.kv_reserved.unwrap_or_default() + self.activations + self.runtime
    }
}

/// Why it does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// More than the machine has.
    Memory,
    /// More than models may use of it.
    WorkingSet,
    /// Longer than the model was made for.
    Context { longest: u32 },
    /// Its caches cannot be computed.
    UnknownFamily,
}

impl Obstacle {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::WorkingSet => "WorkingSet",
            Self::Context { .. } => "Context",
            Self::UnknownFamily => "UnknownFamily",
        }
    }
}

/// The answer for one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    pub need: MemoryNeed,
    /// Bits of an element of the KV cache on this machine.
    pub kv_bits: u32,
    pub memory_basis: Basis,
    pub limit: Bytes,
    pub obstacle: Option<Obstacle>,
    /// Beside an obstacle of memory: the longest context that the model was made for, where more is
    /// asked.
    pub too_long: Option<u32>,
    /// `None`: the family or the machine's speed is not known.
    pub prediction: Option<Prediction>,
    pub other_first_tokens: Option<OtherFirstTokens>,
    /// The longest context at this concurrency, and the most streams at this context; `None` if
    /// there is none.
    pub max_context_tokens: Option<u32>,
    pub max_concurrency: Option<u32>,
    pub suggestions: Vec<Suggestion>,
}

impl Fit {
    pub fn new(facts: &ModelFacts, service: Service, machine: &Machine, parameters: &Parameters) -> Self {
        let wide = machine.in_float32.then(|| facts.in_float32());
        let facts = wide.as_ref().unwrap_or(facts);
        let service = Service {
            kv_bits: match service.kv_bits {
                16 if machine.in_float32 => 32,
                bits => bits,
            },
            ..service
        };
        let asked = Asked { facts, service };
        let need = asked.need();
        let obstacle = asked.obstacle(machine);
        let fits = |service| Asked { facts, service }.fits(machine);
        let with_context = |context_tokens| Service {
            context_tokens,
            ..service
        };
        let with_streams = |concurrency| Service {
            concurrency,
            ..service
        };
        let known = facts.dimensions.is_some();
        let longest = facts.max_context_tokens.unwrap_or(1 << 24);
        let max_context_tokens = last_that(1, longest, |tokens| known && fits(with_context(tokens)));
        let max_concurrency = last_that(1, MOST_STREAMS, |streams| known && fits(with_streams(streams)));
        let cost = facts.cost();
        let predict = |workload: Workload| {
            let (hardware, cost) = machine.hardware.zip(cost.as_ref())?;
            let prediction = Prediction::new(parameters, hardware, service.engine, cost, workload);
            Some(prediction.calibrated(cost, &machine.calibrations))
        };
        let prediction = predict(service.workload());
        let other_first_tokens = prediction.as_ref().map(|prediction| {
            let disk = Disk::new(machine.disk_read);
            let hit = Workload {
                cached_tokens: service.cached_tokens,
                ..service.workload()
            };
            let first_token = |prediction: &Prediction| prediction.prefill.first_token_seconds;
            OtherFirstTokens {
                prefix_hit: predict(hit)
                    .filter(|_| service.cached_tokens > 0)
                    .map(|hit| first_token(&hit)),
                cold_load: disk
                    .seconds(facts.weights.resident())
                    .then(first_token(prediction)),
                // As good as the worse of both.
                cold_load_basis: disk.basis.max(prediction.prefill.basis),
            }
        });
        let too_long = asked
            .beyond_context()
            .filter(|_| matches!(obstacle, Some(Obstacle::Memory | Obstacle::WorkingSet)));
        let suggestions = match obstacle {
            None | Some(Obstacle::UnknownFamily) => Vec::new(),
            Some(Obstacle::Context { longest }) => vec![Suggestion::ContextTokens(longest)],
            Some(Obstacle::Memory | Obstacle::WorkingSet) => {
                asked.suggestions(machine, max_context_tokens, max_concurrency)
            }
        };
        let counted = matches!(facts.source, WeightsSource::Headers(_));
        Self {
            need,
            kv_bits: service.kv_bits,
            memory_basis: if counted {
                machine.limit_basis
            } else {
                Basis::Nominal
            },
            limit: machine.limit,
            obstacle,
            too_long,
            prediction,
            other_first_tokens,
            max_context_tokens,
            max_concurrency,
            suggestions,
        }
    }

    pub fn admitted(&self) -> bool {
        self.obstacle.is_none()
    }

    /// What rules: what stands in the way, else what the speed of decoding is bound by.
    pub fn binding(&self) -> Option<&'static str> {
        match (self.obstacle, &self.prediction) {
            (Some(obstacle), _) => Some(obstacle.as_str()),
            (None, Some(prediction)) => Some(prediction.decode.binding.as_str()),
            (None, None) => None,
        }
    }
}

impl Service {
    /// Why the model's cache cannot have so few bits with this engine, as admission says it.
    pub fn kv_problem(&self, facts: &ModelFacts) -> Option<KvQuantisationError> {
        let dimensions = facts.dimensions.as_ref()?;
        let quantised = self.kv_bits < UNQUANTISED_BITS && self.engine == Engine::Mlx;
        quantised.then(|| KvQuantisation::of_dimensions(self.kv_bits, dimensions).err())?
    }

    pub fn workload(&self) -> Workload {
        Workload {
            batch: self.concurrency,
            context_tokens: self.context_tokens,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            kv_bits: KvBits::new(self.kv_bits),
        }
    }
}

#[derive(Clone, Copy)]
struct Asked<'a> {
    facts: &'a ModelFacts,
    service: Service,
}

impl Asked<'_> {
    fn need(&self) -> MemoryNeed {
        let Service {
            context_tokens,
            concurrency,
            kv_bits,
            ..
        } = self.service;
        let dimensions = self.facts.dimensions.as_ref();
        let (streams, bits) = (u64::from(concurrency), KvBits::new(kv_bits));
        MemoryNeed {
            weights: self.facts.weights.resident(),
            kv: dimensions.map(|dimensions| dimensions.kv_bytes(context_tokens, bits) * streams),
            kv_reserved: dimensions.map(|dimensions| cache_bytes(dimensions, context_tokens, bits) * streams),
            activations: dimensions.map_or(Bytes::ZERO, |dimensions| {
                activation_bytes(dimensions, context_tokens, bits)
            }),
            runtime: RUNTIME_OVERHEAD,
        }
    }

    fn obstacle(&self, machine: &Machine) -> Option<Obstacle> {
        let total = self.need().total();
        if total > machine.memory {
            return Some(Obstacle::Memory);
        }
        if total > machine.limit {
            return Some(Obstacle::WorkingSet);
        }
        match self.beyond_context() {
            Some(longest) => Some(Obstacle::Context { longest }),
            None if self.facts.dimensions.is_none() => Some(Obstacle::UnknownFamily),
            None => None,
        }
    }

    /// The longest context that the model was made for, where more is asked.
    fn beyond_context(&self) -> Option<u32> {
        let longest = self.facts.max_context_tokens?;
        (self.service.context_tokens > longest).then_some(longest)
    }

    fn fits(&self, machine: &Machine) -> bool {
        self.obstacle(machine).is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chip;
    use rooflet_model::facts::Tensors;
    use rooflet_model::library;

    fn llama_8b() -> ModelFacts {
        let config = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
            "max_position_embeddings": 131072, "quantization": {"bits": 4, "group_size": 64}}"#;
        ModelFacts::new(config, Tensors::Unknown).unwrap()
    }

    fn service(context_tokens: u32, concurrency: u32, kv_bits: u32) -> Service {
        Service {
            engine: Engine::Mlx,
            context_tokens,
            concurrency,
            prompt_tokens: 1,
            cached_tokens: 0,
            kv_bits,
        }
    }

    fn m4_pro(gib: u64) -> Machine {
        let chip = chip::find("M4 Pro", Some(20), None).unwrap();
        Machine::of_chip(chip, Bytes::gib(gib))
    }

    fn answer(facts: &ModelFacts, service: Service, machine: &Machine) -> Fit {
        Fit::new(facts, service, machine, Parameters::built_in())
    }

    fn said(fit: &Fit) -> Vec<String> {
        fit.suggestions.iter().map(ToString::to_string).collect()
    }

    /// Windows, and so Gemma: the engine cannot quantise such caches, so nobody is told to.
    #[test]
    fn a_cache_that_cannot_be_quantised_is_refused_and_not_suggested() {
        let found = library::find("gemma3-12b-4bit", None).unwrap();
        let gemma = ModelFacts::of_shape(found.key, found.dimensions, found.format);
        let problem = |engine, kv_bits| {
            let asked = Service {
                engine,
                ..service(8192, 1, kv_bits)
            };
            asked.kv_problem(&gemma).map(|problem| problem.to_string())
        };
        assert!(
            problem(Engine::Mlx, 8)
                .unwrap()
                .contains("40 of its layers keep a sliding window")
        );
        assert_eq!(
            (problem(Engine::Mlx, 16), problem(Engine::LlamaCpp, 8)),
            (None, None)
        );
        assert_eq!(service(8192, 1, 8).kv_problem(&llama_8b()), None);
        let fit = answer(&gemma, service(131_072, 4, 16), &m4_pro(24));
        assert!(
            !fit.admitted() && !said(&fit).iter().any(|text| text.contains("KV cache")),
            "{:?}",
            said(&fit)
        );
    }

    /// 4.517 GB at 3 to 7 GB/s are 0.65 to 1.5 seconds.
    #[test]
    fn a_first_token_comes_earlier_after_a_hit_and_later_after_a_load() {
        let asked = |cached_tokens| Service {
            prompt_tokens: 2000,
            cached_tokens,
            ..service(4096, 1, 16)
        };
        let fit = |cached_tokens, machine: &Machine| answer(&llama_8b(), asked(cached_tokens), machine);
        let mut machine = m4_pro(24);
        let plain = fit(0, &machine);
        let whole = plain.prediction.unwrap().prefill.first_token_seconds;
        let others = plain.other_first_tokens.unwrap();
        assert_eq!(
            (others.prefix_hit, others.cold_load_basis),
            (None, Basis::Nominal)
        );
        let load =
            |others: OtherFirstTokens| (others.cold_load.p10 - whole.p10, others.cold_load.p90 - whole.p90);
        let (fast, slow) = load(others);
        assert!(
            (fast - 0.645).abs() < 0.01 && (slow - 1.506).abs() < 0.01,
            "{fast} {slow}"
        );
        let hit = fit(1900, &machine)
            .other_first_tokens
            .unwrap()
            .prefix_hit
            .unwrap();
        assert!(hit.p90 < whole.p10 && hit.p10 > 0.0, "{hit:?}");
        machine.disk_read = Some(Interval {
            p10: 1e9,
            p50: 1e9,
            p90: 1e9,
        });
        let (fast, slow) = load(fit(0, &machine).other_first_tokens.unwrap());
        assert!(
            (fast - 4.517).abs() < 0.01 && (slow - 4.517).abs() < 0.01,
            "{fast} {slow}"
        );
    }

    /// What the agent learned on this machine corrects what its data sheet promises.
    #[test]
    fn what_runs_have_taught_corrects_a_fit() {
        let mut machine = m4_pro(24);
        let plain = answer(&llama_8b(), service(4096, 2, 16), &machine)
            .prediction
            .unwrap();
        machine.calibrations = vec![Calibration::published(4, &[0.2; 32], &[0.3; 32])];
        let taught = answer(&llama_8b(), service(4096, 2, 16), &machine)
            .prediction
            .unwrap();
        let slower = |plain: Interval, taught: Interval| taught.p50 / plain.p50;
        let (before, after) = (plain.decode, taught.decode);
        assert!((0.81..0.85).contains(&slower(before.tokens_per_second, after.tokens_per_second)));
        assert!(after.aggregate_tokens_per_second.p50 > 1.9 * after.tokens_per_second.p50);
        assert!((1.2..1.4).contains(&slower(
            plain.prefill.first_token_seconds,
            taught.prefill.first_token_seconds
        )));
        assert_eq!((before.basis, after.basis), (Basis::Nominal, Basis::Calibrated));
    }

    /// 4.517 GB of weights, 336 MB of activations and 500 MB of runtime leave 10.805 GB of 16.158;
    /// 4 x 128 KiB a token.
    #[test]
    fn what_does_not_fit_comes_with_what_would() {
        let fit = answer(&llama_8b(), service(32_768, 4, 16), &m4_pro(24));
        assert_eq!(fit.obstacle, Some(Obstacle::WorkingSet));
        assert_eq!(
            (fit.binding(), fit.need.kv),
            (Some("WorkingSet"), Some(Bytes::gib(16)))
        );
        assert_eq!(fit.max_concurrency, Some(2));
        assert_eq!(
            said(&fit),
            [
                "a context of 20480 tokens: --context 20480",
                "2 streams at a time: --concurrency 2",
                "a KV cache of 8 bits: --kv-bits 8",
                "a machine with 48.0 GiB, such as Apple M4 Pro with 20 GPU cores",
            ]
        );
    }

    #[test]
    fn the_model_s_own_limit_counts() {
        let fit = answer(&llama_8b(), service(131_073, 1, 4), &m4_pro(64));
        assert_eq!(fit.binding(), Some("Context"));
        assert_eq!(said(&fit), ["a context of 131072 tokens: --context 131072"]);
    }

    #[test]
    fn of_an_unknown_family_only_a_no_is_certain() {
        let mut facts = llama_8b();
        facts.dimensions = None;
        let fit = answer(&facts, service(4096, 1, 16), &m4_pro(24));
        assert_eq!((fit.admitted(), fit.binding()), (false, Some("UnknownFamily")));
        assert!(fit.prediction.is_none() && fit.need.kv.is_none());
        let fit = answer(&facts, service(4096, 1, 16), &m4_pro(4));
        assert_eq!(fit.binding(), Some("Memory"));
    }

    proptest! {
        #[test]
        fn the_verdict_agrees_with_its_working(
            context in 1u32..=131_072, concurrency in 1u32..64, bits in prop::sample::select(vec![4u32, 8, 16]),
            gib in 6u64..200,
        ) {
            let facts = llama_8b();
            let service = service(context, concurrency, bits);
            let fit = answer(&facts, service, &m4_pro(gib));
            prop_assert_eq!(fit.admitted(), fit.need.total() <= fit.limit);
            prop_assert_eq!(fit.admitted(), fit.max_context_tokens.is_some_and(|most| most >= context));
            prop_assert_eq!(fit.admitted(), fit.max_concurrency.is_some_and(|most| most >= concurrency));
            prop_assert!(!fit.admitted() || fit.suggestions.is_empty());
        }

        #[test]
        fn every_suggestion_is_enough(context in 1u32..=131_072, concurrency in 1u32..64, gib in 6u64..64) {
            let facts = llama_8b();
            let service = service(context, concurrency, 16);
            let machine = m4_pro(gib);
            for suggestion in answer(&facts, service, &machine).suggestions {
                let (mut service, mut machine, mut facts) = (service, machine.clone(), facts.clone());
                match suggestion {
                    Suggestion::ContextTokens(tokens) => service.context_tokens = tokens,
                    Suggestion::Concurrency(streams) => service.concurrency = streams,
                    Suggestion::KvBits(bits) => service.kv_bits = bits,
                    Suggestion::WeightBits(_, weights) => facts.weights.every_step = weights - facts.weights.idle,
                    Suggestion::Machine(chip, memory) => machine = Machine::of_chip(chip, memory),
                }
                prop_assert!(answer(&facts, service, &machine).admitted());
            }
        }
    }
}
