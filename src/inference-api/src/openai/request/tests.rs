use serde_json::json;

use super::embeddings::EmbeddingsRequest;
use super::token_options::Truncation;
use super::tokenize::DetokenizeRequest;
use super::*;
use crate::openai::error::ErrorCode;
use crate::openai::openapi::properties_of;

fn chat(extra: Value) -> Result<ChatRequest, ApiError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    ChatRequest::parse(body.to_string().as_bytes())
}

fn text(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
    TextRequest::parse(json!({"model": "m", "prompt": prompt}).to_string().as_bytes()).map(|r| r.prompts)
}

#[test]
fn parses_all_parameters() {
    let request = chat(json!({
        "max_tokens": 5, "max_completion_tokens": 7, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": true, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9,
        "top_k": -1, "seed": -1, "priority": -2, "cache_salt": "s", "stream": true, "stream_options": {"include_usage": true}, "user": "u",
        "n": 1, "tools": [], "logprobs": true, "top_logprobs": 3, "presence_penalty": 0.0, "frequency_penalty": -2,
        "repetition_penalty": 1.5, "min_p": 0.25, "response_format": {"type": "text"},
        "logit_bias": {"17": 0.5, "5": -100}, "tool_choice": "auto", "truncate_prompt_tokens": 9,
        "return_token_ids": true, "return_tokens_as_token_ids": true
    }))
    .unwrap();
    assert_eq!(
        request.options,
        Options {
            thinking_tokens: None,
            max_tokens: Some(7),
            stopping: Stopping {
                strings: vec!["a".to_owned(), "b".to_owned()],
                token_ids: vec![3],
                ignore_eos: true,
                min_tokens: 2,
            },
            format: None,
            sampling: SamplingOptions {
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: Some(0),
                min_p: Some(0.25),
                presence_penalty: Some(0.0),
                frequency_penalty: Some(-2.0),
                repetition_penalty: Some(1.5),
                logit_bias: [(5, -100.0), (17, 0.5)].into(),
                seed: Some(u64::MAX),
            },
            logprobs: Some(3),
            priority: -2,
            cache_salt: "s".to_owned(),
            stream: true,
            usage: StreamUsage::AtEnd,
            obfuscated: false,
            tokens: TokenOptions {
                truncation: Some(Truncation::Tokens(9)),
                prompt_logprobs: None,
                return_ids: true,
                named_by_id: true,
            },
            ignored: IgnoredFields::default(),
        }
    );
}

#[test]
fn errors_name_the_parameter() {
    let cases = [
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].function",
            ErrorCode::InvalidValue,
        ),
        (json!({"n": 0}), "n", ErrorCode::InvalidValue),
        (json!({"n": 65}), "n", ErrorCode::InvalidValue),
        (json!({"n": 1.5}), "n", ErrorCode::InvalidValue),
        (
            json!({"chat_template_kwargs": [1]}),
            "chat_template_kwargs",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"reasoning_effort": "much"}),
            "reasoning_effort",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"reasoning": {"effort": 3}}),
            "reasoning.effort",
            ErrorCode::InvalidValue,
        ),
        (json!({"logprobs": 3}), "logprobs", ErrorCode::InvalidValue),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"top_logprobs": 2}),
            "top_logprobs",
            ErrorCode::InvalidValue,
        ),
        (json!({"min_p": 1.1}), "min_p", ErrorCode::InvalidValue),
        (
            json!({"repetition_penalty": 0}),
            "repetition_penalty",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"logit_bias": {"hello": 1}}),
            "logit_bias",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"logit_bias": {"5": 100.5}}),
            "logit_bias",
            ErrorCode::InvalidValue,
        ),
        (json!({"logit_bias": [5]}), "logit_bias", ErrorCode::InvalidValue),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"presence_penalty": 2.1}),
            "presence_penalty",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"temprature": 1}),
            "temprature",
            ErrorCode::UnknownParameter,
        ),
        (
            json!({"temperature": 2.5}),
            "temperature",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"temperature": "hot"}),
            "temperature",
            ErrorCode::InvalidValue,
        ),
        (json!({"top_p": -0.1}), "top_p", ErrorCode::InvalidValue),
        (json!({"top_k": -2}), "top_k", ErrorCode::InvalidValue),
        (json!({"max_tokens": 0}), "max_tokens", ErrorCode::InvalidValue),
        (json!({"max_tokens": 1.5}), "max_tokens", ErrorCode::InvalidValue),
        (json!({"stop": 5}), "stop", ErrorCode::InvalidValue),
        (json!({"stop": [""]}), "stop", ErrorCode::InvalidValue),
        (json!({"cache_salt": ""}), "cache_salt", ErrorCode::InvalidValue),
        (json!({"stop": vec!["a"; 65]}), "stop", ErrorCode::InvalidValue),
        (json!({"seed": 1.5}), "seed", ErrorCode::InvalidValue),
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"prompt_logprobs": 21}),
            "prompt_logprobs",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"prompt_logprobs": -1}),
            "prompt_logprobs",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"prompt_logprobs": 0, "stream": true}),
            "prompt_logprobs",
            ErrorCode::InvalidValue,
        ),
        (json!({"suffix": "x"}), "suffix", ErrorCode::UnknownParameter),
        (
            json!({"priority": 1_u64 << 31}),
            "priority",
            ErrorCode::InvalidValue,
        ),
        (json!({"stream": "yes"}), "stream", ErrorCode::InvalidValue),
        (
            json!({"stream_options": {}}),
            "stream_options",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"stream": true, "stream_options": {"usage": true}}),
            "stream_options.usage",
            ErrorCode::UnknownParameter,
        ),
        (json!({"model": null}), "model", ErrorCode::MissingParameter),
        (json!({"messages": []}), "messages", ErrorCode::InvalidValue),
        (json!({"messages": null}), "messages", ErrorCode::MissingParameter),
        (
            json!({"messages": ["hi"]}),
            "messages[0]",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"messages": [{"role": "robot", "content": ""}]}),
            "messages[0].role",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
            ErrorCode::InvalidValue,
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}]}),
            "messages[0].content[0].type",
            ErrorCode::UnsupportedParameter,
        ),
    ];
    for (extra, param, code) in cases {
        let err = chat(extra.clone()).unwrap_err();
        assert_eq!(
            (err.param.as_deref(), err.code, err.status.as_u16()),
            (Some(param), Some(code), 400),
            "{extra}"
        );
    }
}

