use proptest::prelude::*;

use super::replica::OTHERS_STAND;
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
    };
    Model {
        namespace: "default".to_owned(),
        name: "guide".to_owned(),
        replicas: (0..replicas).map(replica).collect(),
        is_wanted: true,
        ..Model::default()
    }
}

fn ask(client: u64) -> Ask {
    Ask {
        rows: 1,
        prompt_tokens: 100,
        client,
        ..Ask::default()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn the_wait_is_told_from_what_is_under_way_once_answers_were_seen() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(1, 1), State::new());
    let first = state.admit(&model, &ask(1), clock.instant()).expect("room");
    assert!(state.admit(&model, &ask(1), clock.instant()).is_none());
    assert_eq!(
        state.expected_wait(&model, clock.instant()),
        None,
        "nothing is known yet"
    );
    state.finished(
        &model.key(),
        first.replica.id,
        first.flight,
        Length::Counted(50),
        clock.instant(),
    );
    // 100 tokens at 500/s and 50 at 25/s: the neutral speed.
    let _second = state.admit(&model, &ask(1), clock.instant()).expect("room");
    manual.advance(Duration::from_millis(200));
    let wait = state.expected_wait(&model, clock.instant()).expect("known").after;
    assert!((wait.as_secs_f64() - 2.0).abs() < 0.1, "{wait:?}");
    for waiting in 0..3 {
        let queued = state.enqueue(&model, &ask(1), 10, MINUTE, waiting, clock.instant());
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    }
    let wait = state.expected_wait(&model, clock.instant()).expect("known").after;
    assert!((wait.as_secs_f64() - 8.6).abs() < 0.2, "{wait:?}");
    let queued = state.enqueue(&model, &ask(1), 10, MINUTE / 10, 9, clock.instant());
    assert!(
        matches!(queued, Queued::Refused(Refusal::TooLong(_))),
        "{queued:?}"
    );
}

/// A prompt of more tokens than a client may have computed in one turn.
fn long(client: u64) -> Ask {
    Ask {
        prompt_tokens: 2000,
        ..ask(client)
    }
}

/// Requests of one client wait for a model with one row; each takes about 6 s.
fn backlog(model: &Model, now: Instant) -> State<u64> {
    let mut state = State::new();
    let first = state.admit(model, &long(1), now).expect("room");
    state.finished(
        &model.key(),
        first.replica.id,
        first.flight,
        Length::Counted(50),
        now,
    );
    let _under_way = state.admit(model, &long(1), now).expect("room");
    for waiting in 0..7 {
        let queued = state.enqueue(model, &long(1), 10, MINUTE, waiting, now);
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    }
    state
}

/// Who goes before others is not turned away for those that it does not wait for.
#[test]
fn a_wait_counts_those_that_go_before() {
    let now = Clock::System.instant();
    let model = model(1, 1);
    let patience = Duration::from_secs(10);
    for (who, ask, waits) in [
        ("the same client", ask(1), false),
        ("another client", ask(2), true),
        (
            "more urgent",
            Ask {
                priority: -1,
                ..ask(1)
            },
            true,
        ),
        (
            "less urgent",
            Ask {
                priority: 1,
                ..ask(2)
            },
            false,
        ),
    ] {
        let queued = backlog(&model, now).enqueue(&model, &ask, 10, patience, 9, now);
        assert_eq!(matches!(queued, Queued::Waits(..)), waits, "{who}: {queued:?}");
    }
}

