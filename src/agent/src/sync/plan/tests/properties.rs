//! Properties of plans for random replicas.

use proptest::prelude::*;

use super::super::*;
use super::notation::{now, parse_case, show};

/// Applies a plan and lets every stopping process exit.
fn apply(desired: &Desired, observed: &mut Observed, plan: &SyncPlan) {
    for (key, step) in &plan.steps {
        match step {
            Step::Start(start) => {
                let replica = &desired.replicas[key].replica;
                let seen = ObservedReplica {
                    uid: replica.uid.clone(),
                    generation: replica.generation,
                    spec: replica.spec.clone(),
                    worker: WorkerState::Running,
                    held: Held {
                        reserved: start.reservation.total(),
                        resident: Bytes::ZERO,
                    },
                    reserved_share: start.admission.chip_time_percent / 100.0,
                    has_objectives: replica.terms.has_objectives(),
                    requests: 0,
                    stopped_for_memory: false,
                    backoff_until: None,
                    bad_model: None,
                };
                observed.replicas.insert(key.clone(), seen);
            }
            Step::Pull(_) => unreachable!("all models are on disk"),
            Step::Stop(cause) => {
                let seen = observed.replicas.get_mut(key).unwrap();
                seen.worker = WorkerState::None;
                seen.stopped_for_memory = *cause == StopCause::MemoryPressure;
            }
            Step::AwaitStop => {
                observed.replicas.get_mut(key).unwrap().worker = WorkerState::None;
            }
            Step::Release => drop(observed.replicas.remove(key)),
            Step::Keep | Step::Wait(_) | Step::Refuse(_) => {}
        }
    }
}

fn any_wanted() -> impl Strategy<Value = String> {
    (0..4, 0..2, 0..2, 1..3, 1..6, any::<bool>()).prop_map(|(name, spec, uid, generation, gib, deleting)| {
        let deleting = if deleting { ":deleting" } else { "" };
        format!("r{name}:spec=s{spec}:uid=u{uid}:gen={generation}:gib={gib}{deleting}")
    })
}

fn any_seen() -> impl Strategy<Value = String> {
    let worker = prop_oneof![Just("none"), Just("running"), Just("hung"), Just("stopping")];
    (0..4, 0..2, 0..2, 1..3, 1..3, worker).prop_map(|(name, spec, uid, generation, gib, worker)| {
        format!("r{name}:spec=s{spec}:uid=u{uid}:gen={generation}:gib={gib}:worker={worker}")
    })
}

fn reserved(observed: &Observed) -> Bytes {
    let held = observed
        .replicas
        .values()
        .filter(|seen| seen.worker != WorkerState::None);
    held.map(|seen| seen.held.reserved).sum()
}

proptest! {
    #[test]
    fn applied_plans_converge_to_a_plan_without_actions(
        wanted in proptest::collection::vec(any_wanted(), 0..5),
        seen in proptest::collection::vec(any_seen(), 0..4),
        stopping in any::<bool>(),
    ) {
        let (mut desired, mut observed) = parse_case(&wanted.join(" "), &seen.join(" "));
        desired.stopping = stopping;
        // Stop, release, start: three rounds at most from any state.
        for _ in 0..3 {
            let plan = SyncPlan::new(&desired, &observed, now());
            apply(&desired, &mut observed, &plan);
            prop_assert!(reserved(&observed) <= observed.memory.allocatable, "{observed:?}");
        }
        let plan = SyncPlan::new(&desired, &observed, now());
        for (key, step) in &plan.steps {
            let settled = matches!(step, Step::Keep | Step::Wait(_) | Step::Refuse(_));
            let confirms = *step == Step::Release && desired.replicas.get(key).is_some_and(|w| w.replica.deleting);
            prop_assert!(settled || confirms, "{} {}", key, show(step));
        }
    }

    #[test]
    fn only_desired_replicas_run(
        wanted in proptest::collection::vec(any_wanted(), 0..5),
        seen in proptest::collection::vec(any_seen(), 0..4),
    ) {
        let (desired, mut observed) = parse_case(&wanted.join(" "), &seen.join(" "));
        for _ in 0..3 {
            let plan = SyncPlan::new(&desired, &observed, now());
            apply(&desired, &mut observed, &plan);
        }
        for (key, seen) in &observed.replicas {
            if seen.worker != WorkerState::None {
                let wanted = desired.replicas.get(key);
                prop_assert!(wanted.is_some_and(|wanted| !wanted.replica.deleting && wanted.replica.uid == seen.uid));
            }
        }
    }
}
