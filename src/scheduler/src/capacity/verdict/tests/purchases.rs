//! Purchases: comparison with complete enumeration, higher limits of streams, and rejected offers.

use super::*;
use crate::capacity::instance::ModelLoad;
use crate::capacity::linear::LinearProgram;
use crate::capacity::purchase::recommend;
use crate::capacity::question::Fit;
use crate::capacity::streams::StreamChoices;

/// Streams that a replica may have, by model, class and number.
type Allowed<'a> = &'a dyn Fn(usize, usize, u32) -> bool;

/// Nodes with every choice of models and streams. A variant is a model with a number of streams.
struct Enumeration {
    /// Instance whose models are the variants, without demand.
    instance: Instance,
    /// Model of each variant.
    models: Vec<usize>,
    loads: Vec<ModelLoad>,
    /// Contents of a node of each class that fit.
    contents: Vec<Vec<Vec<usize>>>,
}

impl Enumeration {
    fn new(question: &Question, allowed: Allowed<'_>) -> Self {
        let classes = question.priced_classes(true);
        let mut models = Vec::new();
        let mut needs = Vec::new();
        for (model, planned) in question.models.iter().enumerate() {
            for streams in 1..=planned.demand.max_concurrency {
                let mut few = planned.clone();
                few.demand.max_concurrency = streams;
                let need = |(class, (node, _)): (usize, &(&NodeClass, f64))| {
                    let need = Fit::new(&few, node).need(&few, 1.0);
                    need.filter(|_| allowed(model, class, streams))
                };
                models.push(model);
                needs.push(classes.iter().enumerate().map(need).collect());
            }
        }
        let no_demand = ModelLoad {
            rate: 0.0,
            min_replicas: 0,
        };
        let instance = Instance {
            classes: classes
                .iter()
                .map(|(class, price)| class.supply(*price))
                .collect(),
            models: vec![no_demand; models.len()],
            needs,
            utilization: question.utilization,
        };
        let load = |model: &PlannedModel| ModelLoad {
            rate: model.requests_per_second,
            min_replicas: model.replicas,
        };
        let mut all = Self {
            loads: question.models.iter().map(load).collect(),
            contents: Vec::new(),
            models,
            instance,
        };
        all.contents = (0..all.instance.classes.len())
            .map(|class| all.contents_of(class))
            .collect();
        all
    }

    fn contents_of(&self, class: usize) -> Vec<Vec<usize>> {
        let mut contents: Vec<Vec<usize>> = vec![Vec::new()];
        for (variant, model) in self.models.iter().enumerate() {
            for known in contents.clone() {
                let mut more = known;
                more.push(variant);
                let is_new = more.iter().filter(|other| self.models[**other] == *model).count() == 1;
                if is_new && self.instance.node_rows(class, &more).is_some() {
                    contents.push(more);
                }
            }
        }
        contents
    }

    /// Returns the price of the cheapest nodes that carry the demand, or `None` if all nodes
    /// together do not carry it.
    fn cheapest(&self) -> Option<f64> {
        let classes = &self.instance.classes;
        let mut purchases: Vec<Vec<u32>> = vec![Vec::new()];
        for class in classes {
            let fewest = if class.price > 0.0 { 0 } else { class.nodes };
            purchases = purchases
                .into_iter()
                .flat_map(|counts| {
                    (fewest..=class.nodes).map(move |count| counts.iter().copied().chain([count]).collect())
                })
                .collect();
        }
        let price = |counts: &Vec<u32>| -> f64 {
            let each = classes.iter().zip(counts);
            each.map(|(class, count)| class.price * f64::from(*count)).sum()
        };
        purchases.sort_by(|a, b| price(a).total_cmp(&price(b)));
        purchases.iter().find(|counts| self.carries(counts)).map(price)
    }

    /// Tries all contents of these nodes. Nodes of a class are interchangeable, so their contents
    /// are in ascending order.
    fn carries(&self, counts: &[u32]) -> bool {
        let nodes = counts.iter().enumerate();
        let nodes: Vec<usize> = nodes
            .flat_map(|(class, count)| std::iter::repeat_n(class, *count as usize))
            .collect();
        let mut chosen = Vec::new();
        self.carries_with(&nodes, &mut chosen)
    }

