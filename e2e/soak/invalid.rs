//! Invalid requests, and the expected status and error of each.

pub(super) struct InvalidRequest {
    pub(super) path: &'static str,
    /// Request body. `MODEL` is replaced by the model's name.
    pub(super) body: &'static str,
    pub(super) status: u16,
    /// Expected `param` of the error.
    pub(super) param: Option<&'static str>,
}

const fn chat(body: &'static str, status: u16, param: Option<&'static str>) -> InvalidRequest {
    InvalidRequest {
        path: "/v1/chat/completions",
        body,
        status,
        param,
    }
}

const fn text(body: &'static str, param: &'static str) -> InvalidRequest {
    InvalidRequest {
        path: "/v1/completions",
        body,
        status: 400,
        param: Some(param),
    }
}

pub(super) const INVALID_REQUESTS: [InvalidRequest; 24] = [
    chat("", 400, None),
    chat("{", 400, None),
    chat("[1, 2]", 400, None),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "\ud800"}]}"#,
        400,
        None,
    ),
    chat(r#"{"model": "MODEL"}"#, 400, Some("messages")),
    chat(
        r#"{"model": "nobody", "messages": [{"role": "user", "content": "a"}]}"#,
        404,
        Some("model"),
    ),
    chat(r#"{"model": "MODEL", "messages": []}"#, 400, Some("messages")),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": 5}]}"#,
        400,
        Some("messages[0].content"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "nobody", "content": "a"}]}"#,
        400,
        Some("messages[0].role"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "stop": 5}"#,
        400,
        Some("stop"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "max_tokens": -1}"#,
        400,
        Some("max_tokens"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "temperature": "hot"}"#,
        400,
        Some("temperature"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "nonsense": true}"#,
        400,
        Some("nonsense"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "xml"}}"#,
        400,
        Some("response_format.type"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}"#,
        400,
        Some("tools[0].function"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "tool", "content": "a"}]}"#,
        400,
        Some("messages[0].tool_call_id"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": "a"}]}"#,
        400,
        Some("messages[1].tool_call_id"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "assistant"}]}"#,
        400,
        Some("messages[0].content"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}"#,
        400,
        Some("messages[0].content[0].type"),
    ),
    chat(
        r#"{"model": "MODEL", "messages": [{"role": "user", "content": []}]}"#,
        400,
        Some("messages[0].content"),
    ),
    text(r#"{"model": "MODEL"}"#, "prompt"),
    text(r#"{"model": "MODEL", "prompt": [[-1]]}"#, "prompt"),
    text(r#"{"model": "MODEL", "prompt": "a", "n": 0}"#, "n"),
    text(r#"{"model": "MODEL", "prompt": "a", "logprobs": 6}"#, "logprobs"),
];
