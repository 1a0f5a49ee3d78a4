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

/// Returns figures with equal speeds.
fn side(answered: u64, failed: u64) -> Side {
    Side {
        answered,
        failed,
        tokens_per_second: plain(50.0, 1.0),
        first_token_seconds: plain(0.2, 0.01),
        ..Side::default()
    }
}

/// Fisher's tea example (3 of 4 against 1 of 4), and tables computed with
/// `scipy.stats.fisher_exact(alternative="greater")`.
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
fn stirlings_series_continues_exact_factorials() {
    let exact: f64 = (2..=1000u64).map(|k| (k as f64).ln()).sum();
    assert!((ln_factorial(1000) - exact).abs() < 1e-8);
    assert!((ln_factorial(129) - ln_factorial(128) - 129f64.ln()).abs() < 1e-9);
}

#[test]
fn waits_for_enough_requests() {
    let step = AnalysisStep::default();
    let analysis = analyse(&step, side(19, 19), side(100, 0));
    assert_eq!(
        analysis,
        Analysis::Waiting("19 of 20 requests answered by the canary, 100 by the stable revision".to_owned())
    );
    assert!(matches!(
        analyse(&step, side(20, 0), side(19, 0)),
        Analysis::Waiting(_)
    ));
}

#[test]
fn significantly_more_errors_fail() {
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
fn significantly_slower_canary_fails() {
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
        "40.0 tokens/s, 50.0 with the stable revision"
    );
    // 120 % of 0.2 s are 0.24 s.
    assert_eq!(verdict(with(plain(50.0, 1.0), plain(0.25, 0.05))), "");
    assert_eq!(
        verdict(with(plain(50.0, 1.0), plain(0.4, 0.02))),
        "time to first token 0.400 s, 0.200 s with the stable revision"
    );
}

#[test]
fn waits_for_missing_measurements() {
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
        "0 of 20 times to first token of uncached prompts by the canary, 40 by the stable revision"
    );
    let step = AnalysisStep {
        min_measured_percent: Some(80),
        ..AnalysisStep::default()
    };
    assert_eq!(
        waits(&step, side(40, 0)),
        "0 of 20 decode speeds of the canary with a prediction"
    );
}

/// While a figure is missing, a difference must be larger to stop the canary.
#[test]
fn interim_analysis_fails_only_on_large_differences() {
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
    let analyses = |canary: Side| {
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
    // The bound is 90 % of 50 tokens/s = 45, with a standard error of 1.3.
    let text = |text: &str| text.to_owned();
    assert_eq!(
        analyses(decode(42.0)),
        [
            text("42.0 tokens/s, 50.0 with the stable revision"),
            text("waits")
        ]
    );
    assert_eq!(
        analyses(decode(10.0)),
        ["10.0 tokens/s, 50.0 with the stable revision"; 2].map(text)
    );
    let failing = |failed| Side {
        failed,
        ..accuracy(1.0)
    };
    assert_eq!(
        analyses(failing(5)),
        [
            text("12.5 % of requests failed, 0.0 % with the stable revision"),
            text("waits")
        ]
    );
    assert_eq!(
        analyses(failing(20)),
        ["50.0 % of requests failed, 0.0 % with the stable revision"; 2].map(text)
    );
    assert_eq!(
        analyses(accuracy(0.78)),
        [text("78 % of the predicted tokens/s"), text("waits")]
    );
    assert_eq!(
        analyses(accuracy(0.5)),
        ["50 % of the predicted tokens/s"; 2].map(text)
    );
    // A limit in the spec applies to every analysis.
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

/// The canary has the same error rate as the stable revision. It is analysed after every few
/// requests while times to first token are missing.
#[test]
fn frequent_interim_analyses_cause_few_false_alarms() {
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
        let has_alarm = (0..80).any(|_| {
            answer(&mut canary, 5);
            answer(&mut stable, 45);
            matches!(
                analyse(&AnalysisStep::default(), canary, stable),
                Analysis::Failed(_)
            )
        });
        alarms += usize::from(has_alarm);
    }
    assert!(alarms * 20 <= runs, "{alarms} of {runs}");
}

/// Returns a replica with measured and predicted decode speed and time to first token.
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
    replica.status = Some(serde_json::from_value(status).expect("the test passes a valid status"));
    replica
}

#[test]
fn different_chips_do_not_influence_the_comparison() {
    let max = Side::of(&[&replica((80.0, 80.0), (0.1, 0.1))], |_| Some(Baseline::OWN));
    let step = AnalysisStep {
        min_measured_percent: Some(90),
        ..AnalysisStep::default()
    };
    // On a chip with a quarter of the bandwidth, the canary reaches the stable revision's
    // prediction.
    let air = replica((20.0, 20.0), (0.4, 0.4));
    let canary = Side::of(&[&air], |_| Some(Baseline::OWN));
    assert_eq!(failed(&step, canary, max), "");
    // A larger model reaches its own prediction, but is slower than the stable revision would be.
    let larger = Baseline {
        decode: 2.0,
        first_token: 0.5,
    };
    let canary = Side::of(&[&air], |_| Some(larger));
    assert_eq!(
        failed(&step, canary, max),
        "50 % of the tokens/s predicted for the stable revision on the same nodes, 100 % with the stable revision, \
         time to first token 200 % of the prediction for the stable revision on the same nodes, 100 % with the stable revision"
    );
    // On a faster chip, a revision that misses its prediction fails.
    let slow = replica((60.0, 80.0), (0.1, 0.1));
    let canary = Side::of(&[&slow], |_| Some(Baseline::OWN));
    let air = Side::of(&[&air], |_| Some(Baseline::OWN));
    assert_eq!(
        failed(&step, canary, air),
        "75 % of the tokens/s predicted for the stable revision on the same nodes, 100 % with the stable revision, 75 % of the predicted tokens/s"
    );
    // Without a prediction, absolute speeds are compared.
    let unknown = Side::of(&[&slow], |_| None);
    assert_eq!(
        failed(&AnalysisStep::default(), unknown, max),
        "60.0 tokens/s, 80.0 with the stable revision"
    );
}
