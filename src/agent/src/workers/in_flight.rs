//! Number of in-flight requests per replica, counted in the agent's proxy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;

use crate::replica::ReplicaKey;
use rooflet_api::wire::RUNNING_HEADER;
use rooflet_base::mutex::lock;

/// In-flight requests per replica. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlightCounts(Arc<Mutex<BTreeMap<ReplicaKey, u64>>>);

/// In-flight request. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    all: InFlightCounts,
    key: ReplicaKey,
}

impl InFlightCounts {
    pub(crate) fn begin(&self, key: &ReplicaKey) -> InFlightRequest {
        self.change(key, |count| count.saturating_add(1));
        InFlightRequest {
            all: self.clone(),
            key: key.clone(),
        }
    }

    /// Changes the count of a replica and returns the new count.
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

    /// Returns whether no request is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn count(&self, key: &ReplicaKey) -> u64 {
        self.change(key, |count| count)
    }
}

impl InFlightRequest {
    /// Adds the current count to the response headers. The request ends with the response body.
    pub(crate) fn finish_with(self, mut response: Response) -> Response {
        let running = self.all.count(&self.key);
        response.headers_mut().insert(RUNNING_HEADER, running.into());
        self.end_with(response)
    }

    /// Ends the request with the response body.
    pub(crate) fn end_with(self, response: Response) -> Response {
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _in_flight = &self;
                frame
            }))
        })
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.all.change(&self.key, |count| count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_report_the_number_of_in_flight_requests() {
        let all = InFlightCounts::default();
        let key = ReplicaKey::new("default", "a");
        let other = all.begin(&ReplicaKey::new("default", "b"));
        let running = |response: &Response| response.headers()[RUNNING_HEADER].to_str().unwrap().to_owned();
        let first = all.begin(&key).finish_with(Response::new(Body::from("one")));
        let second = all.begin(&key).finish_with(Response::new(Body::from("two")));
        assert_eq!((running(&first).as_str(), running(&second).as_str()), ("1", "2"));
        let text = first.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text.as_ref(), b"one");
        assert_eq!(all.count(&key), 1, "the first response was read completely");
        // A client disconnects.
        drop(second);
        drop(all.begin(&key));
        assert_eq!(all.count(&key), 0);
        drop(other);
        assert!(all.0.lock().unwrap().is_empty(), "ended requests leave no entry");
    }
}
