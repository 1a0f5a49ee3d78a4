use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::predict::Parameters;
use crate::predict::spread::ByFamiliarity;
use rooflet_base::quantile::{quantile, sorted};
use rooflet_model::shapes::ShapeFile;
use rooflet_model::weights::{WeightFormat, Weights};

const SHAPES: &str = include_str!("../../../../model/src/shapes.json");

const PREDICTED: Interval = Interval {
    p10: 45.24,
    p50: 50.0,
    p90: 55.26,
};

fn model(name: &str) -> ModelCost {
    let dimensions = ShapeFile::parse(SHAPES).unwrap().dimensions(name).unwrap();
    let weights = Weights::estimate(&dimensions, WeightFormat::Affine { bits: 4, group: 64 });
    ModelCost { dimensions, weights }
}

fn llama() -> ModelCost {
    model("llama3-8b")
}

fn days(days: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * days)
}

fn run(measured: f64, context_tokens: f64) -> Run {
    Run {
        measured,
        predicted: 50.0,
        tokens: 200,
        context_tokens,
        ceiling: Some(80.0),
    }
}

/// Returns calibrations with these rates, which 50 tokens/s were predicted for.
fn measured(runs: impl IntoIterator<Item = (&'static str, f64, f64)>) -> Vec<Calibration> {
    let mut calibrations = Vec::new();
    for (name, rate, context) in runs {
        observe(&mut calibrations, &model(name), &run(rate, context), days(0)).unwrap();
    }
    calibrations
}

fn rates(rates: impl IntoIterator<Item = f64>) -> Vec<Calibration> {
    measured(rates.into_iter().map(|rate| ("llama3-8b", rate, 1000.0)))
}

fn predicted(calibrations: &[Calibration], name: &str, context: u32) -> Interval {
    calibrated_rate(calibrations, &model(name), context, PREDICTED).unwrap_or(PREDICTED)
}

fn after(measured: impl IntoIterator<Item = f64>) -> Interval {
    predicted(&rates(measured), "llama3-8b", 1000)
}

/// Returns the calibrated time after runs with these first-token times, for a predicted time of two
/// seconds.
fn first_token_after(measured: impl IntoIterator<Item = f64>) -> Option<Interval> {
    let mut calibrations = Vec::new();
    for seconds in measured {
        let run = PrefillRun {
            measured: seconds,
            predicted: 2.0,
            prompt_tokens: 1000.0,
        };
        observe_prefill(&mut calibrations, &llama(), &run, days(0)).unwrap();
    }
    calibrated_first_token(&calibrations, &llama(), 1000, Interval::around(2.0, 0.3, 0.3))
}

#[test]
fn runs_move_and_narrow_the_prediction() {
    let few = after([46.0]);
    let many = after([46.0; 8]);
    assert!(46.0 < few.p50 && few.p50 < 50.0, "{few:?}");
    assert!((many.p50 / 46.0 - 1.0).abs() < 0.005, "{many:?}");
    let width = |interval: Interval| interval.p90 / interval.p10;
    assert!(width(many) < width(few) && width(few) < width(PREDICTED));
    assert_eq!(calibrated_rate(&[], &llama(), 1000, PREDICTED), None);
}

#[test]
fn first_token_has_a_separate_factor() {
    assert_eq!(first_token_after([]), None);
    let (few, many) = (
        first_token_after([3.0]).unwrap(),
        first_token_after([3.0; 8]).unwrap(),
    );
    assert!(2.0 < few.p50 && few.p50 < 3.0, "{few:?}");
    assert!((many.p50 / 3.0 - 1.0).abs() < 0.02, "{many:?}");
    assert!(many.p90 / many.p10 < few.p90 / few.p10);
    let mut calibrations = Vec::new();
    let mut reason = |measured, prompt_tokens| {
        let run = PrefillRun {
            measured,
            predicted: 2.0,
            prompt_tokens,
        };
        let result = observe_prefill(&mut calibrations, &llama(), &run, days(0));
        result.unwrap_err().reason()
    };
    assert_eq!(reason(2.0, 255.0), "TooFewTokens");
    assert_eq!(reason(9.0, 1000.0), "Implausible");
    assert_eq!(reason(0.0, 1000.0), "Implausible");
    assert_eq!(calibrations, []);
}

#[test]
fn rejects_short_and_implausible_runs() {
    let mut calibrations = Vec::new();
    let mut reason = |run: Run| {
        let result = observe(&mut calibrations, &llama(), &run, days(0));
        result.unwrap_err().reason()
    };
    let short = Run {
        tokens: 5,
        ..run(50.0, 100.0)
    };
    assert_eq!(reason(short), "TooFewTokens");
    assert_eq!(reason(run(90.0, 100.0)), "AboveRoofline");
    assert_eq!(reason(run(3.0, 100.0)), "Implausible");
    assert_eq!(reason(run(f64::NAN, 100.0)), "Implausible");
    assert_eq!(calibrations, []);
}

#[test]
fn groups_architectures_into_classes() {
    for (name, class) in [
        ("llama3-8b", ArchitectureClass::Dense),
        ("gemma3-12b", ArchitectureClass::Dense),
        ("qwen3-1.7b", ArchitectureClass::Small),
        ("qwen3.6-27b", ArchitectureClass::Linear),
        ("qwen3-30b-a3b", ArchitectureClass::Experts),
        ("qwen3-coder-next", ArchitectureClass::LinearExperts),
        ("glm-4.7-flash", ArchitectureClass::Latent),
    ] {
        assert_eq!(ArchitectureClass::of(&model(name).dimensions), class, "{name}");
    }
}

/// Long contexts that are slower than predicted do not change the prediction of short contexts.
#[test]
fn contexts_have_separate_corrections() {
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.extend([("llama3-8b", 50.0, 300.0), ("llama3-8b", 43.0, 22_000.0)]);
    }
    let calibrations = measured(runs);
    let at = |context| predicted(&calibrations, "llama3-8b", context).p50;
    assert!((at(300) / 50.0 - 1.0).abs() < 0.01, "{}", at(300));
    assert!((at(22_000) / 43.0 - 1.0).abs() < 0.015, "{}", at(22_000));
    assert!(43.5 < at(8000) && at(8000) < 49.5, "{}", at(8000));
}

