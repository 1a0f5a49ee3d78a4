//! The command line: one file per verb, each with its arguments and a `run`.

mod crd;
mod ui;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::ExitStatus;
use crate::telemetry::{self, LogFormat};

/// Declarative node agent and control plane for fleets of Macs that serve language models.
#[derive(Debug, Parser)]
#[command(
    name = "rooflet",
    version,
    arg_required_else_help = true,
    subcommand_required = true
)]
struct Cli {
    /// How log lines look. What is logged is set by ROOFLET_LOG, such as `info` or `rooflet=debug`.
    #[arg(long, global = true, value_enum, default_value_t, env = "ROOFLET_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    Crd(crd::Args),
    /// Print the version.
    Version(version::Args),
}

/// A failed command: what to tell the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: ExitStatus,
    pub(crate) error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            status: ExitStatus::Failure,
            error: error.into(),
        }
    }
}

impl Failure {
    pub(crate) fn new(status: ExitStatus, error: impl Into<anyhow::Error>) -> Self {
        Self {
            status,
            error: error.into(),
        }
    }
}

/// Runs the command line `args` (the program's name first) to its end.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(err) => {
            let wrong = err.use_stderr();
            drop(err.print());
            return if wrong {
                ExitCode::from(ExitStatus::Usage as u8)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    telemetry::init(cli.log_format, "info");
    let outcome = match cli.command {
        Command::Crd(args) => crd::run(&args),
        Command::Version(args) => version::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            ui::error(&failure.error);
            ExitCode::from(failure.status as u8)
        }
    }
}
