//! Scheduler benchmarks in this process: 50,000 replicas on 10,000 Macs, then one replica at a time;
//! and policies compared with the optimum on five small fleets.

use std::time::Instant;

use rooflet::bench::{PlacementTrial, compare_policies};

use crate::stats::{Samples, head, row};

const NODES: usize = 10_000;
const REPLICAS: usize = 50_000;
/// Number of replicas that are replaced one by one afterwards.
const TURNS: usize = 5_000;

pub(crate) fn run() {
    head(&[
        "10,000 Macs, 50,000 replicas of 500 deployments",
        "adding the Macs, s",
        "placing all, s",
        "placed",
        "one decision, ms",
        "99th percentile, ms",
    ]);
    for (kind, each_unlike) in [("of 8 kinds", false), ("each with its own speeds", true)] {
        let began = Instant::now();
        let mut trial = PlacementTrial::new(NODES, REPLICAS, each_unlike);
        let adding = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let count = trial.place_all();
        let placing = began.elapsed().as_secs_f64();
        assert_eq!(count.overcommitted, 0, "no node is overcommitted");
        let single = Samples::new((0..TURNS).map(|turn| {
            let began = Instant::now();
            trial.replace_one(turn);
            began.elapsed().as_secs_f64() * 1e3
        }));
        row(&[
            kind.to_owned(),
            format!("{adding:.2}"),
            format!("{placing:.2}"),
            count.placed.to_string(),
            format!("{single:.3}"),
            format!("{:.3}", single.quantile(0.99)),
        ]);
    }
}

/// Prints the table of the policies on five fleets. The figures do not depend on this machine.
pub(crate) fn compare() {
    head(&[
        "fleet",
        "policy",
        "placed",
        "mean, tok/s",
        "10th percentile, tok/s",
        "Macs without replicas",
        "moves for one large model",
    ]);
    for result in compare_policies() {
        row(&[
            result.fleet.to_owned(),
            result.policy.to_owned(),
            format!("{}/{}", result.placed, result.replicas),
            format!("{:.1}", result.mean),
            format!("{:.1}", result.p10),
            format!("{}/{}", result.idle, result.macs),
            result
                .moves
                .map_or_else(|| "no Mac".to_owned(), |moves| moves.to_string()),
        ]);
    }
}
