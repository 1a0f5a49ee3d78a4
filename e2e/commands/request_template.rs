//! Chat templates of requests: off by default, and bounded.

use serde_json::{Value, json};

use crate::harness::{Http, HttpResponse, Process, Scratch, eventually, free_port, repository};

/// A template of ChatML.
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Templates that need too much, and words of the error. A slow machine may reach the limit of CPU time
/// before that of memory.
const HOSTILE: &[(&str, &str)] = &[
    // Time: nested loops.
    (
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "fuel",
    ),
    // Length: a repeated output.
    (
        "{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
        "longer than",
    ),
    // Memory: repetition of a text, and doubling.
    (
        "{% set s = 'x' * 99999999 %}{{ (s ~ s ~ s)|length }}",
        "too much memory",
    ),
    (
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ \
         ns.s|length }}",
        "too much",
    ),
    (
        "{% set a = 'x' * 60000 %}{{ a|replace('x', a)|length }}",
        "too much",
    ),
    (
        "{% set ns = namespace(l=[0]) %}{% for i in range(40) %}{% set ns.l = (ns.l + ns.l)|list %}{% endfor %}{{ \
         ns.l|length }}",
        "too much",
    ),
    ("{{ ('x' * 99999999)|tojson|length }}", "too much"),
    // A range that the engine refuses.
    ("{{ range(1000000000)|list|length }}", "chat_template"),
    // Recursion.
    (
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "chat_template",
    ),
];

fn worker(args: &[&str]) -> (Process, Http, Scratch) {
    let scratch = Scratch::new();
    let port = free_port();
    let own = [
        "worker".to_owned(),
        format!("--model={}", repository("examples/models/guide").display()),
        format!("--listen=127.0.0.1:{port}"),
        "--name=guide".to_owned(),
        "--context-tokens=512".to_owned(),
    ];
    let args = own.into_iter().chain(args.iter().map(|arg| (*arg).to_owned()));
    let worker = Process::start(args, &scratch.join("worker.log"));
    let http = Http::new(format!("http://127.0.0.1:{port}"));
    eventually("/ready", || match http.get("/ready")? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    (worker, http, scratch)
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": "guide", "messages": [{"role": "user", "content": "What is rooflet?"}]});
    body.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    body
}

fn post(http: &Http, path: &str, more: Value) -> HttpResponse {
    http.post(path, &body(more)).expect("a response")
}

fn tokens(http: &Http, more: Value) -> usize {
    let answer = post(http, "/tokenize", more);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["tokens"].as_array().expect("tokens").len()
}

#[test]
fn template_of_a_request_is_rejected_unless_the_worker_allows_it() {
    let (mut worker, http, _scratch) = worker(&[]);
    for path in ["/v1/chat/completions", "/tokenize"] {
        let answer = post(&http, path, json!({"chat_template": CHATML}));
        assert_eq!(answer.status, 400, "{}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], "chat_template", "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("allowRequestChatTemplate"), "{message}");
        let unset = post(&http, path, json!({"chat_template": null, "max_tokens": 1}));
        assert!(path == "/tokenize" || unset.status == 200, "{}", unset.text);
    }
    worker.terminate();
}

#[test]
fn template_of_a_request_is_used_and_bounded() {
    let (mut worker, http, _scratch) = worker(&["--allow-request-chat-template"]);
    let own = tokens(&http, json!({}));
    let short = tokens(&http, json!({"chat_template": "{{ messages[0].content }}"}));
    assert!(short < own, "{short} {own}");
    let chatml = json!({"chat_template": CHATML, "max_tokens": 4});
    let answer = post(&http, "/v1/chat/completions", chatml);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let expect = tokens(&http, json!({"chat_template": CHATML}));
    assert_eq!(answer.json()["usage"]["prompt_tokens"], expect, "{}", answer.text);
    let raised = post(
        &http,
        "/tokenize",
        json!({"chat_template": "{{ raise_exception('no system message') }}"}),
    );
    assert_eq!(raised.status, 400, "{}", raised.text);
    assert!(raised.text.contains("no system message"), "{}", raised.text);
    let large = json!({"chat_template": "x".repeat((64 << 10) + 1)});
    let large = post(&http, "/v1/chat/completions", large);
    assert_eq!(large.status, 400, "{}", large.text);
    assert!(large.text.contains("65536 bytes"), "{}", large.text);

    for (template, word) in HOSTILE {
        let answer = post(&http, "/tokenize", json!({"chat_template": template}));
        assert_eq!(answer.status, 400, "{template}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], "chat_template", "{template}: {error}");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(word)),
            "{template}: {error}"
        );
    }
    // The worker serves other requests as before.
    assert_eq!(tokens(&http, json!({})), own);
    assert!(worker.terminate().success(), "{}", worker.log());
}
