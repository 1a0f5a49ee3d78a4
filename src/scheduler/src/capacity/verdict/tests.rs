mod assumptions;
mod purchases;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::capacity::question;
use rooflet_api::v1alpha1::{CapacityPlanSpec, PlanFit, PlanReplica};

const CHIPS: [(&str, u32, &str); 5] = [
    ("M4", 10, "16Gi"),
    ("M4", 10, "32Gi"),
    ("M4 Pro", 20, "48Gi"),
    ("M2 Ultra", 60, "64Gi"),
    ("M1", 8, "8Gi"),
];
const MODELS: [&str; 5] = [
    "qwen3-8b",
    "qwen3-0.6b",
    "llama3.2-3b",
    "qwen3-32b",
    "qwen3-30b-a3b",
];

fn question_of(spec: serde_json::Value) -> Question {
    let spec: CapacityPlanSpec = serde_json::from_value(spec).unwrap();
    question(&spec, Vec::new(), &[], &|_| None).unwrap()
}

fn macs() -> impl Strategy<Value = Vec<serde_json::Value>> {
    let disk = prop_oneof![1 => Just(None), 1 => (0u32..40).prop_map(Some)];
    let mac = (0..CHIPS.len(), 0u32..3, 100u32..3000, disk);
    prop::collection::vec(mac, 1..4).prop_map(|macs| {
        let mac = |(index, (chip, count, price, disk)): (usize, (usize, u32, u32, Option<u32>))| {
            let (chip, cores, memory) = CHIPS[chip];
            let count = if index == 0 { count.max(1) } else { count };
            let disk = disk.map(|disk| format!("{disk}Gi"));
            json!({"name": format!("mac-{index}"), "chip": chip, "disk": disk, "gpuCores": cores, "memory": memory, "count": count, "price": price, "watts": 50})
        };
        macs.into_iter().enumerate().map(mac).collect()
    })
}

fn demand() -> impl Strategy<Value = Vec<serde_json::Value>> {
    let one = (
        0..MODELS.len(),
        prop_oneof![1 => Just(0.0), 5 => 0.001f64..0.4],
        50u32..2000,
        20u32..400,
        1u32..3,
        prop_oneof![2 => Just(None), 1 => (2u32..12).prop_map(Some)],
        prop_oneof![2 => Just(None), 1 => (3u32..30).prop_map(Some)],
        0u32..20,
    );
    prop::collection::vec(one, 1..4).prop_map(|models| {
        let model = |(index, (model, rate, prompt, answer, replicas, decode, first, disk))| {
            let (index, model, decode, first): (usize, usize, Option<u32>, Option<u32>) =
                (index, model, decode, first);
            let (rate, prompt, answer, replicas, disk): (f64, u32, u32, u32, u32) =
                (rate, prompt, answer, replicas, disk);
            let mut objectives = json!({});
            if let Some(decode) = decode {
                objectives["decodeTokensPerSecond"] = decode.into();
            }
            if let Some(first) = first {
                objectives["timeToFirstToken"] =
                    json!({"max": format!("{first}s"), "atPromptTokens": prompt});
            }
            json!({
                "name": format!("model-{index}"), "model": MODELS[model], "quantization": "mlx4",
                "requestsPerSecond": rate, "promptTokens": prompt, "answerTokens": answer,
                "maxConcurrency": 2, "diskSize": format!("{disk}Gi"), "replicas": replicas, "objectives": objectives,
            })
        };
        models.into_iter().enumerate().map(model).collect()
    })
}

fn spec() -> impl Strategy<Value = serde_json::Value> {
    (macs(), demand()).prop_map(|(macs, demand)| json!({"demand": demand, "fleet": {"macs": macs}}))
}

fn replicas<'a>(verdict: &'a PlanVerdict, model: &'a str) -> impl Iterator<Item = (f64, &'a PlanReplica)> {
    verdict.placements.iter().flat_map(move |placement| {
        let of_model = placement.replicas.iter().filter(move |one| one.model == model);
        of_model.map(move |one| (f64::from(placement.nodes), one))
    })
}

