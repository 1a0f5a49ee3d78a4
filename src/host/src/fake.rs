//! A machine made of values.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use super::{Disk, Identity, Memory, MemoryLevel, PanicReport, Power, Presence};
use rooflet_api::v1alpha1::Chip;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;

/// What the system itself keeps from being swapped out.
const ORDINARILY_WIRED: Bytes = Bytes::gib(2);

/// Clones are the same machine: what is set on one shows on all.
#[derive(Debug, Clone)]
pub struct FakeHost {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    identity: Identity,
    memory: Memory,
    /// `None`: that of this machine.
    disk: Option<Disk>,
    power: Power,
    presence: Presence,
    wired: Bytes,
    /// Number of restarts.
    restarts: u32,
    panics: Vec<PanicReport>,
}

impl FakeHost {
    /// A machine that is what `identity` says, with `total` memory, all of it free.
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

    /// The same machine with the disk of this one, for workers that really write to it.
    pub fn with_native_disk(self) -> Self {
        self.with(|state| state.disk = None);
        self
    }

    /// A machine named `hostname` with `total` memory, all of it free and all of it for the GPU.
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

    /// Since when nobody has touched it.
    pub fn set_idle(&self, idle: Duration) {
        self.with(|state| state.presence.idle = Some(idle));
    }

    /// So much more stays wired until the machine is started again.
    pub fn strand(&self, bytes: Bytes) {
        self.with(|state| state.wired += bytes);
    }

    /// It is started again, after a panic if there was one.
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

    /// The system reports this level of memory.
    pub fn set_memory_level(&self, level: MemoryLevel) {
        self.with(|state| state.memory.level = Some(level));
    }

    /// The system has written so many pages to swap since it started.
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
    fn clones_are_the_same_machine() {
        let fake = FakeHost::new("mini-1", Bytes::gib(16));
        fake.clone().set_available(Bytes::gib(3));
        assert_eq!(fake.memory().available, Bytes::gib(3));
        assert_eq!(fake.memory().total, Bytes::gib(16));
    }
}