#[test]
fn merges_template_variables_of_several_parameters() {
    let variables = |extra: Value| {
        serde_json::to_value(
            chat(extra)
                .unwrap()
                .template_variables
                .iter()
                .collect::<std::collections::BTreeMap<_, _>>(),
        )
        .unwrap()
    };
    assert_eq!(variables(json!({})), json!({}));
    assert_eq!(
        variables(json!({"chat_template_kwargs": {"b": 1, "a": [null]}, "enable_thinking": true})),
        json!({"b": 1, "a": [null], "enable_thinking": true})
    );
    assert_eq!(
        variables(json!({"reasoning": {"effort": "high"}})),
        json!({"reasoning_effort": "high"})
    );
    assert_eq!(
        variables(json!({"reasoning_effort": "none"})),
        json!({"reasoning_effort": "none", "enable_thinking": false})
    );
    let conflicting = json!({"chat_template_kwargs": {"enable_thinking": true}, "enable_thinking": false});
    assert_eq!(variables(conflicting), json!({"enable_thinking": true}));
}

#[test]
fn completions_accept_logprobs_as_number() {
    let logprobs = |value: Value| {
        let body = json!({"model": "m", "prompt": "a", "logprobs": value}).to_string();
        TextRequest::parse(body.as_bytes()).map(|request| request.options.logprobs)
    };
    assert_eq!(logprobs(json!(0)).unwrap(), Some(0));
    assert_eq!(logprobs(json!(5)).unwrap(), Some(5));
    assert_eq!(logprobs(json!(null)).unwrap(), None);
    assert_eq!(logprobs(json!(false)).unwrap(), None);
    for wrong in [json!(6), json!(-1), json!(true), json!("1")] {
        let err = logprobs(wrong.clone()).unwrap_err();
        assert_eq!(
            (err.status.as_u16(), err.param.as_deref()),
            (400, Some("logprobs")),
            "{wrong}"
        );
    }
}

#[test]
fn openapi_document_lists_all_parameters() {
    let read = |lists: &[&[&str]]| {
        let shared = [
            SUPPORTED,
            Options::NAMES,
            Stopping::NAMES,
            SamplingOptions::NAMES,
            IGNORED,
        ];
        let names = shared.iter().chain(lists).flat_map(|names| names.iter());
        names
            .map(|name| (*name).to_owned())
            .collect::<std::collections::BTreeSet<String>>()
    };
    let own = ["messages", "tools", "chat_template_kwargs"];
    let formats = response_format::NAMES;
    let tokens = TokenOptions::NAMES;
    let chat = read(&[
        ChatRequest::NAMES,
        tokens,
        template::NAMES,
        tools::NAMES,
        formats,
        &own,
    ]);
    assert_eq!(properties_of("ChatCompletionRequest"), chat);
    assert_eq!(
        properties_of("CompletionRequest"),
        read(&[TextRequest::NAMES, tokens, formats])
    );
}

