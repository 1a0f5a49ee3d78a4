//! Checks of the machine's values that the system reports. They also check recordings.

use std::borrow::Cow;

use rooflet_api::v1alpha1::{PowerSource, ThermalState};
use rooflet_base::units::Bytes;
use rooflet_host::facts::Facts;
use rooflet_host::{Host, Memory, MemoryLevel, Power};
use rooflet_roofline::chip::{self, MatrixUnits};

use super::check::Check;

/// Oldest macOS that MLX supports.
const OLDEST_MACOS: u32 = 14;
/// Share of the memory in percent above which a GPU limit leaves too little for the system.
const MAX_GPU_SHARE: u64 = 92;

/// Checks chip, system and memory. `has_matrix_units` is true if the engine has kernels for matrix
/// units, and `None` for a recording.
pub(super) fn checks(host: &Host, has_matrix_units: Option<bool>) -> Vec<Check> {
    let memory = host.memory();
    let mut checks = vec![chip(host, memory.total), system(host)];
    if let Some(facts) = host.facts() {
        checks.push(metal(facts, memory.total));
        checks.extend(matrix_units(host, memory.total, has_matrix_units));
        checks.push(gpu_limit(&memory));
    }
    checks.push(available_memory(&memory));
    checks
}

/// Checks heat and power supply. Only Macs report them.
pub(super) fn power_checks(host: &Host) -> Vec<Check> {
    if host.facts().is_none() {
        return Vec::new();
    }
    let power = host.power();
    vec![
        heat("heat", &power),
        power_supply(&power),
        power_mode(&power),
        lid(host),
    ]
}

/// Checks the heat after the measurements, which load the GPU.
pub(super) fn heat_after_load(host: &Host) -> Option<Check> {
    host.facts()
        .is_some()
        .then(|| heat("heat after load", &host.power()))
}

/// Returns `None` if the chip has no matrix units.
fn matrix_units(host: &Host, memory: Bytes, is_built: Option<bool>) -> Option<Check> {
    let name = "matrix units";
    let identity = host.identity();
    let chip = chip::of_machine(&identity.chip, memory).ok()?;
    let units = MatrixUnits::of(&chip, &identity.operating_system, is_built.unwrap_or(true))?;
    Some(match (units.remedy(), is_built) {
        (Some(remedy), _) => Check::warn(name, units.to_string(), remedy),
        (None, Some(_)) => Check::ok(name, units.to_string()),
        (None, None) => Check::ok(
            name,
            "the GPU has them; whether models use them depends on the build of rooflet",
        ),
    })
}

fn chip(host: &Host, memory: Bytes) -> Check {
    let name = "chip";
    let chip = host.identity().chip;
    let cores = chip.gpu_cores.map(|cores| format!(", {cores} GPU cores"));
    let size = match memory {
        Bytes::ZERO => String::new(),
        memory => format!(", {memory}"),
    };
    let machine = format!("{}{}{size}", chip.name, cores.unwrap_or_default());
    if host.facts().is_none() {
        return Check::unknown(name, format!("{machine}: not a Mac, speeds are only measured"));
    }
    match chip::of_machine(&chip, memory) {
        // The nearest entry of the catalogue, adapted to the machine.
        Ok(Cow::Owned(sheet)) => Check::warn(
            name,
            format!("{machine}: {}. A measurement replaces them", sheet.note),
            None,
        ),
        Ok(Cow::Borrowed(sheet)) => {
            Check::ok(name, format!("{machine}, {} by its data sheet", sheet.bandwidth))
        }
        Err(err @ chip::NoDataSheet::Development { .. }) => Check::warn(
            name,
            err.to_string(),
            "use the arm64 build of rooflet on the Mac itself. Figures of a virtual machine do not apply to a Mac",
        ),
        Err(err @ chip::NoDataSheet::Unknown(_)) => Check::warn(
            name,
            format!("{machine}: {err}"),
            "update rooflet, or report the chip with `rooflet doctor --save FILE`",
        ),
    }
}

