//! How many requests of gateways each replica has, counted where all of them pass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;

use crate::replica::ReplicaKey;
use rooflet_api::wire::RUNNING_HEADER;
use rooflet_base::mutex::lock;

/// See the module. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<BTreeMap<ReplicaKey, u64>>>);

/// One request; over when dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    all: InFlight,
    key: ReplicaKey,
}

impl InFlight {
    pub(crate) fn begin(&self, key: &ReplicaKey) -> Flight {
        self.change(key, |count| count.saturating_add(1));
        Flight {
            all: self.clone(),
            key: key.clone(),
        }
    }

    /// Returns the new count.
    fn change(&self, key: &ReplicaKey, with: impl FnOnce(u64) -> u64) -> u64 {
        let mut counts = lock(&self.0);
        let count = with(counts.get(key).copied().unwrap_or(0));
        if count == 0 {
            counts.remove(key);
        } else {
            counts.insert(key.clone(), count);
        }
        count
    }

    fn count(&self, key: &ReplicaKey) -> u64 {
        self.change(key, |count| count)
    }
}

impl Flight {
    /// Says on the answer how many there are, and ends with it.
    pub(crate) fn land_with(self, response: Response) -> Response {
        let (mut parts, body) = response.into_parts();
        parts
            .headers
            .insert(RUNNING_HEADER, self.all.count(&self.key).into());
        let body = body.map_frame(move |frame| {
            let _under_way = &self;
            frame
        });
        Response::from_parts(parts, Body::new(body))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.all.change(&self.key, |count| count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_tells_of_all_requests_that_are_under_way() {
        let all = InFlight::default();
        let key = ReplicaKey::new("default", "a");
        let other = all.begin(&ReplicaKey::new("default", "b"));
        let told = |response: &Response| response.headers()[RUNNING_HEADER].to_str().unwrap().to_owned();
        let first = all.begin(&key).land_with(Response::new(Body::from("one")));
        let second = all.begin(&key).land_with(Response::new(Body::from("two")));
        assert_eq!((told(&first).as_str(), told(&second).as_str()), ("1", "2"));
        let text = first.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text.as_ref(), b"one");
        assert_eq!(all.count(&key), 1, "the first has been read to its end");
        // A client that goes away.
        drop(second);
        drop(all.begin(&key));
        assert_eq!(all.count(&key), 0);
        drop(other);
        assert!(
            all.0.lock().unwrap().is_empty(),
            "nothing is kept of what is over"
        );
    }
}
