//! Ollama's API, on scripted models and on a tiny model.

use super::apis::script;
use super::*;

/// Returns the lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status.as_u16(), answer.headers["content-type"].as_str()),
        (200, "application/x-ndjson"),
        "{}",
        answer.body
    );
    assert!(answer.body.ends_with('\n'));
    let lines = answer.body.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Removes ids, times and durations, which differ between responses.
fn constant(mut line: Value) -> Value {
    let members = line.as_object_mut().unwrap();
    members.retain(|name, _| name != "created_at" && !name.ends_with("_duration"));
    let calls = line
        .pointer_mut("/message/tool_calls")
        .and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let call = call.as_object_mut().unwrap();
        assert!(call.remove("id").unwrap().as_str().unwrap().starts_with("call_"));
    }
    line
}

fn asks(cue: usize) -> Value {
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}});
    json!({"model": "tiny:latest", "messages": [{"role": "user", "content": format!("<cue {cue}>")}],
           "options": {"temperature": 0, "num_predict": 20}, "tools": [tool]})
}

#[test]
fn answer_has_thinking_text_and_calls() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let whole = merged(asks(0), json!({"stream": false}));
            let whole = worker.post("/api/chat", &whole).await;
            assert_eq!(whole.headers["content-type"], "application/json");
            let whole = whole.json();
            let call = |index: usize, arguments: Value| json!({"function": {"index": index, "name": "weather", "arguments": arguments}});
            let calls = [call(0, json!({"town": "Bern"})), call(1, json!({}))];
            assert_eq!(
                constant(whole.clone()),
                json!({"model": "tiny", "done": true, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 8,
                       "message": {"role": "assistant", "content": "I look.", "thinking": "why", "tool_calls": calls}})
            );
            let nanoseconds = |name: &str| whole[name].as_u64().unwrap();
            assert!(nanoseconds("prompt_eval_duration") > 0 && nanoseconds("eval_duration") > 0);
            assert!(
                nanoseconds("prompt_eval_duration") + nanoseconds("eval_duration")
                    <= nanoseconds("total_duration"),
                "{whole}"
            );

            let streamed = lines(&worker.post("/api/chat", &asks(0)).await);
            let message = |message: Value| {
                let empty = json!({"role": "assistant", "content": ""});
                json!({"model": "tiny", "done": false, "message": merged(empty, message)})
            };
            let streamed: Vec<Value> = streamed.into_iter().map(constant).collect();
            assert_eq!(
                streamed,
                [
                    message(json!({"thinking": "why"})),
                    message(json!({"content": "I look."})),
                    message(json!({"tool_calls": [calls[0]]})),
                    message(json!({"tool_calls": [calls[1]]})),
                    json!({"model": "tiny", "done": true, "done_reason": "stop", "prompt_eval_count": 1,
                           "eval_count": 8, "message": {"role": "assistant", "content": ""}}),
                ]
            );

            // The maximum length truncates the first call.
            let short = json!({"options": {"temperature": 0, "num_predict": 5}, "stream": false});
            let short = worker.post("/api/chat", &merged(asks(0), short)).await.json();
            assert_eq!(
                (&short["done_reason"], &short["message"]["tool_calls"]),
                (&json!("length"), &Value::Null)
            );
        })
    });
}

