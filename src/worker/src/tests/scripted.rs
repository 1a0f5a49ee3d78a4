//! What is told of texts that are known: models that follow a script.

use super::script::{CONTEXT, Script};
use super::*;
use rooflet_testing::TempDir;

/// A model that never stops by itself, a configuration that serves it, and the prompt that starts
/// it.
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

/// Asks after `cue` and returns text, finish reason and tokens, first whole and then streamed: both
/// must agree. The streamed pieces come last.
async fn say(worker: &Subject, cue: u32, extra: Value) -> (String, String, u64, Vec<String>) {
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
fn what_a_scripted_model_says_is_told_to_the_letter() {
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
            let said = |text: &str, reason: &str, tokens: u64, pieces: &[&str]| {
                (
                    text.to_owned(),
                    reason.to_owned(),
                    tokens,
                    pieces.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
                )
            };
            // Characters come out whole; the end of text counts as a token and is no text.
            let hello = said("Héllo 👋!", "stop", 8, &["H", "é", "llo ", "👋", "!"]);
            assert_eq!(say(worker, cues[0], json!({})).await, hello);
            // A text without end is cut at exactly max_tokens.
            for max_tokens in [1_u64, 2, 7, 33] {
                let (text, reason, tokens, _) = say(worker, cues[1], json!({"max_tokens": max_tokens})).await;
                assert_eq!((reason.as_str(), tokens), ("length", max_tokens));
                assert_eq!(text, "abcd".repeat(20)[..2 * max_tokens as usize]);
            }
            // Half a character at the end, by end of text and by max_tokens.
            assert_eq!(
                say(worker, cues[2], json!({})).await,
                said("cut \u{fffd}", "stop", 2, &["cut ", "\u{fffd}"])
            );
            let two = json!({"max_tokens": 2});
            assert_eq!(
                say(worker, cues[0], two).await,
                said("H\u{fffd}", "length", 2, &["H", "\u{fffd}"])
            );
            // A stop string over three tokens: nothing of it is seen, and nothing is computed after
            // it.
            let stop = json!({"stop": ["never", "END"]});
            assert_eq!(
                say(worker, cues[3], stop.clone()).await,
                said("alpha omega ", "stop", 5, &["alpha", " om", "ega "])
            );
            // What was held back as its beginning is text when the end comes.
            assert_eq!(
                say(worker, cues[4], stop).await,
                said("almost EN", "stop", 3, &["almost ", "EN"])
            );
            assert_eq!(
                say(worker, cues[5], json!({})).await,
                said("x\u{fffd}y", "stop", 3, &["x\u{fffd}", "y"])
            );
        })
    });
}

/// vLLM's parameters, with its meanings.
#[test]
fn an_answer_ends_where_the_request_says() {
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
            let said = async |extra: Value| {
                let (text, reason, tokens, _) = say(worker, cue, extra).await;
                (text, reason, tokens)
            };
            let expect = |text: &str, reason: &str, tokens: u64| (text.to_owned(), reason.to_owned(), tokens);
            assert_eq!(said(json!({})).await, expect("ab", "stop", 3));
            let b = cue + 2;
            assert_eq!(said(json!({"stop_token_ids": [b]})).await, expect("a", "stop", 2));
            // The end of text is no text, and here it is followed by itself.
            assert_eq!(
                said(json!({"ignore_eos": true, "max_tokens": 6})).await,
                expect("ab", "length", 6)
            );
            // Where it must not end, the cue's is the first of the equally probable tokens.
            assert_eq!(
                said(json!({"min_tokens": 5})).await,
                expect("ab<cue 0>ab", "stop", 6)
            );
            assert_eq!(
                said(json!({"min_tokens": 3, "stop": "b", "stop_token_ids": [b]})).await,
                expect("a<cue 0>a", "stop", 4)
            );
            let ask = |extra: Value| {
                let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 9, "temperature": 0});
                merged(body, extra)
            };
            for (extra, reason) in [
                (json!({"stop": ["x", "b"]}), json!("b")),
                (json!({"stop_token_ids": [b]}), json!(b)),
            ] {
                let answer = worker.post("/v1/completions", &ask(extra)).await.json();
                assert_eq!(answer["choices"][0]["stop_reason"], reason);
            }
            for (extra, param) in [
                (json!({"min_tokens": 10}), "min_tokens"),
                (json!({"stop_token_ids": [64]}), "stop_token_ids"),
                (json!({"ignore_eos": 1}), "ignore_eos"),
            ] {
                let answer = worker.post("/v1/completions", &ask(extra)).await;
                assert_eq!(
                    (answer.status.as_u16(), &answer.json()["error"]["param"]),
                    (400, &json!(param))
                );
            }
        })
    });
}

#[test]
fn equal_chances_are_taken_equally() {
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
                // 15 are expected; 4 standard deviations are 15.
                let count = text.chars().filter(|c| *c == letter).count();
                assert!((1..=30).contains(&count), "{count} × {letter} in {text}");
            }
            let one =
                json!({"model": "tiny", "prompt": [cue], "max_tokens": 20, "temperature": 1, "top_k": 1});
            let answer = worker.post("/v1/completions", &one).await.json();
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert!(
                text.chars().all(|c| text.starts_with(c)),
                "one candidate leaves no choice: {text}"
            );
        })
    });
}

/// Of a tokenizer as Llama 2 has it, the first word of an answer keeps the space that parts it from
/// the prompt; the first word of a message has none before it.
#[test]
fn words_of_sentencepiece_keep_their_spaces() {
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
            let (text, _, _, pieces) = say(worker, 1, json!({})).await;
            assert_eq!(
                (text.as_str(), pieces),
                (" onetwo", vec![" one".into(), "two".into()])
            );
            for prompt in [json!("q"), json!([1])] {
                let asked = json!({"model": "tiny", "prompt": prompt, "echo": true, "logprobs": 1});
                let whole = worker.post("/v1/completions", &asked).await.json();
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
