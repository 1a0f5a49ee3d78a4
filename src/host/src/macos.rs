//! macOS: sysctl, the I/O registry and Metal.
#![allow(unsafe_code, reason = "the I/O registry and Metal have C interfaces")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use core_foundation::base::{CFType, CFTypeRef, TCFType, kCFAllocatorDefault};
use core_foundation::boolean::CFBoolean;
use core_foundation::dictionary::{CFDictionaryRef, CFMutableDictionaryRef};
use core_foundation::number::CFNumber;
use core_foundation::string::{CFString, CFStringRef};
use nix::libc::{
    HOST_VM_INFO64, HOST_VM_INFO64_COUNT, KERN_SUCCESS, host_statistics64, sysctlbyname, vm_statistics64,
};
use sysctl::{Ctl, Sysctl};

use super::vm_statistics::VmStatistics;
use super::{MemoryLevel, Power, Presence};
use rooflet_api::v1alpha1::{Chip, PowerSource, ThermalState};
use rooflet_base::units::Bytes;
use rooflet_roofline::chip::Nature;

/// The hardware UUID.
pub(super) fn machine_id() -> Option<String> {
    registry_property(c"IOPlatformExpertDevice", "IOPlatformUUID")?
        .downcast::<CFString>()
        .map(|uuid| uuid.to_string())
}

pub(super) fn chip() -> Chip {
    let name = text("machdep.cpu.brand_string").unwrap_or_else(|| "Apple processor".to_owned());
    let rosetta = number("sysctl.proc_translated").is_some_and(|translated| translated != 0);
    Chip {
        gpu_cores: registry_property(c"AGXAccelerator", "gpu-core-count")
            .and_then(|property| property.downcast::<CFNumber>())
            .and_then(|count| u32::try_from(count.to_i64()?).ok()),
        cpu_cores: number("hw.physicalcpu")
            .and_then(|cores| u32::try_from(cores).ok())
            .unwrap_or(1),
        machine_model: text("hw.model"),
        development: is_virtual_machine() || rosetta || Nature::of_brand(&name) != Nature::AppleSilicon,
        name,
    }
}

pub(super) fn operating_system() -> String {
    format!("macOS {}", text("kern.osproductversion").unwrap_or_default())
        .trim_end()
        .to_owned()
}

pub(super) fn os_build() -> String {
    text("kern.osversion").unwrap_or_default()
}

pub(super) fn boot_id() -> Option<String> {
    text("kern.bootsessionuuid")
}

/// Where the system reports that it went down.
pub(super) const PANIC_REPORTS: &str = "/Library/Logs/DiagnosticReports";

/// All there is and what is available of it.
pub(super) fn memory() -> (Bytes, Bytes) {
    let total = number("hw.memsize").map_or(Bytes::ZERO, Bytes);
    // sysinfo's figure takes the compressor's pages from it and is 0 on machines that are well.
    let available = vm_statistics().map_or(Bytes::ZERO, |pages| pages.available());
    (total, available)
}

pub(super) fn wired() -> Option<Bytes> {
    vm_statistics().map(|pages| pages.wired())
}

/// What the kernel tells programs to free memory by (`<dispatch/source.h>`): it goes by what can be
/// compressed and swapped, which no count of free pages shows.
pub(super) fn memory_level() -> Option<MemoryLevel> {
    match number("kern.memorystatus_vm_pressure_level")? {
        1 => Some(MemoryLevel::Normal),
        2 => Some(MemoryLevel::Low),
        4 => Some(MemoryLevel::Critical),
        _ => None,
    }
}

/// `NSProcessInfo` and the power sources of IOKit.
pub(super) fn power() -> Power {
    let (thermal_state, low_power_mode) = process_info();
    Power {
        thermal_state,
        source: power_source(),
        low_power_mode,
    }
}

/// The I/O registry: the lid's switch, and nanoseconds since the last event of an input device.
pub(super) fn presence() -> Presence {
    let lid_closed = registry_property(c"IOPMrootDomain", "AppleClamshellState");
    let idle = registry_property(c"IOHIDSystem", "HIDIdleTime");
    Presence {
        lid_closed: lid_closed
            .and_then(|closed| closed.downcast::<CFBoolean>())
            .map(bool::from),
        idle: idle
            .and_then(|idle| idle.downcast::<CFNumber>())
            .and_then(|nanoseconds| u64::try_from(nanoseconds.to_i64()?).ok())
            .map(Duration::from_nanos),
    }
}