#[test]
fn old_runs_count_less_until_they_are_deleted() {
    let after_days = |elapsed: i64| {
        let mut calibrations = rates([46.0; 2]);
        age(&mut calibrations, days(elapsed));
        predicted(&calibrations, "llama3-8b", 1000)
    };
    let half = {
        let mut calibrations = rates([46.0; 2]);
        age(&mut calibrations, days(14));
        calibrations[0].decode()[0].weight
    };
    assert_eq!(half, 0.5);
    let (fresh, old, older) = (after_days(0), after_days(14), after_days(42));
    assert_eq!(fresh, after([46.0; 2]));
    assert!(fresh.p50 < old.p50 && old.p50 < older.p50 && older.p50 < 50.0);
    assert!(
        fresh.p10 / fresh.p50 > older.p10 / older.p50,
        "{fresh:?} {older:?}"
    );
    assert_eq!(after_days(70), PREDICTED);
    // A clock that was set back does not add weight.
    assert_eq!(after_days(-3), fresh);
}

/// A run measured before the change to a slower state loses against newer runs.
#[test]
fn newer_runs_dominate_older_ones() {
    let mut calibrations = rates([46.0; 4]);
    for _ in 0..4 {
        observe(&mut calibrations, &llama(), &run(50.0, 1000.0), days(42)).unwrap();
    }
    age(&mut calibrations, days(42));
    let rate = predicted(&calibrations, "llama3-8b", 1000).p50;
    assert!(49.0 < rate, "{rate}");
}

#[test]
fn keeps_few_runs_of_similar_contexts_and_few_models() {
    let mut runs = vec![("llama3-8b", 49.0, 20_000.0)];
    runs.extend([("llama3-8b", 46.0, 1000.0); 100]);
    let calibrations = measured(runs);
    let contexts: Vec<f64> = calibrations[0].decode().iter().map(|run| run.tokens).collect();
    assert_eq!(contexts.len(), 1 + MAX_RUNS);
    assert_eq!(contexts[0], 20_000.0, "the only run with a long context");
    let mut calibrations = Vec::new();
    for (index, name) in [
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "qwen3-14b",
        "qwen3-32b",
    ]
    .into_iter()
    .chain(["phi-4", "yi-1.5-9b", "gemma3-12b", "qwen2.5-7b"])
    .enumerate()
    {
        observe(
            &mut calibrations,
            &model(name),
            &run(48.0, 1000.0),
            days(index as i64),
        )
        .unwrap();
    }
    assert_eq!(calibrations.len(), MAX_MODELS);
    assert_eq!(calibrations[0].weights, model("qwen3-4b").weights.resident());
}

