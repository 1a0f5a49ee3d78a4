//! Prompt logprobs, echo, tokenization, embeddings, vLLM metrics and the OpenAPI document.

use base64::Engine as _;

use super::*;
use rooflet_testing::TempDir;

const PROMPT: [u32; 40] = {
    let mut prompt = [0; 40];
    let mut at = 0;
    while at < 40 {
        prompt[at] = 70 + (at as u32 * 37) % 150;
        at += 1;
    }
    prompt
};

async fn complete(worker: &TestWorker, extra: Value) -> Value {
    let body = merged(
        json!({"model": "tiny", "prompt": PROMPT[..], "temperature": 0, "max_tokens": 1}),
        extra,
    );
    let answer = worker.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a Vec<Value> {
    choice["logprobs"][name].as_array().unwrap()
}

fn near(a: &Value, b: &Value) -> bool {
    (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4
}

/// The request is the one of lm-eval's loglikelihood tasks.
#[test]
fn prompt_logprobs_equal_logprobs_of_single_token_answers() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let whole = complete(worker, json!({"echo": true, "logprobs": 5})).await;
            let choice = &whole["choices"][0];
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                assert_eq!(list(choice, name).len(), 41, "{name}");
            }
            assert_eq!(list(choice, "token_logprobs")[0], json!(null));
            assert_eq!(list(choice, "top_logprobs")[0], json!(null));
            for at in [1, 2, 15, 16, 17, 33, 40] {
                let alone = complete(worker, json!({"prompt": PROMPT[..at], "logprobs": 5})).await;
                let expected = &list(&alone["choices"][0], "top_logprobs")[0];
                let got = &list(choice, "top_logprobs")[at];
                for token in expected.as_object().unwrap().keys() {
                    assert!(near(&got[token], &expected[token]), "{at}: {got}, {expected}");
                }
                let own = list(choice, "tokens")[at].as_str().unwrap();
                // A token that is not valid UTF-8 is represented by its bytes.
                let is_lossy = |token: &String| token.contains('\u{fffd}');
                assert!(!got.as_object().unwrap().keys().any(is_lossy), "{at}: {got}");
                assert_eq!(got[own], list(choice, "token_logprobs")[at]);
            }
            // The result is the same with the prompt in the prefix cache.
            let again = complete(worker, json!({"echo": true, "logprobs": 5})).await;
            assert_eq!(again["choices"], whole["choices"]);
            // The response contains only the prompt.
            let prompt_only = complete(worker, json!({"echo": true, "logprobs": 5, "max_tokens": 0})).await;
            assert_eq!(
                list(&prompt_only["choices"][0], "token_logprobs")[..],
                list(choice, "token_logprobs")[..40]
            );
            assert_eq!(prompt_only["choices"][0]["finish_reason"], "length");
            assert_eq!(prompt_only["usage"]["completion_tokens"], 0);
            assert_eq!(prompt_only["usage"]["total_tokens"], 40);
        })
    });
}

