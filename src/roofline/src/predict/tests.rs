use proptest::prelude::*;

use super::*;
use crate::chip;
use crate::chip::ChipVariant;
use rooflet_base::units::BytesPerSecond;
use rooflet_model::shapes::ShapeFile;
use rooflet_model::weights::WeightFormat;
use rooflet_model::weights::Weights;

const SHAPES: &str = include_str!("../../../model/src/shapes.json");

fn model(name: &str, format: WeightFormat) -> ModelCost {
    let dimensions = ShapeFile::parse(SHAPES).unwrap().dimensions(name).unwrap();
    let weights = Weights::estimate(&dimensions, format);
    ModelCost { dimensions, weights }
}

fn workload(batch: u32, context_tokens: u32, prompt_tokens: u32) -> Workload {
    Workload {
        batch,
        context_tokens,
        prompt_tokens,
        cached_tokens: 0,
        kv_bits: KvBits::HALF,
    }
}

/// llama.cpp discussion 4167 lists 83.06 tokens/s for this model and format on an M4 Max with 40
/// cores.
#[test]
fn published_figure_lies_in_the_interval() {
    let chip = chip::find("M4 Max", Some(40), None).unwrap();
    let prediction = Prediction::new(
        Parameters::built_in(),
        Hardware::Chip(chip),
        EngineBuild::named(
            Engine::LlamaCpp,
            "llama.cpp",
            "8e672ef (2023-11) or later community build",
        ),
        &model("llama2-7b", WeightFormat::Q4_0),
        workload(1, 64, 512),
    );
    let rate = prediction.decode.tokens_per_second;
    assert!(rate.p10 <= 83.06 && 83.06 <= rate.p90, "{rate:?}");
}

#[test]
fn launches_bind_small_models_and_bandwidth_large_models() {
    let binding = |name| {
        let chip = chip::find("M4 Max", Some(40), None).unwrap();
        let model = model(name, WeightFormat::Q4_0);
        Prediction::new(
            Parameters::built_in(),
            Hardware::Chip(chip),
            Engine::Mlx,
            &model,
            workload(1, 512, 512),
        )
        .decode
        .binding
    };
    assert_eq!(binding("qwen2.5-0.5b"), Constraint::Overhead);
    assert_eq!(binding("llama3-70b"), Constraint::Bandwidth);
}

/// XiongjieDai's GPU benchmarks (May 2024) list these rates of an M2 Ultra, which does not
/// throttle, for answers of 512 and 8192 tokens. The average contexts are half as long.
#[test]
fn without_flash_attention_each_query_head_adds_traffic() {
    let chip = chip::find("M2 Ultra", Some(76), None).unwrap();
    for (name, format, short, long) in [
        ("llama3-8b", WeightFormat::Float16, 36.90, 30.68),
        ("llama3-8b", WeightFormat::Q4KM, 78.81, 54.13),
        ("llama3-70b", WeightFormat::Float16, 4.76, 4.23),
        ("llama3-70b", WeightFormat::Q4KM, 12.48, 9.34),
    ] {
        let rate = |context| {
            let (model, work) = (model(name, format), workload(1, context, 512));
            let parameters = Parameters::built_in();
            let prediction = Prediction::new(parameters, Hardware::Chip(chip), early_build(), &model, work);
            prediction.decode.tokens_per_second.p50
        };
        let slowdown: f64 = rate(4096) / rate(256) / (long / short);
        assert!((slowdown - 1.0).abs() < 0.05, "{name} {format}: {slowdown}");
    }
}

/// itsmostafa/inference-speed-tests lists these rates of an M4 Max for short prompts and for prompts
/// of about 22,000 tokens. The models have 4, 8, 8 and 20 query heads per key head; the last model
/// has latent attention.
#[test]
fn long_contexts_cost_more_with_more_query_heads_per_key_head() {
    let chip = chip::find("M4 Max", Some(40), None).unwrap();
    let mlx4 = WeightFormat::Affine { bits: 4, group: 64 };
    for (name, format, (short, fast), (long, slow)) in [
        ("qwen3-8b", mlx4, (272, 95.88), (22_769, 51.91)),
        ("gpt-oss-20b", WeightFormat::Mxfp4, (329, 121.02), (22_076, 91.09)),
        ("qwen3-coder-next", mlx4, (272, 90.59), (22_708, 72.63)),
        ("glm-4.7-flash", mlx4, (267, 87.53), (21_928, 46.59)),
    ] {
        let step = |context| {
            let work = workload(1, context, 512);
            let hardware = Hardware::Chip(chip);
            let model = model(name, format);
            let decode = Prediction::new(Parameters::built_in(), hardware, Engine::Mlx, &model, work).decode;
            decode.tokens_per_second.p50.recip()
        };
        let slowdown = step(long) / step(short) / (fast / slow);
        assert!((slowdown - 1.0).abs() < 0.12, "{name}: {slowdown}");
    }
}

