//! Requests that stream while something happens.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use super::{Cluster, Http};

/// Requests that run at the same time.
const STREAMS: usize = 3;

/// Streams answers of `guide` one after the other while `act` runs. Every one has to come to its
/// end.
pub(crate) fn under_load(cluster: &Cluster, act: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            let gateway = cluster.gateway.another();
            scope.spawn(|| stream(gateway, &done, &answered));
        }
        // Also when `act` panics: the threads would go on for ever.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(
        answered.load(Ordering::SeqCst) > STREAMS,
        "too few answers to tell"
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
        let answer = gateway.post("/v1/chat/completions", &body).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let end = answer.events().last().cloned();
        assert_eq!(end.as_deref(), Some("[DONE]"), "{}", answer.text);
        assert!(!answer.streamed_text().is_empty(), "{}", answer.text);
        answered.fetch_add(1, Ordering::SeqCst);
    }
}