#[test]
fn echo_prepends_prompt_to_answer() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let text = "Whät is\nrooflet?";
            let bare = complete(worker, json!({"prompt": text, "max_tokens": 6})).await;
            let expected = format!("{text}{}", bare["choices"][0]["text"].as_str().unwrap());
            let request = json!({"prompt": text, "max_tokens": 6, "echo": true, "logprobs": 0, "n": 2});
            let whole = complete(worker, request.clone()).await;
            for choice in whole["choices"].as_array().unwrap() {
                assert_eq!(choice["text"], expected);
                let offsets = list(choice, "text_offset");
                assert!(offsets.is_sorted_by_key(|offset| offset.as_u64().unwrap()));
                for (token, offset) in list(choice, "tokens").iter().zip(offsets) {
                    let rest: String = expected.chars().skip(offset.as_u64().unwrap() as usize).collect();
                    let token = token.as_str().unwrap();
                    let matches = token.starts_with("bytes:") || rest.starts_with(token);
                    assert!(matches, "{token:?} at {offset} of {expected:?}");
                }
            }
            assert_eq!(whole["usage"]["prompt_tokens"], bare["usage"]["prompt_tokens"]);
            let stream = merged(
                request,
                json!({"model": "tiny", "temperature": 0, "stream": true}),
            );
            let mut texts = [String::new(), String::new()];
            let mut logprobs = [Vec::new(), Vec::new()];
            for event in worker.post("/v1/completions", &stream).await.events() {
                let choice = &event["choices"][0];
                let index = choice["index"].as_u64().unwrap() as usize;
                texts[index].push_str(choice["text"].as_str().unwrap());
                logprobs[index].extend(
                    choice["logprobs"]["token_logprobs"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
            }
            assert_eq!(texts, [expected.clone(), expected.clone()]);
            assert_eq!(&logprobs[1], list(&whole["choices"][1], "token_logprobs"));
            let tokens = complete(worker, json!({"echo": true, "max_tokens": 0})).await;
            let decoded = worker.app.prompter.tokenizer().decode(&PROMPT).unwrap();
            assert_eq!(tokens["choices"][0]["text"], decoded);
            assert_eq!(tokens["choices"][0]["logprobs"], json!(null));

            for wrong in [
                json!({"max_tokens": 0}),
                json!({"echo": "yes"}),
                json!({"suffix": "x"}),
                json!({"best_of": 2}),
            ] {
                let body = merged(json!({"model": "tiny", "prompt": "a"}), wrong.clone());
                let rejected = worker.post("/v1/completions", &body).await;
                let param = wrong.as_object().unwrap().keys().next().unwrap();
                assert_eq!(
                    (
                        rejected.status.as_u16(),
                        rejected.json()["error"]["param"].clone()
                    ),
                    (400, json!(param))
                );
            }
        })
    });
}

#[test]
fn tokenize_and_detokenize_match_vllm() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let post = async |path: &str, body: Value| {
                let answer = worker.post(path, &body).await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                answer.json()
            };
            let text = "Hello, wörld!";
            let whole = post("/tokenize", json!({"prompt": text, "return_token_strs": true})).await;
            assert_eq!(whole["count"], whole["tokens"].as_array().unwrap().len());
            assert_eq!(whole["count"], whole["token_strs"].as_array().unwrap().len());
            assert_eq!(whole["max_model_len"], worker.app.prompter.context_tokens());
            let back = post("/detokenize", json!({"model": "tiny", "tokens": whole["tokens"]})).await;
            assert_eq!(back, json!({"prompt": text}));
            assert_eq!(
                post("/tokenize", json!({"prompt": text})).await["token_strs"],
                json!(null)
            );

            let messages = json!([{"role": "user", "content": "What is rooflet?"}]);
            let chat = post("/tokenize", json!({"model": "tiny", "messages": messages})).await;
            let usage = worker
                .chat(json!({"messages": messages, "max_tokens": 1}))
                .await
                .json()["usage"]
                .clone();
            assert_eq!(chat["count"], usage["prompt_tokens"]);
            let bare = json!({"messages": messages, "add_generation_prompt": false});
            assert!(post("/tokenize", bare).await["count"].as_u64() < chat["count"].as_u64());

            for (path, body, param) in [
                ("/tokenize", json!({}), "prompt"),
                ("/tokenize", json!({"prompt": "0,".repeat(1 << 20)}), "prompt"),
                ("/tokenize", json!({"prompt": 5}), "prompt"),
                (
                    "/tokenize",
                    json!({"prompt": "a", "messages": messages}),
                    "prompt",
                ),
                ("/tokenize", json!({"prompt": "a", "more": 1}), "more"),
                ("/detokenize", json!({"tokens": [-1]}), "tokens"),
                ("/detokenize", json!({}), "tokens"),
            ] {
                let rejected = worker.post(path, &body).await;
                assert_eq!(
                    (
                        rejected.status.as_u16(),
                        rejected.json()["error"]["param"].clone()
                    ),
                    (400, json!(param)),
                    "{body}"
                );
            }
            let unknown = worker
                .post("/tokenize", &json!({"model": "other", "prompt": "a"}))
                .await;
            assert_eq!(unknown.status, 404);
        })
    });
}

