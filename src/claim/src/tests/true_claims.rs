//! Claims that are true or possible, and near variants that are not.

use super::{assess, assess_figure};
use rooflet_api::v1alpha1::ClaimVerdict;

const M4_MAX: &str = "{chip: Apple M4 Max, gpuCores: 40, memory: 64 GB}";

/// Returns the verdict of a claim about an M4 Max, and its messages.
fn verdict(model: &str, workload: &str, figures: &str) -> (ClaimVerdict, String) {
    of_claim(&format!(
        "{{hardware: {M4_MAX}, model: {model}, workload: {workload}, figures: [{figures}]}}"
    ))
}

fn of_claim(claim: &str) -> (ClaimVerdict, String) {
    let assessment = assess(claim);
    let findings: Vec<String> = assessment
        .findings
        .iter()
        .map(|finding| format!("{} {}: {}", finding.verdict, finding.field, finding.message))
        .collect();
    (assessment.verdict, findings.join("; "))
}

/// Returns all remarks of a claim.
fn remarks(claim: &str) -> String {
    let checks = assess(claim).checks;
    let remarks: Vec<String> = checks.into_iter().flat_map(|check| check.remarks).collect();
    remarks.join("; ")
}

const QWEN3_8B: &str = "{name: qwen3-8b, quantization: mlx4}";
const QWEN3_30B: &str = "{name: qwen3-30b-a3b, quantization: mlx4}";
const LLAMA_8B: &str = "{name: llama-3.1-8b, quantization: mlx4}";

#[test]
fn figures_of_other_answer_lengths_are_not_compared() {
    let two_lengths = |decode: f64| {
        verdict(
            QWEN3_8B,
            "{prompt: 100}",
            &format!(
                "{{kind: totalSeconds, value: 1.3 s, under: {{generated: 100}}}}, \
                 {{kind: decodeTokensPerSecond, value: 90, under: {{generated: 100}}}}, \
                 {{kind: totalSeconds, value: 5.8 s, under: {{generated: 500}}}}, \
                 {{kind: decodeTokensPerSecond, value: {decode}, under: {{generated: 500}}}}"
            ),
        )
    };
    let (result, findings) = two_lengths(89.0);
    assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    // A contradiction within one length is found.
    let (result, findings) = two_lengths(60.0);
    assert_eq!(result, ClaimVerdict::Contradictory, "{findings}");
    assert!(findings.contains("figures[3]: 500 tokens in 5.8 s"), "{findings}");
    // A figure without a length belongs to any.
    let (result, findings) = verdict(
        QWEN3_8B,
        "{prompt: 100}",
        "{kind: totalSeconds, value: 5.8 s, under: {generated: 500}}, {kind: decodeTokensPerSecond, value: 60}",
    );
    assert_eq!(result, ClaimVerdict::Contradictory, "{findings}");
    // Times of two lengths are not mixed, if the rate states none.
    let decoding = "{kind: decodeSeconds, value: 1.1 s, under: {generated: 100}}";
    let total = "{kind: totalSeconds, value: 5.8 s, under: {generated: 500}}";
    for figures in [
        format!("{decoding}, {total}"),
        format!("{total}, {decoding}"),
        format!(
            "{{kind: timeToFirstTokenSeconds, value: 2, under: {{generated: 100}}}}, {decoding}, {total}"
        ),
        format!("{decoding}, {{kind: totalSeconds, value: 6.4 s}}"),
    ] {
        let at = |rate: u32| {
            let figures = format!("{{kind: decodeTokensPerSecond, value: {rate}}}, {figures}");
            verdict(QWEN3_8B, "{prompt: 100}", &figures)
        };
        let (result, findings) = at(90);
        assert_eq!(result, ClaimVerdict::Plausible, "{figures}: {findings}");
        let (result, findings) = at(60);
        assert_eq!(result, ClaimVerdict::Contradictory, "{figures}: {findings}");
    }
}

