//! Response bodies of chat completions and completions, complete and streamed.

pub mod embeddings;
pub mod logprobs;

use serde::Serialize;

use self::logprobs::{ChatLogprobs, PromptLogprobs, TextLogprobs};

/// Reason for the end of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-sequence token or stop string.
    Stop,
    /// Limit of `max_tokens` or of the context.
    Length,
    /// The client must execute tool calls.
    ToolCalls,
}

/// Stop string or token of the request that ended the answer; vLLM's extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(u32),
}

/// Number of tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            ..Self::default()
        }
    }

    /// Adds completion tokens.
    pub fn with_more(mut self, completion_tokens: usize) -> Self {
        self.completion_tokens += completion_tokens;
        self.total_tokens += completion_tokens;
        self
    }

    /// Sets the number of prompt tokens from the prefix cache.
    pub fn with_cached_tokens(mut self, cached_tokens: usize) -> Self {
        self.prompt_tokens_details.cached_tokens = cached_tokens;
        self
    }

    /// Sets the number of reasoning tokens in the completion.
    pub fn with_reasoning_tokens(mut self, reasoning_tokens: usize) -> Self {
        self.completion_tokens_details.reasoning_tokens = reasoning_tokens;
        self
    }
}

/// Common members of all bodies of one completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Envelope {
    pub id: String,
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: i64,
    pub model: String,
    pub system_fingerprint: String,
}

/// Response of `POST /v1/chat/completions` without streaming.
#[derive(Debug, Serialize)]
pub struct ChatCompletion<'a> {
    #[serde(flatten)]
    pub envelope: &'a Envelope,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
    /// vLLM's extension, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// vLLM's extension, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// All generated tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
pub struct AssistantMessage {
    pub role: &'static str,
    /// Null if there are only tool calls.
    pub content: Option<String>,
    pub refusal: (),
    #[serde(flatten)]
    pub reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CalledTool>,
}

impl AssistantMessage {
    pub fn new(content: String, reasoning: String, tool_calls: Vec<CalledTool>) -> Self {
        Self {
            role: "assistant",
            content: (tool_calls.is_empty() || !content.is_empty()).then_some(content),
            refusal: (),
            reasoning: (!reasoning.is_empty()).then(|| Reasoning::new(reasoning)),
            tool_calls,
        }
    }
}

/// Reasoning under both names that clients read.
#[derive(Debug, Serialize)]
pub struct Reasoning {
    reasoning_content: String,
    reasoning: String,
}

impl Reasoning {
    pub fn new(text: String) -> Self {
        Self {
            reasoning_content: text.clone(),
            reasoning: text,
        }
    }
}

/// Tool call, or a part of one in a stream. The first part has `id`, `type` and `name`.
#[derive(Debug, Serialize)]
pub struct CalledTool {
    /// Index of the call, only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: CalledFunction,
}

#[derive(Debug, Serialize)]
pub struct CalledFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON as text.
    pub arguments: String,
}

impl CalledTool {
    /// Creates a call without arguments.
    pub fn begin(id: String, name: String) -> Self {
        Self {
            index: None,
            id: Some(id),
            kind: Some("function"),
            function: CalledFunction {
                name: Some(name),
                arguments: String::new(),
            },
        }
    }

    /// Creates a part with more arguments.
    pub fn more(arguments: String) -> Self {
        Self {
            index: None,
            id: None,
            kind: None,
            function: CalledFunction {
                name: None,
                arguments,
            },
        }
    }

    /// Sets the index of the call, for a stream.
    pub fn at(self, index: usize) -> Self {
        Self {
            index: Some(index),
            ..self
        }
    }
}

impl ChatChoice {
    pub fn new(
        index: usize,
        message: AssistantMessage,
        logprobs: Option<ChatLogprobs>,
        finish_reason: FinishReason,
        stop_reason: Option<StopReason>,
    ) -> Self {
        Self {
            index,
            message,
            logprobs,
            finish_reason,
            stop_reason,
            token_ids: None,
        }
    }
}

/// Event of a streamed chat completion.
#[derive(Debug, Serialize)]
pub struct ChatChunk<'a> {
    #[serde(flatten)]
    pub envelope: &'a Envelope,
    pub choices: Vec<ChatChunkChoice>,
    /// Tokens of the prompt, in the first chunk only, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Absent unless the client requested it; null in every chunk but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Tokens since the choice's last chunk, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(flatten)]
    pub reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CalledTool>,
}

