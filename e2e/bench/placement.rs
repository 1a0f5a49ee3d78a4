//! Scheduler benchmark in this process: 50,000 replicas on 10,000 Macs, then one replica at a time.

use std::time::Instant;

use rooflet::bench::PlacementTrial;

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