/// An earlier version published one list of errors per weight format.
#[test]
fn runs_without_a_model_apply_to_their_weight_format() {
    let (four_bit, bits) = (llama(), weight_bits(&llama()));
    assert_eq!(bits, 4);
    let mut calibrations = vec![Calibration::of_weight_bits(4, &[0.1; 8], &[0.2; 8])];
    let rate = calibrated_rate(&calibrations, &four_bit, 500, PREDICTED).unwrap();
    assert!((rate.p50 / 50.0 * 0.1f64.exp() - 1.0).abs() < 0.01, "{rate:?}");
    let seconds = Interval::around(2.0, 0.3, 0.3);
    let first = calibrated_first_token(&calibrations, &four_bit, 500, seconds).unwrap();
    assert!((first.p50 / 2.0 / 0.2f64.exp() - 1.0).abs() < 0.03, "{first:?}");
    let other = vec![Calibration::of_weight_bits(8, &[0.1; 8], &[])];
    assert_eq!(calibrated_rate(&other, &four_bit, 500, PREDICTED), None);
    observe(&mut calibrations, &four_bit, &run(49.0, 500.0), days(0)).unwrap();
    let architectures: Vec<_> = calibrations.iter().map(|one| one.architecture).collect();
    assert_eq!(
        architectures,
        [Some(ArchitectureClass::Dense)],
        "own runs replace them"
    );
}

