//! Completions and chats: text, limits, choices and rejected requests.

use super::*;

#[test]
fn chat_completion_has_openai_fields() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let answer = worker.chat(json!({"max_tokens": 7})).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let body = answer.json();
            assert_eq!(body["object"], "chat.completion");
            assert_eq!(body["model"], "tiny");
            assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
            assert_eq!(body["choices"][0]["finish_reason"], "length");
            assert_eq!(body["choices"][0]["message"]["role"], "assistant");
            assert_eq!(body["usage"]["completion_tokens"], 7);
            let prompt = body["usage"]["prompt_tokens"].as_u64().unwrap();
            assert_eq!(body["usage"]["total_tokens"], prompt + 7);
        })
    });
}

#[test]
fn greedy_completions_match_mlx_lm() {
    let fixture: Value =
        serde_json::from_str(&std::fs::read_to_string(root().join("e2e/fixtures/logits.json")).unwrap())
            .unwrap();
    let cases = fixture["cases"].as_array().unwrap().clone();
    with_worker(config(), |worker| {
        Box::pin(async move {
            let qwen3 = cases
                .iter()
                .filter(|case| case["model"] == "e2e/fixtures/models/qwen3");
            for case in qwen3 {
                let mut ids: Vec<u32> = serde_json::from_value(case["greedy"].clone()).unwrap();
                let tokenizer = worker.app.prompter.tokenizer();
                let end = ids.iter().position(|id| tokenizer.is_eos(*id));
                ids.truncate(end.unwrap_or(ids.len()));
                let body =
                    json!({"model": "tiny", "prompt": case["prompt"], "temperature": 0, "max_tokens": 16});
                let answer = worker.post("/v1/completions", &body).await.json();
                assert_eq!(answer["choices"][0]["text"], tokenizer.decode(&ids).unwrap());
                assert_eq!(
                    answer["usage"]["prompt_tokens"],
                    case["prompt"].as_array().unwrap().len()
                );
            }
        })
    });
}

#[test]
fn stream_equals_complete_response() {
    with_worker(config(), |worker| {
        Box::pin(async {
            // Different salts prevent a cache hit, so that the usage of both responses is equal.
            let complete = worker.chat(json!({"cache_salt": "complete"})).await.json();
            let stream = worker
                .chat(json!({"stream": true, "stream_options": {"include_usage": true}, "cache_salt": "stream"}))
                .await;
            let mut events = stream.events();
            let usage = events.pop().unwrap();
            assert_eq!(
                (&usage["choices"], &usage["usage"]),
                (&json!([]), &complete["usage"])
            );
            let last = events.pop().unwrap();
            assert_eq!(last["choices"][0]["delta"], json!({}));
            assert_eq!(
                last["choices"][0]["finish_reason"],
                complete["choices"][0]["finish_reason"]
            );
            assert_eq!(
                events[0]["choices"][0]["delta"],
                json!({"role": "assistant", "content": ""})
            );
            for event in &events {
                assert_eq!(event["object"], "chat.completion.chunk");
                assert_eq!((&event["id"], &event["created"]), (&last["id"], &last["created"]));
                assert_eq!(event["choices"][0]["finish_reason"], json!(null));
                assert_eq!(event.get("usage"), Some(&json!(null)));
            }
            let text: String = events
                .iter()
                .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
                .collect();
            assert_eq!(json!(text), complete["choices"][0]["message"]["content"]);

            let bare = worker
                .chat(json!({"stream": true, "stream_options": {}}))
                .await
                .events();
            assert!(bare.iter().all(|event| event.get("usage").is_none()));
        })
    });
}

/// The guide model ends its answers with an end-of-text token.
#[test]
fn guide_model_answers_and_stops() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let answer = worker.chat(json!({"max_tokens": 200})).await.json();
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
            assert!(text.contains("rooflet"), "{text}");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{text}");
        })
    });
}

