//! Deletion of expired objects: events some time after they last occurred, completed certificate
//! signing requests, bootstrap tokens after their expiration.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::authentication;
use crate::builtin::BuiltIn;
use crate::certificates;
use crate::endpoints::options::{DeleteOptions, Preconditions};
use crate::engine::{Engine, Target};
use crate::object;
use crate::status::ApiError;
use rooflet_base::clock::since;
use rooflet_pki::TOKEN_NAMESPACE;
use rooflet_store::{ListOptions, Record};

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Predicate that is true if an object has expired at this time.
type IsExpired = fn(&Value, Timestamp) -> bool;

/// Kinds besides events with expiration, and their condition.
const EXPIRING: [(BuiltIn, IsExpired); 2] = [
    (BuiltIn::CertificateSigningRequest, certificates::is_expired),
    (BuiltIn::Secret, is_expired_token),
];
/// Maximum concurrent deletions.
const WRITES_MAX: usize = 64;

/// Retention of events. The default is that of kube-apiserver, with a limit of the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRetention {
    /// Time after an event last occurred.
    pub lifetime: Duration,
    /// Maximum size of all events as JSON. Beyond it, the server deletes the oldest events.
    pub max_bytes: usize,
}

impl Default for EventRetention {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(3600),
            max_bytes: 16 << 20,
        }
    }
}

impl EventRetention {
    /// Returns the events to delete.
    fn expired(self, mut records: Vec<Arc<Record>>, now: Timestamp) -> Vec<Arc<Record>> {
        let last = |record: &Arc<Record>| last_happened(&record.json(), now, self.lifetime);
        records.sort_by_cached_key(|record| Reverse(last(record)));
        let mut bytes = 0;
        records.retain(|record| {
            bytes += record.value.len();
            let has_expired = last(record).is_some_and(|last| since(now, last) >= self.lifetime);
            has_expired || bytes > self.max_bytes
        });
        records
    }
}

