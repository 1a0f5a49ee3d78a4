//! The repository's own tasks: `cargo xtask VERB`.
//!
//! Kept thin: what a user of rooflet needs belongs to the binary, not here.

mod console;
mod setup;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask VERB

  setup                 prepare what cargo cannot build by itself (MLX on Linux); quick when done before
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
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        [] => bail!("which task?\n\n{USAGE}"),
        [verb, ..] => bail!("`{verb}` with these arguments is no task\n\n{USAGE}"),
    }
}