#[test]
fn who_needs_several_rows_holds_one_replica_free_and_not_the_model() {
    let now = Clock::System.instant();
    let (model, mut state) = (model(2, 2), State::new());
    let many = Ask { rows: 2, ..ask(1) };
    let flying: Vec<_> = (0..4).filter_map(|_| state.admit(&model, &ask(1), now)).collect();
    assert_eq!(flying.len(), 4);
    let push = |state: &mut State<u64>, ask: &Ask, number| {
        let queued = state.enqueue(&model, ask, 10, MINUTE, number, now);
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    };
    push(&mut state, &many, 1);
    push(&mut state, &ask(1), 2);
    push(&mut state, &ask(1), 3);
    let next = |state: &mut State<u64>, end: &Grant| {
        state.finished(&model.key(), end.replica.id, end.flight, Length::Counted(10), now);
        state
            .next(&model, now)
            .map(|(grant, number)| (grant.replica.id, number))
    };
    // One row of each replica ends: the one that is held free stays so, the other takes the next in turn.
    let (a, b): (Vec<_>, Vec<_>) = flying.iter().partition(|grant| grant.replica.id == 1);
    let first = [next(&mut state, a[0]), next(&mut state, b[0])];
    let given: Vec<_> = first.into_iter().flatten().collect();
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!(given[0].1, 2);
    let held = if given[0].0 == 1 { b[1] } else { a[1] };
    assert_eq!(next(&mut state, held), Some((held.replica.id, 1)));
    assert_eq!(state.next(&model, now).map(|(_, number)| number), None);
}

#[test]
fn the_more_urgent_takes_the_rows_that_are_held_free() {
    let now = Clock::System.instant();
    let (model, mut state) = (model(1, 2), State::new());
    let flying: Vec<_> = (0..2).filter_map(|_| state.admit(&model, &ask(1), now)).collect();
    let many = Ask { rows: 2, ..ask(1) };
    let urgent = Ask {
        priority: -1,
        ..ask(2)
    };
    let push = |state: &mut State<u64>, ask: &Ask, number| {
        let queued = state.enqueue(&model, ask, 10, MINUTE, number, now);
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    };
    push(&mut state, &many, 1);
    push(&mut state, &ask(1), 2);
    state.finished(
        &model.key(),
        flying[0].replica.id,
        flying[0].flight,
        Length::Counted(10),
        now,
    );
    assert!(state.next(&model, now).is_none());
    push(&mut state, &urgent, 3);
    let (_, number) = state.next(&model, now).expect("a row is free");
    assert_eq!(number, 3);
    assert!(state.next(&model, now).is_none());
}

/// Nobody else would wake those that wait.
#[test]
fn the_end_of_a_pause_is_looked_at_while_something_waits() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(2, 1), State::new());
    let flying: Vec<_> = (0..2)
        .filter_map(|_| state.admit(&model, &ask(1), clock.instant()))
        .collect();
    let failed = flying
        .iter()
        .find(|grant| grant.replica.id == 1)
        .expect("both have one");
    state.failed(1, failed.flight, Fault::Unreachable, clock.instant());
    assert_eq!(state.look_again_after(clock.instant()), None, "nothing waits");
    let queued = state.enqueue(&model, &ask(1), 10, MINUTE, 7, clock.instant());
    assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    assert!(state.next(&model, clock.instant()).is_none());
    let pause = state.look_again_after(clock.instant()).expect("a pause");
    manual.advance(pause);
    let (grant, number) = state.next(&model, clock.instant()).expect("on trial");
    assert_eq!((grant.replica.id, number), (1, 7));
    assert_eq!(state.look_again_after(clock.instant()), None);
}

#[test]
fn bodies_that_wait_are_bounded_in_bytes() {
    let clock = Clock::System;
    let (model, mut state) = (model(1, 1), State::new());
    let _taken = state.admit(&model, &ask(1), clock.instant()).expect("room");
    let half = MAX_HELD_BYTES / 2;
    let push = |state: &mut State<u8>| state.enqueue(&model, &ask(1), half, MINUTE, 0, clock.instant());
    let Queued::Waits(slip, None) = push(&mut state) else {
        panic!("there is room");
    };
    assert!(matches!(push(&mut state), Queued::Waits(..)));
    assert!(matches!(push(&mut state), Queued::Refused(Refusal::QueueFull(_))));
    state.leave(&model.key(), slip);
    assert!(matches!(push(&mut state), Queued::Waits(..)));
}

