//! API keys, shared limits, and certificates under faults.

use std::time::Duration;

use super::{planted, run};
use crate::scenario::planted::Bug;
use crate::{Scenario, simulate};

const DAY: &str = include_str!("../../../../examples/simulation/access.yaml");
/// Factor by which [`short`] is shorter than the day.
const FACTOR: u32 = 8;

/// Returns the day of the example in an eighth of its time.
fn short() -> Scenario {
    let mut scenario = Scenario::parse(DAY).expect("valid");
    let shorten = |time: &mut Duration| *time /= FACTOR;
    // Midnight stays in the middle. The fleet recovers within ten minutes after the last fault.
    scenario.start = "2026-01-05T22:30:00Z".parse().expect("a time");
    shorten(&mut scenario.duration);
    scenario.duration += Duration::from_secs(600);
    for fault in &mut scenario.faults {
        shorten(&mut fault.at);
        shorten(&mut fault.lasts);
    }
    let random = scenario.random_faults.as_mut().expect("random faults");
    shorten(&mut random.until);
    random.every = Duration::from_secs(120);
    let access = scenario.access.as_mut().expect("keys");
    access.certificate_lifetime = Duration::from_secs(2 * 3600);
    shorten(&mut access.gateway_restarts);
    for key in &mut access.keys {
        for time in [&mut key.created, &mut key.expires, &mut key.deleted] {
            shorten(time);
        }
        key.tokens_per_day = key.tokens_per_day.map(|tokens| tokens / u64::from(FACTOR));
    }
    for rotation in &mut access.rotations {
        shorten(&mut rotation.at);
        shorten(&mut rotation.after);
    }
    scenario
}

#[test]
fn no_request_without_permission_is_served_and_none_with_permission_is_refused() {
    let scenario = short();
    for seed in 1..=3 {
        let outcome = run(&scenario, seed);
        assert_eq!(outcome.violation, None, "seed {seed}");
        let access = outcome.access.expect("figures");
        for reason in [
            "Unauthenticated",
            "ExpiredKey",
            "ModelNotPermitted",
            "RequestsPerMinute",
            "TokensPerMinute",
            "TokensPerDay",
        ] {
            assert!(
                access.refused.contains_key(reason),
                "seed {seed}, {reason}: {access:?}"
            );
        }
        assert!(
            access.admitted > 1000 && access.handshakes > 1000,
            "seed {seed}: {access:?}"
        );
        assert!(
            access.intrusions > 1000 && access.renewals > 20,
            "seed {seed}: {access:?}"
        );
        assert_eq!(access.rotations, 2, "seed {seed}: {access:?}");
        assert!(
            access.revocations > 0 && access.rejoined >= access.revocations,
            "seed {seed}: {access:?}"
        );
        assert!(access.gateway_restarts > 1, "seed {seed}: {access:?}");
    }
}

#[test]
fn outcome_depends_only_on_the_seed_although_keys_of_certificates_are_random() {
    let mut scenario = short();
    scenario.duration = Duration::from_secs(2400);
    let text = |seed| serde_json::to_string(&run(&scenario, seed)).expect("JSON");
    assert_eq!(text(5), text(5));
}

#[test]
fn broken_decisions_about_access_are_detected() {
    let served = "no request without permission is served";
    let refused = "no request with permission is refused";
    for (bug, rule) in [
        (Bug::KeyDeletionIgnored, served),
        (Bug::OtherGatewaysIgnored, served),
        (Bug::UseNotReported, served),
        (Bug::RevocationNotPublished, served),
        (Bug::CertificateNotRenewed, refused),
    ] {
        let scenario = short();
        let violated =
            (1..=5).find_map(|seed| simulate(&scenario, &planted(bug, seed)).expect("valid").violation);
        let violation = violated.unwrap_or_else(|| panic!("{bug:?} is not detected"));
        assert_eq!(violation.rule, rule, "{bug:?}: {violation}");
    }
}

#[test]
fn invalid_access_is_rejected_with_its_field() {
    for (from, to, error) in [
        (
            "gateways: 2",
            "gateways: 0",
            "access.gateways: must be between 1 and 16",
        ),
        (
            "certificateLifetime: 6h",
            "certificateLifetime: 30m",
            "access.certificateLifetime: must be at least 1h",
        ),
        (
            "{name: unlimited}",
            "{name: minute}",
            "access.keys[1].name: another key is named `minute`",
        ),
        (
            "created: 1h, deleted: 12h",
            "created: 1h, deleted: 30m",
            "access.keys[4].deleted: must be later than created",
        ),
        (
            "key: unlimited",
            "key: other",
            "demand[0].key: access.keys has no key `other`",
        ),
        (
            "gateways: 2",
            "gateways: 2\n  intrusions: 0s",
            "access.intrusions: must be at least 1s",
        ),
    ] {
        let err = Scenario::parse(&DAY.replacen(from, to, 1))
            .expect_err(to)
            .to_string();
        assert!(err.starts_with(error), "{to}: {err}");
    }
}
