//! Events expire an hour after they last happened.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::builtin::BuiltIn;
use super::engine::{Engine, Target};
use super::object;
use super::options::{DeleteOptions, Preconditions};
use super::status::ApiError;
use crate::clock::since;
use crate::store::{ListOptions, Record};

/// What a real server keeps events for.
const EVENT_LIFETIME: Duration = Duration::from_secs(3600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Deletions under way at once.
const WRITES_MAX: usize = 64;

/// Removes expired events until `stop`.
pub(super) async fn run(engine: Engine, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sweep(&engine) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    }
}

async fn sweep(engine: &Engine) {
    let resource = Arc::clone(engine.registry.snapshot().built_in(BuiltIn::Event));
    let Ok(listing) = engine.store.list(&resource.prefix(), &ListOptions::default()) else {
        return;
    };
    let now = engine.clock.now();
    let expired = listing
        .records
        .into_iter()
        .filter(|record| is_expired(record.json(), now));
    let mut outcomes = futures::stream::iter(expired)
        .map(|record| {
            let target = Target::new(
                &resource,
                Some(object::namespace(record.json())),
                object::name(record.json()),
            );
            async move { engine.delete(&target, &only(&record)).await }
        })
        .buffer_unordered(WRITES_MAX);
    while let Some(outcome) = outcomes.next().await {
        // Gone, or happened again meanwhile: both are well.
        let is_expected = |err: &ApiError| matches!(err.code(), StatusCode::NOT_FOUND | StatusCode::CONFLICT);
        if let Some(err) = outcome.err().filter(|err| !is_expected(err)) {
            warn!(error = %err, "removing an expired event failed; trying again");
        }
    }
}

/// Deletes the record only as it is.
fn only(record: &Record) -> DeleteOptions {
    let version = object::resource_version(record.json()).to_owned();
    let preconditions = Preconditions {
        resource_version: Some(version),
        ..Preconditions::default()
    };
    DeleteOptions {
        preconditions,
        ..DeleteOptions::default()
    }
}

fn is_expired(event: &Value, now: Timestamp) -> bool {
    last_happened(event, now).is_some_and(|last| since(now, last) >= EVENT_LIFETIME)
}

/// The latest of the times an event tells; `None` if it tells none. Times from a clock that is plainly
/// wrong do not count, or its events would stay for good.
fn last_happened(event: &Value, now: Timestamp) -> Option<Timestamp> {
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
    times.filter(|time| *time <= now + EVENT_LIFETIME).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_expires_an_hour_after_it_last_happened() {
        let check = |event: Value, now: &str, expect: bool| {
            assert_eq!(
                is_expired(&event, now.parse().expect("a time")),
                expect,
                "{event} {now}"
            );
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
}
