//! Derivation of the values that rooflet uses from a Mac's [`Facts`]. Pure: one function per value,
//! for the running system and for recordings alike.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use rooflet_api::v1alpha1::{Chip, PowerSource, ThermalState};
use rooflet_base::units::Bytes;
use rooflet_roofline::chip::MachineKind;

use crate::facts::{BOOT_TIME, Facts, RegistryValue, SWAP_USAGE, THERMAL_PRESSURE, VmStatistics, recorded};
use crate::{Memory, MemoryLevel, Power, Presence};

/// Returns the hardware UUID.
pub(crate) fn machine_id(facts: &dyn Facts) -> Option<String> {
    match facts.registry("IOPlatformExpertDevice", "IOPlatformUUID")? {
        RegistryValue::Text(uuid) => Some(uuid),
        RegistryValue::Bool(_) | RegistryValue::Number(_) | RegistryValue::Dictionary(_) => None,
    }
}

pub(crate) fn chip(facts: &dyn Facts) -> Chip {
    let name = text(facts, "machdep.cpu.brand_string").unwrap_or_else(|| "Apple processor".to_owned());
    let is_set = |name| number(facts, name).is_some_and(|value| value != 0);
    let is_emulated = is_set("sysctl.proc_translated") || is_set("kern.hv_vmm_present");
    Chip {
        gpu_cores: registry_number(facts, "AGXAccelerator", "gpu-core-count")
            .and_then(|cores| u32::try_from(cores).ok()),
        cpu_cores: number(facts, "hw.physicalcpu")
            .and_then(|cores| u32::try_from(cores).ok())
            .unwrap_or(1),
        machine_model: text(facts, "hw.model"),
        development: is_emulated || MachineKind::of_brand(&name) != MachineKind::AppleSilicon,
        name,
    }
}

pub(crate) fn operating_system(facts: &dyn Facts) -> String {
    format!(
        "macOS {}",
        text(facts, "kern.osproductversion").unwrap_or_default()
    )
    .trim_end()
    .to_owned()
}

pub(crate) fn os_build(facts: &dyn Facts) -> String {
    text(facts, "kern.osversion").unwrap_or_default()
}

pub(crate) fn boot_id(facts: &dyn Facts) -> Option<String> {
    text(facts, "kern.bootsessionuuid")
}

