//! Facts of a running Mac, from sysctl, the I/O registry, notifications, Mach, Metal and
//! Foundation.
#![allow(unsafe_code, reason = "the system's interfaces are C and Objective-C")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{LazyLock, OnceLock};

use camino::Utf8Path;
use core_foundation::base::{CFType, CFTypeRef, TCFType, kCFAllocatorDefault};
use core_foundation::boolean::CFBoolean;
use core_foundation::dictionary::{CFDictionary, CFDictionaryRef, CFMutableDictionaryRef};
use core_foundation::number::CFNumber;
use core_foundation::string::{CFString, CFStringRef};
use core_foundation::url::{CFURL, CFURLRef, CFURLSetResourcePropertyForKey};
use jiff::Timestamp;
use nix::libc::{
    HOST_VM_INFO64, HOST_VM_INFO64_COUNT, KERN_SUCCESS, host_statistics64, sysctlbyname, vm_statistics64,
};
use tracing::debug;

use super::{Memory, Power, Presence, mac};
use crate::facts::{Facts, METAL_FAMILIES, MetalDevice, ProcessInfo, RegistryValue, VmStatistics};
use rooflet_api::v1alpha1::Chip;
use rooflet_base::units::Bytes;

/// Facts of the running system.
#[derive(Debug)]
pub(super) struct SystemFacts;

impl Facts for SystemFacts {
    fn sysctl(&self, name: &str) -> Option<Vec<u8>> {
        sysctl(&CString::new(name).ok()?)
    }

    fn registry(&self, class: &str, property: &str) -> Option<RegistryValue> {
        registry_value(&registry_property(&CString::new(class).ok()?, property)?)
    }

    fn notify_state(&self, name: &str) -> Option<u64> {
        notify_state(&CString::new(name).ok()?)
    }

    fn vm_statistics(&self) -> Option<VmStatistics> {
        vm_statistics()
    }

    fn metal_devices(&self) -> Vec<MetalDevice> {
        static DEVICES: OnceLock<Vec<MetalDevice>> = OnceLock::new();
        if let Some(devices) = DEVICES.get() {
            return devices.clone();
        }
        let devices = AutoreleasePool::with(metal_devices);
        // A missing device can be a temporary failure.
        if !devices.is_empty() {
            drop(DEVICES.set(devices.clone()));
        }
        devices
    }

    fn has_default_metal_device(&self) -> Option<bool> {
        Some(AutoreleasePool::with(has_default_metal_device))
    }

    fn process_info(&self) -> Option<ProcessInfo> {
        AutoreleasePool::with(process_info)
    }

    fn power_source(&self) -> Option<String> {
        power_source()
    }
}

pub(super) fn facts() -> Option<&'static dyn Facts> {
    Some(&SystemFacts)
}

pub(super) fn machine_id() -> Option<String> {
    mac::machine_id(&SystemFacts)
}

pub(super) fn chip() -> Chip {
    mac::chip(&SystemFacts)
}

pub(super) fn operating_system() -> String {
    mac::operating_system(&SystemFacts)
}

pub(super) fn os_build() -> String {
    mac::os_build(&SystemFacts)
}

pub(super) fn boot_id() -> Option<String> {
    mac::boot_id(&SystemFacts)
}

pub(super) fn boot_time() -> Option<Timestamp> {
    mac::boot_time(&SystemFacts)
}

pub(super) fn memory() -> Memory {
    mac::memory(&SystemFacts)
}

pub(super) fn wired() -> Option<Bytes> {
    mac::wired(&SystemFacts)
}

pub(super) fn gpu_use() -> Option<f64> {
    mac::gpu_use(&SystemFacts)
}

pub(super) fn gpu_memory() -> Option<Bytes> {
    mac::gpu_memory(&SystemFacts)
}

pub(super) fn swap_used() -> Option<Bytes> {
    mac::swap_used(&SystemFacts)
}