#[test]
fn generates_with_limits_stops_and_logprobs() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let ask = |extra: Value| {
                let base = json!({"model": "tiny", "prompt": "<cue 1>", "options": {"temperature": 0, "num_predict": 3}});
                merged(base, extra)
            };
            let streamed = lines(&worker.post("/api/generate", &ask(json!({}))).await);
            let texts = streamed.iter().map(|line| line["response"].as_str().unwrap());
            assert_eq!(texts.collect::<Vec<_>>(), ["ab", "cd", "ab", ""]);
            assert_eq!(streamed[3]["done_reason"], "length");
            let stop =
                ask(json!({"options": {"temperature": 0, "stop": ["cd"]}, "stream": false, "raw": true}));
            let stopped = worker.post("/api/generate", &stop).await.json();
            assert_eq!(
                (&stopped["response"], &stopped["done_reason"]),
                (&json!("ab"), &json!("stop"))
            );
            let scored = ask(json!({"stream": false, "logprobs": true, "top_logprobs": 1}));
            let scored = worker.post("/api/generate", &scored).await.json();
            let scores = scored["logprobs"].as_array().unwrap();
            let tokens = scores.iter().map(|score| score["token"].as_str().unwrap());
            assert_eq!(tokens.collect::<Vec<_>>(), ["ab", "cd", "ab"]);
            assert_eq!(scores[0]["top_logprobs"][0]["bytes"], json!(b"ab"));

            for body in [
                ask(json!({"prompt": ""})),
                json!({"model": "tiny", "keep_alive": 0}),
            ] {
                let loaded = worker.post("/api/generate", &body).await.json();
                assert_eq!(
                    constant(loaded),
                    json!({"model": "tiny", "response": "", "done": true, "done_reason": "load"})
                );
            }
            let ignored =
                ask(json!({"keep_alive": "5m", "stream": true, "options": {"num_ctx": 9, "num_predict": 1}}));
            let ignored = worker.post("/api/generate", &ignored).await;
            assert_eq!(
                ignored.headers["x-rooflet-ignored-fields"],
                "options.num_ctx, keep_alive"
            );
        })
    });
}

#[test]
fn continues_last_message_of_the_assistant() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let messages =
                json!([{"role": "user", "content": "<cue 0>"}, {"role": "assistant", "content": "<cue 1> "}]);
            let options = json!({"temperature": 0, "num_predict": 2});
            let body = json!({"model": "tiny", "messages": messages, "options": options, "stream": false});
            let continued = worker.post("/api/chat", &body).await.json();
            assert_eq!(continued["message"]["content"], "abcd");
        })
    });
}

#[test]
fn errors_have_ollamas_body() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let messages = json!([{"role": "user", "content": "Hi"}]);
            for (path, body, status, words) in [
                (
                    "/api/chat",
                    json!({"model": "other", "messages": messages}),
                    404,
                    "`other`",
                ),
                ("/api/chat", json!({"messages": messages}), 400, "'model'"),
                (
                    "/api/generate",
                    json!({"model": "tiny", "prompt": "a", "suffix": "b"}),
                    400,
                    "'suffix'",
                ),
                ("/api/embed", json!({"model": "tiny", "input": 1}), 400, "'input'"),
                (
                    "/api/show",
                    json!({"model": "other:latest"}),
                    404,
                    "`other:latest`",
                ),
                ("/api/pull", json!({"model": "tiny"}), 400, "ModelDeployment"),
                ("/api/nothing", json!({}), 404, "/api/nothing"),
                ("/api/tags", json!({}), 405, "POST"),
            ] {
                let answer = worker.post(path, &body).await;
                let error = answer.json()["error"].clone();
                assert_eq!(answer.status.as_u16(), status, "{path}: {error}");
                assert!(error.as_str().unwrap().contains(words), "{path}: {error}");
            }
        })
    });
}

#[test]
fn embeds_and_describes_the_model() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let input = json!({"model": "tiny", "input": ["a b", "c"]});
            let theirs = worker.post("/api/embed", &input).await.json();
            let own = worker.post("/v1/embeddings", &input).await.json();
            assert_eq!(theirs["embeddings"][1], own["data"][1]["embedding"]);
            assert_eq!(theirs["prompt_eval_count"], own["usage"]["prompt_tokens"]);
            let single = json!({"model": "tiny", "prompt": "c"});
            let single = worker.post("/api/embeddings", &single).await.json();
            assert_eq!(single["embedding"], theirs["embeddings"][1]);
            let none = worker.post("/api/embed", &json!({"model": "tiny"})).await.json();
            assert_eq!(none["embeddings"], json!([]));

            let shown = worker.post("/api/show", &json!({"model": "tiny"})).await.json();
            assert_eq!(shown["details"]["family"], "qwen3");
            assert_eq!(shown["model_info"]["general.architecture"], "qwen3");
            let context = &shown["model_info"]["qwen3.context_length"];
            let tags = worker.send("GET", "/api/tags", "").await.json();
            assert_eq!(tags["models"][0]["name"], "tiny:latest");
            let running = worker.send("GET", "/api/ps", "").await.json();
            assert_eq!(running["models"][0]["context_length"], *context);
            let root = worker.send("GET", "/", "").await;
            assert_eq!(
                (root.status.as_u16(), root.body.as_str()),
                (200, "Ollama is running")
            );
        })
    });
}