/// guruswami-ai/mlx-benchmarks lists these rates of an M3 Ultra with mlx-lm, with 1,024 and 65,536
/// tokens before answers of 100. Five query heads per key head (Qwen2.5) cost more than four of
/// Llama, relative to the bytes of the cache.
#[test]
fn five_query_heads_per_key_head_cost_as_much_as_eight() {
    let chip = chip::find("M3 Ultra", Some(80), None).unwrap();
    let four_bits = WeightFormat::Affine { bits: 4, group: 64 };
    for (name, short, long) in [
        ("llama3-8b", 119.14, 45.94),
        ("qwen2.5-14b", 63.64, 21.05),
        ("qwen2.5-32b", 31.46, 13.48),
    ] {
        let rate = |context| {
            let (model, work) = (model(name, four_bits), workload(1, context, 512));
            let hardware = Hardware::Chip(chip);
            let build = EngineBuild::from(Engine::Mlx);
            let prediction = Prediction::new(Parameters::built_in(), hardware, build, &model, work);
            prediction.decode.tokens_per_second.p50
        };
        let (predicted, measured) = (rate(65_586) / rate(1_074), long / short);
        assert!(
            (predicted / measured - 1.0_f64).abs() < 0.12,
            "{name}: {predicted} instead of {measured}"
        );
    }
}

/// Two sources list 20 to 26 tokens/s of gpt-oss-20b with Ollama on an M4, which has 10 cores. By its
/// bytes alone, it would have more than 30.
#[test]
fn llama_cpp_looks_up_mxfp4_in_a_table() {
    let chip = chip::find("M4", Some(10), None).unwrap();
    let rate = |engine, tabulated_experts| {
        let mut model = model("gpt-oss-20b", WeightFormat::Mxfp4);
        model.weights.tabulated_experts &= tabulated_experts;
        let work = workload(1, 200, 100);
        let prediction = Prediction::new(
            Parameters::built_in(),
            Hardware::Chip(chip),
            EngineBuild::from(engine),
            &model,
            work,
        );
        prediction.decode.tokens_per_second.p50
    };
    let (table, plain) = (rate(Engine::LlamaCpp, true), rate(Engine::LlamaCpp, false));
    assert!(table < 0.9 * plain && table > 20.0, "{table} and {plain}");
    assert_eq!(rate(Engine::Mlx, true), rate(Engine::Mlx, false));
}

/// The first token of Qwen3-Coder-Next (45 GB) for 16 tokens took 114 ms on an M4 Max
/// (itsmostafa/inference-speed-tests). An idle engine makes the weights resident first.
#[test]
fn warm_engine_needs_no_residency() {
    let chip = chip::find("M4 Max", Some(40), None).unwrap();
    let model = model("qwen3-coder-next", WeightFormat::Affine { bits: 4, group: 64 });
    let first_token = |build: EngineBuild| {
        let work = workload(1, 16, 16);
        let prediction = Prediction::new(Parameters::built_in(), Hardware::Chip(chip), build, &model, work);
        prediction.prefill.first_token_seconds
    };
    let warm = first_token(EngineBuild::named(Engine::Mlx, "mlx-lm", "2026"));
    assert!((warm.p50 / 0.114 - 1.0).abs() < 0.3, "{warm:?}");
    let idle = first_token(EngineBuild::named(Engine::Mlx, "mlx-lm", "2026").idle());
    assert!(idle.p50 > warm.p50 + 0.1, "{idle:?}");
    let unknown = first_token(Engine::Mlx.into());
    let detokenizer = warm.p50 - unknown.p50;
    assert!(detokenizer > 0.0, "{unknown:?}");
    assert!(unknown.p90 >= idle.p50 - detokenizer, "{unknown:?}");
}

