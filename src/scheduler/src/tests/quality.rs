//! Quality of decisions compared with the optimum, on instances small enough for exhaustive search.

use super::*;
use crate::placement::filter::filter;

const NODES: [&str; 5] = [
    "chip=M4 mem=10",
    "chip=M4 mem=20",
    "chip=M4_Pro mem=18",
    "chip=M4_Max/40 mem=30",
    "chip=M4_Max/40 mem=48",
];
const MODELS: [(&str, u64); 4] = [("tiny", 1), ("small", 4), ("middle", 8), ("large", 18)];

/// Deterministic random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

fn instance(random: &mut Random) -> (Vec<FleetNode>, Vec<ReplicaRequest>) {
    let models: Vec<_> = MODELS.iter().map(|(name, gib)| format!("{name}:{gib}")).collect();
    let nodes = (0..2 + random.below(2))
        .map(|index| {
            let kind = NODES[random.below(NODES.len())];
            node(&format!("n{index} {kind} model={}", models.join(",")))
        })
        .collect();
    let requests = (0..3 + random.below(4))
        .map(|index| {
            let (model, gib) = MODELS[random.below(MODELS.len())];
            // A fraction of the speed of the slowest chip.
            let rate = 100.0 / gib as f64 * (1 + random.below(8)) as f64 / 10.0;
            let replica = replica(&format!("r{index} of=d{index} model={model} rate={rate}"));
            ReplicaRequest::new(&replica)
        })
        .collect();
    (nodes, requests)
}

/// Returns the maximum number of placed replicas, and their maximum slack.
fn best(requests: &[ReplicaRequest], fleet: &mut Fleet, placed: usize) -> (usize, f64) {
    let Some((request, rest)) = requests.split_first() else {
        return (placed, slack(fleet, placed));
    };
    let mut found = best(rest, fleet, placed);
    for at in 0..fleet.nodes.len() {
        let (fits, nodes) = fleet.fits(request);
        let node = &nodes[at];
        if filter(request, node, &fits[node.machine_id], &node.load).is_err() {
            continue;
        }
        let name = node.name.clone();
        fleet.place(request, &name);
        let with = best(rest, fleet, placed + 1);
        fleet.undo(&request.key, None);
        if with.0 > found.0 || (with.0 == found.0 && with.1 > found.1) {
            found = with;
        }
    }
    found
}

fn slack(fleet: &Fleet, placed: usize) -> f64 {
    let pressure: f64 = fleet.nodes.iter().map(|node| node.load.pressure).sum();
    placed as f64 - pressure
}

#[test]
fn decisions_are_within_three_percent_of_the_optimum() {
    let mut random = Random(7);
    let (mut placed, mut most) = (0, 0);
    let (mut kept, mut most_slack) = (0.0, 0.0);
    for _ in 0..150 {
        let (nodes, requests) = instance(&mut random);
        let exact = best(&requests, &mut Fleet::new(&nodes, []), 0);
        let mut fleet = Fleet::new(&nodes, []);
        let decisions = bind_all(&requests, &mut fleet);
        let ours = decisions
            .iter()
            .filter(|decision| decision.outcome.is_ok())
            .count();
        assert!(ours <= exact.0, "more than there is room for");
        placed += ours;
        most += exact.0;
        if ours == exact.0 {
            kept += slack(&fleet, ours);
            most_slack += exact.1;
        }
    }
    let (count, slack) = (placed as f64 / most as f64, kept / most_slack);
    assert!(
        count >= 0.97 && slack >= 0.97,
        "{count:.3} of the replicas, {slack:.3} of the slack"
    );
}

fn best_effort(random: &mut Random, strategy: &str) -> (Vec<FleetNode>, Vec<ReplicaRequest>) {
    let (nodes, requests) = instance(random);
    let replicas = requests.iter().map(|request| {
        let source = request.source.as_ref().and_then(|source| source.listed_as());
        let model = source.expect("a local model").into_owned();
        let name = &request.key.name;
        replica(&format!("{name} of={name} model={model} strategy={strategy}"))
    });
    let requests = replicas.map(|replica| ReplicaRequest::new(&replica)).collect();
    (nodes, requests)
}

/// Returns the sum of the predicted decode speeds of all replicas without objectives if all are
/// busy, in tokens per second.
fn total_speed(fleet: &Fleet) -> f64 {
    let nodes = fleet.nodes.iter();
    nodes.flat_map(|node| node.load.shared_speeds()).sum()
}

/// Returns the largest number of replicas that fit, and their largest total speed.
fn fastest(requests: &[ReplicaRequest], fleet: &mut Fleet, placed: usize) -> (usize, f64) {
    let Some((request, rest)) = requests.split_first() else {
        return (placed, total_speed(fleet));
    };
    let mut found = fastest(rest, fleet, placed);
    for at in 0..fleet.nodes.len() {
        let (fits, nodes) = fleet.fits(request);
        let node = &nodes[at];
        if filter(request, node, &fits[node.machine_id], &node.load).is_err() {
            continue;
        }
        let name = node.name.clone();
        fleet.place(request, &name);
        let with = fastest(rest, fleet, placed + 1);
        fleet.undo(&request.key, None);
        if with.0 > found.0 || (with.0 == found.0 && with.1 > found.1) {
            found = with;
        }
    }
    found
}

/// Returns the shares of the optimal number of replicas and total speed that a strategy reaches.
fn reached(strategy: &str) -> (f64, f64) {
    let mut random = Random(11);
    let (mut placed, mut most) = (0, 0);
    let (mut ours_sum, mut best_sum) = (0.0, 0.0);
    for _ in 0..150 {
        let (nodes, requests) = best_effort(&mut random, strategy);
        let exact = fastest(&requests, &mut Fleet::new(&nodes, []), 0);
        let mut fleet = Fleet::new(&nodes, []);
        let decisions = bind_all(&requests, &mut fleet);
        let ours = decisions.iter().filter(|decision| decision.outcome.is_ok());
        let ours = ours.count();
        placed += ours;
        most += exact.0;
        if ours == exact.0 {
            ours_sum += total_speed(&fleet);
            best_sum += exact.1;
        }
    }
    (
        f64::from(placed as u32) / f64::from(most as u32),
        ours_sum / best_sum,
    )
}

#[test]
fn mean_speed_without_objectives_is_within_five_percent_of_the_optimum() {
    let (count, speed) = reached("SloSlack");
    assert!(
        count >= 0.97 && speed >= 0.95,
        "{count:.3} of the replicas, {speed:.3} of the speed"
    );
    for other in ["BinPack", "Spread", "Fastest"] {
        let (_, others) = reached(other);
        assert!(speed > others, "{other}: {others:.3} of the speed");
    }
}
