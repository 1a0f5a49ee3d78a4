//! Requests to a model that follows a script: what it must say to each is worked out here, from the
//! script alone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::answers::{End, Said, Told};
use crate::script::Script;

/// A line ends with the end of text, or begins again.
struct Line {
    pieces: &'static [&'static [u8]],
    ends: bool,
}

const LINES: [Line; 9] = [
    // Characters over several tokens.
    Line {
        pieces: &[b"H", b"\xc3", b"\xa9", b"llo ", b"\xf0\x9f", b"\x91\x8b", b"!"],
        ends: true,
    },
    Line {
        pieces: &[b"over and ", b"over "],
        ends: false,
    },
    // Half a character at the end, and none at all in the middle.
    Line {
        pieces: &[b"cut \xe2\x82"],
        ends: true,
    },
    Line {
        pieces: &[b"x\xff", b"y"],
        ends: true,
    },
    // A stop string over three tokens, and the beginning of one.
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
/// After its cue, any letter from `a` to `p` is as probable as the others.
const LETTERS: usize = 9;

/// Prints what was said, and nothing else. Behind it stand the words by which reasoning and tools
/// are known.
const TEMPLATE: &str =
    "{% for message in messages %}{{ message.content }}{% endfor %}{# </think> <tool_call> tools #}";

pub(super) fn write(directory: &Path) {
    let mut lines: Vec<(&[&[u8]], bool)> = LINES.iter().map(|line| (line.pieces, line.ends)).collect();
    lines.push((&[b"-"], true));
    let mut script = Script::new(&lines);
    script.choose(LETTERS, b'a'..=b'p');
    script.write_for_chats(directory, TEMPLATE);
}

/// What is asked, and what must come.
pub(super) struct Question {
    pub(super) path: &'static str,
    pub(super) body: Value,
    expected: Expected,
}

enum Expected {
    /// Each of so many choices.
    Text { choices: u64, said: Said, tokens: u64 },
    /// So many letters in each of so many choices.
    Letters { choices: u64, tokens: u64 },
}

#[derive(Clone, Copy, PartialEq)]
enum Api {
    Completions,
    Chat,
    Responses,
    Messages,
}

/// One question, drawn at random.
pub(super) fn question(random: &mut StdRng) -> Question {
    let line = random.random_range(0..=LETTERS);
    let api = match random.random_range(0..4) {
        // Its `seed` and `n` are OpenAI's.
        _ if line == LETTERS => Api::Completions,
        0 => Api::Completions,
        1 => Api::Chat,
        2 => Api::Responses,
        _ => Api::Messages,
    };
    // The model reads only its last token. What stands before it fills caches, and often begins
    // alike.
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
    // Responses have none; where an answer has parts, a stop string would be looked for in all of
    // them.
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
    let (mut said, mut tokens) = spoken(&LINES[line], max_tokens, stops);
    let chats = api != Api::Completions;
    if line == JSON && api == Api::Chat && random.random_bool(0.5) {
        body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "stay", "strict": true, "schema": {
            "type": "object", "additionalProperties": false, "required": ["town", "days"],
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}}});
        // A text that is whole may be followed by nothing else, so the end of text need not be
        // asked for.
        let pieces = LINES[JSON].pieces.len() as u64;
        if max_tokens >= pieces {
            said.end = End::Stop;
            tokens = pieces;
        }
    }
    if line == REASONING && chats {
        split_reasoning(&mut said);
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
        // A call that is cut off is told as far as it came, which other tests look at.
        body[length] = json!(20);
        (_, tokens) = spoken(&LINES[line], 20, &[]);
        said = Said {
            text: "I look.".to_owned(),
            calls: vec![("weather".to_owned(), json!({"town": "Bern"}).to_string())],
            end: End::ToolCalls,
            ..Said::default()
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
            said,
            tokens: tokens * choices,
        },
    }
}

