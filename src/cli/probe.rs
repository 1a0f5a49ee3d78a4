//! `rooflet probe`

use super::{Failure, ui};
use crate::clock::Clock;
use crate::mlx::probe;
use crate::units::{Bytes, BytesPerSecond};
use crate::wire::{ProbeFigure, ProbeReport};
use crate::yaml;

/// Arguments of `rooflet probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How the figures are printed.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
    Yaml,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let report = probe::measure(&Clock::System)?;
    ui::output(&match args.output {
        Output::Json => serde_json::to_string_pretty(&report)? + "\n",
        Output::Yaml => yaml::to_string(&report)?,
        Output::Table => table(&report),
    });
    Ok(())
}

fn table(report: &ProbeReport) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["KERNEL", "MEDIAN", "P10", "P90", "SAMPLES", "BUFFERS"]);
    for (name, figure) in [("read", &report.read), ("qmv", &report.qmv)] {
        table.add_row(row(name, figure));
    }
    let engine = &report.engine;
    format!(
        "{} {} ({}), measured {}\n{table}\n",
        engine.name, engine.version, engine.device, report.measured_at
    )
}

fn row(name: &str, figure: &ProbeFigure) -> [String; 6] {
    let rate = |bytes_per_second| BytesPerSecond(bytes_per_second).to_string();
    [
        name.to_owned(),
        rate(figure.median_bytes_per_second),
        rate(figure.p10_bytes_per_second),
        rate(figure.p90_bytes_per_second),
        figure.samples.to_string(),
        format!("{} x {}", figure.buffers, Bytes(figure.buffer_bytes)),
    ]
}
