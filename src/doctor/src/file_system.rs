//! Checks of the properties of a file system: type, case of names, events of changes, and the
//! exclusion from backups.

use std::fs;
use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use notify::{RecursiveMode, Watcher as _};

use super::check::{Check, milliseconds};
use rooflet_host::cache_dir;

/// Timeout until the event of a change arrives.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Types of file systems on other machines.
const NETWORK: [&str; 10] = [
    "9p", "afpfs", "afs", "ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs", "webdav",
];
/// Types of file systems without owners and permissions of files.
const WITHOUT_OWNERS: [&str; 4] = ["exfat", "msdos", "ntfs", "vfat"];

/// Checks the type of the file system, and whether names are case-sensitive.
pub(super) fn kind(name: &str, directory: &Utf8Path) -> Check {
    let check = format!("{name}: file system");
    let case = match ignores_case(directory) {
        Ok(true) => "case-insensitive",
        Ok(false) => "case-sensitive",
        Err(err) => {
            return Check::fail(
                &check,
                err.to_string(),
                "make the directory writable for this user",
            );
        }
    };
    judge_kind(&check, rooflet_host::file_system(directory).as_deref(), case)
}

fn judge_kind(check: &str, kind: Option<&str>, case: &str) -> Check {
    let Some(kind) = kind else {
        return Check::ok(check, case);
    };
    let finding = format!("{kind}, {case}");
    if NETWORK.contains(&kind) || kind.starts_with("fuse.sshfs") {
        return Check::warn(
            check,
            format!("{finding}. Locks and durable writes depend on another machine"),
            "use a local disk",
        );
    }
    if WITHOUT_OWNERS.contains(&kind) {
        return Check::warn(
            check,
            format!("{finding}. Files have no owner: other users can read private keys"),
            "use a disk with APFS",
        );
    }
    Check::ok(check, finding)
}

fn ignores_case(directory: &Utf8Path) -> io::Result<bool> {
    let file = TemporaryPath::of(directory, "case");
    fs::write(&file.0, "")?;
    let name = file.0.file_name().unwrap_or_default().to_uppercase();
    Ok(directory.join(name).exists())
}

/// Checks how long the event of a new file takes. The agent watches its manifests with such events.
pub(super) fn events(name: &str, directory: &Utf8Path) -> Check {
    let check = format!("{name}: file events");
    judge_events(&check, event_delay(directory, EVENT_TIMEOUT))
}

fn judge_events(check: &str, delay: Result<Option<Duration>, notify::Error>) -> Check {
    match delay {
        Ok(Some(delay)) => Check::ok(check, format!("an event arrives after {}", milliseconds(delay))),
        Ok(None) => Check::warn(
            check,
            format!(
                "none within {} s: the agent finds changed manifests after up to 10 s",
                EVENT_TIMEOUT.as_secs()
            ),
            "use a local disk for --manifest-dir",
        ),
        // The error contains the path.
        Err(_) => Check::warn(
            check,
            "the directory cannot be watched: the agent finds changed manifests after up to 10 s",
            "make the directory writable for this user, or raise the limit of file watches",
        ),
    }
}

/// Returns the time from a write to its event; `None` without an event in time.
#[expect(
    clippy::disallowed_methods,
    reason = "the time of a file system is the real clock's"
)]
fn event_delay(directory: &Utf8Path, timeout: Duration) -> Result<Option<Duration>, notify::Error> {
    let watched = TemporaryPath::of(directory, "events");
    fs::create_dir(&watched.0)?;
    let (event_tx, event_rx) = mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // The receiver is gone after the first matching event.
        drop(event_tx.send(event));
    })?;
    watcher.watch(watched.0.as_std_path(), RecursiveMode::NonRecursive)?;
    let file = watched.0.join("manifest.yaml");
    let start = Instant::now();
    fs::write(&file, "kind: ModelDeployment\n")?;
    while let Some(left) = timeout.checked_sub(start.elapsed()) {
        let Ok(event) = event_rx.recv_timeout(left) else {
            break;
        };
        // The directory's own creation can be reported, too.
        if event?.paths.iter().any(|path| path.ends_with("manifest.yaml")) {
            return Ok(Some(start.elapsed()));
        }
    }
    Ok(None)
}

