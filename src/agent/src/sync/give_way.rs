//! Who gives its memory back when the machine's owner needs it. Pure.

use super::desired::Desired;
use super::observed::{Observed, WorkerState};
use crate::node::pressure::Pressure;
use crate::replica::ReplicaKey;
use rooflet_base::units::Bytes;

/// The next replica to stop, if there is pressure.
///
/// Those without objectives go first, by the lowest priority; those with objectives only when memory is about to run
/// out. Among equals the one whose end does the least damage: with the fewest requests under way, then the smallest that
/// gives back enough.
pub(super) fn victim(desired: &Desired, observed: &Observed) -> Option<ReplicaKey> {
    if !observed.pressure.presses() {
        return None;
    }
    let candidates = observed.replicas.iter().filter_map(|(key, seen)| {
        let runs = match seen.worker {
            WorkerState::Running | WorkerState::Unresponsive => true,
            WorkerState::None | WorkerState::Stopping | WorkerState::Stuck => false,
        };
        let replica = &desired.replicas.get(key)?.replica;
        let is_promised = replica.terms.is_promised();
        let may_go = runs && !replica.deleting && (!is_promised || observed.pressure == Pressure::Critical);
        let gives = seen.held.resident;
        let is_enough = gives >= observed.shortfall;
        // The smallest that is enough, else the largest.
        let size = (
            !is_enough,
            if is_enough { gives } else { Bytes(u64::MAX) - gives },
        );
        may_go.then_some((is_promised, replica.terms.priority, seen.requests, size, key))
    });
    candidates.min().map(|(.., key)| key.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::SyncPlan;
    use super::super::plan::tests::{check, scene};
    use super::*;

    #[test]
    fn the_lowest_priority_without_objectives_gives_way_first() {
        check("a b", "a b", "a=keep b=keep");
        check("@easing a b", "a b", "a=keep b=keep");
        let stopped = "stop(MemoryPressure)";
        check("@low a:priority=1 b", "a b", &format!("a=keep b={stopped}"));
        check(
            "@low a:decode=1 b:priority=9",
            "a b",
            &format!("a=keep b={stopped}"),
        );
        check("@low a:decode=1", "a", "a=keep");
        check("@critical a:decode=1", "a", &format!("a={stopped}"));
        check(
            "@critical a:decode=1 b:priority=9",
            "a b",
            &format!("a=keep b={stopped}"),
        );
        check(
            "@critical a:decode=1:priority=2 b:decode=1:priority=1",
            "a b",
            &format!("a=keep b={stopped}"),
        );
        // What one gives back is seen before another one is asked, and nobody is asked who goes anyway.
        check("@critical a b", "a b:worker=stopping", "a=keep b=await");
        check("@critical a b:deleting", "a b", "a=keep b=stop(Deleted)");
        // One that does not end is waited for no longer.
        check(
            "@critical a b c",
            "a b:worker=stuck c:busy=1",
            &format!("a={stopped} b=await c=keep"),
        );
    }

    #[test]
    fn who_goes_anyway_is_hurried_while_memory_is_needed() {
        let hurries = |wanted: &str, seen: &str| {
            let (desired, observed) = scene(wanted, seen);
            SyncPlan::new(&desired, &observed, jiff::Timestamp::UNIX_EPOCH).hurry
        };
        assert!(hurries("@low a b", "a b:worker=stopping"));
        assert!(hurries("@critical a b:deleting", "a b"));
        assert!(!hurries("@easing a b", "a b:worker=stopping"));
        assert!(!hurries("a b", "a b:worker=stopping"));
        assert!(!hurries("@low a", "a"));
    }

    #[test]
    fn among_equals_the_least_damage_is_done() {
        let third = "a=keep b=keep c=stop(MemoryPressure)";
        check("@low a b c", "a:busy=1 b:busy=2 c", third);
        check("@low a b c", "a:mib=300 b:mib=99 c:mib=100", third);
        check("@low a b c", "a:mib=30 b:mib=50 c:mib=99", third);
    }

    #[test]
    fn who_gave_way_comes_back_when_it_is_calm_and_there_is_more_than_enough() {
        let gone = "a:worker=none:gaveway";
        for level in ["@easing", "@low", "@critical"] {
            check(&format!("{level} a"), gone, "a=refuse(NotNow/NodeMemoryPressure)");
        }
        check("a", gone, "a=start(1.0 GiB)");
        check("@free=1 a", gone, "a=refuse(NotNow/MemoryInUse)");
        check("@free=1 a", "a:worker=none", "a=start(1.0 GiB)");
        check("@free=2 a", gone, "a=start(1.0 GiB)");
        // Another one may start whatever was stopped, if it fits.
        check("@easing a", "a:worker=none", "a=start(1.0 GiB)");
    }

    proptest! {
        /// Nobody of a lower rank is left when one of a higher one goes, and at most one goes at a time.
        #[test]
        fn no_one_goes_before_its_turn(
            replicas in prop::collection::vec((-3i32..3, 0i32..3, 0i32..300, any::<bool>(), 0..9), 0..6),
        ) {
            let (mut wanted, mut seen) = ("@critical".to_owned(), String::new());
            for (at, (priority, busy, mib, promised, worker)) in replicas.iter().enumerate() {
                let promised = if *promised { ":decode=1" } else { "" };
                let worker = match worker {
                    0 => "none",
                    1 => "hung",
                    _ => "running",
                };
                wanted.push_str(&format!(" r{at}:priority={priority}{promised}"));
                seen.push_str(&format!(" r{at}:busy={busy}:mib={mib}:worker={worker}"));
            }
            let (desired, observed) = scene(&wanted, &seen);
            let runs = |key: &ReplicaKey| observed.replicas[key].worker != WorkerState::None;
            let rank = |key: &ReplicaKey| {
                let terms = &desired.replicas[key].replica.terms;
                (terms.is_promised(), terms.priority)
            };
            let found = victim(&desired, &observed);
            prop_assert_eq!(found.is_some(), desired.replicas.keys().any(runs));
            if let Some(found) = found {
                prop_assert!(runs(&found));
                let others = desired.replicas.keys().filter(|key| runs(key));
                for other in others {
                    prop_assert!(rank(&found) <= rank(other), "{found} before {other}");
                }
            }
        }
    }
}