    fn carries_with(&self, nodes: &[usize], chosen: &mut Vec<usize>) -> bool {
        let at = chosen.len();
        let Some(class) = nodes.get(at) else {
            return self.serves(nodes, chosen);
        };
        let first = if at > 0 && nodes[at - 1] == *class {
            chosen[at - 1]
        } else {
            0
        };
        for content in first..self.contents[*class].len() {
            chosen.push(content);
            if self.carries_with(nodes, chosen) {
                return true;
            }
            chosen.pop();
        }
        false
    }

    /// Returns whether nodes with these contents carry the demand, with loads from a linear program.
    fn serves(&self, nodes: &[usize], chosen: &[usize]) -> bool {
        let mut program = LinearProgram::default();
        let factor = program.variable(1.0);
        program.at_most(vec![(factor, 1.0)], 1.0);
        let mut answers = vec![vec![(factor, 0.0)]; self.loads.len()];
        let mut replicas = vec![0; self.loads.len()];
        for (class, content) in nodes.iter().zip(chosen) {
            let variants = &self.contents[*class][*content];
            let rows = self.instance.node_rows(*class, variants).unwrap();
            let variables: Vec<_> = variants.iter().map(|_| program.variable(0.0)).collect();
            for row in rows {
                program.at_most(variables.iter().copied().zip(row.terms).collect(), row.room);
            }
            for (variant, variable) in variants.iter().zip(variables) {
                answers[self.models[*variant]].push((variable, 1.0));
                replicas[self.models[*variant]] += 1;
            }
        }
        for (model, load) in self.loads.iter().enumerate() {
            if replicas[model] < load.min_replicas {
                return false;
            }
            let mut terms = std::mem::take(&mut answers[model]);
            terms[0].1 = -load.rate;
            program.at_least(terms, 0.0);
        }
        program.solve().unwrap().value >= 1.0 - TOLERANCE
    }
}

/// One or two models with a few streams; prompts are partly cached in half of the cases.
fn few_models() -> impl Strategy<Value = Vec<serde_json::Value>> {
    let one = (
        0..3usize,
        0.01f64..0.6,
        50u32..2000,
        prop_oneof![1 => Just(0), 1 => 1u32..100],
        50u32..400,
        1u32..3,
        prop_oneof![1 => Just(None), 1 => (5u32..40).prop_map(Some)],
        1u32..3,
    );
    prop::collection::vec(one, 1..3).prop_map(|models| {
        let model = |(index, (model, rate, prompt, cached, answer, streams, decode, replicas))| {
            let (index, model, rate): (usize, usize, f64) = (index, model, rate);
            let (prompt, cached, answer): (u32, u32, u32) = (prompt, cached, answer);
            let (streams, decode, replicas): (u32, Option<u32>, u32) = (streams, decode, replicas);
            json!({
                "name": format!("model-{index}"), "model": MODELS[model], "quantization": "mlx4",
                "requestsPerSecond": rate, "promptTokens": prompt, "answerTokens": answer, "replicas": replicas,
                "cachedPromptTokens": prompt * cached / 100, "maxConcurrency": streams,
                "objectives": decode.map_or(json!({}), |decode| json!({"decodeTokensPerSecond": decode})),
            })
        };
        models.into_iter().enumerate().map(model).collect()
    })
}

/// Up to `most` Macs of each of a few kinds, with prices.
fn offers(kinds: usize, most: u32) -> impl Strategy<Value = Vec<serde_json::Value>> {
    prop::collection::vec((0..CHIPS.len(), 1..=most, 100u32..3000), 1..=kinds).prop_map(|offers| {
        let offer = |(index, (chip, available, price)): (usize, (usize, u32, u32))| {
            let (chip, cores, memory) = CHIPS[chip];
            json!({"name": format!("offer-{index}"), "chip": chip, "gpuCores": cores, "memory": memory, "price": price, "available": available})
        };
        offers.into_iter().enumerate().map(offer).collect()
    })
}