#[test]
fn rounded_numbers_survive_a_json_round_trip() {
    let mut numbers = json!([
        2.172_486_739_6e-19,
        1.234_567_894_9e-13,
        0.081_264_270_12,
        -7.0,
        1.5e12
    ]);
    round(&mut numbers);
    assert_eq!(
        numbers,
        json!([0.0, 1.234_567_89e-13, 0.081_264_270_1, -7.0, 1.5e12])
    );
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&numbers.to_string()).unwrap(),
        numbers
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The totals of the placement match the verdict.
    #[test]
    fn verdict_matches_its_placement(spec in spec()) {
        let question = question_of(spec);
        let verdict = answer(&question);
        prop_assert_eq!(verdict.feasible, verdict.models.iter().all(|model| model.served), "{:#?}", verdict);
        prop_assert_eq!(verdict.feasible, verdict.demand_factor >= 1.0 - 1e-5, "{}", verdict.summary);
        prop_assert!(verdict.demand_factor <= verdict.demand_factor_bound * (1.0 + 1e-4) + 1e-6);
        for placement in &verdict.placements {
            let class = verdict.classes.iter().find(|class| class.name == placement.class).unwrap();
            let memory: u64 = placement.replicas.iter().map(|one| one.memory_bytes).sum();
            prop_assert_eq!(memory, placement.memory_bytes);
            prop_assert!(memory <= class.memory_limit_bytes);
            let disk: u64 = placement.replicas.iter().filter_map(|one| one.disk_bytes).sum();
            prop_assert!(class.disk_limit_bytes.is_none_or(|limit| disk <= limit), "{disk} on {class:?}");
            let busy: f64 = placement.replicas.iter().map(|one| one.utilization_percent).sum();
            prop_assert!((busy - placement.utilization_percent).abs() < 1e-3);
            prop_assert!(busy <= 80.0 + 1e-3);
        }
        for class in &verdict.classes {
            let used: u32 = verdict.placements.iter().filter(|one| one.class == class.name).map(|one| one.nodes).sum();
            prop_assert_eq!(used, class.nodes_used);
            prop_assert!(used <= class.nodes);
            // Limits are reached beyond the carried demand.
            let carried = if verdict.unservable.is_empty() { verdict.demand_factor.min(1.0) } else { verdict.others_factor.unwrap_or(0.0).min(1.0) };
            prop_assert!(class.breaks_at.is_none_or(|at| at >= carried * (1.0 - 1e-5)), "{class:?} {carried}");
        }
        for model in &verdict.models {
            let answered: f64 = replicas(&verdict, &model.name).map(|(nodes, one)| nodes * one.requests_per_second).sum();
            let placed: f64 = replicas(&verdict, &model.name).map(|(nodes, _)| nodes).sum();
            prop_assert!((placed - f64::from(model.replicas)).abs() < 1e-9);
            if model.served {
                prop_assert!(answered >= model.requests_per_second * (1.0 - 1e-4), "{} answers {answered}", model.name);
            }
            prop_assert_eq!(verdict.unservable.contains(&model.name), !model.fits.iter().any(|fit: &PlanFit| {
                fit.admitted && verdict.classes.iter().any(|class| class.name == fit.class && class.nodes > 0)
            }));
        }
        // The verdict survives a JSON round trip exactly, so that an unchanged status compares as equal.
        let text = serde_json::to_string(&verdict).unwrap();
        prop_assert_eq!(serde_json::from_str::<PlanVerdict>(&text).unwrap(), verdict);
    }

    /// The reported survival of a node loss is correct, in both directions if proven.
    #[test]
    fn reported_survival_is_correct(spec in spec()) {
        let question = question_of(spec);
        let verdict = answer(&question);
        prop_assume!(verdict.feasible);
        for loss in &verdict.node_losses {
            let mut rest = question.clone();
            let class = rest.classes.iter_mut().find(|class| class.name == loss.class).unwrap();
            class.nodes -= 1;
            for model in &mut rest.models {
                model.replicas = model.replicas.min(1);
            }
            let rest = answer(&rest);
            if loss.survives || loss.proven {
                prop_assert_eq!(rest.feasible, loss.survives, "{:?}: {}", loss, rest.summary);
            }
            if let Some(factor) = loss.demand_factor {
                prop_assert!(factor <= rest.demand_factor_bound * (1.0 + 1e-4) + 1e-6, "{loss:?}");
            }
        }
        prop_assert_eq!(verdict.survives_node_loss, verdict.node_losses.iter().all(|loss| loss.survives));
    }

    /// The recommendation and all alternatives suffice, and no alternative is cheaper.
    #[test]
    fn recommended_purchases_suffice(macs in macs(), demand in demand()) {
        let catalogue = json!([
            {"name": "small", "chip": "M4", "gpuCores": 10, "memory": "32Gi", "price": 999, "watts": 40, "available": 5},
            {"name": "large", "chip": "M4 Max", "gpuCores": 40, "memory": "64Gi", "price": 2999, "watts": 150, "available": 3},
        ]);
        let question = question_of(json!({"demand": demand, "fleet": {"macs": macs}, "catalogue": catalogue}));
        let purchase = answer(&question).purchase.unwrap();
        let price = purchase.best.as_ref().and_then(|best| best.price).unwrap_or(0.0);
        for basket in purchase.best.iter().chain(&purchase.alternatives) {
            let mut bought = question.clone();
            bought.offers.clear();
            for item in &basket.items {
                let offer = question.offers.iter().find(|offer| offer.name == item.name).unwrap();
                bought.classes.push(NodeClass { nodes: item.count, ..offer.clone() });
            }
            let verdict = answer(&bought);
            prop_assert!(verdict.feasible, "{basket:?}: {}", verdict.summary);
            prop_assert_eq!(basket.survives_node_loss, verdict.survives_node_loss, "{}", verdict.summary);
            prop_assert!(basket.price.unwrap_or(0.0) >= price - 1e-6);
        }
        prop_assert!(purchase.lower_bound <= price + 1e-6);
    }
}

