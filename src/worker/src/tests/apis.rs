//! `/v1/responses` and `/v1/messages`, on scripted models.

use super::script::Script;
use super::*;
use rooflet_testing::TempDir;

/// Returns the events of a stream. Asserts that the name of each event is its type.
fn named_events(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status.as_u16(), answer.headers["content-type"].as_str()),
        (200, "text/event-stream")
    );
    let frames = answer.body.split("\n\n").filter(|frame| !frame.is_empty());
    frames
        .map(|frame| {
            let (name, data) = frame.split_once('\n').unwrap_or_else(|| panic!("{frame}"));
            let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
            event
        })
        .collect()
}

/// Removes IDs and times, which differ between responses.
fn without_ids(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|name, _| !["id", "call_id", "item_id", "created_at"].contains(&name.as_str()));
            members
                .values_mut()
                .for_each(|member| *member = without_ids(member.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_ids(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// Returns a model with two lines: reasoning, text and two calls; and an endless text.
pub(super) fn script() -> (TempDir, WorkerConfig) {
    let dir = TempDir::new();
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"B";
    let script = Script::new(&[
        (
            &[
                b"<think>\n",
                b"why",
                b"</think>",
                b"\nI look.",
                call.as_bytes(),
                b"ern\"}}\n</tool_call>",
                b"<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
            ],
            true,
        ),
        (&[b"ab", b"cd"], false),
    ]);
    script.write_for_chats(
        dir.path(),
        "{% for message in messages %}{{ message.content }}{% if not loop.last %}|{% endif %}{% endfor %}{% if add_generation_prompt %}{% else %}<cue 0>{% endif %}{# </think> tools #}",
    );
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    (dir, config)
}

#[test]
fn response_texts_have_logprobs() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let request = json!({"model": "tiny", "input": "<cue 0>", "temperature": 0, "top_logprobs": 2,
                             "include": ["message.output_text.logprobs"],
                             "tools": [{"type": "function", "name": "weather"}]});
            let whole = worker.post("/v1/responses", &request).await.json();
            assert_eq!(whole["top_logprobs"], 2);
            // Reasoning and calls have no logprobs. The token of the text includes the line break
            // before the text.
            let part = &whole["output"][1]["content"][0];
            let logprobs = part["logprobs"].as_array().unwrap();
            assert_eq!(logprobs.len(), 1, "{part}");
            assert_eq!(
                (&logprobs[0]["token"], &logprobs[0]["bytes"]),
                (&json!("\nI look."), &json!(b"\nI look."))
            );
            let top = logprobs[0]["top_logprobs"].as_array().unwrap();
            assert_eq!((top.len(), &top[0]["token"]), (2, &json!("\nI look.")));
            assert_eq!(top[0]["logprob"], logprobs[0]["logprob"]);

            let streamed = worker
                .post("/v1/responses", &merged(request.clone(), json!({"stream": true})))
                .await;
            let events = named_events(&streamed);
            let of = |kind: &str| {
                let mut events = events.iter();
                events.find(|event| event["type"] == kind).unwrap()
            };
            let bare = |token: &Value| json!({"token": token["token"], "logprob": token["logprob"]});
            let mut expected = bare(&logprobs[0]);
            expected["top_logprobs"] = top.iter().map(bare).collect();
            assert_eq!(of("response.output_text.delta")["logprobs"], json!([expected]));
            assert_eq!(of("response.output_text.done")["logprobs"], json!([expected]));
            let completed = &of("response.completed")["response"];
            assert_eq!(completed["output"][1]["content"][0], *part);

            let bare = merged(request.clone(), json!({"include": null, "top_logprobs": null}));
            let bare = worker.post("/v1/responses", &bare).await.json();
            assert_eq!(bare["output"][1]["content"][0]["logprobs"], json!([]));
            let continued = json!({"model": "tiny", "input": "<cue 1>", "previous_response_id": whole["id"], "max_output_tokens": 2});
            let rejected = worker.post("/v1/responses", &continued).await;
            // The stored response is valid, but its calls have no outputs.
            assert!(rejected.body.contains("no output of it"), "{}", rejected.body);
        })
    });
}

