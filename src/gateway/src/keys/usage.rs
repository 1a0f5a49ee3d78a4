//! Use of one API key through this gateway, and the status patch that reports it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::meter::Others;
use rooflet_api::v1alpha1::{ApiKeyStatus, GatewayUsage, KeyUsage};

/// Days that the status keeps.
const KEPT_DAYS: i64 = 35;
/// Age after which the requests in progress of another gateway no longer count: it may have
/// crashed.
const STALE_SECONDS: i64 = 30;
/// Age after which the use through another gateway is moved to this gateway's report, so that the
/// status does not grow with every restart of a gateway under a new name.
const ABANDONED_SECONDS: i64 = 2 * 86_400;

/// Returns the day (UTC) in the form of the status.
pub(super) fn day_of(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).date().to_string()
}

/// Returns the time from `now` to the next day (UTC).
pub(super) fn day_left(now: Timestamp) -> std::time::Duration {
    let past = now.as_second().rem_euclid(86_400);
    std::time::Duration::from_secs(u64::try_from(86_400 - past).unwrap_or(1))
}

fn age_seconds(usage: &GatewayUsage, now: Timestamp) -> i64 {
    let updated = usage.update_time.as_ref();
    updated.map_or(i64::MAX, |Time(at)| now.as_second() - at.as_second())
}

/// Use of a key through this gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Usage {
    reported: GatewayUsage,
    last_used: Option<Timestamp>,
}

impl Usage {
    /// Continues the gateway's last report.
    pub(super) fn continued(gateway: &str, status: Option<&ApiKeyStatus>) -> Self {
        let own = status.and_then(|status| status.gateways.get(gateway));
        Self {
            reported: own.cloned().unwrap_or_default(),
            last_used: None,
        }
    }

    /// Adds `more` to the use of a model on the day of `now`.
    pub(super) fn add(&mut self, model: &str, more: KeyUsage, now: Timestamp) {
        let of_day = self.reported.days.entry(day_of(now)).or_default();
        *of_day.entry(model.to_owned()).or_default() += more;
        self.reported.requests = self.reported.requests.saturating_add(more.requests);
        self.reported.tokens = self.reported.tokens.saturating_add(more.tokens());
        self.last_used = self.last_used.max(Some(now));
    }

    pub(super) fn tokens_today(&self, now: Timestamp) -> u64 {
        let of_day = self.reported.days.get(&day_of(now));
        of_day.map_or(0, |models| models.values().map(KeyUsage::tokens).sum())
    }

    /// Returns the status patch (JSON merge patch) of a report, and the use after it.
    ///
    /// The patch changes only this gateway's entry and the sums. It moves the use through abandoned
    /// gateways to this entry: then, `known.resource_version` must be part of the patch, so that two
    /// gateways do not move the same use.
    pub(super) fn report(
        &self,
        gateway: &str,
        status: &ApiKeyStatus,
        in_progress: u32,
        now: Timestamp,
    ) -> Report {
        let mut next = self.clone();
        let mut entries = Map::new();
        let abandoned = status
            .gateways
            .iter()
            .filter(|(name, usage)| *name != gateway && age_seconds(usage, now) > ABANDONED_SECONDS);
        let mut is_moved = false;
        for (name, usage) in abandoned {
            next.take_over(usage);
            entries.insert(name.clone(), Value::Null);
            is_moved = true;
        }
        let oldest = now - jiff::SignedDuration::from_hours(24 * KEPT_DAYS);
        let oldest = day_of(oldest);
        next.reported.days.retain(|day, _| *day >= oldest);
        next.reported.in_progress = in_progress;
        next.reported.update_time = Some(Time(now));
        let mut own = serde_json::to_value(&next.reported).unwrap_or_default();
        let written = status.gateways.get(gateway);
        for day in written.into_iter().flat_map(|written| written.days.keys()) {
            if !next.reported.days.contains_key(day) {
                own["days"][day] = Value::Null;
            }
        }
        entries.insert(gateway.to_owned(), own);
        let mut sums = status.clone();
        for name in entries.keys() {
            sums.gateways.remove(name);
        }
        sums.gateways.insert(gateway.to_owned(), next.reported.clone());
        let today = day_of(now);
        let of_today = sums.on_day(&today);
        let mut patch = json!({
            "day": today,
            "requestsToday": of_today.requests,
            "tokensToday": of_today.tokens(),
            "gateways": entries,
        });
        let known = status.last_used_time.as_ref().map(|Time(at)| *at);
        if let Some(last_used) = self.last_used.filter(|at| known.is_none_or(|known| known < *at)) {
            patch["lastUsedTime"] = json!(Time(last_used));
        }
        Report {
            status: patch,
            needs_version: is_moved,
            usage: next,
        }
    }

