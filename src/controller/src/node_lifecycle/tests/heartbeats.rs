//! Durations of silence, and of taints, across passes.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;
use crate::node_lifecycle::heartbeats::Heartbeats;
use rooflet_base::clock::{Clock, ManualClock};

/// Returns the Lease of node `a` with this version, and this renew time by the node's clock.
fn lease(version: u32, renewed: i64) -> impl Fn(&str) -> Option<Lease> {
    move |name: &str| {
        assert_eq!(name, "fleetnode-a");
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some(version.to_string());
        lease.spec = Some(LeaseSpec {
            renew_time: Some(MicroTime(at(renewed))),
            ..LeaseSpec::default()
        });
        Some(lease)
    }
}

#[test]
fn silence_is_measured_with_the_own_clock() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let node = node("a");
    let mut heartbeats = Heartbeats::default();
    let mut silence = |version, renewed| {
        heartbeats
            .observe(&[&node], &[], lease(version, renewed), clock.instant())
            .silence["a"]
    };
    // The node's clock is an hour behind, which is no silence.
    assert_eq!(silence(1, NOW - 3600), Duration::ZERO);
    manual.advance(Duration::from_secs(30));
    assert_eq!(silence(1, NOW - 3600), Duration::from_secs(30));
    assert_eq!(silence(2, NOW - 3590), Duration::ZERO);
    manual.advance(Duration::from_secs(5));
    assert_eq!(silence(2, NOW - 3590), Duration::from_secs(5));
    // The node's clock was set back. A changed version is a renewal even then.
    assert_eq!(silence(3, NOW - 7200), Duration::ZERO);
    manual.advance(Duration::from_secs(10));
    assert_eq!(silence(4, NOW - 7200), Duration::ZERO);
}

/// The watch delivers no event after the first observation.
#[test]
fn stalled_watch_makes_no_node_silent() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let node = node("a");
    let mut heartbeats = Heartbeats::default();
    let mut observe = |listed: Option<u32>, watched: u32| {
        let mut timings = heartbeats.observe(&[&node], &[], lease(watched, NOW), clock.instant());
        let newly_silent = timings.newly_silent(&[&node]);
        assert_eq!(newly_silent.len(), usize::from(listed.is_some()), "{timings:?}");
        for name in newly_silent {
            let version = listed.map(|version| version.to_string());
            let silence = heartbeats.confirm(&name, version, clock.instant());
            timings.silence.insert(name, silence);
        }
        timings.silence["a"]
    };
    assert_eq!(observe(None, 1), Duration::ZERO);
    manual.advance(LEASE_DURATION);
    assert_eq!(observe(Some(4), 1), Duration::ZERO);
    manual.advance(LEASE_DURATION);
    assert_eq!(observe(Some(8), 1), Duration::ZERO);
    // If the agent stops as well, it is detected after the usual time.
    manual.advance(Duration::from_secs(39));
    assert_eq!(observe(None, 1), Duration::from_secs(39));
    manual.advance(Duration::from_secs(1));
    assert_eq!(observe(Some(8), 1), LEASE_DURATION);
    // The watch delivers a version that was listed before.
    assert_eq!(observe(Some(8), 8), LEASE_DURATION);
    assert_eq!(observe(None, 9), Duration::ZERO);
}

#[test]
fn taint_durations_start_when_the_taint_appears() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let mut heartbeats = Heartbeats::default();
    let mut observe = |line: &str| {
        let node = node(line);
        let timings = heartbeats.observe(&[&node], &[], |_| None, clock.instant());
        let taints = timings.tainted.get("a").cloned().unwrap_or_default();
        let durations = taints
            .iter()
            .map(|(taint, lasting)| format!("{} {}", taint.key, lasting.as_secs()));
        durations.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(observe("a"), "");
    assert_eq!(observe("a taint"), "lid 0");
    manual.advance(Duration::from_secs(5));
    assert_eq!(observe("a taint battery"), "lid 5 rooflet.dev/on-battery 0");
    manual.advance(Duration::from_secs(5));
    assert_eq!(observe("a battery"), "rooflet.dev/on-battery 5");
    assert_eq!(observe("a taint"), "lid 0");
}