#[test]
fn response_has_output_items_and_events() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let request = json!({"model": "tiny", "input": "<cue 0>", "temperature": 0,
                             "tools": [{"type": "function", "name": "weather"}]});
            let whole = worker.post("/v1/responses", &request).await.json();
            assert_eq!(
                (&whole["object"], &whole["status"], &whole["store"]),
                (&json!("response"), &json!("completed"), &json!(true))
            );
            assert_eq!(
                without_ids(whole["output"].clone()),
                json!([
                    {"type": "reasoning", "status": "completed", "summary": [],
                     "content": [{"type": "reasoning_text", "text": "why"}]},
                    {"type": "message", "status": "completed", "role": "assistant",
                     "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
                    {"type": "function_call", "status": "completed", "name": "weather", "arguments": "{\"town\": \"Bern\"}"},
                    {"type": "function_call", "status": "completed", "name": "weather", "arguments": "{}"},
                ])
            );
            let usage = &whole["usage"];
            assert_eq!(
                (
                    &usage["output_tokens"],
                    &usage["output_tokens_details"]["reasoning_tokens"]
                ),
                (&json!(8), &json!(1))
            );

            let streamed = worker
                .post("/v1/responses", &merged(request.clone(), json!({"stream": true})))
                .await;
            let events = named_events(&streamed);
            for (number, event) in events.iter().enumerate() {
                assert_eq!(event["sequence_number"], number);
            }
            let kinds: Vec<&str> = events
                .iter()
                .map(|event| event["type"].as_str().unwrap().trim_start_matches("response."))
                .collect();
            assert_eq!(
                kinds,
                [
                    "created",
                    "in_progress",
                    "output_item.added",
                    "content_part.added",
                    "reasoning_text.delta",
                    "reasoning_text.done",
                    "content_part.done",
                    "output_item.done",
                    "output_item.added",
                    "content_part.added",
                    "output_text.delta",
                    "output_text.done",
                    "content_part.done",
                    "output_item.done",
                    "output_item.added",
                    "function_call_arguments.delta",
                    "function_call_arguments.delta",
                    "function_call_arguments.done",
                    "output_item.done",
                    "output_item.added",
                    "function_call_arguments.delta",
                    "function_call_arguments.done",
                    "output_item.done",
                    "completed",
                ]
            );
            let (first, last) = (&events[0]["response"], &events[events.len() - 1]["response"]);
            assert_eq!(
                (&first["status"], &first["output"]),
                (&json!("in_progress"), &json!([]))
            );
            assert_eq!(first["id"], last["id"]);
            assert_eq!(without_ids(last.clone()), without_ids(whole.clone()));
            let done: Vec<&Value> = events
                .iter()
                .filter(|event| event["type"] == "response.output_item.done")
                .map(|event| &event["item"])
                .collect();
            assert_eq!(
                json!(done),
                last["output"],
                "items of the events have the same IDs"
            );

            let cut = json!({"model": "tiny", "input": "<cue 1>", "temperature": 0, "max_output_tokens": 3});
            let cut = worker.post("/v1/responses", &cut).await.json();
            assert_eq!(
                (
                    &cut["status"],
                    &cut["incomplete_details"]["reason"],
                    &cut["output"][0]["status"]
                ),
                (
                    &json!("incomplete"),
                    &json!("max_output_tokens"),
                    &json!("incomplete")
                )
            );
            assert_eq!(cut["output"][0]["content"][0]["text"], "abcdab");
        })
    });
}

