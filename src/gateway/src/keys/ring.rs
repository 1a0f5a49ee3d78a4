//! All API keys and their use in this gateway, as a value without network. The caller passes the
//! time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::meter::{Denial, Meter, Remaining};
use super::usage::{Report, Usage, day_left, others};
use crate::routing::affinity::stable_hash;
use rooflet_api::v1alpha1::{ApiKey, KeyUsage};

/// Identity of a client that presented a valid key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyIdentity {
    pub(super) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Served names that the key permits; all of the namespace if empty.
    models: Vec<String>,
}

impl fmt::Display for KeyIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl KeyIdentity {
    /// Identity for fair queueing: all requests of a key share the same turn.
    pub(crate) fn fairness_id(&self) -> u64 {
        stable_hash(&self.uid)
    }

    /// Returns whether the key permits a model.
    pub(crate) fn permits(&self, namespace: &str, model: &str) -> bool {
        namespace == self.namespace
            && (self.models.is_empty() || self.models.iter().any(|permitted| permitted == model))
    }
}

/// Reason why a secret is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyError {
    Unknown,
    /// Namespace and name of the expired key.
    Expired(String),
}

/// Limits of a key for response headers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Limits {
    pub(crate) requests: Option<Remaining>,
    pub(crate) tokens: Option<Remaining>,
}

#[derive(Debug)]
struct Entry {
    key: Arc<ApiKey>,
    identity: Arc<KeyIdentity>,
    meter: Meter,
    usage: Usage,
    /// True if the use has changed since the last report, or if that report contains requests in progress.
    is_dirty: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct KeyRing {
    /// Identity of this gateway in reports.
    gateway: String,
    /// Keys by UID.
    entries: BTreeMap<String, Entry>,
    /// Creation time and UID of the keys with this hash of the secret. The oldest one is valid:
    /// hashes are readable, and a copy in another namespace must not take over the requests.
    by_hash: HashMap<String, BTreeSet<(Option<Timestamp>, String)>>,
}

impl KeyRing {
    pub(crate) fn new(gateway: &str) -> Self {
        Self {
            gateway: gateway.to_owned(),
            entries: BTreeMap::new(),
            by_hash: HashMap::new(),
        }
    }

    /// Applies a change of a key: its new version, or `None` after its deletion.
    pub(crate) fn apply(
        &mut self,
        namespace: &str,
        name: &str,
        key: Option<&Arc<ApiKey>>,
        instant: Instant,
        now: Timestamp,
    ) {
        self.remove(namespace, name, key.and_then(|key| key.metadata.uid.as_deref()));
        if let Some(key) = key {
            self.set(key, instant, now);
        }
    }

    /// Adds a key or its new version.
    fn set(&mut self, key: &Arc<ApiKey>, instant: Instant, now: Timestamp) {
        let uid = key.metadata.uid.clone().unwrap_or_default();
        let identity = Arc::new(KeyIdentity {
            uid: uid.clone(),
            namespace: key.namespace().unwrap_or_default(),
            name: key.name_any(),
            models: key.spec.models.clone(),
        });
        let others = others(&self.gateway, key.status.as_ref(), now);
        if let Some(entry) = self.entries.get_mut(&uid) {
            if entry.key.spec.secret_hash != key.spec.secret_hash
                && let Some(keys) = self.by_hash.get_mut(&entry.key.spec.secret_hash)
            {
                keys.retain(|(_, known)| *known != uid);
            }
            entry.meter.set_others(&key.spec, others, instant);
            entry.key = key.clone();
            entry.identity = identity;
        } else {
            let entry = Entry {
                key: key.clone(),
                identity,
                meter: Meter::new(others),
                usage: Usage::continued(&self.gateway, key.status.as_ref()),
                is_dirty: false,
            };
            self.entries.insert(uid.clone(), entry);
        }
        let created = key.metadata.creation_timestamp.as_ref().map(|Time(at)| *at);
        let keys = self.by_hash.entry(key.spec.secret_hash.clone()).or_default();
        keys.insert((created, uid));
    }

    /// Removes all keys with this namespace and name except `kept` (UID).
    fn remove(&mut self, namespace: &str, name: &str, kept: Option<&str>) {
        self.entries.retain(|uid, entry| {
            let is_other = entry.identity.namespace != namespace || entry.identity.name != name;
            is_other || Some(uid.as_str()) == kept
        });
        let entries = &self.entries;
        self.by_hash.retain(|_, keys| {
            keys.retain(|(_, uid)| entries.contains_key(uid));
            !keys.is_empty()
        });
    }

