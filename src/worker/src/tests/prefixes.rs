//! Requests that begin with what earlier ones have computed.

use std::cell::RefCell;
use std::rc::Rc;

use super::batching::{value, with_memory_for};
use super::load::endless_request;
use super::*;
use rooflet_testing::TempDir;

async fn complete(worker: &Subject, prompt: &[u32], extra: Value) -> Value {
    let body = merged(
        json!({"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}),
        extra,
    );
    let answer = worker.post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 3 + at * 7 % 250).collect()
}

#[test]
fn a_known_beginning_is_not_computed_again_and_is_told() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let first = complete(worker, &prompt(300), json!({})).await;
            assert_eq!(cached(&first), 0);
            let again = complete(worker, &prompt(300), json!({})).await;
            assert_eq!(cached(&again), 299, "its last token is computed, for its logits");
            assert_eq!(again["choices"], first["choices"]);
            assert_eq!(again["usage"]["prompt_tokens"], 300);
            let other = [prompt(270), vec![5; 30]].concat();
            assert_eq!(cached(&complete(worker, &other, json!({})).await), 270);
            let salted = complete(worker, &prompt(300), json!({"cache_salt": "mine"})).await;
            assert_eq!((cached(&salted), &salted["choices"]), (0, &first["choices"]));
            // The answer counts, too: the next turn of a conversation begins with it.
            let mut longer = prompt(300);
            let text = first["choices"][0]["text"].as_str().unwrap();
            let said = worker.app.prompter.tokenizer().encode_prompt(text).unwrap();
            longer.extend(said);
            longer.extend(prompt(20));
            let longer = complete(worker, &longer, json!({})).await;
            assert!(cached(&longer) >= 300, "{longer}");

            let metrics = worker.send("GET", "/metrics", "").await.body;
            let of = |name: &str| {
                value(
                    &metrics,
                    &format!("rooflet_worker_prefix_cache_{name}_tokens_total"),
                )
            };
            assert!(of("hit") >= 299.0 + 270.0 + 300.0, "{metrics}");
            assert!(of("queried") >= of("hit") + 600.0, "{metrics}");
            assert!(value(&metrics, "rooflet_worker_kv_cache_bytes{kind=\"prefixes\"}") > 0.0);
        })
    });
}

#[test]
fn chats_and_streams_tell_what_was_known() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let chat = worker.chat(json!({})).await.json();
            assert_eq!(cached(&chat), 0);
            let tokens = chat["usage"]["prompt_tokens"].as_u64().unwrap();
            assert!(tokens > 16, "{tokens}");
            let again = worker.chat(json!({})).await.json();
            assert_eq!(cached(&again), tokens - 1);
            assert_eq!(again["choices"], chat["choices"]);
            let streaming = json!({"stream": true, "stream_options": {"include_usage": true}});
            let events = worker.chat(streaming).await.events();
            assert_eq!(cached(events.last().unwrap()), tokens - 1);
        })
    });
}

/// The first is computed, the others begin with what it left; they count its prompt once.
#[test]
fn choices_share_their_prompt() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let four = complete(worker, &prompt(200), json!({"n": 4})).await;
            assert_eq!(four["usage"]["prompt_tokens"], 200);
            assert_eq!(cached(&four), 0);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let hits = value(&metrics, "rooflet_worker_prefix_cache_hit_tokens_total");
            assert_eq!(hits, 3.0 * 199.0);
            // Short ones, too, although several could be read in one pass.
            let four = complete(worker, &[8; 50], json!({"n": 4})).await;
            assert_eq!(cached(&four), 0);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let more = value(&metrics, "rooflet_worker_prefix_cache_hit_tokens_total");
            assert_eq!(more - hits, 3.0 * 49.0);
            assert_eq!(
                cached(&complete(worker, &prompt(200), json!({"n": 4})).await),
                199
            );
            // Two prompts, of which one is known.
            let body = json!({"prompt": [prompt(200), vec![9; 40]], "n": 2});
            assert_eq!(cached(&complete(worker, &[], body).await), 199);
        })
    });
}

