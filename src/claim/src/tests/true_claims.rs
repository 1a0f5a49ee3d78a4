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
}
