//! Fit of a model on a machine: memory, speed, and the smallest changes that would make it fit.
//! `rooflet fit` evaluates one machine or every chip.

mod advice;

pub use self::advice::Suggestion;
use crate::chip::ChipVariant;
use crate::kv_quantisation::{KvQuantisation, KvQuantisationError, UNQUANTISED_BITS};
use crate::loading::Disk;
use crate::memory::{RUNTIME_OVERHEAD, activation_bytes, allocatable, cache_bytes, largest_where};
use crate::predict::calibration::Calibration;
use crate::predict::{Basis, Engine, Hardware, Interval, Parameters, Prediction, Workload};
use rooflet_base::units::Bytes;
use rooflet_model::facts::{ModelFacts, WeightsSource};
use rooflet_model::kv_cache::KvBits;

/// Maximum number of streams that the search considers.
const MAX_STREAMS: u32 = 1024;

/// Serving parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    pub engine: Engine,
    pub context_tokens: u32,
    pub concurrency: u32,
    pub prompt_tokens: u32,
    /// Cached tokens of a prompt with a known prefix; below `prompt_tokens`.
    pub cached_tokens: u32,
    pub kv_bits: u32,
}

/// Machine that is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub name: String,
    pub memory: Bytes,
    /// Memory that models may use.
    pub limit: Bytes,
    /// Basis of `limit`: reported by the machine or nominal.
    pub limit_basis: Basis,
    /// `None` if the speed is unknown.
    pub hardware: Option<Hardware>,
    /// True if the engine computes in 32 bits, as MLX does on a CPU, and stores every float in 32
    /// bits.
    pub in_float32: bool,
    /// Calibrations by runs on this machine.
    pub calibrations: Vec<Calibration>,
    /// Measured read speed of the disk in bytes per second.
    pub disk_read: Option<Interval>,
}

impl Machine {
    /// Returns a machine with a chip of the catalogue and this much memory.
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

/// Times to the first token under other conditions than an idle engine without cached prefix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstTokenVariants {
    /// Time with a cached prefix. `None` if no cached tokens are specified.
    pub prefix_hit: Option<Interval>,
    /// Time if the weights must first be read from disk. The start of the process and its first
    /// kernels are not included.
    pub cold_load: Interval,
    pub cold_load_basis: Basis,
}

/// Maximum memory of serving, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    pub weights: Bytes,
    /// Keys and values of all tokens. `None` if the family is unknown.
    pub kv: Option<Bytes>,
    /// Memory of the caches, which grow in steps.
    pub kv_reserved: Option<Bytes>,
    pub activations: Bytes,
    pub runtime: Bytes,
}

impl MemoryNeed {
    pub fn total(&self) -> Bytes {
        self.weights + self.kv_reserved.unwrap_or_default() + self.activations + self.runtime
    }
}

/// Reason why the model does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The model needs more than the memory of the machine.
    Memory,
    /// The model needs more than the memory that models may use.
    WorkingSet,
    /// The requested context is longer than the one of the model.
    Context { longest: u32 },
    /// The size of the caches is unknown.
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

/// Result for one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    pub need: MemoryNeed,
    /// Bits of an element of the KV cache on this machine.
    pub kv_bits: u32,
    pub memory_basis: Basis,
    pub limit: Bytes,
    pub obstacle: Option<Obstacle>,
    /// Context length of the model if a longer one is requested, in addition to an obstacle of
    /// memory.
    pub too_long: Option<u32>,
    /// `None` if the family or the speed of the machine is unknown.
    pub prediction: Option<Prediction>,
    pub first_token_variants: Option<FirstTokenVariants>,
    /// Longest context at this concurrency, and maximum number of streams at this context. `None`
    /// if there is none.
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
        let query = FitQuery { facts, service };
        let need = query.need();
        let obstacle = query.obstacle(machine);
        let fits = |service| FitQuery { facts, service }.fits(machine);
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
        let max_context_tokens = largest_where(1, longest, |tokens| known && fits(with_context(tokens)));
        let max_concurrency = largest_where(1, MAX_STREAMS, |streams| known && fits(with_streams(streams)));
        let cost = facts.cost();
        let predict = |workload: Workload| {
            let (hardware, cost) = machine.hardware.zip(cost.as_ref())?;
            let prediction = Prediction::new(parameters, hardware, service.engine, cost, workload);
            Some(prediction.calibrated(cost, workload, &machine.calibrations))
        };
        let prediction = predict(service.workload());
        let first_token_variants = prediction.as_ref().map(|prediction| {
            let disk = Disk::new(machine.disk_read);
            let hit = Workload {
                cached_tokens: service.cached_tokens,
                ..service.workload()
            };
            let first_token = |prediction: &Prediction| prediction.prefill.first_token_seconds;
            FirstTokenVariants {
                prefix_hit: predict(hit)
                    .filter(|_| service.cached_tokens > 0)
                    .map(|hit| first_token(&hit)),
                cold_load: disk
                    .seconds(facts.weights.resident())
                    .then(first_token(prediction)),
                // The worse of both bases.
                cold_load_basis: disk.basis.max(prediction.prefill.basis),
            }
        });
        let too_long = query
            .beyond_context()
            .filter(|_| matches!(obstacle, Some(Obstacle::Memory | Obstacle::WorkingSet)));
        let suggestions = match obstacle {
            None | Some(Obstacle::UnknownFamily) => Vec::new(),
            Some(Obstacle::Context { longest }) => vec![Suggestion::ContextTokens(longest)],
            Some(Obstacle::Memory | Obstacle::WorkingSet) => {
                query.suggestions(machine, max_context_tokens, max_concurrency)
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
            first_token_variants,
            max_context_tokens,
            max_concurrency,
            suggestions,
        }
    }

    pub fn admitted(&self) -> bool {
        self.obstacle.is_none()
    }

    /// Returns the obstacle, or else the bound of decode speed.
    pub fn binding(&self) -> Option<&'static str> {
        match (self.obstacle, &self.prediction) {
            (Some(obstacle), _) => Some(obstacle.as_str()),
            (None, Some(prediction)) => Some(prediction.decode.binding.as_str()),
            (None, None) => None,
        }
    }
}

