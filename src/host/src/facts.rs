//! Raw values of a Mac's system interfaces. [`crate::mac`] derives the facts that the rest of
//! rooflet uses from these values.
//!
//! On a Mac, the values are read from the system. On other machines, they are read from a recorded
//! file, so that the derivation compiles and is tested on every platform.

pub(crate) mod recorded;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use recorded::{InvalidRecording, RecordedFacts, undecodable};

/// Names of the sysctls that contain a text.
pub(crate) const TEXT_SYSCTLS: &[&str] = &[
    "hw.model",
    "kern.bootsessionuuid",
    "kern.osproductversion",
    "kern.osversion",
    "machdep.cpu.brand_string",
];
/// Names of the sysctls that contain a number.
pub(crate) const NUMBER_SYSCTLS: &[&str] = &[
    "hw.memsize",
    "hw.physicalcpu",
    "hw.optional.arm64",
    "iogpu.wired_limit_mb",
    "kern.hv_vmm_present",
    "kern.memorystatus_vm_pressure_level",
    "sysctl.proc_translated",
];
/// Sysctl that holds numbers of 8 bytes.
pub(crate) const LIST_SYSCTLS: &[&str] = &[BOOT_TIME, SWAP_USAGE];
/// `struct timeval` of the start of the system: seconds since 1970, then microseconds.
pub(crate) const BOOT_TIME: &str = "kern.boottime";
/// `struct xsw_usage` of `<sys/sysctl.h>`: total, available and used bytes, then other fields.
pub(crate) const SWAP_USAGE: &str = "vm.swapusage";
/// Classes of the I/O registry with the property that rooflet reads. `IOClass` is the class of the
/// driver, such as `AGXAcceleratorG16G`.
pub(crate) const REGISTRY_PROPERTIES: &[(&str, &str)] = &[
    ("AGXAccelerator", "IOClass"),
    ("AGXAccelerator", "gpu-core-count"),
    ("AGXAccelerator", "PerformanceStatistics"),
    ("IOPMrootDomain", "AppleClamshellState"),
    ("IOPMrootDomain", "AppleClamshellCausesSleep"),
    ("IOHIDSystem", "HIDIdleTime"),
];
/// Name of the notification whose state is the thermal pressure level.
pub(crate) const THERMAL_PRESSURE: &str = "com.apple.system.thermalpressurelevel";

/// Source of raw values. If the system does not provide a value, its method returns `None` or an
/// empty list.
pub trait Facts: fmt::Debug + Send + Sync {
    /// Returns the raw bytes of a sysctl value.
    fn sysctl(&self, name: &str) -> Option<Vec<u8>>;

    /// Returns a property of the first I/O registry entry of a class.
    fn registry(&self, class: &str, property: &str) -> Option<RegistryValue>;

    /// Returns the state of a notification (`notify_get_state`).
    fn notify_state(&self, name: &str) -> Option<u64>;

    /// Returns the page counts of `host_statistics64`.
    fn vm_statistics(&self) -> Option<VmStatistics>;

    /// Returns the Metal devices (`MTLCopyAllDevices`), or the default device if that list is
    /// empty.
    fn metal_devices(&self) -> Vec<MetalDevice>;

    /// Returns whether Metal has a default device (`MTLCreateSystemDefaultDevice`).
    fn has_default_metal_device(&self) -> Option<bool>;

    /// Returns properties of `NSProcessInfo`.
    fn process_info(&self) -> Option<ProcessInfo>;

    /// Returns the type of the power source that supplies the machine: one of the names in
    /// `IOPSKeys.h`.
    fn power_source(&self) -> Option<String>;
}

/// Value of an I/O registry property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RegistryValue {
    Bool(bool),
    Number(i64),
    Text(String),
    Dictionary(BTreeMap<String, RegistryValue>),
}

/// Page counts of main memory, in the terms of `vm_stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmStatistics {
    /// Bytes of one page.
    pub page: u64,
    /// Free pages without the speculative ones, as `vm_stat` prints them.
    pub free: u64,
    pub active: u64,
    pub inactive: u64,
    /// Pages read ahead from files and not used yet.
    pub speculative: u64,
    /// Pages that are neither compressed nor swapped out.
    pub wired: u64,
    /// Pages whose owners allow the system to discard them.
    pub purgeable: u64,
    /// Unwired pages whose content is also in a file, with the speculative ones.
    pub file_backed: u64,
    /// Pages occupied by the compressor.
    pub compressor: u64,
    /// Pages written to swap files since the system started.
    #[serde(default)]
    pub swapouts: u64,
}

impl VmStatistics {
    /// Share of the pageable memory that is not compressed, between 0 and 1; `None` without counts.
    /// Below one half, the kernel reports the memory level `warn`
    /// (<https://github.com/apple-oss-distributions/xnu/blob/main/doc/vm/memorystatus_notify.md>).
    pub fn uncompressed_share(&self) -> Option<f64> {
        let uncompressed = self.active + self.inactive + self.free + self.speculative;
        let all = uncompressed + self.compressor;
        (all > 0).then(|| uncompressed as f64 / all as f64)
    }
}

/// A Metal device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetalDevice {
    pub name: String,
    /// Name of the GPU architecture, such as `applegpu_g16s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Bytes that the GPU can use without slowing down.
    #[serde(default)]
    pub recommended_max_working_set_size: u64,
    /// Bytes of the largest buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_buffer_length: Option<u64>,
    /// GPU families that the device supports, such as `Apple9` and `Metal3`. Empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<String>,
}

/// GPU families: name and value of `MTLGPUFamily`. Each Apple family includes the earlier ones.
#[cfg_attr(
    not(target_os = "macos"),
    allow(dead_code, reason = "only a Mac has Metal devices")
)]
pub(crate) const METAL_FAMILIES: &[(&str, i64)] = &[
    ("Apple5", 1005),
    ("Apple6", 1006),
    ("Apple7", 1007),
    ("Apple8", 1008),
    ("Apple9", 1009),
    ("Apple10", 1010),
    ("Metal3", 5001),
    ("Metal4", 5002),
];

/// Properties of `NSProcessInfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessInfo {
    /// An `NSProcessInfoThermalState`: 0 nominal, 1 fair, 2 serious, 3 critical.
    pub thermal_state: i64,
    pub low_power_mode: bool,
}
