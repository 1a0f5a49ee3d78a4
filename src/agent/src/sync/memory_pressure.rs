//! Choice of the replica that the agent stops under memory pressure. Pure.

use super::desired::Desired;
use super::observed::{Observed, WorkerState};
use crate::node::pressure::Pressure;
use crate::replica::ReplicaKey;
use rooflet_base::units::Bytes;

/// Returns the next replica to stop, if there is pressure.
///
/// Replicas without objectives are stopped first, by lowest priority. Replicas with objectives are
/// stopped only under critical pressure. Ties are resolved by the fewest in-flight requests, and
/// then by the smallest replica that frees enough memory.
pub(super) fn victim(desired: &Desired, observed: &Observed) -> Option<ReplicaKey> {
    if !observed.pressure.requires_stop() {
        return None;
    }
    let candidates = observed.replicas.iter().filter_map(|(key, seen)| {
        let runs = match seen.worker {
            WorkerState::Running | WorkerState::Unresponsive => true,
            WorkerState::None | WorkerState::Stopping | WorkerState::Stuck => false,
        };
        let replica = &desired.replicas.get(key)?.replica;
        let has_objectives = replica.terms.has_objectives();
        let is_candidate =
            runs && !replica.deleting && (!has_objectives || observed.pressure == Pressure::Critical);
        let freed = seen.held.resident;
        let is_enough = freed >= observed.shortfall;
        // Prefers the smallest replica that frees enough. If none does, prefers the largest.
        let size = (
            !is_enough,
            if is_enough { freed } else { Bytes(u64::MAX) - freed },
        );
        is_candidate.then_some((has_objectives, replica.terms.priority, seen.requests, size, key))
    });
    candidates.min().map(|(.., key)| key.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::SyncPlan;
    use super::super::plan::tests::{check, parse_case};
    use super::*;
    use crate::sync::Step;

    #[test]
    fn replicas_without_objectives_stop_first_by_lowest_priority() {
        check("a b", "a b", "a=keep b=keep");
        check("@recovering a b", "a b", "a=keep b=keep");
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
        // The memory of a stopping replica is awaited before the next replica is stopped.
        check("@critical a b", "a b:worker=stopping", "a=keep b=await");
        check("@critical a b:deleting", "a b", "a=keep b=stop(Deleted)");
        // The agent does not wait for a stuck worker.
        check(
            "@critical a b c",
            "a b:worker=stuck c:busy=1",
            &format!("a={stopped} b=await c=keep"),
        );
    }

    #[test]
    fn pressure_shortens_the_grace_period_of_stopping_workers() {
        let shortens_grace = |wanted: &str, seen: &str| {
            let (desired, observed) = parse_case(wanted, seen);
            SyncPlan::new(&desired, &observed, jiff::Timestamp::UNIX_EPOCH).shorten_grace
        };
        assert!(shortens_grace("@low a b", "a b:worker=stopping"));
        assert!(shortens_grace("@critical a b:deleting", "a b"));
        assert!(!shortens_grace("@recovering a b", "a b:worker=stopping"));
        assert!(!shortens_grace("a b", "a b:worker=stopping"));
        assert!(!shortens_grace("@low a", "a"));
    }

    #[test]
    fn ties_are_resolved_by_requests_and_size() {
        let third = "a=keep b=keep c=stop(MemoryPressure)";
        check("@low a b c", "a:busy=1 b:busy=2 c", third);
        check("@low a b c", "a:mib=300 b:mib=99 c:mib=100", third);
        check("@low a b c", "a:mib=30 b:mib=50 c:mib=99", third);
    }

    #[test]
    fn stopped_replica_restarts_after_recovery_with_headroom() {
        let gone = "a:worker=none:stopped-for-memory";
        for level in ["@recovering", "@low", "@critical"] {
            check(
                &format!("{level} a"),
                gone,
                "a=refuse(Temporary/NodeMemoryPressure)",
            );
        }
        check("a", gone, "a=start(1.0 GiB)");
        check("@free=1 a", gone, "a=refuse(Temporary/MemoryInUse)");
        check("@free=1 a", "a:worker=none", "a=start(1.0 GiB)");
        check("@free=2 a", gone, "a=start(1.0 GiB)");
    }

    /// Otherwise, the successor of a stopped replica would take its memory and cause the next stop.
    #[test]
    fn new_replica_starts_after_recovery_with_headroom() {
        for level in ["@recovering", "@low", "@critical"] {
            check(
                &format!("{level} a"),
                "",
                "a=refuse(Temporary/NodeMemoryPressure)",
            );
            check(&format!("{level} a:overridden"), "", "a=start(1.0 GiB)");
        }
        check("@free=1 a", "", "a=start(1.0 GiB)");
        check("@stopped @free=1 a", "", "a=refuse(Temporary/MemoryInUse)");
        check("@stopped @free=2 a", "", "a=start(1.0 GiB)");
        let message = |wanted: &str| {
            let (desired, observed) = parse_case(wanted, "");
            let plan = SyncPlan::new(&desired, &observed, jiff::Timestamp::UNIX_EPOCH);
            match plan.steps.into_values().next() {
                Some(Step::Refuse(refusal)) => refusal.message,
                step => panic!("{step:?}"),
            }
        };
        let headroom = "; 300.0 MiB more stay free for an hour after memory pressure";
        for (wanted, is_named) in [
            ("@stopped @free=1 a", true),
            ("@free=1 a:gib=2", false),
            ("@stopped @allocatable=1 a:gib=2", false),
        ] {
            let message = message(wanted);
            assert_eq!(message.contains(headroom), is_named, "{message}");
        }
        // The new template of a stopped replica.
        let stopped = "a:worker=none:stopped-for-memory";
        check(
            "@recovering a:spec=b",
            stopped,
            "a=refuse(Temporary/NodeMemoryPressure)",
        );
        check(
            "@stopped @free=1 a:spec=b",
            stopped,
            "a=refuse(Temporary/MemoryInUse)",
        );
        // A crashed or changed replica restarts in its own memory.
        for replica in ["a", "a:spec=b"] {
            check(
                &format!("@recovering {replica}"),
                "a:worker=none",
                "a=start(1.0 GiB)",
            );
            check(
                &format!("@stopped @free=1 {replica}"),
                "a:worker=none",
                "a=start(1.0 GiB)",
            );
        }
    }

    proptest! {
        /// Replicas are stopped one at a time and in order of their rank.
        #[test]
        fn replicas_stop_one_at_a_time_in_rank_order(
            replicas in prop::collection::vec((-3i32..3, 0i32..3, 0i32..300, any::<bool>(), 0..9), 0..6),
        ) {
            let (mut wanted, mut seen) = ("@critical".to_owned(), String::new());
            for (at, (priority, busy, mib, has_objectives, worker)) in replicas.iter().enumerate() {
                let objectives = if *has_objectives { ":decode=1" } else { "" };
                let worker = match worker {
                    0 => "none",
                    1 => "hung",
                    _ => "running",
                };
                wanted.push_str(&format!(" r{at}:priority={priority}{objectives}"));
                seen.push_str(&format!(" r{at}:busy={busy}:mib={mib}:worker={worker}"));
            }
            let (desired, observed) = parse_case(&wanted, &seen);
            let runs = |key: &ReplicaKey| observed.replicas[key].worker != WorkerState::None;
            let rank = |key: &ReplicaKey| {
                let terms = &desired.replicas[key].replica.terms;
                (terms.has_objectives(), terms.priority)
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