    /// Returns the identity of the client that presents a secret with this hash.
    pub(crate) fn authenticate(&self, hash: &str, now: Timestamp) -> Result<Arc<KeyIdentity>, KeyError> {
        let oldest = self.by_hash.get(hash).and_then(BTreeSet::first);
        let entry = oldest.and_then(|(_, uid)| self.entries.get(uid));
        let entry = entry.ok_or(KeyError::Unknown)?;
        match &entry.key.spec.expires_at {
            Some(Time(at)) if *at <= now => Err(KeyError::Expired(entry.identity.to_string())),
            _ => Ok(entry.identity.clone()),
        }
    }

    /// Admits a request with about `prompt_tokens`, which must be ended with [`Self::end`].
    ///
    /// A key that was deleted since its authentication has no limits: its requests in progress may
    /// end.
    pub(crate) fn admit(
        &mut self,
        identity: &KeyIdentity,
        prompt_tokens: u64,
        instant: Instant,
        now: Timestamp,
    ) -> Result<(), Denial> {
        let Some(entry) = self.entries.get_mut(&identity.uid) else {
            return Ok(());
        };
        // Reports of other gateways expire with time, not only with a new version of the key.
        let others = others(&self.gateway, entry.key.status.as_ref(), now);
        let today = entry.usage.tokens_today(now);
        let spec = &entry.key.spec;
        entry
            .meter
            .admit(spec, prompt_tokens, others, today, instant, day_left(now))?;
        entry.is_dirty = true;
        Ok(())
    }

    /// Ends an admitted request that reserved `reserved` tokens and used `used` of `model`.
    pub(crate) fn end(
        &mut self,
        identity: &KeyIdentity,
        reserved: u64,
        model: &str,
        used: KeyUsage,
        instant: Instant,
        now: Timestamp,
    ) {
        if let Some(entry) = self.entries.get_mut(&identity.uid) {
            entry.meter.end(&entry.key.spec, reserved, used.tokens(), instant);
            entry.usage.add(model, used, now);
            entry.is_dirty = true;
        }
    }

    /// Returns the state of the key's limits.
    pub(crate) fn limits(&mut self, identity: &KeyIdentity, instant: Instant, now: Timestamp) -> Limits {
        let Some(entry) = self.entries.get_mut(&identity.uid) else {
            return Limits::default();
        };
        let others = others(&self.gateway, entry.key.status.as_ref(), now);
        let (requests, tokens) = entry.meter.remaining(&entry.key.spec, others, instant);
        Limits { requests, tokens }
    }

    /// Returns the reports of all keys whose use has changed, with the use they contain. A key with requests in progress
    /// is reported each time, because other gateways ignore old reports.
    pub(crate) fn reports(&mut self, now: Timestamp) -> Vec<KeyReport> {
        let dirty = self.entries.iter_mut().filter(|(_, entry)| entry.is_dirty);
        dirty
            .map(|(uid, entry)| {
                let status = entry.key.status.clone().unwrap_or_default();
                let in_progress = entry.meter.in_progress();
                entry.is_dirty = in_progress > 0;
                KeyReport {
                    uid: uid.clone(),
                    namespace: entry.identity.namespace.clone(),
                    name: entry.identity.name.clone(),
                    version: entry.key.metadata.resource_version.clone(),
                    before: entry.usage.clone(),
                    report: entry.usage.report(&self.gateway, &status, in_progress, now),
                }
            })
            .collect()
    }

    /// Records that a report was written.
    pub(crate) fn reported(&mut self, written: KeyReport) {
        if let Some(entry) = self.entries.get_mut(&written.uid) {
            entry.usage = written.report.usage.with_later(&written.before, &entry.usage);
        }
    }

    /// Records that a report was not written, so that the next one contains it.
    pub(crate) fn not_reported(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_dirty = true;
        }
    }
}

/// Report of a key's use, to be written to its status.
#[derive(Debug, Clone)]
pub(crate) struct KeyReport {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Version of the object that the report is based on.
    pub(super) version: Option<String>,
    before: Usage,
    pub(super) report: Report,
}

