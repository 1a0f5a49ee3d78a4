use proptest::prelude::*;

use super::replica::EXTERNAL_LOAD_TTL;
use super::*;
use crate::routing::estimate::{Load, Speed};
use crate::routing::table::Target;
use rooflet_api::v1alpha1::ModelReplicaStatus;
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_proxy::Upstream;

fn model(replicas: usize, rows: u32) -> Model {
    let replica = |id: usize| Replica {
        target: Target {
            namespace: "default".to_owned(),
            replica: format!("g{id}"),
        },
        id: id as u64 + 1,
        upstream: Upstream::unix("/x"),
        revision: None,
        rows,
        speed: Speed::of(&ModelReplicaStatus::default(), rows),
        reported: None,
        unloads: false,
    };
    Model {
        namespace: "default".to_owned(),
        name: "guide".to_owned(),
        replicas: (0..replicas).map(replica).collect(),
        has_desired_replicas: true,
        ..Model::default()
    }
}

fn info(client: u64) -> RequestInfo {
    RequestInfo {
        rows: 1,
        prompt_tokens: 100,
        client,
        ..RequestInfo::default()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn expected_wait_follows_in_flight_requests_once_a_response_is_recorded() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(1, 1), State::new());
    let first = state
        .admit(&model, &info(1), clock.instant())
        .expect("a free row");
    assert!(state.admit(&model, &info(1), clock.instant()).is_none());
    assert_eq!(
        state.expected_wait(&model, clock.instant()),
        None,
        "no response is recorded yet"
    );
    state.finished(
        &model.key(),
        first.replica.id,
        first.request_id,
        Length::Counted(50),
        clock.instant(),
    );
    // 100 tokens at 500/s and 50 at 25/s, the default speed.
    let _second = state
        .admit(&model, &info(1), clock.instant())
        .expect("a free row");
    manual.advance(Duration::from_millis(200));
    let wait = state.expected_wait(&model, clock.instant()).expect("known").after;
    assert!((wait.as_secs_f64() - 2.0).abs() < 0.1, "{wait:?}");
    for queued in 0..3 {
        let queued = state.enqueue(&model, &info(1), 10, MINUTE, queued, clock.instant());
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    }
    let wait = state.expected_wait(&model, clock.instant()).expect("known").after;
    assert!((wait.as_secs_f64() - 8.6).abs() < 0.2, "{wait:?}");
    let queued = state.enqueue(&model, &info(1), 10, MINUTE / 10, 9, clock.instant());
    assert!(
        matches!(queued, EnqueueResult::Rejected(Refusal::TooLong(_))),
        "{queued:?}"
    );
}

/// Returns a prompt close to the quantum of a client's turn.
fn long(client: u64) -> RequestInfo {
    RequestInfo {
        prompt_tokens: 2000,
        ..info(client)
    }
}

/// Returns the state of a model with one row and a backlog of one client; each request takes about
/// 6 s.
fn backlog(model: &Model, now: Instant) -> State<u64> {
    let mut state = State::new();
    let first = state.admit(model, &long(1), now).expect("a free row");
    state.finished(
        &model.key(),
        first.replica.id,
        first.request_id,
        Length::Counted(50),
        now,
    );
    let _under_way = state.admit(model, &long(1), now).expect("a free row");
    for queued in 0..7 {
        let queued = state.enqueue(model, &long(1), 10, MINUTE, queued, now);
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    }
    state
}

/// The expected wait excludes requests that would be served later.
#[test]
fn expected_wait_counts_only_requests_ahead() {
    let now = Clock::System.instant();
    let model = model(1, 1);
    let max_wait = Duration::from_secs(10);
    for (who, info, waits) in [
        ("the same client", info(1), false),
        ("another client", info(2), true),
        (
            "more urgent",
            RequestInfo {
                priority: -1,
                ..info(1)
            },
            true,
        ),
        (
            "less urgent",
            RequestInfo {
                priority: 1,
                ..info(2)
            },
            false,
        ),
    ] {
        let queued = backlog(&model, now).enqueue(&model, &info, 10, max_wait, 9, now);
        assert_eq!(
            matches!(queued, EnqueueResult::Queued(..)),
            waits,
            "{who}: {queued:?}"
        );
    }
}

