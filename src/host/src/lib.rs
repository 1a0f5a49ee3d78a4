//! Facts about the machine: identity, memory, disk, power, presence of a user. Read-only.
//!
//! [`Host::Native`] reads from the operating system. [`Host::Recorded`] repeats the facts of a Mac,
//! and [`Host::Fake`] is a simulated machine, for tests and simulated fleets.

pub mod cache_dir;
pub mod disk;
pub mod facts;
mod fake;
pub mod freed_memory;
#[cfg(not(target_os = "macos"))]
mod linux;
mod mac;
#[cfg(target_os = "macos")]
mod macos;
mod panic_report;
pub mod sleep;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;
use sysinfo::{NetworkData, Networks, System};

#[cfg(not(target_os = "macos"))]
use linux as native;
#[cfg(target_os = "macos")]
use macos as native;

use facts::{Facts, RecordedFacts};

pub use fake::FakeHost;
pub use panic_report::{PanicCause, PanicReport, PanicReports};

use rooflet_api::v1alpha1::{Chip, PowerSource, ThermalState};
use rooflet_base::units::Bytes;

/// Returns freed memory of this process to the system. Allocators otherwise keep the memory of many
/// small values.
pub fn release_freed_memory() {
    native::release_freed_memory();
}

/// Returns the addresses of the network interfaces, without loopback and link-local addresses.
pub fn addresses() -> Vec<IpAddr> {
    let networks = Networks::new_with_refreshed_list();
    let mut addresses: Vec<IpAddr> = networks
        .values()
        .flat_map(NetworkData::ip_networks)
        .map(|network| network.addr)
        .filter(|address| is_reachable(*address))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn is_reachable(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local
}

/// Source of facts about the machine.
#[derive(Debug, Clone)]
pub enum Host {
    /// This machine.
    Native,
    /// A Mac whose facts were recorded. Its host name, disks and panic reports are this machine's.
    Recorded(Arc<RecordedFacts>),
    /// Simulated machine.
    Fake(FakeHost),
}

/// Facts that stay the same while the machine is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Id that is stable across restarts and reinstallations. `None` if the machine has none, as in
    /// many containers.
    pub machine_id: Option<String>,
    pub hostname: String,
    pub chip: Chip,
    /// Name and version for people, such as `macOS 26.4.1`.
    pub operating_system: String,
    pub os_build: String,
    /// Value of the label `kubernetes.io/os`: `darwin` or `linux`.
    pub os: &'static str,
    /// Value of the label `kubernetes.io/arch`: `arm64` or `amd64`.
    pub architecture: &'static str,
}

/// Main memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: Bytes,
    /// Memory that a new program can use without compressing or swapping memory of other programs:
    /// free memory and file caches.
    pub available: Bytes,
    /// Memory beyond `available` that the system frees by compressing idle memory.
    pub compressible: Bytes,
    /// Pages written to swap files since the system started, if the system counts them.
    pub swapouts: Option<u64>,
    /// Memory that the GPU can use without slowing down, if the system reports it.
    pub working_set: Option<Bytes>,
    /// The system's own level, if it has one.
    pub level: Option<MemoryLevel>,
}

impl Memory {
    /// Returns the memory that a new program can use without swapping.
    pub fn obtainable(&self) -> Bytes {
        self.available + self.compressible
    }
}

/// Memory level in the system's own terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLevel {
    Normal,
    /// `warn`.
    Low,
    Critical,
}

/// A file system at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub total: Bytes,
    pub free: Bytes,
    /// Free space, and space that the system frees for files that a user needs. On a Mac, the
    /// system frees caches and local snapshots.
    pub obtainable: Bytes,
}

/// Temperature and power supply at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Power {
    pub thermal_state: ThermalState,
    pub source: PowerSource,
    /// `None` if the system does not report it.
    pub low_power_mode: Option<bool>,
}

/// Use of the machine by a person at one moment; `None` if the system does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Presence {
    /// True if the lid is closed and the closed lid puts the machine to sleep.
    pub lid_closed: Option<bool>,
    /// Time since the last input from keyboard, mouse or trackpad.
    pub idle: Option<Duration>,
}

