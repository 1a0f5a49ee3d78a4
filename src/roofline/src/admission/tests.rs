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

fn request(
    model: &ServedModel,
    context_tokens: u32,
    max_concurrency: u32,
    decode: Option<f64>,
) -> AdmissionRequest<'_> {
    AdmissionRequest {
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

/// An empty node with an M4 Pro and `gib` GiB of memory for models.
fn node(gib: u64) -> (NodeMemory, Option<Hardware>) {
    let memory = NodeMemory {
        allocatable: Bytes::gib(gib),
        available: Bytes::gib(gib),
    };
    let chip = chip::find("M4 Pro", Some(20), None).unwrap();
    (memory, Some(Hardware::Chip(chip)))
}

fn verdict(request: &AdmissionRequest<'_>, gib: u64, commitments: &[Commitment]) -> Verdict {
    let (memory, hardware) = node(gib);
    let capacity = NodeCapacity {
        memory,
        held: &[],
        disk: None,
        hardware,
        calibrations: &[],
        commitments,
    };
    Verdict::new(request, &capacity, Parameters::built_in())
}

#[test]
fn rejects_second_replica_for_bandwidth_although_memory_is_free() {
    let model = model("8b");
    let alone = verdict(&request(&model, 4096, 1, None), 100, &[]);
    let fast = alone.speed.unwrap().decode.p10;
    let first_request = request(&model, 4096, 1, Some(fast * 0.7));
    let first = verdict(&first_request, 100, &[]);
    assert!(first.admitted());
    assert!((first.share - 0.7).abs() < 1e-6);

    let commitments = [first.commitment("default/a".to_owned(), first_request.objectives)];
    let second = verdict(&request(&model, 4096, 1, Some(fast * 0.5)), 100, &commitments);
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
    // A replica without objectives uses the remaining time.
    assert!(verdict(&request(&model, 4096, 1, None), 100, &commitments).admitted());
}

#[test]
fn rejects_objective_above_the_speed_of_the_whole_chip() {
    let model = model("8b");
    let verdict = verdict(&request(&model, 4096, 1, Some(1000.0)), 100, &[]);
    assert_eq!(verdict.refusals[0].reason(), "ObjectiveOutOfReach");
    assert_eq!(verdict.binding(), Some(Constraint::Bandwidth));
    let message = verdict.refusals[0].to_string();
    assert!(message.contains("decodeTokensPerSecond is 1000"), "{message}");
    assert!(message.contains("Nominal"), "{message}");
}

#[test]
fn objectives_require_a_node_with_known_speed() {
    let model = model("0.6b");
    let capacity = NodeCapacity {
        hardware: None,
        memory: node(16).0,
        held: &[],
        disk: None,
        calibrations: &[],
        commitments: &[],
    };
    let refused = Verdict::new(
        &request(&model, 512, 1, Some(1.0)),
        &capacity,
        Parameters::built_in(),
    );
    assert_eq!(refused.refusals[0], Refusal::SpeedUnknown);
    let best_effort = Verdict::new(&request(&model, 512, 1, None), &capacity, Parameters::built_in());
    assert!(best_effort.admitted());
}

#[test]
fn rejects_disk_size_above_the_unreserved_space_and_suggests_it() {
    let model = model("0.6b");
    let mut request = request(&model, 512, 1, None);
    request.disk = DiskDemand::of_prefixes(Bytes::gib(40));
    let judge = |request: &AdmissionRequest<'_>, disk| {
        let capacity = NodeCapacity {
            hardware: None,
            memory: node(16).0,
            held: &[],
            disk,
            calibrations: &[],
            commitments: &[],
        };
        let found = suggestions(request, &capacity, Parameters::built_in());
        let changes: Vec<_> = found.iter().map(ToString::to_string).collect();
        let verdict = Verdict::new(request, &capacity, Parameters::built_in());
        (verdict.binding(), verdict.refusals, changes.join(" or "))
    };
    let space = |reserved: Bytes| Some(NodeDisk::new(Bytes::gib(60), reserved));
    // The size of the disk is unknown, or the disk is large enough.
    for disk in [None, space(Bytes::gib(20))] {
        assert_eq!(judge(&request, disk), (None, Vec::new(), String::new()));
    }
    let (binding, refusals, changes) = judge(&request, space(Bytes::gib(20) + Bytes(1)));
    assert_eq!(binding, Some(Constraint::Disk));
    assert_eq!(refusals[0].reason(), "InsufficientDisk");
    assert_eq!(
        refusals[0].to_string(),
        "spec.serving.kvCache.diskSize is 40.0 GiB, and 40.0 GiB of the 60.0 GiB that replicas may store on the node's disk are \
         unreserved"
    );
    assert_eq!(changes, "spec.serving.kvCache.diskSize: 39Gi");
    let nearly_all = Bytes::gib(60) - Bytes::mib(100) - Bytes(5);
    assert_eq!(
        judge(&request, space(nearly_all)).2,
        "spec.serving.kvCache.diskSize: 100Mi"
    );
    assert_eq!(
        judge(&request, space(Bytes::gib(90))).2,
        "spec.serving.kvCache.diskSize: 0"
    );
    // A replica without a configured size needs no free space.
    request.disk = DiskDemand::default();
    assert_eq!(judge(&request, space(Bytes::gib(90))).0, None);
}

#[test]
fn rounds_to_two_digits() {
    assert_eq!(two_digits_below(27.9), 27.0);
    assert_eq!(two_digits_below(0.3199), 0.31);
    assert_eq!(two_digits_above(1.203), 1.3);
    assert_eq!(two_digits_above(123.4), 130.0);
}

