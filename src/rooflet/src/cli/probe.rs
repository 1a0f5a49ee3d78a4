//! `rooflet probe`: measures this machine through the engine and assesses the figures.

mod picture;
mod roofline;
mod svg;
mod table;

use std::fs;
use std::time::Duration;

use anyhow::Context;
use camino::Utf8PathBuf;
use kube::Api;
use serde_json::json;

use self::roofline::Roofline;
use super::nodes::cordon;
use super::ui::output::Output;
use super::{Failure, objects, ui};
use rooflet_api::meta::PROBE_ANNOTATION;
use rooflet_api::v1alpha1::{DiskFigure, FleetNode};
use rooflet_api::wire::{ProbeReport, ProbedMachine};
use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_host::disk;
use rooflet_host::disk::{DiskRead, DiskReadError};
use rooflet_host::{Host, Identity, Memory};
use rooflet_mlx::probe;
use rooflet_mlx::probe::ProbeOptions;
use rooflet_roofline::chip;
use rooflet_roofline::probing;
use rooflet_roofline::probing::{DataSheet, PROBE_FRESH_FOR};

/// Arguments of `rooflet probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Repeat the 4-bit products for this time to measure the sustained speed. 2m is enough.
    #[arg(long, value_name = "DURATION", value_parser = super::sustained_seconds, allow_negative_numbers = true)]
    sustained: Option<u64>,
    /// Also measure the read speed of this file, or of the largest file below this directory,
    /// bypassing the page cache.
    #[arg(long, value_name = "FILE|DIR")]
    disk: Option<Utf8PathBuf>,
    /// Also write the roofline as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<Utf8PathBuf>,
    /// Request a measurement of this node instead. Its agent measures when no worker runs.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["output", "sustained", "disk", "svg"])]
    pub(super) node: Option<String>,
    /// Kubeconfig of the API server, for --node. Default: the kubeconfig of kubectl, otherwise that
    /// of `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", requires = "node")]
    pub(super) kubeconfig: Option<Utf8PathBuf>,
}

/// Requests a measurement of a node.
pub(crate) async fn request(node: &str, kubeconfig: Option<Utf8PathBuf>) -> Result<(), Failure> {
    let nodes: Api<FleetNode> = Api::all(objects::client(kubeconfig).await?);
    cordon::node(&nodes, node).await?;
    let now = Clock::System.now();
    let wanted = json!({"metadata": {"annotations": {PROBE_ANNOTATION: now.to_string()}}});
    cordon::patch(&nodes, node, &wanted).await?;
    ui::output(&format!(
        "fleetnode.rooflet.dev/{node} probe requested; the agent measures when no worker runs\n"
    ));
    Ok(())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // An invalid path must fail before the measurement.
    if let Some(path) = &args.svg {
        // Opening in append mode keeps the previous contents until the new drawing is complete.
        let appending = fs::File::options().create(true).append(true).open(path);
        appending.with_context(|| format!("--svg: writing `{path}`"))?;
    }
    let report = measure(args, &Host::Native, &Clock::System)?;
    let roofline = Roofline::new(&report.measurements);
    args.output.print(&report, || {
        let picture = roofline.as_ref().map(picture::draw).unwrap_or_default();
        Ok(format!("{}\n{picture}", table::render(&report)))
    })?;
    if let (Some(path), Some(roofline)) = (&args.svg, &roofline) {
        let (title, subtitle) = table::titles(&report);
        let drawn = svg::draw(roofline, &title, &subtitle);
        fs::write(path, drawn).with_context(|| format!("--svg: writing `{path}`"))?;
    }
    Ok(())
}