#[test]
fn it_can_be_turned_off() {
    let config = WorkerConfig {
        prefix_cache_memory: Some(Bytes::ZERO),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            for _ in 0..2 {
                assert_eq!(cached(&complete(worker, &prompt(300), json!({})).await), 0);
            }
        })
    });
}

/// Room for 1024 tokens: two texts of 600 tokens cannot be kept, and one that runs goes first.
#[test]
fn prefixes_give_way_to_requests() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(1024, config), |worker| {
        Box::pin(async move {
            let text = |first| [vec![first], vec![cue; 599]].concat();
            let within_limits = async || {
                let metrics = worker.send("GET", "/metrics", "").await.body;
                let of = |kind| {
                    value(
                        &metrics,
                        &format!("rooflet_worker_kv_cache_bytes{{kind=\"{kind}\"}}"),
                    )
                };
                assert!(of("held") + of("prefixes") <= of("limit"), "{metrics}");
                of("prefixes")
            };
            complete(worker, &text(1), json!({})).await;
            assert!(within_limits().await > 0.0);
            assert!(cached(&complete(worker, &text(1), json!({})).await) > 0);
            complete(worker, &text(2), json!({})).await;
            within_limits().await;
            assert!(cached(&complete(worker, &text(2), json!({})).await) > 0);
            complete(worker, &[cue], json!({"max_tokens": 1023})).await;
            within_limits().await;
        })
    });
}

/// Room for 1024 tokens: what a request of 900 holds cannot be copied beside it, and is there for
/// the next turn nevertheless.
#[test]
fn a_conversation_goes_on_where_there_is_no_room_for_copies() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(1024, config), |worker| {
        Box::pin(async move {
            let mut text = vec![cue; 800];
            for tokens in [0, 800, 820, 840] {
                let answer = complete(worker, &text, json!({})).await;
                assert_eq!(cached(&answer), tokens);
                text.extend([5; 20]);
            }
            // One of four goes on in it, and the others wait for what they share.
            assert_eq!(cached(&complete(worker, &text[..200], json!({"n": 4})).await), 0);
        })
    });
}

/// And where the client did not wait for the end of the answer.
#[test]
fn a_conversation_goes_on_behind_an_answer_that_was_stopped() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(1024, config), |worker| {
        Box::pin(async move {
            let ask = |tokens| prompt::ValidRequest {
                prompt: vec![cue; tokens],
                max_tokens: 1000 - tokens,
                ..endless_request(cue)
            };
            for tokens in [800, 820] {
                let mut stopped = worker.app.engine.submit(ask(tokens)).unwrap();
                stopped.events.recv().await.expect("text");
                drop(stopped);
            }
            assert_eq!(cached(&complete(worker, &vec![cue; 820], json!({})).await), 819);
        })
    });
}

#[test]
fn prompts_of_which_each_token_is_asked_for_are_not_kept() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let kept = async || {
                let metrics = worker.send("GET", "/metrics", "").await.body;
                value(&metrics, "rooflet_worker_kv_cache_bytes{kind=\"prefixes\"}")
            };
            let embed = json!({"model": "tiny", "input": prompt(300)});
            assert_eq!(worker.post("/v1/embeddings", &embed).await.status, 200);
            let echo = json!({"echo": true, "logprobs": 1});
            complete(worker, &prompt(300), echo).await;
            assert_eq!(kept().await, 0.0);
            assert_eq!(cached(&complete(worker, &prompt(300), json!({})).await), 0);
            assert!(kept().await > 0.0);
        })
    });
}

/// A worker that stores what it computes in `dir`.
fn storing(dir: &TempDir, limit: u64) -> WorkerConfig {
    let dir = dir.path().to_owned();
    WorkerConfig {
        prefix_files: Some(PrefixFiles {
            dir,
            limit: Bytes(limit),
        }),
        ..config()
    }
}

const ROOMY: u64 = 1 << 30;

fn files_in(dir: &TempDir) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("quarantine") {
            files.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    files
}