    fn take_over(&mut self, other: &GatewayUsage) {
        self.reported.requests = self.reported.requests.saturating_add(other.requests);
        self.reported.tokens = self.reported.tokens.saturating_add(other.tokens);
        for (day, models) in &other.days {
            let of_day = self.reported.days.entry(day.clone()).or_default();
            for (model, usage) in models {
                *of_day.entry(model.clone()).or_default() += *usage;
            }
        }
    }

    /// Adds to this use what `now` has more than `before`: the use during a write.
    pub(super) fn with_later(mut self, before: &Self, now: &Self) -> Self {
        for (day, models) in &now.reported.days {
            for (model, usage) in models {
                let known = before.reported.days.get(day).and_then(|models| models.get(model));
                let known = known.copied().unwrap_or_default();
                let more = KeyUsage {
                    requests: usage.requests.saturating_sub(known.requests),
                    prompt_tokens: usage.prompt_tokens.saturating_sub(known.prompt_tokens),
                    completion_tokens: usage.completion_tokens.saturating_sub(known.completion_tokens),
                };
                if more != KeyUsage::default() {
                    *self
                        .reported
                        .days
                        .entry(day.clone())
                        .or_default()
                        .entry(model.clone())
                        .or_default() += more;
                    self.reported.requests += more.requests;
                    self.reported.tokens += more.tokens();
                }
            }
        }
        self.last_used = now.last_used;
        self
    }
}

/// Report of a key's use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    /// Merge patch of the status.
    pub(super) status: Value,
    /// True if the patch is valid for the known version of the object only.
    pub(super) needs_version: bool,
    /// Use after the patch is applied.
    pub(super) usage: Usage,
}