/// In a scripted model, the hidden state of each token is a unit vector, so that the mean counts
/// tokens.
#[test]
fn embedding_is_normalised_mean_of_hidden_states() {
    let dir = TempDir::new();
    let script = script::Script::new(&[(&[b"a", b"b", b"c"], true)]);
    script.write(dir.path());
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        context_tokens: Some(2048),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let body = json!({"model": "tiny", "input": [[2, 3, 2, 4], [3]], "encoding_format": "float"});
            let answer = worker.post("/v1/embeddings", &body).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let whole = answer.json();
            assert_eq!(whole["object"], "list");
            assert_eq!(whole["model"], "tiny");
            assert_eq!(whole["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
            let vector = |index: usize| -> Vec<f64> {
                let entry = &whole["data"][index];
                assert_eq!(
                    (&entry["object"], &entry["index"]),
                    (&json!("embedding"), &json!(index))
                );
                serde_json::from_value(entry["embedding"].clone()).unwrap()
            };
            let assert_counts = |vector: &[f64], counts: &[(usize, f64)]| {
                let length = counts.iter().map(|(_, count)| count * count).sum::<f64>().sqrt();
                for (axis, value) in vector.iter().enumerate() {
                    let count = counts
                        .iter()
                        .find(|(token, _)| *token == axis)
                        .map_or(0.0, |(_, count)| *count);
                    assert!((value - count / length).abs() < 1e-6, "{axis}: {value}");
                }
            };
            assert_counts(&vector(0), &[(2, 2.0), (3, 1.0), (4, 1.0)]);
            assert_counts(&vector(1), &[(3, 1.0)]);
            // The prompts need several prefill chunks, and the inputs exceed the limit of queued
            // inputs.
            let long: Vec<u32> = (0..1500).map(|at| 2 + at % 3).collect();
            let many = json!({"model": "tiny", "input": vec![long; 20]});
            let many = worker.post("/v1/embeddings", &many).await.json();
            assert_eq!(many["data"].as_array().unwrap().len(), 20);
            let last: Vec<f64> = serde_json::from_value(many["data"][19]["embedding"].clone()).unwrap();
            assert_counts(&last, &[(2, 1.0), (3, 1.0), (4, 1.0)]);

            let base64 = merged(body, json!({"encoding_format": "base64"}));
            let base64 = worker.post("/v1/embeddings", &base64).await.json();
            let bytes = base64["data"][0]["embedding"].as_str().unwrap();
            let bytes = base64::engine::general_purpose::STANDARD.decode(bytes).unwrap();
            let floats: Vec<f64> = bytes
                .chunks(4)
                .map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap())))
                .collect();
            for (a, b) in floats.iter().zip(vector(0)) {
                assert!((a - b).abs() < 1e-7);
            }

            for (wrong, param) in [
                (json!({"input": []}), "input"),
                (json!({"input": ""}), "input"),
                (json!({"input": null}), "input"),
                (json!({"input": [9999]}), "input"),
                (json!({"input": vec![2; 2049]}), "input"),
                (json!({"input": "a", "dimensions": 5}), "dimensions"),
                (
                    json!({"input": "a", "encoding_format": "int8"}),
                    "encoding_format",
                ),
            ] {
                let body = merged(json!({"model": "tiny"}), wrong.clone());
                let rejected = worker.post("/v1/embeddings", &body).await;
                assert_eq!(
                    (
                        rejected.status.as_u16(),
                        rejected.json()["error"]["param"].clone()
                    ),
                    (400, json!(param)),
                    "{wrong}"
                );
            }
            assert_eq!(
                worker.status().await.measured.samples,
                0,
                "embeddings have no decode steps"
            );
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let expected = "rooflet_worker_time_to_first_token_seconds_count 0";
            assert!(metrics.lines().any(|line| line == expected), "{metrics}");
        })
    });
}

#[test]
fn exports_metrics_under_vllm_names() {
    with_worker(config(), |worker| {
        Box::pin(async {
            worker.chat(json!({"max_tokens": 5})).await;
            let metrics = worker.send("GET", "/metrics", "").await.body;
            for line in [
                "vllm:num_requests_running{model_name=\"tiny\"} 0",
                "vllm:num_requests_waiting{model_name=\"tiny\"} 0",
                "vllm:generation_tokens_total{model_name=\"tiny\"} 5",
                "vllm:request_success_total{finished_reason=\"length\",model_name=\"tiny\"} 1",
                "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
                "vllm:inter_token_latency_seconds_count{model_name=\"tiny\"} 4",
                "vllm:time_per_output_token_seconds_count{model_name=\"tiny\"} 4",
                "vllm:request_time_per_output_token_seconds_count{model_name=\"tiny\"} 1",
                "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 1",
                "vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"81.92\"} 1",
                "vllm:prefix_cache_hits_total{model_name=\"tiny\"} 0",
            ] {
                assert!(metrics.lines().any(|own| own == line), "{line}: {metrics}");
            }
            let usage = ["kv", "gpu"].map(|name| {
                batching::value(
                    &metrics,
                    &format!("vllm:{name}_cache_usage_perc{{model_name=\"tiny\"}}"),
                )
            });
            assert_eq!(usage[0], usage[1]);
        })
    });
}

