//! Answers that are guessed ahead.

use super::batching::value;
use super::*;

fn guessing() -> WorkerConfig {
    WorkerConfig {
        prompt_lookup_tokens: Some(8),
        ..config()
    }
}

/// Random weights soon repeat themselves, which is what there is to guess from.
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
fn guesses_change_no_answer() {
    let mut all = Vec::new();
    for config in [config(), guessing()] {
        let guesses = config.prompt_lookup_tokens.is_some();
        let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let saying = std::sync::Arc::clone(&said);
        with_worker(config, move |worker| {
            Box::pin(async move {
                for request in requests() {
                    let answer = worker.post("/v1/completions", &request).await;
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    let answer = answer.json();
                    let told = json!([answer["choices"], answer["usage"]["completion_tokens"]]);
                    saying.lock().unwrap().push(told);
                }
                let metrics = worker.send("GET", "/metrics", "").await.body;
                let of = |name: &str| value(&metrics, &format!("rooflet_worker_lookup_{name}_tokens_total"));
                assert_eq!(of("guessed") > 0.0, guesses);
                assert!(of("right") <= of("guessed"));
                assert_eq!(of("right") > 0.0, guesses);
            })
        });
        all.push(std::mem::take(&mut *said.lock().unwrap()));
    }
    for ((plain, guessed), request) in all[0].iter().zip(&all[1]).zip(requests()) {
        assert_eq!(plain, guessed, "{request}");
    }
}

/// The guide says again what it has said before.
#[test]
fn what_was_said_before_is_guessed() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..guessing()
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
            let said = second["usage"]["completion_tokens"].as_f64().unwrap();
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let right = value(&metrics, "rooflet_worker_lookup_right_tokens_total");
            assert!(right > said / 2.0, "{right} of {said}");
        })
    });
}

/// What is kept of an answer that was guessed holds for who goes on from it.
#[test]
fn prefixes_of_guessed_answers_are_those_of_others() {
    let turn =
        |prompt: Vec<u32>| json!({"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 37});
    let prompt: Vec<u32> = (0..40).map(|at| 3 + at % 13 * 7).collect();
    let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    for config in [config(), guessing()] {
        let (saying, prompt) = (std::sync::Arc::clone(&said), prompt.clone());
        with_worker(config, move |worker| {
            Box::pin(async move {
                let first = worker.post("/v1/completions", &turn(prompt.clone())).await.json();
                let text = first["choices"][0]["text"].as_str().unwrap().to_owned();
                let answer = worker.app.prompter.tokenizer().encode_prompt(&text).unwrap();
                let next = [prompt, answer, vec![9, 8, 7]].concat();
                let second = worker.post("/v1/completions", &turn(next)).await.json();
                saying.lock().unwrap().push((text, second["choices"].clone()));
            })
        });
    }
    let said = said.lock().unwrap();
    assert_eq!(said[0], said[1]);
}

#[test]
fn a_model_that_cannot_take_a_guess_back_is_refused() {
    let message = process::start_error(WorkerConfig {
        model: root().join("e2e/fixtures/models/gemma3"),
        ..guessing()
    });
    assert_eq!(message.reason(), "PromptLookupUnsupported");
    assert!(message.to_string().contains("sliding window"), "{message}");
}
