//! Tool calls in answers.

use super::*;

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
