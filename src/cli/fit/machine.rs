//! Which machine `rooflet fit` is about.

use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;

use crate::agent::models::ComputeType;
use crate::agent::probe::last_report;
use crate::cli::{Failure, default_data_dir, ui};
use crate::clock::Clock;
use crate::error::ExitStatus;
use crate::host::{Host, Identity};
use crate::roofline::chip;
use crate::roofline::memory::allocatable;
use crate::roofline::predict::{Basis, Hardware, MeasuredMachine};
use crate::roofline::sizing::Machine;
use crate::units::Bytes;
use crate::wire::ProbeReport;

/// A real one is a few kilobytes.
const MAX_REPORT_BYTES: u64 = 1 << 20;

/// A machine, and what was assumed about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChosenMachine {
    pub(super) machine: Machine,
    pub(super) notes: Vec<String>,
}

/// Where measured figures come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeSource {
    /// They are measured now.
    Now,
    /// What `rooflet probe -o json` printed, here or on another machine.
    File(Utf8PathBuf),
}

impl FromStr for ProbeSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "now" => Self::Now,
            file => Self::File(file.into()),
        })
    }
}

/// A chip of the catalogue. What is not said of it is assumed, and noted.
pub(super) fn of_chip(
    name: &str,
    gpu_cores: Option<u32>,
    memory: Option<Bytes>,
) -> Result<ChosenMachine, Failure> {
    let chip = chip::find(name, gpu_cores, memory).map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    let mut notes = Vec::new();
    let least = chip.memory.iter().min().copied().unwrap_or_default();
    match memory {
        None => notes.push(format!(
            "{least} of memory is assumed, the least that {} comes with; --memory chooses",
            chip.name
        )),
        Some(memory) if !chip.memory.contains(&memory) => {
            notes.push(format!("{} is not sold with {memory}", chip.name));
        }
        Some(_) => {}
    }
    let cores: Vec<u32> = chip::catalogue()
        .iter()
        .filter(|other| other.name == chip.name)
        .map(|other| other.gpu_cores)
        .collect();
    if gpu_cores.is_none() && cores.iter().any(|cores| *cores != chip.gpu_cores) {
        notes.push(format!(
            "{} GPU cores are assumed; {} comes with others, which --gpu-cores chooses",
            chip.gpu_cores, chip.name
        ));
    }
    Ok(ChosenMachine {
        machine: Machine::of_chip(chip, memory.unwrap_or(least)),
        notes,
    })
}

/// This machine, or the one that a report is of.
pub(super) fn of_probe(
    source: Option<&ProbeSource>,
    memory: Option<Bytes>,
) -> Result<ChosenMachine, Failure> {
    match source {
        None => Ok(this_machine(kept_report(), memory)),
        Some(ProbeSource::Now) => Ok(this_machine(Some(measure()?), memory)),
        Some(ProbeSource::File(path)) => {
            let report = read(path).map_err(|err| Failure::new(ExitStatus::Config, err))?;
            if is_of(&report, &Host::Native.identity(), Host::Native.memory().total) {
                return Ok(this_machine(Some(report), memory));
            }
            let hardware = MeasuredMachine::new(&report.measurements).map(Hardware::Measured);
            if hardware.is_none() {
                let err = anyhow!(
                    "`{path}` has no figures of the decode kernel: measure again with `rooflet probe`"
                );
                return Err(Failure::new(ExitStatus::Config, err));
            }
            let total = memory.unwrap_or(Bytes(report.machine.memory_bytes));
            Ok(ChosenMachine {
                machine: Machine {
                    name: report.machine.chip.name.clone(),
                    memory: total,
                    limit: allocatable(total, None),
                    limit_basis: Basis::Nominal,
                    hardware,
                    in_float32: in_float32(Some(&report)),
                },
                notes: expiry(&report).into_iter().collect(),
            })
        }
    }
}

