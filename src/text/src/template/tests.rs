use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn now() -> Zoned {
    "2026-11-20T09:05:00[UTC]".parse().unwrap()
}

fn special_tokens(bos: Option<&str>, eos: Option<&str>) -> BTreeMap<String, String> {
    let named = [("bos_token", bos), ("eos_token", eos)];
    let present = named
        .into_iter()
        .filter_map(|(name, token)| Some((name.to_owned(), token?.to_owned())));
    present.collect()
}

fn in_order(messages: &Value) -> Vec<Json> {
    serde_json::from_value(messages.clone()).unwrap()
}

fn render(source: &str, messages: &Value) -> Result<String, RenderError> {
    let now = now();
    ChatTemplate::compile("chat_template.jinja", source)
        .unwrap()
        .render(RenderInput {
            messages: &in_order(messages),
            variables: &Members::default(),
            tools: None,
            add_generation_prompt: true,
            special_tokens: &special_tokens(Some("<s>"), None),
            now: &now,
        })
}

#[test]
fn chat_prompts_match_reference() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let read =
        |path: &str| -> Value { serde_json::from_slice(&std::fs::read(root.join(path)).unwrap()).unwrap() };
    let fixture = read("e2e/fixtures/chat.json");
    let config = read("examples/models/guide/tokenizer_config.json");
    let sources = sources_in("tokenizer_config.json", &config).unwrap().unwrap();
    let template = ChatTemplate::compile("tokenizer_config.json", &sources.default).unwrap();
    let now = now();
    for case in fixture["chat"].as_array().unwrap() {
        let text = template
            .render(RenderInput {
                messages: &in_order(&case["messages"]),
                variables: &Members::default(),
                tools: None,
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
                special_tokens: &special_tokens(Some("<|endoftext|>"), Some("<|im_end|>")),
                now: &now,
            })
            .unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
    }
}

/// Fixtures recorded from transformers.
#[derive(serde::Deserialize)]
struct Recorded {
    snippet_messages: Vec<Json>,
    snippets: Vec<Snippet>,
    published: Vec<Published>,
}

#[derive(serde::Deserialize)]
struct Snippet {
    source: String,
    text: String,
}

/// Published template.
#[derive(serde::Deserialize)]
struct Published {
    template: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    messages: Vec<Json>,
    tools: Option<Vec<Json>>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("e2e/fixtures")
}

fn recorded() -> Recorded {
    serde_json::from_slice(&std::fs::read(fixtures().join("templates.json")).unwrap()).unwrap()
}

#[test]
fn published_templates_match_reference() {
    let now = now();
    for model in recorded().published {
        let file = fixtures().join(format!("templates/{}.jinja", model.template));
        let source = std::fs::read_to_string(file).unwrap();
        let template = ChatTemplate::compile("chat_template.jinja", &source).unwrap();
        for case in model.cases {
            let rendered = template.render(RenderInput {
                messages: &case.messages,
                variables: &Members::default(),
                tools: case.tools.as_deref(),
                add_generation_prompt: case.add_generation_prompt,
                special_tokens: &special_tokens(model.bos_token.as_deref(), model.eos_token.as_deref()),
                now: &now,
            });
            let (text, error) = match rendered {
                Ok(text) => (Some(text), None),
                Err(err) => (None, Some(err.to_string())),
            };
            assert_eq!(
                (text, error),
                (case.text, case.error),
                "{}: {}",
                model.template,
                case.name
            );
        }
    }
}

/// The template receives the arguments of calls as objects, although clients send strings.
#[test]
fn renders_arguments_as_strings_if_the_template_requires_it() {
    let now = now();
    let mut calls = 0;
    for model in recorded().published {
        if !model.template.starts_with("deepseek") {
            continue;
        }
        let file = fixtures().join(format!("templates/{}.jinja", model.template));
        let template =
            ChatTemplate::compile("chat_template.jinja", &std::fs::read_to_string(file).unwrap()).unwrap();
        for mut case in model.cases {
            for message in &mut case.messages {
                let Some(Json::Array(made)) = message.get_mut("tool_calls") else {
                    continue;
                };
                for call in made {
                    let arguments = call.get_mut("function").unwrap().get_mut("arguments").unwrap();
                    *arguments = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
                    calls += 1;
                }
            }
            let text = template.render(RenderInput {
                messages: &case.messages,
                variables: &Members::default(),
                tools: case.tools.as_deref(),
                add_generation_prompt: case.add_generation_prompt,
                special_tokens: &special_tokens(model.bos_token.as_deref(), model.eos_token.as_deref()),
                now: &now,
            });
            assert_eq!(text.ok(), case.text, "{}: {}", model.template, case.name);
        }
    }
    assert!(calls > 10);
}

