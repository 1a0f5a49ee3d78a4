//! Prompt lookup: draft tokens from earlier text.

use super::batching::value;
use super::*;

fn with_lookup_config() -> WorkerConfig {
    WorkerConfig {
        prompt_lookup_tokens: Some(8),
        ..config()
    }
}

/// Requests whose answers contain repetitions, because models with random weights repeat
/// themselves.
fn requests() -> Vec<Value> {
    let prompt: Vec<u32> = (0..40).map(|at| 3 + at % 13 * 7).collect();
    let mut all = vec![
        json!({"max_tokens": 1}),
        json!({"max_tokens": 2}),
        json!({"max_tokens": 120}),
        json!({"max_tokens": 60, "logprobs": 2}),
        json!({"max_tokens": 60, "n": 3, "temperature": 0.7}),
        json!({"max_tokens": 60, "min_tokens": 20}),
        json!({"max_tokens": 60, "frequency_penalty": 0.5}),
        json!({"max_tokens": 60, "logit_bias": {"7": 2}}),
    ];
    all.extend((0..6).map(
        |seed| json!({"max_tokens": 60, "temperature": 0.1 * f64::from(seed), "top_p": 0.9, "seed": seed}),
    ));
    let base = |extra| {
        merged(
            json!({"model": "tiny", "prompt": prompt, "temperature": 0, "seed": 1}),
            extra,
        )
    };
    all.into_iter().map(base).collect()
}

#[test]
fn prompt_lookup_does_not_change_answers() {
    let mut all = Vec::new();
    for config in [config(), with_lookup_config()] {
        let drafts = config.prompt_lookup_tokens.is_some();
        let answers = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = std::sync::Arc::clone(&answers);
        with_worker(config, move |worker| {
            Box::pin(async move {
                for request in requests() {
                    let answer = worker.post("/v1/completions", &request).await;
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    let answer = answer.json();
                    let compared = json!([answer["choices"], answer["usage"]["completion_tokens"]]);
                    sink.lock().unwrap().push(compared);
                }
                let metrics = worker.send("GET", "/metrics", "").await.body;
                let of = |name: &str| value(&metrics, &format!("rooflet_worker_lookup_{name}_tokens_total"));
                assert_eq!(of("guessed") > 0.0, drafts);
                assert!(of("right") <= of("guessed"));
                assert_eq!(of("right") > 0.0, drafts);
            })
        });
        all.push(std::mem::take(&mut *answers.lock().unwrap()));
    }
    for ((plain, with_lookup), request) in all[0].iter().zip(&all[1]).zip(requests()) {
        assert_eq!(plain, with_lookup, "{request}");
    }
}

/// The guide model repeats its answer to a repeated question.
#[test]
fn accepts_most_draft_tokens_of_repeated_answer() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..with_lookup_config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let first = worker.chat_text(json!({"max_tokens": 200})).await;
            let turn = |role: &str, text: &str| json!({"role": role, "content": text});
            let question = "What is rooflet?";
            let turns = [
                turn("user", question),
                turn("assistant", &first),
                turn("user", question),
            ];
            let second = worker
                .chat(json!({"max_tokens": 200, "messages": turns}))
                .await
                .json();
            assert_eq!(second["choices"][0]["message"]["content"], first);
            let tokens = second["usage"]["completion_tokens"].as_f64().unwrap();
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let accepted = value(&metrics, "rooflet_worker_lookup_right_tokens_total");
            assert!(accepted > tokens / 2.0, "{accepted} of {tokens}");
        })
    });
}

/// The second request continues the first answer from the prefix cache.
#[test]
fn cached_prefixes_are_equal_with_and_without_prompt_lookup() {
    let turn =
        |prompt: Vec<u32>| json!({"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 37});
    let prompt: Vec<u32> = (0..40).map(|at| 3 + at % 13 * 7).collect();
    let answers = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    for config in [config(), with_lookup_config()] {
        let (sink, prompt) = (std::sync::Arc::clone(&answers), prompt.clone());
        with_worker(config, move |worker| {
            Box::pin(async move {
                let first = worker.post("/v1/completions", &turn(prompt.clone())).await.json();
                let text = first["choices"][0]["text"].as_str().unwrap().to_owned();
                let answer = worker.app.prompter.tokenizer().encode_prompt(&text).unwrap();
                let next = [prompt, answer, vec![9, 8, 7]].concat();
                let second = worker.post("/v1/completions", &turn(next)).await.json();
                sink.lock().unwrap().push((text, second["choices"].clone()));
            })
        });
    }
    let answers = answers.lock().unwrap();
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn rejects_prompt_lookup_for_sliding_windows() {
    let message = process::start_error(WorkerConfig {
        model: root().join("e2e/fixtures/models/gemma3"),
        ..with_lookup_config()
    });
    assert_eq!(message.reason(), "PromptLookupUnsupported");
    assert!(message.to_string().contains("sliding window"), "{message}");
}