impl Service {
    /// Returns why the model's cache cannot have these bits with this engine; the same text as in
    /// admission.
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
struct FitQuery<'a> {
    facts: &'a ModelFacts,
    service: Service,
}

impl FitQuery<'_> {
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

    /// Returns the context length of the model if a longer one is requested.
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

    fn evaluate(facts: &ModelFacts, service: Service, machine: &Machine) -> Fit {
        Fit::new(facts, service, machine, Parameters::built_in())
    }

    fn suggestions(fit: &Fit) -> Vec<String> {
        fit.suggestions.iter().map(ToString::to_string).collect()
    }

    /// The engine cannot quantise caches with windows (Gemma), so the suggestions exclude it.
    #[test]
    fn never_suggests_quantisation_of_an_unsupported_cache() {
        let found = library::find("gemma3-12b-4bit", None).unwrap();
        let gemma = ModelFacts::of_shape(found.key, found.dimensions, found.format);
        let problem = |engine, kv_bits| {
            let query = Service {
                engine,
                ..service(8192, 1, kv_bits)
            };
            query.kv_problem(&gemma).map(|problem| problem.to_string())
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
        let fit = evaluate(&gemma, service(131_072, 4, 16), &m4_pro(24));
        assert!(
            !fit.admitted() && !suggestions(&fit).iter().any(|text| text.contains("KV cache")),
            "{:?}",
            suggestions(&fit)
        );
    }

    /// 4.517 GB at 3 to 7 GB/s take 0.65 to 1.5 seconds.
    #[test]
    fn first_token_is_earlier_with_cached_prefix_and_later_after_a_load() {
        let query = |cached_tokens| Service {
            prompt_tokens: 2000,
            cached_tokens,
            ..service(4096, 1, 16)
        };
        let fit = |cached_tokens, machine: &Machine| evaluate(&llama_8b(), query(cached_tokens), machine);
        let mut machine = m4_pro(24);
        let plain = fit(0, &machine);
        let whole = plain.prediction.unwrap().prefill.first_token_seconds;
        let others = plain.first_token_variants.unwrap();
        assert_eq!(
            (others.prefix_hit, others.cold_load_basis),
            (None, Basis::Nominal)
        );
        let load =
            |others: FirstTokenVariants| (others.cold_load.p10 - whole.p10, others.cold_load.p90 - whole.p90);
        let (fast, slow) = load(others);
        assert!(
            (fast - 0.645).abs() < 0.01 && (slow - 1.506).abs() < 0.01,
            "{fast} {slow}"
        );
        let hit = fit(1900, &machine)
            .first_token_variants
            .unwrap()
            .prefix_hit
            .unwrap();
        assert!(hit.p90 < whole.p10 && hit.p10 > 0.0, "{hit:?}");
        machine.disk_read = Some(Interval {
            p10: 1e9,
            p50: 1e9,
            p90: 1e9,
        });
        let (fast, slow) = load(fit(0, &machine).first_token_variants.unwrap());
        assert!(
            (fast - 4.517).abs() < 0.01 && (slow - 4.517).abs() < 0.01,
            "{fast} {slow}"
        );
    }

    /// Calibrations of the agent correct the nominal prediction.
    #[test]
    fn calibrations_correct_a_fit() {
        let mut machine = m4_pro(24);
        let plain = evaluate(&llama_8b(), service(4096, 2, 16), &machine)
            .prediction
            .unwrap();
        machine.calibrations = vec![Calibration::of_weight_bits(4, &[0.2; 32], &[0.3; 32])];
        let calibrated = evaluate(&llama_8b(), service(4096, 2, 16), &machine)
            .prediction
            .unwrap();
        let slower = |plain: Interval, calibrated: Interval| calibrated.p50 / plain.p50;
        let (before, after) = (plain.decode, calibrated.decode);
        assert!((0.81..0.85).contains(&slower(before.tokens_per_second, after.tokens_per_second)));
        assert!(after.aggregate_tokens_per_second.p50 > 1.9 * after.tokens_per_second.p50);
        assert!((1.2..1.4).contains(&slower(
            plain.prefill.first_token_seconds,
            calibrated.prefill.first_token_seconds
        )));
        assert_eq!((before.basis, after.basis), (Basis::Nominal, Basis::Calibrated));
    }

    /// 4.517 GB of weights, 336 MB of activations and 500 MB of runtime leave 10.805 GB of 16.158
    /// GB for caches of 4 x 128 KiB per token.
    #[test]
    fn suggests_changes_that_make_the_model_fit() {
        let fit = evaluate(&llama_8b(), service(32_768, 4, 16), &m4_pro(24));
        assert_eq!(fit.obstacle, Some(Obstacle::WorkingSet));
        assert_eq!(
            (fit.binding(), fit.need.kv),
            (Some("WorkingSet"), Some(Bytes::gib(16)))
        );
        assert_eq!(fit.max_concurrency, Some(2));
        assert_eq!(
            suggestions(&fit),
            [
                "a context of 20480 tokens: --context 20480",
                "2 streams at a time: --concurrency 2",
                "a KV cache of 8 bits: --kv-bits 8",
                "a machine with 48.0 GiB, such as Apple M4 Pro with 20 GPU cores",
            ]
        );
    }

    #[test]
    fn context_length_of_the_model_is_a_limit() {
        let fit = evaluate(&llama_8b(), service(131_073, 1, 4), &m4_pro(64));
        assert_eq!(fit.binding(), Some("Context"));
        assert_eq!(
            suggestions(&fit),
            ["a context of 131072 tokens: --context 131072"]
        );
    }

    #[test]
    fn unknown_family_is_never_admitted() {
        let mut facts = llama_8b();
        facts.dimensions = None;
        let fit = evaluate(&facts, service(4096, 1, 16), &m4_pro(24));
        assert_eq!((fit.admitted(), fit.binding()), (false, Some("UnknownFamily")));
        assert!(fit.prediction.is_none() && fit.need.kv.is_none());
        let fit = evaluate(&facts, service(4096, 1, 16), &m4_pro(4));
        assert_eq!(fit.binding(), Some("Memory"));
    }

    proptest! {
        #[test]
        fn verdict_agrees_with_its_figures(
            context in 1u32..=131_072, concurrency in 1u32..64, bits in prop::sample::select(vec![4u32, 8, 16]),
            gib in 6u64..200,
        ) {
            let facts = llama_8b();
            let service = service(context, concurrency, bits);
            let fit = evaluate(&facts, service, &m4_pro(gib));
            prop_assert_eq!(fit.admitted(), fit.need.total() <= fit.limit);
            prop_assert_eq!(fit.admitted(), fit.max_context_tokens.is_some_and(|most| most >= context));
            prop_assert_eq!(fit.admitted(), fit.max_concurrency.is_some_and(|most| most >= concurrency));
            prop_assert!(!fit.admitted() || fit.suggestions.is_empty());
        }

        #[test]
        fn every_suggestion_makes_the_model_fit(context in 1u32..=131_072, concurrency in 1u32..64, gib in 6u64..64) {
            let facts = llama_8b();
            let service = service(context, concurrency, 16);
            let machine = m4_pro(gib);
            for suggestion in evaluate(&facts, service, &machine).suggestions {
                let (mut service, mut machine, mut facts) = (service, machine.clone(), facts.clone());
                match suggestion {
                    Suggestion::ContextTokens(tokens) => service.context_tokens = tokens,
                    Suggestion::Concurrency(streams) => service.concurrency = streams,
                    Suggestion::KvBits(bits) => service.kv_bits = bits,
                    Suggestion::WeightBits(_, weights) => facts.weights.every_step = weights - facts.weights.idle,
                    Suggestion::Machine(chip, memory) => machine = Machine::of_chip(chip, memory),
                }
                prop_assert!(evaluate(&facts, service, &machine).admitted());
            }
        }
    }
}