#[test]
fn rates_over_whole_requests_are_not_compared_with_decode_times() {
    let at = |kind: &str, rate: f64, times: &str| {
        verdict(
            QWEN3_8B,
            "{prompt: 8000, generated: 100}",
            &format!("{{kind: {kind}, value: {rate}}}, {times}"),
        )
    };
    let both = "{kind: totalSeconds, value: 11 s}, {kind: decodeSeconds, value: 1.17 s}";
    for (kind, rate) in [
        ("endToEndTokensPerSecond", 9.1),
        ("throughputTokensPerSecond", 9.1),
        ("throughputTokensPerSecond", 85.5),
        ("decodeTokensPerSecond", 85.5),
    ] {
        let (result, findings) = at(kind, rate, both);
        assert_eq!(result, ClaimVerdict::Plausible, "{kind} {rate}: {findings}");
    }
    for (kind, rate, times) in [
        ("endToEndTokensPerSecond", 40.0, both),
        ("throughputTokensPerSecond", 40.0, both),
        ("decodeTokensPerSecond", 9.1, both),
        // A whole request takes at least as long as its decode.
        (
            "endToEndTokensPerSecond",
            95.0,
            "{kind: decodeSeconds, value: 1.17 s}",
        ),
    ] {
        let (result, findings) = at(kind, rate, times);
        assert_eq!(result, ClaimVerdict::Contradictory, "{kind} {rate}: {findings}");
    }
}

#[test]
fn throughput_of_several_sequences_needs_a_batch() {
    let at = |kind: &str, rate: f64, times: &str, batch: &str| {
        of_claim(&format!(
            "{{engine: vllm, hardware: {M4_MAX}, model: {QWEN3_8B}, workload: {{generated: 100{batch}}}, \
             figures: [{{kind: {kind}, value: {rate}}}, {times}]}}"
        ))
    };
    let throughput = "throughputTokensPerSecond";
    let total = "{kind: totalSeconds, value: 10 s}";
    let first = "{kind: totalSeconds, value: 10 s}, {kind: timeToFirstTokenSeconds, value: 0.5}";
    let decoding = "{kind: decodeSeconds, value: 9.5 s}";
    let both = "{kind: totalSeconds, value: 16 s}, {kind: decodeSeconds, value: 9.5 s}";
    for (rate, times) in [
        (80.0, total),
        (80.0, first),
        // Eight times the decode rate, 10.4 tok/s.
        (83.4, first),
        (84.2, decoding),
        (31.5, both),
        // Three times the rate of the whole request, 6.25 tok/s.
        (18.8, both),
    ] {
        let (result, findings) = at(throughput, rate, times, "");
        assert!(
            result == ClaimVerdict::MethodUnclear && findings.contains("state the batch"),
            "{rate} {times}: {result} {findings}"
        );
    }
    for (kind, rate, times, batch) in [
        (throughput, 80.0, first, ", batch: 1"),
        (throughput, 84.2, decoding, ", batch: 1"),
        (throughput, 15.5, first, ""),
        (throughput, 15.5, decoding, ""),
        ("decodeTokensPerSecond", 80.0, first, ""),
        ("decodeTokensPerSecond", 84.2, decoding, ""),
    ] {
        let (result, findings) = at(kind, rate, times, batch);
        assert_eq!(
            result,
            ClaimVerdict::Contradictory,
            "{kind} {rate} {times}: {findings}"
        );
    }
}

#[test]
fn decode_time_includes_or_excludes_the_first_token() {
    let at = |rate: f64| {
        verdict(
            QWEN3_8B,
            "{generated: 11}",
            &format!(
                "{{kind: decodeTokensPerSecond, value: {rate:.1}}}, {{kind: decodeSeconds, value: 125 ms}}"
            ),
        )
    };
    for rate in [80.0, 88.0] {
        assert_eq!(at(rate).0, ClaimVerdict::Plausible, "{rate}: {}", at(rate).1);
    }
    for rate in [70.0, 98.0] {
        assert_eq!(at(rate).0, ClaimVerdict::Contradictory, "{rate}: {}", at(rate).1);
    }
}

