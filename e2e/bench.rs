//! Benchmarks of the binary. They print the tables of docs/benchmarks.md, measured on this machine.
//!
//! `cargo bench --bench e2e` runs all benchmarks, `cargo bench --bench e2e -- overhead apiserver`
//! only these two.
#![expect(clippy::print_stdout, reason = "benchmarks print their tables")]
#![expect(clippy::disallowed_methods, reason = "benchmarks measure with the real clock")]

#[path = "bench/access.rs"]
mod access;
#[path = "bench/apiserver.rs"]
mod apiserver;
#[path = "bench/changes.rs"]
mod changes;
#[path = "bench/control.rs"]
mod control;
#[path = "bench/fit.rs"]
mod fit;
#[expect(dead_code, unused_imports, reason = "the tests use the rest of the harness")]
mod harness;
#[path = "bench/kubernetes.rs"]
mod kubernetes;
#[path = "bench/lookup.rs"]
mod lookup;
#[path = "bench/masks.rs"]
mod masks;
#[path = "bench/memory.rs"]
mod memory;
#[path = "bench/overhead.rs"]
mod overhead;
#[path = "bench/placement.rs"]
mod placement;
#[path = "bench/plan.rs"]
mod plan;
#[path = "bench/prefix.rs"]
mod prefix;
#[path = "bench/recovery.rs"]
mod recovery;
#[path = "bench/resident.rs"]
mod resident;
#[path = "bench/rival.rs"]
mod rival;
#[path = "bench/simulated.rs"]
mod simulated;
#[path = "bench/stats.rs"]
mod stats;
#[path = "bench/storm.rs"]
mod storm;
#[path = "bench/up.rs"]
mod up;

use std::time::Instant;

use sysinfo::System;

/// All benchmarks in the order of execution.
const BENCHMARKS: &[(&str, fn())] = &[
    ("up", up::run),
    ("resident", resident::run),
    ("fit", fit::run),
    ("overhead", overhead::run),
    ("access", access::run),
    ("apiserver", apiserver::run),
    ("memory", memory::run),
    ("kubernetes", kubernetes::run),
    ("control", control::run),
    ("simulated", simulated::run),
    ("storm", storm::run),
    ("plan", plan::run),
    ("placement", placement::run),
    ("policies", placement::compare),
    ("changes", changes::run),
    ("masks", masks::run),
    ("recovery", recovery::run),
    ("prefix", prefix::run),
    ("lookup", lookup::run),
    ("rival", rival::run),
];

fn main() {
    // cargo itself passes `--bench`.
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let unknown = |name: &&String| !BENCHMARKS.iter().any(|(known, _)| known == name);
    if let Some(name) = chosen.iter().find(unknown) {
        let known: Vec<&str> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        panic!("unknown benchmark `{name}`: use one of {}", known.join(", "));
    }
    println!(
        "rooflet {}, {} {}, {} logical CPUs",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        std::thread::available_parallelism().map_or(0, usize::from),
    );
    for (name, run) in BENCHMARKS {
        if !chosen.is_empty() && !chosen.iter().any(|wanted| wanted == name) {
            continue;
        }
        let (begin, before) = (Instant::now(), System::load_average().one);
        println!("\n## {name}\n");
        run();
        println!(
            "\n({:.0} s; load average {before:.1} before, {:.1} after)",
            begin.elapsed().as_secs_f64(),
            System::load_average().one
        );
    }
}
