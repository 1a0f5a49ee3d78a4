//! Linux (and whatever else is not macOS): a development node. Nothing here claims to be a Mac.

use std::fs;
use std::process::Command;

use sysinfo::{CpuRefreshKind, RefreshKind, System};

use super::{Power, Presence};
use crate::api::v1alpha1::Chip;
use crate::units::Bytes;

pub(super) fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        // systemd writes the word before the first boot has chosen an id.
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

/// There are none of these.
pub(super) const PANIC_REPORTS: &str = "/Library/Logs/DiagnosticReports";

/// Only a Mac's tells of models.
pub(super) fn wired() -> Option<Bytes> {
    None
}

/// What it would say is no Mac's, and no reader of ours acts on it.
pub(super) fn power() -> Power {
    Power::default()
}

/// As for [`power`].
pub(super) fn presence() -> Presence {
    Presence::default()
}

/// A development machine sleeps when it likes.
pub(super) fn keep_awake() -> Option<Command> {
    None
}

/// MLX's CPU back end has no limit of its own.
pub(super) fn working_set() -> Option<Bytes> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