#[test]
fn batch_of_a_mixture_reads_between_one_and_all_experts() {
    let at = |figures: &str| verdict(QWEN3_30B, "{batch: 8, prompt: 512}", figures);
    let (result, findings) = at(
        "{kind: decodeTokensPerSecond, value: 240}, {kind: shareOfBandwidth, value: 42 %}, \
         {kind: bandwidthUsed, value: 231 GB/s}, {kind: maximumDecodeTokensPerSecond, value: 560}",
    );
    assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    for figures in [
        "{kind: decodeTokensPerSecond, value: 240}, {kind: shareOfBandwidth, value: 5 %}",
        "{kind: decodeTokensPerSecond, value: 240}, {kind: shareOfBandwidth, value: 95 %}",
        "{kind: decodeTokensPerSecond, value: 240}, {kind: bandwidthUsed, value: 500 GB/s}",
        "{kind: maximumDecodeTokensPerSecond, value: 200}",
    ] {
        assert_eq!(at(figures).0, ClaimVerdict::WrongFact, "{figures}");
    }
    // One sequence reads the experts of one token.
    let (result, _) = verdict(
        QWEN3_30B,
        "{prompt: 512}",
        "{kind: decodeTokensPerSecond, value: 80}, {kind: shareOfBandwidth, value: 80 %}",
    );
    assert_eq!(result, ClaimVerdict::WrongFact);
}

/// Compute limits the decode of a large batch, which uses little bandwidth.
#[test]
fn share_of_bandwidth_is_not_a_share_of_compute() {
    let at = |figures: &str| {
        verdict(
            QWEN3_8B,
            "{batch: 64}",
            &format!("{{kind: decodeTokensPerSecond, value: 1000}}, {figures}"),
        )
    };
    for figures in [
        "{kind: bandwidthUsed, value: 67 GB/s}, {kind: shareOfBandwidth, value: 12 %}",
        "{kind: shareOfMaximum, value: 77 %}",
    ] {
        let (result, findings) = at(figures);
        assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    }
    for (figures, message) in [
        (
            "{kind: shareOfBandwidth, value: 77 %}",
            "tok/s / 64 sequences × 4.",
        ),
        ("{kind: shareOfMaximum, value: 30 %}", "maximum by compute"),
    ] {
        let (result, findings) = at(figures);
        assert!(
            result == ClaimVerdict::WrongFact && findings.contains(message),
            "{figures}: {result} {findings}"
        );
    }
    // The cache of long contexts counts.
    let long = verdict(
        QWEN3_8B,
        "{context: 32768, batch: 8}",
        "{kind: decodeTokensPerSecond, value: 40}, {kind: shareOfBandwidth, value: 40 %}",
    );
    assert_eq!(long.0, ClaimVerdict::Plausible, "{}", long.1);
}

#[test]
fn bandwidth_of_speculative_decoding_is_a_remark() {
    let claim = |speculative: bool| {
        format!(
            "{{hardware: {M4_MAX}, model: {QWEN3_8B}, workload: {{speculative: {speculative}}}, figures: [\
             {{kind: decodeTokensPerSecond, value: 110}}, {{kind: bandwidthUsed, value: 300 GB/s}}, \
             {{kind: shareOfBandwidth, value: 55 %}}, {{kind: maximumDecodeTokensPerSecond, value: 200}}]}}"
        )
    };
    let (result, findings) = of_claim(&claim(true));
    assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    assert!(
        remarks(&claim(true)).contains("not checked: speculative decoding"),
        "{}",
        remarks(&claim(true))
    );
    assert_eq!(of_claim(&claim(false)).0, ClaimVerdict::WrongFact);
}

