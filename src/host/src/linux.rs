//! Facts about Linux and other systems, which are development nodes.

use std::fs;
use std::io;
use std::ops::Range;
use std::process::Command;

use camino::Utf8Path;
use jiff::Timestamp;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::{Memory, Power, Presence};
use crate::facts::Facts;
use rooflet_api::v1alpha1::Chip;
use rooflet_base::units::Bytes;

pub(super) fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        // systemd writes "uninitialized" until the first boot has generated an id.
        .find(|id| !id.is_empty() && id != "uninitialized")
}

pub(super) fn chip() -> Chip {
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(kind);
    let brand = system
        .cpus()
        .first()
        .map(|cpu| cpu.brand().trim().to_owned())
        .unwrap_or_default();
    Chip {
        name: if brand.is_empty() {
            format!("{} processor", std::env::consts::ARCH)
        } else {
            brand
        },
        gpu_cores: None,
        cpu_cores: std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        machine_model: fs::read_to_string("/sys/class/dmi/id/product_name")
            .ok()
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty()),
        development: true,
    }
}

pub(super) fn operating_system() -> String {
    fs::read_to_string("/etc/os-release")
        .ok()
        .and_then(|text| pretty_name(&text))
        .unwrap_or_else(|| std::env::consts::OS.to_owned())
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let name = value.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

pub(super) fn os_build() -> String {
    System::kernel_version().unwrap_or_default()
}

pub(super) fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Returns `None`: only a Mac has these facts.
pub(super) fn boot_time() -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(System::boot_time()).ok()?).ok()
}

pub(super) fn facts() -> Option<&'static dyn Facts> {
    None
}

/// Returns the memory without a working set, which MLX's CPU back end does not have, and without a
/// level. The Linux kernel reports stalls instead of a level.
pub(super) fn memory() -> Memory {
    let (total, available) = total_and_available();
    Memory {
        total,
        available,
        compressible: Bytes::ZERO,
        swapouts: None,
        working_set: None,
        level: None,
    }
}

fn total_and_available() -> (Bytes, Bytes) {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind);
    let (total, available) = (Bytes(system.total_memory()), Bytes(system.available_memory()));
    // In a container, the limit of the control group applies instead of the machine's memory.
    match group_memory() {
        Some((limit, left)) if limit < total => (limit, available.min(left)),
        Some(_) | None => (total, available),
    }
}

/// Returns the memory limit of this process's control group, and the available part of it. Memory
/// of file caches is available, because the kernel releases it on demand.
fn group_memory() -> Option<(Bytes, Bytes)> {
    let read = |path: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}")).ok();
    let second = || {
        let stat = read("memory.stat")?;
        let cached = ["inactive_file", "active_file", "slab_reclaimable"];
        left_of(&read("memory.max")?, &read("memory.current")?, &stat, &cached)
    };
    let first = || {
        let stat = read("memory/memory.stat")?;
        let cached = ["total_inactive_file", "total_active_file"];
        let limit = read("memory/memory.limit_in_bytes")?;
        left_of(&limit, &read("memory/memory.usage_in_bytes")?, &stat, &cached)
    };
    second().or_else(first)
}

/// Parses the files of a control group: the limit (`max`: none), the used memory, and the
/// statistics with the cached part of it. Returns the limit and the available memory.
fn left_of(limit: &str, used: &str, stat: &str, cached: &[&str]) -> Option<(Bytes, Bytes)> {
    let number = |text: &str| text.trim().parse::<u64>().ok().map(Bytes);
    let cached: Bytes = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| cached.contains(name))
        .filter_map(|(_, value)| number(value))
        .sum();
    let limit = number(limit)?;
    Some((limit, limit - (number(used)? - cached)))
}

/// Directory of panic reports on macOS. It does not exist on other systems.
pub(super) const PANIC_REPORTS: &str = "/Library/Logs/DiagnosticReports";

pub(super) fn file_system(path: &Utf8Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    file_system_of(&mounts, &path.canonicalize_utf8().ok()?)
}

/// Returns the type of the last mounted file system whose mount point contains `path`. A line of
/// `mountinfo` has five fields that end with the mount point, and the type after ` - ` (proc(5)).
fn file_system_of(mounts: &str, path: &Utf8Path) -> Option<String> {
    let mounted = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        // The kernel escapes spaces.
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        let kind = source.split(' ').next()?.to_owned();
        path.starts_with(&point).then_some((point.len(), kind))
    });
    mounted.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

pub(super) fn swap_used() -> Option<Bytes> {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_swap());
    Some(Bytes(System::new_with_specifics(kind).used_swap()))
}

/// Returns `None`: wired memory does not leak on these systems.
pub(super) fn wired() -> Option<Bytes> {
    None
}

/// Returns `None`: rooflet does not read the statistics of other drivers.
pub(super) fn gpu_use() -> Option<f64> {
    None
}

/// Returns `None`, for the same reason as [`wired`].
pub(super) fn gpu_memory() -> Option<Bytes> {
    None
}

/// Returns the default: rooflet does not read the power state of a development machine.
pub(super) fn power() -> Power {
    Power::default()
}

/// Returns the default, for the same reason as [`power`].
pub(super) fn presence() -> Presence {
    Presence::default()
}

pub(super) fn local_host_name() -> Option<String> {
    None
}

/// Returns the sizes of the file system that contains `path`: bytes per block, and the number of
/// blocks in total, free, and free for ordinary users.
// The width of these C types differs between systems.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
#[expect(clippy::disallowed_methods, reason = "its counts have 64 bits on Linux")]
pub(super) fn blocks(path: &Utf8Path) -> io::Result<(u64, u64, u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path.as_std_path())?;
    Ok((
        stat.fragment_size() as u64,
        u64::from(stat.blocks()),
        u64::from(stat.blocks_free()),
        u64::from(stat.blocks_available()),
    ))
}