#[test]
fn serves_every_operation_of_openapi_document() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let document = worker.send("GET", "/openapi.json", "").await;
            assert_eq!(document.headers["content-type"], "application/json");
            for (path, methods) in document.json()["paths"].as_object().unwrap() {
                for method in methods.as_object().unwrap().keys() {
                    let path = path.replace("{model}", "tiny");
                    let answer = worker.send(&method.to_uppercase(), &path, "{}").await;
                    let expected = match method.as_str() {
                        _ if path.contains("{response_id}") => 404,
                        "get" => 200,
                        _ => 400,
                    };
                    assert!(!answer.body.contains("unknown_url"), "{method} {path}");
                    assert_eq!(
                        answer.status.as_u16(),
                        expected,
                        "{method} {path}: {}",
                        answer.body
                    );
                }
            }
        })
    });
}

/// Token texts, ids and logprobs refer to the same tokens.
#[test]
fn token_ids_cover_prompt_and_answer() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let request =
                json!({"max_tokens": 8, "return_token_ids": true, "n": 2, "seed": 3, "temperature": 1});
            let whole = complete(worker, request.clone()).await;
            let choices = whole["choices"].as_array().unwrap();
            for choice in choices {
                assert_eq!(choice["prompt_token_ids"], json!(PROMPT[..]));
                assert_eq!(choice["token_ids"].as_array().unwrap().len(), 8);
            }
            let bare = complete(worker, json!({"max_tokens": 8})).await;
            assert!(bare["choices"][0].get("token_ids").is_none());
            assert!(bare["choices"][0].get("prompt_token_ids").is_none());

            // A stream has the same tokens in parts, and the prompt once per choice.
            let stream = merged(
                merged(
                    json!({"model": "tiny", "prompt": PROMPT[..], "stream": true}),
                    request,
                ),
                json!({"logprobs": 0, "return_tokens_as_token_ids": true}),
            );
            let mut ids = [Vec::new(), Vec::new()];
            let mut names = [Vec::new(), Vec::new()];
            let mut prompts = [0, 0];
            for event in worker.post("/v1/completions", &stream).await.events() {
                let choice = &event["choices"][0];
                let index = choice["index"].as_u64().unwrap() as usize;
                ids[index].extend(choice["token_ids"].as_array().unwrap().iter().cloned());
                names[index].extend(
                    choice["logprobs"]["tokens"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
                prompts[index] += usize::from(choice["prompt_token_ids"] == json!(PROMPT[..]));
            }
            assert_eq!(prompts, [1, 1]);
            for (index, choice) in choices.iter().enumerate() {
                assert_eq!(json!(ids[index]), choice["token_ids"]);
                let expected = ids[index].iter().map(|id| json!(format!("token_id:{id}")));
                assert_eq!(names[index], expected.collect::<Vec<_>>());
            }
        })
    });
}

#[test]
fn token_ids_of_chats_include_end_token() {
    let dir = TempDir::new();
    script::Script::new(&[(&[b"a", b"b", b"c"], true)])
        .write_for_chats(dir.path(), "{{ messages[-1].content }}");
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let messages = json!([{"role": "user", "content": "<cue 0>"}]);
            let request = json!({"messages": messages, "return_token_ids": true, "temperature": 0});
            let whole = worker.chat(request.clone()).await.json();
            assert_eq!(whole["prompt_token_ids"], json!([1]));
            assert_eq!(whole["choices"][0]["token_ids"], json!([2, 3, 4, 0]));
            assert_eq!(whole["choices"][0]["message"]["content"], "abc");
            // A stop string is not part of the text, but its tokens were generated.
            let stopped = worker
                .chat(merged(request.clone(), json!({"stop": "c"})))
                .await
                .json();
            assert_eq!(stopped["choices"][0]["token_ids"], json!([2, 3, 4]));
            assert_eq!(stopped["choices"][0]["message"]["content"], "ab");
            let stream = worker.chat(merged(request, json!({"stream": true}))).await;
            let events = stream.events();
            let with_prompt = events
                .iter()
                .filter(|event| event.get("prompt_token_ids").is_some());
            assert_eq!(with_prompt.count(), 1);
            let ids: Vec<&Value> = events
                .iter()
                .flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap())
                .collect();
            assert_eq!(json!(ids), json!([2, 3, 4, 0]));
        })
    });
}