#[test]
fn a_queue_is_as_long_as_its_replicas_work_off_unless_they_were_too_few() {
    let now = Clock::System.instant();
    let push = |state: &mut State<u8>, model: &Model| {
        let queued = state.enqueue(model, &ask(1), 10, MINUTE, 0, now);
        matches!(queued, Queued::Waits(..))
    };
    let whole = Model {
        wanted_rows: 2,
        ..model(2, 1)
    };
    let mut state = State::new();
    let taken = (0..64).filter(|_| push(&mut state, &whole)).count();
    assert_eq!(taken, 2 * 8);

    // One of the two is replaced: what it does not answer meanwhile is held.
    let short = Model {
        wanted_rows: 2,
        ..model(1, 1)
    };
    let taken = (0..300).filter(|_| push(&mut state, &short)).count();
    assert_eq!(taken, MAX_HELD_REQUESTS - 16);
    // It is back: nobody is refused until the backlog is worked off.
    for _ in 0..10 {
        assert!(state.next(&whole, now).is_some());
        state
            .replicas
            .values_mut()
            .for_each(|replica| replica.flights.clear());
    }
    assert!(push(&mut state, &whole));
    while state.waiting().map(|(_, waiting)| waiting).sum::<usize>() >= 16 {
        assert!(state.next(&whole, now).is_some());
        state
            .replicas
            .values_mut()
            .for_each(|replica| replica.flights.clear());
    }
    let taken = (0..64).filter(|_| push(&mut state, &whole)).count();
    assert_eq!(taken, 1);

    let said = Model {
        routing: crate::routing::table::Routing {
            max_queued: Some(20),
            ..Default::default()
        },
        ..whole
    };
    assert_eq!((0..64).filter(|_| push(&mut state, &said)).count(), 4);
}

#[test]
fn those_that_wait_for_what_will_not_come_are_told() {
    let clock = Clock::System;
    let (mut model, mut state) = (model(0, 1), State::new());
    for waiting in 0..2 {
        let queued = state.enqueue(&model, &ask(1), 10, MINUTE, waiting, clock.instant());
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    }
    assert_eq!(state.take_peaks().values().sum::<u64>(), 2);
    assert_eq!(state.update(&RoutingTable::default(), clock.instant()), [0, 1]);
    assert_eq!(state.held_bytes, 0);
    model.is_wanted = false;
    let queued = state.enqueue(&model, &ask(1), 10, MINUTE, 9, clock.instant());
    assert!(matches!(queued, Queued::Refused(Refusal::NotReady)), "{queued:?}");
}

#[test]
fn an_answer_of_several_choices_is_as_long_as_one_and_a_guess_no_longer_than_allowed() {
    let now = Clock::System.instant();
    let typical = |ask: &Ask, length: Length| {
        let (model, mut state) = (model(1, 4), State::<u8>::new());
        let grant = state.admit(&model, ask, now).expect("room");
        state.finished(&model.key(), grant.replica.id, grant.flight, length, now);
        state.model(&model).typical_answer
    };
    let with = |rows, max_tokens, has_logprobs| Ask {
        rows,
        max_tokens,
        has_logprobs,
        ..ask(1)
    };
    for (ask, length, expect) in [
        (with(1, None, false), Length::Counted(50), Some(50.0)),
        (with(4, None, true), Length::Counted(200), Some(50.0)),
        (with(1, None, false), Length::Guessed(80), Some(80.0)),
        (with(2, Some(30), false), Length::Guessed(80), Some(30.0)),
        (with(1, Some(9000), true), Length::Guessed(80_000), None),
    ] {
        assert_eq!(typical(&ask, length), expect, "{ask:?} {length:?}");
    }
}

fn table(model: Model) -> RoutingTable {
    RoutingTable::of_models([model])
}