/// itsmostafa/inference-speed-tests lists the time to the first token on an M5 Max, and mlx-lm's own
/// rate of the prefill. The differences are the time before the prefill: 97 ms - 11/204.9 s and so
/// on.
#[test]
fn mlx_lm_builds_a_detokenizer_before_each_prefill() {
    let chip = chip::find("M5 Max", Some(40), None).unwrap();
    let before_prefill = |name, build: EngineBuild| {
        let model = model(name, WeightFormat::Affine { bits: 4, group: 64 });
        let work = workload(1, 64, 24);
        let prefill =
            Prediction::new(Parameters::built_in(), Hardware::Chip(chip), build, &model, work).prefill;
        prefill.first_token_seconds.p50 - f64::from(work.prompt_tokens) / prefill.tokens_per_second.p50
    };
    for (name, measured) in [
        ("glm-4.7-flash", 0.043),
        ("qwen3-coder-next", 0.043),
        ("gpt-oss-20b", 0.061),
        ("qwen3.5-9b", 0.080),
        ("gemma4-26b-a4b", 0.094),
    ] {
        let seconds = before_prefill(name, EngineBuild::named(Engine::Mlx, "mlx-lm", ""));
        assert!((seconds / measured - 1.0).abs() < 0.2, "{name}: {seconds}");
        for other in [EngineBuild::from(Engine::Mlx), early_build()] {
            assert!(before_prefill(name, other).abs() < 1e-9);
        }
    }
}

/// The heads have sizes of 64, 128 and 256.
#[test]
fn attention_costs_more_per_operation_with_small_heads() {
    let per_operation = |name| {
        let model = model(name, WeightFormat::Affine { bits: 4, group: 64 });
        let work = prefill::PrefillWork::new(&model, workload(1, 64, 4096));
        Parameters::built_in()
            .prefill
            .mlx
            .attention_flops(&work, 1.0, 1.0)
            / work.scores
    };
    let [small, middle, large] = ["gpt-oss-20b", "qwen3-8b", "gemma3-12b"].map(per_operation);
    assert!((middle - 1.0).abs() < 1e-9, "{middle}");
    assert!(small > 1.1 && large < 0.9, "{small} {large}");
}

/// Prefill kernels compute whole tiles for each expert, independent of the number of sequences that
/// use it.
#[test]
fn larger_batches_never_speed_up_streams_of_a_mixture_of_experts() {
    let parameters = Parameters::built_in();
    let chip = chip::find("M1", Some(8), None).unwrap();
    let build = EngineBuild::from(Engine::LlamaCpp);
    let model = model("mixtral-8x7b", WeightFormat::Q4_0);
    let rates: Vec<f64> = (1..128)
        .map(|batch| {
            let work = workload(batch, 1, 1);
            let prediction = Prediction::new(parameters, Hardware::Chip(chip), build.clone(), &model, work);
            prediction.decode.tokens_per_second.p50
        })
        .collect();
    assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
}

fn any_model() -> impl Strategy<Value = ModelCost> {
    let names: Vec<String> =
        serde_json::from_str::<std::collections::BTreeMap<String, serde_json::Value>>(SHAPES)
            .unwrap()
            .into_keys()
            .collect();
    let formats = vec![
        WeightFormat::Float16,
        WeightFormat::Q8_0,
        WeightFormat::Q6K,
        WeightFormat::Q4KM,
        WeightFormat::Q4_0,
        WeightFormat::Affine { bits: 4, group: 64 },
    ];
    (proptest::sample::select(names), proptest::sample::select(formats))
        .prop_map(|(name, format)| model(&name, format))
}

fn any_chip() -> impl Strategy<Value = &'static ChipVariant> {
    (0..chip::catalogue().len()).prop_map(|index| &chip::catalogue()[index])
}

fn early_build() -> EngineBuild {
    EngineBuild::named(Engine::LlamaCpp, "llama.cpp", "2024-05 (no flash-attn)")
}

fn any_build() -> impl Strategy<Value = EngineBuild> {
    prop_oneof![
        Just(EngineBuild::from(Engine::Mlx)),
        Just(EngineBuild::from(Engine::LlamaCpp)),
        Just(early_build()),
    ]
}