#[test]
fn response_is_stored_continued_and_deleted() {
    let (_dir, config) = script();
    let config = WorkerConfig {
        context_tokens: Some(64),
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let create = async |extra: Value| {
                let request =
                    json!({"model": "tiny", "input": "<cue 1>", "temperature": 0, "max_output_tokens": 3});
                worker.post("/v1/responses", &merged(request, extra)).await
            };
            let url = |response: &Value| format!("/v1/responses/{}", response["id"].as_str().unwrap());
            let first = create(json!({"instructions": "<cue 0>"})).await.json();
            assert_eq!(first["usage"]["input_tokens"], 2);
            let shown = worker.send("GET", &url(&first), "").await;
            assert_eq!((shown.status.as_u16(), shown.json()), (200, first.clone()));

            // The vocabulary contains only the cues as text, so the prompt has one token per cue.
            // Instructions of the previous response are not part of the prompt.
            let second = create(json!({"previous_response_id": first["id"]})).await.json();
            assert_eq!(
                (&second["usage"]["input_tokens"], &second["previous_response_id"]),
                (&json!(2), &first["id"])
            );
            let streamed = create(json!({"previous_response_id": second["id"], "stream": true})).await;
            let third = named_events(&streamed).pop().unwrap()["response"].clone();
            assert_eq!(third["usage"]["input_tokens"], 3);
            assert_eq!(worker.send("GET", &url(&third), "").await.json(), third);

            // The AI SDK refers to previous items by ID.
            let by_reference = json!([{"role": "user", "content": "<cue 1>"},
                {"type": "item_reference", "id": first["output"][0]["id"]},
                {"role": "user", "content": "<cue 1>"}]);
            let fourth = create(json!({"input": by_reference})).await.json();
            assert_eq!(fourth["usage"]["input_tokens"], 2);
            assert_eq!(fourth["output"][0]["content"], second["output"][0]["content"]);

            // Calls are stored. The next request must contain their outputs.
            let tools = json!({"tools": [{"type": "function", "name": "weather"}], "input": "<cue 0>", "max_output_tokens": 20});
            let called = create(tools.clone()).await.json();
            let unanswered = create(json!({"previous_response_id": called["id"]})).await;
            assert_eq!(unanswered.json()["error"]["param"], "input");
            let outputs: Vec<Value> = called["output"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|item| item["type"] == "function_call")
                .map(|call| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "<cue 1>"}))
                .collect();
            let answered = create(json!({"previous_response_id": called["id"], "input": outputs})).await;
            assert_eq!(
                answered.json()["output"][0]["content"][0]["text"],
                "abcdab",
                "{}",
                answered.body
            );

            let replayed = worker
                .send("GET", &format!("{}?stream=true", url(&third)), "")
                .await;
            assert_eq!(
                (replayed.status.as_u16(), &replayed.json()["error"]["param"]),
                (400, &json!("stream"))
            );
            let whole = worker
                .send("GET", &format!("{}?stream=false", url(&third)), "")
                .await;
            assert_eq!(whole.json(), third);
            let counted = json!({"model": "tiny", "input": "<cue 1>", "previous_response_id": second["id"]});
            let counted = worker.post("/v1/responses/input_tokens", &counted).await.json();
            assert_eq!(
                counted,
                json!({"object": "response.input_tokens", "input_tokens": third["usage"]["input_tokens"]})
            );
            let long = create(json!({"input": "<cue 1>".repeat(64)})).await;
            let error = &long.json()["error"];
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("context_length_exceeded"), &json!("input"))
            );

            let read = worker
                .send("GET", &format!("{}/input_items?order=asc", url(&second)), "")
                .await;
            assert_eq!(read.status, 200, "{}", read.body);
            let read = read.json();
            let items = read["data"].as_array().unwrap();
            let item = |at: usize| {
                (
                    items[at]["role"].as_str(),
                    items[at]["content"][0]["type"].as_str(),
                )
            };
            assert_eq!(item(0), (Some("user"), Some("input_text")), "{read}");
            assert_eq!(item(1), (Some("assistant"), Some("output_text")), "{read}");
            assert_eq!(
                items.last().unwrap()["role"],
                "user",
                "the answer is not an input item"
            );
            let deleted = worker.send("DELETE", &url(&first), "").await.json();
            assert_eq!(
                (&deleted["deleted"], &deleted["id"]),
                (&json!(true), &first["id"])
            );
            let unstored = create(json!({"store": false})).await.json();
            assert_eq!(unstored["store"], false);
            for missing in [&first, &unstored, &json!({"id": "resp_1"})] {
                for method in ["GET", "DELETE"] {
                    let rejected = worker.send(method, &url(missing), "").await;
                    assert_eq!(
                        (rejected.status.as_u16(), &rejected.json()["error"]["code"]),
                        (404, &json!("response_not_found"))
                    );
                }
                let rejected = create(json!({"previous_response_id": missing["id"]})).await;
                let error = rejected.json()["error"].clone();
                assert_eq!(
                    (rejected.status.as_u16(), &error["code"], &error["param"]),
                    (
                        400,
                        &json!("previous_response_not_found"),
                        &json!("previous_response_id")
                    )
                );
            }
        })
    });
}