#[test]
fn request_for_several_rows_reserves_one_replica() {
    let now = Clock::System.instant();
    let (model, mut state) = (model(2, 2), State::new());
    let many = RequestInfo { rows: 2, ..info(1) };
    let grants: Vec<_> = (0..4)
        .filter_map(|_| state.admit(&model, &info(1), now))
        .collect();
    assert_eq!(grants.len(), 4);
    let push = |state: &mut State<u64>, info: &RequestInfo, number| {
        let queued = state.enqueue(&model, info, 10, MINUTE, number, now);
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    };
    push(&mut state, &many, 1);
    push(&mut state, &info(1), 2);
    push(&mut state, &info(1), 3);
    let next = |state: &mut State<u64>, end: &Grant| {
        state.finished(
            &model.key(),
            end.replica.id,
            end.request_id,
            Length::Counted(10),
            now,
        );
        state
            .next(&model, now)
            .map(|(grant, number)| (grant.replica.id, number))
    };
    // One row of each replica becomes free: the reserved replica stays idle, the other gets the
    // next request.
    let (a, b): (Vec<_>, Vec<_>) = grants.iter().partition(|grant| grant.replica.id == 1);
    let first = [next(&mut state, a[0]), next(&mut state, b[0])];
    let given: Vec<_> = first.into_iter().flatten().collect();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(given[0].1, 2);
    let held = if given[0].0 == 1 { b[1] } else { a[1] };
    assert_eq!(next(&mut state, held), Some((held.replica.id, 1)));
    assert_eq!(state.next(&model, now).map(|(_, number)| number), None);
}

#[test]
fn request_of_higher_priority_uses_reserved_rows() {
    let now = Clock::System.instant();
    let (model, mut state) = (model(1, 2), State::new());
    let grants: Vec<_> = (0..2)
        .filter_map(|_| state.admit(&model, &info(1), now))
        .collect();
    let many = RequestInfo { rows: 2, ..info(1) };
    let urgent = RequestInfo {
        priority: -1,
        ..info(2)
    };
    let push = |state: &mut State<u64>, info: &RequestInfo, number| {
        let queued = state.enqueue(&model, info, 10, MINUTE, number, now);
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    };
    push(&mut state, &many, 1);
    push(&mut state, &info(1), 2);
    state.finished(
        &model.key(),
        grants[0].replica.id,
        grants[0].request_id,
        Length::Counted(10),
        now,
    );
    assert!(state.next(&model, now).is_none());
    push(&mut state, &urgent, 3);
    let (_, number) = state.next(&model, now).expect("a row is free");
    assert_eq!(number, 3);
    assert!(state.next(&model, now).is_none());
}

/// No other event would dispatch the queued requests.
#[test]
fn requeues_at_the_end_of_an_ejection() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(2, 1), State::new());
    let grants: Vec<_> = (0..2)
        .filter_map(|_| state.admit(&model, &info(1), clock.instant()))
        .collect();
    let failed = grants
        .iter()
        .find(|grant| grant.replica.id == 1)
        .expect("both have one");
    state.failed(1, failed.request_id, Fault::Unreachable, clock.instant());
    assert_eq!(state.requeue_after(clock.instant()), None, "no request is queued");
    let queued = state.enqueue(&model, &info(1), 10, MINUTE, 7, clock.instant());
    assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    assert!(state.next(&model, clock.instant()).is_none());
    let ejection = state.requeue_after(clock.instant()).expect("an ejection");
    manual.advance(ejection);
    let (grant, number) = state.next(&model, clock.instant()).expect("half-open");
    assert_eq!((grant.replica.id, number), (1, 7));
    assert_eq!(state.requeue_after(clock.instant()), None);
}

#[test]
fn bounds_bytes_of_queued_bodies() {
    let clock = Clock::System;
    let (model, mut state) = (model(1, 1), State::new());
    let _taken = state
        .admit(&model, &info(1), clock.instant())
        .expect("a free row");
    let half = MAX_HELD_BYTES / 2;
    let push = |state: &mut State<u8>| state.enqueue(&model, &info(1), half, MINUTE, 0, clock.instant());
    let EnqueueResult::Queued(ticket, None) = push(&mut state) else {
        panic!("the queue is not full");
    };
    assert!(matches!(push(&mut state), EnqueueResult::Queued(..)));
    assert!(matches!(
        push(&mut state),
        EnqueueResult::Rejected(Refusal::QueueFull(_))
    ));
    state.remove_queued(&model.key(), ticket);
    assert!(matches!(push(&mut state), EnqueueResult::Queued(..)));
}

