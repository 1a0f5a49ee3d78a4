//! Reasoning, tool calls and response formats, on scripted models.

use super::script::Script;
use super::*;
use rooflet_testing::TempDir;

/// Chat template without tools. The prompt consists of the last message, which is a cue.
const PLAIN: &str = "{{ messages[-1].content }}";

fn config_of(dir: &TempDir) -> WorkerConfig {
    WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    }
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "…", "parameters": {
        "type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}])
}

/// Sends a chat with and without streaming, and asserts that both responses are equal. Returns
/// message, finish reason and usage. Checks and removes the IDs of tool calls.
async fn chat(worker: &TestWorker, cue: usize, extra: Value) -> (Value, String, Value) {
    let request = merged(
        json!({"messages": [{"role": "user", "content": format!("<cue {cue}>")}], "max_tokens": 40}),
        extra,
    );
    let whole = worker.chat(request.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let (mut message, reason) = (
        whole["choices"][0]["message"].clone(),
        whole["choices"][0]["finish_reason"].as_str().unwrap().to_owned(),
    );
    take_ids(&mut message);

    let streaming = merged(
        request,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut events = worker.chat(streaming).await.events();
    assert_eq!(events.pop().unwrap()["usage"], whole["usage"]);
    let end = events.pop().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], reason);
    assert_eq!(end["choices"][0]["delta"], json!({}));
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    assert_eq!(merge_deltas(deltas, &message), message);
    (message, reason, whole["usage"].clone())
}

fn take_ids(message: &mut Value) {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let id = call["id"].take();
        assert!(id.as_str().unwrap().len() >= 9, "{id}");
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().unwrap().remove("tool_calls");
    }
}

/// Merges the deltas of a stream into a message, as clients do.
fn merge_deltas<'a>(deltas: impl Iterator<Item = &'a Value>, like: &Value) -> Value {
    let mut message = json!({"role": null, "content": "", "refusal": null});
    for delta in deltas {
        for (name, value) in delta.as_object().unwrap() {
            match value {
                Value::Array(calls) => {
                    for call in calls {
                        add_call(&mut message, call);
                    }
                }
                _ if name == "role" => message["role"] = value.clone(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    let before = message[name].as_str().unwrap_or_default().to_owned();
                    message[name] = json!(before + value.as_str().unwrap());
                }
            }
        }
    }
    if like["content"].is_null() && message["content"] == "" {
        message["content"] = json!(null);
    }
    message
}

fn add_call(message: &mut Value, part: &Value) {
    let index = part["index"].as_u64().unwrap() as usize;
    if part["id"].is_string() {
        assert_eq!(part["function"]["arguments"], "");
        let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(index, calls, "calls are in order");
        if calls == 0 {
            message["tool_calls"] = json!([]);
        }
        let call = json!({"id": null, "type": part["type"], "function": part["function"]});
        message["tool_calls"].as_array_mut().unwrap().push(call);
    } else {
        let arguments = &mut message["tool_calls"][index]["function"]["arguments"];
        let more = part["function"]["arguments"].as_str().unwrap();
        *arguments = json!(arguments.as_str().unwrap().to_owned() + more);
    }
}

fn message(content: Value, extra: Value) -> Value {
    merged(
        json!({"role": "assistant", "content": content, "refusal": null}),
        extra,
    )
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"id": null, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn separates_reasoning_from_content() {
    let dir = TempDir::new();
    let script = Script::new(&[
        (
            &[
                b"<thi",
                b"nk>\n",
                b"a ",
                b"plan\n</",
                b"think>",
                b"\n\nDo",
                b" it.",
            ],
            true,
        ),
        (&[b"no <think>", b"x</think>!"], true),
    ]);
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}{# </think> #}");
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let (message_of_model, reason, usage) = chat(worker, 0, json!({})).await;
            let reasoning = json!({"reasoning_content": "a plan", "reasoning": "a plan"});
            assert_eq!(message_of_model, message(json!("Do it."), reasoning));
            assert_eq!(
                (reason.as_str(), &usage["completion_tokens"]),
                ("stop", &json!(8))
            );
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2);
            let (message_of_model, _, usage) = chat(worker, 1, json!({})).await;
            assert_eq!(
                message_of_model,
                message(json!("no <think>x</think>!"), json!({}))
            );
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
            let bare = json!({"model": "tiny", "prompt": "<cue 0>", "max_tokens": 40, "temperature": 0});
            let text = worker.post("/v1/completions", &bare).await.json();
            assert_eq!(text["choices"][0]["text"], "<think>\na plan\n</think>\n\nDo it.");
        })
    });
}