pub(super) fn obtainable_disk(_path: &Utf8Path) -> Option<Bytes> {
    None
}

pub(super) fn exclude_from_backup(_path: &Utf8Path) {}

pub(super) fn is_excluded_from_backup(_path: &Utf8Path) -> Option<bool> {
    None
}

pub(super) fn prioritise_thread() {}

/// Releases the freed memory that glibc keeps below the last used address. Has no effect with other
/// allocators, which have no function for this.
pub(super) fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator's interface is C")]
    // SAFETY: malloc_trim takes an integer, and does not touch allocated memory.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Unmaps the pages of this program's code and of its libraries. The kernel maps a page again when its code
/// runs, usually from the page cache.
pub(super) fn release_code() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for code in maps.lines().filter_map(code) {
        let start = std::ptr::with_exposed_provenance_mut(code.start);
        #[expect(unsafe_code, reason = "the kernel's interface is C")]
        // SAFETY: the mapping is that of a file and not writable, so its pages are those of the file before
        // and after the call.
        unsafe {
            nix::libc::madvise(start, code.len(), nix::libc::MADV_DONTNEED);
        }
    }
}

/// Returns the addresses of a line of `/proc/self/maps` (proc(5)) if it is executable and from a file.
fn code(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    is_code.then_some(address(start)?..address(end)?)
}

/// Returns `None`: rooflet does not prevent sleep of a development machine.
pub(super) fn keep_awake() -> Option<Command> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_is_that_of_the_longest_mount_point() {
        let mounts = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      30 27 0:24 / /mnt/fast\\040disk rw shared:5 - btrfs /dev/vdb rw\n\
                      31 27 0:30 / /mnt rw - nfs4 server:/a rw\n\
                      32 27 0:31 / /mnt rw - tmpfs none rw\n";
        let kind = |path: &str| file_system_of(mounts, Utf8Path::new(path));
        assert_eq!(kind("/home/me").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/fast disk/models").as_deref(), Some("btrfs"));
        assert_eq!(
            kind("/mnt/other").as_deref(),
            Some("tmpfs"),
            "the last one is on top"
        );
        assert_eq!(kind("/mnt-2").as_deref(), Some("ext4"));
        assert_eq!(file_system_of("", Utf8Path::new("/")), None);
    }

    #[test]
    fn code_is_executable_and_from_a_file() {
        // Lines of the example in proc(5), and of a program with an anonymous executable mapping.
        assert_eq!(
            code("00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon"),
            Some(0x0040_0000..0x0045_2000)
        );
        for other in [
            "00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/dbus-daemon",
            "00652000-00655000 rw-p 00052000 08:02 173521      /usr/bin/dbus-daemon",
            "7fffb2d48000-7fffb2d49000 r-xp 00000000 00:00 0   [vdso]",
            "35b1a21000-35b1a22000 r-xp 00000000 00:00 0",
        ] {
            assert_eq!(code(other), None, "{other}");
        }
    }

    /// Returns the resident size of this program's code, in KiB.
    #[cfg(target_os = "linux")]
    fn resident_code() -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").expect("the mappings of this process");
        let mut is_code = false;
        let sizes = maps.lines().filter_map(|line| match line.strip_prefix("Rss:") {
            Some(size) if is_code => size.trim().strip_suffix(" kB")?.parse::<u64>().ok(),
            Some(_) => None,
            None => {
                // Other lines of a mapping start with a name and a colon.
                let name = line.split(' ').next().unwrap_or_default();
                if !name.ends_with(':') {
                    is_code = code(line).is_some();
                }
                None
            }
        });
        sizes.sum()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_code_is_not_resident() {
        let maps = fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
        for address in maps.lines().filter_map(code).flat_map(|code| code.step_by(4096)) {
            let byte = std::ptr::with_exposed_provenance::<u8>(address);
            #[expect(unsafe_code, reason = "code is read as data")]
            // SAFETY: the address is that of a page that the process can read.
            unsafe {
                byte.read_volatile();
            }
        }
        let before = resident_code();
        release_code();
        let after = resident_code();
        assert!(after < before / 2, "{after} of {before} KiB");
    }

    #[test]
    fn file_caches_count_as_available() {
        // The forms of Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
        let stat = "anon 600\nfile 350\nslab_reclaimable 50\ninactive_file 200\nactive_file 100\n";
        let cached = ["inactive_file", "active_file", "slab_reclaimable"];
        let left = left_of("1000\n", "950\n", stat, &cached);
        assert_eq!(left, Some((Bytes(1000), Bytes(400))));
        assert_eq!(left_of("max\n", "950\n", stat, &cached), None);
        let old = "cache 350\ninactive_file 7\ntotal_inactive_file 200\ntotal_active_file 100\n";
        let left = left_of("1000", "950", old, &["total_inactive_file", "total_active_file"]);
        assert_eq!(left, Some((Bytes(1000), Bytes(350))));
        assert_eq!(left_of("1000", "", old, &[]), None);
    }

    #[test]
    fn the_pretty_name_is_read_with_and_without_quotes() {
        assert_eq!(
            pretty_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n").as_deref(),
            Some("Debian GNU/Linux 12")
        );
        assert_eq!(pretty_name("PRETTY_NAME=Alpine").as_deref(), Some("Alpine"));
        assert_eq!(pretty_name("ID=x"), None);
    }
}
