//! `rooflet simulated-worker`: worker process of a simulated machine.

use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};

use crate::cli::Failure;
use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;
use rooflet_composition::shutdown;
use rooflet_composition::simulated::worker::{SimulatedWorker, serve};
use rooflet_simulation::{Scenario, machines};

/// Arguments of `rooflet simulated-worker`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Scenario file of `rooflet server --simulate`.
    #[arg(long, value_name = "FILE")]
    fleet: Utf8PathBuf,
    /// Name of the simulated machine.
    #[arg(long)]
    machine: String,
    /// File with the current slowdown of the machine.
    #[arg(long, value_name = "FILE")]
    conditions: Utf8PathBuf,
    /// Arguments of every worker, after `--`. Arguments without a meaning for a simulated worker
    /// are ignored.
    #[arg(last = true)]
    worker: Vec<String>,
}

/// Reduction of the priority. In a real fleet, workers do not share a machine with the control plane.
const NICE: i32 = 10;

pub(in crate::cli) async fn run(args: Args) -> Result<(), Failure> {
    // Without the permission, the worker runs with the normal priority.
    let _ = rustix::process::nice(NICE);
    let config = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
    let worker = worker(&args).map_err(config)?;
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    serve(worker, &tasks).await.context("serving")?;
    Ok(())
}

fn worker(args: &Args) -> anyhow::Result<SimulatedWorker> {
    let text = std::fs::read_to_string(&args.fleet).with_context(|| format!("reading {}", args.fleet))?;
    let scenario = Scenario::parse(&text).with_context(|| args.fleet.to_string())?;
    let machine = machines(&scenario)?
        .into_iter()
        .find(|machine| machine.name == args.machine)
        .ok_or_else(|| anyhow!("{}: no Mac is named `{}`", args.fleet, args.machine))?;
    let flag = |name: &str| -> anyhow::Result<&str> {
        let at = args.worker.iter().position(|word| word == name);
        let value = at.and_then(|at| args.worker.get(at + 1));
        value
            .map(String::as_str)
            .ok_or_else(|| anyhow!("{name} is missing after `--`"))
    };
    let number = |name: &str| -> anyhow::Result<u64> {
        flag(name)?
            .parse()
            .with_context(|| format!("{name} must be a number"))
    };
    let model = Utf8Path::new(flag("--model")?).file_name().unwrap_or_default();
    let kv_bits = flag("--kv-bits")
        .is_ok()
        .then(|| number("--kv-bits"))
        .transpose()?;
    let slower = scenario.slower(model);
    let model = machine
        .class
        .models
        .get(model)
        .ok_or_else(|| anyhow!("{} has no model `{model}`", args.machine))?;
    Ok(SimulatedWorker {
        socket: flag("--socket")?.into(),
        name: flag("--name")?.to_owned(),
        context_tokens: usize::try_from(number("--context-tokens")?)?,
        max_concurrency: usize::try_from(number("--max-concurrency")?)?,
        grace: Duration::from_secs(number("--grace-seconds")?),
        conditions: args.conditions.clone(),
        model: model
            .clone()
            .with_kv_bits(kv_bits.map(u32::try_from).transpose()?),
        slower,
        hardware: machine.class.hardware,
        disk_bytes_per_second: scenario.fleet.disk_bytes_per_second,
    })
}
