//! Conformance to the OpenAI API: through the gateway, and from a worker started by hand.

#[cfg(target_os = "linux")]
mod large_bodies;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Barrier;

use serde_json::json;

use crate::harness::{
    Fleet, Http, HttpResponse, Options, Process, Scratch, copy_guide, eventually, free_port, not_run,
    repository,
};

fn chat(model: &str, extra: serde_json::Value) -> serde_json::Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "What is rooflet?"}], "temperature": 0, "max_tokens": 24});
    body.as_object_mut()
        .expect("an object")
        .extend(extra.as_object().expect("an object").clone());
    body
}

#[test]
fn gateway_conforms_to_the_openai_api() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    conforms(&fleet.gateway, "guide");
    burst_is_rejected_in_part(&fleet.gateway, "guide");
    let unknown = fleet.gateway.try_chat("nobody", "Hello?").expect("a response");
    assert_eq!(
        (unknown.status, unknown.json()["error"]["code"].as_str()),
        (404, Some("model_not_found")),
        "{}",
        unknown.text
    );
    kubectl.run("scale mdep/guide --replicas=0").ok();
    eventually("503 while the deployment has no replica", || {
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

/// Prompt length whose prefill takes one core far more than ten seconds.
const LONG_PROMPT_TOKENS: usize = 32_000;

#[test]
fn keepalives_are_sent_during_a_long_prefill() {
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
    let mut stream = TcpStream::connect(("127.0.0.1", fleet.gateway_port)).expect("the gateway listens");
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
        "the response head is sent before the prefill ends"
    );
    let first = lines.find(|line| line.starts_with(':') || line.starts_with("data: "));
    match first.as_deref() {
        Some(": keepalive") => {}
        Some(line) if line.starts_with("data: {") => {
            not_run(&format!(
                "a machine that prefills {LONG_PROMPT_TOKENS} tokens in more than ten seconds"
            ));
        }
        other => panic!("{other:?}"),
    }
    // After the client disconnects, the worker stops the prefill and serves the next request.
    drop(lines);
    assert!(!fleet.gateway.chat("guide", "What is rooflet?").is_empty());
}

#[test]
fn worker_started_by_hand_conforms_to_the_openai_api() {
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
    burst_is_rejected_in_part(&http, "mine");
    let metrics = http.get("/metrics").expect("a response").text;
    assert!(
        metrics.contains("rooflet_") && !metrics.contains("What is rooflet"),
        "{metrics}"
    );
    assert!(worker.terminate().success(), "{}", worker.log());
}

/// Checks the behaviour that every OpenAI client relies on.
fn conforms(http: &Http, model: &str) {
    // Whole and streamed responses have the same text. The usage counts add up.
    let whole = http
        .post("/v1/chat/completions", &chat(model, json!({})))
        .expect("a response");
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
        .expect("a response");
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

    // `max_tokens` is exact.
    for n in [1, 2, 7] {
        let answer = http
            .post("/v1/chat/completions", &chat(model, json!({"max_tokens": n})))
            .expect("a response")
            .json();
        assert_eq!(
            (
                answer["usage"]["completion_tokens"].as_u64(),
                answer["choices"][0]["finish_reason"].as_str()
            ),
            (Some(n), Some("length"))
        );
    }
    // A stop string ends the answer and is not part of it.
    let stop: String = text.chars().skip(4).take(5).collect();
    let stopped = http
        .post("/v1/chat/completions", &chat(model, json!({"stop": stop})))
        .expect("a response")
        .json();
    assert_eq!(
        stopped["choices"][0]["message"]["content"].as_str(),
        text.split(&stop).next()
    );
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    // Equal seeds sample equal texts.
    let sample = |seed: u64| {
        let body = chat(model, json!({"temperature": 1.0, "seed": seed}));
        http.post("/v1/chat/completions", &body)
            .expect("a response")
            .json()["choices"][0]["message"]["content"]
            .clone()
    };
    assert_eq!(sample(7), sample(7));

    // Completions accept text, lists of texts and token ids.
    for prompt in [json!("rooflet is"), json!(["rooflet is"]), json!([1, 2, 3])] {
        let answer = http
            .post(
                "/v1/completions",
                &json!({"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}),
            )
            .expect("a response");
        // After three arbitrary token ids, the model may generate the end token early.
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
    further_parameters_conform(http, model);
    structure_conforms(http, model);

    // Invalid requests are rejected with an error that names the cause.
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
        let answer = answer.expect("a response");
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
    assert_eq!(http.get("/v1/nothing").expect("a response").status, 404);
    let nothing = http
        .post("/v1/nothing", &json!({"model": model}))
        .expect("a response");
    assert_eq!(
        (nothing.status, nothing.json()["error"]["code"].as_str()),
        (404, Some("unknown_url"))
    );
    let read = http.get("/v1/chat/completions").expect("a response");
    assert_eq!(
        (read.status, read.headers["allow"].to_str().ok()),
        (405, Some("POST"))
    );
    let huge = http.post_text("/v1/chat/completions", &"x".repeat(64 << 20));
    assert_eq!(huge.expect("no reset").status, 413);
    let after = http
        .post("/v1/chat/completions", &chat(model, json!({})))
        .expect("a response");
    assert_eq!(
        after.json()["choices"][0]["message"]["content"].as_str(),
        Some(text.as_str()),
        "rejected requests do not change later answers"
    );
}

/// Number of requests sent at the same time.
const BURST: usize = 64;
/// Requests that a replica with four batch rows accepts: four running, and eight queued for each.
const ACCEPTED_OF_A_BURST: usize = 4 + 4 * 8;

/// Checks a burst larger than the request queue: accepted requests get the usual answer, rejected
/// requests get 429 with `Retry-After`.
fn burst_is_rejected_in_part(http: &Http, model: &str) {
    let body = chat(model, json!({"max_tokens": 200, "ignore_eos": true}));
    let start = Barrier::new(BURST);
    let send = || {
        let http = http.duplicate();
        start.wait();
        http.post("/v1/chat/completions", &body).expect("a response")
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..BURST).map(|_| scope.spawn(send)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.expect("no panic")).collect()
    });
    let (accepted, rejected): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(
        accepted.len() >= ACCEPTED_OF_A_BURST,
        "{} were accepted",
        accepted.len()
    );
    assert!(!rejected.is_empty(), "no request was rejected");
    let text = |answer: &HttpResponse| answer.json()["choices"][0]["message"]["content"].to_string();
    let first = text(accepted[0]);
    assert!(accepted.iter().all(|answer| text(answer) == first));
    for answer in rejected {
        let code = answer.json()["error"]["code"].clone();
        assert_eq!((answer.status, code), (429, json!("rate_limit_exceeded")));
        let wait = answer.headers.get("retry-after").expect("the header");
        let wait: u32 = wait.to_str().expect("text").parse().expect("seconds");
        assert!((1..=60).contains(&wait), "{wait} s");
    }
}

/// Checks structured outputs and tool calls with a model that was trained for neither.
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
    let streamed = http.post("/v1/chat/completions", &streaming).expect("a response");
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

    let unsupported = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}});
    let rejected = http
        .post("/v1/chat/completions", &chat(model, unsupported))
        .expect("a response");
    assert_eq!(
        (rejected.status, rejected.json()["error"]["param"].as_str()),
        (400, Some("response_format.json_schema.schema")),
        "{}",
        rejected.text
    );
}