/// Returns the use through all gateways except `gateway`.
pub(super) fn others(gateway: &str, status: Option<&ApiKeyStatus>, now: Timestamp) -> Others {
    let today = day_of(now);
    let mut others = Others::default();
    let entries = status.into_iter().flat_map(|status| &status.gateways);
    for (_, usage) in entries.filter(|(name, _)| *name != gateway) {
        others.requests = others.requests.saturating_add(usage.requests);
        others.tokens = others.tokens.saturating_add(usage.tokens);
        let of_today = usage.days.get(&today).into_iter().flat_map(BTreeMap::values);
        others.tokens_today += of_today.map(KeyUsage::tokens).sum::<u64>();
        if age_seconds(usage, now) <= STALE_SECONDS {
            others.in_progress = others.in_progress.saturating_add(usage.in_progress);
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn used(requests: u64, prompt_tokens: u64, completion_tokens: u64) -> KeyUsage {
        KeyUsage {
            requests,
            prompt_tokens,
            completion_tokens,
        }
    }

    /// Applies a merge patch (RFC 7396).
    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let target = target.as_object_mut().expect("an object");
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                apply(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
    }

    fn reported(status: &ApiKeyStatus, report: &Report) -> ApiKeyStatus {
        let mut value = serde_json::to_value(status).expect("JSON");
        apply(&mut value, &report.status);
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn two_gateways_report_without_loss() {
        let now = at("2026-03-01T10:00:00Z");
        let (mut a, mut b) = (Usage::default(), Usage::default());
        a.add("guide", used(2, 10, 20), now);
        b.add("guide", used(1, 5, 5), now);
        b.add("chat", used(1, 1, 1), now);
        let mut status = ApiKeyStatus::default();
        status = reported(&status, &a.report("a", &status, 1, now));
        // `b` does not know the report of `a` yet.
        let of_b = b.report("b", &ApiKeyStatus::default(), 2, now);
        status = reported(&status, &of_b);
        assert_eq!(status.on_day("2026-03-01"), used(4, 16, 26));
        assert_eq!(status.last_used_time, Some(Time(now)));
        let seen_by_a = others("a", Some(&status), now);
        assert_eq!(
            (
                seen_by_a.requests,
                seen_by_a.tokens,
                seen_by_a.tokens_today,
                seen_by_a.in_progress
            ),
            (2, 12, 12, 2)
        );
        let later = now + jiff::SignedDuration::from_secs(31);
        assert_eq!(others("a", Some(&status), later).in_progress, 0);
        // The next report has the sums of both, and a restarted gateway continues its count.
        let restarted = Usage::continued("a", Some(&status));
        status = reported(&status, &restarted.report("a", &status, 0, later));
        assert_eq!((status.requests_today, status.tokens_today), (Some(4), Some(42)));
        assert_eq!(status.gateways["a"].requests, 2);
    }

    #[test]
    fn days_change_at_midnight_utc_and_expire() {
        let mut usage = Usage::default();
        usage.add("guide", used(1, 7, 0), at("2026-03-01T23:59:59Z"));
        let now = at("2026-03-02T00:00:00Z");
        assert_eq!(usage.tokens_today(now), 0);
        assert_eq!(day_left(now), std::time::Duration::from_secs(86_400));
        assert_eq!(
            day_left(at("2026-03-01T23:59:59Z")),
            std::time::Duration::from_secs(1)
        );
        let mut status = ApiKeyStatus::default();
        status = reported(&status, &usage.report("a", &status, 0, now));
        assert_eq!(status.on_day("2026-03-01"), used(1, 7, 0));
        let much_later = at("2026-04-10T00:00:00Z");
        status = reported(&status, &usage.report("a", &status, 0, much_later));
        assert!(status.gateways["a"].days.is_empty());
        assert_eq!(
            (status.gateways["a"].requests, status.gateways["a"].tokens),
            (1, 7)
        );
    }

    #[test]
    fn use_of_abandoned_gateway_is_kept() {
        let now = at("2026-03-01T10:00:00Z");
        let mut gone = Usage::default();
        gone.add("guide", used(3, 30, 3), now);
        let mut status = ApiKeyStatus::default();
        status = reported(&status, &gone.report("gone", &status, 5, now));
        let later = now + jiff::SignedDuration::from_hours(49);
        let own = Usage::default();
        let report = own.report("new", &status, 0, later);
        assert!(report.needs_version);
        status = reported(&status, &report);
        assert_eq!(status.gateways.keys().collect::<Vec<_>>(), ["new"]);
        assert_eq!(status.gateways["new"].requests, 3);
        assert_eq!(status.on_day("2026-03-01"), used(3, 30, 3));
        assert!(!report.usage.report("new", &status, 0, later).needs_version);
    }

    #[test]
    fn use_during_a_write_is_not_lost() {
        let now = at("2026-03-01T10:00:00Z");
        let mut usage = Usage::default();
        usage.add("guide", used(1, 10, 1), now);
        let before = usage.clone();
        let report = before.report("a", &ApiKeyStatus::default(), 1, now);
        usage.add("guide", used(1, 20, 2), now);
        let after = report.usage.with_later(&before, &usage);
        assert_eq!(after.reported.requests, 2);
        assert_eq!(after.tokens_today(now), 33);
    }
}