#[test]
fn thinking_budget_limits_reasoning() {
    let dir = TempDir::new();
    let pieces: &[&[u8]] = &[b"<think>", b"one", b" two", b" three", b"</think>", b"Done."];
    let script = Script::new(&[(pieces, true)]);
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}{# </think> #}");
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let send = async |budget: Value| {
                let body = json!({"model": "tiny", "max_tokens": 40, "temperature": 0,
                                  "messages": [{"role": "user", "content": "<cue 0>"}],
                                  "thinking": {"type": "enabled", "budget_tokens": budget}});
                worker.post("/v1/messages", &body).await
            };
            for (budget, reasoning) in [
                (1, "one"),
                (2, "one two"),
                (3, "one two three"),
                (9, "one two three"),
            ] {
                let message_of_model = send(json!(budget)).await.json();
                assert_eq!(
                    message_of_model["content"][0]["thinking"], reasoning,
                    "{message_of_model}"
                );
                assert_eq!(
                    message_of_model["content"][1]["text"], "Done.",
                    "{message_of_model}"
                );
            }
            let rejected = send(json!(0)).await;
            assert_eq!(rejected.status, 400);
            assert!(
                rejected.body.contains("thinking.budget_tokens"),
                "{}",
                rejected.body
            );
        })
    });
}

/// The prompt ends with `<think>`.
#[test]
fn reasoning_may_start_in_prompt_and_be_truncated() {
    let dir = TempDir::new();
    let mut script = Script::new(&[(&[b"why", b"</think>", b"So."], true)]);
    script.rename_cue(0, "<think>");
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}{# </think> #}");
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let request = |extra: Value| {
                merged(
                    json!({"messages": [{"role": "user", "content": "<think>"}]}),
                    extra,
                )
            };
            let why = json!({"reasoning_content": "why", "reasoning": "why"});
            let (message_of_model, reason, _) = chat(worker, 0, request(json!({}))).await;
            assert_eq!(
                (message_of_model, reason.as_str()),
                (message(json!("So."), why.clone()), "stop")
            );
            let (message_of_model, reason, usage) = chat(worker, 0, request(json!({"max_tokens": 1}))).await;
            assert_eq!(
                (message_of_model, reason.as_str()),
                (message(json!(""), why), "length")
            );
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 1);
        })
    });
}

