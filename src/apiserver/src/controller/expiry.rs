//! Deletion of expired objects: events one hour after they last occurred, completed certificate
//! signing requests, bootstrap tokens after their expiration.

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

/// Retention of events, as in kube-apiserver.
const EVENT_LIFETIME: Duration = Duration::from_secs(3600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Predicate that is true if an object has expired at this time.
type IsExpired = fn(&Value, Timestamp) -> bool;

/// Kinds with expiration, and their condition.
const EXPIRING: [(BuiltIn, IsExpired); 3] = [
    (BuiltIn::Event, is_expired),
    (BuiltIn::CertificateSigningRequest, certificates::is_expired),
    (BuiltIn::Secret, is_expired_token),
];
/// Maximum concurrent deletions.
const WRITES_MAX: usize = 64;

/// Deletes expired objects until `stop`.
pub(crate) async fn run(engine: Engine, stop: CancellationToken) {
    loop {
        for (kind, is_expired) in EXPIRING {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sweep(&engine, kind, is_expired) => {}
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    }
}

async fn sweep(engine: &Engine, kind: BuiltIn, is_expired: IsExpired) {
    let resource = Arc::clone(engine.registry.snapshot().built_in(kind));
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
            let namespace = Some(object::namespace(record.json())).filter(|namespace| !namespace.is_empty());
            let target = Target::new(&resource, namespace, object::name(record.json()));
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

fn is_expired_token(secret: &Value, now: Timestamp) -> bool {
    object::namespace(secret) == TOKEN_NAMESPACE
        && authentication::is_bootstrap_token(secret)
        && authentication::is_expired(secret, now)
}

fn is_expired(event: &Value, now: Timestamp) -> bool {
    last_happened(event, now).is_some_and(|last| since(now, last) >= EVENT_LIFETIME)
}

/// Returns the latest time of an event, or `None` if it has none. Ignores times too far in the
/// future, because such an event would never expire.
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
    use base64::Engine as _;
    use serde_json::json;

    #[test]
    fn event_expires_one_hour_after_its_last_occurrence() {
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