/// Checks whether backups and searches skip the directories of downloaded and computed files.
/// Returns `None` on machines without Time Machine, and if there are no such directories.
pub(super) fn exclusion(state_dir: &Utf8Path) -> Option<Check> {
    let directories = ["models", "kv"].map(|name| state_dir.join(name));
    let existing = directories.iter().filter(|path| path.is_dir());
    let excluded: Option<Vec<bool>> = existing.map(|path| cache_dir::is_excluded(path)).collect();
    judge_exclusion(&excluded?)
}

fn judge_exclusion(excluded: &[bool]) -> Option<Check> {
    let name = "backups";
    let is_included = excluded.iter().any(|excluded| !excluded);
    (!excluded.is_empty()).then(|| match is_included {
        false => Check::ok(
            name,
            "Time Machine and Spotlight skip downloaded models and cached prefixes",
        ),
        true => Check::warn(
            name,
            "Time Machine or Spotlight reads downloaded models or cached prefixes",
            "run `tmutil addexclusion` on `models` and `kv` in the state directory, and create the \
             file `.metadata_never_index` in both",
        ),
    })
}

/// Checks the place of the workers' sockets.
pub(super) fn sockets(state_dir: &Utf8Path) -> Check {
    let name = "sockets";
    let path = absolute(state_dir);
    match rooflet_agent::state::has_own_sockets(&path) {
        true => Check::ok(name, "in the state directory"),
        false => Check::warn(
            name,
            "in /tmp, because the path of the state directory is too long. macOS deletes files there that are not used for three days",
            "pass a shorter path with --state-dir",
        ),
    }
}

fn absolute(path: &Utf8Path) -> Utf8PathBuf {
    let known = path.canonicalize_utf8();
    let known = known.or_else(|_| camino::absolute_utf8(path));
    known.unwrap_or_else(|_| path.to_owned())
}

/// Path of a test file or directory, deleted on drop.
struct TemporaryPath(Utf8PathBuf);

impl TemporaryPath {
    fn of(directory: &Utf8Path, purpose: &str) -> Self {
        Self(directory.join(format!(".rooflet-doctor-{purpose}-{}", std::process::id())))
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0).or_else(|_| fs::remove_file(&self.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use rooflet_testing::TempDir;

    #[test]
    fn file_systems_are_judged_by_their_type() {
        for (kind, status) in [
            (Some("apfs"), Status::Ok),
            (Some("ext4"), Status::Ok),
            (Some("smbfs"), Status::Warn),
            (Some("nfs4"), Status::Warn),
            (Some("exfat"), Status::Warn),
            (None, Status::Ok),
        ] {
            let check = judge_kind("file system", kind, "case-sensitive");
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.finding.contains("case-sensitive"), "{check:?}");
        }
        let directory = TempDir::new();
        let check = kind("state directory", directory.path());
        assert_eq!(check.status, Status::Ok, "{check:?}");
        let missing = kind("state directory", &directory.path().join("missing"));
        assert_eq!(missing.status, Status::Fail);
        assert!(
            !missing.finding.contains(directory.path().as_str()),
            "{missing:?}"
        );
    }

    #[test]
    fn change_on_this_machine_causes_an_event() {
        let directory = TempDir::new();
        let delay = event_delay(directory.path(), Duration::from_secs(20)).unwrap();
        assert!(delay.is_some());
        assert_eq!(event_delay(directory.path(), Duration::ZERO).unwrap(), None);
        assert_eq!(directory.path().read_dir_utf8().unwrap().count(), 0, "deleted");
        let delay = Duration::from_millis(12);
        assert_eq!(
            judge_events("events", Ok(Some(delay))).finding,
            "an event arrives after 12 ms"
        );
        assert_eq!(judge_events("events", Ok(None)).status, Status::Warn);
        let missing = events("state directory", &directory.path().join("missing"));
        assert_eq!(missing.status, Status::Warn);
        assert!(!missing.finding.contains("missing"), "{missing:?}");
    }

    #[test]
    fn one_included_directory_is_reported() {
        let status = |excluded: &[bool]| judge_exclusion(excluded).map(|check| check.status);
        assert_eq!(status(&[]), None);
        assert_eq!(status(&[true, true]), Some(Status::Ok));
        assert_eq!(status(&[true, false]), Some(Status::Warn));
    }

    #[test]
    fn long_state_directory_has_its_sockets_elsewhere() {
        assert_eq!(sockets("/usr/local/var/rooflet/agent".into()).status, Status::Ok);
        let long = format!("/tmp/{}", "d".repeat(90));
        assert_eq!(sockets(Utf8Path::new(&long)).status, Status::Warn);
    }
}
