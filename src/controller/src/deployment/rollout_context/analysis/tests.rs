use rand::{RngCore as _, SeedableRng as _};

use super::*;

fn plain(median: f64, standard_error: f64) -> Measured {
    Measured {
        plain: Some(Estimate {
            median,
            standard_error,
            count: 40,
        }),
        relative: None,
    }
}

/// With speeds that nothing can be said against.
fn side(answered: u64, failed: u64) -> Side {
    Side {
        answered,
        failed,
        tokens_per_second: plain(50.0, 1.0),
        first_token_seconds: plain(0.2, 0.01),
        ..Side::default()
    }
}

/// Fisher's own example of the tea (3 of 4 against 1 of 4), and two tables that scipy.stats.fisher_exact
/// with `alternative="greater"` gives in its documentation's manner.
#[test]
fn failures_are_compared_by_fishers_exact_test() {
    let p = |a: (u64, u64), b: (u64, u64)| more_failures(side(a.0, a.1), side(b.0, b.1));
    assert!((p((4, 3), (4, 1)) - 17.0 / 70.0).abs() < 1e-12);
    assert!((p((4, 4), (4, 0)) - 1.0 / 70.0).abs() < 1e-12);
    assert!((p((10, 0), (10, 5)) - 1.0).abs() < 1e-12);
    // One failure each of two: C(2,1) C(2,1) / C(4,2) + C(2,2) C(2,0) / C(4,2).
    assert!((p((2, 1), (2, 1)) - 5.0 / 6.0).abs() < 1e-12);
}

#[test]
fn factorials_of_large_numbers_are_continued_without_a_step() {
    let exact: f64 = (2..=1000u64).map(|k| (k as f64).ln()).sum();
    assert!((ln_factorial(1000) - exact).abs() < 1e-8);
    assert!((ln_factorial(129) - ln_factorial(128) - 129f64.ln()).abs() < 1e-9);
}

#[test]
fn too_few_requests_say_nothing() {
    let step = AnalysisStep::default();
    let told = analyse(&step, side(19, 19), side(100, 0));
    assert_eq!(
        told,
        Analysis::Waiting("19 of 20 requests answered by the canary, 100 by the stable revision".to_owned())
    );
    assert!(matches!(
        analyse(&step, side(20, 0), side(19, 0)),
        Analysis::Waiting(_)
    ));
}

#[test]
fn more_errors_than_chance_explains_fail() {
    let step = AnalysisStep::default();
    assert!(matches!(
        analyse(&step, side(20, 1), side(200, 2)),
        Analysis::Passed(_)
    ));
    assert_eq!(
        analyse(&step, side(20, 5), side(200, 2)),
        Analysis::Failed("25.0 % of requests failed, 1.0 % with the stable revision".to_owned())
    );
    let strict = AnalysisStep {
        max_error_percent: Some(4.0),
        ..AnalysisStep::default()
    };
    assert!(matches!(
        analyse(&strict, side(20, 1), side(200, 2)),
        Analysis::Failed(_)
    ));
    let crashed = Side {
        restarts: 1,
        ..side(0, 0)
    };
    assert!(matches!(
        analyse(&step, crashed, side(200, 0)),
        Analysis::Failed(_)
    ));
}

fn failed(step: &AnalysisStep, canary: Side, stable: Side) -> String {
    match analyse(step, canary, stable) {
        Analysis::Failed(why) => why,
        Analysis::Passed(_) => String::new(),
        Analysis::Waiting(why) => panic!("{why}"),
    }
}

#[test]
fn slower_than_allowed_fails_when_it_is_no_accident() {
    let with = |rate: Measured, first: Measured| Side {
        tokens_per_second: rate,
        first_token_seconds: first,
        ..side(40, 0)
    };
    let verdict = |canary: Side| failed(&AnalysisStep::default(), canary, side(40, 0));
    // 90 % of 50 are 45.
    assert_eq!(verdict(with(plain(46.0, 1.0), plain(0.2, 0.01))), "");
    assert_eq!(verdict(with(plain(44.0, 5.0), plain(0.2, 0.01))), "");
    assert_eq!(
        verdict(with(plain(40.0, 1.0), plain(0.2, 0.01))),
        "40.0 tokens/s against 50.0"
    );
    // 120 % of 0.2 s are 0.24 s.
    assert_eq!(verdict(with(plain(50.0, 1.0), plain(0.25, 0.05))), "");
    assert_eq!(
        verdict(with(plain(50.0, 1.0), plain(0.4, 0.02))),
        "first token after 0.400 s against 0.200 s"
    );
}

#[test]
fn what_was_not_measured_is_waited_for() {
    let waits = |step: &AnalysisStep, canary: Side| match analyse(step, canary, side(40, 0)) {
        Analysis::Waiting(why) => why,
        Analysis::Passed(why) | Analysis::Failed(why) => panic!("{why}"),
    };
    let cached = Side {
        first_token_seconds: Measured::default(),
        ..side(40, 0)
    };
    assert_eq!(
        waits(&AnalysisStep::default(), cached),
        "0 of 20 times to the first token of prompts of which nothing was cached by the canary, 40 by the stable revision"
    );
    let step = AnalysisStep {
        min_measured_percent: Some(80),
        ..AnalysisStep::default()
    };
    assert_eq!(
        waits(&step, side(40, 0)),
        "0 of 20 decode speeds of the canary for which something was predicted"
    );
}