prop_compose! {
    fn requests()(
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
    /// Nodes are never overcommitted, and every admitted replica keeps its objective.
    #[test]
    fn admitted_replicas_keep_their_reservations(
        requests in prop::collection::vec(requests(), 1..12), gib in 4u64..128,
    ) {
        let (memory, hardware) = node(gib);
        let mut held: Vec<Held> = Vec::new();
        let mut commitments: Vec<Commitment> = Vec::new();
        let mut stored = Bytes::ZERO;
        for (index, (name, context, streams, decode, max_seconds, disk)) in requests.into_iter().enumerate() {
            let model = model(name);
            let mut request = request(&model, context, streams, decode);
            request.objectives.first_token = max_seconds
                .map(|max_seconds| FirstTokenObjective { max_seconds, prompt_tokens: None });
            request.disk = DiskDemand::of_prefixes(Bytes::gib(disk));
            let space = NodeDisk::new(Bytes::gib(100), stored);
            let capacity = NodeCapacity { memory, held: &held, disk: Some(space), hardware, calibrations: &[], commitments: &commitments };
            let verdict = Verdict::new(&request, &capacity, Parameters::built_in());
            prop_assert_eq!(verdict.admitted(), verdict.refusals.is_empty());
            let requirements = Requirements::new(&request, hardware, &[], Parameters::built_in());
            prop_assert_eq!(verdict.admitted(), requirements.fits(verdict.free, Some(space), verdict.free_share));
            if verdict.admitted() {
                held.push(Held { reserved: verdict.reservation.total(), resident: verdict.reservation.total() });
                stored += request.disk.total();
                commitments.push(verdict.commitment(index.to_string(), request.objectives));
            } else {
                for refusal in &verdict.refusals {
                    prop_assert!(!refusal.to_string().contains("NaN"));
                }
            }
        }
        let reserved: u64 = held.iter().map(|held| held.reserved.0).sum();
        prop_assert!(reserved <= memory.allocatable.0);
        prop_assert!(stored <= Bytes::gib(100));
        let shares: f64 = commitments.iter().map(|commitment| commitment.share).sum();
        prop_assert!(shares <= 1.0 + 1e-6);
        for commitment in &commitments {
            if let Some((objective, alone)) = commitment.decode {
                prop_assert!(alone * (1.0 - (shares - commitment.share)) >= objective * (1.0 - 1e-6));
            }
        }
    }

    /// Every suggestion leads to admission and is the smallest change of its kind.
    #[test]
    fn every_suggestion_leads_to_admission(
        (name, context, streams, decode, max_seconds, disk) in requests(), gib in 2u64..64, other_share in 0.0f64..1.0,
        free_mib in 0u64..100_000, errors in prop::option::of((-0.7f64..0.7, -0.7f64..0.7)),
    ) {
        let model = model(name);
        let bits = weight_bits(&model.cost);
        let calibrations: Vec<_> = errors
            .map(|(decode, first_token)| Calibration::of_weight_bits(bits, &[decode; 8], &[first_token; 8]))
            .into_iter()
            .collect();
        let mut request = request(&model, context, streams, decode);
        request.objectives.first_token = max_seconds
            .map(|max_seconds| FirstTokenObjective { max_seconds, prompt_tokens: None });
        let (memory, hardware) = node(gib);
        let commitments = [Commitment { replica: "other".to_owned(), share: other_share, decode: None }];
        request.disk = DiskDemand::of_prefixes(Bytes::gib(disk));
        let space = NodeDisk { limit: Bytes::gib(100), free: Bytes::mib(free_mib) };
        let capacity =
            NodeCapacity { memory, held: &[], disk: Some(space), hardware, calibrations: &calibrations, commitments: &commitments };
        let parameters = Parameters::built_in();
        let admits = |request: &AdmissionRequest<'_>| Verdict::new(request, &capacity, parameters).admitted();
        for suggestion in suggestions(&request, &capacity, parameters) {
            prop_assert!(!admits(&request));
            let mut changed = request;
            let mut further = None;
            let quantised;
            match suggestion {
                Suggestion::ContextTokens(tokens) => {
                    changed.demand.context_tokens = tokens;
                    further = Some(AdmissionRequest { demand: Demand { context_tokens: tokens + 1, ..request.demand }, ..request });
                }
                Suggestion::MaxConcurrency(streams) => {
                    changed.demand.max_concurrency = streams;
                    further = Some(AdmissionRequest { demand: Demand { max_concurrency: streams + 1, ..request.demand }, ..request });
                }
                Suggestion::KvCacheBits(bits) => {
                    quantised = model.quantised(bits).unwrap();
                    changed.model = &quantised;
                }
                Suggestion::DiskSize(disk) => {
                    changed.disk = DiskDemand::of_prefixes(disk);
                    further = Some(AdmissionRequest { disk: DiskDemand::of_prefixes(disk + Bytes::gib(1)), ..request });
                }
                Suggestion::DecodeTokensPerSecond(rate) => {
                    changed.objectives.decode = Some(rate);
                    // The suggestion has two digits.
                    let decode = Some(rate * 1.1 + f64::EPSILON);
                    further = Some(AdmissionRequest { objectives: Objectives { decode, ..request.objectives }, ..request });
                }
                Suggestion::FirstTokenSeconds(seconds) => {
                    let first_token = |max_seconds| {
                        request.objectives.first_token.map(|first| FirstTokenObjective { max_seconds, ..first })
                    };
                    changed.objectives.first_token = first_token(seconds);
                    let sooner = Objectives { first_token: first_token(seconds / 1.11), ..request.objectives };
                    further = Some(AdmissionRequest { objectives: sooner, ..request });
                }
            }
            prop_assert!(admits(&changed), "{suggestion}");
            if let Some(further) = further {
                prop_assert!(!admits(&further), "{suggestion}");
            }
        }
    }
}
