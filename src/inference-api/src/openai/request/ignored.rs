//! Harmless parameters of other servers' clients: connection, caching, routing and accounting hints
//! that do not change the answer. They are ignored, and a response header names them.

use http::{HeaderName, HeaderValue, Response};

use super::fields::Fields;

/// Response header with the names of the ignored parameters, separated by commas.
pub(crate) const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-rooflet-ignored-fields");

/// Harmless parameters in alphabetical order. No parameter in this list changes the answer of the
/// server that defines it.
const HARMLESS: &[&str] = &[
    // LiteLLM.
    "additional_drop_params",
    "allowed_openai_params",
    // llama.cpp.
    "cache_prompt",
    // LiteLLM.
    "caching",
    "custom_llm_provider",
    // vLLM.
    "data_parallel_rank",
    // LM Studio: speculative decoding.
    "draft_model",
    // LiteLLM.
    "drop_params",
    // llama.cpp.
    "id_slot",
    // Ollama.
    "keep_alive",
    // LiteLLM.
    "litellm_call_id",
    "litellm_metadata",
    "litellm_session_id",
    "litellm_trace_id",
    // OpenRouter, then Vercel's AI Gateway.
    "provider",
    "providerOptions",
    // vLLM.
    "request_id",
    // llama.cpp.
    "return_progress",
    // SGLang.
    "rid",
    // OpenRouter.
    "route",
    "session_id",
    // llama.cpp.
    "slot_id",
    "timings_per_token",
    // OpenRouter.
    "trace",
    // LM Studio.
    "ttl",
    // OpenRouter.
    "usage",
];

/// Names of the parameters of a request that were ignored, in alphabetical order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredFields(Vec<&'static str>);

impl IgnoredFields {
    /// Removes the harmless parameters from `fields`.
    pub(crate) fn take_from(fields: &mut Fields) -> Self {
        Self(fields.remove_all(HARMLESS))
    }

    /// Adds the header that names the parameters, if there are any.
    pub fn named_in<B>(&self, mut response: Response<B>) -> Response<B> {
        if !self.0.is_empty() {
            let names = HeaderValue::from_str(&self.0.join(", ")).expect("the names are ASCII");
            response.headers_mut().insert(IGNORED_FIELDS, names);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::anthropic::request::MessagesRequest;
    use crate::openai::request::embeddings::EmbeddingsRequest;
    use crate::openai::request::{ChatRequest, TextRequest};

    #[test]
    fn names_are_sorted() {
        assert!(HARMLESS.is_sorted());
    }

    #[test]
    fn header_names_ignored_parameters() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "ttl": 300, "keep_alive": "5m", "provider": {"order": ["a"]}});
        let body = body.to_string();
        let ignored = [
            ChatRequest::parse(body.as_bytes()).unwrap().options.ignored,
            MessagesRequest::parse(body.as_bytes())
                .unwrap()
                .chat
                .options
                .ignored,
        ];
        for ignored in ignored {
            let response = ignored.named_in(Response::new(()));
            assert_eq!(response.headers()[IGNORED_FIELDS], "keep_alive, provider, ttl");
        }
        let text = TextRequest::parse(br#"{"model": "m", "prompt": "a", "cache_prompt": true}"#).unwrap();
        assert_eq!(text.options.ignored.0, ["cache_prompt"]);
        let embeddings = EmbeddingsRequest::parse(br#"{"model": "m", "input": "a", "keep_alive": 0}"#);
        assert_eq!(embeddings.unwrap().ignored.0, ["keep_alive"]);
    }

    #[test]
    fn request_without_harmless_parameters_adds_no_header() {
        let text = TextRequest::parse(br#"{"model": "m", "prompt": "a", "user": "u"}"#).unwrap();
        let response = text.options.ignored.named_in(Response::new(()));
        assert!(response.headers().is_empty());
    }

    /// Ollama's `options` and `num_ctx` change the answer.
    #[test]
    fn parameters_that_change_the_answer_are_rejected() {
        for name in ["options", "num_ctx", "mirostat", "safe_prompt"] {
            let body = json!({"model": "m", "prompt": "a", name: 2}).to_string();
            let err = TextRequest::parse(body.as_bytes()).unwrap_err();
            assert_eq!(err.param.as_deref(), Some(name));
        }
    }
}
