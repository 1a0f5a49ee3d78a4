use proptest::prelude::*;

use super::suggestion::{two_digits_above, two_digits_below};
use super::*;
use crate::chip;
use crate::predict::ModelCost;
use crate::predict::calibration::weight_bits;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::shapes::ShapeFile;
use rooflet_model::weights::{WeightFormat, Weights};

const SHAPES: &str = r#"{
    "0.6b": {"L": 28, "V": 151936, "d": 1024, "ff": 3072, "hd": 128, "mats": 3, "nh": 16, "nkv": 8, "tied": 1},
    "8b": {"L": 36, "V": 151936, "d": 4096, "ff": 12288, "hd": 128, "mats": 3, "nh": 32, "nkv": 8, "tied": 0},
    "30b-a3b": {"E": 128, "L": 48, "V": 151936, "d": 2048, "eff": 768, "ff": 0, "hd": 128, "k": 8, "mats": 3, "nh": 32, "nkv": 4, "tied": 0}
}"#;

fn model(name: &str) -> ServedModel {
    let dimensions = ShapeFile::parse(SHAPES).unwrap().dimensions(name).unwrap();
    let weights = Weights::estimate(&dimensions, WeightFormat::Affine { bits: 4, group: 64 });
    ServedModel {
        cost: ModelCost { dimensions, weights },
        kv_bits: KvBits::HALF,
    }
}

fn ask(model: &ServedModel, context_tokens: u32, max_concurrency: u32, decode: Option<f64>) -> Ask<'_> {
    Ask {
        model,
        engine: Engine::Mlx,
        demand: Demand {
            context_tokens,
            max_concurrency,
        },
        disk: DiskDemand::default(),
        objectives: Objectives {
            decode,
            first_token: None,
        },
    }
}

/// A Mac with an M4 Pro, so much memory for models, and nothing on it yet.
fn node(gib: u64) -> (NodeMemory, Option<Hardware>) {
    let memory = NodeMemory {
        allocatable: Bytes::gib(gib),
        available: Bytes::gib(gib),
    };
    let chip = chip::find("M4 Pro", Some(20), None).unwrap();
    (memory, Some(Hardware::Chip(chip)))
}

fn verdict(ask: &Ask<'_>, gib: u64, commitments: &[Commitment]) -> Verdict {
    let (memory, hardware) = node(gib);
    let supply = Supply {
        memory,
        held: &[],
        disk: None,
        hardware,
        calibrations: &[],
        commitments,
    };
    Verdict::new(ask, &supply, Parameters::built_in())
}

#[test]
fn a_second_promise_is_refused_for_bandwidth_though_memory_is_free() {
    let model = model("8b");
    let alone = verdict(&ask(&model, 4096, 1, None), 100, &[]);
    let fast = alone.speed.unwrap().decode.p10;
    let first_ask = ask(&model, 4096, 1, Some(fast * 0.7));
    let first = verdict(&first_ask, 100, &[]);
    assert!(first.admitted());
    assert!((first.share - 0.7).abs() < 1e-6);

    let promised = [first.commitment("default/a".to_owned(), first_ask.objectives)];
    let second = verdict(&ask(&model, 4096, 1, Some(fast * 0.5)), 100, &promised);
    assert_eq!(second.binding(), Some(Constraint::Bandwidth));
    let [
        refusal @ Refusal::Bandwidth {
            victim: Some((name, objective, left)),
            ..
        },
    ] = &second.refusals[..]
    else {
        panic!("{:?}", second.refusals);
    };
    assert_eq!(name, "default/a");
    assert!((left - fast * 0.5).abs() < 1e-6 && *left < *objective);
    assert_eq!(refusal.reason(), "InsufficientBandwidth");
    // Without a promise of its own it takes what is left over.
    assert!(verdict(&ask(&model, 4096, 1, None), 100, &promised).admitted());
}

#[test]
fn what_no_chip_time_can_give_is_said_as_such() {
    let model = model("8b");
    let verdict = verdict(&ask(&model, 4096, 1, Some(1000.0)), 100, &[]);
    assert_eq!(verdict.refusals[0].reason(), "ObjectiveOutOfReach");
    assert_eq!(verdict.binding(), Some(Constraint::Bandwidth));
    let message = verdict.refusals[0].to_string();
    assert!(message.contains("decodeTokensPerSecond is 1000"), "{message}");
    assert!(message.contains("Nominal"), "{message}");
}