impl Host {
    pub fn identity(&self) -> Identity {
        let hostname = || System::host_name().unwrap_or_else(|| "localhost".to_owned());
        match self {
            Self::Native => Identity {
                machine_id: native::machine_id(),
                hostname: hostname(),
                chip: native::chip(),
                operating_system: native::operating_system(),
                os_build: native::os_build(),
                os: if cfg!(target_os = "macos") {
                    "darwin"
                } else {
                    std::env::consts::OS
                },
                architecture: kubernetes_architecture(std::env::consts::ARCH),
            },
            Self::Recorded(facts) => Identity {
                machine_id: mac::machine_id(&**facts),
                hostname: hostname(),
                chip: mac::chip(&**facts),
                operating_system: mac::operating_system(&**facts),
                os_build: mac::os_build(&**facts),
                os: "darwin",
                architecture: "arm64",
            },
            Self::Fake(fake) => fake.identity(),
        }
    }

    /// Returns the Mac's raw facts; `None` on other machines.
    pub fn facts(&self) -> Option<&dyn Facts> {
        match self {
            Self::Native => native::facts(),
            Self::Recorded(facts) => Some(&**facts),
            Self::Fake(_) => None,
        }
    }

    /// Returns an id that changes with every start of the machine; `None` if the system has none.
    pub fn boot_id(&self) -> Option<String> {
        match self {
            Self::Native => native::boot_id(),
            Self::Recorded(facts) => mac::boot_id(&**facts),
            Self::Fake(fake) => Some(fake.boot_id()),
        }
    }

    /// Returns the time at which the system started; `None` if unknown.
    pub fn boot_time(&self) -> Option<Timestamp> {
        match self {
            Self::Native => native::boot_time(),
            Self::Recorded(facts) => mac::boot_time(&**facts),
            Self::Fake(_) => None,
        }
    }

    pub fn memory(&self) -> Memory {
        match self {
            Self::Native => native::memory(),
            Self::Recorded(facts) => mac::memory(&**facts),
            Self::Fake(fake) => fake.memory(),
        }
    }

    pub fn power(&self) -> Power {
        match self {
            Self::Native => native::power(),
            Self::Recorded(facts) => mac::power(&**facts),
            Self::Fake(fake) => fake.power(),
        }
    }

    pub fn presence(&self) -> Presence {
        match self {
            Self::Native => native::presence(),
            Self::Recorded(facts) => mac::presence(&**facts),
            Self::Fake(fake) => fake.presence(),
        }
    }

    /// Returns the memory of all programs and the kernel that cannot be swapped out; `None` if the
    /// system does not report it.
    pub fn wired(&self) -> Option<Bytes> {
        match self {
            Self::Native => native::wired(),
            Self::Recorded(facts) => mac::wired(&**facts),
            Self::Fake(fake) => Some(fake.wired()),
        }
    }

    /// Returns the memory that the GPU's driver holds for all programs; `None` if the system does
    /// not report it.
    pub fn gpu_memory(&self) -> Option<Bytes> {
        match self {
            Self::Native => native::gpu_memory(),
            Self::Recorded(facts) => mac::gpu_memory(&**facts),
            Self::Fake(_) => None,
        }
    }

    /// Returns the load of the CPU and the GPU.
    pub fn load(&self) -> Load {
        match self {
            Self::Native => Load {
                cpu: cpu_load(),
                gpu: native::gpu_use(),
            },
            Self::Recorded(facts) => Load {
                cpu: None,
                gpu: mac::gpu_use(&**facts),
            },
            Self::Fake(_) => Load::default(),
        }
    }

    /// Returns the used swap space; `None` if the system does not report it.
    pub fn swap_used(&self) -> Option<Bytes> {
        match self {
            Self::Native => native::swap_used(),
            Self::Recorded(facts) => mac::swap_used(&**facts),
            Self::Fake(_) => None,
        }
    }

    /// Returns the kernel panics since a time.
    pub fn panics(&self, since: Timestamp) -> PanicReports {
        match self {
            Self::Native | Self::Recorded(_) => {
                panic_report::read(Utf8Path::new(native::PANIC_REPORTS), since)
            }
            Self::Fake(fake) => PanicReports {
                read: fake.panics(since),
                unreadable: None,
            },
        }
    }

