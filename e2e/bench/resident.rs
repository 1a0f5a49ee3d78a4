//! Resident memory and CPU time of each process of `rooflet up` while idle.

use std::path::Path;
use std::time::Duration;

use sysinfo::{Pid, ProcessesToUpdate, System};

use crate::harness::{Fleet, Options, descendants, processes_with, repository};
use crate::stats::{head, row};

/// Time for the processes to release memory of their start, and duration of the idle measurement.
const SETTLE: Duration = Duration::from_secs(30);

pub(crate) fn run() {
    let fleet = Fleet::with(Options {
        args: vec![format!("--apply={}", repository("examples/guide.yaml").display())],
        ..Options::default()
    });
    fleet.gateway.chat("guide", "What is rooflet?");
    std::thread::sleep(SETTLE);
    head(&["process", "RSS, MiB", "CPU while idle, %"]);
    let mut processes = vec![("up", fleet.up.pid())];
    for verb in ["server", "gateway", "agent", "worker"] {
        let pids = fleet.processes(verb);
        assert_eq!(pids.len(), 1, "one {verb}: {pids:?}");
        processes.push((verb, pids[0]));
    }
    let before: Vec<Usage> = processes.iter().map(|(_, pid)| Usage::of(*pid)).collect();
    std::thread::sleep(SETTLE);
    for ((verb, pid), before) in processes.into_iter().zip(before) {
        let after = Usage::of(pid);
        let busy = (after.cpu - before.cpu).as_secs_f64() / SETTLE.as_secs_f64();
        row(&[
            format!("`rooflet {verb}`"),
            format!("{:.1}", after.resident_bytes as f64 / f64::from(1 << 20)),
            format!("{:.2}", busy * 100.0),
        ]);
    }
    let binary = std::fs::metadata(Path::new(crate::harness::rooflet())).expect("the binary");
    println!("\nThe binary: {} MiB, debug lines included.", binary.len() >> 20);
}

/// Resource usage of a process.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) resident_bytes: u64,
    pub(crate) cpu: Duration,
}

impl Usage {
    /// Returns the sum over a process and its children, and over those children that are simulated workers.
    pub(crate) fn with_simulated_workers(pid: u32) -> (Self, Self) {
        let workers = processes_with(&[" simulated-worker "]);
        let mut sums = (Self::of(pid), Self::default());
        for child in descendants(pid) {
            let usage = Self::of(child);
            let sum = match workers.contains(&child) {
                true => &mut sums.1,
                false => &mut sums.0,
            };
            sum.resident_bytes += usage.resident_bytes;
            sum.cpu += usage.cpu;
        }
        sums
    }

    pub(crate) fn of(pid: u32) -> Self {
        let mut system = System::new();
        let pid = Pid::from_u32(pid);
        system.refresh_processes(ProcessesToUpdate::Some(&[pid]), true);
        let process = system.process(pid).expect("the process runs");
        Self {
            resident_bytes: process.memory(),
            cpu: Duration::from_millis(process.accumulated_cpu_time()),
        }
    }
}