/// Response of `POST /v1/completions` without streaming.
#[derive(Debug, Serialize)]
pub struct TextCompletion<'a> {
    #[serde(flatten)]
    pub envelope: &'a Envelope,
    pub choices: Vec<TextChoice>,
    pub usage: Usage,
}

#[derive(Debug, Default, Serialize)]
pub struct TextChoice {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<TextLogprobs>,
    pub finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Generated tokens, in a stream those since the choice's last chunk, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Tokens of the prompt, in a stream in the choice's first chunk only, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Event of a streamed completion.
#[derive(Debug, Serialize)]
pub struct TextChunk<'a> {
    #[serde(flatten)]
    pub envelope: &'a Envelope,
    pub choices: Vec<TextChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn envelope(object: &'static str) -> Envelope {
        Envelope {
            id: "chatcmpl-1".to_owned(),
            object,
            created: 7,
            model: "m".to_owned(),
            system_fingerprint: "fp".to_owned(),
        }
    }

    #[test]
    fn chat_completion_has_openai_format() {
        let envelope = envelope("chat.completion");
        let body = ChatCompletion {
            envelope: &envelope,
            choices: vec![ChatChoice::new(
                0,
                AssistantMessage::new("hi".to_owned(), String::new(), Vec::new()),
                None,
                FinishReason::Stop,
                None,
            )],
            usage: Usage::new(3, 2).with_cached_tokens(1),
            prompt_logprobs: None,
            prompt_token_ids: None,
        };
        assert_eq!(
            serde_json::to_value(body).unwrap(),
            json!({
                "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m", "system_fingerprint": "fp",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                             "logprobs": null, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
                          "prompt_tokens_details": {"cached_tokens": 1},
                          "completion_tokens_details": {"reasoning_tokens": 0}}
            })
        );
    }

    /// The format is that of vLLM's OpenAI-compatible server.
    #[test]
    fn prompt_logprobs_are_objects_by_token_id() {
        let logprob = |token: &str, rank| logprobs::RankedLogprob {
            logprob: -0.5,
            rank,
            decoded_token: token.to_owned(),
        };
        let prompt: PromptLogprobs = vec![
            None,
            Some(logprobs::PromptLogprob(vec![
                (7, logprob("b", 3)),
                (2, logprob("a", 1)),
            ])),
        ];
        let json = serde_json::to_string(&prompt).unwrap();
        let own = r#"{"7":{"logprob":-0.5,"rank":3,"decoded_token":"b"},"2":{"logprob":-0.5,"rank":1,"decoded_token":"a"}}"#;
        assert_eq!(json, format!("[null,{own}]"));
    }

    #[test]
    fn serializes_reasoning_and_calls() {
        let begin = || CalledTool::begin("call_1".to_owned(), "f".to_owned());
        let mut call = begin();
        call.function.arguments.push_str("{}");
        let message = AssistantMessage::new(String::new(), "why".to_owned(), vec![call]);
        assert_eq!(
            serde_json::to_value(message).unwrap(),
            json!({"role": "assistant", "content": null, "refusal": null, "reasoning_content": "why", "reasoning": "why",
                   "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
        );
        assert_eq!(
            serde_json::to_value([begin().at(2), CalledTool::more("{}".to_owned()).at(2)]).unwrap(),
            json!([
                {"index": 2, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
                {"index": 2, "function": {"arguments": "{}"}}
            ])
        );
    }

    #[test]
    fn usage_in_a_chunk_is_absent_null_or_present() {
        let envelope = envelope("chat.completion.chunk");
        let chunk = |usage| {
            let chunk = ChatChunk {
                envelope: &envelope,
                choices: Vec::new(),
                prompt_token_ids: None,
                usage,
            };
            serde_json::to_value(chunk).unwrap().get("usage").cloned()
        };
        assert_eq!(chunk(None), None);
        assert_eq!(chunk(Some(None)), Some(json!(null)));
        assert_eq!(chunk(Some(Some(Usage::new(1, 1)))).unwrap()["total_tokens"], 2);
    }
}