/// The template of gpt-oss rejects reasoning and content next to a call.
#[test]
fn omits_reasoning_that_the_template_rejects() {
    let file = fixtures().join("templates/gptoss.jinja");
    let template =
        ChatTemplate::compile("chat_template.jinja", &std::fs::read_to_string(file).unwrap()).unwrap();
    let messages: Vec<Json> = serde_json::from_str(
        r#"[{"role": "user", "content": "Now?"},
            {"role": "assistant", "content": "One moment.", "reasoning_content": "I must look.",
             "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": {}}}]},
            {"role": "tool", "tool_call_id": "1", "content": "09:05"}]"#,
    )
    .unwrap();
    let now = now();
    let text = template.render(RenderInput {
        messages: &messages,
        variables: &Members::default(),
        tools: None,
        add_generation_prompt: true,
        special_tokens: &special_tokens(None, None),
        now: &now,
    });
    let text = text.unwrap();
    assert!(
        text.contains("One moment.") && !text.contains("I must look."),
        "{text}"
    );
}

#[test]
fn template_snippets_match_reference() {
    let recorded = recorded();
    let now = now();
    for Snippet { source, text } in recorded.snippets {
        let template = ChatTemplate::compile("chat_template.jinja", &source).unwrap();
        let rendered = template.render(RenderInput {
            messages: &recorded.snippet_messages,
            variables: &Members::default(),
            tools: None,
            add_generation_prompt: true,
            special_tokens: &special_tokens(Some("<s>"), None),
            now: &now,
        });
        assert_eq!(rendered.unwrap(), text, "{source}");
    }
}

#[test]
fn rejects_what_python_rejects() {
    for (source, problem) in [
        ("{{ 'a'.index('b') }}", "substring not found"),
        ("{{ ['a'].index('b') }}", "the item is not in the list"),
        ("{{ 'a'.rsplit('') }}", "empty separator"),
        (
            "{{ [] | tojson(separators=[',']) }}",
            "tojson: separators must be two strings",
        ),
    ] {
        let err = render(source, &json!([])).unwrap_err();
        assert_eq!(err.to_string(), problem, "{source}");
    }
}

#[test]
fn raise_exception_becomes_the_error() {
    let err = render("{{ raise_exception('roles must alternate') }}", &json!([])).unwrap_err();
    assert_eq!(err.to_string(), "roles must alternate");
}

#[test]
fn limits_instructions_of_a_template() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let err = render(source, &json!([])).unwrap_err();
    assert!(err.to_string().contains("fuel"), "{err}");
}

#[test]
fn compile_error_names_the_file() {
    let err = ChatTemplate::compile("chat_template.jinja", "{% if %}").unwrap_err();
    assert!(
        err.to_string()
            .starts_with("chat_template.jinja: chat template: "),
        "{err}"
    );
}

#[test]
fn finds_templates_by_name() {
    let several = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    let sources = |default: &str, tool_use: Option<&str>| {
        Some(Sources {
            default: default.to_owned(),
            tool_use: tool_use.map(str::to_owned),
        })
    };
    assert_eq!(sources_in("f", &several).unwrap(), sources("d", Some("t")));
    assert_eq!(
        sources_in("f", &json!({"chat_template": "d"})).unwrap(),
        sources("d", None)
    );
    assert_eq!(sources_in("f", &json!({})).unwrap(), None);
    assert!(sources_in("f", &json!({"chat_template": 5})).is_err());
    assert!(
        sources_in(
            "f",
            &json!({"chat_template": [{"name": "tool_use", "template": "t"}]})
        )
        .is_err()
    );
}

#[test]
fn renders_variables_of_the_request() {
    let template = ChatTemplate::compile(
        "x",
        "{{ effort }}{% if enable_thinking is false %}, quick{% endif %}",
    )
    .unwrap();
    let variables: Json = serde_json::from_str(r#"{"effort": "low", "enable_thinking": false}"#).unwrap();
    let rendered = template
        .render(RenderInput {
            messages: &[],
            variables: variables.as_object().unwrap(),
            tools: None,
            add_generation_prompt: true,
            special_tokens: &special_tokens(None, None),
            now: &Zoned::default(),
        })
        .unwrap();
    assert_eq!(rendered, "low, quick");
}

/// Templates are downloaded: an invalid one must not crash the worker.
#[test]
fn rejects_template_with_unclosed_tag() {
    for source in ["{%}", "{% generation %}{%}", "{%-}", "a {%"] {
        assert!(
            ChatTemplate::compile("chat_template.jinja", source).is_err(),
            "{source}"
        );
    }
}

/// The template of gpt-oss requires a description.
#[test]
fn adds_empty_description_to_tools_without_one() {
    let source =
        "{% for tool in tools %}{{ '// ' + tool.function.description + tool.function.name }}{% endfor %}";
    let template = ChatTemplate::compile("chat_template.jinja", source).unwrap();
    let tools = in_order(&json!([
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "description": null}},
        {"type": "function", "function": {"name": "h", "description": "d"}}
    ]));
    let now = now();
    let text = template.render(RenderInput {
        messages: &[],
        variables: &Members::default(),
        tools: Some(&tools),
        add_generation_prompt: true,
        special_tokens: &special_tokens(None, None),
        now: &now,
    });
    assert_eq!(text.unwrap(), "// f// g// dh");
}
