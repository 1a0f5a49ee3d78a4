//! `rooflet fit`: whether a model fits a machine, and how fast it would be.

mod cases;

use camino::Utf8PathBuf;

use super::Failure;

/// Tell whether a model fits a machine, and how fast it would be there.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Predict every row of a CSV file of measurements, and print the rows with the predictions added.
    #[arg(long, value_name = "FILE.csv", requires = "shapes")]
    cases: Utf8PathBuf,
    /// Model dimensions for --cases, by name.
    #[arg(long, value_name = "FILE.json")]
    shapes: Utf8PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    cases::run(&args.cases, &args.shapes)
}