proptest! {
    #[test]
    fn figures_are_positive_finite_and_in_order(
        model in any_model(), chip in any_chip(), build in any_build(),
        batch in 0u32..200, context in 0u32..1_000_000, prompt in 0u32..1_000_000, cached in 0u32..1_000_000,
    ) {
        let work = Workload { cached_tokens: cached, ..workload(batch, context, prompt) };
        let prediction = Prediction::new(Parameters::built_in(), Hardware::Chip(chip), build.clone(), &model, work);
        for interval in [
            prediction.decode.tokens_per_second,
            prediction.decode.aggregate_tokens_per_second,
            prediction.prefill.tokens_per_second,
            prediction.prefill.first_token_seconds,
        ] {
            prop_assert!(interval.p10.is_finite() && interval.p90.is_finite());
            prop_assert!(0.0 < interval.p10 && interval.p10 <= interval.p50 && interval.p50 <= interval.p90);
        }
        let working = prediction.decode.working;
        prop_assert!(working.total >= working.overhead && working.total * 1.001 >= working.memory);
    }

    #[test]
    fn more_bandwidth_is_never_slower(
        model in any_model(), chip in any_chip(), build in any_build(), factor in 1.0f64..4.0, batch in 1u32..32,
    ) {
        let parameters = Parameters::built_in();
        let faster = ChipVariant { bandwidth: BytesPerSecond(chip.bandwidth.0 * factor), ..chip.clone() };
        let work = workload(batch, 4096, 4096);
        let step = decode::StepWork::new(&model, work);
        let of = |chip: &ChipVariant| parameters.decode.step_time(&step, chip, &build).total;
        prop_assert!(of(&faster) <= of(chip));
        let prefill = prefill::PrefillWork::new(&model, work);
        let of = |chip: &ChipVariant| parameters.prefill.time(&prefill, chip, &build).total();
        prop_assert!(of(&faster) <= of(chip));
    }

    #[test]
    fn longer_contexts_and_larger_batches_slow_streams_but_never_the_batch(
        model in any_model(), chip in any_chip(), build in any_build(),
        batch in 1u32..64, context in 1u32..100_000, more in 1u32..100_000,
    ) {
        let of = |batch, context| {
            let parameters = Parameters::built_in();
            Prediction::new(parameters, Hardware::Chip(chip), build.clone(), &model, workload(batch, context, context)).decode
        };
        let rate = of(batch, context).tokens_per_second.p50;
        prop_assert!(of(batch, context + more).tokens_per_second.p50 <= rate);
        let larger = of(batch + 1, context);
        prop_assert!(larger.tokens_per_second.p50 <= rate);
        // A step with one more sequence adds at most the cost of one sequence.
        prop_assert!(larger.aggregate_tokens_per_second.p50 >= 0.999 * of(1, context).tokens_per_second.p50);
    }

    #[test]
    fn a_cached_prefix_never_delays_the_first_token(
        model in any_model(), chip in any_chip(), build in any_build(), prompt in 2u32..100_000, share in 0.0f64..1.0,
    ) {
        let of = |cached_tokens| {
            let work = Workload { cached_tokens, ..workload(1, prompt, prompt) };
            Prediction::new(Parameters::built_in(), Hardware::Chip(chip), build.clone(), &model, work)
                .prefill
                .first_token_seconds
                .p50
        };
        prop_assert!(of((f64::from(prompt) * share) as u32) <= of(0) * (1.0 + 1e-9));
    }
}

/// One checkpoint in both types reached 133 and 178 tokens/s on an M2 Max (raullenchai/Rapid-MLX,
/// issue 3154).
#[test]
fn old_gpus_emulate_bfloat16() {
    let rate = |chip: &str, cores, format| {
        let chip = chip::find(chip, Some(cores), None).unwrap();
        let model = model("llama3-8b", format);
        let work = workload(1, 4096, 2726);
        let prediction = |engine: Engine| {
            Prediction::new(Parameters::built_in(), Hardware::Chip(chip), engine, &model, work)
        };
        let rate = |engine| prediction(engine).prefill.tokens_per_second.p50;
        (rate(Engine::Mlx), rate(Engine::LlamaCpp))
    };
    let ((slow, llama_cpp), (fast, same)) = (
        rate("M2 Ultra", 76, WeightFormat::BFloat16),
        rate("M2 Ultra", 76, WeightFormat::Float16),
    );
    assert!((slow / fast - 133.0 / 178.0).abs() < 0.02, "{slow} {fast}");
    let (float32, _) = rate("M2 Ultra", 76, WeightFormat::Float32);
    assert!(float32 / fast > 0.9, "{float32} {fast}: float32 is not emulated");
    assert_eq!(llama_cpp, same);
    assert_eq!(
        rate("M3 Ultra", 80, WeightFormat::BFloat16),
        rate("M3 Ultra", 80, WeightFormat::Float16)
    );
}

