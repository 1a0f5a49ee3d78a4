//! Tests of the scheduling policy with a simulated engine.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    rows: 4,
    bytes: 1000,
    pass_tokens: 1024,
    chunk_tokens: MAX_CHUNK_TOKENS,
};

/// Limits of a device that gains nothing from longer passes.
const SHORT_PASSES: Limits = Limits {
    pass_tokens: 256,
    ..LIMITS
};

/// Request of a test.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// Step in which the request arrives.
    arrives: u64,
    priority: i32,
    bytes: u64,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// Number of steps after which the client disconnects.
    patience: u64,
}

fn request() -> impl Strategy<Value = Request> {
    (
        0..60_u64,
        -1..2_i32,
        1..1000_u64,
        1..5000_usize,
        1..40_usize,
        1..400_u64,
    )
        .prop_map(
            |(arrives, priority, bytes, prompt_tokens, completion_tokens, patience)| Request {
                arrives,
                priority,
                bytes,
                prompt_tokens,
                completion_tokens,
                // Most clients do not disconnect.
                patience: if patience < 60 { patience } else { u64::MAX },
            },
        )
}

/// Executes and checks plans.
#[derive(Debug, Default)]
struct Simulation {
    waiting: Vec<Waiting>,
    running: Vec<(Running, usize)>,
    /// Step in which each request joined, and step in which it ended.
    joined: BTreeMap<RequestId, u64>,
    ended: BTreeMap<RequestId, u64>,
}

impl Simulation {
    fn arrive(&mut self, id: u64, request: Request) {
        self.waiting.push(Waiting {
            id: RequestId(id),
            priority: request.priority,
            overtaken: 0,
            bytes: request.bytes,
            prompt_tokens: request.prompt_tokens,
        });
    }

    fn step(&mut self, now: u64, pace: Pace, completion_tokens: impl Fn(RequestId) -> usize) -> StepPlan {
        let running: Vec<Running> = self.running.iter().map(|(row, _)| *row).collect();
        let plan = StepPlan::new(&self.waiting, &running, LIMITS, pace);
        assert_eq!(
            plan,
            StepPlan::new(&self.waiting, &running, LIMITS, pace),
            "deterministic"
        );
        for id in &plan.join {
            let place = self.waiting.iter().position(|waiting| waiting.id == *id).unwrap();
            let joined = joined(&self.waiting.remove(place));
            self.running.push((joined, completion_tokens(*id)));
            self.joined.insert(*id, now);
        }
        for id in &plan.overtaken {
            for waiting in self.waiting.iter_mut().filter(|waiting| waiting.id == *id) {
                waiting.overtaken += 1;
            }
            for (row, _) in self.running.iter_mut().filter(|(row, _)| row.id == *id) {
                row.overtaken += 1;
            }
        }
        // Decoding precedes the prefill pass, as in the engine.
        let mut ended = Vec::new();
        for (row, left) in self.running.iter_mut().filter(|(row, _)| row.prompt_left == 0) {
            *left -= 1;
            if *left == 0 {
                ended.push(row.id);
            }
        }
        let together: usize = plan.prefill.iter().map(|chunk| chunk.tokens).sum();
        let most = match &plan.prefill[..] {
            [] | [_] => MAX_CHUNK_TOKENS,
            _ => LIMITS.pass_tokens,
        };
        assert!(together <= most, "{plan:?}");
        for chunk in &plan.prefill {
            let (row, _) = self
                .running
                .iter_mut()
                .find(|(row, _)| row.id == chunk.id)
                .unwrap();
            assert!((1..=row.prompt_left).contains(&chunk.tokens));
            row.prompt_left -= chunk.tokens;
            row.overtaken = 0;
        }
        for id in ended {
            self.end(id, now);
        }
        plan
    }

    fn end(&mut self, id: RequestId, now: u64) {
        self.waiting.retain(|waiting| waiting.id != id);
        self.running.retain(|(row, _)| row.id != id);
        self.ended.insert(id, now);
    }

    fn check_limits(&self) {
        assert!(self.running.len() <= LIMITS.rows);
        assert!(self.running.iter().map(|(row, _)| row.bytes).sum::<u64>() <= LIMITS.bytes);
    }
}

