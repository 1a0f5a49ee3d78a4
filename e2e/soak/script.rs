//! Requests to the scripted model, and the expected answers, which are computed from the script.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::parsed_answer::{Choice, FinishReason, ParsedAnswer};
use crate::script::Script;

/// Answer of the scripted model to one cue.
struct Line {
    /// Tokens of the line.
    pieces: &'static [&'static [u8]],
    /// True if the end token follows the last piece. Otherwise, the line repeats.
    ends: bool,
}

const LINES: [Line; 9] = [
    // Characters that span several tokens.
    Line {
        pieces: &[b"H", b"\xc3", b"\xa9", b"llo ", b"\xf0\x9f", b"\x91\x8b", b"!"],
        ends: true,
    },
    Line {
        pieces: &[b"over and ", b"over "],
        ends: false,
    },
    // An incomplete character at the end, and an invalid byte in the middle.
    Line {
        pieces: &[b"cut \xe2\x82"],
        ends: true,
    },
    Line {
        pieces: &[b"x\xff", b"y"],
        ends: true,
    },
    // A stop string that spans three tokens, and an incomplete stop string.
    Line {
        pieces: &[b"alpha", b" om", b"ega E", b"N", b"D tail"],
        ends: true,
    },
    Line {
        pieces: &[b"almost ", b"EN"],
        ends: true,
    },
    Line {
        pieces: &[b"{\"days\": ", b"3, ", b"\"town\": ", b"\"Bern\"}"],
        ends: true,
    },
    Line {
        pieces: &[b"<think>\n", b"why", b" not", b"\n</think>", b"\n\nI think."],
        ends: true,
    },
    Line {
        pieces: &[
            b"I look.",
            b"<tool_call>\n{\"name\": \"wea",
            b"ther\", \"arguments\": {\"town\": \"B",
            b"ern\"}}\n</tool_call>",
        ],
        ends: true,
    },
];
const JSON: usize = 6;
const REASONING: usize = 7;
const CALL: usize = 8;
/// Index of the cue after which all letters from `a` to `p` are equally probable.
const LETTERS: usize = 9;

/// Chat template that prints only the messages' contents. The words in its comment make the worker
/// detect reasoning and tool calls.
const TEMPLATE: &str =
    "{% for message in messages %}{{ message.content }}{% endfor %}{# </think> <tool_call> tools #}";

pub(super) fn write(directory: &Path) {
    let mut lines: Vec<(&[&[u8]], bool)> = LINES.iter().map(|line| (line.pieces, line.ends)).collect();
    lines.push((&[b"-"], true));
    let mut script = Script::new(&lines);
    script.choose(LETTERS, b'a'..=b'p');
    script.write_for_chats(directory, TEMPLATE);
}

/// Request with its expected answer.
pub(super) struct Question {
    pub(super) path: &'static str,
    pub(super) body: Value,
    expected: Expected,
}

enum Expected {
    /// The same text in each of `choices` choices. `tokens` counts those of all choices.
    Text {
        choices: u64,
        expected: Choice,
        tokens: u64,
    },
    /// `tokens` letters in each of `choices` choices.
    Letters { choices: u64, tokens: u64 },
}

#[derive(Clone, Copy, PartialEq)]
enum Api {
    Completions,
    Chat,
    Responses,
    Messages,
}

