//! Assumptions of a demand: cached prompts, the average context, and speculative decoding.

use super::*;

/// Returns the verdict for a coding agent on one M4 Max, with these fields added to the demand.
fn agent(fields: serde_json::Value) -> PlanVerdict {
    let mut demand = json!({
        "name": "agent", "model": "qwen3-30b-a3b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 20000,
        "answerTokens": 400, "contextTokens": 32768, "maxConcurrency": 1,
    });
    for (name, value) in fields.as_object().unwrap() {
        demand[name] = value.clone();
    }
    let mac = json!({"chip": "M4 Max", "gpuCores": 40, "memory": "64Gi"});
    answer(&question_of(
        json!({"demand": [demand], "fleet": {"macs": [mac]}}),
    ))
}

fn fit(verdict: &PlanVerdict) -> &PlanFit {
    &verdict.models[0].fits[0]
}

/// Prefill of one tenth of the prompt is at least four times as fast, and the prefix of a prompt for
/// which the objective applies is cached as well.
#[test]
fn cached_prompt_tokens_are_not_computed() {
    let objective = json!({"timeToFirstToken": {"max": "1h", "atPromptTokens": 20000}});
    let cold = agent(json!({"objectives": objective}));
    let warm = agent(json!({"cachedPromptTokens": 18000, "objectives": objective}));
    let seconds = |verdict: &PlanVerdict| fit(verdict).time_to_first_token_seconds.unwrap().p90;
    let (cold_seconds, warm_seconds) = (seconds(&cold), seconds(&warm));
    assert!(
        warm_seconds * 4.0 < cold_seconds,
        "{warm_seconds} of {cold_seconds}"
    );
    assert!(warm.demand_factor > 1.5 * cold.demand_factor);
    assert_eq!(cold.assumptions, Vec::<String>::new());
    assert_eq!(warm.models[0].cached_prompt_tokens, 18000);
    assert!(
        warm.assumptions[0]
            .starts_with("agent: the prefix cache contains 18000 of 20000 prompt tokens (90 %)"),
        "{:?}",
        warm.assumptions
    );
    // Between both times, only the plan with cached prompts meets the objective.
    let max = format!("{:.0}s", f64::midpoint(cold_seconds, warm_seconds));
    let objective = json!({"timeToFirstToken": {"max": max, "atPromptTokens": 20000}});
    assert!(!fit(&agent(json!({"objectives": objective}))).admitted);
    assert!(
        fit(&agent(
            json!({"cachedPromptTokens": 18000, "objectives": objective})
        ))
        .admitted
    );
}

/// A decode objective between the speeds at both contexts is met at the average context only. The
/// reserved memory is that of the full context.
#[test]
fn average_context_applies_to_speed_and_not_to_memory() {
    let fields = |context: &str, objectives: serde_json::Value| json!({"promptTokens": 2000, "decodeContext": context, "objectives": objectives});
    let (full, average) = (
        agent(fields("Full", json!({}))),
        agent(fields("Average", json!({}))),
    );
    let speed = |verdict: &PlanVerdict| fit(verdict).tokens_per_second.unwrap().p10;
    assert!(
        speed(&average) > 1.1 * speed(&full),
        "{} {}",
        speed(&average),
        speed(&full)
    );
    assert_eq!(fit(&average).memory_bytes, fit(&full).memory_bytes);
    assert!(
        average.assumptions[0].starts_with(
            "agent: streams decode at the average context of 2200 tokens, not at the full 32768"
        ),
        "{:?}",
        average.assumptions
    );
    let objectives = json!({"decodeTokensPerSecond": f64::midpoint(speed(&full), speed(&average))});
    let admitted =
        ["Full", "Average"].map(|context| fit(&agent(fields(context, objectives.clone()))).admitted);
    assert_eq!(admitted, [false, true]);
}

#[test]
fn speculative_decoding_is_an_assumption_of_the_answer() {
    let (plain, doubled) = (agent(json!({})), agent(json!({"speculativeSpeedup": 2.0})));
    let speed = |verdict: &PlanVerdict| fit(verdict).tokens_per_second.unwrap().p10;
    assert!((speed(&doubled) / speed(&plain) - 2.0).abs() < 1e-6);
    assert!(doubled.demand_factor > plain.demand_factor);
    assert!(
        doubled.assumptions[0].starts_with("agent: speculative decoding decodes 2 times as fast"),
        "{:?}",
        doubled.assumptions
    );
}

#[test]
fn rejects_assumptions_out_of_range() {
    for (name, value, message) in [
        (
            "cachedPromptTokens",
            json!(900),
            "900 must be less than promptTokens = 900",
        ),
        ("speculativeSpeedup", json!(0.5), "0.5 must be from 1 to 8"),
        ("speculativeSpeedup", json!(9), "9 must be from 1 to 8"),
    ] {
        let mut spec = json!({
            "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 1, "promptTokens": 900, "answerTokens": 8}],
        });
        spec["demand"][0][name] = value;
        let spec: CapacityPlanSpec = serde_json::from_value(spec).unwrap();
        let err = question(&spec, Vec::new(), &[], &|_| None).unwrap_err();
        assert_eq!(err.field, format!("spec.demand[0].{name}"));
        assert!(err.message.starts_with(message), "{err}");
    }
}
