//! What was said in an answer, whichever of the four APIs told it, whole or streamed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::Answer;

/// One choice of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) text: String,
    /// Names and arguments of calls.
    pub(super) calls: Vec<(String, String)>,
    pub(super) end: End,
}

/// Why an answer ended, in the words of chats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum End {
    /// Nothing was told of it.
    #[default]
    Untold,
    Stop,
    Length,
    ToolCalls,
}

/// Every choice by its index, and the tokens that the usage counts for all of them.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) choices: BTreeMap<u64, Said>,
    pub(super) tokens: Option<u64>,
    /// Of all tokens that logprobs were told of.
    pub(super) logprobs: Vec<f64>,
}

pub(super) fn told(answer: &Answer) -> Told {
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
    let mut told = Told::default();
    for body in &bodies {
        assert!(body.get("error").is_none_or(Value::is_null), "{body}");
        told.hear(body);
    }
    told
}

impl Told {
    fn hear(&mut self, body: &Value) {
        if let Some(kind) = body["type"].as_str() {
            return self.hear_message(kind, body);
        }
        if body["object"] == "response" {
            return self.hear_response(body);
        }
        for choice in each(&body["choices"]) {
            let said = self
                .choices
                .entry(choice["index"].as_u64().expect("an index"))
                .or_default();
            for piece in [&choice["message"], &choice["delta"]] {
                push(&mut said.text, &piece["content"]);
                push(&mut said.reasoning, &piece["reasoning_content"]);
                for (place, call) in each(&piece["tool_calls"]).enumerate() {
                    let index = call["index"]
                        .as_u64()
                        .map_or(place, |index| usize::try_from(index).expect("small"));
                    if said.calls.len() <= index {
                        said.calls.resize_with(index + 1, Default::default);
                    }
                    push(&mut said.calls[index].0, &call["function"]["name"]);
                    push(&mut said.calls[index].1, &call["function"]["arguments"]);
                }
            }
            push(&mut said.text, &choice["text"]);
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert_eq!(said.end, End::Untold, "it ends once");
                said.end = match reason {
                    "stop" => End::Stop,
                    "length" => End::Length,
                    "tool_calls" => End::ToolCalls,
                    other => panic!("{other}"),
                };
            }
            let logprobs = &choice["logprobs"];
            self.logprobs
                .extend(each(&logprobs["content"]).filter_map(|token| token["logprob"].as_f64()));
            self.logprobs
                .extend(each(&logprobs["token_logprobs"]).filter_map(Value::as_f64));
        }
        if let Some(tokens) = body["usage"]["completion_tokens"].as_u64() {
            self.tokens = Some(tokens);
        }
    }

    /// A response, whole or as the last event has it.
    fn hear_response(&mut self, response: &Value) {
        let said = self.choices.entry(0).or_default();
        for item in each(&response["output"]) {
            for part in each(&item["content"]) {
                match item["type"].as_str() {
                    Some("reasoning") => push(&mut said.reasoning, &part["text"]),
                    _ => push(&mut said.text, &part["text"]),
                }
            }
            if item["type"] == "function_call" {
                let text = |name: &str| item[name].as_str().expect("text").to_owned();
                said.calls.push((text("name"), text("arguments")));
            }
        }
        said.end = match (response["status"].as_str(), said.calls.is_empty()) {
            (Some("completed"), true) => End::Stop,
            (Some("completed"), false) => End::ToolCalls,
            (Some("incomplete"), _) => End::Length,
            other => panic!("{other:?}: {response}"),
        };
        self.tokens = response["usage"]["output_tokens"].as_u64();
    }

    /// Anthropic's message or one of its events, or an event of a response.
    fn hear_message(&mut self, kind: &str, body: &Value) {
        let said = self.choices.entry(0).or_default();
        match kind {
            "response.completed" | "response.incomplete" => {
                let deltas = std::mem::take(said);
                self.hear_response(&body["response"]);
                let whole = &self.choices[&0];
                assert_eq!(
                    (&deltas.text, &deltas.reasoning),
                    (&whole.text, &whole.reasoning),
                    "the pieces are the whole"
                );
            }
            "response.output_text.delta" => push(&mut said.text, &body["delta"]),
            "response.reasoning_text.delta" => push(&mut said.reasoning, &body["delta"]),
            "message" => {
                for block in each(&body["content"]) {
                    match block["type"].as_str() {
                        Some("text") => push(&mut said.text, &block["text"]),
                        Some("thinking") => push(&mut said.reasoning, &block["thinking"]),
                        Some("tool_use") => {
                            let name = block["name"].as_str().expect("a name").to_owned();
                            said.calls.push((name, block["input"].to_string()));
                        }
                        other => panic!("{other:?}"),
                    }
                }
                self.end_message(body);
            }
            "content_block_start" if body["content_block"]["type"] == "tool_use" => {
                let name = body["content_block"]["name"].as_str().expect("a name");
                said.calls.push((name.to_owned(), String::new()));
            }
            "content_block_delta" => {
                push(&mut said.text, &body["delta"]["text"]);
                push(&mut said.reasoning, &body["delta"]["thinking"]);
                if let Some((_, arguments)) = said.calls.last_mut() {
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
        let said = self.choices.entry(0).or_default();
        said.end = match message["stop_reason"].as_str() {
            Some("end_turn" | "stop_sequence") => End::Stop,
            Some("max_tokens") => End::Length,
            Some("tool_use") => End::ToolCalls,
            other => panic!("{other:?}"),
        };
        self.tokens = message["usage"]["output_tokens"].as_u64();
    }
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn push(text: &mut String, piece: &Value) {
    text.push_str(piece.as_str().unwrap_or(""));
}