#[test]
fn what_no_node_takes_is_given_up_after_a_moment() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let mut unplaced = model(0, 1);
    unplaced.is_unplaced = true;
    let mut state = State::new();
    assert!(state.update(&table(unplaced.clone()), clock.instant()).is_empty());
    let queued = state.enqueue(&unplaced, &ask(1), 10, MINUTE, 7, clock.instant());
    assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
    assert_eq!(state.look_again_after(clock.instant()), Some(UNPLACED_STANDS));
    manual.advance(UNPLACED_STANDS / 2);
    assert_eq!(
        state.unplaced_for(&unplaced, clock.instant()),
        Some(UNPLACED_STANDS / 2)
    );
    // While an old replica leaves, its place may become the new one's: the moment begins anew after that.
    let leaving = Model {
        is_coming: true,
        ..unplaced.clone()
    };
    state.update(&table(leaving), clock.instant());
    assert_eq!(state.unplaced_for(&unplaced, clock.instant()), None);
    state.update(&table(unplaced.clone()), clock.instant());
    manual.advance(UNPLACED_STANDS - Duration::from_millis(1));
    assert!(state.update(&table(unplaced.clone()), clock.instant()).is_empty());
    manual.advance(Duration::from_millis(1));
    assert_eq!(
        state.unplaced_for(&unplaced, clock.instant()),
        Some(Duration::ZERO)
    );
    assert_eq!(state.update(&table(unplaced), clock.instant()), [7]);
}

#[test]
fn requests_of_other_gateways_are_counted_in_while_they_are_fresh() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (mut model, mut state) = (model(2, 4), State::<u8>::new());
    let admit = |state: &mut State<u8>, model: &Model| {
        let grant = state.admit(model, &ask(1), clock.instant()).expect("room");
        state.abandoned(grant.replica.id, grant.flight, clock.instant());
        grant.replica.id
    };
    // Turn by turn while both are alike.
    let first = admit(&mut state, &model);
    let second = admit(&mut state, &model);
    assert_ne!(first, second);
    // An answer tells of three requests, of which one is ours.
    let ours = state.admit(&model, &ask(1), clock.instant()).expect("room");
    state.saw_running(ours.replica.id, 3, clock.instant());
    state.abandoned(ours.replica.id, ours.flight, clock.instant());
    let (busy, quiet) = (ours.replica.id, 3 - ours.replica.id);
    assert_eq!(state.replicas[&busy].others.at(clock.instant()), 2);
    for _ in 0..3 {
        assert_eq!(admit(&mut state, &model), quiet);
    }
    manual.advance(OTHERS_STAND);
    assert_eq!(admit(&mut state, &model), busy, "nobody knows any more");
    // What an agent reports may be our own for a while, and later only the others'.
    let report = |state: &mut State<u8>, model: &mut Model, count| {
        model
            .replicas
            .iter_mut()
            .for_each(|one| one.reported = Some(count));
        state.update(&table(model.clone()), clock.instant());
        state.replicas[&busy].others.at(clock.instant())
    };
    assert_eq!(report(&mut state, &mut model, 3), 0);
    manual.advance(2 * OTHERS_STAND);
    assert_eq!(report(&mut state, &mut model, 2), 2);
}

/// Else what one answer showed is corrected once more by each that was under way beside it.
#[test]
fn what_was_learnt_stays_near_to_the_truth_with_many_under_way() {
    const UNDER_WAY: u32 = 48;
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let clock = Clock::Manual(manual.clone());
    let (model, mut state) = (model(3, 32), State::<u8>::new());
    let mut flying = std::collections::VecDeque::new();
    for turn in 0..3000 {
        let grant = state.admit(&model, &ask(1), clock.instant()).expect("room");
        state.first_token(grant.replica.id, grant.flight, clock.instant());
        flying.push_back(grant);
        manual.advance(Duration::from_secs(3) / UNDER_WAY);
        if flying.len() < UNDER_WAY as usize {
            continue;
        }
        // 50 tokens take 3 s; of the neutral speed 2 s are expected.
        let grant = flying.pop_front().expect("many");
        state.finished(
            &model.key(),
            grant.replica.id,
            grant.flight,
            Length::Counted(50),
            clock.instant(),
        );
        for replica in model.replicas.iter().filter(|_| turn > 1000) {
            let load = Load {
                answer_tokens: 50,
                ..Load::default()
            };
            let expected = Estimate::new(&replica.speed, &state.replicas[&replica.id].experience, load);
            assert!((expected.finish - 3.0).abs() < 0.1, "turn {turn}: {expected:?}");
        }
    }
}