/// Predictions of small models and experts have wider intervals than those of dense models.
#[test]
fn error_scales_match_the_widths_of_intervals() {
    let spread = &Parameters::built_in().spread;
    let width = |widths: &ByFamiliarity| widths.neither.slow + widths.neither.fast;
    for (class, widths) in [
        (ArchitectureClass::Small, &spread.small),
        (ArchitectureClass::Experts, &spread.experts),
    ] {
        let ratio = width(widths) / width(&spread.dense);
        let scale = class.error_scale();
        assert!(
            (ratio / scale).ln().abs() < 0.25,
            "{class:?}: {ratio} and {scale}"
        );
    }
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a normal deviate with mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

const CLASSES: [ArchitectureClass; 4] = [
    ArchitectureClass::Dense,
    ArchitectureClass::Small,
    ArchitectureClass::Linear,
    ArchitectureClass::Experts,
];

/// Returns runs of different models of one node, whose errors follow the assumed hierarchy.
fn simulated_node(random: &mut Random, prior: f64, models: usize) -> Vec<Sample> {
    let Shrinkage {
        node_share,
        class_share,
        run,
        ..
    } = DECODE;
    let node = random.normal() * node_share.sqrt();
    let of_class = CLASSES.map(|_| random.normal() * class_share.sqrt());
    (0..models)
        .map(|number| {
            let index = (random.share() * CLASSES.len() as f64) as usize;
            let own = random.normal() * (1.0 - node_share - class_share).sqrt();
            let class = CLASSES[index];
            let offset = prior * class.error_scale() * (node + of_class[index] + own);
            Sample {
                model: ModelId {
                    class,
                    number: number as u64,
                },
                tokens: 0.0,
                error: offset + run * random.normal(),
                weight: 1.0,
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Runs of other models reduce the mean error and the 90th percentile, for every number of runs.
    #[test]
    fn runs_of_other_models_improve_predictions(seed in 1u64.., prior in 0.06f64..0.15) {
        let mut random = Random(seed);
        let nodes: Vec<Vec<Sample>> = (0..2000).map(|_| simulated_node(&mut random, prior, 9)).collect();
        let outcome = |runs: usize| {
            let errors = sorted(nodes.iter().map(|node| {
                let (target, others) = (&node[8], &node[..runs]);
                let prior = prior * target.model.class.error_scale();
                let estimate = DECODE.estimate(others, target.model, target.tokens, prior);
                (target.error - estimate.mean).abs()
            }));
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            (mean, quantile(&errors, 0.9).unwrap())
        };
        let uncorrected = outcome(0);
        let mut fewer = f64::INFINITY;
        for runs in [1, 2, 3, 5, 8] {
            let (mean, p90) = outcome(runs);
            prop_assert!(mean < uncorrected.0 && p90 < uncorrected.1, "{runs}: {mean} {p90} {uncorrected:?}");
            prop_assert!(mean < fewer * 1.01, "{runs}: {mean}, with fewer {fewer}");
            fewer = mean;
        }
    }
}

proptest! {
    /// The same error shifts other classes less if its own class has larger errors.
    #[test]
    fn runs_of_noisy_classes_shift_dense_models_less(error in 0.01f64..0.08, runs in 1usize..6) {
        let shift = |class: ArchitectureClass| {
            let sample = Sample {
                model: ModelId { class, number: 1 },
                tokens: 100.0,
                error,
                weight: 1.0,
            };
            let dense = ModelId { class: ArchitectureClass::Dense, number: 2 };
            DECODE.estimate(&vec![sample; runs], dense, 100.0, 0.08).mean
        };
        let linear = shift(ArchitectureClass::Linear);
        for noisy in [ArchitectureClass::Experts, ArchitectureClass::Small] {
            let shift = shift(noisy);
            prop_assert!(0.0 < shift && shift < linear, "{noisy:?}: {shift} {linear}");
        }
    }

    #[test]
    fn one_bad_run_has_little_influence(
        truth in 40.0f64..60.0, good in 4usize..8, bad in 13.0f64..79.0, at in 0usize..8,
    ) {
        let mut runs = vec![truth; good];
        runs.insert(at.min(good), bad);
        let disturbed = after(runs).p50;
        let clean = after(vec![truth; good]).p50;
        prop_assert!((disturbed / clean - 1.0).abs() < 0.02, "{disturbed} {clean}");
    }

    #[test]
    fn one_bad_first_token_has_little_influence(
        truth in 1.4f64..2.8, good in 5usize..8, bad in 0.6f64..7.9, at in 0usize..8,
    ) {
        let mut runs = vec![truth; good];
        runs.insert(at.min(good), bad);
        let disturbed = first_token_after(runs).unwrap().p50;
        let clean = first_token_after(vec![truth; good]).unwrap().p50;
        prop_assert!((disturbed / clean - 1.0).abs() < 0.04, "{disturbed} {clean}");
    }

    /// One bad run of another model has little influence as well.
    #[test]
    fn one_bad_model_has_little_influence(
        truth in 45.0f64..55.0, good in 4usize..8, bad in 13.0f64..79.0,
    ) {
        let mut runs = vec![("llama3-8b", truth, 1000.0); good];
        let clean = predicted(&measured(runs.clone()), "llama3-8b", 1000).p50;
        runs.push(("qwen3-14b", bad, 1000.0));
        let disturbed = predicted(&measured(runs), "llama3-8b", 1000).p50;
        prop_assert!((disturbed / clean - 1.0).abs() < 0.02, "{disturbed} {clean}");
    }

    /// The correction never exceeds the measured difference. More runs and closer relation to the
    /// measured model increase the correction.
    #[test]
    fn shrinkage_is_monotone(truth in 41.0f64..60.0, runs in 1usize..8, context in 64u32..4096) {
        let error = (50.0 / truth).ln();
        let correction = |runs: usize, name: &str| {
            let context = f64::from(context);
            let calibrations = measured(vec![("llama3-8b", truth, context); runs]);
            (50.0 / predicted(&calibrations, name, context as u32).p50).ln() * error.signum()
        };
        let same_model = correction(runs, "llama3-8b");
        let same_class = correction(runs, "qwen3-14b");
        let other_class = correction(runs, "qwen3-30b-a3b");
        prop_assert!(same_model <= error.abs() + 1e-9);
        prop_assert!(same_model + 1e-9 >= same_class && same_class + 1e-9 >= other_class);
        prop_assert!(other_class >= -1e-9);
        prop_assert!(correction(runs + 1, "llama3-8b") + 1e-6 >= same_model);
    }

    /// Corrections are bounded even for contexts far outside of the measured ones.
    #[test]
    fn interval_stays_in_order_and_bounded_and_never_widens(
        runs in proptest::collection::vec((13.0f64..80.0, 1.0f64..200_000.0), 0..40),
        context in 1u32..2_000_000,
    ) {
        let calibrations = measured(runs.into_iter().map(|(rate, context)| ("llama3-8b", rate, context)));
        for name in ["llama3-8b", "qwen3-14b", "glm-4.7-flash"] {
            let interval = predicted(&calibrations, name, context);
            prop_assert!(interval.p10.is_finite() && 0.0 < interval.p10);
            prop_assert!(interval.p10 <= interval.p50 && interval.p50 <= interval.p90);
            prop_assert!(interval.p90 / interval.p10 <= PREDICTED.p90 / PREDICTED.p10 * 1.001);
            let factor = interval.p50 / PREDICTED.p50;
            prop_assert!((MAX_FACTOR.recip() - 1e-9..=MAX_FACTOR + 1e-9).contains(&factor), "{factor}");
        }
    }
}