#[test]
fn stop_string_truncates_text_at_any_token_boundary() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let full = worker.chat_text(json!({})).await;
            let chars: Vec<char> = full.chars().collect();
            assert!(chars.len() > 8, "{full:?}");
            for (from, to) in [(0, 1), (3, 5), (4, 8), (chars.len() - 2, chars.len())] {
                let stop: String = chars[from..to].iter().collect();
                let expected = &full[..full.find(&stop).unwrap()];
                let answer = worker
                    .chat(json!({"stop": [stop, "never-generated"]}))
                    .await
                    .json();
                assert_eq!(
                    answer["choices"][0]["message"]["content"], expected,
                    "{stop:?} in {full:?}"
                );
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                let events = worker.chat(json!({"stop": stop, "stream": true})).await.events();
                let streamed: String = events
                    .iter()
                    .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
                    .collect();
                assert_eq!(streamed, expected);
            }
            let almost = format!("{}x-never-generated", chars[chars.len() - 1]);
            assert_eq!(
                worker.chat_text(json!({"stop": almost})).await,
                full,
                "the end of the answer releases held text"
            );
        })
    });
}

#[test]
fn equal_seeds_produce_equal_text() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let text = |seed: u64| worker.chat_text(json!({"temperature": 1.0, "top_p": 0.95, "seed": seed}));
            let (first, again, other) = (text(7).await, text(7).await, text(8).await);
            assert_eq!(first, again);
            assert_ne!(first, other);
            let greedy = worker.chat_text(json!({})).await;
            assert_eq!(
                worker.chat_text(json!({"temperature": 1.0, "top_k": 1})).await,
                greedy
            );
        })
    });
}

#[test]
fn concurrent_requests_do_not_affect_each_other() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let send = |index: usize| {
                worker.chat_text(
                    json!({"messages": [{"role": "user", "content": "x".repeat(3 + index * 40)}],
                                        "temperature": 0.8, "seed": index}),
                )
            };
            let mut alone = Vec::new();
            for index in 0..6 {
                alone.push(send(index).await);
            }
            let together = futures::future::join_all((0..6).map(send)).await;
            assert_eq!(together, alone);
        })
    });
}

#[test]
fn enforces_context_limit() {
    let config = WorkerConfig {
        context_tokens: Some(64),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let complete = |tokens: usize, max_tokens: usize| {
                worker.post_owned(
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": vec![70; tokens], "max_tokens": max_tokens, "temperature": 0}),
                )
            };
            let rejected = complete(64, 1).await;
            assert_eq!(rejected.status, 400);
            assert_eq!(rejected.json()["error"]["code"], "context_length_exceeded");
            assert_eq!(rejected.json()["error"]["param"], "prompt");
            assert_eq!(
                worker.status().await.requests.completed,
                0,
                "rejected before it reaches the engine"
            );
            let full = complete(60, 100).await.json();
            assert!(full["usage"]["total_tokens"].as_u64().unwrap() <= 64, "{full}");
            let last = complete(63, 100).await.json();
            assert_eq!(last["usage"]["completion_tokens"], 1);

            let long = json!({"messages": [{"role": "user", "content": "x".repeat(4000)}], "stream": true});
            let rejected = worker.chat(long).await;
            assert_eq!(
                (
                    rejected.status.as_u16(),
                    rejected.json()["error"]["param"].clone()
                ),
                (400, json!("messages"))
            );
        })
    });
}

#[test]
fn each_prompt_has_its_choice() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let complete = |prompt: Value, stream: bool| {
                worker.post_owned(
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": stream}),
                )
            };
            let text =
                |answer: &Value, index: usize| answer["choices"][index]["text"].as_str().unwrap().to_owned();
            let (a, b) = (
                complete(json!("ab"), false).await.json(),
                complete(json!(["xyz"]), false).await.json(),
            );
            let both = complete(json!(["ab", "xyz"]), false).await.json();
            assert_eq!([text(&both, 0), text(&both, 1)], [text(&a, 0), text(&b, 0)]);
            assert_eq!(both["object"], "text_completion");

            let mut streamed = [String::new(), String::new()];
            let mut ends = 0;
            for event in complete(json!(["ab", "xyz"]), true).await.events() {
                let choice = &event["choices"][0];
                streamed[choice["index"].as_u64().unwrap() as usize]
                    .push_str(choice["text"].as_str().unwrap());
                ends += usize::from(choice["finish_reason"].is_string());
            }
            assert_eq!((streamed, ends), ([text(&a, 0), text(&b, 0)], 2));
        })
    });
}