proptest! {
    #[test]
    fn every_request_ends_within_limits_and_in_order(
        mut requests in proptest::collection::vec(request(), 1..40),
        rate in proptest::option::of(10.0..5000.0_f64),
    ) {
        requests.sort_by_key(|request| request.arrives);
        let pace = Pace { prefill_tokens_per_second: rate, step: None };
        let mut simulation = Simulation::default();
        // Duration of all work in the smallest chunks, one after the other, plus the time until the
        // last arrival.
        let work: usize = requests
            .iter()
            .map(|request| request.prompt_tokens / MIN_CHUNK_TOKENS + request.completion_tokens + 3)
            .sum();
        let deadline = 60 + work as u64;
        let mut now = 0;
        while simulation.ended.len() < requests.len() {
            prop_assert!(now < deadline, "no end: {simulation:?}");
            for (id, request) in requests.iter().enumerate() {
                if request.arrives == now {
                    simulation.arrive(id as u64, *request);
                }
                let known = simulation.ended.contains_key(&RequestId(id as u64));
                if !known && now == request.arrives.saturating_add(request.patience) {
                    simulation.end(RequestId(id as u64), now);
                }
            }
            let idle = simulation.running.is_empty() && simulation.waiting.is_empty();
            let plan = simulation.step(now, pace, |id| requests[id.0 as usize].completion_tokens);
            simulation.check_limits();
            // Each step makes progress: some row decodes, or some prompt advances.
            prop_assert!(idle || !plan.prefill.is_empty() || simulation.running.iter().any(|(row, _)| row.prompt_left == 0)
                || simulation.ended.values().any(|ended| *ended == now));
            now += 1;
        }
        // Requests of equal priority that did not disconnect join in the order of arrival.
        for (earlier, one) in requests.iter().enumerate() {
            for (later, other) in requests.iter().enumerate().skip(earlier + 1) {
                let joined = |id: usize| simulation.joined.get(&RequestId(id as u64));
                if one.priority == other.priority
                    && let (Some(first), Some(second)) = (joined(earlier), joined(later))
                {
                    prop_assert!(first <= second, "{later} joined before {earlier}");
                }
            }
        }
    }
}

fn waiting(id: u64, priority: i32, bytes: u64) -> Waiting {
    Waiting {
        id: RequestId(id),
        priority,
        overtaken: 0,
        bytes,
        prompt_tokens: 10,
    }
}

fn running(id: u64, bytes: u64, prompt_left: usize) -> Running {
    Running {
        id: RequestId(id),
        priority: 0,
        overtaken: 0,
        bytes,
        prompt_left,
    }
}

fn plan(waiting: &[Waiting], running: &[Running]) -> StepPlan {
    StepPlan::new(waiting, running, LIMITS, Pace::default())
}

#[test]
fn lower_priority_values_join_first_then_the_oldest() {
    let queue = [
        waiting(1, 5, 10),
        waiting(2, -1, 10),
        waiting(3, 0, 10),
        waiting(4, -1, 10),
    ];
    let plan = plan(&queue, &[running(0, 10, 0)]);
    assert_eq!(plan.join, [2, 4, 3].map(RequestId));
    assert_eq!(plan.overtaken, [RequestId(1)]);
}

#[test]
fn nothing_overtakes_a_request_that_waits_for_memory() {
    let queue = [waiting(1, 0, 600), waiting(2, 0, 10)];
    assert_eq!(plan(&queue, &[running(0, 500, 0)]).join, []);
    assert_eq!(plan(&queue, &[running(0, 400, 0)]).join, [RequestId(1)]);
}

/// One request of low priority, and two new ones of high priority in each step.
#[test]
fn overtaken_request_eventually_joins_before_higher_priorities() {
    let mut simulation = Simulation::default();
    let request = Request {
        arrives: 0,
        priority: 9,
        bytes: 900,
        prompt_tokens: 1,
        completion_tokens: 1,
        patience: 0,
    };
    simulation.arrive(0, request);
    let mut now = 0;
    while !simulation.joined.contains_key(&RequestId(0)) {
        now += 1;
        assert!(now < 200, "starved: {simulation:?}");
        for id in [2 * now, 2 * now + 1] {
            let urgent = Request {
                priority: 0,
                bytes: 200,
                ..request
            };
            simulation.arrive(id, urgent);
        }
        simulation.step(now, Pace::default(), |_| 1);
    }
    assert!(simulation.joined.len() > MAX_OVERTAKEN_JOINS as usize);
}

#[test]
fn prefills_in_large_chunks_while_no_row_decodes() {
    let chunk = |rows: &[Running]| StepPlan::new(&[], rows, SHORT_PASSES, Pace::default()).prefill[0];
    let big = RequestId(0);
    assert_eq!(
        chunk(&[running(0, 1, 9000)]),
        Chunk {
            id: big,
            tokens: 2048
        }
    );
    let beside = [running(0, 1, 9000), running(1, 1, 0)];
    assert_eq!(chunk(&beside), Chunk { id: big, tokens: 512 });
    assert_eq!(chunk(&[running(0, 1, 7)]), Chunk { id: big, tokens: 7 });
}

/// A chunk takes at most 250 ms.
#[test]
fn chunks_beside_decoding_rows_respect_the_maximum_delay() {
    let rows = [running(0, 1, 9000), running(1, 1, 0)];
    let at = |rate| {
        let pace = Pace {
            prefill_tokens_per_second: Some(rate),
            step: None,
        };
        StepPlan::new(&[], &rows, SHORT_PASSES, pace).prefill[0].tokens
    };
    assert_eq!([at(1.0), at(400.0), at(1000.0), at(1e6)], [32, 96, 224, 512]);
}