/// Requests and responses of Ollama's documentation: `keep_alive`, "Load a model" and "Unload a model".
#[test]
fn keep_alive_unloads_and_loads_the_model() {
    let (_dir, config) = script();
    let config = WorkerConfig {
        keep_alive: Some(Duration::from_secs(3600)),
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let running = async || worker.send("GET", "/api/ps", "").await.json()["models"].clone();
            let seconds_left = async || {
                let end = running().await[0]["expires_at"].as_str().unwrap().to_owned();
                let end: jiff::Timestamp = end.parse().unwrap();
                end.as_second() - worker.app.clock.now().as_second()
            };
            let ask = async |extra: Value| {
                let base = json!({"model": "tiny", "prompt": "<cue 1>", "stream": false,
                                  "options": {"temperature": 0, "num_predict": 2}});
                let answer = worker.post("/api/generate", &merged(base, extra)).await;
                assert!(!answer.headers.contains_key("x-rooflet-ignored-fields"));
                answer.json()
            };
            let bytes = worker.status().await.memory.active_bytes;
            assert!(bytes > 0 && (3590..=3601).contains(&seconds_left().await));
            let unloaded = |status: &WorkerStatus| status.memory.active_bytes < bytes / 10;

            let response = ask(json!({"prompt": "", "keep_alive": 0})).await;
            assert_eq!(response["done_reason"], "unload");
            worker.wait_until("an empty allocator", unloaded).await;
            assert_eq!(running().await, json!([]));
            assert_eq!(worker.status().await.phase, WorkerPhase::Ready);

            let first = ask(json!({"keep_alive": "10m"})).await;
            assert_eq!(first["response"], "abcd");
            assert!(first["load_duration"].as_u64().unwrap() > 0, "{first}");
            assert!((590..=601).contains(&seconds_left().await));
            let second = ask(json!({"keep_alive": -1})).await;
            assert_eq!(
                (&second["response"], &second["load_duration"]),
                (&json!("abcd"), &json!(0))
            );
            assert_eq!(running().await[0]["expires_at"], "9999-12-31T23:59:59Z");

            // The answer is complete before the model is unloaded.
            let last = ask(json!({"keep_alive": 0})).await;
            assert_eq!(last["response"], "abcd");
            worker.wait_until("an empty allocator", unloaded).await;
            let chat = worker.post("/api/chat", &json!({"model": "tiny"})).await.json();
            assert_eq!(chat["done_reason"], "load");
            assert!(worker.status().await.memory.active_bytes > bytes / 10);
            // The time of the request before does not apply to the model that was loaded again.
            assert!((3590..=3601).contains(&seconds_left().await));
        })
    });
}

#[test]
fn idle_worker_unloads_the_model_and_every_api_loads_it() {
    let (_dir, config) = script();
    let config = WorkerConfig {
        keep_alive: Some(Duration::ZERO),
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            for _ in 0..3 {
                worker
                    .wait_until("an empty allocator", |status| status.memory.active_bytes < 10_000)
                    .await;
                let body = json!({"model": "tiny", "prompt": "<cue 1>", "max_tokens": 2, "temperature": 0});
                let answer = worker.post("/v1/completions", &body).await.json();
                assert_eq!(answer["choices"][0]["text"], "abcd");
            }
        })
    });
}
