//! Exact text of answers, on scripted models.

use super::script::{CONTEXT, Script};
use super::*;
use rooflet_testing::TempDir;

/// Returns a model that never stops by itself, a configuration for the model, and its prompt.
pub(super) fn endless() -> (TempDir, WorkerConfig, u32) {
    let dir = TempDir::new();
    let script = Script::new(&[(&[b"ab", b"cd"], false)]);
    script.write(dir.path());
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        context_tokens: Some(CONTEXT),
        ..config()
    };
    (dir, config, script.cues[0])
}

/// Completes the prompt `cue`, with and without streaming, and asserts that both responses are
/// equal. Returns text, finish reason, number of tokens, and the text pieces of the stream.
async fn complete(worker: &TestWorker, cue: u32, extra: Value) -> (String, String, u64, Vec<String>) {
    let body = merged(
        json!({"model": "tiny", "prompt": [cue], "max_tokens": 40, "temperature": 0}),
        extra,
    );
    let whole = worker.post("/v1/completions", &body).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let choice = &whole["choices"][0];
    let (text, reason) = (
        choice["text"].as_str().unwrap(),
        choice["finish_reason"].as_str().unwrap(),
    );

    let streaming = merged(
        body,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut events = worker.post("/v1/completions", &streaming).await.events();
    assert_eq!(events.pop().unwrap()["usage"], whole["usage"]);
    assert_eq!(events.pop().unwrap()["choices"][0]["finish_reason"], reason);
    let pieces: Vec<String> = events
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(pieces.concat(), text);
    (
        text.to_owned(),
        reason.to_owned(),
        whole["usage"]["completion_tokens"].as_u64().unwrap(),
        pieces,
    )
}

#[test]
fn scripted_answers_are_exact() {
    let dir = TempDir::new();
    let script = Script::new(&[
        (
            &[b"H", b"\xc3", b"\xa9", b"llo ", b"\xf0\x9f", b"\x91\x8b", b"!"],
            true,
        ),
        (&[b"ab", b"cd"], false),
        (&[b"cut \xe2\x82"], true),
        (&[b"alpha", b" om", b"ega E", b"N", b"D tail"], true),
        (&[b"almost ", b"EN"], true),
        (&[b"x\xff", b"y"], true),
    ]);
    script.write(dir.path());
    let cues = script.cues.clone();
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let expected = |text: &str, reason: &str, tokens: u64, pieces: &[&str]| {
                (
                    text.to_owned(),
                    reason.to_owned(),
                    tokens,
                    pieces.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
                )
            };
            // Pieces contain complete characters. The end-of-text token counts, but has no text.
            let hello = expected("Héllo 👋!", "stop", 8, &["H", "é", "llo ", "👋", "!"]);
            assert_eq!(complete(worker, cues[0], json!({})).await, hello);
            // An endless text has exactly `max_tokens` tokens.
            for max_tokens in [1_u64, 2, 7, 33] {
                let (text, reason, tokens, _) =
                    complete(worker, cues[1], json!({"max_tokens": max_tokens})).await;
                assert_eq!((reason.as_str(), tokens), ("length", max_tokens));
                assert_eq!(text, "abcd".repeat(20)[..2 * max_tokens as usize]);
            }
            // The answer ends inside a character, due to end-of-text or `max_tokens`.
            assert_eq!(
                complete(worker, cues[2], json!({})).await,
                expected("cut \u{fffd}", "stop", 2, &["cut ", "\u{fffd}"])
            );
            let two = json!({"max_tokens": 2});
            assert_eq!(
                complete(worker, cues[0], two).await,
                expected("H\u{fffd}", "length", 2, &["H", "\u{fffd}"])
            );
            // The stop string spans three tokens. The text excludes it, and generation stops after
            // it.
            let stop = json!({"stop": ["never", "END"]});
            assert_eq!(
                complete(worker, cues[3], stop.clone()).await,
                expected("alpha omega ", "stop", 5, &["alpha", " om", "ega "])
            );
            // The end of the answer releases text that was held back as a possible stop string.
            assert_eq!(
                complete(worker, cues[4], stop).await,
                expected("almost EN", "stop", 3, &["almost ", "EN"])
            );
            assert_eq!(
                complete(worker, cues[5], json!({})).await,
                expected("x\u{fffd}y", "stop", 3, &["x\u{fffd}", "y"])
            );
        })
    });
}