/// Large batches use the prefill kernels.
#[test]
fn large_batches_decode_at_prefill_speed() {
    let chip = chip::find("M4 Max", Some(40), None).unwrap();
    let model = model("qwen3-8b", WeightFormat::Q4_0);
    let prediction = |batch| {
        let work = workload(batch, 64, 4096);
        Prediction::new(
            Parameters::built_in(),
            Hardware::Chip(chip),
            Engine::Mlx,
            &model,
            work,
        )
    };
    for batch in [256, 512] {
        let Prediction { decode, prefill } = prediction(batch);
        let share = decode.aggregate_tokens_per_second.p50 / prefill.tokens_per_second.p50;
        assert!((0.7..1.0).contains(&share), "{batch}: {share}");
    }
}

#[test]
fn batch_is_never_slower_than_separate_sequences() {
    for chip in chip::catalogue() {
        for (name, format) in [
            ("qwen3-30b-a3b", WeightFormat::Q4_0),
            ("qwen3-8b", WeightFormat::Q8_0),
        ] {
            let model = model(name, format);
            let rate = |batch| {
                let work = workload(batch, 512, 512);
                let hardware = Hardware::Chip(chip);
                Prediction::new(Parameters::built_in(), hardware, Engine::Mlx, &model, work).decode
            };
            for batch in [2, 4, 16] {
                let (alone, batched) = (rate(1), rate(batch));
                let (one, many) = (
                    alone.aggregate_tokens_per_second,
                    batched.aggregate_tokens_per_second,
                );
                assert!(
                    many.p10 >= one.p10 * 0.999_999,
                    "{} {name} {batch}: {one:?} {many:?}",
                    chip.name
                );
                assert!(many.p10 <= many.p50);
                // A stream is never faster in a batch.
                assert!(batched.tokens_per_second.p90 <= alone.tokens_per_second.p90);
            }
        }
    }
}

/// Engines do not use prefill kernels for a single token. A second sequence makes no stream faster.
#[test]
fn batch_of_one_uses_decode_kernels() {
    let parameters = Parameters::built_in();
    for chip in chip::catalogue() {
        for format in [WeightFormat::Q2K, WeightFormat::Q4KM, WeightFormat::Float16] {
            for build in [
                EngineBuild::from(Engine::Mlx),
                EngineBuild::from(Engine::LlamaCpp),
            ] {
                let model = model("llama3-70b", format);
                let decode = |batch| {
                    let hardware = Hardware::Chip(chip);
                    Prediction::new(
                        parameters,
                        hardware,
                        build.clone(),
                        &model,
                        workload(batch, 512, 512),
                    )
                    .decode
                };
                let alone = decode::StepWork::new(&model, workload(1, 512, 512));
                let step = parameters.decode.step_time(&alone, chip, &build);
                let (one, two) = (decode(1), decode(2));
                assert_eq!(one.working, step, "{} {format} {build:?}", chip.name);
                assert!(
                    two.tokens_per_second.p50 <= one.tokens_per_second.p50,
                    "{} {format} {build:?}: {one:?} {two:?}",
                    chip.name
                );
            }
        }
    }
}

/// Small batches fill only a part of a tile of the prefill kernels. The rates of all sequences
/// together are published by ax-engine (page on the ceiling of batches) and for llama.cpp's
/// `llama-batched-bench`.
#[test]
fn small_batches_use_decode_kernels() {
    let ax = EngineBuild::named(Engine::Mlx, "ax-engine (mlx)", "6.13.5/mlx 0.32.0");
    let llama = EngineBuild::named(Engine::LlamaCpp, "llama.cpp", "2026 fa ub2048");
    let mlx4 = WeightFormat::Affine { bits: 4, group: 64 };
    for (chip, cores, build, name, format, work, published) in [
        ("M5 Max", 40, &ax, "llama3-8b", mlx4, workload(8, 64, 32), 328.9),
        (
            "M2 Ultra",
            76,
            &llama,
            "gpt-oss-120b",
            WeightFormat::Mxfp4,
            workload(8, 530, 512),
            176.0,
        ),
        (
            "M2 Ultra",
            76,
            &llama,
            "gpt-oss-120b",
            WeightFormat::Mxfp4,
            workload(32, 530, 512),
            279.4,
        ),
    ] {
        let hardware = Hardware::Chip(chip::find(chip, Some(cores), None).unwrap());
        let model = model(name, format);
        let prediction = Prediction::new(Parameters::built_in(), hardware, build.clone(), &model, work);
        let rate = prediction.decode.aggregate_tokens_per_second.p50;
        assert!(
            (rate / published - 1.0).abs() < 0.1,
            "{chip} {name}: {rate}, published {published}"
        );
    }
}
