//! Content of an answer in a common form for all four APIs, whole or streamed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::HttpResponse;

/// Choice of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Choice {
    pub(super) reasoning: String,
    pub(super) text: String,
    /// Names and arguments of tool calls.
    pub(super) calls: Vec<(String, String)>,
    pub(super) end: FinishReason,
}

/// Finish reason, as in the chat completions API.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum FinishReason {
    /// No finish reason was received.
    #[default]
    Missing,
    Stop,
    Length,
    ToolCalls,
}

/// All choices of an answer, with its usage and logprobs.
#[derive(Debug, Default)]
pub(super) struct ParsedAnswer {
    /// Choices by index.
    pub(super) choices: BTreeMap<u64, Choice>,
    /// Generated tokens of all choices, from the usage.
    pub(super) tokens: Option<u64>,
    /// Logprobs of all tokens, if requested.
    pub(super) logprobs: Vec<f64>,
}

pub(super) fn parse(answer: &HttpResponse) -> ParsedAnswer {
    let streamed = answer.headers["content-type"] == "text/event-stream";
    let bodies: Vec<Value> = match streamed {
        true => answer
            .events()
            .iter()
            .filter(|event| *event != "[DONE]")
            .map(|event| serde_json::from_str(event).unwrap_or_else(|err| panic!("{err}: {event}")))
            .collect(),
        false => vec![answer.json()],
    };
    let mut parsed = ParsedAnswer::default();
    for body in &bodies {
        assert!(body.get("error").is_none_or(Value::is_null), "{body}");
        parsed.add(body);
    }
    parsed
}

impl ParsedAnswer {
    fn add(&mut self, body: &Value) {
        if let Some(kind) = body["type"].as_str() {
            return self.add_message(kind, body);
        }
        if body["object"] == "response" {
            return self.add_response(body);
        }
        for choice in items(&body["choices"]) {
            let entry = self
                .choices
                .entry(choice["index"].as_u64().expect("an index"))
                .or_default();
            for piece in [&choice["message"], &choice["delta"]] {
                push(&mut entry.text, &piece["content"]);
                push(&mut entry.reasoning, &piece["reasoning_content"]);
                for (place, call) in items(&piece["tool_calls"]).enumerate() {
                    let index = call["index"]
                        .as_u64()
                        .map_or(place, |index| usize::try_from(index).expect("small"));
                    if entry.calls.len() <= index {
                        entry.calls.resize_with(index + 1, Default::default);
                    }
                    push(&mut entry.calls[index].0, &call["function"]["name"]);
                    push(&mut entry.calls[index].1, &call["function"]["arguments"]);
                }
            }
            push(&mut entry.text, &choice["text"]);
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert_eq!(entry.end, FinishReason::Missing, "a second finish reason");
                entry.end = match reason {
                    "stop" => FinishReason::Stop,
                    "length" => FinishReason::Length,
                    "tool_calls" => FinishReason::ToolCalls,
                    other => panic!("{other}"),
                };
            }
            let logprobs = &choice["logprobs"];
            self.logprobs
                .extend(items(&logprobs["content"]).filter_map(|token| token["logprob"].as_f64()));
            self.logprobs
                .extend(items(&logprobs["token_logprobs"]).filter_map(Value::as_f64));
        }
        if let Some(tokens) = body["usage"]["completion_tokens"].as_u64() {
            self.tokens = Some(tokens);
        }
    }

    /// Adds an object of the Responses API, whole or from the last event.
    fn add_response(&mut self, response: &Value) {
        let entry = self.choices.entry(0).or_default();
        for item in items(&response["output"]) {
            for part in items(&item["content"]) {
                match item["type"].as_str() {
                    Some("reasoning") => push(&mut entry.reasoning, &part["text"]),
                    _ => push(&mut entry.text, &part["text"]),
                }
            }
            if item["type"] == "function_call" {
                let text = |name: &str| item[name].as_str().expect("text").to_owned();
                entry.calls.push((text("name"), text("arguments")));
            }
        }
        entry.end = match (response["status"].as_str(), entry.calls.is_empty()) {
            (Some("completed"), true) => FinishReason::Stop,
            (Some("completed"), false) => FinishReason::ToolCalls,
            (Some("incomplete"), _) => FinishReason::Length,
            other => panic!("{other:?}: {response}"),
        };
        self.tokens = response["usage"]["output_tokens"].as_u64();
    }

    /// Adds a message or an event of the Messages API, or an event of the Responses API.
    fn add_message(&mut self, kind: &str, body: &Value) {
        let entry = self.choices.entry(0).or_default();
        match kind {
            "response.completed" | "response.incomplete" => {
                let deltas = std::mem::take(entry);
                self.add_response(&body["response"]);
                let whole = &self.choices[&0];
                assert_eq!(
                    (&deltas.text, &deltas.reasoning),
                    (&whole.text, &whole.reasoning),
                    "the pieces are the whole"
                );
            }
            "response.output_text.delta" => push(&mut entry.text, &body["delta"]),
            "response.reasoning_text.delta" => push(&mut entry.reasoning, &body["delta"]),
            "message" => {
                for block in items(&body["content"]) {
                    match block["type"].as_str() {
                        Some("text") => push(&mut entry.text, &block["text"]),
                        Some("thinking") => push(&mut entry.reasoning, &block["thinking"]),
                        Some("tool_use") => {
                            let name = block["name"].as_str().expect("a name").to_owned();
                            entry.calls.push((name, block["input"].to_string()));
                        }
                        other => panic!("{other:?}"),
                    }
                }
                self.end_message(body);
            }
            "content_block_start" if body["content_block"]["type"] == "tool_use" => {
                let name = body["content_block"]["name"].as_str().expect("a name");
                entry.calls.push((name.to_owned(), String::new()));
            }
            "content_block_delta" => {
                push(&mut entry.text, &body["delta"]["text"]);
                push(&mut entry.reasoning, &body["delta"]["thinking"]);
                if let Some((_, arguments)) = entry.calls.last_mut() {
                    push(arguments, &body["delta"]["partial_json"]);
                }
            }
            "message_delta" => {
                let end = body["delta"].as_object().expect("an object").clone();
                let mut end = Value::Object(end);
                end["usage"] = body["usage"].clone();
                self.end_message(&end);
            }
            other => assert_ne!(other, "error", "{body}"),
        }
    }

    fn end_message(&mut self, message: &Value) {
        let entry = self.choices.entry(0).or_default();
        entry.end = match message["stop_reason"].as_str() {
            Some("end_turn" | "stop_sequence") => FinishReason::Stop,
            Some("max_tokens") => FinishReason::Length,
            Some("tool_use") => FinishReason::ToolCalls,
            other => panic!("{other:?}"),
        };
        self.tokens = message["usage"]["output_tokens"].as_u64();
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn push(text: &mut String, piece: &Value) {
    text.push_str(piece.as_str().unwrap_or(""));
}
