//! Prefix cache in memory and on disk.

use std::cell::RefCell;
use std::rc::Rc;

use super::batching::{value, with_memory_for};
use super::load::endless_request;
use super::*;
use rooflet_testing::TempDir;

async fn complete(worker: &TestWorker, prompt: &[u32], extra: Value) -> Value {
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
fn reuses_and_reports_cached_prefixes() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let first = complete(worker, &prompt(300), json!({})).await;
            assert_eq!(cached(&first), 0);
            let again = complete(worker, &prompt(300), json!({})).await;
            assert_eq!(cached(&again), 299, "the last token is computed for its logits");
            assert_eq!(again["choices"], first["choices"]);
            assert_eq!(again["usage"]["prompt_tokens"], 300);
            let other = [prompt(270), vec![5; 30]].concat();
            assert_eq!(cached(&complete(worker, &other, json!({})).await), 270);
            let salted = complete(worker, &prompt(300), json!({"cache_salt": "mine"})).await;
            assert_eq!((cached(&salted), &salted["choices"]), (0, &first["choices"]));
            // The cache includes the answer, because the next turn of a conversation contains it.
            let mut longer = prompt(300);
            let text = first["choices"][0]["text"].as_str().unwrap();
            let answer = worker.app.prompter.tokenizer().encode_prompt(text).unwrap();
            longer.extend(answer);
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
fn chats_and_streams_report_cached_tokens() {
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

/// The first choice computes the prompt, and the other choices reuse it. The usage counts the
/// prompt once.
#[test]
fn choices_share_prefill_of_their_prompt() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let four = complete(worker, &prompt(200), json!({"n": 4})).await;
            assert_eq!(four["usage"]["prompt_tokens"], 200);
            assert_eq!(cached(&four), 0);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let hits = value(&metrics, "rooflet_worker_prefix_cache_hit_tokens_total");
            assert_eq!(hits, 3.0 * 199.0);
            // Choices with a short prompt also share the prefill, although one pass could compute
            // several of them.
            let four = complete(worker, &[8; 50], json!({"n": 4})).await;
            assert_eq!(cached(&four), 0);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let more = value(&metrics, "rooflet_worker_prefix_cache_hit_tokens_total");
            assert_eq!(more - hits, 3.0 * 49.0);
            assert_eq!(
                cached(&complete(worker, &prompt(200), json!({"n": 4})).await),
                199
            );
            // One of the two prompts is cached.
            let body = json!({"prompt": [prompt(200), vec![9; 40]], "n": 2});
            assert_eq!(cached(&complete(worker, &[], body).await), 199);
        })
    });
}

#[test]
fn zero_memory_disables_prefix_cache() {
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

/// The memory has room for 1024 tokens. Two prefixes of 600 tokens do not fit, and running requests
/// have precedence.
#[test]
fn running_requests_evict_prefixes() {
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

/// The memory has room for 1024 tokens. The cache of a conversation of 800 tokens cannot be copied,
/// but the next turn reuses it.
#[test]
fn conversation_reuses_cache_without_memory_for_copies() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(1024, config), |worker| {
        Box::pin(async move {
            let mut text = vec![cue; 800];
            for tokens in [0, 800, 820, 840] {
                let answer = complete(worker, &text, json!({})).await;
                assert_eq!(cached(&answer), tokens);
                text.extend([5; 20]);
            }
            // One of the four choices uses the cache in place. The other choices wait for the
            // shared prefix.
            assert_eq!(cached(&complete(worker, &text[..200], json!({"n": 4})).await), 0);
        })
    });
}

/// The memory has room for 1024 tokens, and the client cancels each answer before its end.
#[test]
fn conversation_reuses_cache_of_cancelled_answer() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(1024, config), |worker| {
        Box::pin(async move {
            let request = |tokens| prompt::ValidRequest {
                prompt: vec![cue; tokens],
                max_tokens: 1000 - tokens,
                ..endless_request(cue)
            };
            for tokens in [800, 820] {
                let mut cancelled = worker.app.engine.submit(request(tokens)).unwrap();
                cancelled.events.recv().await.expect("completion generates text");
                drop(cancelled);
            }
            assert_eq!(cached(&complete(worker, &vec![cue; 820], json!({})).await), 819);
        })
    });
}

#[test]
fn embeddings_and_prompt_logprobs_are_not_cached() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let cached_bytes = async || {
                let metrics = worker.send("GET", "/metrics", "").await.body;
                value(&metrics, "rooflet_worker_kv_cache_bytes{kind=\"prefixes\"}")
            };
            let embed = json!({"model": "tiny", "input": prompt(300)});
            assert_eq!(worker.post("/v1/embeddings", &embed).await.status, 200);
            let echo = json!({"echo": true, "logprobs": 1});
            complete(worker, &prompt(300), echo).await;
            assert_eq!(cached_bytes().await, 0.0);
            assert_eq!(cached(&complete(worker, &prompt(300), json!({})).await), 0);
            assert!(cached_bytes().await > 0.0);
        })
    });
}