/// What a line's model says in at most so many tokens, the end of text being one, and how many it
/// takes.
fn spoken(line: &Line, max_tokens: u64, stops: &[&str]) -> (Said, u64) {
    let mut bytes = Vec::new();
    let mut pieces = line.pieces.iter().cycle();
    let count = line.pieces.len() as u64;
    for tokens in 1..=max_tokens {
        if line.ends && tokens > count {
            return (text(&bytes, End::Stop), tokens);
        }
        bytes.extend_from_slice(pieces.next().expect("it begins again"));
        let so_far = String::from_utf8_lossy(&bytes);
        if let Some(place) = stops.iter().filter_map(|stop| so_far.find(stop)).min() {
            return (text(&bytes[..place], End::Stop), tokens);
        }
    }
    (text(&bytes, End::Length), max_tokens)
}

fn text(bytes: &[u8], end: End) -> Said {
    Said {
        text: String::from_utf8_lossy(bytes).into_owned(),
        end,
        ..Said::default()
    }
}

/// `<think>` and `</think>` part it; line breaks around them belong to neither side.
fn split_reasoning(said: &mut Said) {
    let whole = std::mem::take(&mut said.text);
    let inside = whole.strip_prefix("<think>\n").expect("the line begins so");
    match inside.split_once("</think>") {
        Some((reasoning, text)) => {
            said.reasoning = reasoning.trim_end_matches('\n').to_owned();
            said.text = text.trim_start_matches('\n').to_owned();
        }
        None => said.reasoning = inside.to_owned(),
    }
}

/// Which letters a seed's choices got: the next request with that seed must get the same.
#[derive(Default)]
pub(super) struct Drawn(Mutex<HashMap<String, Vec<String>>>);

impl Question {
    /// Panics where the answer is not the script's.
    pub(super) fn check(&self, told: &Told, drawn: &Drawn) {
        let asked = &self.body;
        match &self.expected {
            Expected::Text {
                choices,
                said,
                tokens,
            } => {
                let indexes: Vec<u64> = told.choices.keys().copied().collect();
                assert_eq!(indexes, (0..*choices).collect::<Vec<_>>(), "{asked}");
                for choice in told.choices.values() {
                    assert_eq!(&normal(choice), said, "{asked}");
                }
                if let Some(told) = told.tokens {
                    assert_eq!(told, *tokens, "{asked}");
                }
                for logprob in &told.logprobs {
                    assert!((-1e-3..=0.0).contains(logprob), "{logprob}: {asked}");
                }
            }
            Expected::Letters { choices, tokens } => {
                let texts: Vec<String> = told.choices.values().map(|said| said.text.clone()).collect();
                assert_eq!(texts.len() as u64, *choices, "{asked}");
                for text in &texts {
                    assert_eq!(text.len() as u64, *tokens, "{text}: {asked}");
                    assert!(
                        text.bytes().all(|letter| (b'a'..=b'p').contains(&letter)),
                        "{text}"
                    );
                }
                // Two that are equal by chance: once in 16^12.
                if *tokens >= 12 {
                    let mut different = texts.clone();
                    different.sort();
                    different.dedup();
                    assert_eq!(different.len(), texts.len(), "{texts:?}: {asked}");
                }
                // Each choice has a seed of its own, and the first ones of many are those of few.
                let like = format!("{} {tokens}", asked["seed"]);
                let mut drawn = drawn.0.lock().unwrap_or_else(PoisonError::into_inner);
                let known = drawn.entry(like).or_default();
                for (text, known) in texts.iter().zip(&*known) {
                    assert_eq!(text, known, "{asked}");
                }
                if known.len() < texts.len() {
                    *known = texts;
                }
            }
        }
    }
}

/// Arguments as JSON prints them, whoever wrote them.
fn normal(said: &Said) -> Said {
    let mut said = said.clone();
    for (_, arguments) in &mut said.calls {
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|err| panic!("{err}: {arguments}"));
        *arguments = value.to_string();
    }
    said
}