#[test]
fn queue_limit_follows_rows_and_grows_if_replicas_are_missing() {
    let now = Clock::System.instant();
    let push = |state: &mut State<u8>, model: &Model| {
        let queued = state.enqueue(model, &info(1), 10, MINUTE, 0, now);
        matches!(queued, EnqueueResult::Queued(..))
    };
    let whole = Model {
        wanted_rows: 2,
        ..model(2, 1)
    };
    let mut state = State::new();
    let taken = (0..64).filter(|_| push(&mut state, &whole)).count();
    assert_eq!(taken, 2 * 8);

    // One of two replicas is missing: the limit grows.
    let short = Model {
        wanted_rows: 2,
        ..model(1, 1)
    };
    let taken = (0..300).filter(|_| push(&mut state, &short)).count();
    assert_eq!(taken, MAX_HELD_REQUESTS - 16);
    // Both replicas are ready: the larger limit applies until the backlog is served.
    for _ in 0..10 {
        assert!(state.next(&whole, now).is_some());
        state
            .replicas
            .values_mut()
            .for_each(|replica| replica.in_flight.clear());
    }
    assert!(push(&mut state, &whole));
    while state.queued().map(|(_, queued)| queued).sum::<usize>() >= 16 {
        assert!(state.next(&whole, now).is_some());
        state
            .replicas
            .values_mut()
            .for_each(|replica| replica.in_flight.clear());
    }
    let taken = (0..64).filter(|_| push(&mut state, &whole)).count();
    assert_eq!(taken, 1);

    let explicit = Model {
        routing: crate::routing::table::Routing {
            max_queued: Some(20),
            ..Default::default()
        },
        ..whole
    };
    assert_eq!((0..64).filter(|_| push(&mut state, &explicit)).count(), 4);
}

#[test]
fn returns_queued_requests_of_removed_model() {
    let clock = Clock::System;
    let (mut model, mut state) = (model(0, 1), State::new());
    for queued in 0..2 {
        let queued = state.enqueue(&model, &info(1), 10, MINUTE, queued, clock.instant());
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    }
    assert_eq!(state.take_peaks().values().sum::<u64>(), 2);
    assert_eq!(
        state.update(&RoutingTable::default(), &keys(), clock.instant()),
        [0, 1]
    );
    assert_eq!(state.held_bytes, 0);
    model.has_desired_replicas = false;
    let queued = state.enqueue(&model, &info(1), 10, MINUTE, 9, clock.instant());
    assert!(
        matches!(queued, EnqueueResult::Rejected(Refusal::NotReady)),
        "{queued:?}"
    );
}

#[test]
fn typical_length_is_per_choice_and_bounded_by_max_tokens() {
    let now = Clock::System.instant();
    let typical = |info: &RequestInfo, length: Length| {
        let (model, mut state) = (model(1, 4), State::<u8>::new());
        let grant = state.admit(&model, info, now).expect("a free row");
        state.finished(&model.key(), grant.replica.id, grant.request_id, length, now);
        state.model(&model).typical_answer
    };
    let with = |rows, max_tokens, has_logprobs| RequestInfo {
        rows,
        max_tokens,
        has_logprobs,
        ..info(1)
    };
    for (info, length, expect) in [
        (with(1, None, false), Length::Counted(50), Some(50.0)),
        (with(4, None, true), Length::Counted(200), Some(50.0)),
        (with(1, None, false), Length::Estimated(80), Some(80.0)),
        (with(2, Some(30), false), Length::Estimated(80), Some(30.0)),
        (with(1, Some(9000), true), Length::Estimated(80_000), None),
    ] {
        assert_eq!(typical(&info, length), expect, "{info:?} {length:?}");
    }
}

/// Returns the key of [`model`].
fn keys() -> BTreeSet<ModelKey> {
    [model(0, 1).key()].into()
}

fn table(model: Model) -> RoutingTable {
    RoutingTable::of_models([model])
}

