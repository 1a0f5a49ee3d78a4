//! Checks of the machine's values that the system reports. They also check recordings.

use std::borrow::Cow;

use rooflet_base::units::Bytes;
use rooflet_host::Host;
use rooflet_host::facts::{self, Facts, MetalDevice};
use rooflet_roofline::chip::{self, MatrixUnits};

use super::check::Check;
use super::memory;

/// Oldest macOS that MLX supports.
const OLDEST_MACOS: u32 = 14;
/// Oldest family of GPUs with products of matrices in a SIMD group, that of the M1.
const OLDEST_APPLE_FAMILY: u32 = 7;

/// Remedy if Metal has no device. The driver is missing in virtual machines without a graphics
/// device, and sandboxes hide it.
pub(super) const NO_METAL_DEVICE: &str = "run `rooflet doctor` in Terminal, outside of a sandbox. In a virtual machine, add a \
                               graphics device. On a Mac, restart the machine; if the device is still missing, \
                               report it with `rooflet doctor --save FILE`";

/// Checks chip, system and memory. `has_matrix_units` is true if the engine has kernels for matrix
/// units, and `None` for a recording.
pub(super) fn checks(host: &Host, has_matrix_units: Option<bool>) -> Vec<Check> {
    let memory = host.memory();
    let mut checks = vec![chip(host, memory.total), system(host)];
    if let Some(facts) = host.facts() {
        checks.push(metal(facts, memory.total));
        checks.extend(matrix_units(host, memory.total, has_matrix_units));
        checks.extend(system_values(&facts::undecodable(facts)));
    }
    checks.extend(memory::checks(host));
    checks
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

/// Checks that all numbers of the system have a known size. Returns `None` if they have.
fn system_values(undecodable: &[(&str, usize)]) -> Option<Check> {
    let listed: Vec<_> = undecodable
        .iter()
        .map(|(name, bytes)| format!("{name} ({bytes} bytes)"))
        .collect();
    (!listed.is_empty()).then(|| {
        Check::warn(
            "system values",
            format!("rooflet cannot decode {} and ignores them", listed.join(", ")),
            "update rooflet, or report it with `rooflet doctor --save FILE`",
        )
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
    let Some(facts) = host.facts() else {
        return Check::unknown(name, format!("{machine}: not a Mac, speeds are only measured"));
    };
    if facts.sysctl("machdep.cpu.brand_string").is_none() {
        return Check::unknown(name, "the name of the chip is not reported");
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
        None => Check::unknown(name, "not reported"),
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
        return match facts.has_default_metal_device() {
            Some(_) => Check::fail(
                name,
                "the system has no Metal device: models cannot run on the GPU",
                NO_METAL_DEVICE,
            ),
            None => Check::unknown(name, "no Metal device is recorded"),
        };
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
    // MLX uses the list of all devices, too.
    let default = match facts.has_default_metal_device() {
        Some(false) => ", not the default device of this session",
        Some(true) | None => "",
    };
    // MLX uses the first device.
    let others = match devices.len() {
        1 => String::new(),
        count => format!(", the first of {count} devices"),
    };
    let families = Families::of(device);
    let finding = format!(
        "{}{}: working set {bytes}{share}{}{default}{others}",
        device.name,
        families.described(&device.architecture),
        largest.unwrap_or_default()
    );
    match families.apple {
        Some(family) if family < OLDEST_APPLE_FAMILY => Check::warn(
            name,
            format!("{finding}. The GPU does not report the matrix instructions that MLX uses"),
            "run `rooflet selftest`, which shows whether models compute correctly on this GPU",
        ),
        Some(_) | None => Check::ok(name, finding),
    }
}

/// Newest families that a GPU supports, `None` if unknown.
struct Families {
    apple: Option<u32>,
    metal: Option<u32>,
}

impl Families {
    fn of(device: &MetalDevice) -> Self {
        let newest = |kind: &str| {
            let families = device.families.iter();
            families
                .filter_map(|family| family.strip_prefix(kind)?.parse().ok())
                .max()
        };
        Self {
            apple: newest("Apple"),
            metal: newest("Metal"),
        }
    }

    /// Returns the architecture and the families in brackets, if known.
    fn described(&self, architecture: &str) -> String {
        let architecture = Some(architecture.to_owned()).filter(|name| !name.is_empty());
        let known = [
            architecture,
            self.apple.map(|family| format!("Apple{family}")),
            self.metal.map(|family| format!("Metal{family}")),
        ];
        match known.into_iter().flatten().collect::<Vec<_>>() {
            known if known.is_empty() => String::new(),
            known => format!(" ({})", known.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use crate::fixture::{host, recorded};
    use rooflet_host::facts::RecordedFacts;

    fn check_of(facts: RecordedFacts, name: &str) -> Check {
        let checks = checks(&host(facts), None);
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
        check("m1-8gb", "operating system", Status::Unknown, "not reported");
        check("m5-8-cores", "chip", Status::Warn, "figures of 10 GPU cores");
        check("virtual-machine", "chip", Status::Warn, "virtual machine");
        check("m2-air-docked", "chip", Status::Unknown, "not reported");
        check("virtual-machine", "Metal", Status::Warn, "matrix instructions");
        check("m4", "Metal", Status::Ok, "(applegpu_g16g, Apple9, Metal3)");
        check("m5", "Metal", Status::Ok, "(applegpu_g17g, Apple10, Metal4)");
        check(
            "m5-max",
            "Metal",
            Status::Ok,
            "Apple M5 Max (applegpu_g17s): working set",
        );
        check("rosetta-m3-max", "chip", Status::Warn, "Rosetta");
        check("m1-16gb", "operating system", Status::Fail, "MLX needs macOS 14");
        check("m2-pro", "Metal", Status::Unknown, "no Metal device is recorded");
        check("m5", "matrix units", Status::Ok, "the GPU has them");
    }

    #[test]
    fn device_of_a_session_without_a_default_device_is_used() {
        let mut facts = recorded("m4");
        facts.default_metal_device = Some(false);
        let check = check_of(facts, "Metal");
        assert!(
            check.status == Status::Ok && check.finding.contains("not the default device"),
            "{check:?}"
        );
    }

    #[test]
    fn a_system_without_metal_device_fails_with_a_remedy() {
        let mut facts = recorded("m2-pro");
        facts.default_metal_device = Some(false);
        let check = check_of(facts, "Metal");
        let remedy = check.remedy.as_deref().unwrap();
        assert!(
            check.status == Status::Fail && remedy.contains("virtual machine") && remedy.contains("restart"),
            "{check:?}"
        );
    }

    #[test]
    fn numbers_of_unknown_size_are_named() {
        assert!(system_values(&[]).is_none());
        let check = system_values(&[("iogpu.wired_limit_mb", 2)]).unwrap();
        assert!(
            check.status == Status::Warn && check.finding.contains("iogpu.wired_limit_mb (2 bytes)"),
            "{check:?}"
        );
    }

    #[test]
    fn further_devices_are_counted() {
        let mut facts = recorded("m4");
        facts.metal.push(facts.metal[0].clone());
        let check = check_of(facts, "Metal");
        assert!(check.finding.ends_with("the first of 2 devices"), "{check:?}");
    }

    #[test]
    fn matrix_units_depend_on_the_build() {
        let status = |machine, is_built| {
            let checks = checks(&host(recorded(machine)), is_built);
            checks
                .into_iter()
                .find(|check| check.name == "matrix units")
                .map(|check| check.status)
        };
        assert_eq!(status("m5-max", Some(true)), Some(Status::Ok));
        assert_eq!(status("m5-max", Some(false)), Some(Status::Warn));
        assert_eq!(status("m4", Some(false)), None, "the chip has none");
    }
}