#[test]
fn message_has_content_blocks_and_events() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let request = json!({"model": "tiny", "max_tokens": 20, "temperature": 0,
                             "messages": [{"role": "user", "content": [{"type": "text", "text": "<cue 0>"}]}],
                             "tools": [{"name": "weather", "input_schema": {"type": "object"}}]});
            let whole = worker.post("/v1/messages", &request).await.json();
            assert_eq!(
                without_ids(whole.clone()),
                json!({"type": "message", "role": "assistant", "model": "tiny",
                    "content": [
                        {"type": "thinking", "thinking": "why", "signature": "unsigned"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "name": "weather", "input": {"town": "Bern"}},
                        {"type": "tool_use", "name": "weather", "input": {}},
                    ],
                    "stop_reason": "tool_use", "stop_sequence": null,
                    "usage": {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                              "output_tokens": 8}})
            );
            let streamed = worker
                .post("/v1/messages", &merged(request.clone(), json!({"stream": true})))
                .await;
            let events = named_events(&streamed);
            assert_eq!(
                (&events[0]["type"], &events[0]["message"]["stop_reason"]),
                (&json!("message_start"), &json!(null))
            );
            let rest: Vec<Value> = events[1..].iter().cloned().map(without_ids).collect();
            let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
            let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
            let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
            let call = json!({"type": "tool_use", "name": "weather", "input": {}});
            let more = |json: &str| json!({"type": "input_json_delta", "partial_json": json});
            assert_eq!(
                rest,
                [
                    start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
                    delta(0, json!({"type": "thinking_delta", "thinking": "why"})),
                    delta(0, json!({"type": "signature_delta", "signature": "unsigned"})),
                    stop(0),
                    start(1, json!({"type": "text", "text": ""})),
                    delta(1, json!({"type": "text_delta", "text": "I look."})),
                    stop(1),
                    start(2, call.clone()),
                    delta(2, more("{\"town\": \"B")),
                    delta(2, more("ern\"}")),
                    stop(2),
                    start(3, call),
                    delta(3, more("{}")),
                    stop(3),
                    json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
                           "usage": whole["usage"]}),
                    json!({"type": "message_stop"}),
                ]
            );

            let ends = |extra: Value| {
                let messages = json!({"messages": [{"role": "user", "content": "<cue 1>"}], "max_tokens": 3});
                merged(merged(request.clone(), messages), extra)
            };
            let cut = worker.post("/v1/messages", &ends(json!({}))).await.json();
            assert_eq!(
                (&cut["stop_reason"], &cut["content"][0]["text"]),
                (&json!("max_tokens"), &json!("abcdab"))
            );
            let stops = json!({"stop_sequences": ["x", "cd"]});
            let cut = worker.post("/v1/messages", &ends(stops)).await.json();
            assert_eq!(
                (
                    &cut["stop_reason"],
                    &cut["stop_sequence"],
                    &cut["content"][0]["text"]
                ),
                (&json!("stop_sequence"), &json!("cd"), &json!("ab"))
            );
        })
    });
}