#[test]
fn gives_up_unplaced_model_after_grace_period() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let mut unplaced = model(0, 1);
    unplaced.is_unplaced = true;
    let mut state = State::new();
    assert!(
        state
            .update(&table(unplaced.clone()), &keys(), clock.instant())
            .is_empty()
    );
    let queued = state.enqueue(&unplaced, &info(1), 10, MINUTE, 7, clock.instant());
    assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
    assert_eq!(state.requeue_after(clock.instant()), Some(UNPLACED_GRACE_PERIOD));
    manual.advance(UNPLACED_GRACE_PERIOD / 2);
    assert_eq!(
        state.grace_period_left(&unplaced, clock.instant()),
        Some(UNPLACED_GRACE_PERIOD / 2)
    );
    // A terminating replica may release capacity for its successor: the grace period restarts.
    let leaving = Model {
        may_become_ready: true,
        ..unplaced.clone()
    };
    state.update(&table(leaving), &keys(), clock.instant());
    assert_eq!(state.grace_period_left(&unplaced, clock.instant()), None);
    state.update(&table(unplaced.clone()), &keys(), clock.instant());
    manual.advance(UNPLACED_GRACE_PERIOD - Duration::from_millis(1));
    assert!(
        state
            .update(&table(unplaced.clone()), &keys(), clock.instant())
            .is_empty()
    );
    manual.advance(Duration::from_millis(1));
    assert_eq!(
        state.grace_period_left(&unplaced, clock.instant()),
        Some(Duration::ZERO)
    );
    assert_eq!(state.update(&table(unplaced), &keys(), clock.instant()), [7]);
}

#[test]
fn counts_requests_of_other_gateways_until_they_expire() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (mut model, mut state) = (model(2, 4), State::<u8>::new());
    let admit = |state: &mut State<u8>, model: &Model| {
        let grant = state.admit(model, &info(1), clock.instant()).expect("a free row");
        state.abandoned(grant.replica.id, grant.request_id, clock.instant());
        grant.replica.id
    };
    // Equal replicas alternate.
    let first = admit(&mut state, &model);
    let second = admit(&mut state, &model);
    assert_ne!(first, second);
    // A response reports three requests, one of them of this gateway.
    let ours = state
        .admit(&model, &info(1), clock.instant())
        .expect("a free row");
    state.record_running(ours.replica.id, 3, clock.instant());
    state.abandoned(ours.replica.id, ours.request_id, clock.instant());
    let (busy, quiet) = (ours.replica.id, 3 - ours.replica.id);
    assert_eq!(state.replicas[&busy].external.at(clock.instant()), 2);
    for _ in 0..3 {
        assert_eq!(admit(&mut state, &model), quiet);
    }
    manual.advance(EXTERNAL_LOAD_TTL);
    assert_eq!(admit(&mut state, &model), busy, "the observation has expired");
    // An agent's report counts only after this gateway has been idle at the replica.
    let report = |state: &mut State<u8>, model: &mut Model, count| {
        model
            .replicas
            .iter_mut()
            .for_each(|one| one.reported = Some(count));
        state.update(&table(model.clone()), &keys(), clock.instant());
        state.replicas[&busy].external.at(clock.instant())
    };
    assert_eq!(report(&mut state, &mut model, 3), 0);
    manual.advance(2 * EXTERNAL_LOAD_TTL);
    assert_eq!(report(&mut state, &mut model, 2), 2);
}

/// Each of the concurrent requests must not apply the same correction again.
#[test]
fn correction_stays_accurate_with_many_concurrent_requests() {
    const UNDER_WAY: u32 = 48;
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(3, 32), State::<u8>::new());
    let mut grants = std::collections::VecDeque::new();
    for turn in 0..3000 {
        let grant = state
            .admit(&model, &info(1), clock.instant())
            .expect("a free row");
        state.first_token(grant.replica.id, grant.request_id, clock.instant());
        grants.push_back(grant);
        manual.advance(Duration::from_secs(3) / UNDER_WAY);
        if grants.len() < UNDER_WAY as usize {
            continue;
        }
        // 50 tokens take 3 s; the default speed predicts 2 s.
        let grant = grants.pop_front().expect("many");
        state.finished(
            &model.key(),
            grant.replica.id,
            grant.request_id,
            Length::Counted(50),
            clock.instant(),
        );
        for replica in model.replicas.iter().filter(|_| turn > 1000) {
            let load = Load {
                answer_tokens: 50,
                ..Load::default()
            };
            let expected = Estimate::new(&replica.speed, &state.replicas[&replica.id].correction, load);
            assert!((expected.finish - 3.0).abs() < 0.1, "turn {turn}: {expected:?}");
        }
    }
}