/// `echo` returns the same logprobs in OpenAI's format.
#[test]
fn prompt_logprobs_have_ranks_and_texts() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let echoed = complete(worker, json!({"echo": true, "logprobs": 5})).await;
            let request = json!({"prompt_logprobs": 3, "n": 2, "return_tokens_as_token_ids": true});
            let whole = complete(worker, request).await;
            let prompt = &whole["choices"][0]["prompt_logprobs"];
            assert_eq!(prompt, &whole["choices"][1]["prompt_logprobs"]);
            let prompt = prompt.as_array().unwrap();
            assert_eq!((prompt.len(), &prompt[0]), (40, &json!(null)));
            let tokenizer = worker.app.prompter.tokenizer();
            for at in 1..40 {
                let entry = prompt[at].as_object().unwrap();
                let own = &entry[&PROMPT[at].to_string()];
                assert!(near(
                    &own["logprob"],
                    &list(&echoed["choices"][0], "token_logprobs")[at]
                ));
                let text = tokenizer.standalone_bytes(PROMPT[at]);
                assert_eq!(own["decoded_token"], String::from_utf8_lossy(&text).into_owned());
                let mut ranks: Vec<u64> = entry
                    .values()
                    .map(|token| token["rank"].as_u64().unwrap())
                    .collect();
                ranks.sort_unstable();
                assert_eq!(ranks[..3], [1, 2, 3], "{at}: {entry:?}");
                assert!((3..=4).contains(&entry.len()), "{at}: {entry:?}");
                // Higher ranks have lower logprobs.
                let mut by_rank: Vec<&Value> = entry.values().collect();
                by_rank.sort_by_key(|token| token["rank"].as_u64());
                assert!(by_rank.is_sorted_by(|a, b| a["logprob"].as_f64() >= b["logprob"].as_f64()));
            }
            // Without the list of the most probable tokens, and in a chat.
            let none = complete(worker, json!({"prompt_logprobs": 0})).await;
            assert_eq!(
                none["choices"][0]["prompt_logprobs"][7]
                    .as_object()
                    .unwrap()
                    .len(),
                1
            );
            let body = merged(
                json!({"model": "tiny", "prompt": PROMPT[..]}),
                json!({"prompt_logprobs": 1, "stream": true}),
            );
            let rejected = worker.post("/v1/completions", &body).await;
            assert_eq!(rejected.json()["error"]["param"], "prompt_logprobs");
        })
    });
}

#[test]
fn truncates_prompts_of_all_endpoints() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let cut = json!({"truncate_prompt_tokens": 5, "return_token_ids": true});
            let last = complete(worker, cut.clone()).await;
            assert_eq!(last["choices"][0]["prompt_token_ids"], json!(PROMPT[35..]));
            assert_eq!(last["usage"]["prompt_tokens"], 5);
            let echo = complete(worker, merged(cut, json!({"echo": true, "max_tokens": 0}))).await;
            let decoded = worker.app.prompter.tokenizer().decode(&PROMPT[35..]).unwrap();
            assert_eq!(echo["choices"][0]["text"], decoded);
            let embedding = |extra: Value| merged(json!({"model": "tiny", "input": PROMPT[35..]}), extra);
            let short = worker.post("/v1/embeddings", &embedding(json!({}))).await.json();
            let long = json!({"input": PROMPT[..], "truncate_prompt_tokens": 5});
            let long = worker.post("/v1/embeddings", &embedding(long)).await.json();
            assert_eq!(short, long);
        })
    });
}

