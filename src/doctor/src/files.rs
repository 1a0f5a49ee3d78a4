//! Checks of directories and of the limit of open files.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use nix::sys::resource::{Resource, getrlimit};

use super::check::{Check, milliseconds};
use super::file_system;
use rooflet_base::units::Bytes;
use rooflet_host::Host;

/// Free disk space in percent below which the agent reports disk pressure.
const DISK_PRESSURE: f64 = 5.0;
/// Free disk space in percent below which the check warns.
const DISK_LOW: f64 = 10.0;
/// Time of a synchronous write above which the check warns. A slower disk delays every write of the
/// control plane.
const SLOW_SYNC: Duration = Duration::from_millis(50);
const SYNCS: usize = 9;
/// Files and connections that a node with a few models needs.
const OPEN_FILES: u64 = 4096;

/// Checks a directory, or its nearest existing parent. The findings do not contain the path.
pub(super) fn checks(host: &Host, name: &str, directory: &Utf8Path) -> Vec<Check> {
    let existing = nearest_existing(directory);
    vec![
        space(host, name, existing),
        sync(name, existing),
        locks(name, existing),
        file_system::kind(name, existing),
    ]
}

/// Checks the agent's own directory: watches, sockets and backups.
pub(super) fn state_checks(host: &Host, directory: &Utf8Path) -> Vec<Check> {
    let name = "state directory";
    let mut checks = checks(host, name, directory);
    checks.push(file_system::events(name, nearest_existing(directory)));
    checks.push(file_system::sockets(directory));
    checks.extend(file_system::exclusion(directory));
    checks
}

fn nearest_existing(directory: &Utf8Path) -> &Utf8Path {
    let existing = directory.ancestors().find(|path| path.is_dir());
    existing.unwrap_or(Utf8Path::new("/"))
}

fn space(host: &Host, name: &str, directory: &Utf8Path) -> Check {
    let check = format!("{name}: space");
    let disk = match host.disk(directory) {
        Ok(disk) => disk,
        Err(err) => return Check::fail(&check, err.to_string(), "choose another directory"),
    };
    let percent = 100.0 * disk.free.0 as f64 / disk.total.0.max(1) as f64;
    let on_demand = disk.obtainable - disk.free;
    let on_demand = match on_demand {
        Bytes::ZERO => String::new(),
        more => format!(", {more} more by deleting caches and snapshots"),
    };
    let finding = format!("{} of {} free ({percent:.0} %){on_demand}", disk.free, disk.total);
    let remedy = "delete files, or use a directory on another disk";
    if percent < DISK_PRESSURE {
        Check::fail(
            &check,
            format!("{finding}: disk pressure, no replica starts"),
            remedy,
        )
    } else if percent < DISK_LOW {
        Check::warn(&check, finding, remedy)
    } else {
        Check::ok(&check, finding)
    }
}

fn sync(name: &str, directory: &Utf8Path) -> Check {
    let check = format!("{name}: durable write");
    match median_sync(directory) {
        Err(err) => Check::fail(
            &check,
            err.to_string(),
            "make the directory writable for this user",
        ),
        Ok(median) => {
            let finding = milliseconds(median);
            match median > SLOW_SYNC {
                true => Check::warn(&check, finding, "use a local disk"),
                false => Check::ok(&check, finding),
            }
        }
    }
}

/// Checks that a second lock of a file is refused. Agent and server lock their directories, and
/// some network volumes ignore locks.
fn locks(name: &str, directory: &Utf8Path) -> Check {
    let check = format!("{name}: locks");
    let path = directory.join(format!(".rooflet-doctor-lock-{}", std::process::id()));
    let refused = File::create(&path).and_then(|first| {
        first.try_lock()?;
        let second = File::open(&path)?;
        Ok(matches!(second.try_lock(), Err(TryLockError::WouldBlock)))
    });
    drop(std::fs::remove_file(&path));
    match refused {
        Ok(true) => Check::ok(&check, "a locked file cannot be locked again"),
        Ok(false) => Check::fail(
            &check,
            "locks have no effect: two agents could use the same directory",
            "use a local disk",
        ),
        Err(err) => Check::fail(
            &check,
            err.to_string(),
            "make the directory writable for this user, or use a local disk",
        ),
    }
}

/// Returns the median time of a write of 4 KiB that survives a power failure.
#[expect(clippy::disallowed_methods, reason = "the time of a disk is the real clock's")]
fn median_sync(directory: &Utf8Path) -> io::Result<Duration> {
    let path = directory.join(format!(".rooflet-doctor-{}", std::process::id()));
    let measured = File::create(&path).and_then(|mut file| {
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let start = Instant::now();
            file.write_all(&[0; 4096])?;
            file.sync_all()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[SYNCS / 2])
    });
    drop(std::fs::remove_file(&path));
    measured
}

pub(super) fn open_files() -> Check {
    let name = "open files";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Err(err) => Check::unknown(name, err.to_string()),
        Ok((limit, _)) if limit < OPEN_FILES => Check::warn(
            name,
            format!("up to {limit}"),
            "raise the hard limit of this user, such as with `ulimit -Hn`",
        ),
        Ok((limit, _)) => Check::ok(name, format!("up to {limit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use rooflet_testing::TempDir;

    #[test]
    fn writable_directory_of_this_machine_has_locks_and_space() {
        let directory = TempDir::new();
        let checks = state_checks(&Host::Native, &directory.path().join("not/yet/there"));
        let names: Vec<_> = checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "state directory: space",
                "state directory: durable write",
                "state directory: locks",
                "state directory: file system",
                "state directory: file events",
                "sockets",
            ]
        );
        assert!(
            checks[1..].iter().all(|check| check.status != Status::Fail),
            "{checks:?}"
        );
        let left = directory.path().read_dir_utf8().unwrap().count();
        assert_eq!(left, 0, "temporary files are deleted");
    }
}