#[test]
fn mean_first_token_of_a_batch_precedes_the_end_of_prefill() {
    let at = |figures: &str| verdict(LLAMA_8B, "{prompt: 1000, batch: 4, generated: 101}", figures);
    let prefill = "{kind: prefillSeconds, value: 5}";
    let (result, findings) = at(&format!(
        "{prefill}, {{kind: timeToFirstTokenSeconds, value: 3.1}}"
    ));
    assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    let (result, findings) =
        at("{kind: prefillSeconds, value: 10}, {kind: timeToFirstTokenSeconds, value: 2.2}");
    assert!(
        result == ClaimVerdict::Contradictory && findings.contains("part of"),
        "{findings}"
    );
    // 400 tokens in 7 s, the prefill included, are 80 tok/s at most in 5 s and 200 in 2 s.
    let first = "{kind: timeToFirstTokenSeconds, value: 3.1}, {kind: totalSeconds, value: 7}";
    for (rate, prefilled, expected) in [
        (200, prefill, ClaimVerdict::Plausible),
        (110, prefill, ClaimVerdict::Contradictory),
        (200, "", ClaimVerdict::Plausible),
        (110, "", ClaimVerdict::Plausible),
        (300, "", ClaimVerdict::Contradictory),
        (75, "", ClaimVerdict::Contradictory),
    ] {
        let separator = if prefilled.is_empty() { "" } else { ", " };
        let (result, findings) = at(&format!(
            "{{kind: decodeTokensPerSecond, value: {rate}}}, {first}{separator}{prefilled}"
        ));
        assert_eq!(result, expected, "{rate} {prefilled}: {findings}");
    }
}

#[test]
fn models_larger_than_memory_may_stream_weights_from_disk() {
    let large = "{name: qwen3-235b-a22b, quantization: q4_k_m}";
    let at = |workload: &str, figure: &str| {
        of_claim(&format!(
            "{{engine: llama.cpp, hardware: {M4_MAX}, model: {large}, workload: {workload}, figures: [{figure}]}}"
        ))
    };
    let workload = "{prompt: 100, generated: 50}";
    for (workload, figure) in [
        (workload, "{kind: decodeTokensPerSecond, value: 0.5}"),
        (workload, "{kind: totalSeconds, value: 300}"),
        (workload, "{kind: decodeSeconds, value: 100}"),
        (workload, "{kind: timeToFirstTokenSeconds, value: 200}"),
        (workload, "{kind: prefillSeconds, value: 200}"),
        (workload, "{kind: prefillTokensPerSecond, value: 0.5}"),
        // One pass over the weights computes all tokens of a prompt.
        (workload, "{kind: prefillTokensPerSecond, value: 50}"),
        ("{}", "{kind: prefillTokensPerSecond, value: 50}"),
    ] {
        let (result, findings) = at(workload, figure);
        assert!(
            result == ClaimVerdict::MethodUnclear && findings.contains("do not fit"),
            "{figure}: {result} {findings}"
        );
    }
    for (workload, figure) in [
        (workload, "{kind: decodeTokensPerSecond, value: 5}"),
        (workload, "{kind: totalSeconds, value: 10}"),
        (workload, "{kind: decodeSeconds, value: 10}"),
        (workload, "{kind: timeToFirstTokenSeconds, value: 0.3}"),
        (workload, "{kind: prefillTokensPerSecond, value: 300}"),
        // The disk permits this time, but not the chip.
        ("{prompt: 100000}", "{kind: timeToFirstTokenSeconds, value: 3}"),
    ] {
        let (result, findings) = at(workload, figure);
        assert_eq!(
            result,
            ClaimVerdict::ExceedsRoofline,
            "{workload} {figure}: {findings}"
        );
    }
}

#[test]
fn server_may_share_passes_from_disk_among_requests() {
    let at = |engine: &str, kind: &str, value: &str| {
        of_claim(&format!(
            "{{engine: {engine}, hardware: {M4_MAX}, model: {{name: llama3-70b, quantization: mlx8}}, \
             workload: {{generated: 4000}}, figures: [{{kind: {kind}, value: {value}}}]}}"
        ))
    };
    for kind in ["totalSeconds", "decodeSeconds"] {
        let (result, findings) = at("vllm-mlx", kind, "300");
        assert_eq!(result, ClaimVerdict::MethodUnclear, "{kind}: {findings}");
        let (result, findings) = at("mlx-lm", kind, "300");
        assert_eq!(result, ClaimVerdict::ExceedsRoofline, "{kind}: {findings}");
    }
    // Every request still needs one pass.
    let (result, findings) = at("vllm-mlx", "totalSeconds", "200 ms");
    assert_eq!(result, ClaimVerdict::ExceedsRoofline, "{findings}");
}