#[test]
fn a_request_that_waits_takes_one_turn() {
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
            grant.flight,
            Length::Counted(10),
            now,
        );
    };
    let mut waited = Vec::new();
    for _ in 0..20 {
        let both: Vec<_> = (0..2).filter_map(|_| state.admit(&model, &ask(1), now)).collect();
        assert_eq!(both.len(), 2);
        assert!(state.admit(&model, &ask(1), now).is_none());
        let queued = state.enqueue(&model, &ask(1), 10, MINUTE, 0, now);
        assert!(matches!(queued, Queued::Waits(_, None)), "{queued:?}");
        both.iter().for_each(|grant| finish(&mut state, grant));
        let (grant, _) = state.next(&model, now).expect("room");
        finish(&mut state, &grant);
        waited.push(grant.replica.id);
    }
    assert_eq!(waited.iter().filter(|id| **id == 1).count(), 10, "{waited:?}");
}

/// What may happen, in any order.
#[derive(Debug, Clone)]
enum Step {
    Comes(u64),
    Ends(usize),
    Fails(usize),
    Leaves(usize),
    Passes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..3).prop_map(Step::Comes),
        3 => (0usize..8).prop_map(Step::Ends),
        1 => (0usize..8).prop_map(Step::Fails),
        1 => (0usize..8).prop_map(Step::Leaves),
        1 => (0u64..90).prop_map(Step::Passes),
    ]
}

proptest! {
    #[test]
    fn no_replica_gets_too_much_and_nobody_is_lost(
        steps in proptest::collection::vec(step(), 0..120), replicas in 1usize..4, rows in 1u32..3,
    ) {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let (model, mut state) = (model(replicas, rows), State::new());
        let (mut flying, mut waiting): (Vec<Grant>, Vec<(u64, Slip)>) = Default::default();
        let mut number = 0;
        for step in steps {
            let now = clock.instant();
            match step {
                Step::Comes(client) => match state.admit(&model, &ask(client), now) {
                    Some(grant) => flying.push(grant),
                    None => {
                        number += 1;
                        match state.enqueue(&model, &ask(client), 7, MINUTE, number, now) {
                            Queued::Waits(slip, gone) => {
                                waiting.retain(|(id, _)| Some(*id) != gone);
                                waiting.push((number, slip));
                            }
                            Queued::Refused(_) => {}
                        }
                    }
                },
                Step::Ends(index) if index < flying.len() => {
                    let grant = flying.remove(index);
                    state.finished(&model.key(), grant.replica.id, grant.flight, Length::Counted(10), now);
                }
                Step::Fails(index) if index < flying.len() => {
                    let grant = flying.remove(index);
                    state.failed(grant.replica.id, grant.flight, Fault::Unreachable, now);
                }
                Step::Leaves(index) if index < waiting.len() => {
                    let (_, slip) = waiting.remove(index);
                    state.leave(&model.key(), slip);
                }
                Step::Ends(_) | Step::Fails(_) | Step::Leaves(_) => {}
                Step::Passes(seconds) => manual.advance(Duration::from_secs(seconds)),
            }
            while let Some((grant, id)) = state.next(&model, clock.instant()) {
                prop_assert!(waiting.iter().any(|(known, _)| *known == id), "told twice, or after it had left");
                waiting.retain(|(known, _)| *known != id);
                flying.push(grant);
            }
            for replica in &model.replicas {
                let there = flying.iter().filter(|grant| grant.replica.id == replica.id).count();
                prop_assert!(there <= rows as usize);
            }
            prop_assert_eq!(state.under_way(), flying.len());
            prop_assert_eq!(state.held_bytes, waiting.len() * 7);
            prop_assert!(waiting.is_empty() || !flying.is_empty(), "somebody waits and everybody is idle");
        }
    }
}