fn fleet(owned: Option<usize>) -> serde_json::Value {
    let (chip, cores, memory) = CHIPS[owned.unwrap_or(0)];
    let count = u32::from(owned.is_some());
    json!({"macs": [{"name": "owned", "chip": chip, "gpuCores": cores, "memory": memory, "count": count}]})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The recommended purchase never costs less than the cheapest one of a complete enumeration: it
    /// never over-commits a node. It costs the same for one model. For two models, it is the
    /// cheapest one with equal streams on all nodes of a class.
    #[test]
    fn purchase_equals_that_of_a_complete_enumeration(
        demand in few_models(),
        catalogue in offers(2, 2),
        owned in prop_oneof![1 => Just(None), 1 => (0..CHIPS.len()).prop_map(Some)],
    ) {
        let question = question_of(json!({"demand": demand, "catalogue": catalogue, "fleet": fleet(owned)}));
        let purchase = recommend(&question);
        let price = purchase.best.as_ref().map(|best| best.price.unwrap_or(0.0));
        let cheapest = Enumeration::new(&question, &|_, _, _| true).cheapest();
        if let (Some(price), Some(cheapest)) = (price, cheapest) {
            prop_assert!(purchase.lower_bound <= cheapest + 1e-3, "{} above {cheapest}", purchase.lower_bound);
            prop_assert!(!purchase.proven || price <= cheapest + 1e-3, "{price} is no proof for {cheapest}");
        }
        let close = |a: f64, b: f64| (a - b).abs() < 1e-3;
        let free = Enumeration::new(&question, &|_, _, _| true).cheapest();
        match (price, free) {
            (None, _) => {}
            (Some(price), Some(free)) => prop_assert!(price >= free - 1e-3, "{price} instead of {free}"),
            (Some(price), None) => prop_assert!(false, "{price}, but no purchase suffices"),
        }
        let choices = StreamChoices::new(&question, true);
        let equal = choices.combinations().into_iter().filter_map(|limits| {
            let judged = choices.judged(&limits);
            let allowed = |model: usize, class: usize, streams| judged.fits[model][class].streams == streams;
            Enumeration::new(&question, &allowed).cheapest()
        });
        let equal = equal.min_by(f64::total_cmp);
        let expected = if question.models.len() == 1 { free } else { equal };
        prop_assert!(
            price.zip(expected).is_some_and(|(a, b)| close(a, b)) || price == expected,
            "{price:?} instead of {expected:?}"
        );
    }

    /// With a higher limit of streams, the planner may still choose the purchase for the lower one.
    #[test]
    fn higher_limit_of_streams_never_costs_more(
        macs in macs(),
        demand in demand(),
        catalogue in offers(3, 6),
        limits in prop::collection::vec((1u32..9, 0u32..24), 3),
    ) {
        let price = |more: bool| {
            let mut demand = demand.clone();
            for (model, (limit, added)) in demand.iter_mut().zip(&limits) {
                model["maxConcurrency"] = (limit + if more { *added } else { 0 }).into();
            }
            let question = question_of(json!({"demand": demand, "fleet": {"macs": macs}, "catalogue": catalogue}));
            recommend(&question).best.map_or(f64::INFINITY, |best| best.price.unwrap_or(0.0))
        };
        let (lower, higher) = (price(false), price(true));
        prop_assert!(higher <= lower + 1e-6, "{higher} instead of {lower}");
    }
}

/// 25 users who read at 30 tokens/s, all the time.
#[test]
fn more_streams_never_make_a_purchase_for_25_users_dearer() {
    let price = |streams: u32| {
        let purchase = recommend(&question_of(json!({
            "demand": [{"model": "gpt-oss-120b", "quantization": "mxfp4", "requestsPerSecond": 2.5, "promptTokens": 1000,
                "answerTokens": 300, "maxConcurrency": streams, "objectives": {"decodeTokensPerSecond": 30}}],
            "fleet": {"macs": [{"chip": "M4", "memory": "16Gi", "count": 0}]},
            "catalogue": [
                {"chip": "M4 Pro", "gpuCores": 20, "memory": "64Gi", "price": 2199},
                {"chip": "M4 Max", "gpuCores": 40, "memory": "128Gi", "price": 3699},
                {"chip": "M3 Ultra", "gpuCores": 80, "memory": "256Gi", "price": 7099},
            ],
        })));
        purchase.best.and_then(|best| best.price).unwrap_or(f64::INFINITY)
    };
    let prices: Vec<f64> = (1..=16).chain([25, 32, 64]).map(price).collect();
    assert!(prices.iter().all(|price| price.is_finite()), "{prices:?}");
    assert!(prices.windows(2).all(|pair| pair[1] <= pair[0]), "{prices:?}");
}

