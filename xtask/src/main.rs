//! Tasks of the repository: `cargo xtask VERB`.
//!
//! These tasks are for developers. Features for users of rooflet belong to the binary.

mod bench_apiserver;
mod bench_roofline;
mod browser;
mod chaos;
mod check_chart;
mod check_macos;
mod console;
mod faults;
mod fit_roofline;
mod fuzz;
mod generate;
mod image;
mod libtest;
mod monitoring;
mod setup;
mod simulate;
mod soak;
mod structure;
mod test;
mod test_kubernetes;
mod up;
mod web;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use crate::{console::Outcome, test::Selection};

const USAGE: &str = "\
usage: cargo xtask VERB

  setup                 prepare MLX on Linux; takes seconds if it is already prepared
  up [--release] [ARG]  run setup, build, and `rooflet up` with the example model and one question;
                        --exit stops after the answer. ARGs are passed to `rooflet up`
  test [--all | --only NAME...]
                        run the checks; --all includes the slow ones, --only selects by name
  test-kubernetes       run the tests on a real kube-apiserver; the first run builds it with Go (10 minutes)
  chaos [--seeds N] [--from SEED]
                        kill random processes in the e2e test, with N seeds (20) starting at SEED (1)
  chaos --minutes N     apply all faults for N minutes while clients stream answers
  faults [--seeds N] [--from SEED]
                        simulate a fleet with random faults, with N seeds (200) starting at SEED (1)
  fuzz [--seconds N] [--target NAME] [--case TARGET:NUMBER]
                        run parsers, patches and CEL rules of the API server with random input for N (30) seconds
  simulate ARG...       run `rooflet simulate ARG...` in an optimised build
  soak [--requests N]   send N (10,000) mixed, invalid and aborted requests to a worker, for each of two models
  monitoring            check alert rules and dashboards with a real Prometheus; the first run builds it with
                        Go (5 minutes)
  generate              update manifests/ and docs/reference from the code
  fit-roofline          fit the predictor's constants to the measurements; takes five minutes
  bench-apiserver       compare the API server with kube-apiserver and etcd in a release build; takes 15 minutes
  bench-roofline [ARG]  compare predicted and measured decode speed on this machine; ARGs are passed to
                        `rooflet bench-roofline`
  structure             check layers, import cycles, sizes and public items of the source tree
  web [--check]         build the web page with Node; --check runs its tests and fails if the committed files
                        are stale
  browser               walk every view and action of the web page in Chromium, against the real binary with
                        simulated Macs
  image                 build the file tree of the control plane's image; see manifests/Containerfile
  check-macos           compile the Metal kernels with libclang, and lint the code for macOS with clippy
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
        ["test", args @ ..] => test::run(&selection(args)?).map(exit_code),
        ["test-kubernetes"] => test_kubernetes::run().map(|outcome| report(&outcome)),
        ["chaos", args @ ..] => chaos::run(args).map(|outcome| report(&outcome)),
        ["fuzz", args @ ..] => fuzz::run(args).map(|outcome| report(&outcome)),
        ["faults", args @ ..] => faults::run(args).map(|outcome| report(&outcome)),
        ["simulate", args @ ..] => simulate::run(args).map(|outcome| report(&outcome)),
        ["soak", args @ ..] => soak::run(args).map(|outcome| report(&outcome)),
        ["monitoring"] => monitoring::run().map(|outcome| report(&outcome)),
        ["web"] => web::build().map(|outcome| report(&outcome)),
        ["web", "--check"] => web::check().map(|outcome| report(&outcome)),
        ["browser"] => browser::run().map(|outcome| report(&outcome)),
        ["image"] => image::run().map(|outcome| report(&outcome)),
        ["structure"] => structure::run().map(|outcome| report(&outcome)),
        ["check-macos"] => check_macos::run().map(|outcome| report(&outcome)),
        ["bench-apiserver"] => bench_apiserver::run().map(|outcome| report(&outcome)),
        ["bench-roofline", args @ ..] => match bench_roofline::run(args)? {},
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        [] => bail!("a verb is missing\n\n{USAGE}"),
        [verb, ..] => bail!("unknown verb `{verb}`, or invalid arguments\n\n{USAGE}"),
    }
}

/// Returns the checks that the arguments select. `--only NAME` may be repeated.
fn selection<'a>(args: &[&'a str]) -> Result<Selection<'a>> {
    match args {
        [] => return Ok(Selection::Standard),
        ["--all"] => return Ok(Selection::All),
        _ => {}
    }
    let names = args.chunks(2).map(|pair| match pair {
        ["--only", name] => Ok(*name),
        _ => bail!(
            "`test` accepts `--all` or `--only NAME`, not `{}`\n\n{USAGE}",
            pair.join(" ")
        ),
    });
    names.collect::<Result<_>>().map(Selection::Named)
}

fn report(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed => {}
        Outcome::Unsteady(reason) => println!("{reason}"),
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
