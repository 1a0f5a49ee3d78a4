//! Tests of the output of `rooflet fit`.

use super::*;
use crate::cli::fit::model;
use rooflet_roofline::chip;
use rooflet_roofline::predict::{Engine, Parameters};

/// Fields on which scripts rely; see docs/fit.md.
#[test]
fn json_has_every_documented_field() {
    let model = model::load("qwen3-8b-4bit", None).unwrap_or_else(|_| panic!("expected a published model"));
    let service = Service {
        engine: Engine::Mlx,
        context_tokens: 8192,
        concurrency: 2,
        prompt_tokens: 2000,
        cached_tokens: 1000,
        kv_bits: 16,
    };
    let machine = Machine::of_chip(chip::find("M4 Pro", Some(20), None).unwrap(), Bytes::gib(24));
    let fit = Fit::new(&model.facts, service, &machine, Parameters::built_in());
    let answer = json(&fit, &model, &machine);
    let percentiles = [
        "/decode/tokensPerSecond",
        "/decode/aggregateTokensPerSecond",
        "/prefill/tokensPerSecond",
        "/timeToFirstTokenSeconds",
        "/timeToFirstTokenSeconds/prefixHit",
        "/timeToFirstTokenSeconds/coldLoad",
    ];
    for field in percentiles {
        let value = |name: &str| answer.pointer(&format!("{field}/{name}")).and_then(Value::as_f64);
        let (p10, p50, p90) = (
            value("p10").unwrap(),
            value("p50").unwrap(),
            value("p90").unwrap(),
        );
        assert!(0.0 < p10 && p10 < p50 && p50 < p90, "{field}: {p10} {p50} {p90}");
    }
    for field in [
        "weightsBytes",
        "kvBytes",
        "kvReservedBytes",
        "activationBytes",
        "runtimeBytes",
        "limitBytes",
    ] {
        assert!(answer["memory"][field].as_u64().unwrap() > 0, "{field}");
    }
    for field in ["memory", "decode", "prefill", "timeToFirstTokenSeconds"] {
        assert_eq!(answer[field]["basis"], "Nominal", "{field}");
    }
    assert_eq!(
        (&answer["admitted"], &answer["binding"]),
        (&json!(true), &json!("Bandwidth"))
    );
    assert!(answer["decode"]["bytesPerToken"].as_f64().unwrap() > 1e9);
    assert!(answer["maxContextTokens"].as_u64().unwrap() >= 8192);
    assert!(answer["maxConcurrency"].as_u64().unwrap() >= 2);
    assert_eq!(answer["suggestions"], json!([]));
}

#[test]
fn context_beyond_memory_and_model_reports_both_limits() {
    let mut model =
        model::load("qwen3-8b-4bit", None).unwrap_or_else(|_| panic!("expected a published model"));
    model.facts.max_context_tokens = Some(40_960);
    let service = Service {
        engine: Engine::Mlx,
        context_tokens: 65_536,
        concurrency: 4,
        prompt_tokens: 2000,
        cached_tokens: 0,
        kv_bits: 16,
    };
    let machine = Machine::of_chip(chip::find("M4 Pro", Some(20), None).unwrap(), Bytes::gib(24));
    let fit = Fit::new(&model.facts, service, &machine, Parameters::built_in());
    let chosen = ChosenMachine {
        machine,
        notes: Vec::new(),
    };
    let output = text(&fit, &model, service, &chosen);
    assert!(
        output.contains("It does not fit: it needs") && output.contains("contexts of up to 40960 tokens"),
        "{output}"
    );
    // Only a shorter context resolves both problems.
    assert!(
        fit.suggestions
            .iter()
            .all(|suggestion| matches!(suggestion, rooflet_roofline::sizing::Suggestion::ContextTokens(_))),
        "{output}"
    );
}
