use proptest::prelude::*;

use super::exact::{self, Goal, Search};
use super::instance::{ClassSupply, Group, Instance, MAX_FACTOR, ModelLoad, Need, Placement, Share};
use super::linear::LinearProgram;
use super::relaxation::LeastPrice;
use super::shop::Shop;
use super::{greedy, relaxation, search};
use rooflet_base::units::Bytes;

fn need() -> impl Strategy<Value = Option<Need>> {
    let some = (
        1u64..12,
        0.0f64..0.4,
        prop_oneof![2 => Just(0.0), 1 => 0.05f64..0.7],
        0.01f64..0.5,
        // With little decode, prefill, objectives and waits are the limits.
        prop_oneof![1 => 0.0f64..0.05, 1 => 0.0f64..1.0],
        prop_oneof![2 => Just(None), 1 => (0.01f64..1.0).prop_map(Some)],
        prop_oneof![1 => Just(0), 1 => 1u64..8],
    )
        .prop_map(
            |(memory, kept, objective_share, prefill, decode, wait, disk)| Need {
                memory: Bytes(memory),
                disk: Bytes(disk),
                reserved: objective_share + kept,
                objective_share,
                service: prefill + decode,
                prefill,
                wait,
            },
        );
    prop_oneof![1 => Just(None), 6 => some.prop_map(Some)]
}

fn instances(classes: usize, nodes: u32, models: usize) -> impl Strategy<Value = Instance> {
    (1..=classes, 1..=models).prop_flat_map(move |(classes, models)| {
        let disk = prop_oneof![1 => Just(None), 1 => (0u64..16).prop_map(|disk| Some(Bytes(disk)))];
        let supply =
            (0..=nodes, 6u64..16, 1.0f64..9.0, disk).prop_map(|(nodes, memory, price, disk)| ClassSupply {
                nodes,
                memory: Bytes(memory),
                disk,
                reserved: 0.0,
                price,
            });
        let load = (prop_oneof![1 => Just(0.0), 6 => 0.05f64..2.0], 1u32..3)
            .prop_map(|(rate, min_replicas)| ModelLoad { rate, min_replicas });
        (
            prop::collection::vec(supply, classes),
            prop::collection::vec(load, models),
            prop::collection::vec(prop::collection::vec(need(), classes), models),
        )
            .prop_map(|(classes, models, needs)| Instance {
                classes,
                models,
                needs,
                utilization: 0.8,
            })
    })
}

/// Tries all contents of all nodes, with loads from a linear program. Returns the largest factor, or
/// `None` if the required replicas do not fit.
fn brute_force(instance: &Instance) -> Option<f64> {
    let nodes: Vec<usize> = instance
        .classes
        .iter()
        .enumerate()
        .flat_map(|(class, supply)| std::iter::repeat_n(class, supply.nodes as usize))
        .collect();
    let models = instance.models.len();
    let subsets: Vec<Vec<usize>> = (0..1usize << models)
        .map(|bits| (0..models).filter(|model| bits >> model & 1 == 1).collect())
        .collect();
    let mut best = None;
    let mut choice = vec![0; nodes.len()];
    loop {
        let contents: Vec<(usize, &Vec<usize>)> = nodes
            .iter()
            .zip(&choice)
            .map(|(class, subset)| (*class, &subsets[*subset]))
            .collect();
        let stores = |(class, models): &(usize, &Vec<usize>)| -> u64 {
            let needs = models.iter().filter_map(|model| instance.need(*model, *class));
            needs.map(|need| need.disk.0).sum()
        };
        let has_room = |one: &(usize, &Vec<usize>)| {
            let free = instance.classes[one.0].disk;
            free.is_none_or(|free| stores(one) <= free.0)
        };
        let fits = contents.iter().all(has_room);
        if let Some(factor) = loads(instance, &contents).filter(|_| fits) {
            best = Some(best.map_or(factor, |known: f64| known.max(factor)));
        }
        let Some(next) = choice.iter().position(|subset| subset + 1 < subsets.len()) else {
            return best;
        };
        choice[next] += 1;
        choice[..next].fill(0);
    }
}