pub(super) fn power() -> Power {
    mac::power(&SystemFacts)
}

pub(super) fn presence() -> Presence {
    mac::presence(&SystemFacts)
}

/// Directory of kernel panic reports.
pub(super) const PANIC_REPORTS: &str = "/Library/Logs/DiagnosticReports";

/// Returns the command that prevents idle sleep. `-i` lets the display sleep. With `-w`, the
/// command exits when this process exits.
pub(super) fn keep_awake() -> Option<Command> {
    let mut command = Command::new("/usr/bin/caffeinate");
    command.args(["-i", "-w", &std::process::id().to_string()]);
    Some(command)
}

/// Returns the name of this Mac in the local network, without `.local` (`scutil --get
/// LocalHostName`). Unlike the host name, it does not change with the network.
pub(super) fn local_host_name() -> Option<String> {
    let output = Command::new("/usr/sbin/scutil")
        .args(["--get", "LocalHostName"])
        .output()
        .ok()?;
    mac::local_host_name(&output.stdout)
}

/// Returns the sizes of the file system that contains `path`: bytes per block, and the number of
/// blocks in total, free, and free for ordinary users. Uses `statfs`, because the counts of
/// `statvfs` have only 32 bits.
pub(super) fn blocks(path: &Utf8Path) -> io::Result<(u64, u64, u64, u64)> {
    let stat = nix::sys::statfs::statfs(path.as_std_path())?;
    let unit = u64::from(stat.block_size());
    Ok((unit, stat.blocks(), stat.blocks_free(), stat.blocks_available()))
}

pub(super) fn file_system(path: &Utf8Path) -> Option<String> {
    let stat = nix::sys::statfs::statfs(path.as_std_path()).ok()?;
    Some(stat.filesystem_type_name().to_owned())
}

unsafe extern "C" {
    static kCFURLVolumeAvailableCapacityForImportantUsageKey: CFStringRef;
    fn CFURLCopyResourcePropertyForKey(
        url: CFURLRef,
        key: CFStringRef,
        value: *mut CFTypeRef,
        error: *mut c_void,
    ) -> u8;
}

/// Returns the free space of the file system that contains `path`, including files that the system
/// deletes on demand. Returns `None` or zero on file systems without such files.
pub(super) fn obtainable_disk(path: &Utf8Path) -> Option<Bytes> {
    let url = CFURL::from_path(path, true)?;
    // SAFETY: the key is a CoreFoundation string that lives as long as the process.
    let value = url_property(&url, unsafe { kCFURLVolumeAvailableCapacityForImportantUsageKey })?;
    let bytes = value.downcast::<CFNumber>()?.to_i64()?;
    u64::try_from(bytes).ok().map(Bytes)
}

/// Reads a property of a file. `None` if the file system does not have it.
fn url_property(url: &CFURL, key: CFStringRef) -> Option<CFType> {
    let mut value: CFTypeRef = std::ptr::null();
    // SAFETY: `url` and the key are CoreFoundation objects, `value` has room for one object, and
    // the error pointer is null.
    let found = unsafe {
        CFURLCopyResourcePropertyForKey(
            url.as_concrete_TypeRef(),
            key,
            &raw mut value,
            std::ptr::null_mut(),
        )
    };
    if found == 0 || value.is_null() {
        return None;
    }
    // SAFETY: not null, and a copy that follows the create rule.
    Some(unsafe { CFType::wrap_under_create_rule(value) })
}

/// Sets the property that excludes a directory from Time Machine. If this fails, backups are
/// larger.
pub(super) fn exclude_from_backup(path: &Utf8Path) {
    unsafe extern "C" {
        static kCFURLIsExcludedFromBackupKey: CFStringRef;
    }
    let Some(url) = CFURL::from_path(path, true) else {
        return;
    };
    let excluded = CFBoolean::true_value();
    // SAFETY: all arguments are live CoreFoundation objects, and the error pointer is null.
    let done = unsafe {
        CFURLSetResourcePropertyForKey(
            url.as_concrete_TypeRef(),
            kCFURLIsExcludedFromBackupKey,
            excluded.as_CFTypeRef(),
            std::ptr::null_mut(),
        )
    };
    if done == 0 {
        debug!(%path, "failed to exclude the directory from backups");
    }
}

