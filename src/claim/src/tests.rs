//! Published cases of `cases.yaml`, and properties of all claims.

mod true_claims;

use crate::figure_class::FigureClass as _;
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use rooflet_api::v1alpha1::FigureKind;
use rooflet_base::yaml;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::weights::{WeightFormat, Weights};
use rooflet_roofline::chip;
use rooflet_roofline::predict::{Engine, Hardware, ModelCost, Parameters, Prediction, Workload};

/// Claim with the expected result of its check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    expect: Expect,
    claim: PerformanceClaimSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    verdict: ClaimVerdict,
    /// Field of the expected finding.
    field: Option<String>,
    /// Expected correct value, within 2 %.
    right: Option<f64>,
    /// Texts in the finding's message.
    #[serde(default)]
    contains: Vec<String>,
}

#[test]
fn published_cases_have_expected_verdicts() {
    let mut wrong = Vec::new();
    for document in yaml::documents(include_str!("cases.yaml")).unwrap() {
        let case: Case = serde_json::from_value(document).unwrap();
        let assessment = Assessment::new(&case.claim).unwrap_or_else(|err| panic!("{}: {err}", case.name));
        let expect = &case.expect;
        if assessment.verdict != expect.verdict {
            let found: Vec<String> = assessment
                .findings
                .iter()
                .map(|finding| format!("{} {}: {}", finding.verdict, finding.field, finding.message))
                .collect();
            wrong.push(format!(
                "{}: {} instead of {}: {found:#?}",
                case.name, assessment.verdict, expect.verdict
            ));
            continue;
        }
        if !expect.verdict.is_flag() {
            continue;
        }
        let found = assessment.findings.iter().find(|finding| {
            finding.verdict == expect.verdict
                && expect.field.as_ref().is_none_or(|field| *field == finding.field)
                && expect
                    .contains
                    .iter()
                    .all(|remarks| finding.message.contains(remarks))
                && expect.right.is_none_or(|right| {
                    finding
                        .right_value
                        .is_some_and(|value| (value - right).abs() <= 0.02 * right.abs())
                })
        });
        if found.is_none() {
            wrong.push(format!(
                "{}: no finding fits {expect:?}: {:#?}",
                case.name, assessment.findings
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Claim of one decode rate.
fn decode_claim(
    rate: f64,
    chip: &chip::ChipVariant,
    model: &str,
    format: &str,
    batch: u32,
) -> PerformanceClaimSpec {
    let yaml = serde_json::json!({
        "hardware": {
            "chip": chip.name, "gpuCores": chip.gpu_cores, "memory": format!("{} GB", chip.memory.iter().max().unwrap().0 >> 30),
        },
        "model": {"name": model, "quantization": format},
        "workload": {"prompt": 512, "batch": batch},
        "figures": [{"kind": "decodeTokensPerSecond", "value": format!("{rate:.4}")}],
    });
    serde_json::from_value(yaml).unwrap()
}

const MODELS: &[&str] = &[
    "llama2-7b",
    "llama3-8b",
    "gemma3-12b",
    "gemma3-1b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "qwen3.5-4b",
    "glm-4.7-flash",
    "qwen2.5-0.5b",
    "mixtral-8x7b",
];
const FORMATS: &[&str] = &["mlx4", "mlx8", "bf16", "q4_k_m", "q8_0", "mxfp4"];

proptest! {
    #[test]
    fn predictions_are_plausible_and_rates_above_the_limit_are_not(
        chip in 0..chip::catalogue().len(),
        model in 0..MODELS.len(),
        format in 0..FORMATS.len(),
        batch in prop_oneof![Just(1u32), 2u32..32],
        llama in any::<bool>(),
    ) {
        let chip = &chip::catalogue()[chip];
        let (model, format) = (MODELS[model], FORMATS[format]);
        let spec = decode_claim(1.0, chip, model, format, batch);
        let cell = Cell::of_figure(&spec, &spec.figures[0], "figures[0]").unwrap();
        let (known, _, claimed) = cell.model.sized().unwrap();
        // Exclude models that do not fit into memory: they exceed another limit.
        prop_assume!(known.resident(claimed.likely) * 1.2 < cell.machine.max_memory().unwrap());

        let dimensions = known.dimensions.clone().unwrap();
        let cost = ModelCost { weights: Weights::estimate(&dimensions, format.parse::<WeightFormat>().unwrap()), dimensions };
        let workload = Workload { batch, context_tokens: 512, prompt_tokens: 512, cached_tokens: 0, kv_bits: KvBits::HALF };
        let engine = if llama { Engine::LlamaCpp } else { Engine::Mlx };
        let predicted = Prediction::new(Parameters::built_in(), Hardware::Chip(chip), engine, &cost, workload);
        let spec = decode_claim(predicted.decode.aggregate_tokens_per_second.p50, chip, model, format, batch);
        let result = Assessment::new(&spec).unwrap();
        prop_assert_eq!(result.verdict, ClaimVerdict::Plausible, "{:#?}", result);

        let limit = limits::DecodeLimit::new(&cell).unwrap().hard;
        let result = Assessment::new(&decode_claim(1.05 * limit, chip, model, format, batch)).unwrap();
        prop_assert_eq!(result.verdict, ClaimVerdict::ExceedsRoofline, "{:#?}", result);
    }
}

/// Ceilings computed by hand: 273 GB/s divided by the bytes of one token (6.98·10⁹ weights and a
/// head of 0.525·10⁹).
#[test]
fn rate_5_percent_above_ceiling_exceeds_roofline_for_known_formats() {
    let m4_pro = chip::find("M4 Pro", Some(20), None).unwrap();
    let verdict = |format: &str, rate: f64| {
        let spec = decode_claim(rate, m4_pro, "llama3-8b", format, 1);
        Assessment::new(&spec).unwrap().verdict
    };
    for (format, ceiling) in [("mlx4", 64.6), ("mlx8", 34.2), ("q8_0", 34.2), ("q4_k_m", 58.4)] {
        assert_eq!(
            verdict(format, 0.98 * ceiling),
            ClaimVerdict::Plausible,
            "{format}"
        );
        assert_eq!(
            verdict(format, 1.05 * ceiling),
            ClaimVerdict::ExceedsRoofline,
            "{format}"
        );
    }
}

#[test]
fn accepts_time_per_token_as_rate() {
    let verdict = |value: &str| {
        assess(&format!(
            "hardware: {{chip: Apple M4 Pro, gpuCores: 20, memory: 48 GB}}\nmodel: {{name: Qwen2.5-14B-Instruct-4bit}}\n\
             figures: [{{kind: decodeTokensPerSecond, value: {value}}}]"
        ))
        .verdict
    };
    for plausible in [
        "40 ms/token",
        "0.04 s/token",
        "~40 ms per token",
        "38-42 ms/tok",
        "40ms/token",
    ] {
        assert_eq!(verdict(plausible), ClaimVerdict::Plausible, "{plausible}");
    }
    assert_eq!(verdict("5 ms/token"), ClaimVerdict::ExceedsRoofline);
}

#[test]
fn share_of_total_memory_is_a_remark_if_the_model_fits() {
    let memory = |share: &str| {
        assess(&format!(
            "hardware: {{chip: Apple M4, gpuCores: 10, memory: 16 GB}}\nmodel: {{name: Qwen3-8B-4bit}}\n\
             figures: [{{kind: memoryBytes, value: 5.5 GB}}, {{kind: shareOfMemory, value: {share}}}]"
        ))
    };
    let of_all = memory("34 %");
    assert_eq!(of_all.verdict, ClaimVerdict::Plausible);
    let remarks = of_all.checks.iter().flat_map(|check| &check.remarks);
    assert!(
        remarks.into_iter().any(|remark| remark.contains("48 % of that")),
        "{of_all:?}"
    );
    assert_eq!(memory("48 %").verdict, ClaimVerdict::Plausible);
    assert_eq!(memory("70 %").verdict, ClaimVerdict::WrongFact);
}

#[test]
fn weights_above_default_gpu_limit_are_a_remark() {
    let remarks = |memory: &str| {
        let assessment = assess(&format!(
            "hardware: {{chip: Apple M4 Max, gpuCores: 40, memory: {memory}}}\nmodel: {{name: Llama-3.3-70B-Instruct-6bit}}\n\
             figures: [{{kind: decodeTokensPerSecond, value: 8}}]"
        ));
        assert_eq!(assessment.verdict, ClaimVerdict::Plausible);
        let all: Vec<String> = assessment
            .checks
            .into_iter()
            .flat_map(|check| check.remarks)
            .collect();
        all.join("; ")
    };
    assert!(
        remarks("64 GB").contains("iogpu.wired_limit_mb"),
        "{}",
        remarks("64 GB")
    );
    assert!(!remarks("128 GB").contains("iogpu.wired_limit_mb"));
}

fn assess(yaml: &str) -> Assessment {
    let spec: PerformanceClaimSpec = yaml::from_str(yaml).unwrap();
    Assessment::new(&spec).unwrap_or_else(|err| panic!("{yaml}: {err}"))
}

/// Returns the verdict of a claim with one figure, and all its messages and remarks.
fn assess_figure(yaml: &str) -> (ClaimVerdict, String) {
    let assessment = assess(yaml);
    let of_figure = |field: &str| field == "figures[0]";
    let findings = assessment
        .findings
        .iter()
        .filter(|finding| of_figure(&finding.field));
    let checks = assessment.checks.iter().filter(|check| of_figure(&check.field));
    let remarks: Vec<&str> = findings
        .map(|finding| finding.message.as_str())
        .chain(checks.flat_map(|check| check.remarks.iter().map(String::as_str)))
        .collect();
    (assessment.verdict, remarks.join("; "))
}

#[test]
fn bits_per_weight_may_be_the_mean_or_the_format() {
    let verdict = |model: &str, format: &str, bits: &str| {
        assess_figure(&format!(
            "{{model: {{name: {model}, quantization: {format}}}, figures: [{{kind: bitsPerWeight, value: {bits}}}]}}"
        ))
        .0
    };
    for (model, format, bits) in [
        ("gpt-oss-120b", "mxfp4", "4.33"),
        // Nominal bits of the format.
        ("gpt-oss-120b", "mxfp4", "4.25"),
        ("qwen3-30b-a3b", "q4_k_xl", "4.65"),
        ("gemma-4-26b-a4b", "q4_k_m", "5.3"),
        ("llama-3.1-8b", "q4_k_m", "4.96"),
        ("llama-3.1-8b", "q4_k_m", "4.85"),
        ("gemma-3-12b", "mlx4", "4.5"),
    ] {
        assert_eq!(
            verdict(model, format, bits),
            ClaimVerdict::Plausible,
            "{model} {bits}"
        );
    }
    for (model, format, bits) in [
        ("gpt-oss-120b", "mxfp4", "8.5"),
        ("gemma-3-12b", "mlx4", "4"),
        ("llama-3.1-8b", "q4_k_m", "4.0"),
    ] {
        assert_eq!(
            verdict(model, format, bits),
            ClaimVerdict::WrongFact,
            "{model} {bits}"
        );
    }
}

#[test]
fn printed_weight_calculation_holds_as_statement() {
    let others = ["llama-3.1-8b", "gpt-oss-120b", "gemma-4-26b-a4b"];
    for model in MODELS.iter().chain(&others) {
        for format in FORMATS.iter().chain(&["q4_k_xl"]) {
            let (verdict, result) = assess_figure(&format!(
                "{{model: {{name: {model}, quantization: {format}}}, figures: [{{kind: weightBytes, value: 900 GB}}]}}"
            ));
            assert_eq!(verdict, ClaimVerdict::WrongFact, "{model} {format}: {result}");
            let checked = Statement::new(&result).check();
            assert!(
                matches!(checked, Outcome::Holds { .. }),
                "{model} {format}: {result}: {checked:?}"
            );
        }
    }
}

#[test]
fn remarks_that_rate_requires_4bit_cache() {
    let at = |rate: f64| {
        let spec = format!(
            "{{hardware: {{chip: M4 Max, gpuCores: 40}}, model: {{name: llama-3.1-8b-4bit}}, workload: {{context: 131072}}, \
             figures: [{{kind: decodeTokensPerSecond, value: {rate}}}]}}"
        );
        (assess_figure(&spec), assess(&spec))
    };
    let ((verdict, result), _) = at(25.0);
    assert_eq!(verdict, ClaimVerdict::Plausible);
    assert!(!result.contains("4 bits"), "{result}");
    let ((verdict, result), _) = at(60.0);
    assert_eq!(verdict, ClaimVerdict::Plausible);
    assert!(
        result.contains("possible only with a 4-bit KV cache") && !result.contains("25.5"),
        "{result}"
    );
    let ((verdict, result), assessment) = at(70.0);
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline);
    assert!(result.contains("4 bits") && !result.contains("25.5"), "{result}");
    let right = assessment.findings[0].right_value.unwrap();
    assert!((60.0..62.0).contains(&right), "{right}");

    let seconds = "{hardware: {chip: M4 Max, gpuCores: 40}, model: {name: llama-3.1-8b-4bit}, \
                   workload: {context: 131072, generated: 701}, figures: [{kind: decodeSeconds, value: 10}]}";
    let right = assess(seconds).findings[0].right_value.unwrap();
    assert!((11.0..12.0).contains(&right), "{right}");
}

#[test]
fn throughput_without_batch_is_unclear_up_to_the_compute_limit() {
    let result = |workload: &str, rate: u32| {
        assess_figure(&format!(
            "{{engine: vllm-mlx, hardware: {{chip: M3 Ultra, gpuCores: 80}}, model: {{name: qwen3-8b-4bit}}, \
             workload: {workload}, figures: [{{kind: throughputTokensPerSecond, value: {rate}}}]}}"
        ))
    };
    assert_eq!(result("{}", 150).0, ClaimVerdict::Plausible);
    let (verdict, remarks) = result("{}", 420);
    assert_eq!(verdict, ClaimVerdict::MethodUnclear, "{remarks}");
    assert!(remarks.contains("batch"), "{remarks}");
    assert_eq!(result("{batch: 16}", 420).0, ClaimVerdict::Plausible);
    assert_eq!(result("{batch: 1}", 420).0, ClaimVerdict::ExceedsRoofline);
    let (verdict, remarks) = result("{}", 9000);
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline, "{remarks}");
    assert!(remarks.contains("TFLOPS"), "{remarks}");
}

#[test]
fn message_states_operations_if_compute_is_the_limit() {
    let (verdict, result) = assess_figure(
        "{hardware: {chip: M4 Max, gpuCores: 40}, model: {name: qwen3-8b-4bit}, workload: {batch: 64}, \
         figures: [{kind: decodeTokensPerSecond, value: 5000}]}",
    );
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline);
    assert!(
        result.contains("75.7 TFLOPS") && result.contains("21.2 TFLOPS"),
        "{result}"
    );
    assert!(!result.contains("GB of weights"), "{result}");
}

#[test]
fn rejects_numbers_outside_the_range_of_their_kind() {
    let message = |yaml: &str| {
        let spec: PerformanceClaimSpec = yaml::from_str(yaml).unwrap();
        match Assessment::new(&spec) {
            Err(err) => err.to_string(),
            Ok(assessment) => panic!("{yaml}: {assessment:?}"),
        }
    };
    let figure = |kind: &str, value: &str| message(&format!("figures: [{{kind: {kind}, value: '{value}'}}]"));
    for (kind, value) in [
        ("decodeTokensPerSecond", "-5"),
        ("decodeTokensPerSecond", "0"),
        ("timeToFirstTokenSeconds", "-1 s"),
        ("weightBytes", "0 GB"),
        ("bandwidth", "-3"),
        ("bitsPerWeight", "0"),
        ("shareOfBandwidth", "-3 %"),
    ] {
        let result = figure(kind, value);
        assert!(
            result.starts_with(&format!("figures[0].value: `{value}` ")),
            "{result}"
        );
        assert!(result.contains("write"), "{result}");
    }
    let workload = |workload: &str| {
        message(&format!(
            "{{workload: {workload}, figures: [{{kind: decodeTokensPerSecond, value: 5}}]}}"
        ))
    };
    assert!(workload("{context: -5}").starts_with("workload.context: `-5` "));
    assert!(workload("{generated: -1}").starts_with("workload.generated: `-1` "));
    assert!(workload("{batch: 0}").starts_with("workload.batch: "));
    let result = workload("{prompt: 100, cached: 200}");
    assert!(
        result.starts_with("workload.cached: ") && result.contains("200") && result.contains("100"),
        "{result}"
    );
    let own = "{workload: {prompt: 100}, figures: [{kind: timeToFirstTokenSeconds, value: 1, under: {cached: 200}}]}";
    assert!(message(own).starts_with("figures[0].under.cached: "));
    assert!(
        message("{hardware: {bandwidth: 0}, statements: ['1 = 1']}").starts_with("hardware.bandwidth: `0` ")
    );
    let model = "{model: {name: foo, parameters: 3B, activeParameters: 30B}, statements: ['1 = 1']}";
    assert!(message(model).starts_with("model.activeParameters: "));
    // A prompt may have 0 tokens, and a gain may be negative.
    assess(
        "{workload: {context: 0, cached: 0, prompt: 0}, figures: [{kind: throughputGain, value: '-5 %'}]}",
    );
}

#[test]
fn errors_start_with_the_field() {
    let message = |yaml: &str| {
        let spec: PerformanceClaimSpec = yaml::from_str(yaml).unwrap();
        Assessment::new(&spec).unwrap_err().to_string()
    };
    assert!(
        message("figures: [{kind: decodeTokensPerSecond, value: fast}]")
            .starts_with("figures[0].value: `fast` is not a number")
    );
    assert!(message("figures: [{kind: weightBytes, value: 1.9}]").contains("write its unit"));
    assert!(message("figures: [{kind: decodeTokensPerSecond, value: 5 GB}]").contains("not a rate"));
    assert!(
        message("{hardware: {memory: lots}, statements: ['1 = 1']}").starts_with("hardware.memory: `lots`")
    );
    assert!(
        message("{model: {name: gemma-3-12b, quantization: tiny}}").starts_with("model.quantization: `tiny`")
    );
    let message_of_group =
        message("{model: {name: gemma-3-12b, quantization: 4-bit group size 65}, statements: ['1 = 1']}");
    assert!(
        message_of_group.starts_with("model.quantization: `4-bit group size 65`: ")
            && message_of_group.contains("32, 64 or 128"),
        "{message_of_group}"
    );
    assert!(message("source: nothing").contains("no figure"));
    assert!(message("{model: {shape: {L: 2}}, statements: ['1 = 1']}").starts_with("model.shape"));
}

#[test]
fn spelling_of_a_kind_parses_back() {
    let kind: FigureKind = serde_json::from_value(FigureKind::KvBytesPerToken.spelling().into()).unwrap();
    assert_eq!(kind, FigureKind::KvBytesPerToken);
}
