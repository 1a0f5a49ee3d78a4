//! Response formats.

use super::*;

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
            let grammar = "root ::= answer \"|\"? answer\nanswer ::= \"yes\" | \"no\" # or\n";
            let grammar = json!({"structured_outputs": {"grammar": grammar}});
            let (message_of_model, reason, _) = chat(worker, 2, grammar).await;
            assert_eq!(
                message_of_model["content"].as_str().unwrap().replace("yes", "no"),
                "nono"
            );
            assert_eq!(reason, "stop");
            let bare =
                json!({"model": "tiny", "prompt": "<cue 2>", "guided_choice": ["yes"], "temperature": 0});
            let text = worker.post("/v1/completions", &bare).await.json();
            assert_eq!(text["choices"][0]["text"], "yes");
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
