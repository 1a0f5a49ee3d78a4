//! `rooflet simulate`: simulates a fleet on a virtual clock.

mod compare;
mod table;
pub(super) mod worker;

use anyhow::{Context, anyhow};
use camino::Utf8PathBuf;
use serde::Serialize;

use super::ui::output::Output;
use super::{Failure, ui};
use rooflet_base::error::ExitStatus;
use rooflet_simulation as simulation;
use rooflet_simulation::{Outcome, Policy, RunOptions, Scenario};

/// Simulate a fleet: availability, speed, dropped requests and moves.
///
/// The scenario contains Macs, models, deployments, demand and faults; see
/// examples/simulation/day.yaml and docs/simulation.md. Scheduling, rollouts, node lifecycle,
/// agents and routing use the code of a real fleet. Answers take the time that the roofline
/// predicts. The command measures nothing and changes nothing. The same scenario and seed give the
/// same output, byte for byte.
///
/// Exit code 1 if a guarantee was violated; the seed and the required faults are printed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Scenario, such as examples/simulation/day.yaml.
    #[arg(value_name = "SCENARIO")]
    scenario: Utf8PathBuf,
    /// Seed of random faults, requests and delays.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Run N seeds starting at --seed and print only whether a guarantee was violated; with
    /// --compare, compare the policies over all seeds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Placement policy (SloSlack, BinPack, Spread or Fastest for all deployments; best-fit,
    /// least-loaded or next-node: by memory only) and routing policy (round-robin, random), joined
    /// by a plus sign.
    ///
    /// The default is rooflet's own policy. Placement by memory only ignores objectives; requests
    /// are still compared with them.
    #[arg(long, default_value_t, value_name = "POLICY")]
    policy: Policy,
    /// Policies to compare with the same seeds, such as default,best-fit,best-fit+round-robin.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,POLICY",
        conflicts_with = "policy"
    )]
    compare: Vec<Policy>,
    /// Also print every write, start, end and fault.
    #[arg(long, conflicts_with = "seeds")]
    journal: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    let config = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
    let text = std::fs::read_to_string(&args.scenario)
        .with_context(|| format!("reading {}", args.scenario))
        .map_err(config)?;
    let scenario = Scenario::parse(&text)
        .with_context(|| args.scenario.to_string())
        .map_err(config)?;
    scenario
        .check_modelled()
        .with_context(|| args.scenario.to_string())
        .map_err(config)?;
    let simulate = |options: &RunOptions| {
        simulation::simulate(&scenario, options).map_err(|err| config(anyhow!("{}: {err}", args.scenario)))
    };
    let mut outcomes = Vec::new();
    if let Some(seeds) = args.seeds.filter(|_| args.compare.is_empty()) {
        return try_seeds(args, &scenario, seeds, simulate);
    }
    let policies = if args.compare.is_empty() {
        vec![args.policy]
    } else {
        args.compare.clone()
    };
    for policy in policies {
        for seed in args.seed..args.seed.saturating_add(args.seeds.unwrap_or(1)) {
            let mut options = RunOptions::new(seed, policy);
            options.journal = args.journal;
            let outcome = simulate(&options)?;
            outcomes.push(shrunk(&scenario, &options, outcome)?);
        }
    }
    print(args, &outcomes)?;
    Ok(status(&outcomes))
}

/// Result of seeds without a violated guarantee.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct SeedsTried {
    first_seed: u64,
    last_seed: u64,
    events: u64,
    faults: usize,
}

/// Runs seeds until one violates a guarantee.
fn try_seeds(
    args: &Args,
    scenario: &Scenario,
    seeds: u64,
    simulate: impl Fn(&RunOptions) -> Result<Outcome, Failure>,
) -> Result<ExitStatus, Failure> {
    let mut tried = SeedsTried {
        first_seed: args.seed,
        last_seed: args.seed.saturating_add(seeds - 1),
        events: 0,
        faults: 0,
    };
    for seed in args.seed..args.seed.saturating_add(seeds) {
        let options = RunOptions::new(seed, args.policy);
        let outcome = simulate(&options)?;
        tried.events += outcome.control.events;
        tried.faults += outcome.faults.len();
        if outcome.violation.is_some() {
            let outcomes = [shrunk(scenario, &options, outcome)?];
            print(args, &outcomes)?;
            return Ok(ExitStatus::Failure);
        }
    }
    args.output.print(&tried, || {
        let SeedsTried { first_seed, last_seed, events, faults } = tried;
        Ok(format!(
            "seeds {first_seed} to {last_seed}: no guarantee was violated in {events} events with {faults} faults\n"
        ))
    })?;
    Ok(ExitStatus::Success)
}

fn shrunk(scenario: &Scenario, options: &RunOptions, outcome: Outcome) -> Result<Outcome, Failure> {
    if outcome.violation.is_none() {
        return Ok(outcome);
    }
    ui::progress("a guarantee was violated; removing faults that are not required for it");
    simulation::shrink(scenario, options, outcome).map_err(|err| Failure::new(ExitStatus::Config, err))
}

fn status(outcomes: &[Outcome]) -> ExitStatus {
    if outcomes.iter().any(|outcome| outcome.violation.is_some()) {
        ExitStatus::Failure
    } else {
        ExitStatus::Success
    }
}

fn print(args: &Args, outcomes: &[Outcome]) -> Result<(), Failure> {
    // One run is printed as an object, several as a list.
    let value = match outcomes {
        [outcome] => serde_json::to_value(outcome)?,
        outcomes => serde_json::to_value(outcomes)?,
    };
    let holds = status(outcomes) == ExitStatus::Success;
    Ok(args
        .output
        .print(&value, || match args.seeds.is_some() && holds {
            true => Ok(compare::text(outcomes)),
            false => table::text(outcomes),
        })?)
}