#[test]
fn loading_uses_every_disk_and_the_page_cache() {
    let at = |kind: &str, machines: u32, workload: &str, figure: &str| {
        of_claim(&format!(
            "{{hardware: {{chip: M3 Ultra, gpuCores: 80, memory: 512 GB, machines: {machines}}}, workload: {workload}, \
             figures: [{{kind: {kind}, {figure}}}]}}"
        ))
    };
    let four = "value: 30, bytes: 713 GB";
    assert_eq!(at("loadSeconds", 4, "{}", four).0, ClaimVerdict::Plausible);
    assert_eq!(at("diskReadSeconds", 4, "{}", four).0, ClaimVerdict::Plausible);
    assert_eq!(
        at("diskReadSeconds", 1, "{}", four).0,
        ClaimVerdict::ExceedsRoofline
    );
    let quick = "value: 250 ms, bytes: 5.1 GB";
    let (result, findings) = at("loadSeconds", 1, "{state: warm}", quick);
    assert_eq!(result, ClaimVerdict::Plausible, "{findings}");
    let (result, findings) = at("loadSeconds", 1, "{}", quick);
    assert!(
        result == ClaimVerdict::MethodUnclear && findings.contains("`state`"),
        "{findings}"
    );
    for (kind, workload) in [
        ("loadSeconds", "{state: cold}"),
        ("diskReadSeconds", "{state: cold}"),
        ("diskReadSeconds", "{state: warm}"),
        ("diskReadSeconds", "{}"),
    ] {
        let (result, findings) = at(kind, 1, workload, quick);
        assert!(
            result == ClaimVerdict::ExceedsRoofline && !findings.contains("`state`"),
            "{kind} {workload}: {findings}"
        );
    }
}

#[test]
fn share_of_memory_counts_all_machines() {
    let at = |share: &str| {
        of_claim(&format!(
            "{{hardware: {{chip: M2 Ultra, memory: 192 GB, machines: 2}}, model: {{name: llama-3.1-405b, quantization: 4bit}}, \
             figures: [{{kind: memoryBytes, value: 230 GB}}, {{kind: shareOfMemory, value: {share}}}]}}"
        ))
    };
    assert_eq!(at("66 %").0, ClaimVerdict::Plausible, "{}", at("66 %").1);
    assert_eq!(at("95 %").0, ClaimVerdict::WrongFact);
    let bandwidth = "{hardware: {chip: M2 Ultra, gpuCores: 76, memory: 192 GB, machines: 2}, model: {name: llama-3.1-70b, quantization: 4bit}, \
                     figures: [{kind: decodeTokensPerSecond, value: 20}, {kind: shareOfBandwidth, value: 50 %}]}";
    assert!(
        remarks(bandwidth).contains("% of 2 × Apple M2 Ultra"),
        "{}",
        remarks(bandwidth)
    );
}

#[test]
fn cold_and_warm_times_of_other_runs_are_not_compared() {
    let at = |cold: &str, warm: &str| {
        verdict(
            QWEN3_8B,
            "{prompt: 4096}",
            &format!(
                "{{kind: timeToFirstTokenSeconds, value: 6, under: {{state: cold{cold}}}}}, \
                 {{kind: timeToFirstTokenSeconds, value: 9, under: {{state: warm{warm}}}}}"
            ),
        )
        .0
    };
    assert_eq!(at("", ""), ClaimVerdict::MethodUnclear);
    assert_eq!(at("", ", cached: 4000"), ClaimVerdict::MethodUnclear);
    for (cold, warm) in [
        (", engine: mlx-lm", ", engine: llama.cpp"),
        (", quantization: mlx4", ", quantization: mlx8"),
        ("", ", batch: 4"),
    ] {
        assert_eq!(at(cold, warm), ClaimVerdict::Plausible, "{cold} {warm}");
    }
}

