//! Machine of a `rooflet fit` query.

use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;

use crate::cli::{Failure, default_data_dir, ui};
use rooflet_agent::calibrator::{operating_system, stored};
use rooflet_agent::models::ComputeType;
use rooflet_agent::node::last_report;
use rooflet_api::v1alpha1::{Chip, PlausibilityVerdict, Probe};
use rooflet_api::wire::ProbeReport;
use rooflet_base::clock::Clock;
use rooflet_base::environment::variable;
use rooflet_base::error::ExitStatus;
use rooflet_base::units::Bytes;
use rooflet_host::{Host, Identity};
use rooflet_roofline::chip;
use rooflet_roofline::memory::allocatable;
use rooflet_roofline::predict::{Basis, Engine, Hardware, MeasuredMachine};
use rooflet_roofline::published::{disk_read, hardware_of, measured_speed};
use rooflet_roofline::sizing::Machine;

/// Maximum size of a probe report. Real reports have a few kilobytes.
const MAX_REPORT_BYTES: u64 = 1 << 20;

/// Machine with notes about assumptions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChosenMachine {
    pub(super) machine: Machine,
    pub(super) notes: Vec<String>,
}

/// Source of measured figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeSource {
    /// Measure this machine now.
    Now,
    /// Output of `rooflet probe -o json`, from this or another machine.
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

/// Returns a chip of the catalogue. Missing properties are assumed and noted.
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
            "assuming {least} of memory, the smallest size of {}; choose another size with --memory",
            chip.name
        )),
        Some(memory) if !chip.memory.contains(&memory) => {
            notes.push(format!("{} is not available with {memory}", chip.name));
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
            "assuming {} GPU cores; choose another variant of {} with --gpu-cores",
            chip.gpu_cores, chip.name
        ));
    }
    Ok(ChosenMachine {
        machine: Machine::of_chip(chip, memory.unwrap_or(least)),
        notes,
    })
}

/// Returns this machine, or the machine of a probe report.
pub(super) fn of_probe(
    source: Option<&ProbeSource>,
    memory: Option<Bytes>,
    engine: Engine,
) -> Result<ChosenMachine, Failure> {
    match source {
        None => Ok(this_machine(last_report(&state_dir()), memory, engine)),
        Some(ProbeSource::Now) => Ok(this_machine(Some(measure()?), memory, engine)),
        Some(ProbeSource::File(path)) => {
            let report = read(path).map_err(|err| Failure::new(ExitStatus::Config, err))?;
            if is_of(&report, &Host::Native.identity(), Host::Native.memory().total) {
                return Ok(this_machine(Some(report), memory, engine));
            }
            let mut notes = Vec::new();
            let hardware = speed(
                &report.machine.chip,
                Bytes(report.machine.memory_bytes),
                Some(&report),
                engine,
                &mut notes,
            );
            if engine == Engine::Mlx && MeasuredMachine::new(&report.measurements).is_none() {
                let err = anyhow!("`{path}` has no figures of the decode kernel: run `rooflet probe` again");
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
                    in_float32: in_float32(Some(&report), engine),
                    calibrations: Vec::new(),
                    disk_read: disk_read(&report.measurements),
                },
                notes,
            })
        }
    }
}

fn this_machine(report: Option<ProbeReport>, memory: Option<Bytes>, engine: Engine) -> ChosenMachine {
    let host = Host::Native;
    let identity = host.identity();
    let live = host.memory();
    let total = memory.unwrap_or(live.total);
    let working_set = live.working_set.filter(|_| memory.is_none());
    let chip = &identity.chip;
    let report = report.filter(|report| is_of(report, &identity, live.total));
    let mut notes = Vec::new();
    let hardware = speed(chip, live.total, report.as_ref(), engine, &mut notes);
    let calibrations = match (&report, hardware) {
        (Some(report), Some(hardware)) if engine == Engine::Mlx => stored(
            &state_dir(),
            &report.engine,
            &operating_system(&identity),
            hardware,
            Clock::System.now(),
        ),
        (_, _) => Vec::new(),
    };
    let is_measured = memory.is_none() && (working_set.is_some() || chip.development);
    ChosenMachine {
        machine: Machine {
            name: chip.name.clone(),
            memory: total,
            limit: allocatable(total, working_set),
            limit_basis: if is_measured {
                Basis::Measured
            } else {
                Basis::Nominal
            },
            hardware,
            in_float32: in_float32(report.as_ref(), engine),
            calibrations,
            disk_read: report.as_ref().and_then(|report| disk_read(&report.measurements)),
        },
        notes,
    }
}

/// Returns the hardware for predictions, as agent and scheduler use it. A probe measures MLX's
/// kernels, so other engines use the data sheet.
fn speed(
    chip: &Chip,
    memory: Bytes,
    report: Option<&ProbeReport>,
    engine: Engine,
    notes: &mut Vec<String>,
) -> Option<Hardware> {
    let report = report.filter(|_| engine == Engine::Mlx);
    let expired = report.and_then(expiry);
    let speed = report.map(|report| {
        measured_speed(&Probe {
            measurements: report.measurements.clone(),
            plausibility: Some(report.plausibility.clone()),
            ..Probe::default()
        })
    });
    let hardware = hardware_of(chip, Some(memory), speed.as_ref(), expired.is_some());
    let implausible = report.filter(|report| match report.plausibility.verdict {
        PlausibilityVerdict::Plausible | PlausibilityVerdict::NotJudged => false,
        PlausibilityVerdict::TooLow | PlausibilityVerdict::TooHigh => true,
    });
    notes.extend(implausible.map(|report| {
        format!(
            "the measurement is implausible, so the slower of measurement and data sheet is used: {}",
            report.plausibility.message
        )
    }));
    notes.extend(expired);
    if hardware.is_none() {
        let remedy = match engine {
            Engine::Mlx => "measure the speed of this machine with `--probe now`".to_owned(),
            Engine::LlamaCpp => format!("a probe measures MLX and does not apply to {engine}"),
        };
        notes.push(match chip::of_machine(chip, memory) {
            Err(err) => format!("{err}; {remedy}"),
            Ok(_) => remedy,
        });
    }
    hardware
}