/// Asks each prompt, all in one life of a worker; the answers.
fn ask_once(config: &WorkerConfig, prompts: &[Vec<u32>]) -> Vec<Value> {
    let answers = Rc::new(RefCell::new(Vec::new()));
    let (told, prompts) = (Rc::clone(&answers), prompts.to_vec());
    with_worker(config.clone(), move |worker| {
        Box::pin(async move {
            for prompt in prompts {
                let answer = complete(worker, &prompt, json!({})).await;
                told.borrow_mut().push(answer);
            }
        })
    });
    answers.take()
}

#[test]
fn prefixes_survive_a_restart() {
    let dir = TempDir::new();
    let first = ask_once(&storing(&dir, ROOMY), &[prompt(400)]).remove(0);
    // A whole block, and what follows it with the answer.
    assert_eq!(files_in(&dir).len(), 2);
    let again = ask_once(&storing(&dir, ROOMY), &[prompt(400), prompt(400)]);
    assert_eq!(
        (cached(&first), cached(&again[0]), cached(&again[1])),
        (0, 399, 399)
    );
    assert_eq!(again[0]["choices"], first["choices"]);
    assert_eq!(again[1]["choices"], first["choices"]);
    // Another model, in the same directory.
    let other = WorkerConfig {
        model: root().join("e2e/fixtures/models/llama3"),
        ..storing(&dir, ROOMY)
    };
    assert_eq!(cached(&ask_once(&other, &[prompt(400)])[0]), 0);
    assert_eq!(files_in(&dir).len(), 4);
}

/// Windows and recurrent states.
#[test]
fn snapshots_survive_a_restart() {
    for model in ["gemma3", "gpt-oss", "qwen3-next"] {
        let dir = TempDir::new();
        let config = WorkerConfig {
            model: root().join("e2e/fixtures/models").join(model),
            ..storing(&dir, ROOMY)
        };
        let first = ask_once(&config, &[prompt(400), prompt(400)]);
        assert_eq!((cached(&first[0]), cached(&first[1])), (0, 399), "{model}");
        assert_eq!(first[1]["choices"], first[0]["choices"], "{model}");
        let again = ask_once(&config, &[[prompt(400), vec![5]].concat(), prompt(400)]);
        assert_eq!((cached(&again[0]), cached(&again[1])), (399, 399), "{model}");
        assert_eq!(again[1]["choices"], first[0]["choices"], "{model}");
    }
}

#[test]
fn damaged_files_are_computed_anew() {
    let dir = TempDir::new();
    let first = ask_once(&storing(&dir, ROOMY), &[prompt(400)]).remove(0);
    for path in files_in(&dir) {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() * 3 / 4;
        bytes[middle] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }
    let again = ask_once(&storing(&dir, ROOMY), &[prompt(400)]).remove(0);
    assert_eq!((cached(&again), &again["choices"]), (0, &first["choices"]));
    assert!(dir.path().join("quarantine").exists());
    let healed = ask_once(&storing(&dir, ROOMY), &[prompt(400)]).remove(0);
    assert_eq!((cached(&healed), &healed["choices"]), (399, &first["choices"]));
}

#[test]
fn files_stay_within_their_limit() {
    let dir = TempDir::new();
    ask_once(&storing(&dir, ROOMY), &[prompt(400)]);
    let sizes = files_in(&dir)
        .into_iter()
        .map(|path| path.metadata().unwrap().len());
    let limit = 2 * sizes.sum::<u64>();
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|first| [vec![first + 3], prompt(400)].concat())
        .collect();
    ask_once(&storing(&dir, limit), &prompts);
    let bytes: u64 = files_in(&dir)
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(bytes <= limit, "{bytes} of {limit}");
    let last = ask_once(&storing(&dir, limit), &prompts[4..]).remove(0);
    assert_eq!(cached(&last), 400, "the last one stays");
}

#[test]
fn a_directory_that_cannot_be_used_is_told_before_weights_are_read() {
    let dir = TempDir::new();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut config = storing(&dir, ROOMY);
    config.prefix_files.as_mut().unwrap().dir = file;
    let _other = crate::cache::BlockFiles::open(dir.path(), String::new(), Clock::System);
    let err = end_of_loading(storing(&dir, ROOMY));
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("PrefixCacheInUse", ExitStatus::Unavailable)
    );
    let err = end_of_loading(config);
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("PrefixCacheUnusable", ExitStatus::Config)
    );
}