fn this_machine(report: Option<ProbeReport>, memory: Option<Bytes>) -> ChosenMachine {
    let host = Host::Native;
    let identity = host.identity();
    let live = host.memory();
    let total = memory.unwrap_or(live.total);
    let working_set = live.working_set.filter(|_| memory.is_none());
    let chip = &identity.chip;
    let report = report.filter(|report| is_of(report, &identity, live.total));
    let measured = report.as_ref().and_then(measured);
    let mut notes = Vec::new();
    notes.extend(report.as_ref().and_then(expiry));
    let hardware = match (measured, chip::of_machine(chip, live.total)) {
        (Some(measured), _) => Some(Hardware::Measured(measured)),
        (None, Ok(chip)) => Some(Hardware::Chip(chip)),
        (None, Err(err)) => {
            notes.push(format!("{err}; `--probe now` measures how fast this machine is"));
            None
        }
    };
    let asked = memory.is_none() && (working_set.is_some() || chip.development);
    ChosenMachine {
        machine: Machine {
            name: chip.name.clone(),
            memory: total,
            limit: allocatable(total, working_set),
            limit_basis: if asked { Basis::Measured } else { Basis::Nominal },
            hardware,
            in_float32: in_float32(report.as_ref()),
        },
        notes,
    }
}

fn in_float32(report: Option<&ProbeReport>) -> bool {
    ComputeType::of_device(report.map(|report| report.engine.device.as_str())) == ComputeType::Float32
}

/// Figures of another machine or another system say nothing of this one.
fn is_of(report: &ProbeReport, identity: &Identity, memory: Bytes) -> bool {
    let machine = &report.machine;
    machine.chip.name == identity.chip.name
        && machine.memory_bytes == memory.0
        && machine.os_build == identity.os_build
}

/// What a probe measured; with a wider interval where it has expired.
fn measured(report: &ProbeReport) -> Option<MeasuredMachine> {
    let machine = MeasuredMachine::new(&report.measurements)?;
    Some(if expiry(report).is_some() {
        machine.stale()
    } else {
        machine
    })
}

fn expiry(report: &ProbeReport) -> Option<String> {
    let expires: Timestamp = report.expires_at.parse().ok()?;
    (expires < Clock::System.now()).then(|| {
        format!(
            "the machine was measured at {}, too long ago to be sure, so the interval is wider; `--probe now` measures again",
            report.measured_at
        )
    })
}

/// What this machine's agent measured last.
fn kept_report() -> Option<ProbeReport> {
    let state_dir = std::env::var("ROOFLET_STATE_DIR").ok().map(Utf8PathBuf::from);
    last_report(&state_dir.unwrap_or_else(|| default_data_dir().join("agent")))
}

fn read(path: &Utf8Path) -> anyhow::Result<ProbeReport> {
    let bytes = std::fs::metadata(path)
        .with_context(|| format!("reading `{path}`"))?
        .len();
    if bytes > MAX_REPORT_BYTES {
        return Err(anyhow!(
            "`{path}` is larger than {MAX_REPORT_BYTES} bytes; no report of a probe is"
        ));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading `{path}`"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("`{path}` is not what `rooflet probe -o json` prints"))
}

/// Measures in a child: a failure in the engine must not end the answer about memory without a word.
fn measure() -> Result<ProbeReport, Failure> {
    ui::progress("measuring this machine; it should be idle …");
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program)
        .args(["probe", "-o", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting the probe")?;
    if !output.status.success() {
        return Err(anyhow!("the probe ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout).context("reading the probe's output")?)
}

/// Every bin of every chip with every memory it is sold with, or only with `memory`.
pub(super) fn catalogue(memory: Option<Bytes>) -> Vec<Machine> {
    chip::catalogue()
        .iter()
        .flat_map(|chip| {
            let mut sizes = chip.memory.clone();
            sizes.sort_unstable();
            sizes.retain(|size| memory.is_none_or(|memory| memory == *size));
            sizes.into_iter().map(move |size| Machine::of_chip(chip, size))
        })
        .collect()
}