fn system(host: &Host) -> Check {
    let name = "operating system";
    let identity = host.identity();
    let (system, build) = (identity.operating_system, identity.os_build);
    let finding = match build.is_empty() {
        true => system.clone(),
        false => format!("{system} ({build})"),
    };
    if host.facts().is_none() {
        return Check::ok(name, finding);
    }
    let version = system.strip_prefix("macOS ").unwrap_or_default();
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    match major {
        None => Check::unknown(name, finding),
        Some(major) if major < OLDEST_MACOS => Check::fail(
            name,
            format!("{finding}: MLX needs macOS {OLDEST_MACOS} or newer"),
            "update macOS",
        ),
        Some(_) => Check::ok(name, finding),
    }
}

fn metal(facts: &dyn Facts, memory: Bytes) -> Check {
    let name = "Metal";
    let devices = facts.metal_devices();
    let Some(device) = devices.first() else {
        return Check::unknown(name, "no Metal device is reported: models cannot run on the GPU");
    };
    let bytes = Bytes(device.recommended_max_working_set_size);
    let share = match memory {
        Bytes::ZERO => String::new(),
        memory => format!(
            " ({:.0} % of the memory)",
            100.0 * bytes.0 as f64 / memory.0 as f64
        ),
    };
    let largest = device
        .max_buffer_length
        .map(|bytes| format!(", buffers of up to {}", Bytes(bytes)));
    let architecture = match device.architecture.as_str() {
        "" => String::new(),
        architecture => format!(" ({architecture})"),
    };
    Check::ok(
        name,
        format!(
            "{}{architecture}: working set {bytes}{share}{}",
            device.name,
            largest.unwrap_or_default()
        ),
    )
}

fn gpu_limit(memory: &Memory) -> Check {
    let name = "GPU memory";
    let Some(limit) = memory.working_set else {
        return Check::unknown(
            name,
            "the limit is not reported: rooflet uses two thirds of the memory, or three quarters on large Macs",
        );
    };
    let finding = format!("up to {limit} of {}", memory.total);
    match memory.total != Bytes::ZERO && limit.0 > memory.total.0 / 100 * MAX_GPU_SHARE {
        true => Check::warn(
            name,
            format!("{finding}: too little is left for macOS and other programs"),
            "lower the sysctl iogpu.wired_limit_mb",
        ),
        false => Check::ok(name, finding),
    }
}

fn available_memory(memory: &Memory) -> Check {
    let name = "memory";
    let is_reported = memory.total != Bytes::ZERO && memory.obtainable() != Bytes::ZERO;
    let compressible = match memory.compressible {
        Bytes::ZERO => String::new(),
        bytes => format!(", {bytes} more by compression"),
    };
    let finding = match is_reported {
        true => format!("{} of {} available{compressible}", memory.available, memory.total),
        false => "not reported".to_owned(),
    };
    let remedy = "close other programs, or serve smaller models";
    match memory.level {
        Some(MemoryLevel::Critical) => Check::fail(
            name,
            format!("{finding}; the system reports critical memory pressure"),
            remedy,
        ),
        Some(MemoryLevel::Low) => Check::warn(
            name,
            format!("{finding}; the system reports a memory warning: no model starts"),
            remedy,
        ),
        Some(MemoryLevel::Normal) | None if is_reported => Check::ok(name, finding),
        Some(MemoryLevel::Normal) | None => Check::unknown(name, finding),
    }
}

fn heat(name: &str, power: &Power) -> Check {
    match power.thermal_state {
        ThermalState::Nominal => Check::ok(name, "nominal"),
        ThermalState::Fair => Check::ok(name, "fair: fans run faster"),
        ThermalState::Serious | ThermalState::Critical => Check::warn(
            name,
            "the system reduces performance: measurements are too low, and no new model starts",
            "let the machine cool down, and improve its ventilation",
        ),
        ThermalState::Unknown => Check::unknown(name, "not reported"),
    }
}

fn power_supply(power: &Power) -> Check {
    let name = "power supply";
    match power.source {
        PowerSource::Ac => Check::ok(name, "AC power"),
        PowerSource::Ups => Check::ok(name, "uninterruptible power supply"),
        PowerSource::Battery => Check::warn(
            name,
            "battery: models prefer other nodes",
            "connect the power supply, or tolerate rooflet.dev/on-battery",
        ),
        PowerSource::Unknown => Check::unknown(name, "not reported"),
    }
}