#[test]
fn queued_request_advances_round_robin_once() {
    let now = Clock::System.instant();
    let (mut model, mut state) = (model(2, 1), State::new());
    model.traffic = vec![("a".to_owned(), 50), ("b".to_owned(), 50)];
    for (replica, revision) in model.replicas.iter_mut().zip(["a", "b"]) {
        replica.revision = Some(revision.to_owned());
    }
    let finish = |state: &mut State<u8>, grant: &Grant| {
        state.finished(
            &model.key(),
            grant.replica.id,
            grant.request_id,
            Length::Counted(10),
            now,
        );
    };
    let mut waited = Vec::new();
    for _ in 0..20 {
        let both: Vec<_> = (0..2)
            .filter_map(|_| state.admit(&model, &info(1), now))
            .collect();
        assert_eq!(both.len(), 2);
        assert!(state.admit(&model, &info(1), now).is_none());
        let queued = state.enqueue(&model, &info(1), 10, MINUTE, 0, now);
        assert!(matches!(queued, EnqueueResult::Queued(_, None)), "{queued:?}");
        both.iter().for_each(|grant| finish(&mut state, grant));
        let (grant, _) = state.next(&model, now).expect("a free row");
        finish(&mut state, &grant);
        waited.push(grant.replica.id);
    }
    assert_eq!(waited.iter().filter(|id| **id == 1).count(), 10, "{waited:?}");
}

/// Event of a random run.
#[derive(Debug, Clone)]
enum Step {
    Arrives(u64),
    Finishes(usize),
    Fails(usize),
    Removed(usize),
    TimePasses(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..3).prop_map(Step::Arrives),
        3 => (0usize..8).prop_map(Step::Finishes),
        1 => (0usize..8).prop_map(Step::Fails),
        1 => (0usize..8).prop_map(Step::Removed),
        1 => (0u64..90).prop_map(Step::TimePasses),
    ]
}

proptest! {
    #[test]
    fn never_overloads_a_replica_or_loses_a_request(
        steps in proptest::collection::vec(step(), 0..120), replicas in 1usize..4, rows in 1u32..3,
    ) {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let (model, mut state) = (model(replicas, rows), State::new());
        let (mut grants, mut queued): (Vec<Grant>, Vec<(u64, QueueTicket)>) = Default::default();
        let mut number = 0;
        for step in steps {
            let now = clock.instant();
            match step {
                Step::Arrives(client) => match state.admit(&model, &info(client), now) {
                    Some(grant) => grants.push(grant),
                    None => {
                        number += 1;
                        match state.enqueue(&model, &info(client), 7, MINUTE, number, now) {
                            EnqueueResult::Queued(ticket, evicted) => {
                                queued.retain(|(id, _)| Some(*id) != evicted);
                                queued.push((number, ticket));
                            }
                            EnqueueResult::Rejected(_) => {}
                        }
                    }
                },
                Step::Finishes(index) if index < grants.len() => {
                    let grant = grants.remove(index);
                    state.finished(&model.key(), grant.replica.id, grant.request_id, Length::Counted(10), now);
                }
                Step::Fails(index) if index < grants.len() => {
                    let grant = grants.remove(index);
                    state.failed(grant.replica.id, grant.request_id, Fault::Unreachable, now);
                }
                Step::Removed(index) if index < queued.len() => {
                    let (_, ticket) = queued.remove(index);
                    state.remove_queued(&model.key(), ticket);
                }
                Step::Finishes(_) | Step::Fails(_) | Step::Removed(_) => {}
                Step::TimePasses(seconds) => manual.advance(Duration::from_secs(seconds)),
            }
            while let Some((grant, id)) = state.next(&model, clock.instant()) {
                prop_assert!(queued.iter().any(|(known, _)| *known == id), "dispatched twice, or after removal");
                queued.retain(|(known, _)| *known != id);
                grants.push(grant);
            }
            for replica in &model.replicas {
                let there = grants.iter().filter(|grant| grant.replica.id == replica.id).count();
                prop_assert!(there <= rows as usize);
            }
            prop_assert_eq!(state.in_flight(), grants.len());
            prop_assert_eq!(state.held_bytes, queued.len() * 7);
            prop_assert!(queued.is_empty() || !grants.is_empty(), "requests are queued while all replicas are idle");
        }
    }
}