fn measure(args: &Args, host: &Host, clock: &Clock) -> Result<ProbeReport, Failure> {
    // The disk comes first: an invalid path must fail before the measurement.
    let disk_read = match &args.disk {
        None => None,
        Some(path) => disk_figure(disk::read(path, clock))?,
    };
    let identity = host.identity();
    let memory = host.memory();
    let load = host.load();
    let options = ProbeOptions {
        memory: usable(memory),
        sustained: args.sustained.map(Duration::from_secs),
    };
    let prints_table = args.output == Output::Table;
    let (engine, mut measurements) = probe::measure(options, clock, |what| {
        if prints_table {
            ui::progress(what);
        }
    })?;
    let power = host.power();
    measurements.disk_read = disk_read;
    measurements.thermal_state = power.thermal_state;
    measurements.power_source = power.source;
    measurements.low_power_mode = power.low_power_mode;
    measurements.cpu_load = load.cpu;
    measurements.gpu_use = load.gpu;
    let read = BytesPerSecond(measurements.read.median_bytes_per_second);
    let sheet = chip::of_machine(&identity.chip, memory.total);
    let plausibility = match &sheet {
        Ok(chip) => probing::plausibility(read, DataSheet::Bandwidth(chip.bandwidth)),
        Err(err) => probing::plausibility(read, DataSheet::Missing(&err.to_string())),
    };
    // Whole seconds are sufficient.
    let now = clock.now();
    let now = now.round(jiff::Unit::Second).unwrap_or(now);
    Ok(ProbeReport {
        engine,
        machine: machine(identity, memory, sheet.ok().map(|chip| chip.bandwidth)),
        measurements,
        plausibility,
        measured_at: now.to_string(),
        expires_at: (now + PROBE_FRESH_FOR).to_string(),
    })
}

/// Returns the free memory that the GPU may use.
fn usable(memory: Memory) -> Bytes {
    memory
        .working_set
        .map_or(memory.available, |limit| limit.min(memory.available))
}

fn machine(identity: Identity, memory: Memory, spec: Option<BytesPerSecond>) -> ProbedMachine {
    ProbedMachine {
        chip: identity.chip,
        memory_bytes: memory.total.0,
        operating_system: identity.operating_system,
        os_build: identity.os_build,
        spec_bytes_per_second: spec.map(|spec| spec.0),
    }
}

/// Returns the disk figure. `None` if the directory has no file to read: this is reported, and the
/// remaining measurements run.
fn disk_figure(read: Result<DiskRead, DiskReadError>) -> Result<Option<DiskFigure>, Failure> {
    let read = match read {
        Ok(read) => read,
        Err(err @ (DiskReadError::NoFile { .. } | DiskReadError::Largest { .. })) => {
            ui::progress(&format!("disk: not measured: {}", Chain(&err)));
            return Ok(None);
        }
        Err(err @ (DiskReadError::Read { .. } | DiskReadError::TooSmall { .. })) => {
            return Err(Failure::new(
                ExitStatus::Config,
                anyhow::anyhow!("--disk: {}", Chain(&err)),
            ));
        }
    };
    let seconds = probing::spread(read.seconds.clone());
    Ok(Some(DiskFigure {
        path: read.path.to_string(),
        figure: probing::figure(
            &probing::rate(read.chunk_bytes as f64, &seconds),
            read.chunk_bytes,
            read.seconds.len(),
        ),
        past_cache: read.past_cache,
    }))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn invalid_seconds_are_rejected_with_the_valid_range() {
        use clap::Parser;
        for seconds in ["-3", "0", "3601", "1.5", "long"] {
            let line = Line::try_parse_from(["rooflet", "--sustained", seconds]);
            let message = line.err().unwrap().to_string();
            assert!(
                message.contains("--sustained") && message.contains("from 1 to 3600"),
                "{message}"
            );
        }
        for seconds in ["3600", "1h", "60m"] {
            let line = Line::try_parse_from(["rooflet", "--sustained", seconds]).unwrap();
            assert_eq!(line.args.sustained, Some(3600));
        }
    }

    #[test]
    fn directory_without_readable_file_does_not_stop_the_probe() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let path = Utf8PathBuf::from("/models/a/model.safetensors");
        let largest = DiskReadError::Largest {
            path: path.clone(),
            err: denied(),
        };
        assert_eq!(disk_figure(Err(largest)).ok(), Some(None));
        // An explicit file must be readable.
        let named = DiskReadError::Read { path, err: denied() };
        assert!(disk_figure(Err(named)).is_err());
    }
}