/// The script's answer follows the token for the middle.
#[test]
fn suffix_fills_in_the_middle() {
    let dir = TempDir::new();
    let mut script = script::Script::new(&[(&[b"a", b"b"], true), (&[b"c"], true), (&[b"d"], true)]);
    for (line, name) in ["<fim_middle>", "<fim_prefix>", "<fim_suffix>"]
        .into_iter()
        .enumerate()
    {
        script.rename_cue(line, name);
    }
    script.write(dir.path());
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let request = json!({"prompt": "c", "suffix": "d", "max_tokens": 9, "return_token_ids": true});
            let whole = complete(worker, request).await;
            let choice = &whole["choices"][0];
            assert_eq!(choice["prompt_token_ids"], json!([4, 5, 6, 7, 1]));
            assert_eq!(
                (&choice["text"], &choice["finish_reason"]),
                (&json!("ab"), &json!("stop"))
            );
            let shown = worker.post("/api/show", &json!({"model": "tiny"})).await.json();
            assert_eq!(shown["capabilities"], json!(["completion", "insert"]));
            let request =
                json!({"model": "tiny", "prompt": "c", "suffix": "d", "system": "x", "stream": false});
            let whole = worker.post("/api/generate", &request).await.json();
            assert_eq!(
                (&whole["response"], &whole["prompt_eval_count"]),
                (&json!("ab"), &json!(5))
            );
        })
    });
}

/// `is_matryoshka` in `config.json` is the field that vLLM reads.
#[test]
fn dimensions_shorten_embeddings_of_matryoshka_models() {
    let dir = TempDir::new();
    script::Script::new(&[(&[b"a", b"b", b"c"], true)]).write(dir.path());
    let file = dir.path().join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    fields["is_matryoshka"] = json!(true);
    std::fs::write(&file, fields.to_string()).unwrap();
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            // Each token adds 1 at its own component.
            let body = json!({"model": "tiny", "input": [2, 2, 2, 3, 3, 3, 3, 4], "dimensions": 4});
            let answer = worker.post("/v1/embeddings", &body).await.json();
            let vector: Vec<f64> = serde_json::from_value(answer["data"][0]["embedding"].clone()).unwrap();
            for (value, expected) in vector.iter().zip([0.0, 0.0, 0.6, 0.8]) {
                assert!((value - expected).abs() < 1e-6, "{vector:?}");
            }
            assert_eq!(vector.len(), 4);
            let body = json!({"model": "tiny", "input": "abc", "dimensions": 4});
            let own = worker.post("/v1/embeddings", &body).await.json();
            let theirs = worker.post("/api/embed", &body).await.json();
            assert_eq!(theirs["embeddings"][0], own["data"][0]["embedding"]);
            let body = merged(body, json!({"dimensions": 65}));
            let refused = worker.post("/api/embed", &body).await;
            assert_eq!(refused.status.as_u16(), 400, "{}", refused.body);
            let rejected = worker.post("/v1/embeddings", &body).await;
            assert_eq!(rejected.json()["error"]["param"], "dimensions");
        })
    });
}

#[test]
fn response_names_ignored_parameters() {
    const HEADER: &str = "x-rooflet-ignored-fields";
    with_worker(config(), |worker| {
        Box::pin(async {
            let ignored = json!({"model": "tiny", "max_tokens": 1, "ttl": 5, "keep_alive": "1h"});
            for (path, own) in [
                ("/v1/completions", json!({"prompt": [70]})),
                ("/v1/completions", json!({"prompt": [70], "stream": true})),
                ("/v1/embeddings", json!({"input": [70]})),
            ] {
                let mut body = merged(ignored.clone(), own);
                if path == "/v1/embeddings" {
                    body.as_object_mut().unwrap().remove("max_tokens");
                }
                let answer = worker.post(path, &body).await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                assert_eq!(answer.headers[HEADER], "keep_alive, ttl", "{path}");
            }
            let plain = worker
                .post("/v1/completions", &json!({"model": "tiny", "prompt": [70]}))
                .await;
            assert!(!plain.headers.contains_key(HEADER));
        })
    });
}

#[test]
fn serves_ping_load_and_tokenizer_info_of_vllm() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            for method in ["GET", "POST"] {
                assert_eq!(worker.send(method, "/ping", "").await.status, 200);
            }
            let load = worker.send("GET", "/load", "").await.json();
            assert_eq!(load, json!({"server_load": 0}));
            let info = worker.send("GET", "/tokenizer_info", "").await.json();
            let file = root().join("examples/models/guide/tokenizer_config.json");
            let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            assert_eq!(info["chat_template"], file["chat_template"]);
            assert_eq!(info["eos_token"], file["eos_token"]);
        })
    });
}
