//! The published cases of `cases.yaml`, the evaluator, and what must hold of every claim.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::api::v1alpha1::FigureKind;
use crate::roofline::chip;
use crate::roofline::dimensions::KvBits;
use crate::roofline::predict::{Engine, Hardware, ModelCost, Parameters, Prediction, Workload};
use crate::roofline::weights::{WeightFormat, Weights};
use crate::yaml;

/// A claim and what the check must say of it.
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
    /// The field of the finding that matters.
    field: Option<String>,
    /// What would be right there, within 2 %.
    right: Option<f64>,
    /// Words of the finding's message.
    #[serde(default)]
    says: Vec<String>,
}

#[test]
fn published_cases_come_out_right() {
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
                && expect.says.iter().all(|words| finding.message.contains(words))
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

fn outcome(text: &str) -> Outcome {
    Statement::new(text).check()
}

fn right_of(text: &str) -> f64 {
    match outcome(text) {
        Outcome::Wrong(mistake) => mistake.right_value,
        other @ (Outcome::Holds { .. } | Outcome::Unreadable(_)) => panic!("{text}: {other:?}"),
    }
}

#[test]
fn arithmetic_that_holds_is_left_alone() {
    for text in [
        "16829/571 = 29.5",
        "16829 / 571 = 29.5x",
        "571/16829 = 29.5x",
        "3018/15.397 = 196.0",
        "3018 tokens / 15.397 s = 196.0 tok/s",
        "77.7 tok/s * 8.03 GB = 624 GB/s",
        "77.7 × 8.03 = 624",
        "77.7 * 8.03 GB = 624 GB/s",
        "273 GB/s / 8.03 GB = 34.0 tok/s",
        "1917 s = 31.95 min",
        "12B * 0.5 B = 6 GB",
        "weightBytes: 12B x 0.5 bytes = 6 GB",
        "2*48*8*256*32768*2 B = 12.9 GB",
        "2*48*8*256*32768*2 B = 12 GiB",
        "4.3 ms x 50 = 215 ms",
        "203.93/183.32 = +11.2 %",
        "94/17 = 5.5x",
        "94/17 = 4.7-5.9x",
        "10/24 GB = 42 %",
        "32K / 137.8 s = 238 tok/s",
        "a ratio: 1,150 / 32 = 35.9",
        "3.86+2.41+5.50 = 11.77 ms",
        "(11.77-10.52)/11.77 = 10.6 %",
        "throughput gain: (11.77-10.52)/11.77 = 11.9 %",
        "1 - 10.52/11.77 = 10.6 %",
        "11.77/10.52 = +11.9 % throughput",
        "2^10 * 3 = 3072",
        "5 < 6",
        "6 GB <= 24 GB",
        "100 tok / 4 s = 25 tok/s = 25",
        "29.47 = ~30",
        "2 * 3.2e9 * 18600 = 119 TFLOPS",
        "50 / 414.34 ms = 120.67 tok/s",
        "1/3 = 0.33 = 33 %",
        "0.1 + 0.2 = 0.3",
        "60 tok/s -> 72 tok/s = +20 %",
        "11.77 ms → 10.52 ms = -10.6 %",
        "11.77 ms -> 10.52 ms = +11.9 % throughput",
        "throughputGain: 11.77 ms -> 10.52 ms = 11.9 %",
        "20 s -> 10 s = 100 % faster",
        "2 * 3 -> 6",
        "5 min 30 s = 330 s",
        "20 ms/token = 50 tok/s",
        "24 GiB = 25.8 GB",
        "LPDDR5: 512 bits * 6400 MT/s = 409.6 GB/s",
        "512-bit * 6400 MT/s = 409.6 GB/s",
        "512 bits / 8 * 6400 MT/s = 409.6 GB/s",
        "100 -> 50 = -50 %",
        "60 -> 72 = 120 %",
        "100 tok/s -> 300 tok/s = +200 %",
        "(72-60)/60 = +20 %",
        "-12 / 60 = -20 %",
        "8.19 billion * 4.5 bits / 8 = 4.61 GB",
        "8B params * 4 bits / 8 = 4 GB",
        "4.5 bits / 8 * 8.19 billion = 4.61 GB",
        "10 Gbit/s / 8 = 1.25 GB/s",
        "64 bits / 8 = 1 byte",
    ] {
        let said = outcome(text);
        assert!(matches!(said, Outcome::Holds { .. }), "{text}: {said:?}");
    }
}

#[test]
fn arithmetic_that_does_not_hold_is_corrected() {
    let cases = [
        ("2*42*16*256*32768*2 B = ~2.2 GB", 22.5),
        ("203.93/183.32 = +11.3 %", 11.24),
        ("203.93/183.32 = 11.3 %", 11.24),
        ("181.82-184.40 = -1.50 s", -2.58),
        ("215 ms / 204.9 s = 4.5 %", 0.105),
        ("(.95*111.5+.75*120+.40*130.5+.10*140)/3.0 = 118", 87.4),
        ("109.05 * 1.175 = 117.65", 128.1),
        ("(11.77-10.52)/11.77 = 10.6 % throughput", 11.88),
        ("throughput: (11.77-10.52)/11.77 = 10.6 %", 11.88),
        ("11.77 ms -> 10.52 ms = 10.6 % throughput", 11.88),
        ("7 * 6 = 43", 42.0),
        ("100 tok / 4 s = 30 tok/s", 25.0),
        ("90 s = 1.2 min", 1.5),
        ("8 GB * 2 = 20 GB", 16.0),
        ("1/0.5 = 3", 2.0),
        ("5 > 6", 5.0),
        ("200 GB/s / 4 GB = 60 tok/s", 50.0),
        ("16829/571 = 28.5x", 29.47),
        ("60 -> 72 = +25 %", 20.0),
        ("60 -> 72 = +12 %", 20.0),
        ("60 -> 72 = +120 %", 20.0),
        ("100 -> 50 = +50 %", -50.0),
        ("100 tok/s -> 300 tok/s = +300 %", 200.0),
        ("8B params * 4 bits = 32 GB", 4.0),
        ("117B * 4.25 bits / 8 = 70 GB", 62.2),
        ("20 ms/token = 40 tok/s", 50.0),
    ];
    for (text, right) in cases {
        let value = right_of(text);
        assert!((value - right).abs() <= 0.01 * right.abs(), "{text}: {value}");
    }
    let Outcome::Wrong(mistake) = outcome("(.95*111.5+.75*120+.40*130.5+.10*140)/3.0 = 118") else {
        panic!("holds");
    };
    let note = mistake.note.unwrap();
    assert!(note.contains("2.20") && note.contains("119.1"), "{note}");
}

/// Every factor may double the readings of its number.
#[test]
fn a_unit_without_end_is_refused_and_not_read() {
    let units = |count| "GB ".repeat(count);
    let Outcome::Unreadable(why) = outcome(&format!("1 {}= 2 GB", units(340))) else {
        panic!("it is no unit");
    };
    assert!(
        why.contains("`GB GB GB GB GB GB …` has more than 6 factors"),
        "{why}"
    );
    assert!(matches!(
        outcome("2 B B B B B B = 2 B B B B B B"),
        Outcome::Holds { .. }
    ));

    let text = format!("{{figures: [{{kind: bytes, value: '1 {}'}}]}}", units(340));
    let err = Assessment::new(&yaml::from_str(&text).unwrap()).unwrap_err();
    assert_eq!(err.field, "figures[0].value");
}

#[test]
fn what_cannot_be_calculated_is_told() {
    for text in [
        "",
        "=",
        "5",
        "5 = ",
        "(1 + 2 = 3",
        "5 apples = 5",
        "1/0 = 3",
        "5 GB + 3 s = 8",
        "5 GB = 3 s",
        "2^0.5 = 1.4",
        "((((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))))=1",
    ] {
        assert!(
            matches!(outcome(text), Outcome::Unreadable(_)),
            "{text}: {:?}",
            outcome(text)
        );
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_evaluator_panic(text in "[0-9a-zA-Z.,()+*/^%~=<> –-]{0,40}") {
        let _ = outcome(&text);
        let _ = Statement::new(&text).result();
        let _ = stated::Stated::parse(&crate::api::v1alpha1::Published::from(text.as_str())).map(|stated| stated.read(Measure::Any));
    }

    #[test]
    fn a_product_rounded_to_any_digits_holds(a in 1u32..100_000, b in 1u32..100_000, decimals in 0usize..4) {
        let (a, b) = (f64::from(a) / 100.0, f64::from(b) / 100.0);
        let text = format!("{a:.2} * {b:.2} = {:.decimals$}", a * b);
        prop_assert!(matches!(outcome(&text), Outcome::Holds { .. }), "{}", text);
        let text = format!("{a:.2} GB / {b:.2} s = {:.3} GB/s", a / b);
        prop_assert!(matches!(outcome(&text), Outcome::Holds { .. }), "{}", text);
    }

    #[test]
    fn a_result_off_by_a_tenth_never_holds(a in 1000u32..100_000, b in 1000u32..100_000, up in any::<bool>()) {
        let (a, b) = (f64::from(a) / 100.0, f64::from(b) / 100.0);
        let wrong = a * b * if up { 1.1 } else { 0.9 };
        let text = format!("{a:.2} * {b:.2} = {wrong:.2}");
        match outcome(&text) {
            Outcome::Wrong(mistake) => prop_assert!((mistake.right_value / (a * b) - 1.0).abs() < 1e-9),
            other @ (Outcome::Holds { .. } | Outcome::Unreadable(_)) => prop_assert!(false, "{}: {:?}", text, other),
        }
    }
}

/// Any chip, any known model that fits it, in any of the usual formats.
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
    fn what_is_predicted_is_plausible_and_what_exceeds_the_limit_is_not(
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
        // What does not fit is another limit.
        prop_assume!(known.resident(claimed.likely) * 1.2 < cell.machine.most_memory().unwrap());

        let dimensions = known.dimensions.clone().unwrap();
        let cost = ModelCost { weights: Weights::estimate(&dimensions, format.parse::<WeightFormat>().unwrap()), dimensions };
        let workload = Workload { batch, context_tokens: 512, prompt_tokens: 512, cached_tokens: 0, kv_bits: KvBits::HALF };
        let engine = if llama { Engine::LlamaCpp } else { Engine::Mlx };
        let predicted = Prediction::new(Parameters::built_in(), Hardware::Chip(chip), engine, &cost, workload);
        let spec = decode_claim(predicted.decode.aggregate_tokens_per_second.p50, chip, model, format, batch);
        let said = Assessment::new(&spec).unwrap();
        prop_assert_eq!(said.verdict, ClaimVerdict::Plausible, "{:#?}", said);

        let limit = limits::DecodeLimit::new(&cell).unwrap().hard;
        let said = Assessment::new(&decode_claim(1.05 * limit, chip, model, format, batch)).unwrap();
        prop_assert_eq!(said.verdict, ClaimVerdict::ExceedsRoofline, "{:#?}", said);
    }
}

/// 273 GB/s over the bytes that one token reads, computed by hand: 6.98·10⁹ weights and a head of 0.525·10⁹.
#[test]
fn a_few_percent_above_the_ceiling_is_not_plausible_where_the_bits_are_known() {
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
fn both_units_in_one_statement_are_not_the_same() {
    assert_eq!(right_of("24 GiB = 24 GB").round(), 26.0);
    assert_eq!((10.0 * right_of("16 GB = 16.5 GiB")).round(), 149.0);
}

#[test]
fn bits_that_are_taken_for_bytes_are_found() {
    assert!((right_of("512 bits * 6400 MT/s = 3276.8 GB/s") - 409.6).abs() < 0.1);
}

#[test]
fn a_time_per_token_is_a_rate() {
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
fn a_share_of_all_memory_is_a_remark_where_the_model_fits() {
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
fn weights_beyond_the_default_working_set_are_remarked_upon() {
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

/// Of a claim with one figure: its verdict, and all that is said of it.
fn said_of_figure(yaml: &str) -> (ClaimVerdict, String) {
    let assessment = assess(yaml);
    let of_figure = |field: &str| field == "figures[0]";
    let findings = assessment
        .findings
        .iter()
        .filter(|finding| of_figure(&finding.field));
    let checks = assessment.checks.iter().filter(|check| of_figure(&check.field));
    let words: Vec<&str> = findings
        .map(|finding| finding.message.as_str())
        .chain(checks.flat_map(|check| check.remarks.iter().map(String::as_str)))
        .collect();
    (assessment.verdict, words.join("; "))
}

#[test]
fn bits_per_weight_are_the_mean_of_all_weights() {
    let verdict = |model: &str, format: &str, bits: &str| {
        said_of_figure(&format!(
            "{{model: {{name: {model}, quantization: {format}}}, figures: [{{kind: bitsPerWeight, value: {bits}}}]}}"
        ))
        .0
    };
    for (model, format, bits) in [
        ("gpt-oss-120b", "mxfp4", "4.33"),
        // What the format is said to have.
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
fn what_is_calculated_of_weights_holds_as_it_is_printed() {
    let others = ["llama-3.1-8b", "gpt-oss-120b", "gemma-4-26b-a4b"];
    for model in MODELS.iter().chain(&others) {
        for format in FORMATS.iter().chain(&["q4_k_xl"]) {
            let (verdict, said) = said_of_figure(&format!(
                "{{model: {{name: {model}, quantization: {format}}}, figures: [{{kind: weightBytes, value: 900 GB}}]}}"
            ));
            assert_eq!(verdict, ClaimVerdict::WrongFact, "{model} {format}: {said}");
            let checked = outcome(&said);
            assert!(
                matches!(checked, Outcome::Holds { .. }),
                "{model} {format}: {said}: {checked:?}"
            );
        }
    }
}

#[test]
fn what_a_smaller_cache_allows_is_said_so() {
    let at = |rate: f64| {
        let spec = format!(
            "{{hardware: {{chip: M4 Max, gpuCores: 40}}, model: {{name: llama-3.1-8b-4bit}}, workload: {{context: 131072}}, \
             figures: [{{kind: decodeTokensPerSecond, value: {rate}}}]}}"
        );
        (said_of_figure(&spec), assess(&spec))
    };
    let ((verdict, said), _) = at(25.0);
    assert_eq!(verdict, ClaimVerdict::Plausible);
    assert!(!said.contains("4 bits"), "{said}");
    let ((verdict, said), _) = at(60.0);
    assert_eq!(verdict, ClaimVerdict::Plausible);
    assert!(
        said.contains("possible only with a cache in 4 bits") && !said.contains("25.5"),
        "{said}"
    );
    let ((verdict, said), assessment) = at(70.0);
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline);
    assert!(said.contains("4 bits") && !said.contains("25.5"), "{said}");
    let right = assessment.findings[0].right_value.unwrap();
    assert!((60.0..62.0).contains(&right), "{right}");

    let seconds = "{hardware: {chip: M4 Max, gpuCores: 40}, model: {name: llama-3.1-8b-4bit}, \
                   workload: {context: 131072, generated: 701}, figures: [{kind: decodeSeconds, value: 10}]}";
    let right = assess(seconds).findings[0].right_value.unwrap();
    assert!((11.0..12.0).contains(&right), "{right}");
}

#[test]
fn throughput_without_its_batch_is_unclear_up_to_what_compute_allows() {
    let said = |workload: &str, rate: u32| {
        said_of_figure(&format!(
            "{{engine: vllm-mlx, hardware: {{chip: M3 Ultra, gpuCores: 80}}, model: {{name: qwen3-8b-4bit}}, \
             workload: {workload}, figures: [{{kind: throughputTokensPerSecond, value: {rate}}}]}}"
        ))
    };
    assert_eq!(said("{}", 150).0, ClaimVerdict::Plausible);
    let (verdict, words) = said("{}", 420);
    assert_eq!(verdict, ClaimVerdict::MethodUnclear, "{words}");
    assert!(words.contains("batch"), "{words}");
    assert_eq!(said("{batch: 16}", 420).0, ClaimVerdict::Plausible);
    assert_eq!(said("{batch: 1}", 420).0, ClaimVerdict::ExceedsRoofline);
    let (verdict, words) = said("{}", 9000);
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline, "{words}");
    assert!(words.contains("TFLOPS"), "{words}");
}

#[test]
fn where_compute_is_the_limit_operations_are_the_argument() {
    let (verdict, said) = said_of_figure(
        "{hardware: {chip: M4 Max, gpuCores: 40}, model: {name: qwen3-8b-4bit}, workload: {batch: 64}, \
         figures: [{kind: decodeTokensPerSecond, value: 5000}]}",
    );
    assert_eq!(verdict, ClaimVerdict::ExceedsRoofline);
    assert!(
        said.contains("75.7 TFLOPS") && said.contains("21.2 TFLOPS"),
        "{said}"
    );
    assert!(!said.contains("GB of weights"), "{said}");
}

#[test]
fn what_cannot_be_a_number_of_its_kind_is_refused() {
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
        let said = figure(kind, value);
        assert!(
            said.starts_with(&format!("figures[0].value: `{value}` ")),
            "{said}"
        );
        assert!(said.contains("write"), "{said}");
    }
    let workload = |workload: &str| {
        message(&format!(
            "{{workload: {workload}, figures: [{{kind: decodeTokensPerSecond, value: 5}}]}}"
        ))
    };
    assert!(workload("{context: -5}").starts_with("workload.context: `-5` "));
    assert!(workload("{generated: -1}").starts_with("workload.generated: `-1` "));
    assert!(workload("{batch: 0}").starts_with("workload.batch: "));
    let said = workload("{prompt: 100, cached: 200}");
    assert!(
        said.starts_with("workload.cached: ") && said.contains("200") && said.contains("100"),
        "{said}"
    );
    let own = "{workload: {prompt: 100}, figures: [{kind: timeToFirstTokenSeconds, value: 1, under: {cached: 200}}]}";
    assert!(message(own).starts_with("figures[0].under.cached: "));
    assert!(
        message("{hardware: {bandwidth: 0}, statements: ['1 = 1']}").starts_with("hardware.bandwidth: `0` ")
    );
    let model = "{model: {name: foo, parameters: 3B, activeParameters: 30B}, statements: ['1 = 1']}";
    assert!(message(model).starts_with("model.activeParameters: "));
    // Decoding is measured without a prompt, too, and a gain may be a loss.
    assess(
        "{workload: {context: 0, cached: 0, prompt: 0}, figures: [{kind: throughputGain, value: '-5 %'}]}",
    );
}

#[test]
fn bad_input_names_its_field() {
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
    assert!(message("source: nothing").contains("no figure"));
    assert!(message("{model: {shape: {L: 2}}, statements: ['1 = 1']}").starts_with("model.shape"));
}

#[test]
fn every_kind_of_figure_can_be_written() {
    // A kind whose name does not read back could never be used.
    let kind: FigureKind = serde_json::from_value(FigureKind::KvBytesPerToken.spelt().into()).unwrap();
    assert_eq!(kind, FigureKind::KvBytesPerToken);
}
