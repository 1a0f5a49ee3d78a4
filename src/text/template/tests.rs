use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

fn now() -> Zoned {
    "2026-11-20T09:05:00[UTC]".parse().unwrap()
}

fn render(source: &str, messages: &Value) -> Result<String, RenderError> {
    let now = now();
    ChatTemplate::compile("chat_template.jinja", source)
        .unwrap()
        .render(RenderInput {
            messages: messages.as_array().unwrap(),
            add_generation_prompt: true,
            bos_token: Some("<s>"),
            eos_token: None,
            now: &now,
        })
}

#[test]
fn chats_of_the_reference() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read =
        |path: &str| -> Value { serde_json::from_slice(&std::fs::read(root.join(path)).unwrap()).unwrap() };
    let fixture = read("e2e/fixtures/chat.json");
    let config = read("examples/models/guide/tokenizer_config.json");
    let source = source_in("tokenizer_config.json", &config).unwrap().unwrap();
    let template = ChatTemplate::compile("tokenizer_config.json", &source).unwrap();
    let now = now();
    for case in fixture["chat"].as_array().unwrap() {
        let text = template
            .render(RenderInput {
                messages: case["messages"].as_array().unwrap(),
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
                bos_token: Some("<|endoftext|>"),
                eos_token: Some("<|im_end|>"),
                now: &now,
            })
            .unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
    }
}

/// What templates in use rely on. The expected texts follow Jinja's documented rules; unlike those of `chat.json` above
/// they were not recorded from transformers.
#[test]
fn what_templates_use() {
    let messages =
        json!([{"role": "user", "content": "a <b> 'c' \"d\" é"}, {"role": "assistant", "content": " x "}]);
    let cases = [
        ("{{ bos_token }}{{ eos_token }}|", "<s>|"),
        ("{{ messages[0].content | tojson }}", r#""a <b> 'c' \"d\" é""#),
        (
            "{{ {'a': [1, 2], 'b': none} | tojson }}",
            r#"{"a": [1, 2], "b": null}"#,
        ),
        (
            "{{ {'a': [1]} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1\n  ]\n}",
        ),
        (
            "{{ messages[1].content.strip() }}|{{ messages[1]['content'] | trim }}",
            "x|x",
        ),
        (
            "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        (
            "{% for m in messages %}{{ loop.index0 }}{% break %}{% endfor %}",
            "0",
        ),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('y') }}", "[y]"),
        ("{{ messages[0].get('name', 'none') }}", "none"),
        ("{{ messages[::-1][0].role }}", "assistant"),
        ("{{ true }} {{ none }}", "True None"),
        ("{{ strftime_now('%d %b %Y') }}", "20 Nov 2026"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("x\n  {% generation %}\ny\n  {% endgeneration %}\nz", "x\ny\nz"),
        ("{{ 'a' ~ 1 }}{{ 'abc'[1:] }}{{ 'a,b'.split(',')[1] }}", "a1bcb"),
        (
            "{{ messages[0] is mapping }}{{ tools is none }}{{ x is defined }}",
            "TrueTrueFalse",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &messages).unwrap(), expected, "{source}");
    }
}

#[test]
fn a_template_may_refuse() {
    let err = render("{{ raise_exception('roles must alternate') }}", &json!([])).unwrap_err();
    assert_eq!(err.to_string(), "roles must alternate");
}

#[test]
fn a_template_that_never_ends_is_cut_off() {
    let source = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let err = render(source, &json!([])).unwrap_err();
    assert!(err.to_string().contains("fuel"), "{err}");
}

#[test]
fn a_broken_template_names_its_file() {
    let err = ChatTemplate::compile("chat_template.jinja", "{% if %}").unwrap_err();
    assert!(
        err.to_string()
            .starts_with("chat_template.jinja: chat template: "),
        "{err}"
    );
}

#[test]
fn templates_by_name() {
    let several = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    assert_eq!(source_in("f", &several).unwrap().as_deref(), Some("d"));
    assert_eq!(source_in("f", &json!({})).unwrap(), None);
    assert!(source_in("f", &json!({"chat_template": 5})).is_err());
}
