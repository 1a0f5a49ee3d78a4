//! What counts as a sign of life, and since when things have been so.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;
use crate::node_lifecycle::heard::Heartbeats;
use rooflet_base::clock::{Clock, ManualClock};

/// The Lease of node a in a version, renewed then by somebody's clock.
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
fn silence_is_measured_by_our_own_clock() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let node = node("a");
    let mut heartbeats = Heartbeats::default();
    let mut silence = |version, renewed| {
        heartbeats
            .observe(&[&node], &[], lease(version, renewed), clock.instant())
            .silence["a"]
    };
    // Its clock is an hour behind: that is no silence.
    assert_eq!(silence(1, NOW - 3600), Duration::ZERO);
    manual.advance(Duration::from_secs(30));
    assert_eq!(silence(1, NOW - 3600), Duration::from_secs(30));
    assert_eq!(silence(2, NOW - 3590), Duration::ZERO);
    manual.advance(Duration::from_secs(5));
    assert_eq!(silence(2, NOW - 3590), Duration::from_secs(5));
    // Its clock was set back, even to the very moment that was seen last: that is a renewal, too.
    assert_eq!(silence(3, NOW - 7200), Duration::ZERO);
    manual.advance(Duration::from_secs(10));
    assert_eq!(silence(4, NOW - 7200), Duration::ZERO);
}

/// What the watch shows stands still from the first look on.
#[test]
fn a_watch_that_has_stalled_makes_no_node_silent() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let node = node("a");
    let mut heartbeats = Heartbeats::default();
    let mut look = |asked: Option<u32>, watched: u32| {
        let mut heard = heartbeats.observe(&[&node], &[], lease(watched, NOW), clock.instant());
        let doubtful = heard.doubtful(&[&node]);
        assert_eq!(doubtful.len(), usize::from(asked.is_some()), "{heard:?}");
        for name in doubtful {
            let version = asked.map(|version| version.to_string());
            let silence = heartbeats.confirm(&name, version, clock.instant());
            heard.silence.insert(name, silence);
        }
        heard.silence["a"]
    };
    assert_eq!(look(None, 1), Duration::ZERO);
    manual.advance(LEASE_DURATION);
    assert_eq!(look(Some(4), 1), Duration::ZERO);
    manual.advance(LEASE_DURATION);
    assert_eq!(look(Some(8), 1), Duration::ZERO);
    // Then its agent dies as well, which is found as soon as ever.
    manual.advance(Duration::from_secs(39));
    assert_eq!(look(None, 1), Duration::from_secs(39));
    manual.advance(Duration::from_secs(1));
    assert_eq!(look(Some(8), 1), LEASE_DURATION);
    // The watch catches up with what is known.
    assert_eq!(look(Some(8), 8), LEASE_DURATION);
    assert_eq!(look(None, 9), Duration::ZERO);
}

#[test]
fn taints_are_counted_from_when_they_are_seen() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let mut heartbeats = Heartbeats::default();
    let mut look = |line: &str| {
        let node = node(line);
        let heard = heartbeats.observe(&[&node], &[], |_| None, clock.instant());
        let taints = heard.tainted.get("a").cloned().unwrap_or_default();
        let told = taints
            .iter()
            .map(|(taint, lasting)| format!("{} {}", taint.key, lasting.as_secs()));
        told.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(look("a"), "");
    assert_eq!(look("a taint"), "lid 0");
    manual.advance(Duration::from_secs(5));
    assert_eq!(look("a taint battery"), "lid 5 rooflet.dev/on-battery 0");
    manual.advance(Duration::from_secs(5));
    assert_eq!(look("a battery"), "rooflet.dev/on-battery 5");
    assert_eq!(look("a taint"), "lid 0");
}