fn post_json(http: &Http, path: &str, body: &serde_json::Value) -> serde_json::Value {
    let answer = http.post(path, body).expect("a response");
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
    answer.json()
}

/// Checks `n`, logprobs, bias and penalties. `text` is the greedy answer.
fn probabilities_conform(http: &Http, model: &str, text: &str) {
    // Choices have distinct indexes. Greedy choices have equal texts.
    let choices = post_json(http, "/v1/chat/completions", &chat(model, json!({"n": 3})));
    for index in 0..3 {
        let choice = &choices["choices"][index];
        assert_eq!(
            (&choice["index"], choice["message"]["content"].as_str()),
            (&json!(index), Some(text))
        );
    }
    // The tokens of `logprobs` join to the text. `top_logprobs` starts with the most probable
    // token.
    let request = chat(model, json!({"logprobs": true, "top_logprobs": 3}));
    let scored = post_json(http, "/v1/chat/completions", &request);
    let content = scored["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list");
    let printed: String = content
        .iter()
        .map(|entry| entry["token"].as_str().expect("text"))
        .collect();
    assert_eq!(printed, text);
    for entry in content {
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"])
        );
    }
    // A banned token is not generated, and large penalties change the text.
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
    // `echo` returns the logprobs of the prompt, as evaluation harnesses request it.
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

/// Checks vLLM's parameters, and the names of ignored ones.
fn further_parameters_conform(http: &Http, model: &str) {
    let stops: Vec<String> = (0..64).map(|number| format!("never {number}")).collect();
    let request = json!({"model": model, "prompt": [5, 6, 7, 8], "max_tokens": 4, "temperature": 0, "stop": stops,
        "truncate_prompt_tokens": 3, "return_token_ids": true, "prompt_logprobs": 1, "keep_alive": "5m", "ttl": 60});
    let answer = http.post("/v1/completions", &request).expect("a response");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.headers["x-rooflet-ignored-fields"], "keep_alive, ttl");
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["prompt_token_ids"], json!([6, 7, 8]));
    let logprobs = choice["prompt_logprobs"].as_array().expect("a list");
    assert_eq!((logprobs.len(), &logprobs[0]), (3, &json!(null)));
    assert!(
        logprobs[1]["7"]["rank"].as_u64().is_some_and(|rank| rank >= 1),
        "{choice}"
    );
    let streaming = chat(
        model,
        json!({"stream": true, "ttl": 60, "return_token_ids": true}),
    );
    let streamed = http.post("/v1/chat/completions", &streaming).expect("a response");
    assert_eq!(streamed.headers["x-rooflet-ignored-fields"], "ttl");
    let grammar = r#"root ::= chip (", " chip)*
        chip ::= "M" [1-5] (" Pro" | " Max")?"#;
    let grammar = json!({"max_tokens": 40, "structured_outputs": {"grammar": grammar}});
    let whole = post_json(http, "/v1/chat/completions", &chat(model, grammar));
    let text = whole["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(text.starts_with('M'), "{text}");
    for (field, value) in [
        ("suffix", json!("x")),
        ("options", json!({"num_ctx": 5})),
        ("guided_grammar", json!("root ::= root")),
        ("chat_template", json!("{{ messages }}")),
    ] {
        let mut body = json!({"model": model, "prompt": "a", "max_tokens": 1});
        body[field] = value;
        let rejected = http.post("/v1/completions", &body).expect("a response");
        let param = rejected.json()["error"]["param"].clone();
        assert_eq!((rejected.status, param), (400, json!(field)), "{}", rejected.text);
    }
    let load = http.get("/load").expect("a response").json();
    assert!(load["server_load"].is_u64(), "{load}");
    assert_eq!(http.get("/ping").expect("a response").status, 200);
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
    let document = http.get("/openapi.json").expect("a response").json();
    assert!(document["paths"]["/v1/embeddings"].is_object());
}