/// A look while something is missing is one of many: what would decide the last one is no reason to stop.
#[test]
fn only_what_is_beyond_doubt_is_not_waited_with() {
    let step = AnalysisStep {
        min_measured_percent: Some(80),
        ..AnalysisStep::default()
    };
    let accuracy = |median| {
        let of = plain(median, 0.02).plain;
        Side {
            accuracy: of,
            ..side(40, 0)
        }
    };
    let looks = |canary: Side| {
        let uncached = Side {
            first_token_seconds: Measured::default(),
            ..canary
        };
        [canary, uncached].map(|canary| match analyse(&step, canary, side(40, 0)) {
            Analysis::Failed(why) => why,
            Analysis::Passed(_) => "passed".to_owned(),
            Analysis::Waiting(_) => "waits".to_owned(),
        })
    };
    let decode = |median| Side {
        tokens_per_second: plain(median, 1.0),
        ..accuracy(1.0)
    };
    // 90 % of 50 are 45, give or take 1.3.
    let told = |text: &str| text.to_owned();
    assert_eq!(
        looks(decode(42.0)),
        [told("42.0 tokens/s against 50.0"), told("waits")]
    );
    assert_eq!(looks(decode(10.0)), ["10.0 tokens/s against 50.0"; 2].map(told));
    let failing = |failed| Side {
        failed,
        ..accuracy(1.0)
    };
    assert_eq!(
        looks(failing(5)),
        [
            told("12.5 % of requests failed, 0.0 % with the stable revision"),
            told("waits")
        ]
    );
    assert_eq!(
        looks(failing(20)),
        ["50.0 % of requests failed, 0.0 % with the stable revision"; 2].map(told)
    );
    assert_eq!(
        looks(accuracy(0.78)),
        [told("78 % of the predicted tokens/s"), told("waits")]
    );
    assert_eq!(
        looks(accuracy(0.5)),
        ["50 % of the predicted tokens/s"; 2].map(told)
    );
    // A limit that the user has set is one.
    let strict = AnalysisStep {
        max_error_percent: Some(4.0),
        ..AnalysisStep::default()
    };
    let canary = Side {
        first_token_seconds: Measured::default(),
        ..side(40, 2)
    };
    assert!(matches!(
        analyse(&strict, canary, side(40, 0)),
        Analysis::Failed(_)
    ));
}

/// A canary that fails as the stable revision does, looked at after every few requests while first tokens are missing.
#[test]
fn looking_often_finds_little_by_accident() {
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let (runs, mut alarms) = (300, 0);
    for _ in 0..runs {
        let (mut canary, mut stable) = (side(0, 0), side(0, 0));
        canary.first_token_seconds = Measured::default();
        let mut answer = |side: &mut Side, requests: u64| {
            side.answered += requests;
            side.failed += (0..requests).filter(|_| random.next_u32() % 20 == 0).count() as u64;
        };
        answer(&mut stable, 200);
        let looks = (0..80).any(|_| {
            answer(&mut canary, 5);
            answer(&mut stable, 45);
            matches!(
                analyse(&AnalysisStep::default(), canary, stable),
                Analysis::Failed(_)
            )
        });
        alarms += usize::from(looks);
    }
    assert!(alarms * 20 <= runs, "{alarms} of {runs}");
}

/// Decode speed measured and predicted, and the same of first tokens.
fn replica(decode: (f64, f64), first_token: (f64, f64)) -> ModelReplica {
    let sample = |median: f64| Sample {
        count: 40,
        p10: median * 0.95,
        p50: median,
        p90: median * 1.05,
    };
    let percentiles = |p50: f64| serde_json::json!({ "p10": p50 * 0.8, "p50": p50, "p90": p50 * 1.2 });
    let mut replica = ModelReplica::test("x", serde_json::json!({}));
    let status = serde_json::json!({
        "requests": { "completed": 40 },
        "measured": {
            "requests": 40,
            "tokensPerSecondSample": sample(decode.0),
            "timeToFirstTokenSample": sample(first_token.0),
            "predicted": {
                "tokensPerSecond": percentiles(decode.1),
                "timeToFirstTokenSeconds": percentiles(first_token.1),
            },
        },
    });
    replica.status = Some(serde_json::from_value(status).expect("valid"));
    replica
}

#[test]
fn another_chip_speaks_neither_for_nor_against_a_revision() {
    let max = Side::of(&[&replica((80.0, 80.0), (0.1, 0.1))], |_| Some(Baseline::OWN));
    let step = AnalysisStep {
        min_measured_percent: Some(90),
        ..AnalysisStep::default()
    };
    // On a chip of a quarter of the bandwidth it is as fast as the stable revision would be there.
    let air = replica((20.0, 20.0), (0.4, 0.4));
    let canary = Side::of(&[&air], |_| Some(Baseline::OWN));
    assert_eq!(failed(&step, canary, max), "");
    // A larger model is as fast as is predicted of it, and so slower than the stable revision would be.
    let larger = Baseline {
        decode: 2.0,
        first_token: 0.5,
    };
    let canary = Side::of(&[&air], |_| Some(larger));
    assert_eq!(
        failed(&step, canary, max),
        "50 % of the tokens/s that the stable revision is predicted to have there, which itself has 100 %, \
         first token after 200 % of the time that the stable revision is predicted to take there, which itself takes 100 %"
    );
    // On a faster chip a revision that does not reach its prediction is found out.
    let slow = replica((60.0, 80.0), (0.1, 0.1));
    let canary = Side::of(&[&slow], |_| Some(Baseline::OWN));
    let air = Side::of(&[&air], |_| Some(Baseline::OWN));
    assert_eq!(
        failed(&step, canary, air),
        "75 % of the tokens/s that the stable revision is predicted to have there, which itself has 100 %, 75 % of the predicted tokens/s"
    );
    // Where nothing can be told of a node, speeds are compared as they are.
    let unknown = Side::of(&[&slow], |_| None);
    assert_eq!(
        failed(&AnalysisStep::default(), unknown, max),
        "60.0 tokens/s against 80.0"
    );
}