/// Returns a random question.
pub(super) fn question(random: &mut StdRng) -> Question {
    let line = random.random_range(0..=LETTERS);
    let api = match random.random_range(0..4) {
        // Only OpenAI's APIs have `seed` and `n`.
        _ if line == LETTERS => Api::Completions,
        0 => Api::Completions,
        1 => Api::Chat,
        2 => Api::Responses,
        _ => Api::Messages,
    };
    // The model depends only on the last token. The text before it fills caches with prompts that
    // often share prefixes.
    let filler = "abcdefghijklmnop".repeat(match random.random_range(0..20) {
        0 => random.random_range(0..60),
        _ => random.random_range(0..6),
    });
    let filler = &filler[random.random_range(0..=filler.len().min(3))..];
    let cue = format!("{filler}<cue {line}>");
    let mut body = match api {
        Api::Completions if random.random_bool(0.3) => json!({"prompt": [cue]}),
        Api::Completions => json!({"prompt": cue}),
        Api::Chat | Api::Messages => json!({"messages": [{"role": "user", "content": cue}]}),
        Api::Responses => json!({"input": cue}),
    };
    body["model"] = json!("script");
    if random.random_bool(0.5) {
        body["stream"] = json!(true);
        if matches!(api, Api::Completions | Api::Chat) && random.random_bool(0.5) {
            body["stream_options"] = json!({"include_usage": true});
        }
    }
    let max_tokens = random.random_range(1..40);
    let length = match api {
        Api::Responses => "max_output_tokens",
        Api::Chat if random.random_bool(0.5) => "max_completion_tokens",
        Api::Chat | Api::Completions | Api::Messages => "max_tokens",
    };
    body[length] = json!(max_tokens);
    let choices = match api {
        Api::Completions | Api::Chat if random.random_bool(0.2) => random.random_range(2..5),
        Api::Completions | Api::Chat | Api::Responses | Api::Messages => 1,
    };
    if choices > 1 {
        body["n"] = json!(choices);
    }
    if line == LETTERS {
        body["temperature"] = json!(1);
        body["top_k"] = json!(16);
        body["seed"] = json!(random.random_range(0..50));
        return Question {
            path: "/v1/completions",
            body,
            expected: Expected::Letters {
                choices,
                tokens: max_tokens,
            },
        };
    }
    body["temperature"] = json!(0);
    if random.random_bool(0.3) {
        match api {
            Api::Completions => body["logprobs"] = json!(1),
            Api::Chat => body["logprobs"] = json!(true),
            Api::Responses | Api::Messages => {}
        }
    }
    let stops: &[&str] = match random.random_range(0..3) {
        0 => &["END", "r and o"],
        1 => &["never", "é"],
        _ => &[],
    };
    // The Responses API has no stop strings. In an answer with several parts, a stop string would
    // be matched in each part.
    let stops = match api {
        Api::Completions | Api::Chat if line < JSON => stops,
        Api::Messages if line < JSON => stops,
        Api::Completions | Api::Chat | Api::Responses | Api::Messages => &[],
    };
    match api {
        _ if stops.is_empty() => {}
        Api::Messages => body["stop_sequences"] = json!(stops),
        Api::Completions | Api::Chat | Api::Responses => body["stop"] = json!(stops),
    }
    let (mut expected, mut tokens) = expected_choice(&LINES[line], max_tokens, stops);
    let chats = api != Api::Completions;
    if line == JSON && api == Api::Chat && random.random_bool(0.5) {
        body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "stay", "strict": true, "schema": {
            "type": "object", "additionalProperties": false, "required": ["town", "days"],
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}}});
        // After a complete JSON text, only the end token is allowed, so no step is needed to
        // generate it.
        let pieces = LINES[JSON].pieces.len() as u64;
        if max_tokens >= pieces {
            expected.end = FinishReason::Stop;
            tokens = pieces;
        }
    }
    if line == REASONING && chats {
        split_reasoning(&mut expected);
    }
    if line == CALL && chats && random.random_bool(0.7) {
        let schema = json!({"type": "object", "properties": {"town": {"type": "string"}}});
        body["tools"] = match api {
            Api::Messages => json!([{"name": "weather", "input_schema": schema}]),
            Api::Responses => json!([{"type": "function", "name": "weather", "parameters": schema}]),
            Api::Chat | Api::Completions => {
                json!([{"type": "function", "function": {"name": "weather", "parameters": schema}}])
            }
        };
        // Long enough for the whole call. Other tests cover calls that are cut off.
        body[length] = json!(20);
        (_, tokens) = expected_choice(&LINES[line], 20, &[]);
        expected = Choice {
            text: "I look.".to_owned(),
            calls: vec![("weather".to_owned(), json!({"town": "Bern"}).to_string())],
            end: FinishReason::ToolCalls,
            ..Choice::default()
        };
    }
    Question {
        path: match api {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
        },
        body,
        expected: Expected::Text {
            choices,
            expected,
            tokens: tokens * choices,
        },
    }
}

