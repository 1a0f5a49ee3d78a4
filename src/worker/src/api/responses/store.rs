//! In-memory store of responses for later requests. Exceeding the size limit evicts the oldest
//! responses. A restart of the worker clears the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;

use rooflet_base::mutex::lock;
use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::responses::StoredItems;

/// Maximum total size of stored responses; enough for thousands of conversations of a few pages.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// Response with the items of its conversation.
#[derive(Debug)]
pub(crate) struct Stored {
    pub id: String,
    /// Body of the original response.
    pub body: Bytes,
    /// Items of previous responses, of the request and of the answer, in this order.
    pub items: Vec<Json>,
    /// Number of items before the answer.
    pub input_count: usize,
}

/// Thread-safe store of responses; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Responses with their sizes in bytes, oldest first.
    responses: VecDeque<(Arc<Stored>, usize)>,
    bytes: usize,
}

impl ResponseStore {
    pub(crate) fn insert(&self, stored: Stored) {
        let items = serde_json::to_vec(&stored.items).map_or(0, |json| json.len());
        let bytes = stored.id.len() + stored.body.len() + items;
        let mut entries = lock(&self.0);
        entries.bytes += bytes;
        entries.responses.push_back((Arc::new(stored), bytes));
        while entries.bytes > MAX_BYTES
            && let Some((_, bytes)) = entries.responses.pop_front()
        {
            entries.bytes -= bytes;
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        let entries = lock(&self.0);
        let found = entries.responses.iter().find(|(stored, _)| stored.id == id);
        found.map(|(stored, _)| Arc::clone(stored))
    }

    /// Removes a response. Returns false if the store does not have the response.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut entries = lock(&self.0);
        let place = entries.responses.iter().position(|(stored, _)| stored.id == id);
        let removed = place.and_then(|place| entries.responses.remove(place));
        entries.bytes -= removed.as_ref().map_or(0, |(_, bytes)| *bytes);
        removed.is_some()
    }
}

impl StoredItems for ResponseStore {
    fn response(&self, id: &str) -> Option<Vec<Json>> {
        Some(self.get(id)?.items.clone())
    }

    fn item(&self, id: &str) -> Option<Json> {
        let has_id = |item: &&Json| item.get("id").and_then(Json::as_str) == Some(id);
        let entries = lock(&self.0);
        // Most references point to the latest answer.
        let mut answers = entries.responses.iter().rev();
        answers.find_map(|(stored, _)| {
            stored
                .items
                .get(stored.input_count..)?
                .iter()
                .find(has_id)
                .cloned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_oldest_responses_beyond_size_limit() {
        let store = ResponseStore::default();
        let insert = |id: &str, bytes: usize| {
            store.insert(Stored {
                id: id.to_owned(),
                body: vec![b'x'; bytes].into(),
                items: vec!["hi".into()],
                input_count: 1,
            });
        };
        insert("a", MAX_BYTES / 2);
        insert("b", 10);
        assert!(store.get("a").is_some() && store.get("b").is_some());
        insert("c", MAX_BYTES / 2);
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("c").is_some());
        assert!(store.remove("b") && !store.remove("b"));
        // A response larger than the limit evicts everything, including itself.
        insert("d", MAX_BYTES);
        assert!(store.get("d").is_none() && store.get("c").is_none());
        assert_eq!(lock(&store.0).bytes, 0);
    }
}