/// `maxConcurrency` is an upper bound: with a higher bound, the planner may still choose the
/// purchase for a lower one.
#[test]
fn higher_concurrency_never_makes_a_purchase_dearer() {
    let catalogue = json!([
        {"name": "pro", "chip": "M4 Pro", "gpuCores": 20, "memory": "64Gi", "price": 2199},
        {"name": "max", "chip": "M4 Max", "gpuCores": 40, "memory": "128Gi", "price": 4699},
        {"name": "ultra", "chip": "M3 Ultra", "gpuCores": 80, "memory": "256Gi", "price": 7099},
    ]);
    let purchase = |demand: serde_json::Value| {
        let question = question_of(
            json!({"demand": demand, "catalogue": catalogue, "fleet": {"macs": [{"chip": "M1", "memory": "8Gi", "count": 0}]}}),
        );
        answer(&question).purchase.unwrap()
    };
    let price = |most: u32, models: &[&str]| {
        let demand = |model: &&str| {
            json!({"model": model, "quantization": "mxfp4", "requestsPerSecond": 0.5, "promptTokens": 1000,
            "answerTokens": 300, "maxConcurrency": most, "objectives": {"decodeTokensPerSecond": 30}})
        };
        let purchase = purchase(models.iter().map(demand).collect());
        purchase.best.and_then(|best| best.price).unwrap_or(f64::INFINITY)
    };
    for models in [&["gpt-oss-120b"][..], &["gpt-oss-20b", "gpt-oss-120b"]] {
        let prices: Vec<f64> = [1, 2, 3, 4, 6, 8, 16, 32]
            .map(|most| price(most, models))
            .to_vec();
        assert!(prices[0].is_finite(), "{prices:?}");
        assert!(
            prices.windows(2).all(|pair| pair[1] <= pair[0]),
            "{models:?}: {prices:?}"
        );
    }
}

/// The fleet carries the demand, but not without one node: the purchase that survives is reported.
#[test]
fn recommends_a_spare_for_a_feasible_fleet() {
    let question = question_of(json!({
        "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 800, "answerTokens": 250}],
        "fleet": {"macs": [{"chip": "M4", "memory": "16Gi", "count": 1}]},
        "catalogue": [{"name": "spare", "chip": "M4", "memory": "16Gi", "price": 599}],
    }));
    let purchase = answer(&question).purchase.unwrap();
    let best = purchase.best.unwrap();
    assert!(best.items.is_empty() && !best.survives_node_loss);
    let [spare] = &purchase.alternatives[..] else {
        panic!("{:?}", purchase.alternatives)
    };
    assert!(
        spare.survives_node_loss && spare.price == Some(599.0),
        "{spare:?}"
    );
}

