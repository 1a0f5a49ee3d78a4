//! Reasoning in answers.

use super::*;

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

/// Returns a published chat template. The scripted tokenizer drops its text, so that the cue in the
/// last message is the last token of the prompt.
fn published(template: &str) -> String {
    std::fs::read_to_string(root().join("e2e/fixtures/templates").join(template)).unwrap()
}

/// Returns a model that prefers endless reasoning. `open` holds the tokens of the opening marker:
/// one token of the vocabulary, or several ordinary tokens.
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