#[test]
fn messages_are_counted_continued_and_rejected() {
    let (_dir, config) = script();
    with_worker(config, |worker| {
        Box::pin(async move {
            let messages =
                json!([{"role": "user", "content": "<cue 0>"}, {"role": "assistant", "content": "<cue 1> "}]);
            let request = json!({"model": "tiny", "max_tokens": 2, "temperature": 0, "messages": messages});
            // The prompt ends with the last message. It does not contain the text that the template
            // writes after that message.
            let continued = worker.post("/v1/messages", &request).await.json();
            assert_eq!(continued["content"][0]["text"], "abcd");
            let chat = json!({"messages": messages, "max_tokens": 2, "continue_final_message": true});
            assert_eq!(worker.chat_text(chat).await, "abcd");

            let thread = merged(request.clone(), json!({"thread": {"type": "create"}}));
            let rejected = worker.post("/v1/messages", &thread).await;
            assert_eq!(
                (
                    rejected.status.as_u16(),
                    &rejected.json()["error"]["details"]["error_code"]
                ),
                (400, &json!("thread_unsupported_request"))
            );

            let count = json!({"model": "tiny", "messages": [{"role": "user", "content": "<cue 0>"}]});
            let counted = worker.post("/v1/messages/count_tokens", &count).await;
            assert_eq!(
                (counted.status.as_u16(), counted.json()),
                (200, json!({"input_tokens": 1}))
            );

            for (path, body, status, kind) in [
                (
                    "/v1/messages",
                    json!({"model": "tiny", "max_tokens": 1}),
                    400,
                    "invalid_request_error",
                ),
                (
                    "/v1/messages",
                    merged(request.clone(), json!({"model": "other"})),
                    404,
                    "not_found_error",
                ),
                (
                    "/v1/messages/count_tokens",
                    merged(count, json!({"model": "other"})),
                    404,
                    "not_found_error",
                ),
                ("/v1/messages/batches", json!({}), 404, "not_found_error"),
            ] {
                let answer = worker.post(path, &body).await;
                assert_eq!(
                    (
                        answer.status.as_u16(),
                        &answer.json()["type"],
                        &answer.json()["error"]["type"]
                    ),
                    (status, &json!("error"), &json!(kind)),
                    "{path}"
                );
            }
        })
    });
}

/// The template has the same check as the templates of Qwen 3.5.
#[test]
fn merges_system_messages_for_template_with_single_system_message() {
    let dir = TempDir::new();
    let template = "{% for message in messages %}{% if message.role == 'system' and not loop.first %}\
        {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
        {{ message.content }}{% endfor %}";
    let lines: [(&[&[u8]], bool); 4] = [(&[b"a"], true), (&[b"b"], true), (&[b"c"], true), (&[b"d"], true)];
    Script::new(&lines).write_for_chats(dir.path(), template);
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let message = |role: &str, cue: usize| json!({"role": role, "content": format!("<cue {cue}>")});
            let messages = [
                message("system", 0),
                message("user", 1),
                message("system", 2),
                message("user", 3),
            ];
            let prompt = async |messages: &[Value]| {
                let tokens = worker
                    .post("/tokenize", &json!({"messages": messages}))
                    .await
                    .json();
                let tokens = json!({"tokens": tokens["tokens"]});
                worker.post("/detokenize", &tokens).await.json()["prompt"].take()
            };
            assert_eq!(prompt(&messages).await, "<cue 0><cue 2><cue 1><cue 3>");
            assert_eq!(prompt(&messages[1..2]).await, "<cue 1>");
            let instructions =
                json!({"instructions": "<cue 0>", "input": messages[1..], "max_output_tokens": 3});
            let system = json!({"system": "<cue 0>", "messages": messages[1..], "max_tokens": 3});
            for (path, request) in [
                ("/v1/responses", instructions),
                ("/v1/messages", system),
                ("/v1/chat/completions", json!({"messages": messages})),
            ] {
                let answer = worker
                    .post(path, &merged(request, json!({"model": "tiny"})))
                    .await;
                assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            }
        })
    });
}