/// An unservable model does not affect the placement of the others.
#[test]
fn unservable_model_keeps_placement_of_the_others() {
    let demand = |model: &str| json!({"model": model, "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 500, "answerTokens": 100});
    let question = question_of(json!({
        "demand": [demand("qwen3-8b"), demand("llama3-70b")],
        "fleet": {"macs": [{"name": "mini", "chip": "M4", "memory": "16Gi", "count": 2}]},
    }));
    let verdict = answer(&question);
    assert!(!verdict.feasible && verdict.demand_factor == 0.0);
    assert_eq!(verdict.unservable, ["llama3-70b"]);
    assert!(verdict.others_factor.is_some_and(|factor| factor > 1.0));
    assert_eq!(verdict.placements.len(), 1);
    assert!(
        verdict.summary.contains("no node can serve llama3-70b")
            && verdict
                .summary
                .contains("The fleet carries the other models alone"),
        "{}",
        verdict.summary
    );
}

/// Required replicas exist for the loss of a node, so they are not required after the loss.
#[test]
fn a_second_replica_never_makes_a_loss_worse() {
    for (replicas, interrupted) in [(1, 1), (2, 0)] {
        let question = question_of(json!({
            "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 500,
                "answerTokens": 100, "maxConcurrency": 1, "replicas": replicas}],
            "fleet": {"macs": [{"name": "mini", "chip": "M4", "memory": "16Gi", "count": 2}]},
        }));
        let verdict = answer(&question);
        assert!(
            verdict.feasible && verdict.survives_node_loss,
            "{replicas}: {}",
            verdict.summary
        );
        assert_eq!(
            verdict.node_losses[0].interrupted.len(),
            interrupted,
            "{replicas}"
        );
    }
}

/// Memory is the bottleneck if two models do not fit together on the only node.
#[test]
fn finds_bottleneck_by_trial() {
    let demand = |model: &str, rate: f64| json!({"model": model, "quantization": "mlx4", "requestsPerSecond": rate, "promptTokens": 300, "answerTokens": 50, "maxConcurrency": 1});
    let mac = json!([{"name": "mini", "chip": "M4", "memory": "16Gi"}]);
    let two = question_of(
        json!({"demand": [demand("qwen3-8b", 0.01), demand("llama3-8b", 0.01)], "fleet": {"macs": mac}}),
    );
    let verdict = answer(&two);
    assert_eq!(verdict.binding.as_deref(), Some("Memory"), "{}", verdict.summary);
    assert!(verdict.headroom.twice_memory_factor > verdict.headroom.twice_speed_factor);
    let one = question_of(json!({"demand": [demand("qwen3-8b", 1.0)], "fleet": {"macs": mac}}));
    let verdict = answer(&one);
    assert_ne!(verdict.binding.as_deref(), Some("Memory"), "{}", verdict.summary);
    let (memory, speed) = (
        verdict.headroom.twice_memory_factor.unwrap(),
        verdict.headroom.twice_speed_factor.unwrap(),
    );
    // Twice the speed carries twice the demand; more memory changes nothing.
    assert!((speed / verdict.demand_factor - 2.0).abs() < 0.01, "{speed}");
    assert!((memory / verdict.demand_factor - 1.0).abs() < 0.01, "{memory}");
}

#[test]
fn reports_more_replicas_than_suitable_nodes() {
    let demand = json!([{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 300,
        "answerTokens": 50, "maxConcurrency": 1, "replicas": 3}]);
    let macs = json!([{"name": "mini", "chip": "M4", "memory": "16Gi", "count": 2}, {"name": "old", "chip": "M1", "memory": "8Gi", "count": 5}]);
    let verdict = answer(&question_of(json!({"demand": demand, "fleet": {"macs": macs}})));
    assert_eq!(verdict.binding.as_deref(), Some("Policy"), "{}", verdict.summary);
    let expect = "qwen3-8b requires 3 nodes, one per replica; number of nodes that can serve it: 2";
    assert!(verdict.summary.contains(expect), "{}", verdict.summary);
}