/// A stop string or the model itself ends the answer inside a call. Clients must not run such a
/// call, even if its arguments are valid.
#[test]
fn truncated_call_does_not_finish_with_tool_calls() {
    let dir = TempDir::new();
    let begin = b"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"B";
    let script = Script::new(&[
        (&[begin, b"ern\"}}\n</tool_call>"], true),
        (&[b"<tool_call>", &begin[12..]], true),
    ]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let tools = || json!({"tools": weather()});
            for (cue, extra, arguments, expected) in [
                (0, json!({}), r#"{"town": "Bern"}"#, "tool_calls"),
                // The arguments are complete. Only the text after them is missing.
                (0, json!({"stop": "}\n"}), r#"{"town": "Bern"}"#, "tool_calls"),
                (0, json!({"stop": "ern"}), r#"{"town": "B"#, "stop"),
                (0, json!({"stop": "}"}), r#"{"town": "Bern""#, "stop"),
                (1, json!({}), r#"{"town": "B"#, "stop"),
            ] {
                let (message_of_model, reason, _) = chat(worker, cue, merged(tools(), extra)).await;
                assert_eq!(
                    message_of_model["tool_calls"],
                    json!([call("weather", arguments)])
                );
                assert_eq!(reason, expected, "{arguments}");
            }
            let responses = json!({"model": "tiny", "input": "<cue 1>", "tools": [{"type": "function", "name": "weather"}]});
            let item = &worker.post("/v1/responses", &responses).await.json()["output"][0];
            assert_eq!(
                (&item["type"], &item["status"]),
                (&json!("function_call"), &json!("incomplete"))
            );
            let messages = json!({
                "model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "<cue 1>"}],
                "tools": [{"name": "weather", "input_schema": {"type": "object"}}]
            });
            let message_of_model = worker.post("/v1/messages", &messages).await.json();
            assert_eq!(message_of_model["stop_reason"], "end_turn", "{message_of_model}");
        })
    });
}

#[test]
fn extracts_calls_only_from_requests_with_tools() {
    let dir = TempDir::new();
    let one = b"<tool_call>\n{\"name\": \"weather\", \"arg";
    let script = Script::new(&[
        (
            &[
                b"I look.\n",
                b"<tool",
                b"_call>\n{\"name\": ",
                b"\"weather\", \"arguments\": ",
                b"{\"town\": \"B",
                b"ern\"}}\n</tool",
                b"_call>",
                b"\n",
            ],
            true,
        ),
        (
            &[
                one,
                b"uments\": {\"town\":\"Z\xc3",
                b"\xbc",
                b"rich\"}}\n</tool_call>",
                b"\n<tool_call>{\"name\": \"weather\"}</tool_call>",
            ],
            true,
        ),
        (&[b"<tool_call>", b"{\"name\": 5", b"}</tool_call>!"], true),
        (&[b"<tool_call>{\"name\": \"wea"], true),
    ]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let tools = json!({"tools": weather()});
            let (message_of_model, reason, _) = chat(worker, 0, tools.clone()).await;
            let bern = call("weather", r#"{"town": "Bern"}"#);
            assert_eq!(
                message_of_model,
                message(json!("I look."), json!({"tool_calls": [bern]}))
            );
            assert_eq!(reason, "tool_calls");

            let (message_of_model, _, _) = chat(worker, 1, tools.clone()).await;
            let zurich = call("weather", r#"{"town":"Zürich"}"#);
            let both = json!({"tool_calls": [zurich, call("weather", "{}")]});
            assert_eq!(message_of_model, message(json!(null), both));
            let (message_of_model, _, _) = chat(
                worker,
                1,
                merged(tools.clone(), json!({"parallel_tool_calls": false})),
            )
            .await;
            assert_eq!(
                message_of_model,
                message(json!(null), json!({"tool_calls": [zurich]}))
            );

            for (cue, text) in [
                (2, "<tool_call>{\"name\": 5}</tool_call>!"),
                (3, "<tool_call>{\"name\": \"wea"),
            ] {
                let (message_of_model, reason, _) = chat(worker, cue, tools.clone()).await;
                assert_eq!(
                    (message_of_model, reason.as_str()),
                    (message(json!(text), json!({})), "stop")
                );
            }
            let whole = "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Bern\"}}\n</tool_call>\n";
            for none in [json!({}), merged(tools, json!({"tool_choice": "none"}))] {
                let (message_of_model, reason, _) = chat(worker, 0, none).await;
                assert_eq!(
                    (message_of_model, reason.as_str()),
                    (message(json!(whole), json!({})), "stop")
                );
            }
        })
    });
}

/// `[TOOL_CALLS]` is a special token, so that the text of answers does not contain it.
#[test]
fn parses_markers_that_are_special_tokens() {
    let dir = TempDir::new();
    let mut script = Script::new(&[(
        &[
            b"Hm.",
            b"[TOOL_CALLS]",
            b"[{\"name\": \"weather\", ",
            b"\"arguments\": {}}]",
        ],
        true,
    )]);
    script.make_special("[TOOL_CALLS]");
    let template = "{% if tools %}{% endif %}{# [TOOL_CALLS] #}{{ messages[-1].content }}";
    script.write_for_chats(dir.path(), template);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let (message_of_model, _, _) = chat(worker, 0, json!({"tools": weather()})).await;
            let calls = json!({"tool_calls": [call("weather", "{}")]});
            assert_eq!(message_of_model, message(json!("Hm."), calls));
            let (message_of_model, _, _) = chat(worker, 0, json!({})).await;
            assert_eq!(
                message_of_model["content"],
                "Hm.[{\"name\": \"weather\", \"arguments\": {}}]"
            );
        })
    });
}