#[test]
fn choices_differ_and_are_reproducible() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let ask = |extra: Value| worker.chat(merged(json!({"temperature": 1, "seed": 3}), extra));
            let one = ask(json!({})).await.json();
            let four = ask(json!({"n": 4})).await.json();
            let texts: Vec<&str> = (0..4)
                .map(|index| {
                    let choice = &four["choices"][index];
                    assert_eq!(choice["index"], index);
                    choice["message"]["content"].as_str().unwrap()
                })
                .collect();
            assert_eq!(texts[0], one["choices"][0]["message"]["content"]);
            assert!(texts[1..].iter().all(|text| *text != texts[0]), "{texts:?}");
            assert_eq!(four["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
            assert_eq!(
                four,
                merged(
                    ask(json!({"n": 4})).await.json(),
                    json!({"id": four["id"], "created": four["created"]})
                )
            );

            let stream =
                ask(json!({"n": 4, "stream": true, "stream_options": {"include_usage": true}})).await;
            let mut events = stream.events();
            assert_eq!(events.pop().unwrap()["usage"], four["usage"]);
            let mut streamed = vec![String::new(); 4];
            let (mut heads, mut ends) = (0, 0);
            for event in &events {
                let choice = &event["choices"][0];
                let delta = &choice["delta"];
                streamed[choice["index"].as_u64().unwrap() as usize]
                    .push_str(delta["content"].as_str().unwrap_or_default());
                heads += usize::from(delta["role"] == "assistant");
                ends += usize::from(choice["finish_reason"].is_string());
            }
            assert_eq!((heads, ends), (4, 4));
            assert_eq!(streamed, texts);

            let body = json!({"model": "tiny", "prompt": ["ab", "xyz"], "n": 2, "max_tokens": 6, "seed": 1});
            let pairs = worker.post("/v1/completions", &body).await.json();
            let single = merged(body, json!({"prompt": "xyz", "n": 1}));
            let single = worker.post("/v1/completions", &single).await.json();
            assert_eq!(pairs["choices"].as_array().unwrap().len(), 4);
            assert_eq!(
                pairs["choices"][2]["text"], single["choices"][0]["text"],
                "choices of a prompt are adjacent"
            );
        })
    });
}

#[test]
fn rejected_requests_have_openai_errors() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let chat = "/v1/chat/completions";
            let hello = json!([{"role": "user", "content": "hi"}]);
            let with = |extra: Value| merged(json!({"model": "tiny", "messages": hello}), extra).to_string();
            let huge = "x".repeat(4 * crate::api::body::MAX_BODY_BYTES);
            let cases = [
                ("POST", chat, "{".to_owned(), 400, "invalid_json"),
                ("POST", chat, "[]".to_owned(), 400, "invalid_json"),
                ("POST", chat, huge, 413, "request_too_large"),
                (
                    "POST",
                    chat,
                    with(json!({"model": "other"})),
                    404,
                    "model_not_found",
                ),
                (
                    "POST",
                    chat,
                    with(json!({"audio": {"voice": "x"}})),
                    400,
                    "unsupported_parameter",
                ),
                (
                    "POST",
                    chat,
                    with(json!({"temperature": 9})),
                    400,
                    "invalid_value",
                ),
                ("POST", chat, with(json!({"messages": []})), 400, "invalid_value"),
                (
                    "POST",
                    "/v1/completions",
                    json!({"model": "tiny"}).to_string(),
                    400,
                    "missing_parameter",
                ),
                (
                    "POST",
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": [9999]}).to_string(),
                    400,
                    "invalid_value",
                ),
                ("GET", chat, String::new(), 405, "method_not_allowed"),
                ("GET", "/v1/engines", String::new(), 404, "unknown_url"),
                ("GET", "/v1/models/other", String::new(), 404, "model_not_found"),
            ];
            for (method, path, body, status, code) in cases {
                let answer = worker.send(method, path, &body).await;
                let shown: String = body.chars().take(80).collect();
                assert_eq!(
                    answer.status.as_u16(),
                    status,
                    "{method} {path} {shown}: {}",
                    answer.body
                );
                let error = &answer.json()["error"];
                assert_eq!(error["code"], code, "{method} {path} {shown}");
                assert!(
                    error["message"].is_string() && error["type"].is_string() && error.get("param").is_some()
                );
            }
            assert_eq!(
                worker.chat(json!({"max_tokens": 1})).await.status,
                200,
                "the worker still accepts requests"
            );
        })
    });
}
