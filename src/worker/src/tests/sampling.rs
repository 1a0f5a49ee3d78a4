//! Logprobs, logit bias and independence of sampling parameters, through the API.

use super::*;

/// Returns text and logprobs of a chat. Asserts that a stream has the same logprobs.
async fn chat_logprobs(worker: &TestWorker, extra: Value) -> (String, Vec<Value>) {
    let extra = merged(json!({"logprobs": true, "top_logprobs": 4}), extra);
    let whole = worker.chat(extra.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let choice = whole.json()["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(choice["logprobs"]["refusal"], json!(null));

    let events = worker.chat(merged(extra, json!({"stream": true}))).await.events();
    let mut streamed = Vec::new();
    for event in &events {
        let choice = &event["choices"][0];
        let entries = choice["logprobs"]["content"].as_array();
        let bare = choice["finish_reason"].is_string() || choice["delta"]["role"].is_string();
        assert_eq!(entries.is_none(), bare, "{event}");
        streamed.extend(entries.into_iter().flatten().cloned());
    }
    assert_eq!(streamed, content);
    (choice["message"]["content"].as_str().unwrap().to_owned(), content)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn chat_logprobs_match_openai() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let bare = worker.chat(json!({})).await.json();
            assert_eq!(bare["choices"][0]["logprobs"], json!(null));
            let (text, content) = chat_logprobs(worker, json!({})).await;
            assert_eq!(bare["choices"][0]["message"]["content"], text.as_str());
            let mut bytes = Vec::new();
            for entry in &content {
                let top = entry["top_logprobs"].as_array().unwrap();
                assert_eq!(top.len(), 4);
                assert!(
                    top.is_sorted_by_key(|entry| -number(&entry["logprob"])),
                    "{top:?}"
                );
                let total: f64 = top.iter().map(|entry| number(&entry["logprob"]).exp()).sum();
                assert!(total <= 1.0 + 1e-5, "{total}");
                let of = |entry: &Value| json!([entry["token"], entry["logprob"], entry["bytes"]]);
                assert_eq!(of(&top[0]), of(entry), "temperature 0 is greedy");
                bytes.extend(serde_json::from_value::<Vec<u8>>(entry["bytes"].clone()).unwrap());
            }
            assert_eq!(String::from_utf8_lossy(&bytes), text);

            let (_, alone) = chat_logprobs(worker, json!({"top_logprobs": 0})).await;
            assert_eq!(alone[3]["top_logprobs"], json!([]));
            assert_eq!(alone[3]["logprob"], content[3]["logprob"]);
            // Logprobs do not depend on the sampling parameters of the request.
            let changed = json!({"temperature": 1.7, "top_k": 1, "logit_bias": {"5": -3}});
            assert_eq!(
                chat_logprobs(worker, changed).await,
                (text.clone(), content.clone())
            );
            // The logprobs exclude the tokens that the stop string removes.
            let stop: String = text.chars().skip(4).take(2).collect();
            let (cut, scores) = chat_logprobs(worker, json!({"stop": stop})).await;
            assert_eq!(cut, text[..text.find(&stop).unwrap()]);
            let tokens: String = scores
                .iter()
                .map(|score| score["token"].as_str().unwrap())
                .collect();
            assert!(tokens.starts_with(&cut), "{tokens:?}, {cut:?}");
            assert!(scores.len() < content.len());
        })
    });
}

#[test]
fn completion_logprobs_are_four_lists() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let body =
                json!({"model": "tiny", "prompt": "What", "max_tokens": 9, "temperature": 0, "logprobs": 2});
            let whole = worker.post("/v1/completions", &body).await.json();
            let choice = &whole["choices"][0];
            let text = choice["text"].as_str().unwrap();
            let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
                .map(|name| choice["logprobs"][name].as_array().unwrap().clone());
            assert!(lists.iter().all(|list| list.len() == 9), "{lists:?}");
            let [tokens, logprobs, tops, offsets] = &lists;
            // Tokens that are not valid UTF-8 are represented by their bytes.
            let token_text = |token: &Value| match token.as_str().unwrap() {
                bytes if bytes.starts_with("bytes:") => "\u{fffd}".to_owned(),
                token => token.to_owned(),
            };
            assert_eq!(tokens.iter().map(token_text).collect::<String>(), text);
            for at in 0..9 {
                let top = tops[at].as_object().unwrap();
                assert_eq!(top[tokens[at].as_str().unwrap()], logprobs[at]);
                let maximum = top.values().map(number).fold(f64::MIN, f64::max);
                assert_eq!(maximum, number(&logprobs[at]), "temperature 0 is greedy");
                let before = offsets[at].as_u64().unwrap() as usize;
                let rest: String = text.chars().skip(before).collect();
                assert!(rest.starts_with(&token_text(&tokens[at])));
            }
            let events = worker
                .post("/v1/completions", &merged(body, json!({"stream": true})))
                .await
                .events();
            let streamed = |name: &str| {
                let pieces = events
                    .iter()
                    .filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
                pieces.flatten().cloned().collect::<Vec<Value>>()
            };
            assert_eq!(&streamed("token_logprobs"), logprobs);
            assert_eq!(&streamed("text_offset"), offsets);
        })
    });
}

/// The rows of the batch have different sampling parameters.
#[test]
fn sampling_parameters_do_not_affect_other_requests() {
    let config = WorkerConfig {
        max_concurrency: 6,
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let kinds = [
                json!({}),
                json!({"presence_penalty": 1.5, "frequency_penalty": 0.5, "logprobs": true, "top_logprobs": 3}),
                json!({"repetition_penalty": 1.3, "temperature": 0.9, "seed": 4}),
                json!({"logit_bias": {"9": 2.5, "20": -100}, "logprobs": true}),
                json!({"min_p": 0.2, "temperature": 1.2, "seed": 5}),
                json!({"temperature": 0.7, "seed": 6, "logprobs": true, "top_logprobs": 20}),
            ];
            let send = |kind: &Value| {
                let body = merged(kind.clone(), json!({"max_tokens": 60}));
                async move { worker.chat(body).await.json()["choices"].clone() }
            };
            let mut alone = Vec::new();
            for kind in &kinds {
                alone.push(send(kind).await);
            }
            let texts: std::collections::BTreeSet<String> = alone
                .iter()
                .map(|choices| choices[0]["message"]["content"].to_string())
                .collect();
            assert_eq!(texts.len(), kinds.len(), "all answers differ");
            let together = futures::future::join_all(kinds.iter().map(send)).await;
            assert_eq!(together, alone, "including logprobs");
        })
    });
}

#[test]
fn logit_bias_bans_and_forces_tokens() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let send = |bias: Value| {
                worker.post_owned(
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": [cue], "max_tokens": 6, "temperature": 0, "logit_bias": bias}),
                )
            };
            let text = |answer: Answer| answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
            assert_eq!(text(send(json!({})).await), "abcdabcdabcd");
            // The tokens after the cue are `ab` and `cd`.
            assert_eq!(
                text(send(json!({(cue + 2).to_string(): 100})).await),
                "cdcdcdcdcdcd"
            );
            assert!(!text(send(json!({(cue + 2).to_string(): -100})).await).contains("cd"));
            let unknown = send(json!({"64": 1})).await;
            assert_eq!(
                (unknown.status.as_u16(), unknown.json()["error"]["param"].clone()),
                (400, json!("logit_bias"))
            );
        })
    });
}
