//! The OpenAI API as a client sees it: through the gateway, and from a worker run by hand.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Barrier;

use serde_json::json;

use crate::harness::{
    Answer, Fleet, Http, Options, Process, Scratch, copy_guide, eventually, free_port, repository,
};

fn chat(model: &str, extra: serde_json::Value) -> serde_json::Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "What is rooflet?"}], "temperature": 0, "max_tokens": 24});
    body.as_object_mut()
        .expect("an object")
        .extend(extra.as_object().expect("an object").clone());
    body
}

#[test]
fn the_gateway_passes_everything_through() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    conforms(&fleet.gateway, "guide");
    refuses_a_rush_in_part(&fleet.gateway, "guide");
    let unknown = fleet.gateway.try_chat("nobody", "Hello?").expect("an answer");
    assert_eq!(
        (unknown.status, unknown.json()["error"]["code"].as_str()),
        (404, Some("model_not_found")),
        "{}",
        unknown.text
    );
    kubectl.run("scale mdep/guide --replicas=0").ok();
    eventually("503 while no replica is there", || {
        match fleet.gateway.try_chat("guide", "Hello?")? {
            answer
                if answer.status == 503
                    && answer.json()["error"]["message"].is_string()
                    && answer.headers.contains_key("retry-after") =>
            {
                Ok(())
            }
            answer => Err(format!("{answer:?}")),
        }
    });
}

/// Far more tokens than one core reads in ten seconds.
const LONG_PROMPT_TOKENS: usize = 32_000;

#[test]
fn a_long_prefill_is_no_silence() {
    let models = Scratch::new();
    copy_guide(&models.join("guide"));
    let config = models.join("guide/config.json");
    let text = std::fs::read_to_string(&config).expect("readable");
    let longer = text.replace(
        "\"max_position_embeddings\": 4096",
        "\"max_position_embeddings\": 40960",
    );
    assert_ne!(text, longer);
    std::fs::write(&config, longer).expect("writable");
    let fleet = Fleet::with(Options {
        model_dir: Some(models.path().to_owned()),
        ..Options::default()
    });
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl
        .apply(
            "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: guide}\n\
             spec: {model: {source: 'local://guide'}, serving: {contextTokens: 40960}}\n",
        )
        .ok();
    fleet.wait_for_ready(&kubectl, "guide");

    let prompt = vec![100; LONG_PROMPT_TOKENS];
    let body = json!({"model": "guide", "prompt": prompt, "max_tokens": 1, "stream": true}).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", fleet.gateway_port)).expect("it listens");
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("text"));
    assert_eq!(
        lines.next().as_deref(),
        Some("HTTP/1.1 200 OK"),
        "the head comes at once"
    );
    let first = lines.find(|line| line.starts_with(':') || line.starts_with("data: "));
    match first.as_deref() {
        Some(": keepalive") => {}
        Some(line) if line.starts_with("data: {") => {
            eprintln!("NOT RUN: this machine read {LONG_PROMPT_TOKENS} tokens in less than ten seconds");
        }
        other => panic!("{other:?}"),
    }
    // The client goes, and the worker does not read on for nobody.
    drop(lines);
    assert!(!fleet.gateway.chat("guide", "What is rooflet?").is_empty());
}