#[test]
fn objectives_need_a_node_whose_speed_is_known() {
    let model = model("0.6b");
    let supply = Supply {
        hardware: None,
        memory: node(16).0,
        held: &[],
        disk: None,
        calibrations: &[],
        commitments: &[],
    };
    let refused = Verdict::new(&ask(&model, 512, 1, Some(1.0)), &supply, Parameters::built_in());
    assert_eq!(refused.refusals[0], Refusal::SpeedUnknown);
    let best_effort = Verdict::new(&ask(&model, 512, 1, None), &supply, Parameters::built_in());
    assert!(best_effort.admitted());
}

#[test]
fn disk_that_is_promised_to_others_is_refused_with_what_is_left() {
    let model = model("0.6b");
    let mut ask = ask(&model, 512, 1, None);
    ask.disk = DiskDemand::of_prefixes(Bytes::gib(40));
    let judge = |ask: &Ask<'_>, disk| {
        let supply = Supply {
            hardware: None,
            memory: node(16).0,
            held: &[],
            disk,
            calibrations: &[],
            commitments: &[],
        };
        let found = suggestions(ask, &supply, Parameters::built_in());
        let changes: Vec<_> = found.iter().map(ToString::to_string).collect();
        let verdict = Verdict::new(ask, &supply, Parameters::built_in());
        (verdict.binding(), verdict.refusals, changes.join(" or "))
    };
    let space = |promised: Bytes| Some(NodeDisk::new(Bytes::gib(60), promised));
    // Nobody has said how large the disk is, or it is large enough.
    for disk in [None, space(Bytes::gib(20))] {
        assert_eq!(judge(&ask, disk), (None, Vec::new(), String::new()));
    }
    let (binding, refusals, changes) = judge(&ask, space(Bytes::gib(20) + Bytes(1)));
    assert_eq!(binding, Some(Constraint::Disk));
    assert_eq!(refusals[0].reason(), "InsufficientDisk");
    assert_eq!(
        refusals[0].to_string(),
        "spec.serving.kvCache.diskSize is 40.0 GiB, and 40.0 GiB of the 60.0 GiB that replicas may store on the node's disk are \
         promised to no other"
    );
    assert_eq!(changes, "spec.serving.kvCache.diskSize: 39Gi");
    let nearly_all = Bytes::gib(60) - Bytes::mib(100) - Bytes(5);
    assert_eq!(
        judge(&ask, space(nearly_all)).2,
        "spec.serving.kvCache.diskSize: 100Mi"
    );
    assert_eq!(
        judge(&ask, space(Bytes::gib(90))).2,
        "spec.serving.kvCache.diskSize: 0"
    );
    // Who asks for nothing takes what is left, be it nothing.
    ask.disk = DiskDemand::default();
    assert_eq!(judge(&ask, space(Bytes::gib(90))).0, None);
}

#[test]
fn two_digits_are_kept() {
    assert_eq!(two_digits_below(27.9), 27.0);
    assert_eq!(two_digits_below(0.3199), 0.31);
    assert_eq!(two_digits_above(1.203), 1.3);
    assert_eq!(two_digits_above(123.4), 130.0);
}

prop_compose! {
    fn wishes()(
        name in prop::sample::select(vec!["0.6b", "8b", "30b-a3b"]),
        context_tokens in 256u32..40_000,
        max_concurrency in 1u32..16,
        decode in prop::option::of(0.1f64..200.0),
        max_seconds in prop::option::of(0.05f64..20.0),
        disk in prop_oneof![Just(0u64), 1u64..60],
    ) -> (&'static str, u32, u32, Option<f64>, Option<f64>, u64) {
        (name, context_tokens, max_concurrency, decode, max_seconds, disk)
    }
}