#[test]
fn stated_cache_bits_may_exclude_scales() {
    let at = |bits: u32, size: &str| {
        verdict(
            LLAMA_8B,
            &format!("{{kvBits: {bits}}}"),
            &format!("{{kind: kvBytesPerToken, value: {size}}}"),
        )
        .0
    };
    for (bits, size) in [
        (8, "64 KiB"),
        (8, "68 KiB"),
        (4, "32 KiB"),
        (4, "36 KiB"),
        (16, "128 KiB"),
    ] {
        assert_eq!(at(bits, size), ClaimVerdict::Plausible, "{bits} {size}");
    }
    for (bits, size) in [(8, "128 KiB"), (8, "36 KiB"), (16, "64 KiB")] {
        assert_eq!(at(bits, size), ClaimVerdict::WrongFact, "{bits} {size}");
    }
    // 8 bits of a float need no scales, so the limit counts none.
    let rate = |bits: u32| {
        let (result, _) = assess_figure(&format!(
            "{{hardware: {M4_MAX}, model: {LLAMA_8B}, workload: {{context: 131072, kvBits: {bits}}}, \
             figures: [{{kind: decodeTokensPerSecond, value: 41.8}}]}}"
        ));
        result
    };
    assert_eq!(rate(8), ClaimVerdict::Plausible);
    assert_eq!(rate(16), ClaimVerdict::ExceedsRoofline);
}

#[test]
fn prefill_rate_may_count_cached_tokens() {
    let at = |rate: u32, others: &str| {
        verdict(
            QWEN3_8B,
            "{prompt: 10000, cached: 9900, state: warm}",
            &format!("{{kind: prefillTokensPerSecond, value: {rate}}}{others}"),
        )
    };
    for others in ["", ", {kind: prefillSeconds, value: 0.4}"] {
        let (result, findings) = at(25000, others);
        assert!(
            result == ClaimVerdict::MethodUnclear && findings.contains("cached"),
            "{result} {findings}"
        );
    }
    assert_eq!(at(2_500_000, "").0, ClaimVerdict::ExceedsRoofline);
    assert_eq!(
        at(25000, ", {kind: prefillSeconds, value: 0.2}").0,
        ClaimVerdict::Contradictory
    );
    let (result, findings) = verdict(
        QWEN3_8B,
        "{prompt: 10000}",
        "{kind: prefillTokensPerSecond, value: 25000}",
    );
    assert_eq!(result, ClaimVerdict::ExceedsRoofline, "{findings}");
}

#[test]
fn total_of_a_server_without_a_batch_is_unclear() {
    let at = |engine: &str, figures: &str| {
        of_claim(&format!(
            "{{engine: {engine}, hardware: {M4_MAX}, model: {QWEN3_8B}, workload: {{generated: 4000}}, figures: [{figures}]}}"
        ))
    };
    let figures = "{kind: throughputTokensPerSecond, value: 400}, {kind: totalSeconds, value: 10 s}";
    for engine in ["vllm", "vllm-mlx 0.2", "vLLM Metal", "SGLang"] {
        let (result, findings) = at(engine, figures);
        assert!(
            result == ClaimVerdict::MethodUnclear && findings.contains("batch"),
            "{engine}: {result} {findings}"
        );
    }
    assert_eq!(at("mlx-lm", figures).0, ClaimVerdict::ExceedsRoofline);
    // Compute limits every batch.
    let beyond = "{kind: throughputTokensPerSecond, value: 40000}, {kind: totalSeconds, value: 100 ms}";
    assert_eq!(at("vllm", beyond).0, ClaimVerdict::ExceedsRoofline);
    let stated = "{kind: totalSeconds, value: 10 s, under: {batch: 1}}";
    assert_eq!(at("vllm", stated).0, ClaimVerdict::ExceedsRoofline);
}