/// The parameters have the same semantics as in vLLM.
#[test]
fn honours_stop_parameters_of_vllm() {
    let dir = TempDir::new();
    let script = Script::new(&[(&[b"a", b"b"], true)]);
    script.write(dir.path());
    let cue = script.cues[0];
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let answer = async |extra: Value| {
                let (text, reason, tokens, _) = complete(worker, cue, extra).await;
                (text, reason, tokens)
            };
            let expect = |text: &str, reason: &str, tokens: u64| (text.to_owned(), reason.to_owned(), tokens);
            assert_eq!(answer(json!({})).await, expect("ab", "stop", 3));
            let b = cue + 2;
            assert_eq!(
                answer(json!({"stop_token_ids": [b]})).await,
                expect("a", "stop", 2)
            );
            // The end-of-text token has no text. In this script, it follows itself.
            assert_eq!(
                answer(json!({"ignore_eos": true, "max_tokens": 6})).await,
                expect("ab", "length", 6)
            );
            // If the end is not permitted yet, all other tokens are equally probable, and the token
            // with the lowest ID is the cue.
            assert_eq!(
                answer(json!({"min_tokens": 5})).await,
                expect("ab<cue 0>ab", "stop", 6)
            );
            assert_eq!(
                answer(json!({"min_tokens": 3, "stop": "b", "stop_token_ids": [b]})).await,
                expect("a<cue 0>a", "stop", 4)
            );
            let request = |extra: Value| {
                let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 9, "temperature": 0});
                merged(body, extra)
            };
            for (extra, reason) in [
                (json!({"stop": ["x", "b"]}), json!("b")),
                (json!({"stop_token_ids": [b]}), json!(b)),
            ] {
                let answer = worker.post("/v1/completions", &request(extra)).await.json();
                assert_eq!(answer["choices"][0]["stop_reason"], reason);
            }
            for (extra, param) in [
                (json!({"min_tokens": 10}), "min_tokens"),
                (json!({"stop_token_ids": [64]}), "stop_token_ids"),
                (json!({"ignore_eos": 1}), "ignore_eos"),
            ] {
                let answer = worker.post("/v1/completions", &request(extra)).await;
                assert_eq!(
                    (answer.status.as_u16(), &answer.json()["error"]["param"]),
                    (400, &json!(param))
                );
            }
        })
    });
}

#[test]
fn samples_equally_probable_tokens_equally_often() {
    let dir = TempDir::new();
    let mut script = Script::new(&[(&[b"-"], true)]);
    let cue = script.cues[0];
    script.choose(0, b'a'..=b'p');
    script.write(dir.path());
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 240, "temperature": 1, "top_k": 16,
                              "seed": 5});
            let answer = worker.post("/v1/completions", &body).await.json();
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert_eq!(text.len(), 240, "{text}");
            for letter in 'a'..='p' {
                // The expectation is 15, and four standard deviations are 15.
                let count = text.chars().filter(|c| *c == letter).count();
                assert!((1..=30).contains(&count), "{count} × {letter} in {text}");
            }
            let one =
                json!({"model": "tiny", "prompt": [cue], "max_tokens": 20, "temperature": 1, "top_k": 1});
            let answer = worker.post("/v1/completions", &one).await.json();
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert!(
                text.chars().all(|c| text.starts_with(c)),
                "top_k 1 is greedy: {text}"
            );
        })
    });
}

/// With a tokenizer like that of Llama 2, the first word of a completion keeps the space between
/// prompt and answer. The first word of a chat message has no leading space.
#[test]
fn sentencepiece_words_keep_leading_spaces() {
    let dir = TempDir::new();
    let script = Script::new(&[(&[b"one", b"two"], true)]);
    script.write_for_chats(dir.path(), "{{ messages[0].content }}");
    let special = json!({"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                         "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [special], "pre_tokenizer": null, "post_processor": null,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": {"<end>": 0, "▁q": 1, "▁one": 2, "two": 3, "▁": 4, "q": 5},
                  "merges": ["▁ q"]}
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let (text, _, _, pieces) = complete(worker, 1, json!({})).await;
            assert_eq!(
                (text.as_str(), pieces),
                (" onetwo", vec![" one".into(), "two".into()])
            );
            for prompt in [json!("q"), json!([1])] {
                let request = json!({"model": "tiny", "prompt": prompt, "echo": true, "logprobs": 1});
                let whole = worker.post("/v1/completions", &request).await.json();
                let choice = &whole["choices"][0];
                assert_eq!(choice["text"], "q onetwo");
                assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 5, 8]), "{choice}");
            }
            let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "q"}]});
            let whole = worker.post("/v1/chat/completions", &chat).await.json();
            assert_eq!(whole["choices"][0]["message"]["content"], "onetwo");
            let open = json!({
                "messages": [{"role": "assistant", "content": "q"}],
                "continue_final_message": true, "add_generation_prompt": false
            });
            let whole = worker
                .post("/v1/chat/completions", &merged(chat, open))
                .await
                .json();
            assert_eq!(whole["choices"][0]["message"]["content"], " onetwo");
        })
    });
}