#[test]
fn invalid_tools_are_rejected_with_parameter_name() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let function =
                |extra: Value| merged(json!({"type": "function", "function": {"name": "f"}}), extra);
            let named = json!({"type": "function", "function": {"name": "g"}});
            let cases = [
                (json!({"tools": {}}), "tools"),
                (json!({"tools": [{}]}), "tools[0].type"),
                (json!({"tools": [{"type": "code"}]}), "tools[0].type"),
                (
                    json!({"tools": [function(json!({"function": 1}))]}),
                    "tools[0].function",
                ),
                (
                    json!({"tools": [function(json!({"function": {"name": "a b"}}))]}),
                    "tools[0].function.name",
                ),
                (
                    json!({"tools": [function(json!({})), function(json!({}))]}),
                    "tools[1].function.name",
                ),
                (
                    json!({"tools": [function(json!({"function": {"name": "f", "parameters": []}}))]}),
                    "tools[0].function.parameters",
                ),
                (
                    json!({"tools": [function(json!({"function": {"name": "f", "parameters": {"type": "array"}}}))]}),
                    "tools[0].function.parameters",
                ),
                (json!({"tools": weather(), "tool_choice": "any"}), "tool_choice"),
                (json!({"tools": weather(), "tool_choice": named}), "tool_choice"),
                (json!({"tool_choice": "required"}), "tool_choice"),
                (
                    json!({"tools": weather(), "parallel_tool_calls": 1}),
                    "parallel_tool_calls",
                ),
            ];
            for (extra, param) in cases {
                let rejected = worker.chat(extra.clone()).await;
                assert_eq!(rejected.status, 400, "{extra}: {}", rejected.body);
                assert_eq!(rejected.json()["error"]["param"], param, "{extra}");
            }
            let off =
                json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": true, "max_tokens": 1});
            assert_eq!(worker.chat(off).await.status, 200);
        })
    });
}

fn schema_of(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}}})
}

/// The script generates text before and after the part that the grammar permits.
#[test]
fn answer_matches_response_format() {
    let dir = TempDir::new();
    let script = Script::new(&[
        (
            &[b"Sure: ", b"{\"a\"", b": \"x", b"\", \"b\": ", b"12}", b" Done."],
            true,
        ),
        (&[b"{", b"\"k\":", b"[", b"1", b",", b"2", b"]", b"}"], true),
        (&[b"no", b"yes"], true),
    ]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let format = schema_of(json!({
                "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                "required": ["a", "b"], "additionalProperties": false
            }));
            let (message_of_model, reason, usage) = chat(worker, 0, format.clone()).await;
            assert_eq!(
                message_of_model,
                message(json!("{\"a\": \"x\", \"b\": 12}"), json!({}))
            );
            assert_eq!(
                (reason.as_str(), &usage["completion_tokens"]),
                ("stop", &json!(4))
            );
            let (message_of_model, reason, _) =
                chat(worker, 0, merged(format, json!({"max_tokens": 3}))).await;
            assert_eq!(message_of_model["content"], "{\"a\": \"x\", \"b\": ");
            assert_eq!(reason, "length");

            let object = json!({"response_format": {"type": "json_object"}});
            let (message_of_model, reason, _) = chat(worker, 1, object).await;
            assert_eq!(message_of_model["content"], "{\"k\":[1,2]}");
            assert_eq!(reason, "stop");
            let (message_of_model, _, _) = chat(
                worker,
                2,
                json!({"structured_outputs": {"choice": ["yes", "never"]}}),
            )
            .await;
            assert_eq!(message_of_model["content"], "yes");
            let (message_of_model, reason, usage) =
                chat(worker, 2, json!({"guided_regex": "(no|yes){3}"})).await;
            assert_eq!(
                message_of_model["content"].as_str().unwrap().replace("yes", "no"),
                "nonono"
            );
            assert_eq!(
                (reason.as_str(), &usage["completion_tokens"]),
                ("stop", &json!(3))
            );
            let bare =
                json!({"model": "tiny", "prompt": "<cue 2>", "guided_choice": ["yes"], "temperature": 0});
            let text = worker.post("/v1/completions", &bare).await.json();
            assert_eq!(text["choices"][0]["text"], "yes");
        })
    });
}