impl KeyReport {
    /// Returns the merge patch of the key. It is valid for this key only, and not for a later one
    /// of the same name.
    pub(super) fn patch(&self) -> Value {
        let mut metadata = json!({ "uid": self.uid });
        if self.report.needs_version {
            metadata["resourceVersion"] = json!(self.version);
        }
        json!({ "metadata": metadata, "status": self.report.status })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rooflet_api::v1alpha1::ApiKeySpec;
    use rooflet_base::clock::Clock;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_772_359_200 + second).expect("a time")
    }

    fn key(name: &str, uid: &str, spec: ApiKeySpec) -> Arc<ApiKey> {
        let mut key = ApiKey::new(name, spec);
        key.metadata.namespace = Some("team".to_owned());
        key.metadata.uid = Some(uid.to_owned());
        Arc::new(key)
    }

    fn spec(hash: &str) -> ApiKeySpec {
        ApiKeySpec {
            secret_hash: hash.to_owned(),
            ..ApiKeySpec::default()
        }
    }

    #[test]
    fn secret_identifies_one_key_until_it_is_deleted_or_expires() {
        let mut ring = KeyRing::new("gateway");
        let limited = ApiKeySpec {
            models: vec!["guide".to_owned()],
            expires_at: Some(Time(at(100))),
            ..spec("sha256:a")
        };
        ring.set(&key("a", "1", limited), Clock::System.instant(), at(0));
        ring.set(&key("b", "2", spec("sha256:b")), Clock::System.instant(), at(0));
        let a = ring.authenticate("sha256:a", at(99)).expect("valid");
        assert!(a.permits("team", "guide"));
        assert!(!a.permits("team", "chat") && !a.permits("other", "guide"));
        let expired = KeyError::Expired("team/a".to_owned());
        assert_eq!(ring.authenticate("sha256:a", at(100)), Err(expired));
        assert!(
            ring.authenticate("sha256:b", at(100))
                .expect("valid")
                .permits("team", "chat")
        );
        assert_eq!(ring.authenticate("sha256:c", at(0)), Err(KeyError::Unknown));
        // A replaced secret is invalid at once.
        ring.set(&key("b", "2", spec("sha256:c")), Clock::System.instant(), at(0));
        assert_eq!(ring.authenticate("sha256:b", at(0)), Err(KeyError::Unknown));
        assert!(ring.authenticate("sha256:c", at(0)).is_ok());
        ring.remove("team", "b", None);
        assert_eq!(ring.authenticate("sha256:c", at(0)), Err(KeyError::Unknown));
        assert!(ring.authenticate("sha256:a", at(0)).is_ok());
    }

    #[test]
    fn copied_hash_does_not_take_over_a_key() {
        let mut ring = KeyRing::new("gateway");
        let created = |name: &str, uid: &str, second: i64| {
            let mut key = (*key(name, uid, spec("sha256:a"))).clone();
            key.metadata.creation_timestamp = Some(Time(at(second)));
            Arc::new(key)
        };
        // The UID of the copy sorts first.
        let (own, copy) = (created("own", "2", 0), created("copy", "1", 1));
        for order in [[&own, &copy], [&copy, &own]] {
            for key in order {
                ring.set(key, Clock::System.instant(), at(2));
            }
            assert_eq!(ring.authenticate("sha256:a", at(2)).expect("valid").name, "own");
        }
        ring.remove("team", "own", None);
        ring.remove("team", "copy", None);
        assert_eq!(ring.authenticate("sha256:a", at(2)), Err(KeyError::Unknown));
    }

    #[test]
    fn use_through_another_gateway_expires_without_a_new_report() {
        let mut ring = KeyRing::new("gateway");
        let noon = "2026-03-01T12:00:00Z".parse::<Timestamp>().expect("a time");
        let spec = ApiKeySpec {
            tokens_per_day: Some(100),
            concurrent_requests: Some(2),
            ..spec("sha256:a")
        };
        let reported = |in_progress: u32, tokens: u64| {
            let mut key = Arc::unwrap_or_clone(key("a", "1", spec.clone()));
            key.status = serde_json::from_value(json!({"gateways": {"other": {
                "updateTime": Time(noon), "inProgress": in_progress, "requests": 1, "tokens": tokens,
                "days": {"2026-03-01": {"guide": {"requests": 1, "promptTokens": tokens}}}}}}))
            .expect("a status");
            Arc::new(key)
        };
        let start = Clock::System.instant();
        let later = |seconds: i64| noon + jiff::SignedDuration::from_secs(seconds);
        // The other gateway crashes with two requests in progress.
        ring.set(&reported(2, 0), Clock::System.instant(), noon);
        let identity = ring.authenticate("sha256:a", noon).expect("valid");
        let denied = ring.admit(&identity, 10, start, later(10));
        assert_eq!(denied, Err(Denial::Concurrency { limit: 2 }));
        ring.admit(&identity, 10, start, later(31))
            .expect("the report is too old");
        // The other gateway uses up the budget of the day.
        ring.set(&reported(0, 100), Clock::System.instant(), later(40));
        let denied = ring.admit(&identity, 10, start, later(12 * 3600 - 1));
        assert!(matches!(denied, Err(Denial::Budget { .. })), "{denied:?}");
        ring.admit(&identity, 10, start, later(12 * 3600))
            .expect("the next day");
    }

    #[test]
    fn key_deleted_during_a_request_is_ignored() {
        let mut ring = KeyRing::new("gateway");
        ring.set(&key("a", "1", spec("sha256:a")), Clock::System.instant(), at(0));
        let identity = ring.authenticate("sha256:a", at(0)).expect("valid");
        ring.admit(&identity, 10, Clock::System.instant(), at(0)).unwrap();
        ring.remove("team", "a", None);
        ring.end(
            &identity,
            10,
            "guide",
            KeyUsage::default(),
            Clock::System.instant(),
            at(1),
        );
        assert!(ring.reports(at(2)).is_empty());
        // A new key of the same name starts without use.
        ring.set(&key("a", "2", spec("sha256:b")), Clock::System.instant(), at(3));
        assert!(ring.reports(at(4)).is_empty());
    }

    #[test]
    fn long_request_counts_in_other_gateways_until_its_end() {
        let limited = ApiKeySpec {
            concurrent_requests: Some(1),
            ..spec("sha256:a")
        };
        let start = Clock::System.instant();
        let (mut own, mut other) = (KeyRing::new("own"), KeyRing::new("other"));
        let mut stored = key("a", "1", limited);
        own.set(&stored, start, at(0));
        let identity = own.authenticate("sha256:a", at(0)).expect("valid");
        own.admit(&identity, 10, start, at(0)).expect("the first request");
        let mut report = |own: &mut KeyRing, second: i64| {
            for written in own.reports(at(second)) {
                // The patch of the first gateway has all fields of the status.
                let mut key = Arc::unwrap_or_clone(stored.clone());
                key.status = serde_json::from_value(written.report.status.clone()).expect("a status");
                stored = Arc::new(key);
                own.reported(written);
                own.set(&stored, start, at(second));
            }
            stored.clone()
        };
        for second in (10..=300).step_by(10) {
            other.set(&report(&mut own, second), start, at(second));
            let denied = other.admit(&identity, 10, start, at(second + 9));
            assert_eq!(denied, Err(Denial::Concurrency { limit: 1 }), "{second}");
        }
        own.end(&identity, 10, "guide", KeyUsage::default(), start, at(301));
        other.set(&report(&mut own, 310), start, at(310));
        other
            .admit(&identity, 10, start, at(310))
            .expect("no request in progress");
        assert!(own.reports(at(320)).is_empty());
    }

    #[test]
    fn reports_until_written() {
        let mut ring = KeyRing::new("gateway");
        let minute = ApiKeySpec {
            tokens_per_minute: Some(1000),
            ..spec("sha256:a")
        };
        ring.set(&key("a", "1", minute), Clock::System.instant(), at(0));
        let identity = ring.authenticate("sha256:a", at(0)).expect("valid");
        let start = Clock::System.instant();
        ring.admit(&identity, 100, start, at(0)).unwrap();
        let used = KeyUsage {
            requests: 1,
            prompt_tokens: 110,
            completion_tokens: 90,
        };
        ring.end(&identity, 100, "guide", used, start, at(1));
        let tokens = ring.limits(&identity, start, at(1)).tokens.expect("a limit");
        assert_eq!((tokens.limit, tokens.remaining), (1000, 800));
        assert_eq!(tokens.reset, Duration::from_secs(12));
        let reports = ring.reports(at(10));
        assert_eq!(reports.len(), 1);
        assert!(ring.reports(at(20)).is_empty());
        ring.not_reported(&reports[0].uid);
        let again = ring.reports(at(30)).remove(0);
        assert_eq!(again.report.status["tokensToday"], 200);
        ring.reported(again);
        assert!(ring.reports(at(40)).is_empty());
    }
}