/// Returns the expected choice for a line with at most `max_tokens` tokens, and its number of
/// tokens, including the end token.
fn expected_choice(line: &Line, max_tokens: u64, stops: &[&str]) -> (Choice, u64) {
    let mut bytes = Vec::new();
    let mut pieces = line.pieces.iter().cycle();
    let count = line.pieces.len() as u64;
    for tokens in 1..=max_tokens {
        if line.ends && tokens > count {
            return (text(&bytes, FinishReason::Stop), tokens);
        }
        bytes.extend_from_slice(pieces.next().expect("the line repeats"));
        let so_far = String::from_utf8_lossy(&bytes);
        if let Some(place) = stops.iter().filter_map(|stop| so_far.find(stop)).min() {
            return (text(&bytes[..place], FinishReason::Stop), tokens);
        }
    }
    (text(&bytes, FinishReason::Length), max_tokens)
}

fn text(bytes: &[u8], end: FinishReason) -> Choice {
    Choice {
        text: String::from_utf8_lossy(bytes).into_owned(),
        end,
        ..Choice::default()
    }
}

/// Moves the text between `<think>` and `</think>` to `reasoning`. Line breaks around the tags are
/// dropped.
fn split_reasoning(expected: &mut Choice) {
    let whole = std::mem::take(&mut expected.text);
    let inside = whole
        .strip_prefix("<think>\n")
        .expect("the line starts with the tag");
    match inside.split_once("</think>") {
        Some((reasoning, text)) => {
            expected.reasoning = reasoning.trim_end_matches('\n').to_owned();
            expected.text = text.trim_start_matches('\n').to_owned();
        }
        None => expected.reasoning = inside.to_owned(),
    }
}

/// Texts of earlier choices by seed and length. Equal seeds must return equal texts.
#[derive(Default)]
pub(super) struct SeededTexts(Mutex<HashMap<String, Vec<String>>>);

impl Question {
    /// Panics if the answer differs from the expected one.
    pub(super) fn check(&self, parsed: &ParsedAnswer, seeded: &SeededTexts) {
        let body = &self.body;
        match &self.expected {
            Expected::Text {
                choices,
                expected,
                tokens,
            } => {
                let indexes: Vec<u64> = parsed.choices.keys().copied().collect();
                assert_eq!(indexes, (0..*choices).collect::<Vec<_>>(), "{body}");
                for choice in parsed.choices.values() {
                    assert_eq!(&normalize(choice), expected, "{body}");
                }
                if let Some(parsed) = parsed.tokens {
                    assert_eq!(parsed, *tokens, "{body}");
                }
                for logprob in &parsed.logprobs {
                    assert!((-1e-3..=0.0).contains(logprob), "{logprob}: {body}");
                }
            }
            Expected::Letters { choices, tokens } => {
                let texts: Vec<String> = parsed
                    .choices
                    .values()
                    .map(|choice| choice.text.clone())
                    .collect();
                assert_eq!(texts.len() as u64, *choices, "{body}");
                for text in &texts {
                    assert_eq!(text.len() as u64, *tokens, "{text}: {body}");
                    assert!(
                        text.bytes().all(|letter| (b'a'..=b'p').contains(&letter)),
                        "{text}"
                    );
                }
                // Two choices are equal by chance once in 16^12.
                if *tokens >= 12 {
                    let mut different = texts.clone();
                    different.sort();
                    different.dedup();
                    assert_eq!(different.len(), texts.len(), "{texts:?}: {body}");
                }
                // The seed of a choice depends on its index only, so a larger `n` does not change
                // the first choices.
                let like = format!("{} {tokens}", body["seed"]);
                let mut seeded = seeded.0.lock().unwrap_or_else(PoisonError::into_inner);
                let known = seeded.entry(like).or_default();
                for (text, known) in texts.iter().zip(&*known) {
                    assert_eq!(text, known, "{body}");
                }
                if known.len() < texts.len() {
                    *known = texts;
                }
            }
        }
    }
}

/// Returns the choice with tool arguments in one JSON form.
fn normalize(choice: &Choice) -> Choice {
    let mut choice = choice.clone();
    for (_, arguments) in &mut choice.calls {
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|err| panic!("{err}: {arguments}"));
        *arguments = value.to_string();
    }
    choice
}
