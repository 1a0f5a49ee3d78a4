//! Requests to the guide. Under load, the answers must equal those of an idle worker.

use serde_json::{Value, json};

const QUESTIONS: [&str; 4] = [
    "What is rooflet?",
    "How do I install it?",
    "What does the agent do?",
    "Tell me about the roofline.",
];

/// Returns path and body of a request of this kind (below [`REQUEST_KINDS`]).
pub(super) fn request(kind: usize) -> (&'static str, Value) {
    let question = QUESTIONS[kind % QUESTIONS.len()];
    let messages = json!([{"role": "user", "content": question}]);
    match kind / QUESTIONS.len() % 11 {
        0 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 20}),
        ),
        1 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 12, "stream": true}),
        ),
        2 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0.9, "top_p": 0.9, "seed": kind, "max_tokens": 9}),
        ),
        3 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "seed": 3, "n": 3, "max_tokens": 5, "logprobs": true,
                   "presence_penalty": 0.5, "logit_bias": {"7": -100}}),
        ),
        5 => (
            "/v1/completions",
            json!({"model": "guide", "prompt": format!("{}{question}", "rooflet serves models. ".repeat(60 + kind)),
                   "temperature": 0, "max_tokens": 5}),
        ),
        4 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "repetition_penalty": 1.3, "max_tokens": 15, "stream": true}),
        ),
        // The model was not trained to write JSON: the logits masks determine the answer.
        7 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 20, "response_format": {
                "type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {
                    "type": "object", "additionalProperties": false, "required": ["a", "b"],
                    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 6 + kind}}}}}}),
        ),
        8 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 30, "stream": kind.is_multiple_of(2),
                   "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {
                       "type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}}}}}]}),
        ),
        9 => (
            "/v1/messages",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 11}),
        ),
        10 => (
            "/v1/responses",
            json!({"model": "guide", "input": question, "temperature": 0, "max_output_tokens": 10}),
        ),
        _ => (
            "/v1/completions",
            json!({"model": "guide", "prompt": [question, "rooflet"], "temperature": 0, "max_tokens": 7, "stop": "."}),
        ),
    }
}
pub(super) const REQUEST_KINDS: usize = 44;
