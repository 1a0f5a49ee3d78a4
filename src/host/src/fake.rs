//! Simulated machine, whose state a test or a simulation sets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use super::{Disk, Identity, Memory, MemoryLevel, PanicReport, Power, Presence};
use rooflet_api::v1alpha1::Chip;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// Memory that the operating system itself has wired.
const ORDINARILY_WIRED: Bytes = Bytes::gib(2);

/// Simulated machine. Clones share their state.
#[derive(Debug, Clone)]
pub struct FakeHost {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    identity: Identity,
    memory: Memory,
    /// `None`: the disk of this machine.
    disk: Option<Disk>,
    power: Power,
    presence: Presence,
    wired: Bytes,
    /// Number of restarts.
    restarts: u32,
    panics: Vec<PanicReport>,
}

impl FakeHost {
    /// Returns a machine with this identity and `total` memory, which is all free.
    pub fn of(identity: Identity, total: Bytes) -> Self {
        let state = State {
            identity,
            memory: Memory {
                total,
                available: total,
                compressible: Bytes::ZERO,
                swapouts: None,
                working_set: None,
                level: None,
            },
            disk: Some(Disk {
                total: Bytes::gib(512),
                free: Bytes::gib(256),
                obtainable: Bytes::gib(256),
            }),
            power: Power::default(),
            presence: Presence::default(),
            wired: ORDINARILY_WIRED,
            restarts: 0,
            panics: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Replaces the simulated disk by the disk of this machine, for workers that write real files.
    pub fn with_native_disk(self) -> Self {
        self.with(|state| state.disk = None);
        self
    }

    /// Returns a machine named `hostname` with `total` memory. The memory is free, and the GPU may
    /// use all of it.
    pub fn new(hostname: &str, total: Bytes) -> Self {
        let identity = Identity {
            machine_id: Some(format!("fake-{hostname}")),
            hostname: hostname.to_owned(),
            chip: Chip {
                name: "Simulated".to_owned(),
                gpu_cores: Some(10),
                cpu_cores: 10,
                machine_model: None,
                development: true,
            },
            operating_system: "simulated".to_owned(),
            os_build: "0".to_owned(),
            os: "linux",
            architecture: "arm64",
        };
        let fake = Self::of(identity, total);
        fake.with(|state| state.memory.working_set = Some(total));
        fake
    }

    pub fn set_power(&self, power: Power) {
        self.with(|state| state.power = power);
    }

    pub fn set_lid_closed(&self, closed: bool) {
        self.with(|state| state.presence.lid_closed = Some(closed));
    }

    /// Sets the time since the last input of a user.
    pub fn set_idle(&self, idle: Duration) {
        self.with(|state| state.presence.idle = Some(idle));
    }

    /// Adds wired memory that only a restart releases.
    pub fn strand(&self, bytes: Bytes) {
        self.with(|state| state.wired += bytes);
    }

    /// Restarts the machine, after a kernel panic if one is given.
    pub fn restart(&self, panic: Option<PanicReport>) {
        self.with(|state| {
            state.restarts += 1;
            state.wired = ORDINARILY_WIRED;
            state.panics.extend(panic);
        });
    }

    /// Adds the report of a kernel panic.
    pub fn report_panic(&self, panic: PanicReport) {
        self.with(|state| state.panics.push(panic));
    }

    pub fn set_available(&self, available: Bytes) {
        self.with(|state| state.memory.available = available);
    }

    /// Sets the memory level that the system reports.
    pub fn set_memory_level(&self, level: MemoryLevel) {
        self.with(|state| state.memory.level = Some(level));
    }

    /// Sets the number of pages written to swap since the start of the system.
    pub fn set_swapouts(&self, pages: u64) {
        self.with(|state| state.memory.swapouts = Some(pages));
    }

    pub(super) fn identity(&self) -> Identity {
        self.with(|state| state.identity.clone())
    }

    pub fn os_build(&self) -> String {
        self.with(|state| state.identity.os_build.clone())
    }

    pub(super) fn memory(&self) -> Memory {
        self.with(|state| state.memory)
    }

    pub(super) fn disk(&self) -> Option<Disk> {
        self.with(|state| state.disk)
    }

    pub(super) fn power(&self) -> Power {
        self.with(|state| state.power)
    }

    pub(super) fn presence(&self) -> Presence {
        self.with(|state| state.presence)
    }

    pub(super) fn wired(&self) -> Bytes {
        self.with(|state| state.wired)
    }

    pub(super) fn boot_id(&self) -> String {
        self.with(|state| format!("start-{}", state.restarts))
    }

    pub(super) fn panics(&self, since: Timestamp) -> Vec<PanicReport> {
        self.with(|state| {
            let recent = state.panics.iter().filter(|panic| panic.at >= since);
            recent.cloned().collect()
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_state() {
        let fake = FakeHost::new("mini-1", Bytes::gib(16));
        fake.clone().set_available(Bytes::gib(3));
        assert_eq!(fake.memory().available, Bytes::gib(3));
        assert_eq!(fake.memory().total, Bytes::gib(16));
    }
}