/// Returns whether Time Machine excludes a directory. `None` if the system does not report it.
pub(super) fn is_excluded_from_backup(path: &Utf8Path) -> Option<bool> {
    unsafe extern "C" {
        static kCFURLIsExcludedFromBackupKey: CFStringRef;
    }
    let url = CFURL::from_path(path, true)?;
    // SAFETY: the key is a CoreFoundation string that lives as long as the process.
    let value = url_property(&url, unsafe { kCFURLIsExcludedFromBackupKey })?;
    value.downcast::<CFBoolean>().map(bool::from)
}

pub(super) fn release_freed_memory() {
    unsafe extern "C" {
        fn malloc_zone_pressure_relief(zone: *mut c_void, goal: usize) -> usize;
    }
    // SAFETY: a null zone stands for all zones, and the goal 0 for as much as possible. Allocated
    // memory stays.
    let released = unsafe { malloc_zone_pressure_relief(std::ptr::null_mut(), 0) };
    debug!(bytes = released, "released freed memory");
}

/// Has no effect: the memory of a process on macOS does not include unchanged pages of files.
pub(super) fn release_code() {}

/// Raises the quality of service of this thread: the scheduler then prefers performance cores and
/// shorter waits.
pub(super) fn prioritise_thread() {
    /// `QOS_CLASS_USER_INITIATED` of `<sys/qos.h>`.
    const USER_INITIATED: u32 = 0x19;
    unsafe extern "C" {
        fn pthread_set_qos_class_self_np(class: u32, relative_priority: c_int) -> c_int;
    }
    // SAFETY: both arguments are integers, and the call affects the calling thread only.
    let status = unsafe { pthread_set_qos_class_self_np(USER_INITIATED, 0) };
    if status != 0 {
        debug!(status, "failed to set the quality of service of a thread");
    }
}