/// Two models fit a Mac's memory together, but not its disk. The disk is the bottleneck, and one Mac
/// less does not suffice.
#[test]
fn counts_disks_with_known_size() {
    let spec = |disk: serde_json::Value| {
        let model = |name: &str| {
            json!({
                "name": name, "model": "qwen3-0.6b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 100,
                "answerTokens": 50, "diskSize": "60Gi",
            })
        };
        let macs = json!([{"chip": "M4", "memory": "16Gi", "count": 2, "disk": disk}]);
        question_of(json!({"demand": [model("one"), model("two")], "fleet": {"macs": macs}}))
    };
    for (disk, feasible, survives) in [
        (json!(null), true, true),
        (json!("120Gi"), true, true),
        (json!("100Gi"), true, false),
        (json!("50Gi"), false, false),
    ] {
        let verdict = answer(&spec(disk.clone()));
        let actual = (verdict.feasible, verdict.survives_node_loss);
        assert_eq!(actual, (feasible, survives), "{disk}: {}", verdict.summary);
    }
    let none = answer(&spec(json!("50Gi")));
    assert_eq!(none.binding.as_deref(), Some("Disk"), "{}", none.summary);
    let lost = answer(&Question {
        classes: vec![NodeClass {
            nodes: 1,
            ..spec(json!("100Gi")).classes.remove(0)
        }],
        ..spec(json!("100Gi"))
    });
    assert_eq!(
        (lost.feasible, lost.binding.as_deref()),
        (false, Some("Disk")),
        "{}",
        lost.summary
    );
    assert!(lost.headroom.unlimited_disk_factor > Some(1.0), "{lost:?}");
}

/// An offer without a count is unlimited. A limit of the search is never reported as one of the
/// catalogue.
#[test]
fn shortfall_states_its_cause() {
    let purchase = |model: &str, rate: f64, available: Option<u32>| {
        let question = question_of(json!({
            "demand": [{"model": model, "quantization": "mlx4", "requestsPerSecond": rate, "promptTokens": 800, "answerTokens": 250}],
            "catalogue": [{"name": "mini", "chip": "M4", "memory": "16Gi", "price": 599, "available": available}],
        }));
        answer(&question).purchase.unwrap()
    };
    let best = purchase("qwen3-8b", 15.0, None).best.unwrap();
    assert!(best.nodes > 100, "{best:?}");
    for (model, rate, available, proven, text) in [
        (
            "qwen3-8b",
            15.0,
            Some(100),
            true,
            "All available Macs of the catalogue",
        ),
        (
            "qwen3-8b",
            5000.0,
            None,
            false,
            "10000 Macs of an offer without a count, together with all other offers, do not",
        ),
        (
            "llama3-70b",
            0.01,
            None,
            true,
            "No Mac in the catalogue can serve llama3-70b",
        ),
    ] {
        let purchase = purchase(model, rate, available);
        let shortfall = purchase.shortfall.unwrap_or_default();
        assert!(
            purchase.best.is_none() && shortfall.contains(text),
            "{model} {rate}: {shortfall}"
        );
        assert_eq!(purchase.proven, proven, "{shortfall}");
    }
}

#[test]
fn rejects_invalid_number_of_available_macs() {
    for available in [0, 10_001] {
        let spec = json!({
            "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 1, "promptTokens": 8, "answerTokens": 8}],
            "catalogue": [{"chip": "M4", "memory": "16Gi", "available": available}],
        });
        let spec: CapacityPlanSpec = serde_json::from_value(spec).unwrap();
        let err = question(&spec, Vec::new(), &[], &|_| None).unwrap_err();
        assert_eq!(err.field, "spec.catalogue[0].available");
    }
}

#[test]
fn summary_without_requests_has_no_multiple() {
    let question = question_of(json!({
        "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 0, "promptTokens": 500, "answerTokens": 100}],
        "fleet": {"macs": [{"name": "mini", "chip": "M4", "memory": "16Gi", "count": 2}]},
    }));
    let verdict = answer(&question);
    assert!(verdict.feasible);
    assert!(
        verdict.summary.starts_with("No requests are demanded") && !verdict.summary.contains("times"),
        "{}",
        verdict.summary
    );
}
