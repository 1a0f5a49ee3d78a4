//! Cost of one change in fleets of different sizes, in this process: the plans of the controllers
//! and the routing table of a gateway, without an API server.

use std::time::Instant;

use rooflet::bench::{ControlTrial, RoutingTrial};

use crate::stats::{Samples, head, milliseconds, row};

/// Numbers of Macs. Each fleet has as many deployments of 5 replicas.
const FLEETS: [usize; 3] = [100, 1_000, 10_000];
/// Number of changes, one by one.
const TURNS: usize = 1_000;

pub(crate) fn run() {
    head(&[
        "Macs",
        "replicas",
        "bound",
        "placing all, s",
        "full pass, s",
        "scale by one, ms",
        "99th percentile, ms",
        "cordon, ms",
        "99th percentile, ms",
        "routing change, ms",
        "99th percentile, ms",
    ]);
    for nodes in FLEETS {
        let mut control = ControlTrial::new(nodes);
        let began = Instant::now();
        control.full_pass();
        let placing = began.elapsed().as_secs_f64();
        // The first pass states reasons from before its last placements.
        control.full_pass();
        let began = Instant::now();
        assert_eq!(control.full_pass(), 0, "another pass writes nothing");
        let full = began.elapsed().as_secs_f64();
        let bound = control.bound();
        let scaling = Samples::new((0..TURNS).map(|turn| {
            let began = Instant::now();
            assert!(control.scale_one(turn) > 1, "the deployment is scaled");
            milliseconds(began.elapsed())
        }));
        let cordons = Samples::new((0..TURNS).map(|turn| {
            let began = Instant::now();
            control.cordon_one(turn);
            milliseconds(began.elapsed())
        }));
        let mut routing = RoutingTrial::new(nodes);
        let routes = Samples::new((0..TURNS).map(|turn| {
            let began = Instant::now();
            assert!(routing.change_one(turn), "the table changes");
            milliseconds(began.elapsed())
        }));
        row(&[
            nodes.to_string(),
            (5 * nodes).to_string(),
            bound.to_string(),
            format!("{placing:.2}"),
            format!("{full:.2}"),
            format!("{scaling:.3}"),
            format!("{:.3}", scaling.quantile(0.99)),
            format!("{cordons:.3}"),
            format!("{:.3}", cordons.quantile(0.99)),
            format!("{routes:.4}"),
            format!("{:.4}", routes.quantile(0.99)),
        ]);
    }
}