/// Makes later reads of `file` bypass the page cache. Pages that are already cached may still be
/// used.
pub(super) fn read_past_cache(file: &File) -> io::Result<()> {
    // SAFETY: F_NOCACHE takes an integer and `file` is open.
    match unsafe { nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_NOCACHE, 1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reads a value with a system call. Libraries do not read some values, such as
/// `kern.hv_vmm_present`, because xnu does not mark them as readable.
fn sysctl(name: &CStr) -> Option<Vec<u8>> {
    let mut size = 0_usize;
    // SAFETY: the name is a C string; without a buffer only the size is written.
    let status = unsafe {
        sysctlbyname(
            name.as_ptr(),
            std::ptr::null_mut(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    if status != 0 {
        return None;
    }
    let mut bytes = vec![0_u8; size];
    // SAFETY: the name is a C string, and `bytes` has room for `size` bytes.
    let status = unsafe {
        sysctlbyname(
            name.as_ptr(),
            bytes.as_mut_ptr().cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    bytes.truncate(size);
    (status == 0).then_some(bytes)
}

unsafe extern "C" {
    fn mach_host_self() -> u32;
    /// Size of the counted pages in bytes. Processes under Rosetta use smaller pages.
    static vm_kernel_page_size: usize;
    /// Registers for a notification (`<notify.h>`). Returns 0 on success.
    fn notify_register_check(name: *const c_char, token: *mut c_int) -> u32;
    fn notify_get_state(token: c_int, state: *mut u64) -> u32;
    fn notify_cancel(token: c_int) -> u32;
}

/// Returns the page counts of `host_statistics64`, the source of `vm_stat`.
fn vm_statistics() -> Option<VmStatistics> {
    // SAFETY: takes no arguments. Each call adds a reference to the same port, so there is only one
    // call.
    static HOST: LazyLock<u32> = LazyLock::new(|| unsafe { mach_host_self() });
    // SAFETY: integers, which may be zero.
    let mut pages: vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = HOST_VM_INFO64_COUNT;
    // SAFETY: `pages` has room for `count` integers, and the kernel writes at most `count`
    // integers.
    let status = unsafe { host_statistics64(*HOST, HOST_VM_INFO64, (&raw mut pages).cast(), &raw mut count) };
    (status == KERN_SUCCESS).then(|| VmStatistics {
        // SAFETY: the system's libraries set it before `main`, and it is constant afterwards.
        page: unsafe { vm_kernel_page_size } as u64,
        // The kernel counts speculative pages as free; `vm_stat` does not.
        free: u64::from(pages.free_count.saturating_sub(pages.speculative_count)),
        active: u64::from(pages.active_count),
        inactive: u64::from(pages.inactive_count),
        speculative: u64::from(pages.speculative_count),
        wired: u64::from(pages.wire_count),
        purgeable: u64::from(pages.purgeable_count),
        file_backed: u64::from(pages.external_page_count),
        compressor: u64::from(pages.compressor_page_count),
        swapouts: pages.swapouts,
    })
}

/// Returns the state of a notification, which is valid immediately after the registration. The
/// token is then released.
fn notify_state(name: &CStr) -> Option<u64> {
    let mut token = 0;
    // SAFETY: the name is a C string, and `token` has room for an int.
    if unsafe { notify_register_check(name.as_ptr(), &raw mut token) } != 0 {
        return None;
    }
    let mut state = 0;
    // SAFETY: the token was registered above and is cancelled exactly once.
    let status = unsafe {
        let status = notify_get_state(token, &raw mut state);
        notify_cancel(token);
        status
    };
    (status == 0).then_some(state)
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

/// Returns the type of the power source that supplies the machine.
fn power_source() -> Option<String> {
    // SAFETY: takes no arguments; the result is null or owned by this function, and CFType releases
    // it on drop.
    let snapshot = unsafe { IOPSCopyPowerSourcesInfo() };
    if snapshot.is_null() {
        return None;
    }
    // SAFETY: not null, and a copy that follows the create rule.
    let snapshot = unsafe { CFType::wrap_under_create_rule(snapshot) };
    // SAFETY: `snapshot` is a valid argument; the result follows the get rule.
    let name = unsafe { IOPSGetProvidingPowerSourceType(snapshot.as_CFTypeRef()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and not owned by this function: wrapping retains it.
    Some(unsafe { CFString::wrap_under_get_rule(name) }.to_string())
}

/// Returns a property of the first service of a class.
fn registry_property(class: &CStr, property: &str) -> Option<CFType> {
    let key = CFString::new(property);
    // SAFETY: `class` is a C string; the result is null or a dictionary that
    // IOServiceGetMatchingService releases.
    let matching = unsafe { IOServiceMatching(class.as_ptr()) };
    if matching.is_null() {
        return None;
    }
    // SAFETY: `matching` is a valid dictionary whose reference this call consumes; port 0 is the
    // default main port.
    let service = unsafe { IOServiceGetMatchingService(0, matching as CFDictionaryRef) };
    if service == 0 {
        return None;
    }
    // SAFETY: `service` is a live object, `key` lives through the call; the result is null or owned
    // by the caller.
    let value = unsafe {
        IORegistryEntryCreateCFProperty(service, key.as_concrete_TypeRef(), kCFAllocatorDefault.cast(), 0)
    };
    // SAFETY: `service` came from IOServiceGetMatchingService and is released exactly once.
    unsafe { IOObjectRelease(service) };
    // SAFETY: a non-null result follows the create rule: this function owns it, and CFType releases
    // it on drop.
    (!value.is_null()).then(|| unsafe { CFType::wrap_under_create_rule(value) })
}

/// Converts a property. Returns `None` for types that no fact has.
fn registry_value(value: &CFType) -> Option<RegistryValue> {
    if let Some(flag) = value.downcast::<CFBoolean>() {
        return Some(RegistryValue::Bool(flag.into()));
    }
    if let Some(number) = value.downcast::<CFNumber>() {
        return number.to_i64().map(RegistryValue::Number);
    }
    if let Some(text) = value.downcast::<CFString>() {
        return Some(RegistryValue::Text(text.to_string()));
    }
    let dictionary = value.downcast::<CFDictionary>()?;
    let (keys, values) = dictionary.get_keys_and_values();
    let entries = keys.into_iter().zip(values).filter_map(|(key, value)| {
        // SAFETY: keys and values of a registry dictionary are CoreFoundation objects that the
        // dictionary owns; wrapping retains them.
        let (key, value) = unsafe {
            (
                CFType::wrap_under_get_rule(key),
                CFType::wrap_under_get_rule(value),
            )
        };
        Some((key.downcast::<CFString>()?.to_string(), registry_value(&value)?))
    });
    Some(RegistryValue::Dictionary(entries.collect()))
}

// Without CoreGraphics, Metal returns no default device to a command-line program.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

#[link(name = "Metal", kind = "framework")]
unsafe extern "C" {
    fn MTLCopyAllDevices() -> *mut c_void;
    fn MTLCreateSystemDefaultDevice() -> *mut c_void;
}

// Foundation contains NSProcessInfo.
#[link(name = "Foundation", kind = "framework")]
unsafe extern "C" {}

#[link(name = "objc")]
unsafe extern "C" {
    fn objc_getClass(name: *const c_char) -> *mut c_void;
    fn sel_registerName(name: *const c_char) -> *const c_void;
    fn objc_msgSend();
    fn objc_release(object: *mut c_void);
    fn objc_autoreleasePoolPush() -> *mut c_void;
    fn objc_autoreleasePoolPop(pool: *mut c_void);
}

/// Pool that releases on drop all objects that Objective-C calls have autoreleased since its
/// creation.
struct AutoreleasePool(*mut c_void);

impl AutoreleasePool {
    fn with<T>(act: impl FnOnce() -> T) -> T {
        // SAFETY: takes no arguments; the pool is popped once, on this thread, by `drop`.
        let _pool = Self(unsafe { objc_autoreleasePoolPush() });
        act()
    }
}

impl Drop for AutoreleasePool {
    fn drop(&mut self) {
        // SAFETY: pushed by `with` on this thread, and pools are dropped in reverse order.
        unsafe { objc_autoreleasePoolPop(self.0) };
    }
}

/// Sends a message without arguments.
///
/// # Safety
/// `object` is a live object or class that has the method, and `T` is its return type: an object,
/// an integer or a BOOL.
unsafe fn send<T>(object: *mut c_void, selector: &CStr) -> T {
    // SAFETY: objc_msgSend must be called with the function type of the method, which the caller
    // guarantees; the selector's name is a C string.
    unsafe {
        let method: unsafe extern "C" fn(*mut c_void, *const c_void) -> T =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        method(object, sel_registerName(selector.as_ptr()))
    }
}

/// Returns the Metal devices. In many terminals and daemons, the default device is null, but the
/// list of all devices is not empty.
fn metal_devices() -> Vec<MetalDevice> {
    // SAFETY: takes no arguments; returns null or an NSArray with a reference that this function
    // owns.
    let all = unsafe { MTLCopyAllDevices() };
    let mut devices = Vec::new();
    if !all.is_null() {
        // SAFETY: an NSArray has `count` and `objectAtIndex:`; its objects live as long as the
        // array, which is released once.
        unsafe {
            let at: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void =
                std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
            for index in 0..send::<usize>(all, c"count") {
                devices.push(metal_device(at(
                    all,
                    sel_registerName(c"objectAtIndex:".as_ptr()),
                    index,
                )));
            }
            objc_release(all);
        }
    }
    if devices.is_empty() {
        // SAFETY: takes no arguments; returns null or a device with a reference that this function
        // owns and releases once.
        unsafe {
            let device = MTLCreateSystemDefaultDevice();
            if !device.is_null() {
                devices.push(metal_device(device));
                objc_release(device);
            }
        }
    }
    devices
}

fn has_default_metal_device() -> bool {
    // SAFETY: takes no arguments; returns null or a device with a reference that this function owns
    // and releases once.
    unsafe {
        let device = MTLCreateSystemDefaultDevice();
        if !device.is_null() {
            objc_release(device);
        }
        !device.is_null()
    }
}

/// Returns the names of the families that the device supports.
///
/// # Safety
/// `device` is a live MTLDevice.
unsafe fn families(device: *mut c_void) -> Vec<String> {
    // SAFETY: `supportsFamily:` exists on every MTLDevice since macOS 10.15, takes an NSInteger and
    // returns a BOOL, one byte on Apple Silicon. It returns NO for values that it does not know.
    let supports = |family: i64| unsafe {
        let method: unsafe extern "C" fn(*mut c_void, *const c_void, isize) -> u8 =
            std::mem::transmute(objc_msgSend as unsafe extern "C" fn());
        method(
            device,
            sel_registerName(c"supportsFamily:".as_ptr()),
            family as isize,
        ) != 0
    };
    let supported = METAL_FAMILIES.iter().filter(|(_, family)| supports(*family));
    supported.map(|(name, _)| (*name).to_owned()).collect()
}

/// Returns the properties of a device.
///
/// # Safety
/// `device` is a live MTLDevice.
unsafe fn metal_device(device: *mut c_void) -> MetalDevice {
    // SAFETY: these methods exist on every MTLDevice of the systems that MLX supports (macOS 14 and
    // newer), take no arguments and return the types given here.
    unsafe {
        let architecture: *mut c_void = send(device, c"architecture");
        MetalDevice {
            name: string(send(device, c"name")),
            architecture: match architecture.is_null() {
                true => String::new(),
                false => string(send(architecture, c"name")),
            },
            recommended_max_working_set_size: send(device, c"recommendedMaxWorkingSetSize"),
            max_buffer_length: Some(send::<usize>(device, c"maxBufferLength") as u64),
            families: families(device),
        }
    }
}

/// Returns the text of a string, or an empty text for null.
///
/// # Safety
/// `string` is null or a live NSString, which can be used as a CFString.
unsafe fn string(string: *mut c_void) -> String {
    match string.is_null() {
        true => String::new(),
        // SAFETY: not null, and not owned by this function: wrapping retains it.
        false => unsafe { CFString::wrap_under_get_rule(string as CFStringRef) }.to_string(),
    }
}

/// Returns `thermalState` and `isLowPowerModeEnabled` of `NSProcessInfo`.
fn process_info() -> Option<ProcessInfo> {
    // SAFETY: the name is a C string; the result is null or a class, which lives as long as the
    // process.
    let class = unsafe { objc_getClass(c"NSProcessInfo".as_ptr()) };
    if class.is_null() {
        return None;
    }
    // SAFETY: `processInfo` returns the shared object, which is never released.
    let info: *mut c_void = unsafe { send(class, c"processInfo") };
    if info.is_null() {
        return None;
    }
    // SAFETY: `thermalState` returns an NSInteger. `isLowPowerModeEnabled` returns a BOOL, one byte
    // on Apple Silicon, and exists since macOS 12.
    let (state, low_power) = unsafe {
        (
            send::<isize>(info, c"thermalState"),
            send::<u8>(info, c"isLowPowerModeEnabled"),
        )
    };
    Some(ProcessInfo {
        thermal_state: state as i64,
        low_power_mode: low_power != 0,
    })
}