    /// Returns true if the system writes reports of kernel panics.
    pub fn reports_panics(&self) -> bool {
        match self {
            Self::Native => cfg!(target_os = "macos"),
            Self::Recorded(_) | Self::Fake(_) => true,
        }
    }

    /// Returns the file system that holds `path`.
    pub fn disk(&self, path: &Utf8Path) -> io::Result<Disk> {
        let known = match self {
            Self::Native | Self::Recorded(_) => None,
            Self::Fake(fake) => fake.disk(),
        };
        known.map_or_else(|| native_disk(path), Ok)
    }
}

/// Load of a machine. A figure that the system does not report is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Mean number of running threads in the last minute, per CPU core.
    pub cpu: Option<f64>,
    /// Share of the time in which the GPU was busy.
    pub gpu: Option<f64>,
}

fn cpu_load() -> Option<f64> {
    let cores = std::thread::available_parallelism().ok()?;
    let load = sysinfo::System::load_average().one;
    Some(load / cores.get() as f64)
}

/// Returns the type of the file system that holds `path`, such as `apfs` or `ext4`. `None` if the
/// system does not report it.
pub fn file_system(path: &Utf8Path) -> Option<String> {
    native::file_system(path)
}

fn native_disk(path: &Utf8Path) -> io::Result<Disk> {
    let (unit, blocks, free, available) = native::blocks(path)?;
    let disk = disk_of_blocks(Bytes(unit), blocks, free, available);
    Ok(Disk {
        obtainable: native::obtainable_disk(path).map_or(disk.free, |space| space.max(disk.free)),
        ..disk
    })
}

/// Returns the name of this machine in the local network, if it has such a name. Unlike the host
/// name, it does not change with the network.
pub fn local_host_name() -> Option<String> {
    native::local_host_name()
}

/// Raises the priority of the calling thread to that of work for which a user waits.
pub fn prioritise_thread() {
    native::prioritise_thread();
}

/// Returns the disk without the blocks reserved for root, which no agent can use. `df` calculates
/// its `Use%` the same way: the total is the used plus the available blocks.
fn disk_of_blocks(unit: Bytes, blocks: u64, blocks_free: u64, available: u64) -> Disk {
    let free = unit * available;
    Disk {
        total: unit * (blocks.saturating_sub(blocks_free) + available),
        free,
        obtainable: free,
    }
}

/// Returns the Kubernetes name of an architecture, which is that of Go.
fn kubernetes_architecture(rust: &'static str) -> &'static str {
    match rust {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_addresses_are_omitted() {
        for (address, expect) in [
            ("192.0.2.7", true),
            ("2001:db8::7", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(
                is_reachable(address.parse().expect("an address")),
                expect,
                "{address}"
            );
        }
    }

    /// `df` shows 83 % used for these blocks of an ext4 file system with a large reserve.
    #[test]
    fn blocks_reserved_for_root_do_not_count() {
        let disk = disk_of_blocks(Bytes(4096), 66_053_021, 46_433_935, 4_256_230);
        let used_percent = 100.0 * (1.0 - disk.free.0 as f64 / disk.total.0 as f64);
        assert_eq!(used_percent.ceil(), 83.0);
    }

    #[test]
    fn this_machine_has_a_name_memory_and_a_disk() {
        let host = Host::Native;
        let identity = host.identity();
        assert!(!identity.hostname.is_empty() && !identity.operating_system.is_empty());
        assert!(!identity.chip.name.is_empty() && identity.chip.cpu_cores > 0);
        assert_eq!(identity, host.identity(), "identity is stable");
        assert!(host.boot_time().is_some_and(|boot| boot > Timestamp::UNIX_EPOCH));
        let memory = host.memory();
        assert!(
            memory.available > Bytes::ZERO && memory.available <= memory.total,
            "{memory:?}"
        );
        let disk = host.disk(Utf8Path::new("/")).unwrap();
        assert!(disk.free <= disk.total && disk.free <= disk.obtainable && disk.total > Bytes::ZERO);
        assert!(host.disk(Utf8Path::new("/does/not/exist")).is_err());
        assert!(file_system(Utf8Path::new("/")).is_some_and(|kind| !kind.is_empty()));
        assert_eq!(file_system(Utf8Path::new("/does/not/exist")), None);
    }
}