#[test]
fn other_endpoints_reject_chat_parameters() {
    for (name, value) in [
        ("messages", json!([])),
        ("tools", json!([])),
        ("response_format", json!({})),
    ] {
        let mut body = json!({"model": "m", "input": "a", "tokens": [1]});
        body[name] = value;
        let body = body.to_string();
        let errors = [
            EmbeddingsRequest::parse(body.as_bytes()).unwrap_err(),
            DetokenizeRequest::parse(body.as_bytes()).unwrap_err(),
        ];
        for err in errors {
            assert_eq!(err.code, Some(ErrorCode::UnknownParameter), "{err:?}");
        }
    }
}

#[test]
fn suffix_requires_texts_without_echo() {
    let suffix = |extra: Value| {
        let mut body = json!({"model": "m", "prompt": "a", "suffix": "z"});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        TextRequest::parse(body.to_string().as_bytes()).map(|request| request.suffix)
    };
    assert_eq!(suffix(json!({})).unwrap().as_deref(), Some("z"));
    assert_eq!(suffix(json!({"suffix": ""})).unwrap(), None);
    for wrong in [
        json!({"prompt": [1, 2]}),
        json!({"echo": true}),
        json!({"truncate_prompt_tokens": 5}),
        json!({"suffix": 1}),
    ] {
        let err = suffix(wrong.clone()).unwrap_err();
        assert_eq!(err.param.as_deref(), Some("suffix"), "{wrong}");
    }
}

#[test]
fn embeddings_require_a_string_as_user() {
    let body = json!({"model": "m", "input": "a", "user": {}}).to_string();
    let err = EmbeddingsRequest::parse(body.as_bytes()).unwrap_err();
    assert_eq!(err.param.as_deref(), Some("user"));
}

#[test]
fn prompts_times_choices_are_limited() {
    let parse = |prompts: usize, n: usize| {
        let body = json!({"model": "m", "prompt": vec!["a"; prompts], "n": n});
        TextRequest::parse(body.to_string().as_bytes()).map(|request| request.n)
    };
    assert_eq!(parse(16, 4).unwrap(), 4);
    assert_eq!(parse(17, 4).unwrap_err().param.as_deref(), Some("n"));
    assert_eq!(parse(65, 1).unwrap_err().param.as_deref(), Some("prompt"));
}

#[test]
fn empty_stream_options_are_accepted() {
    let request = chat(json!({"stream": true, "stream_options": {}})).unwrap();
    assert!(request.options.stream && request.options.usage == StreamUsage::Never);
}

#[test]
fn parses_stream_options() {
    let options = |options: Value| {
        let request = chat(json!({"stream": true, "stream_options": options})).unwrap();
        (request.options.usage, request.options.obfuscated)
    };
    let at_end = json!({"include_usage": true, "continuous_usage_stats": false});
    assert_eq!(options(at_end), (StreamUsage::AtEnd, false));
    let throughout =
        json!({"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": true});
    assert_eq!(options(throughout), (StreamUsage::Throughout, true));
    // As in vLLM, continuous usage requires `include_usage`.
    let never = json!({"continuous_usage_stats": true});
    assert_eq!(options(never), (StreamUsage::Never, false));
    let wrong = chat(json!({"stream": true, "stream_options": {"include_obfuscation": 1}})).unwrap_err();
    assert_eq!(wrong.param.as_deref(), Some("stream_options.include_obfuscation"));
}

#[test]
fn accepts_only_default_verbosity() {
    assert!(chat(json!({"verbosity": "medium"})).is_ok());
    let err = chat(json!({"verbosity": "low"})).unwrap_err();
    assert_eq!(err.code, Some(ErrorCode::UnsupportedParameter));
}

#[test]
fn parses_all_prompt_forms() {
    let words = |texts: &[&str]| {
        texts
            .iter()
            .map(|t| Prompt::Text((*t).to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(text(json!("a")).unwrap(), words(&["a"]));
    assert_eq!(text(json!(["a"])).unwrap(), words(&["a"]));
    assert_eq!(text(json!(["a", "b"])).unwrap(), words(&["a", "b"]));
    assert_eq!(text(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
    assert_eq!(
        text(json!([[1], [2]])).unwrap(),
        [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])]
    );
    for wrong in [
        json!([]),
        json!(5),
        json!([1, "a"]),
        json!([-1]),
        json!([{}]),
        json!([1.5]),
    ] {
        assert_eq!(
            text(wrong.clone()).unwrap_err().param.as_deref(),
            Some("prompt"),
            "{wrong}"
        );
    }
}

#[test]
fn rejects_body_that_is_not_an_object() {
    for body in ["", "{", "[]", "\"a\"", "{\"model\": \"\u{0}\"}"] {
        assert_eq!(
            ChatRequest::parse(body.as_bytes()).unwrap_err().code,
            Some(ErrorCode::InvalidJson),
            "{body}"
        );
    }
    assert_eq!(
        ChatRequest::parse(b"\xff").unwrap_err().code,
        Some(ErrorCode::InvalidJson)
    );
}
