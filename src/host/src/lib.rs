//! Facts about the machine: identity, memory, disk, power, presence of a user. Read-only.
//!
//! [`Host::Native`] asks the operating system. [`Host::Fake`] is a machine made of values, for
//! tests and simulated fleets.

pub mod disk;
mod fake;
#[cfg(not(target_os = "macos"))]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod panic_report;
#[cfg(any(target_os = "macos", test))]
mod vm_statistics;

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;
use nix::sys::statvfs::statvfs;
use sysinfo::{NetworkData, Networks, System};

#[cfg(not(target_os = "macos"))]
use linux as native;
#[cfg(target_os = "macos")]
use macos as native;

pub use fake::FakeHost;
pub use panic_report::{PanicReport, PanicReports};

use rooflet_api::v1alpha1::{Chip, PowerSource, ThermalState};
use rooflet_base::units::Bytes;

/// By which other machines may reach this one: those of its network interfaces, without loopback
/// and link-local ones.
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

/// Where facts about the machine come from.
#[derive(Debug, Clone)]
pub enum Host {
    /// This machine.
    Native,
    /// A machine that is what it is told to be.
    Fake(FakeHost),
}

/// What stays the same while the machine is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The same across restarts and reinstalls; `None` where the machine has none (many
    /// containers).
    pub machine_id: Option<String>,
    pub hostname: String,
    pub chip: Chip,
    /// Name and version for people, such as `macOS 26.4.1`.
    pub operating_system: String,
    pub os_build: String,
    /// As the label `kubernetes.io/os` has it: `darwin` or `linux`.
    pub os: &'static str,
    /// As the label `kubernetes.io/arch` has it: `arm64` or `amd64`.
    pub architecture: &'static str,
}

/// Main memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub total: Bytes,
    /// What a new program could have at once, without others being swapped out or compressed: what
    /// is free, and what caches hold of files.
    pub available: Bytes,
    /// The most the GPU should hold at a time, where it says so.
    pub working_set: Option<Bytes>,
    /// How the system itself judges it, where it does.
    pub level: Option<MemoryLevel>,
}

/// How short memory is, in the system's own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "macos"),
    allow(dead_code, reason = "only macOS has a word for it")
)]
pub enum MemoryLevel {
    Normal,
    Low,
    Critical,
}

/// A file system at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub total: Bytes,
    pub free: Bytes,
}

/// How the machine is cooled and fed at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Power {
    pub thermal_state: ThermalState,
    pub source: PowerSource,
    /// `None` where the system does not tell.
    pub low_power_mode: Option<bool>,
}

/// What the machine's owner does with it at one moment; `None` where the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Presence {
    pub lid_closed: Option<bool>,
    /// Since the last touch of keyboard, mouse or trackpad.
    pub idle: Option<Duration>,
}

impl Host {
    pub fn identity(&self) -> Identity {
        match self {
            Self::Native => Identity {
                machine_id: native::machine_id(),
                hostname: System::host_name().unwrap_or_else(|| "localhost".to_owned()),
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
            Self::Fake(fake) => fake.identity(),
        }
    }

    /// Another one with every start of the machine; `None` where the system does not tell.
    pub fn boot_id(&self) -> Option<String> {
        match self {
            Self::Native => native::boot_id(),
            Self::Fake(fake) => Some(fake.boot_id()),
        }
    }

    pub fn memory(&self) -> Memory {
        match self {
            Self::Native => native_memory(),
            Self::Fake(fake) => fake.memory(),
        }
    }

    pub fn power(&self) -> Power {
        match self {
            Self::Native => native::power(),
            Self::Fake(fake) => fake.power(),
        }
    }

    pub fn presence(&self) -> Presence {
        match self {
            Self::Native => native::presence(),
            Self::Fake(fake) => fake.presence(),
        }
    }

    /// Memory that cannot be swapped out, all programs' and the kernel's; `None` where the system
    /// does not tell.
    pub fn wired(&self) -> Option<Bytes> {
        match self {
            Self::Native => native::wired(),
            Self::Fake(fake) => Some(fake.wired()),
        }
    }

    /// The kernel's panics since then.
    pub fn panics(&self, since: Timestamp) -> PanicReports {
        match self {
            Self::Native => panic_report::read(Utf8Path::new(native::PANIC_REPORTS), since),
            Self::Fake(fake) => PanicReports {
                read: fake.panics(since),
                unreadable: None,
            },
        }
    }

    /// The file system that holds `path`.
    pub fn disk(&self, path: &Utf8Path) -> io::Result<Disk> {
        let known = match self {
            Self::Native => None,
            Self::Fake(fake) => fake.disk(),
        };
        known.map_or_else(|| native_disk(path), Ok)
    }
}

fn native_disk(path: &Utf8Path) -> io::Result<Disk> {
    let stat = statvfs(path.as_std_path())?;
    // The C types of these differ in width between systems.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    let (unit, blocks, free, available) = (
        stat.fragment_size() as u64,
        u64::from(stat.blocks()),
        u64::from(stat.blocks_free()),
        u64::from(stat.blocks_available()),
    );
    Ok(disk_of_blocks(Bytes(unit), blocks, free, available))
}

/// Returns the disk without the blocks reserved for root, which no agent can use. `df` calculates
/// its `Use%` the same way: the total is the used plus the available blocks.
fn disk_of_blocks(unit: Bytes, blocks: u64, free: u64, available: u64) -> Disk {
    Disk {
        total: unit * (blocks.saturating_sub(free) + available),
        free: unit * available,
    }
}

/// What keeps the machine from falling asleep by itself as long as it runs, where there is such a
/// thing. It ends with this process.
pub fn keep_awake() -> Option<Command> {
    native::keep_awake()
}

fn native_memory() -> Memory {
    let (total, available) = native::memory();
    Memory {
        total,
        available,
        working_set: native::working_set(),
        level: native::memory_level(),
    }
}

/// Kubernetes uses Go's names of architectures.
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
    fn only_addresses_that_others_reach_are_told() {
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
        let memory = host.memory();
        assert!(
            memory.available > Bytes::ZERO && memory.available <= memory.total,
            "{memory:?}"
        );
        let disk = host.disk(Utf8Path::new("/")).unwrap();
        assert!(disk.free <= disk.total && disk.total > Bytes::ZERO);
        assert!(host.disk(Utf8Path::new("/does/not/exist")).is_err());
    }
}