/// Returns a configuration with a prefix cache on disk, in `dir`.
fn with_disk_cache(dir: &TempDir, limit: u64) -> WorkerConfig {
    let dir = dir.path().to_owned();
    WorkerConfig {
        prefix_files: Some(PrefixFiles {
            dir,
            limit: Bytes(limit),
        }),
        ..config()
    }
}

const LARGE_LIMIT: u64 = 1 << 30;

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

/// Starts a worker, completes all prompts and stops the worker. Returns the responses.
fn complete_all(config: &WorkerConfig, prompts: &[Vec<u32>]) -> Vec<Value> {
    let answers = Rc::new(RefCell::new(Vec::new()));
    let (sink, prompts) = (Rc::clone(&answers), prompts.to_vec());
    with_worker(config.clone(), move |worker| {
        Box::pin(async move {
            for prompt in prompts {
                let answer = complete(worker, &prompt, json!({})).await;
                sink.borrow_mut().push(answer);
            }
        })
    });
    answers.take()
}

#[test]
fn prefixes_survive_restart() {
    let dir = TempDir::new();
    let first = complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400)]).remove(0);
    // One full block, and a partial block that includes the answer.
    assert_eq!(files_in(&dir).len(), 2);
    let again = complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400), prompt(400)]);
    assert_eq!(
        (cached(&first), cached(&again[0]), cached(&again[1])),
        (0, 399, 399)
    );
    assert_eq!(again[0]["choices"], first["choices"]);
    assert_eq!(again[1]["choices"], first["choices"]);
    // A different model in the same directory has separate files.
    let other = WorkerConfig {
        model: root().join("e2e/fixtures/models/llama3"),
        ..with_disk_cache(&dir, LARGE_LIMIT)
    };
    assert_eq!(cached(&complete_all(&other, &[prompt(400)])[0]), 0);
    assert_eq!(files_in(&dir).len(), 4);
}

/// Snapshots hold sliding windows and recurrent states.
#[test]
fn snapshots_survive_restart() {
    for model in ["gemma3", "gpt-oss", "qwen3-next"] {
        let dir = TempDir::new();
        let config = WorkerConfig {
            model: root().join("e2e/fixtures/models").join(model),
            ..with_disk_cache(&dir, LARGE_LIMIT)
        };
        let first = complete_all(&config, &[prompt(400), prompt(400)]);
        assert_eq!((cached(&first[0]), cached(&first[1])), (0, 399), "{model}");
        assert_eq!(first[1]["choices"], first[0]["choices"], "{model}");
        let again = complete_all(&config, &[[prompt(400), vec![5]].concat(), prompt(400)]);
        assert_eq!((cached(&again[0]), cached(&again[1])), (399, 399), "{model}");
        assert_eq!(again[1]["choices"], first[0]["choices"], "{model}");
    }
}

#[test]
fn corrupt_files_are_quarantined_and_recomputed() {
    let dir = TempDir::new();
    let first = complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400)]).remove(0);
    for path in files_in(&dir) {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() * 3 / 4;
        bytes[middle] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }
    let again = complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400)]).remove(0);
    assert_eq!((cached(&again), &again["choices"]), (0, &first["choices"]));
    assert!(dir.path().join("quarantine").exists());
    let recovered = complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400)]).remove(0);
    assert_eq!(
        (cached(&recovered), &recovered["choices"]),
        (399, &first["choices"])
    );
}

#[test]
fn disk_cache_stays_within_limit() {
    let dir = TempDir::new();
    complete_all(&with_disk_cache(&dir, LARGE_LIMIT), &[prompt(400)]);
    let sizes = files_in(&dir)
        .into_iter()
        .map(|path| path.metadata().unwrap().len());
    let limit = 2 * sizes.sum::<u64>();
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|first| [vec![first + 3], prompt(400)].concat())
        .collect();
    complete_all(&with_disk_cache(&dir, limit), &prompts);
    let bytes: u64 = files_in(&dir)
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(bytes <= limit, "{bytes} of {limit}");
    let last = complete_all(&with_disk_cache(&dir, limit), &prompts[4..]).remove(0);
    assert_eq!(cached(&last), 400, "the latest prefix is still cached");
}

#[test]
fn unusable_cache_directory_fails_loading() {
    let dir = TempDir::new();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut config = with_disk_cache(&dir, LARGE_LIMIT);
    config.prefix_files.as_mut().unwrap().dir = file;
    let _other = crate::cache::BlockFiles::open(dir.path(), String::new(), Clock::System);
    let err = loading_error(with_disk_cache(&dir, LARGE_LIMIT));
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("PrefixCacheInUse", ExitStatus::Unavailable)
    );
    let err = loading_error(config);
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("PrefixCacheUnusable", ExitStatus::Config)
    );
}