fn in_float32(report: Option<&ProbeReport>, engine: Engine) -> bool {
    engine == Engine::Mlx
        && ComputeType::of_device(report.map(|report| report.engine.device.as_str())) == ComputeType::Float32
}

/// Returns true if a report is from the same machine and operating system build.
fn is_of(report: &ProbeReport, identity: &Identity, memory: Bytes) -> bool {
    let machine = &report.machine;
    machine.chip.name == identity.chip.name
        && machine.memory_bytes == memory.0
        && machine.os_build == identity.os_build
}

fn expiry(report: &ProbeReport) -> Option<String> {
    let expires: Timestamp = report.expires_at.parse().ok()?;
    (expires < Clock::System.now()).then(|| {
        format!(
            "the measurement of {} has expired, so the interval is wider; measure again with `--probe now`",
            report.measured_at
        )
    })
}

/// Returns the state directory of this machine's agent.
fn state_dir() -> Utf8PathBuf {
    let configured = variable("ROOFLET_STATE_DIR").map(Utf8PathBuf::from);
    configured.unwrap_or_else(|| default_data_dir().join("agent"))
}

fn read(path: &Utf8Path) -> anyhow::Result<ProbeReport> {
    let bytes = std::fs::metadata(path)
        .with_context(|| format!("reading `{path}`"))?
        .len();
    if bytes > MAX_REPORT_BYTES {
        return Err(anyhow!(
            "`{path}` is larger than {MAX_REPORT_BYTES} bytes and cannot be a probe report"
        ));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading `{path}`"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("parsing `{path}` as output of `rooflet probe -o json`"))
}

/// Runs the probe in a child process, so that a crash of the engine does not end this command.
pub(in crate::cli) fn measure() -> Result<ProbeReport, Failure> {
    ui::progress("measuring this machine; it should be idle …");
    let program = std::env::current_exe().context("determining the path of this program")?;
    let output = Command::new(program)
        .args(["probe", "-o", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting the probe")?;
    if !output.status.success() {
        return Err(anyhow!("the probe exited with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout).context("reading the probe's output")?)
}

/// Returns every variant of every chip with every memory size, or only with `memory`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{Measurements, Plausibility};
    use rooflet_api::wire::{EngineInfo, ProbedMachine};

    fn m4_pro() -> Chip {
        Chip {
            name: "Apple M4 Pro".to_owned(),
            gpu_cores: Some(20),
            ..Chip::default()
        }
    }

    fn report(gigabytes: f64, verdict: PlausibilityVerdict) -> ProbeReport {
        let mut measurements = Measurements::default();
        measurements.qmv.median_bytes_per_second = gigabytes * 1e9;
        measurements.read.median_bytes_per_second = gigabytes * 1e9;
        ProbeReport {
            engine: EngineInfo {
                name: "mlx".to_owned(),
                version: "1".to_owned(),
                device: "gpu".to_owned(),
            },
            machine: ProbedMachine::default(),
            measurements,
            plausibility: Plausibility {
                verdict,
                message: "why".to_owned(),
                ..Plausibility::default()
            },
            measured_at: "2026-01-01T00:00:00Z".to_owned(),
            expires_at: "2100-01-01T00:00:00Z".to_owned(),
        }
    }

    /// Returns whether the result is measured, its bandwidth, and the notes.
    fn judged(report: &ProbeReport, engine: Engine) -> (bool, f64, String) {
        let mut notes = Vec::new();
        let memory = Bytes::gib(24);
        let result = match speed(&m4_pro(), memory, Some(report), engine, &mut notes) {
            Some(Hardware::Measured(machine)) => (true, machine.read),
            Some(Hardware::Chip(chip)) => (false, chip.bandwidth.0),
            None => (false, 0.0),
        };
        (result.0, result.1, notes.join("; "))
    }

    #[test]
    fn measured_figures_apply_as_in_the_agent_and_only_to_mlx() {
        let plausible = report(250.0, PlausibilityVerdict::Plausible);
        assert_eq!(judged(&plausible, Engine::Mlx), (true, 250e9, String::new()));
        assert_eq!(
            judged(&plausible, Engine::LlamaCpp),
            (false, 273e9, String::new())
        );
        let (measured, bandwidth, notes) = judged(&report(100.0, PlausibilityVerdict::TooLow), Engine::Mlx);
        assert!(
            measured && bandwidth == 100e9 && notes.ends_with("why"),
            "{notes}"
        );
        let (measured, bandwidth, notes) = judged(&report(400.0, PlausibilityVerdict::TooHigh), Engine::Mlx);
        assert!(
            !measured && bandwidth == 273e9 && notes.ends_with("why"),
            "{notes}"
        );
    }

    #[test]
    fn speed_of_another_engine_is_unknown_without_data_sheet() {
        let chip = Chip {
            name: "Apple M1 (Virtual)".to_owned(),
            development: true,
            ..Chip::default()
        };
        let report = report(50.0, PlausibilityVerdict::NotJudged);
        let mut notes = Vec::new();
        assert_eq!(
            speed(&chip, Bytes::gib(8), Some(&report), Engine::LlamaCpp, &mut notes),
            None
        );
        assert!(notes[0].contains("does not apply to llama.cpp"), "{notes:?}");
        assert!(speed(&chip, Bytes::gib(8), Some(&report), Engine::Mlx, &mut notes).is_some());
    }
}