#[test]
fn a_worker_by_hand_is_a_plain_server() {
    let scratch = Scratch::new();
    let port = free_port();
    let mut worker = Process::start(
        [
            "worker".to_owned(),
            format!("--model={}", repository("examples/models/guide").display()),
            format!("--listen=127.0.0.1:{port}"),
            "--name=mine".to_owned(),
        ],
        &scratch.join("worker.log"),
    );
    let http = Http::new(format!("http://127.0.0.1:{port}"));
    eventually("/ready", || match http.get("/ready")? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    conforms(&http, "mine");
    refuses_a_rush_in_part(&http, "mine");
    let metrics = http.get("/metrics").expect("an answer").text;
    assert!(
        metrics.contains("rooflet_") && !metrics.contains("What is rooflet"),
        "{metrics}"
    );
    assert!(worker.terminate().success(), "{}", worker.log());
}

/// What every OpenAI client relies on.
fn conforms(http: &Http, model: &str) {
    // Whole and streamed answers are the same text; usage adds up.
    let whole = http
        .post("/v1/chat/completions", &chat(model, json!({})))
        .expect("an answer");
    assert_eq!(whole.status, 200, "{}", whole.text);
    let body = whole.json();
    let text = body["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    let usage = &body["usage"];
    assert_eq!(
        usage["prompt_tokens"].as_u64().expect("a number")
            + usage["completion_tokens"].as_u64().expect("a number"),
        usage["total_tokens"].as_u64().expect("a number")
    );
    let streamed = http
        .post(
            "/v1/chat/completions",
            &chat(
                model,
                json!({"stream": true, "stream_options": {"include_usage": true}}),
            ),
        )
        .expect("an answer");
    assert_eq!(streamed.streamed_text(), text);
    let events = streamed.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let last: serde_json::Value = serde_json::from_str(&events[events.len() - 2]).expect("JSON");
    assert_eq!(
        (
            last["choices"].as_array().map(Vec::len),
            &last["usage"]["completion_tokens"]
        ),
        (Some(0), &usage["completion_tokens"])
    );
    let finishes: Vec<String> = events[..events.len() - 1]
        .iter()
        .filter_map(|event| serde_json::from_str::<serde_json::Value>(event).ok())
        .filter_map(|event| event["choices"][0]["finish_reason"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(finishes.len(), 1, "one terminal chunk: {events:?}");

    // max_tokens is exact.
    for n in [1, 2, 7] {
        let answer = http
            .post("/v1/chat/completions", &chat(model, json!({"max_tokens": n})))
            .expect("an answer")
            .json();
        assert_eq!(
            (
                answer["usage"]["completion_tokens"].as_u64(),
                answer["choices"][0]["finish_reason"].as_str()
            ),
            (Some(n), Some("length"))
        );
    }
    // A stop string is not part of the answer and ends it.
    let stop: String = text.chars().skip(4).take(5).collect();
    let stopped = http
        .post("/v1/chat/completions", &chat(model, json!({"stop": stop})))
        .expect("an answer")
        .json();
    assert_eq!(
        stopped["choices"][0]["message"]["content"].as_str(),
        text.split(&stop).next()
    );
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    // A seed repeats itself.
    let sample = |seed: u64| {
        let body = chat(model, json!({"temperature": 1.0, "seed": seed}));
        http.post("/v1/chat/completions", &body)
            .expect("an answer")
            .json()["choices"][0]["message"]["content"]
            .clone()
    };
    assert_eq!(sample(7), sample(7));

    // Completions take text, lists and token ids.
    for prompt in [json!("rooflet is"), json!(["rooflet is"]), json!([1, 2, 3])] {
        let answer = http
            .post(
                "/v1/completions",
                &json!({"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}),
            )
            .expect("an answer");
        // What follows three arbitrary ids may well be the end of the text.
        let tokens = answer.json()["usage"]["completion_tokens"].as_u64();
        assert!(
            answer.status == 200 && tokens.is_some_and(|n| (1..=4).contains(&n)),
            "{}",
            answer.text
        );
        if prompt == json!([1, 2, 3]) {
            assert_eq!(answer.json()["usage"]["prompt_tokens"], 3);
        }
    }

    probabilities_conform(http, model, &text);
    tokens_and_vectors_conform(http, model);
    structure_conforms(http, model);

    // Bad requests are told as such and cost nothing.
    let long = "word ".repeat(20_000);
    let bad = [
        (
            http.post(
                "/v1/chat/completions",
                &chat(model, json!({"messages": [{"role": "user", "content": long}]})),
            ),
            "context_length_exceeded",
        ),
        (http.post_text("/v1/chat/completions", "{\"model\": "), "JSON"),
        (
            http.post(
                "/v1/chat/completions",
                &chat(model, json!({"temperature": "hot"})),
            ),
            "temperature",
        ),
        (
            http.post("/v1/chat/completions", &chat(model, json!({"max_tokens": 0}))),
            "max_tokens",
        ),
        (
            http.post("/v1/chat/completions", &chat(model, json!({"n": 1000}))),
            "n",
        ),
        (
            http.post("/v1/chat/completions", &json!({"model": model})),
            "messages",
        ),
    ];
    for (answer, word) in bad {
        let answer = answer.expect("an answer");
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{word}: {}", answer.text);
        assert!(
            error["message"].is_string()
                && error["type"] == "invalid_request_error"
                && answer.text.contains(word),
            "{word}: {}",
            answer.text
        );
    }
    assert_eq!(http.get("/v1/nothing").expect("an answer").status, 404);
    let nothing = http
        .post("/v1/nothing", &json!({"model": model}))
        .expect("an answer");
    assert_eq!(
        (nothing.status, nothing.json()["error"]["code"].as_str()),
        (404, Some("unknown_url"))
    );
    let read = http.get("/v1/chat/completions").expect("an answer");
    assert_eq!(
        (read.status, read.headers["allow"].to_str().ok()),
        (405, Some("POST"))
    );
    let huge = http.post_text("/v1/chat/completions", &"x".repeat(64 << 20));
    assert_eq!(huge.expect("no reset").status, 413);
    let after = http
        .post("/v1/chat/completions", &chat(model, json!({})))
        .expect("an answer");
    assert_eq!(
        after.json()["choices"][0]["message"]["content"].as_str(),
        Some(text.as_str()),
        "it still answers as before"
    );
}

/// Requests of a client that sends all it has at once.
const RUSH: usize = 64;
/// What a replica of four rows takes: those, and eight that wait for each.
const TAKEN_OF_A_RUSH: usize = 4 + 4 * 8;

/// More than is worked off in bearable time: those for whom there is room are answered as ever, the others know when to come.
fn refuses_a_rush_in_part(http: &Http, model: &str) {
    let body = chat(model, json!({"max_tokens": 200, "ignore_eos": true}));
    let start = Barrier::new(RUSH);
    let ask = || {
        let http = http.another();
        start.wait();
        http.post("/v1/chat/completions", &body).expect("an answer")
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..RUSH).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|one| one.join().expect("asked")).collect()
    });
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(taken.len() >= TAKEN_OF_A_RUSH, "{} were answered", taken.len());
    assert!(!refused.is_empty(), "nobody was refused");
    let text = |answer: &Answer| answer.json()["choices"][0]["message"]["content"].to_string();
    let first = text(taken[0]);
    assert!(taken.iter().all(|answer| text(answer) == first));
    for answer in refused {
        let code = answer.json()["error"]["code"].clone();
        assert_eq!((answer.status, code), (429, json!("rate_limit_exceeded")));
        let wait = answer.headers.get("retry-after").expect("says when to come");
        let wait: u32 = wait.to_str().expect("text").parse().expect("seconds");
        assert!((1..=60).contains(&wait), "{wait} s");
    }
}

/// Formats and tool calls, on a model that has been trained for neither.
fn structure_conforms(http: &Http, model: &str) {
    let schema = json!({"type": "object", "properties": {"chip": {"enum": ["M1", "M4"]}, "fits": {"type": "boolean"}},
                        "required": ["chip", "fits"], "additionalProperties": false});
    let format = json!({"max_tokens": 100, "response_format": {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}});
    let whole = post_json(http, "/v1/chat/completions", &chat(model, format.clone()));
    let text = whole["choices"][0]["message"]["content"].as_str().expect("text");
    let verdict: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert!(
        verdict["fits"].is_boolean() && (verdict["chip"] == "M1" || verdict["chip"] == "M4"),
        "{text}"
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let mut streaming = chat(model, format);
    streaming["stream"] = json!(true);
    let streamed = http.post("/v1/chat/completions", &streaming).expect("an answer");
    assert_eq!(streamed.streamed_text(), text);

    let tools = json!([{"type": "function", "function": {"name": "judge", "parameters": schema}}]);
    let must =
        json!({"max_tokens": 100, "tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
    let called = post_json(http, "/v1/chat/completions", &chat(model, must));
    let choice = &called["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!(null))
    );
    let function = &choice["message"]["tool_calls"][0]["function"];
    let arguments: serde_json::Value =
        serde_json::from_str(function["arguments"].as_str().expect("text")).expect("JSON");
    assert!(
        function["name"] == "judge" && arguments["fits"].is_boolean(),
        "{called}"
    );

    let unheld = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}});
    let refused = http
        .post("/v1/chat/completions", &chat(model, unheld))
        .expect("an answer");
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("response_format.json_schema.schema")),
        "{}",
        refused.text
    );
}

fn post_json(http: &Http, path: &str, body: &serde_json::Value) -> serde_json::Value {
    let answer = http.post(path, body).expect("an answer");
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
    answer.json()
}

/// Choices, logprobs and what changes them; `text` is the greedy answer.
fn probabilities_conform(http: &Http, model: &str, text: &str) {
    // Choices are told apart, and greedy ones are alike.
    let choices = post_json(http, "/v1/chat/completions", &chat(model, json!({"n": 3})));
    for index in 0..3 {
        let choice = &choices["choices"][index];
        assert_eq!(
            (&choice["index"], choice["message"]["content"].as_str()),
            (&json!(index), Some(text))
        );
    }
    // The tokens of logprobs are the text; the most probable comes first.
    let asked = chat(model, json!({"logprobs": true, "top_logprobs": 3}));
    let scored = post_json(http, "/v1/chat/completions", &asked);
    let content = scored["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list");
    let said: String = content
        .iter()
        .map(|entry| entry["token"].as_str().expect("text"))
        .collect();
    assert_eq!(said, text);
    for entry in content {
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"])
        );
    }
    // A banned token is not said; a penalty that is large enough changes the text.
    let first = post_json(
        http,
        "/tokenize",
        &json!({"model": model, "prompt": content[0]["token"], "add_special_tokens": false}),
    );
    let banned = json!({(first["tokens"][0].to_string()): -100});
    for change in [
        json!({"logit_bias": banned}),
        json!({"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 2}),
    ] {
        let other = post_json(http, "/v1/chat/completions", &chat(model, change.clone()));
        assert_ne!(
            other["choices"][0]["message"]["content"].as_str(),
            Some(text),
            "{change}"
        );
    }
    // A prompt is scored, as evaluations do it.
    let echo = json!({"model": model, "prompt": [5, 6, 7, 8], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true});
    let logprobs = &post_json(http, "/v1/completions", &echo)["choices"][0]["logprobs"];
    let scores = logprobs["token_logprobs"].as_array().expect("a list");
    assert_eq!((scores.len(), &scores[0]), (5, &json!(null)));
    assert!(
        scores[1..]
            .iter()
            .all(|score| score.as_f64().is_some_and(|score| score <= 0.0))
    );
}

fn tokens_and_vectors_conform(http: &Http, model: &str) {
    let tokens = post_json(
        http,
        "/tokenize",
        &json!({"model": model, "prompt": "rooflet is here"}),
    );
    let back = post_json(
        http,
        "/detokenize",
        &json!({"model": model, "tokens": tokens["tokens"]}),
    );
    assert_eq!(back["prompt"], "rooflet is here");
    let embeddings = post_json(
        http,
        "/v1/embeddings",
        &json!({"model": model, "input": ["rooflet is here", "another"]}),
    );
    for entry in embeddings["data"].as_array().expect("a list") {
        let vector = entry["embedding"].as_array().expect("numbers").iter();
        let length: f64 = vector
            .map(|value| value.as_f64().expect("a number").powi(2))
            .sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let document = http.get("/openapi.json").expect("an answer").json();
    assert!(document["paths"]["/v1/embeddings"].is_object());
}
