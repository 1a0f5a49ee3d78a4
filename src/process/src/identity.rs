//! Identity of a process: pid and start time. Another process that later receives the same pid is
//! not confused with it.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Running or exited process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    pid: i32,
    /// Start time in a form that only this system can compare.
    started: String,
}

impl ProcessId {
    /// Returns the process with this pid. `None` if there is none, or only a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1)?;
        Some(Self {
            pid,
            started: start_of(pid)?,
        })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether this process still runs.
    pub fn is_alive(&self) -> bool {
        start_of(self.pid).as_deref() == Some(self.started.as_str())
    }

    /// Sends SIGTERM. No effect if the process has exited.
    pub fn terminate(&self) -> Result<(), Errno> {
        self.signal_if_alive(|pid| kill(pid, Signal::SIGTERM))
    }

    /// Sends SIGKILL to the process group. No effect if the process has exited.
    pub fn kill_group(&self) -> Result<(), Errno> {
        self.signal_if_alive(|pid| killpg(pid, Signal::SIGKILL))
    }

    fn signal_if_alive(&self, send: impl FnOnce(Pid) -> nix::Result<()>) -> Result<(), Errno> {
        if !self.is_alive() {
            return Ok(());
        }
        match send(Pid::from_raw(self.pid)) {
            // The process has exited meanwhile.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            // macOS returns this error for a group that contains only zombies.
            Err(Errno::EPERM) if !self.is_alive() => Ok(()),
            Err(err) => Err(err),
        }
    }
}

/// Returns the boot id and the clock tick of the start.
#[cfg(target_os = "linux")]
fn start_of(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{}/{}", boot.trim(), start_tick(&stat)?))
}

/// Returns field 22 of `/proc/PID/stat`: the start in clock ticks since boot. `None` for a zombie
/// (field 3). The name (field 2) can contain any character.
#[cfg(target_os = "linux")]
fn start_tick(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the start in Unix seconds, as recorded by the kernel.
#[cfg(not(target_os = "linux"))]
fn start_of(pid: i32) -> Option<String> {
    use sysinfo::{ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};
    let pid = sysinfo::Pid::from_u32(u32::try_from(pid).ok()?);
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        true,
        ProcessRefreshKind::nothing(),
    );
    let process = system.process(pid)?;
    let gone = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
    (!gone).then(|| process.start_time().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_includes_start_time() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        let impostor = ProcessId {
            started: "earlier".to_owned(),
            ..me
        };
        assert!(!impostor.is_alive());
        assert_eq!(
            impostor.kill_group(),
            Ok(()),
            "no signal was sent: this test still runs"
        );
    }

    #[test]
    fn group_of_zombies_counts_as_exited() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert_eq!(id.signal_if_alive(|_| Err(Errno::EPERM)), Err(Errno::EPERM));
        let ends_first = |_| {
            child.kill().unwrap();
            child.wait().unwrap();
            Err(Errno::EPERM)
        };
        assert_eq!(id.signal_if_alive(ends_first), Ok(()));
    }

    #[test]
    fn pids_zero_and_one_have_no_identity() {
        assert_eq!(ProcessId::of(1), None);
        assert_eq!(ProcessId::of(0), None);
        assert_eq!(ProcessId::of(u32::MAX), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn parses_stat_with_brackets_in_the_name() {
        let rest = "1 1 1 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 4711 0 0";
        assert_eq!(start_tick(&format!("7 (a) b) R) S {rest}")), Some(4711));
        assert_eq!(
            start_tick(&format!("7 (a) Z {rest}")),
            None,
            "a zombie does not run"
        );
    }
}