fn loads(instance: &Instance, contents: &[(usize, &Vec<usize>)]) -> Option<f64> {
    let mut program = LinearProgram::default();
    let factor = program.variable(1.0);
    program.at_most(vec![(factor, 1.0)], MAX_FACTOR);
    let mut answers = vec![vec![(factor, 0.0)]; instance.models.len()];
    let mut replicas = vec![0; instance.models.len()];
    for (class, models) in contents {
        let rows = instance.node_rows(*class, models)?;
        let variables: Vec<_> = models.iter().map(|_| program.variable(0.0)).collect();
        for row in rows {
            program.at_most(variables.iter().copied().zip(row.terms).collect(), row.room);
        }
        for (model, variable) in models.iter().zip(variables) {
            answers[*model].push((variable, 1.0));
            replicas[*model] += 1;
        }
    }
    for (model, load) in instance.models.iter().enumerate() {
        if replicas[model] < load.min_replicas {
            return None;
        }
        let mut terms = std::mem::take(&mut answers[model]);
        terms[0].1 = -load.rate;
        program.at_least(terms, 0.0);
    }
    Some(program.solve().unwrap().value)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * a.abs().max(b.abs()).max(1e-3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// On small instances, the answer equals that of an exhaustive search and is proven.
    #[test]
    fn solves_small_instances_exactly(instance in instances(2, 2, 3)) {
        let capacity = search::capacity(&instance);
        match brute_force(&instance) {
            None => prop_assert!(capacity.placement.is_none(), "{capacity:?}"),
            Some(factor) => {
                prop_assert!(close(capacity.factor, factor), "{} instead of {factor}", capacity.factor);
                prop_assert!(capacity.proven(), "{capacity:?}");
                prop_assert_eq!(capacity.placement.unwrap().check(&instance), Ok(()));
            }
        }
    }

    /// The exact search finds the optimum without a known placement.
    #[test]
    fn exact_search_needs_no_known_placement(instance in instances(2, 2, 3)) {
        match (exact::solve(&instance, Goal::MostDemand, None), brute_force(&instance)) {
            (Search::Found(answer), Some(factor)) => {
                prop_assert!(close(answer.value, factor), "{} instead of {factor}", answer.value);
                prop_assert!(answer.proven());
            }
            (Search::Impossible, None) => {}
            (found, factor) => prop_assert!(false, "{found:?}, by trial {factor:?}"),
        }
    }

    /// The lowest price is that of the cheapest sufficient selection of nodes.
    #[test]
    fn finds_the_cheapest_nodes(instance in instances(2, 2, 2)) {
        let mut cheapest: Option<f64> = None;
        let [first, second] = [0, 1].map(|class| instance.classes.get(class).map_or(0, |class| class.nodes));
        for a in 0..=first {
            for b in 0..=second {
                let mut part = instance.clone();
                let counts = [a, b];
                for (class, count) in part.classes.iter_mut().zip(counts) {
                    class.nodes = count;
                }
                let price: f64 = part.classes.iter().map(|c| c.price * f64::from(c.nodes)).sum();
                if brute_force(&part).is_some_and(|factor| factor >= 1.0 - 1e-9)
                    && cheapest.is_none_or(|known| price < known)
                {
                    cheapest = Some(price);
                }
            }
        }
        match (exact::solve(&instance, Goal::LeastPrice, None), cheapest) {
            (Search::Found(answer), Some(price)) => {
                prop_assert!(close(-answer.value, price), "{} instead of {price}", -answer.value);
                prop_assert!(answer.proven());
                prop_assert_eq!(answer.placement.check(&instance), Ok(()));
            }
            (Search::Impossible, None) => {}
            (found, cheapest) => prop_assert!(false, "{found:?}, by trial {cheapest:?}"),
        }
    }

    /// Greedy placements satisfy all constraints and never exceed the bound.
    #[test]
    fn greedy_placement_is_valid_and_within_the_bound(instance in instances(3, 6, 8)) {
        let bound = relaxation::most_demand(&instance).unwrap();
        if let Some(placement) = greedy::most_demand(&instance, bound, greedy::Effort::FULL) {
            prop_assert_eq!(placement.check(&instance), Ok(()));
            let factor = placement.factor(&instance);
            prop_assert!(factor <= bound * (1.0 + 1e-4) + 1e-6, "{factor} above {bound}");
        }
    }

    /// A frugal placement serves the complete demand, with at most the replicas of the largest one.
    #[test]
    fn frugal_placement_serves_the_demand(instance in instances(2, 3, 4)) {
        let capacity = search::capacity(&instance);
        if capacity.carries_demand() {
            let best = capacity.placement.unwrap();
            let frugal = search::frugal(&instance, &best);
            prop_assert_eq!(frugal.check(&instance), Ok(()));
            prop_assert!(frugal.factor(&instance) >= 1.0 - 1e-5);
            prop_assert!(frugal.total_replicas() <= best.total_replicas());
        }
    }

    /// Vertices of a linear program often assign all load to one replica. A plan must not contain idle
    /// replicas on nodes with more than 1 % free capacity.
    #[test]
    fn frugal_placement_has_no_unnecessarily_idle_replicas(instance in instances(2, 3, 4)) {
        let capacity = search::capacity(&instance);
        if capacity.carries_demand() {
            let frugal = search::frugal(&instance, &capacity.placement.unwrap());
            for group in &frugal.groups {
                let rows = instance.node_rows(group.class, &group.models()).unwrap();
                for (k, share) in group.replicas.iter().enumerate() {
                    let full = rows.iter().any(|row| {
                        let load: f64 = row.terms.iter().zip(&group.replicas).map(|(t, share)| t * share.rate).sum();
                        row.terms[k] > 0.0 && load >= row.room * 0.99 - 1e-6
                    });
                    let asked = instance.models[share.model].rate > 0.0;
                    prop_assert!(!asked || share.rate > 0.0 || full, "{frugal:?}");
                }
            }
        }
    }

    /// The purchase is optimal if the exact search has an answer, and its reported survival is correct.
    #[test]
    fn purchase_is_minimal_and_sufficient(instance in instances(3, 3, 3)) {
        let bought = Shop::new(&instance, 0).ok().and_then(|shop| {
            let (best, lower_bound) = shop.best()?;
            Some((shop.choice(best, lower_bound), shop))
        });
        match (exact::solve(&instance, Goal::LeastPrice, None), bought) {
            (Search::Found(answer), Some((choice, shop))) => {
                let price = shop.price(&choice.best);
                prop_assert!(close(-answer.value, price), "{price} instead of {}", -answer.value);
                for counts in choice.others.iter().chain([&choice.best]) {
                    let fleet = shop.with(counts);
                    prop_assert!(search::capacity(&fleet).carries_demand(), "{counts:?}");
                    prop_assert!(shop.price(counts) >= price - 1e-6);
                    let lost = (0..counts.len()).filter(|class| counts[*class] > 0);
                    let mut rests = lost.map(|class| fleet.without_node(class));
                    prop_assert_eq!(shop.survives(counts), rests.all(|rest| search::capacity(&rest).carries_demand()));
                }
            }
            (Search::Impossible, None) => {}
            (found, bought) => prop_assert!(false, "{found:?}, bought {:?}", bought.map(|(choice, _)| choice)),
        }
    }

    /// A reused relaxation yields the same bound as a new one.
    #[test]
    fn reused_relaxation_matches_a_new_one(
        instance in instances(3, 6, 5),
        counts in prop::collection::vec(0u32..7, 3),
        times in 0.2f64..3.0,
    ) {
        let mut other = instance.clone();
        for (class, count) in other.classes.iter_mut().zip(&counts) {
            // The relaxation has no variables for classes without nodes.
            class.nodes = class.nodes.min(*count);
        }
        for load in &mut other.models {
            load.rate *= times;
        }
        let counts: Vec<u32> = other.classes.iter().map(|class| class.nodes).collect();
        if let Ok(first) = LeastPrice::new(&instance) {
            let again = first.with(&counts, times).map(|again| again.answer().0);
            match (again, LeastPrice::new(&other).map(|first| first.answer().0)) {
                (Ok(again), Ok(first)) => prop_assert!(close(again, first), "{again} != {first}"),
                (again, first) => prop_assert_eq!(again, first),
            }
        }
    }

    /// With a proven answer, an additional node never reduces the capacity.
    #[test]
    fn additional_node_never_reduces_capacity(instance in instances(2, 2, 3)) {
        let mut more = instance.clone();
        more.classes[0].nodes += 1;
        let (less, more) = (search::capacity(&instance), search::capacity(&more));
        if less.proven() && more.proven() {
            prop_assert!(more.factor >= less.factor * (1.0 - 1e-4), "{} < {}", more.factor, less.factor);
        }
    }
}

/// A single model on a single class of node, computed by hand.
#[test]
fn one_model_on_two_nodes_follows_the_utilisation_law() {
    let need = Need {
        memory: Bytes(10),
        disk: Bytes::ZERO,
        reserved: 0.05,
        objective_share: 0.0,
        service: 2.0,
        prefill: 0.5,
        wait: None,
    };
    let instance = Instance {
        classes: vec![ClassSupply {
            nodes: 2,
            memory: Bytes(16),
            disk: None,
            reserved: 0.0,
            price: 1.0,
        }],
        models: vec![ModelLoad {
            rate: 0.5,
            min_replicas: 1,
        }],
        needs: vec![vec![Some(need)]],
        utilization: 0.8,
    };
    // Two nodes, each busy for 0.8 of the time, 2 s per request: 0.8 requests/s, 1.6 times the
    // demand.
    let capacity = search::capacity(&instance);
    assert!(close(capacity.factor, 1.6), "{capacity:?}");
    let one = Group {
        class: 0,
        nodes: 2,
        replicas: vec![Share { model: 0, rate: 0.4 }],
    };
    assert_eq!(capacity.placement.unwrap().merged().groups.len(), 1);
    let busy = Placement { groups: vec![one] };
    assert_eq!(busy.check(&instance), Ok(()));
    assert!(close(busy.factor(&instance), 1.6));
    // One node alone carries 0.4 of the 0.5 requests/s.
    let search::Remaining::Part { factor, proven } = search::without_one(&instance, 0, capacity.bound) else {
        panic!("one node carries it all");
    };
    assert!(close(factor, 0.8) && proven, "{factor}");
}

/// 500 nodes of 10 classes and 100 models, by a fixed arithmetic sequence.
fn large(seed: u64) -> Instance {
    let mut state = seed;
    let mut next = |from: f64, to: f64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        from + (to - from) * ((state >> 33) as f64 / f64::from(1u32 << 31))
    };
    let memory = [10u64, 15, 15, 22, 22, 45, 60, 90, 180, 360];
    let classes: Vec<_> = memory
        .iter()
        .map(|memory| ClassSupply {
            nodes: 50,
            memory: Bytes(memory * 1000),
            disk: None,
            reserved: 0.0,
            price: 1.0,
        })
        .collect();
    let mut models = Vec::new();
    let mut needs = Vec::new();
    for _ in 0..100 {
        let size = next(1.0f64.ln(), 80f64.ln()).exp();
        models.push(ModelLoad {
            rate: next(0.05, 1.0),
            min_replicas: 1,
        });
        let (tokens, prompt) = (next(50.0, 500.0), next(100.0, 4000.0));
        let objective = if next(0.0, 1.0) < 0.3 { 4.0 } else { 0.0 };
        let of_class = |memory: &u64| {
            let speed = (*memory as f64).sqrt() * 30.0;
            let step = size / speed;
            let prefill = prompt * size / speed / 200.0;
            let objective_share = objective * step;
            let reserved = objective_share.max(0.05);
            (size * 1000.0 < *memory as f64 * 1000.0 && reserved <= 1.0).then(|| Need {
                memory: Bytes((size * 1000.0) as u64),
                disk: Bytes::ZERO,
                reserved,
                objective_share,
                service: prefill + tokens * step / 4.0,
                prefill,
                wait: None,
            })
        };
        needs.push(memory.iter().map(of_class).collect());
    }
    Instance {
        classes,
        models,
        needs,
        utilization: 0.8,
    }
}

/// Gap between the bound and the greedy answer; docs/planner.md states the worst case.
#[test]
fn large_fleets_stay_within_the_documented_gap() {
    // A typical seed, and the worst of 1 to 30.
    for seed in [21, 29] {
        let instance = large(seed);
        let capacity = search::capacity(&instance);
        let placement = capacity.placement.as_ref().unwrap();
        assert_eq!(placement.check(&instance), Ok(()), "seed {seed}");
        let gap = capacity.bound / capacity.factor - 1.0;
        assert!(gap < 0.025, "seed {seed}: gap {gap}");
    }
}