/// Returns the time at which the system started.
pub(crate) fn boot_time(facts: &dyn Facts) -> Option<Timestamp> {
    let seconds = *recorded::list(&facts.sysctl(BOOT_TIME)?).first()?;
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

pub(crate) fn memory(facts: &dyn Facts) -> Memory {
    let pages = facts.vm_statistics();
    Memory {
        total: number(facts, "hw.memsize").map_or(Bytes::ZERO, Bytes),
        available: pages.map_or(Bytes::ZERO, available),
        compressible: pages.map_or(Bytes::ZERO, compressible),
        swapouts: pages.map(|pages| pages.swapouts),
        working_set: working_set(facts),
        level: memory_level(facts),
    }
}

/// Returns the memory that the system can allocate without compressing or swapping: xnu's
/// "fully-reclaimable" pages
/// (<https://github.com/apple-oss-distributions/xnu/blob/main/doc/vm/memorystatus_notify.md>).
fn available(pages: VmStatistics) -> Bytes {
    Bytes((pages.free + pages.file_backed + pages.purgeable) * pages.page)
}

/// Returns half of the inactive anonymous memory. The system compresses this memory when a new
/// program needs memory. The compressed form is assumed to occupy the other half. The page counts
/// do not separate the inactive pages by kind, so half of the file-backed pages are assumed to be
/// inactive.
fn compressible(pages: VmStatistics) -> Bytes {
    let inactive_files = pages.file_backed.saturating_sub(pages.speculative) / 2;
    Bytes(pages.inactive.saturating_sub(inactive_files) / 2 * pages.page)
}

/// Returns the memory that is neither compressed nor swapped out.
pub(crate) fn wired(facts: &dyn Facts) -> Option<Bytes> {
    facts.vm_statistics().map(|pages| Bytes(pages.wired * pages.page))
}

/// Returns the memory that the GPU's driver holds for all programs.
pub(crate) fn gpu_memory(facts: &dyn Facts) -> Option<Bytes> {
    gpu_statistic(facts, "In use system memory").map(Bytes)
}

/// Returns the share of the time in which the GPU was busy.
pub(crate) fn gpu_use(facts: &dyn Facts) -> Option<f64> {
    let percent = gpu_statistic(facts, "Device Utilization %")?;
    Some(percent.min(100) as f64 / 100.0)
}

/// Returns a number of the GPU driver's statistics.
fn gpu_statistic(facts: &dyn Facts, name: &str) -> Option<u64> {
    let RegistryValue::Dictionary(statistics) = facts.registry("AGXAccelerator", "PerformanceStatistics")?
    else {
        return None;
    };
    match statistics.get(name)? {
        RegistryValue::Number(number) => u64::try_from(*number).ok(),
        RegistryValue::Bool(_) | RegistryValue::Text(_) | RegistryValue::Dictionary(_) => None,
    }
}

/// Returns the used part of the swap files.
pub(crate) fn swap_used(facts: &dyn Facts) -> Option<Bytes> {
    let usage = recorded::list(&facts.sysctl(SWAP_USAGE)?);
    usage.get(2).copied().map(Bytes)
}

/// Returns the level at which the kernel notifies programs to free memory (`<dispatch/source.h>`).
/// The level depends on the memory that can be compressed and swapped, not on the number of free
/// pages.
fn memory_level(facts: &dyn Facts) -> Option<MemoryLevel> {
    match number(facts, "kern.memorystatus_vm_pressure_level")? {
        1 => Some(MemoryLevel::Normal),
        2 => Some(MemoryLevel::Low),
        4 => Some(MemoryLevel::Critical),
        _ => None,
    }
}

/// Returns `iogpu.wired_limit_mb` if an administrator has set it, otherwise the value that Metal
/// recommends.
fn working_set(facts: &dyn Facts) -> Option<Bytes> {
    let limit = number(facts, "iogpu.wired_limit_mb")
        .filter(|mib| *mib > 0)
        .map(Bytes::mib);
    limit.or_else(|| {
        let devices = facts.metal_devices();
        let bytes = devices.first()?.recommended_max_working_set_size;
        (bytes > 0).then_some(Bytes(bytes))
    })
}

pub(crate) fn power(facts: &dyn Facts) -> Power {
    let info = facts.process_info();
    let thermal_state = match facts.notify_state(THERMAL_PRESSURE) {
        Some(level) => thermal_state_of_pressure(level),
        None => info.map_or(ThermalState::Unknown, |info| {
            thermal_state_of_process_info(info.thermal_state)
        }),
    };
    let source = match facts.power_source().as_deref() {
        Some("AC Power") => PowerSource::Ac,
        Some("Battery Power") => PowerSource::Battery,
        Some("UPS Power") => PowerSource::Ups,
        Some(_) | None => PowerSource::Unknown,
    };
    Power {
        thermal_state,
        source,
        low_power_mode: info.map(|info| info.low_power_mode),
    }
}

/// Converts a level of `OSThermalNotification.h`: nominal, moderate, heavy, trapping, sleeping. The
/// system reduces performance from heavy on.
fn thermal_state_of_pressure(level: u64) -> ThermalState {
    match level {
        0 => ThermalState::Nominal,
        1 => ThermalState::Fair,
        2 => ThermalState::Serious,
        3 | 4 => ThermalState::Critical,
        _ => ThermalState::Unknown,
    }
}

/// Converts an `NSProcessInfoThermalState`. On several versions of macOS, this state never changes,
/// and it is lower than that of the notification (github.com/macmade/Hot issues 37, 74 and 118).
fn thermal_state_of_process_info(state: i64) -> ThermalState {
    match state {
        0 => ThermalState::Nominal,
        1 => ThermalState::Fair,
        2 => ThermalState::Serious,
        3 => ThermalState::Critical,
        _ => ThermalState::Unknown,
    }
}

/// Returns the use of the Mac by a person. A closed lid counts only if it puts the Mac to sleep: a
/// closed MacBook with a display and a power supply keeps running (`AppleClamshellCausesSleep`,
/// xnu's `IOPM.h`).
pub(crate) fn presence(facts: &dyn Facts) -> Presence {
    let is_true = |property| match facts.registry("IOPMrootDomain", property) {
        Some(RegistryValue::Bool(value)) => Some(value),
        Some(RegistryValue::Number(_) | RegistryValue::Text(_) | RegistryValue::Dictionary(_)) | None => None,
    };
    let causes_sleep = is_true("AppleClamshellCausesSleep").unwrap_or(true);
    Presence {
        lid_closed: is_true("AppleClamshellState").map(|closed| closed && causes_sleep),
        idle: registry_number(facts, "IOHIDSystem", "HIDIdleTime")
            .and_then(|nanoseconds| u64::try_from(nanoseconds).ok())
            .map(Duration::from_nanos),
    }
}

fn text(facts: &dyn Facts, name: &str) -> Option<String> {
    recorded::text(&facts.sysctl(name)?)
}

fn number(facts: &dyn Facts, name: &str) -> Option<u64> {
    recorded::number(&facts.sysctl(name)?)
}

fn registry_number(facts: &dyn Facts, class: &str, property: &str) -> Option<i64> {
    match facts.registry(class, property)? {
        RegistryValue::Number(number) => Some(number),
        RegistryValue::Bool(_) | RegistryValue::Text(_) | RegistryValue::Dictionary(_) => None,
    }
}

/// Returns the name in the output of `scutil --get LocalHostName`, which is empty if none is set.
#[cfg_attr(
    not(target_os = "macos"),
    allow(dead_code, reason = "only a Mac has the command")
)]
pub(super) fn local_host_name(output: &[u8]) -> Option<String> {
    let name = str::from_utf8(output).ok()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