/// Deletes expired objects until `stop`.
pub(crate) async fn run(engine: Engine, events: EventRetention, stop: CancellationToken) {
    loop {
        let sweep_all = async {
            sweep(&engine, BuiltIn::Event, |records, now| {
                events.expired(records, now)
            })
            .await;
            for (kind, is_expired) in EXPIRING {
                let expired = |mut records: Vec<Arc<Record>>, now| {
                    records.retain(|record| is_expired(&record.json(), now));
                    records
                };
                sweep(&engine, kind, expired).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sweep_all => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    }
}

async fn sweep(
    engine: &Engine,
    kind: BuiltIn,
    expired: impl FnOnce(Vec<Arc<Record>>, Timestamp) -> Vec<Arc<Record>>,
) {
    let resource = Arc::clone(engine.registry.snapshot().built_in(kind));
    let Ok(listing) = engine.store.list(&resource.prefix(), &ListOptions::default()) else {
        return;
    };
    let expired = expired(listing.records, engine.clock.now());
    let mut outcomes = futures::stream::iter(expired)
        .map(|record| {
            let stored = record.json();
            let namespace = Some(object::namespace(&stored)).filter(|namespace| !namespace.is_empty());
            let target = Target::new(&resource, namespace, object::name(&stored));
            async move { engine.delete(&target, &only(&record)).await }
        })
        .buffer_unordered(WRITES_MAX);
    while let Some(outcome) = outcomes.next().await {
        // The object was deleted, or changed and thus possibly extended, in the meantime.
        let is_expected = |err: &ApiError| matches!(err.code(), StatusCode::NOT_FOUND | StatusCode::CONFLICT);
        if let Some(err) = outcome.err().filter(|err| !is_expected(err)) {
            warn!(kind = resource.kind, error = %err, "failed to delete expired object; retrying");
        }
    }
}

/// Returns options that delete the record only if it is unchanged.
fn only(record: &Record) -> DeleteOptions {
    let version = object::resource_version(&record.json()).to_owned();
    let preconditions = Preconditions {
        resource_version: Some(version),
        ..Preconditions::default()
    };
    DeleteOptions {
        preconditions,
        ..DeleteOptions::default()
    }
}

fn is_expired_token(secret: &Value, now: Timestamp) -> bool {
    object::namespace(secret) == TOKEN_NAMESPACE
        && authentication::is_bootstrap_token(secret)
        && authentication::is_expired(secret, now)
}

/// Returns the latest time of an event, or `None` if it has none. Ignores times more than
/// `lifetime` in the future, because such an event would never expire.
fn last_happened(event: &Value, now: Timestamp, lifetime: Duration) -> Option<Timestamp> {
    let paths: [&[&str]; 5] = [
        &["metadata", "creationTimestamp"],
        &["firstTimestamp"],
        &["lastTimestamp"],
        &["eventTime"],
        &["series", "lastObservedTime"],
    ];
    let times = paths
        .into_iter()
        .filter_map(|path| object::text(event, path).parse().ok());
    times.filter(|time| *time <= now + lifetime).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use rooflet_store::Key;
    use serde_json::json;

    fn record(event: &Value) -> Arc<Record> {
        Record::for_tests(Key::new("/events/default/e"), event.to_string().into())
    }

    #[test]
    fn event_expires_after_its_last_occurrence() {
        let check = |event: Value, now: &str, expect: bool| {
            let now = now.parse().expect("a time");
            let expired = EventRetention::default().expired(vec![record(&event)], now);
            assert_eq!(expired.len() == 1, expect, "{event} {now}");
        };
        let once = json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}, "eventTime": null});
        check(once.clone(), "2026-01-01T10:59:59Z", false);
        check(once, "2026-01-01T11:00:00Z", true);
        let again = json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
            "lastTimestamp": "2026-01-01T10:30:00Z"});
        check(again.clone(), "2026-01-01T11:00:00Z", false);
        check(again, "2026-01-01T11:30:00Z", true);
        let series = json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
            "series": {"lastObservedTime": "2026-01-01T10:45:00.000001Z"}});
        check(series.clone(), "2026-01-01T11:45:00Z", false);
        check(series, "2026-01-01T11:45:01Z", true);
        check(json!({"metadata": {}}), "2026-01-01T11:00:00Z", false);
        let from_afar = json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
            "lastTimestamp": "9999-01-01T10:00:00Z"});
        check(from_afar.clone(), "2026-01-01T10:59:59Z", false);
        check(from_afar, "2026-01-01T11:00:00Z", true);
    }

    #[test]
    fn oldest_events_are_deleted_beyond_the_maximum_size() {
        let event = |minute: u32| {
            let time = format!("2026-01-01T10:{minute:02}:00Z");
            record(&json!({"metadata": {"creationTimestamp": time}}))
        };
        let records: Vec<_> = [5, 1, 3, 2, 4].map(event).into();
        let size = records[0].value.len();
        let retention = |max_bytes| EventRetention {
            lifetime: Duration::from_secs(7 * 24 * 3600),
            max_bytes,
        };
        let check = |max_bytes: usize, expect: &[u32]| {
            let now = "2026-01-02T10:00:00Z".parse().expect("a time");
            let expired = retention(max_bytes).expired(records.clone(), now);
            let expired: Vec<_> = expired.iter().map(|record| record.value.clone()).collect();
            let expect: Vec<_> = expect.iter().map(|minute| event(*minute).value.clone()).collect();
            assert_eq!(expired, expect, "{max_bytes}");
        };
        check(5 * size, &[]);
        check(5 * size - 1, &[1]);
        check(2 * size, &[3, 2, 1]);
    }

    #[test]
    fn only_expired_tokens_are_deleted() {
        let now = "2026-06-01T12:00:00Z".parse().expect("a time");
        let secret = |namespace: &str, kind: &str, expiration: &str| {
            let expiration = base64::engine::general_purpose::STANDARD.encode(expiration);
            json!({"metadata": {"namespace": namespace}, "type": kind, "data": {"expiration": expiration}})
        };
        let token = "bootstrap.kubernetes.io/token";
        for (secret, expect) in [
            (secret("kube-system", token, "2026-06-01T12:00:00Z"), true),
            (secret("kube-system", token, "2026-06-01T12:00:01Z"), false),
            (secret("kube-system", token, "soon"), true),
            (secret("kube-system", "Opaque", "2026-06-01T12:00:00Z"), false),
            (secret("default", token, "2026-06-01T12:00:00Z"), false),
            (
                json!({"metadata": {"namespace": "kube-system"}, "type": token}),
                false,
            ),
        ] {
            assert_eq!(is_expired_token(&secret, now), expect, "{secret}");
        }
    }
}