#[test]
fn smallest_purchase_for_two_models_is_proven() {
    let model = |name: &str| {
        json!({"model": name, "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 500,
               "answerTokens": 100, "maxConcurrency": 4})
    };
    let purchase = recommend(&question_of(json!({
        "demand": [model("qwen3-8b"), model("llama3-8b")],
        "fleet": {"macs": [{"chip": "M4", "memory": "16Gi", "count": 0}]},
        "catalogue": [{"chip": "M4 Pro", "gpuCores": 20, "memory": "48Gi", "price": 1799}],
    })));
    let best = purchase.best.as_ref().unwrap();
    assert_eq!(
        (best.nodes, purchase.lower_bound, purchase.proven),
        (1, 1799.0, true),
        "{purchase:?}"
    );
}

fn rejected(spec: serde_json::Value) -> Vec<(String, String, String)> {
    let offers = answer(&question_of(spec)).purchase.unwrap().rejected_offers;
    let shown = |offer: rooflet_api::v1alpha1::PlanRejectedOffer| (offer.name, offer.reason, offer.message);
    offers.into_iter().map(shown).collect()
}

/// Every offer that the purchase does not contain has a reason with the required and the available
/// amount, whether or not a purchase suffices.
#[test]
fn rejected_offers_have_a_reason_and_a_distance() {
    let catalogue = |ultra: bool| {
        let mut offers = vec![
            json!({"name": "mini", "chip": "M4", "memory": "16Gi", "price": 599}),
            json!({"name": "pro", "chip": "M4 Pro", "gpuCores": 20, "memory": "64Gi", "price": 2199}),
        ];
        if ultra {
            offers.push(
                json!({"name": "ultra", "chip": "M3 Ultra", "gpuCores": 80, "memory": "96Gi", "price": 5299}),
            );
            offers.push(
                json!({"name": "gold", "chip": "M3 Ultra", "gpuCores": 80, "memory": "96Gi", "price": 9999}),
            );
        }
        offers
    };
    let spec = |ultra: bool| {
        json!({
            "demand": [{"model": "llama3-70b", "quantization": "mlx4", "requestsPerSecond": 0.01, "promptTokens": 800,
                "answerTokens": 250, "objectives": {"decodeTokensPerSecond": 9}}],
            "fleet": {"macs": [{"chip": "M4", "memory": "16Gi", "count": 0}]},
            "catalogue": catalogue(ultra),
        })
    };
    for ultra in [false, true] {
        let offers = rejected(spec(ultra));
        let of = |name: &str| {
            let found: Vec<_> = offers.iter().filter(|(offer, ..)| offer == name).collect();
            assert!(!found.is_empty(), "{name}: {offers:?}");
            found
                .iter()
                .map(|(_, reason, message)| format!("{reason}: {message}"))
                .collect::<Vec<_>>()
                .join("; ")
        };
        let mini = of("mini");
        assert!(
            mini.contains("ExceedsNodeMemory: 10.0 GiB of memory for models, ")
                && mini.contains(" GiB needed"),
            "{mini}"
        );
        let pro = of("pro");
        assert!(
            pro.contains("ObjectiveOutOfReach: ") && pro.contains(" tok/s at p10, 9 needed"),
            "{pro}"
        );
        assert!(offers.iter().all(|(name, ..)| name != "ultra"), "{offers:?}");
        if ultra {
            assert_eq!(
                of("gold"),
                "HigherPrice: 1 x gold for 9999, the recommended purchase costs 5299"
            );
        }
    }
}

/// A limited offer that serves the model, but not all requests, is rejected with the carried part.
#[test]
fn too_few_available_macs_are_rejected_with_the_carried_part() {
    let offers = rejected(json!({
        "demand": [{"model": "qwen3-8b", "quantization": "mlx4", "requestsPerSecond": 2, "promptTokens": 800, "answerTokens": 250}],
        "fleet": {"macs": [{"chip": "M4", "memory": "16Gi", "count": 0}]},
        "catalogue": [
            {"name": "two", "chip": "M4", "memory": "16Gi", "price": 100, "available": 2},
            {"name": "max", "chip": "M4 Max", "gpuCores": 40, "memory": "64Gi", "price": 2999},
        ],
    }));
    let [(name, reason, message)] = &offers[..] else {
        panic!("{offers:?}");
    };
    assert_eq!((name.as_str(), reason.as_str()), ("two", "InsufficientCount"));
    assert!(
        message.starts_with("2 x two with the fleet carry at most 0.")
            && message.ends_with(" times the demand"),
        "{message}"
    );
}