#[test]
fn prompts_of_one_chunk_come_first_without_starving_others() {
    let rows = [
        running(0, 1, 9000),
        running(1, 1, 300),
        running(2, 1, 200),
        running(3, 1, 0),
    ];
    let first = |rows: &[Running]| StepPlan::new(&[], rows, SHORT_PASSES, Pace::default()).prefill[0];
    let shortest = Chunk {
        id: RequestId(2),
        tokens: 200,
    };
    assert_eq!(first(&rows), shortest);
    let alone = Limits {
        pass_tokens: 0,
        ..LIMITS
    };
    let overtaken = StepPlan::new(&[], &rows, alone, Pace::default()).overtaken;
    assert_eq!(overtaken, [0, 1].map(RequestId));
    let overtaken = Running {
        overtaken: MAX_OVERTAKEN_CHUNKS,
        ..rows[0]
    };
    let oldest = Chunk {
        id: RequestId(0),
        tokens: 512,
    };
    assert_eq!(first(&[overtaken, rows[1], rows[2], rows[3]]), oldest);
}

#[test]
fn prompts_share_a_pass_up_to_its_limit() {
    let read = |rows: &[Running], pace| {
        let plan = StepPlan::new(&[], rows, LIMITS, pace);
        let chunks = plan.prefill.iter().map(|chunk| (chunk.id.0, chunk.tokens));
        chunks.collect::<Vec<_>>()
    };
    let prompts = |tokens: [usize; 4]| {
        let rows = tokens.into_iter().enumerate();
        rows.map(|(id, tokens)| running(id as u64, 1, tokens))
            .collect::<Vec<_>>()
    };
    let free = Pace::default();
    // The shortest prompts come first; the rest of the pass is large enough for a part of the last
    // one.
    assert_eq!(
        read(&prompts([300, 200, 100, 600]), free),
        [(2, 100), (1, 200), (0, 300), (3, 424)]
    );
    // The rest of 24 tokens is too small for another part.
    assert_eq!(read(&prompts([500, 500, 600, 600]), free), [(0, 500), (1, 500)]);
    // A prompt that fills the pass is prefilled alone.
    assert_eq!(read(&prompts([1500, 2000, 3000, 3000]), free), [(0, 1500)]);
    // Beside a decoding row, the chunk is limited by the maximum delay.
    let beside = prompts([0, 900, 900, 900]);
    assert_eq!(read(&beside, free), [(1, 900)]);
    let at = |rate| Pace {
        prefill_tokens_per_second: Some(rate),
        step: None,
    };
    assert_eq!(
        read(&prompts([0, 300, 200, 900]), at(3200.0)),
        [(2, 200), (1, 300), (3, 300)]
    );
    assert_eq!(read(&beside, at(3200.0)), [(1, 800)]);
    assert_eq!(read(&beside, at(1600.0)), [(1, 384)]);
}

#[test]
fn row_is_free_when_the_first_request_ends() {
    let pace = Pace {
        prefill_tokens_per_second: Some(100.0),
        step: Some(Duration::from_millis(50)),
    };
    let rows =
        [(0, 100), (300, 0), (0, 160)].map(|(prompt, produced)| Remaining::new(prompt, produced, 500, 200));
    assert_eq!(time_until_free_row(rows, pace), Some(Duration::from_secs(2)));
    assert_eq!(time_until_free_row([], pace), None);
    assert_eq!(time_until_free_row(rows, Pace::default()), None);
}

#[test]
fn expected_length_is_typical_and_limited_by_max_tokens() {
    let tokens = |produced, max| Remaining::new(0, produced, max, 200).completion_tokens;
    assert_eq!(
        [
            tokens(0, 500),
            tokens(150, 500),
            tokens(150, 160),
            tokens(450, 500),
            tokens(300, 900)
        ],
        [200, 50, 10, 50, 300]
    );
    // An answer that is longer than typical is expected to double.
    assert_eq!(tokens(250, 900), 250);
}

#[test]
fn pace_follows_observations() {
    let mut pace = Pace::default();
    pace.record_chunk(100, Duration::from_secs(1));
    pace.record_step(Duration::from_millis(10));
    assert_eq!(pace.prefill_tokens_per_second, Some(100.0));
    for _ in 0..30 {
        pace.record_chunk(400, Duration::from_secs(1));
        pace.record_step(Duration::from_millis(40));
    }
    assert!(
        pace.prefill_tokens_per_second
            .is_some_and(|rate| (399.0..=400.0).contains(&rate))
    );
    assert!(
        pace.step
            .is_some_and(|step| step.as_micros().abs_diff(40_000) < 100)
    );
}