/// Returns a published chat template. The scripted tokenizer drops its text, so that the cue in the
/// last message is the last token of the prompt.
fn published(template: &str) -> String {
    std::fs::read_to_string(root().join("e2e/fixtures/templates").join(template)).unwrap()
}

/// The model prefers endless reasoning: as a token of its vocabulary, or in ordinary tokens.
fn endless_reasoning(open: &[&'static [u8]]) -> Script {
    let endless = [open, &[b" hm"]].concat();
    Script::new(&[
        (&endless, false),
        (&[b"</think>", b"{\"a\": ", b"1", b"}"], true),
        (&[b"<think>"], true),
    ])
}

#[test]
fn strict_format_has_no_reasoning_that_the_template_does_not_turn_on() {
    for template in ["qwen2_5.jinja", "llama3_1.jinja", "qwen3_instruct_2507.jinja"] {
        let dir = TempDir::new();
        endless_reasoning(&[b"<th", b"ink>"]).write_for_chats(dir.path(), &published(template));
        with_worker(config_of(&dir), |worker| {
            Box::pin(async move {
                let format = schema_of(json!({"type": "object", "properties": {"a": {"type": "integer"}},
                    "required": ["a"], "additionalProperties": false}));
                for cue in [0, 2] {
                    let (message_of_model, reason, _) = chat(worker, cue, format.clone()).await;
                    assert_eq!(message_of_model["content"], "{\"a\": 1}", "{template}");
                    assert_eq!(reason, "stop", "{template}");
                }
            })
        });
    }
}

#[test]
fn reasoning_before_a_strict_format_is_bounded() {
    let dir = TempDir::new();
    endless_reasoning(&[b"<th", b"ink>"]).write_for_chats(dir.path(), &published("qwen3.jinja"));
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let format = schema_of(json!({"type": "object", "properties": {"a": {"type": "integer"}},
                "required": ["a"], "additionalProperties": false}));
            let (message_of_model, reason, usage) = chat(worker, 0, format.clone()).await;
            assert_eq!(message_of_model["content"], "{\"a\": 1}");
            assert_eq!(reason, "stop");
            // Half of `max_tokens`.
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 20);
            let off = merged(format, json!({"enable_thinking": false}));
            let (message_of_model, reason, usage) = chat(worker, 0, off).await;
            assert_eq!(message_of_model["content"], "{\"a\": 1}");
            assert_eq!(reason, "stop");
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
        })
    });
}

/// The request turns reasoning on, as an explicit variable or with a budget.
#[test]
fn request_turns_on_reasoning_before_a_strict_format() {
    let dir = TempDir::new();
    let script = Script::new(&[(&[b"<think>", b" why"], false), (&[b"</think>", b"{}"], true)]);
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}{# </think> #}");
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let object = json!({"response_format": {"type": "json_object"}});
            for (extra, reasoning) in [
                (json!({}), json!(null)),
                (json!({"enable_thinking": true}), json!(" why")),
                (json!({"reasoning_effort": "low"}), json!(" why")),
                (json!({"reasoning_effort": "none"}), json!(null)),
            ] {
                let (message_of_model, _, _) = chat(worker, 0, merged(object.clone(), extra.clone())).await;
                assert_eq!(message_of_model["content"], "{}", "{extra}");
                let text = message_of_model["reasoning_content"].as_str();
                assert_eq!(
                    text.map(|text| text.starts_with(" why")),
                    reasoning.as_str().map(|_| true),
                    "{extra}: {message_of_model}"
                );
            }
        })
    });
}

