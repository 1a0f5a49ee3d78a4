//! Streaming requests during an action.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use super::{Cluster, Http};

/// Number of concurrent requests.
const STREAMS: usize = 3;

/// Streams answers of `guide` while `act` runs. Every answer must be complete.
pub(crate) fn under_load(cluster: &Cluster, act: impl FnOnce()) {
    under_load_on(&cluster.gateway, act);
}

/// Like [`under_load`], through a given gateway.
pub(crate) fn under_load_on(gateway: &Http, act: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            let gateway = gateway.duplicate();
            scope.spawn(|| stream(gateway, &done, &answered));
        }
        // The threads must stop even if `act` panics.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(
        answered.load(Ordering::SeqCst) > STREAMS,
        "too few answers for a result"
    );
}

fn stream(gateway: Http, done: &AtomicBool, answered: &AtomicUsize) {
    let body = json!({
        "model": "guide",
        "messages": [{ "role": "user", "content": "What is rooflet?" }],
        "stream": true,
        "temperature": 0,
        "max_tokens": 32
    });
    while !done.load(Ordering::SeqCst) {
        let answer = gateway.post("/v1/chat/completions", &body).expect("a response");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let end = answer.events().last().cloned();
        assert_eq!(end.as_deref(), Some("[DONE]"), "{}", answer.text);
        assert!(!answer.streamed_text().is_empty(), "{}", answer.text);
        answered.fetch_add(1, Ordering::SeqCst);
    }
}