/// `-i` keeps the system from idle sleep and leaves the display alone; `-w` ends with this process,
/// however that ends.
pub(super) fn keep_awake() -> Option<Command> {
    let mut command = Command::new("/usr/bin/caffeinate");
    command.args(["-i", "-w", &std::process::id().to_string()]);
    Some(command)
}

/// Reads of `file` from now on neither use nor fill the page cache; what is in it already may still
/// answer.
pub(super) fn read_past_cache(file: &File) -> io::Result<()> {
    // SAFETY: F_NOCACHE takes an integer and `file` is open.
    match unsafe { nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_NOCACHE, 1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `iogpu.wired_limit_mb` where an administrator set it, else what Metal recommends.
pub(super) fn working_set() -> Option<Bytes> {
    number("iogpu.wired_limit_mb")
        .filter(|mib| *mib > 0)
        .map(Bytes::mib)
        .or_else(recommended_working_set)
}

/// xnu does not mark this one as readable, though it is, and the sysctl crate refuses to ask.
fn is_virtual_machine() -> bool {
    let mut present: c_int = 0;
    let mut size = size_of::<c_int>();
    // SAFETY: the name is a C string, and `present` has room for `size` bytes.
    let status = unsafe {
        sysctlbyname(
            c"kern.hv_vmm_present".as_ptr(),
            (&raw mut present).cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    status == 0 && present != 0
}

unsafe extern "C" {
    fn mach_host_self() -> u32;
    /// Bytes. Rosetta's processes see smaller pages than those that are counted.
    static vm_kernel_page_size: usize;
}

/// `host_statistics64`, which `vm_stat` prints.
fn vm_statistics() -> Option<VmStatistics> {
    // SAFETY: takes no arguments. Each call adds a reference to the same port, hence it is made once.
    static HOST: LazyLock<u32> = LazyLock::new(|| unsafe { mach_host_self() });
    // SAFETY: integers, which may be zero.
    let mut pages: vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = HOST_VM_INFO64_COUNT;
    // SAFETY: `pages` has room for `count` integers, of which the kernel writes as many as it knows.
    let status = unsafe { host_statistics64(*HOST, HOST_VM_INFO64, (&raw mut pages).cast(), &raw mut count) };
    (status == KERN_SUCCESS).then_some(VmStatistics {
        // SAFETY: the system's libraries set it before `main`, and nobody writes to it.
        page: Bytes(unsafe { vm_kernel_page_size } as u64),
        free: pages.free_count,
        speculative: pages.speculative_count,
        file_backed: pages.external_page_count,
        purgeable: pages.purgeable_count,
        wired: pages.wire_count,
    })
}

fn text(name: &str) -> Option<String> {
    Ctl::new(name)
        .ok()?
        .value_string()
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

fn number(name: &str) -> Option<u64> {
    text(name)?.parse().ok()
}

/// `io_object_t`: a Mach port name.
type IoObject = u32;

#[link(name = "IOKit", kind = "framework")]
unsafe extern "C" {
    fn IOServiceMatching(name: *const c_char) -> CFMutableDictionaryRef;
    fn IOServiceGetMatchingService(main_port: u32, matching: CFDictionaryRef) -> IoObject;
    fn IORegistryEntryCreateCFProperty(
        entry: IoObject,
        key: CFStringRef,
        allocator: *const c_void,
        options: u32,
    ) -> CFTypeRef;
    fn IOObjectRelease(object: IoObject) -> i32;
    fn IOPSCopyPowerSourcesInfo() -> CFTypeRef;
    fn IOPSGetProvidingPowerSourceType(snapshot: CFTypeRef) -> CFStringRef;
}

/// What feeds the machine. The three words are those of IOPSKeys.h.
fn power_source() -> PowerSource {
    // SAFETY: takes no arguments; the result is null or ours to release, which CFType does on drop.
    let snapshot = unsafe { IOPSCopyPowerSourcesInfo() };
    if snapshot.is_null() {
        return PowerSource::Unknown;
    }
    // SAFETY: not null, and a copy that follows the create rule.
    let snapshot = unsafe { CFType::wrap_under_create_rule(snapshot) };
    // SAFETY: `snapshot` is what this function takes; the result follows the get rule and is never null for it.
    let name = unsafe { IOPSGetProvidingPowerSourceType(snapshot.as_CFTypeRef()) };
    if name.is_null() {
        return PowerSource::Unknown;
    }
    // SAFETY: not null, and not ours: wrapping retains it.
    let name = unsafe { CFString::wrap_under_get_rule(name) };
    match name.to_string().as_str() {
        "AC Power" => PowerSource::Ac,
        "Battery Power" => PowerSource::Battery,
        "UPS Power" => PowerSource::Ups,
        _ => PowerSource::Unknown,
    }
}

/// A property of the first service of a class.
fn registry_property(class: &CStr, property: &str) -> Option<CFType> {
    let key = CFString::new(property);
    // SAFETY: `class` is a C string; the result is null or a dictionary that IOServiceGetMatchingService releases.
    let matching = unsafe { IOServiceMatching(class.as_ptr()) };
    if matching.is_null() {
        return None;
    }
    // SAFETY: `matching` is a valid dictionary whose reference this call consumes; port 0 is the default main port.
    let service = unsafe { IOServiceGetMatchingService(0, matching as CFDictionaryRef) };
    if service == 0 {
        return None;
    }
    // SAFETY: `service` is a live object, `key` lives through the call; the result is null or owned by the caller.
    let value = unsafe {
        IORegistryEntryCreateCFProperty(service, key.as_concrete_TypeRef(), kCFAllocatorDefault.cast(), 0)
    };
    // SAFETY: `service` came from IOServiceGetMatchingService and is released exactly once.
    unsafe { IOObjectRelease(service) };
    // SAFETY: a non-null result follows the create rule: it is ours to release, which CFType does on drop.
    (!value.is_null()).then(|| unsafe { CFType::wrap_under_create_rule(value) })
}

// Without CoreGraphics in the process Metal has no default device for a command-line program.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

#[link(name = "Metal", kind = "framework")]
unsafe extern "C" {
    fn MTLCreateSystemDefaultDevice() -> *mut c_void;
}

#[link(name = "objc")]
unsafe extern "C" {
    fn objc_getClass(name: *const c_char) -> *mut c_void;
    fn sel_registerName(name: *const c_char) -> *const c_void;
    fn objc_msgSend();
    fn objc_release(object: *mut c_void);
}

/// `MTLDevice.recommendedMaxWorkingSetSize`.
fn recommended_working_set() -> Option<Bytes> {
    // SAFETY: takes no arguments; returns null or a device with a reference that is ours.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    if device.is_null() {
        return None;
    }
    // SAFETY: the method takes no arguments and returns a 64-bit integer, so this is the function type that
    // objc_msgSend must be called with; the selector's name is a C string.
    let bytes = unsafe {
        let get: unsafe extern "C" fn(*mut c_void, *const c_void) -> u64 =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        get(device, sel_registerName(c"recommendedMaxWorkingSetSize".as_ptr()))
    };
    // SAFETY: `device` is ours and is released exactly once.
    unsafe { objc_release(device) };
    (bytes > 0).then_some(Bytes(bytes))
}

// NSProcessInfo lives there.
#[link(name = "Foundation", kind = "framework")]
unsafe extern "C" {}

/// `NSProcessInfo.thermalState` and `isLowPowerModeEnabled`.
fn process_info() -> (ThermalState, Option<bool>) {
    // SAFETY: the name is a C string; the result is null or a class, which lives as long as the process.
    let class = unsafe { objc_getClass(c"NSProcessInfo".as_ptr()) };
    if class.is_null() {
        return (ThermalState::Unknown, None);
    }
    // SAFETY: `processInfo` takes no arguments and returns the shared object, which is never released; the function
    // type is the one that objc_msgSend must be called with, and the selector's name is a C string.
    let info = unsafe {
        let get: unsafe extern "C" fn(*mut c_void, *const c_void) -> *mut c_void =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        get(class, sel_registerName(c"processInfo".as_ptr()))
    };
    if info.is_null() {
        return (ThermalState::Unknown, None);
    }
    // SAFETY: `thermalState` takes no arguments and returns an NSInteger; `info` is a live object.
    let state = unsafe {
        let get: unsafe extern "C" fn(*mut c_void, *const c_void) -> isize =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        get(info, sel_registerName(c"thermalState".as_ptr()))
    };
    // SAFETY: `isLowPowerModeEnabled` takes no arguments and returns a BOOL, one byte on Apple Silicon; it exists
    // since macOS 12, which Apple Silicon with MLX is past; `info` is a live object.
    let low_power = unsafe {
        let get: unsafe extern "C" fn(*mut c_void, *const c_void) -> u8 =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        get(info, sel_registerName(c"isLowPowerModeEnabled".as_ptr()))
    };
    // The order of NSProcessInfoThermalState.
    let state = match state {
        0 => ThermalState::Nominal,
        1 => ThermalState::Fair,
        2 => ThermalState::Serious,
        3 => ThermalState::Critical,
        _ => ThermalState::Unknown,
    };
    (state, Some(low_power != 0))
}
