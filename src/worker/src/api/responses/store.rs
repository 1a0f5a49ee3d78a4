//! Responses that are kept for later requests, in memory: as long as the worker runs, and the
//! oldest give way when they are too many bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;

use rooflet_base::mutex::lock;
use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::responses::Recall;

/// Thousands of conversations of a few pages.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// A response and what was said up to its end.
#[derive(Debug)]
pub(crate) struct Stored {
    pub id: String,
    /// As it was answered.
    pub body: Bytes,
    /// Items of the request, of those before it, and of the answer.
    pub items: Vec<Json>,
    /// How many of them come before the answer.
    pub given: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first, each with its bytes.
    responses: VecDeque<(Arc<Stored>, usize)>,
    bytes: usize,
}

impl ResponseStore {
    pub(crate) fn keep(&self, stored: Stored) {
        let items = serde_json::to_vec(&stored.items).map_or(0, |json| json.len());
        let bytes = stored.id.len() + stored.body.len() + items;
        let mut kept = lock(&self.0);
        kept.bytes += bytes;
        kept.responses.push_back((Arc::new(stored), bytes));
        while kept.bytes > MAX_BYTES
            && let Some((_, bytes)) = kept.responses.pop_front()
        {
            kept.bytes -= bytes;
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        let kept = lock(&self.0);
        let found = kept.responses.iter().find(|(stored, _)| stored.id == id);
        found.map(|(stored, _)| Arc::clone(stored))
    }

    /// Whether it was there.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = lock(&self.0);
        let place = kept.responses.iter().position(|(stored, _)| stored.id == id);
        let removed = place.and_then(|place| kept.responses.remove(place));
        kept.bytes -= removed.as_ref().map_or(0, |(_, bytes)| *bytes);
        removed.is_some()
    }
}

impl Recall for ResponseStore {
    fn response(&self, id: &str) -> Option<Vec<Json>> {
        Some(self.get(id)?.items.clone())
    }

    fn item(&self, id: &str) -> Option<Json> {
        let is_it = |item: &&Json| item.get("id").and_then(Json::as_str) == Some(id);
        let kept = lock(&self.0);
        // Most often it is of the last answer.
        let mut answers = kept.responses.iter().rev();
        answers.find_map(|(stored, _)| stored.items.get(stored.given..)?.iter().find(is_it).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_give_way_to_the_newest() {
        let store = ResponseStore::default();
        let keep = |id: &str, bytes: usize| {
            store.keep(Stored {
                id: id.to_owned(),
                body: vec![b'x'; bytes].into(),
                items: vec!["hi".into()],
                given: 1,
            });
        };
        keep("a", MAX_BYTES / 2);
        keep("b", 10);
        assert!(store.get("a").is_some() && store.get("b").is_some());
        keep("c", MAX_BYTES / 2);
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("c").is_some());
        assert!(store.remove("b") && !store.remove("b"));
        // One that is too large alone leaves nothing behind.
        keep("d", MAX_BYTES);
        assert!(store.get("d").is_none() && store.get("c").is_none());
        assert_eq!(lock(&store.0).bytes, 0);
    }
}