fn power_mode(power: &Power) -> Check {
    let name = "low power mode";
    match power.low_power_mode {
        Some(true) => Check::warn(
            name,
            "on: the machine computes slower, and its measurement in normal mode does not apply",
            "switch it off in the system settings, under Battery or Energy",
        ),
        Some(false) => Check::ok(name, "off"),
        None => Check::unknown(name, "not reported"),
    }
}

fn lid(host: &Host) -> Check {
    let name = "lid";
    match host.presence().lid_closed {
        Some(true) => Check::warn(
            name,
            "closed, which puts the machine to sleep",
            "open the lid, or connect an external display and power",
        ),
        Some(false) => Check::ok(name, "open, or closed with an external display and power"),
        None => Check::unknown(name, "not reported"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::cli::doctor::check::Status;
    use rooflet_host::facts::RecordedFacts;

    fn recorded(name: &str) -> RecordedFacts {
        let path = format!(
            "{}/../host/fixtures/facts/{name}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        RecordedFacts::parse(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn check_of(facts: RecordedFacts, name: &str) -> Check {
        let host = Host::Recorded(Arc::new(facts));
        let checks = checks(&host, None).into_iter().chain(power_checks(&host));
        checks.into_iter().find(|check| check.name == name).unwrap()
    }

    #[track_caller]
    fn check(machine: &str, name: &str, status: Status, finding: &str) {
        let found = check_of(recorded(machine), name);
        assert_eq!(found.status, status, "{found:?}");
        assert!(found.finding.contains(finding), "{found:?}");
    }

    #[test]
    fn published_macs_are_judged() {
        check(
            "m4",
            "chip",
            Status::Ok,
            "Apple M4, 10 GPU cores, 24.0 GiB, 120 GB/s",
        );
        check("m4", "operating system", Status::Ok, "macOS 26.5 (25F71)");
        check("m5-8-cores", "chip", Status::Warn, "figures of 10 GPU cores");
        check("virtual-machine", "chip", Status::Warn, "virtual machine");
        check("virtual-machine", "Metal", Status::Ok, "Apple Paravirtual device");
        check("rosetta-m3-max", "chip", Status::Warn, "Rosetta");
        check("m1-16gb", "operating system", Status::Fail, "MLX needs macOS 14");
        check(
            "m1-max-wired-limit",
            "GPU memory",
            Status::Ok,
            "25.4 GiB of 32.0 GiB",
        );
        check("pressure-48gb", "memory", Status::Warn, "memory warning");
        check("m2-air-docked", "lid", Status::Ok, "");
        check("m2-air-docked", "power supply", Status::Ok, "AC power");
        check("m2-pro", "Metal", Status::Unknown, "no Metal device");
        check("m5", "matrix units", Status::Ok, "the GPU has them");
    }

    #[test]
    fn matrix_units_depend_on_the_build() {
        let status = |machine, is_built| {
            let host = Host::Recorded(Arc::new(recorded(machine)));
            let checks = checks(&host, is_built);
            checks
                .into_iter()
                .find(|check| check.name == "matrix units")
                .map(|check| check.status)
        };
        assert_eq!(status("m5-max", Some(true)), Some(Status::Ok));
        assert_eq!(status("m5-max", Some(false)), Some(Status::Warn));
        assert_eq!(status("m4", Some(false)), None, "the chip has none");
    }

    #[test]
    fn a_limit_that_leaves_too_little_is_found() {
        let mut facts = recorded("m1-max-wired-limit");
        let raised = serde_json::from_str(r#"{"iogpu.wired_limit_mb": 31744}"#);
        let raised: std::collections::BTreeMap<_, _> = raised.unwrap();
        facts.sysctl.extend(raised);
        assert_eq!(check_of(facts, "GPU memory").status, Status::Warn);
    }

    #[test]
    fn a_laptop_on_battery_in_low_power_mode_gets_warnings() {
        let facts = RecordedFacts::parse(
            r#"{"powerSource": "Battery Power", "processInfo": {"thermalState": 0, "lowPowerMode": true},
                "notify": {"com.apple.system.thermalpressurelevel": 2}}"#,
        );
        let facts = facts.unwrap();
        for name in ["power supply", "low power mode", "heat"] {
            let found = check_of(facts.clone(), name);
            assert!(
                found.status == Status::Warn && found.remedy.is_some(),
                "{found:?}"
            );
        }
    }
}