#[test]
fn required_call_is_made() {
    let dir = TempDir::new();
    let script = Script::new(&[(
        &[
            b"I think.",
            b"<tool_call>\n",
            b"{\"name\": \"weather\", ",
            b"\"arguments\": ",
            b"{\"town\": \"Bern\"}",
            b"}\n</tool_call>",
        ],
        true,
    )]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let bern = json!({"tool_calls": [call("weather", r#"{"town": "Bern"}"#)]});
            let named = json!({"type": "function", "function": {"name": "weather"}});
            for choice in [json!("required"), named] {
                let tools = json!({"tools": weather(), "tool_choice": choice, "parallel_tool_calls": false});
                let (message_of_model, reason, _) = chat(worker, 0, tools).await;
                assert_eq!(
                    (message_of_model, reason.as_str()),
                    (message(json!(null), bern.clone()), "tool_calls")
                );
            }
            let both = merged(
                json!({"tools": weather()}),
                json!({"response_format": {"type": "json_object"}}),
            );
            let (message_of_model, _, _) = chat(worker, 0, both).await;
            assert_eq!(
                message_of_model["tool_calls"], bern["tool_calls"],
                "a response format does not prevent calls"
            );
        })
    });
}

/// The schemas permit other types, and the scripted model generates one.
#[test]
fn arguments_of_required_call_are_an_object() {
    let dir = TempDir::new();
    let script = Script::new(&[
        (
            &[
                b"<tool_call>\n{\"name\": \"weather\", \"arguments\": ",
                b"[false]",
                b"}\n</tool_call>",
            ],
            true,
        ),
        (&[b"{\"town\": \"Bern\"}"], true),
    ]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            for schema in [
                json!({}),
                json!({"description": "x"}),
                json!({"anyOf": [{"type": "array"}, {"type": "object"}]}),
            ] {
                let function = json!({"name": "weather", "parameters": schema});
                let tools =
                    json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"});
                let (message_of_model, reason, _) = chat(worker, 0, tools).await;
                let bern = json!([call("weather", r#"{"town": "Bern"}"#)]);
                assert_eq!(
                    (&message_of_model["tool_calls"], reason.as_str()),
                    (&bern, "tool_calls"),
                    "{schema}"
                );
            }
        })
    });
}

/// The grammar permits any content before a call.
#[test]
fn calls_of_strict_functions_match_their_schemas() {
    let dir = TempDir::new();
    let script = Script::new(&[
        (
            &[
                b"I look.",
                b"<tool_call>\n",
                b"{\"name\": \"weather\", ",
                b"\"arguments\": ",
                b"{\"city\": \"Bern\"}",
                b"}\n</tool_call>",
            ],
            true,
        ),
        (&[b"{\"town\": \"Bern\"}"], true),
        (&[b"<tool", b" is no call>"], true),
    ]);
    script.write_for_chats(dir.path(), PLAIN);
    with_worker(config_of(&dir), |worker| {
        Box::pin(async move {
            let tools = |strict: Value| {
                let mut tools = weather();
                tools[0]["function"]["strict"] = strict;
                json!({"tools": tools})
            };
            for (strict, arguments) in [
                (json!(true), r#"{"town": "Bern"}"#),
                (json!(false), r#"{"city": "Bern"}"#),
                (json!(null), r#"{"city": "Bern"}"#),
            ] {
                let (message_of_model, reason, _) = chat(worker, 0, tools(strict)).await;
                let calls = json!({"tool_calls": [call("weather", arguments)]});
                assert_eq!(
                    (message_of_model, reason.as_str()),
                    (message(json!("I look."), calls), "tool_calls")
                );
            }
            let (message_of_model, reason, _) = chat(worker, 2, tools(json!(true))).await;
            assert_eq!(
                (message_of_model, reason.as_str()),
                (message(json!("<tool is no call>"), json!({})), "stop")
            );
            let rejected = worker.chat(tools(json!("yes"))).await;
            assert_eq!(rejected.status, 400, "{}", rejected.body);
            assert_eq!(rejected.json()["error"]["param"], "tools[0].function.strict");
            let mut impossible = tools(json!(true));
            impossible["tools"][0]["function"]["parameters"] =
                json!({"type": "object", "unevaluatedProperties": 1});
            impossible["messages"] = json!([{"role": "user", "content": "<cue 0>"}]);
            let rejected = worker.chat(impossible).await;
            assert_eq!(rejected.status, 400, "{}", rejected.body);
            assert_eq!(rejected.json()["error"]["param"], "tools[0].function.parameters");
        })
    });
}

/// The answers of concurrent requests are equal to the answers of single requests.
#[test]
fn rows_with_and_without_format_share_a_batch() {
    let config = WorkerConfig {
        max_concurrency: 4,
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let formats = [
                json!({}),
                schema_of(
                    json!({"type": "array", "items": {"enum": ["a", "bc", 1]}, "minItems": 3, "maxItems": 5}),
                ),
                json!({"guided_regex": "[a-f]{12}"}),
                json!({"temperature": 0.9, "seed": 3}),
                schema_of(
                    json!({"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"enum": [null, 7]}}, "required": ["x", "y"]}),
                ),
                json!({"guided_choice": ["alpha", "beta"], "temperature": 1.5, "seed": 4}),
            ];
            let send = |format: &Value| worker.chat_text(merged(json!({"max_tokens": 60}), format.clone()));
            let mut alone = Vec::new();
            for format in &formats {
                alone.push(send(format).await);
            }
            let together = futures::future::join_all(formats.iter().map(send)).await;
            assert_eq!(together, alone);
            let list: Vec<Value> = serde_json::from_str(&alone[1]).unwrap();
            assert!((3..=5).contains(&list.len()), "{list:?}");
            assert!(
                alone[2].len() == 12 && alone[2].bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
                "{}",
                alone[2]
            );
            let object: Value = serde_json::from_str(&alone[4]).unwrap();
            assert!(
                object["x"].is_boolean() && (object["y"].is_null() || object["y"] == 7),
                "{object}"
            );
            assert!(["alpha", "beta"].contains(&alone[5].as_str()), "{}", alone[5]);
        })
    });
}

#[test]
fn rejects_formats_that_no_grammar_can_enforce() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let schema = "response_format.json_schema.schema";
            let bad_tool = json!([{"type": "function", "function": {"name": "f"}},
                                  {"type": "function", "function": {"name": "g", "parameters": {"not": {}}}}]);
            let cases = [
                (
                    schema_of(json!({"type": "object", "propertyNames": {"minLength": 2, "pattern": "a"}})),
                    schema,
                ),
                (schema_of(json!({"type": "thing"})), schema),
                (json!({"guided_regex": "(?<=a)"}), "guided_regex"),
                (
                    json!({"tools": bad_tool, "tool_choice": "required"}),
                    "tools[1].function.parameters",
                ),
                (
                    json!({"tools": bad_tool, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required",
                        "tools": [{"type": "function", "function": {"name": "g"}}]}}}),
                    "tools[1].function.parameters",
                ),
            ];
            for (extra, param) in cases {
                let rejected = worker.chat(extra.clone()).await;
                assert_eq!(rejected.status, 400, "{extra}: {}", rejected.body);
                assert_eq!(rejected.json()["error"]["param"], param, "{extra}");
            }
            let unsupported = |strict: Value| {
                let parameters = json!({"type": "object", "minProperties": 2});
                let function = json!({"name": "f", "parameters": parameters, "strict": strict});
                json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 1})
            };
            for (strict, status) in [(json!(null), 200), (json!(false), 200), (json!(true), 400)] {
                let answer = worker.chat(unsupported(strict.clone())).await;
                assert_eq!(answer.status, status, "strict {strict}: {}", answer.body);
            }
            let auto = json!({"tools": bad_tool, "max_tokens": 1});
            assert_eq!(
                worker.chat(auto).await.status,
                200,
                "an optional call is unconstrained"
            );
        })
    });
}