proptest! {
    /// Never over-committed, and nobody who was promised something ends below it.
    #[test]
    fn what_was_promised_holds_whatever_comes_later(
        wishes in prop::collection::vec(wishes(), 1..12), gib in 4u64..128,
    ) {
        let (memory, hardware) = node(gib);
        let mut held: Vec<Held> = Vec::new();
        let mut commitments: Vec<Commitment> = Vec::new();
        let mut stored = Bytes::ZERO;
        for (index, (name, context, streams, decode, max_seconds, disk)) in wishes.into_iter().enumerate() {
            let model = model(name);
            let mut ask = ask(&model, context, streams, decode);
            ask.objectives.first_token = max_seconds
                .map(|max_seconds| FirstTokenObjective { max_seconds, prompt_tokens: None });
            ask.disk = DiskDemand::of_prefixes(Bytes::gib(disk));
            let space = NodeDisk::new(Bytes::gib(100), stored);
            let supply = Supply { memory, held: &held, disk: Some(space), hardware, calibrations: &[], commitments: &commitments };
            let verdict = Verdict::new(&ask, &supply, Parameters::built_in());
            prop_assert_eq!(verdict.admitted(), verdict.refusals.is_empty());
            let appraisal = Appraisal::new(&ask, hardware, &[], Parameters::built_in());
            prop_assert_eq!(verdict.admitted(), appraisal.fits(verdict.free, Some(space), verdict.free_share));
            if verdict.admitted() {
                held.push(Held { reserved: verdict.reservation.total(), resident: verdict.reservation.total() });
                stored += ask.disk.total();
                commitments.push(verdict.commitment(index.to_string(), ask.objectives));
            } else {
                for refusal in &verdict.refusals {
                    prop_assert!(!refusal.to_string().contains("NaN"));
                }
            }
        }
        let reserved: u64 = held.iter().map(|held| held.reserved.0).sum();
        prop_assert!(reserved <= memory.allocatable.0);
        prop_assert!(stored <= Bytes::gib(100));
        let shares: f64 = commitments.iter().map(|one| one.share).sum();
        prop_assert!(shares <= 1.0 + 1e-6);
        for one in &commitments {
            if let Some((objective, alone)) = one.decode {
                prop_assert!(alone * (1.0 - (shares - one.share)) >= objective * (1.0 - 1e-6));
            }
        }
    }

    /// Every suggestion, taken, admits; and it is the smallest of its kind.
    #[test]
    fn a_suggestion_admits(
        (name, context, streams, decode, max_seconds, disk) in wishes(), gib in 2u64..64, taken in 0.0f64..1.0,
        free_mib in 0u64..100_000, learned in prop::option::of((-0.7f64..0.7, -0.7f64..0.7)),
    ) {
        let model = model(name);
        let bits = weight_bits(&model.cost);
        let calibrations: Vec<_> = learned
            .map(|(decode, first_token)| Calibration::published(bits, &[decode; 8], &[first_token; 8]))
            .into_iter()
            .collect();
        let mut ask = ask(&model, context, streams, decode);
        ask.objectives.first_token = max_seconds
            .map(|max_seconds| FirstTokenObjective { max_seconds, prompt_tokens: None });
        let (memory, hardware) = node(gib);
        let commitments = [Commitment { replica: "other".to_owned(), share: taken, decode: None }];
        ask.disk = DiskDemand::of_prefixes(Bytes::gib(disk));
        let space = NodeDisk { limit: Bytes::gib(100), free: Bytes::mib(free_mib) };
        let supply =
            Supply { memory, held: &[], disk: Some(space), hardware, calibrations: &calibrations, commitments: &commitments };
        let parameters = Parameters::built_in();
        let admits = |ask: &Ask<'_>| Verdict::new(ask, &supply, parameters).admitted();
        for suggestion in suggestions(&ask, &supply, parameters) {
            prop_assert!(!admits(&ask));
            let mut changed = ask;
            let mut further = None;
            let quantised;
            match suggestion {
                Suggestion::ContextTokens(tokens) => {
                    changed.demand.context_tokens = tokens;
                    further = Some(Ask { demand: Demand { context_tokens: tokens + 1, ..ask.demand }, ..ask });
                }
                Suggestion::MaxConcurrency(streams) => {
                    changed.demand.max_concurrency = streams;
                    further = Some(Ask { demand: Demand { max_concurrency: streams + 1, ..ask.demand }, ..ask });
                }
                Suggestion::KvCacheBits(bits) => {
                    quantised = model.quantised(bits).unwrap();
                    changed.model = &quantised;
                }
                Suggestion::DiskSize(disk) => {
                    changed.disk = DiskDemand::of_prefixes(disk);
                    further = Some(Ask { disk: DiskDemand::of_prefixes(disk + Bytes::gib(1)), ..ask });
                }
                Suggestion::DecodeTokensPerSecond(rate) => {
                    changed.objectives.decode = Some(rate);
                    // To the two digits that are told.
                    let decode = Some(rate * 1.1 + f64::EPSILON);
                    further = Some(Ask { objectives: Objectives { decode, ..ask.objectives }, ..ask });
                }
                Suggestion::FirstTokenSeconds(seconds) => {
                    let first_token = |max_seconds| {
                        ask.objectives.first_token.map(|first| FirstTokenObjective { max_seconds, ..first })
                    };
                    changed.objectives.first_token = first_token(seconds);
                    let sooner = Objectives { first_token: first_token(seconds / 1.11), ..ask.objectives };
                    further = Some(Ask { objectives: sooner, ..ask });
                }
            }
            prop_assert!(admits(&changed), "{suggestion}");
            if let Some(further) = further {
                prop_assert!(!admits(&further), "{suggestion}");
            }
        }
    }
}
