//! The repository's own tasks: `cargo xtask VERB`.
//!
//! Kept thin: what a user of rooflet needs belongs to the binary, not here.

mod bench_roofline;
mod chaos;
mod check_macos;
mod console;
mod faults;
mod fit_roofline;
mod generate;
mod setup;
mod simulate;
mod soak;
mod structure;
mod test;
mod up;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use crate::console::Outcome;

const USAGE: &str = "\
usage: cargo xtask VERB

  setup                 prepare what cargo cannot build by itself (MLX on Linux); quick when done before
  up [--release] [ARG]  all of it: setup, build, then `rooflet up` with the example model and one question;
                        with --exit it stops after the answer. ARGs go to `rooflet up`
  test [--only NAME]... every check, or those named
  chaos [--seeds N] [--from SEED]
                        the e2e test that kills processes at random moments, with N seeds (20) from SEED (1) on
  chaos --minutes N     kill, pause, cut off, fill the disk, change and drain for N minutes while answers are streamed
  faults [--seeds N] [--from SEED]
                        a simulated fleet in which things go wrong, with N seeds (200) from SEED (1) on
  simulate ARG...       `rooflet simulate ARG...`, optimised
  soak [--requests N]   the e2e tests that send a worker mixed, broken and abandoned requests, N (10,000) of them, for each of two models
  generate              update manifests/ and docs/reference from the code
  fit-roofline          find the predictor's constants anew from measurements; a minute
  bench-roofline [ARG]  predicted against measured decode speed on this machine; ARGs go to `rooflet bench-roofline`
  structure             check layers, import cycles, sizes and public items of the source tree
  check-macos           libclang over the Metal kernels, and clippy over the code as a Mac compiles it
";

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<ExitCode> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["setup"] => setup::run().map(|()| ExitCode::SUCCESS),
        ["generate"] => generate::run().map(|()| ExitCode::SUCCESS),
        ["fit-roofline"] => fit_roofline::run().map(|()| ExitCode::SUCCESS),
        ["up", args @ ..] => match up::run(args)? {},
        ["test", args @ ..] => test::run(&only(args)?).map(exit_code),
        ["chaos", args @ ..] => chaos::run(args).map(|outcome| report(&outcome)),
        ["faults", args @ ..] => faults::run(args).map(|outcome| report(&outcome)),
        ["simulate", args @ ..] => simulate::run(args).map(|outcome| report(&outcome)),
        ["soak", args @ ..] => soak::run(args).map(|outcome| report(&outcome)),
        ["structure"] => structure::run().map(|outcome| report(&outcome)),
        ["check-macos"] => check_macos::run().map(|outcome| report(&outcome)),
        ["bench-roofline", args @ ..] => match bench_roofline::run(args)? {},
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        [] => bail!("which task?\n\n{USAGE}"),
        [verb, ..] => bail!("`{verb}` with these arguments is no task\n\n{USAGE}"),
    }
}

/// The names in `--only NAME`, which may be repeated.
fn only<'a>(args: &[&'a str]) -> Result<Vec<&'a str>> {
    args.chunks(2)
        .map(|pair| match pair {
            ["--only", name] => Ok(*name),
            _ => bail!("`test` takes --only NAME, not `{}`\n\n{USAGE}", pair.join(" ")),
        })
        .collect()
}

fn report(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed => {}
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
        Outcome::Failed(reason) => println!("failed: {reason}"),
    }
    exit_code(!matches!(outcome, Outcome::Failed(_)))
}

fn exit_code(passed: bool) -> ExitCode {
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
