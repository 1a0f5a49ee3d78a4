//! Directories in which workers cache prefixes on disk: `kv/ID/N` in the state directory. ID
//! identifies namespace and served name, so that the next worker finds the prefixes of its
//! predecessor. The file contents decide whether they are usable. N distinguishes workers that run
//! at the same time.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use crate::replica::ReplicaKey;
use crate::state::identifier;
use rooflet_api::v1alpha1::KvCacheSpec;
use rooflet_base::clock::since;
use rooflet_base::file::directories;
use rooflet_base::units::Bytes;

/// Maximum size per worker without an explicit limit: 500,000 tokens of a model with 16 KiB per
/// token, or 50,000 tokens of a model with 160 KiB per token.
const DEFAULT_LIMIT: Bytes = Bytes::gib(8);
/// Divisor of the unreserved disk space for a worker without an explicit limit.
const DEFAULT_DIVISOR: u64 = 10;
/// Below this unreserved disk space, workers without an explicit limit store nothing.
const MIN_UNRESERVED: Bytes = Bytes::gib(20);

/// Unused directories are removed after this time.
const UNUSED_RETENTION: Duration = Duration::from_hours(7 * 24);

/// Lock file that a worker holds while it uses a directory; see `worker/src/cache/files.rs`.
const LOCK: &str = "lock";

/// Prefix directory of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixFiles {
    pub dir: Utf8PathBuf,
    /// Maximum total size of its files.
    pub limit: Bytes,
}

/// Returns the maximum size of a worker's prefixes, given the unreserved disk space. `None` if the
/// worker stores none. An explicit limit is not reduced: admission has reserved it, and a worker
/// stops writing when the disk is nearly full.
pub(crate) fn budget(spec: Option<&KvCacheSpec>, unreserved: Bytes) -> Option<Bytes> {
    let bytes = match spec.and_then(KvCacheSpec::disk_bytes) {
        Some(explicit) => explicit,
        None if unreserved < MIN_UNRESERVED => Bytes::ZERO,
        None => Bytes(unreserved.0 / DEFAULT_DIVISOR).min(DEFAULT_LIMIT),
    };
    (bytes > Bytes::ZERO).then_some(bytes)
}

/// Returns the first directory of a served name that is not in use.
pub(crate) fn choose(
    root: &Utf8Path,
    namespace: &str,
    serving_name: &str,
    used: &BTreeSet<&Utf8Path>,
) -> Utf8PathBuf {
    let of_name = root.join(identifier(&ReplicaKey::new(namespace, serving_name)));
    let mut dirs = (0_usize..).map(|n| of_name.join(n.to_string()));
    let free = dirs.find(|dir| !used.contains(dir.as_path()));
    free.expect("the number of directories in use is finite")
}

/// Creates the directory and its lock file. If this fails, the replica serves without cached
/// prefixes on disk.
pub(crate) fn prepare(dir: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK));
    lock.map(drop)
}

/// Returns the total size of the files below a directory.
pub(crate) fn stored_bytes(dir: &Utf8Path) -> Bytes {
    let entries = dir.read_dir_utf8().into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => stored_bytes(entry.path()),
        Ok(metadata) => Bytes(metadata.len()),
        // The file was removed in the meantime.
        Err(_) => Bytes::ZERO,
    });
    sizes.sum()
}

/// Removes directories that were unused for [`UNUSED_RETENTION`]. Then removes other unused
/// directories, oldest first, until `wanted` bytes are freed.
pub(crate) fn remove_unused(root: &Utf8Path, used: &BTreeSet<&Utf8Path>, now: Timestamp, mut wanted: Bytes) {
    let names = directories(root);
    let mut unused: Vec<_> = names
        .iter()
        .flat_map(|of_name| directories(of_name))
        .filter(|dir| !used.contains(dir.as_path()))
        .map(|dir| (last_used(&dir), dir))
        .collect();
    unused.sort();
    for (last_used, dir) in unused {
        let is_old = last_used.is_some_and(|used| since(now, used) > UNUSED_RETENTION);
        if !is_old && wanted == Bytes::ZERO {
            continue;
        }
        let bytes = stored_bytes(&dir);
        match fs::remove_dir_all(&dir) {
            Ok(()) => {
                wanted = wanted - bytes;
                info!(%dir, "removed unused prefix directory");
            }
            Err(err) => warn!(%dir, error = %err, "failed to remove prefix directory"),
        }
    }
    for of_name in names {
        // Removes empty directories only.
        drop(fs::remove_dir(of_name));
    }
}

/// Returns the time at which a worker that uses the directory last started. A starting worker
/// truncates the lock file.
fn last_used(dir: &Utf8Path) -> Option<Timestamp> {
    let metadata = fs::metadata(dir.join(LOCK)).or_else(|_| fs::metadata(dir));
    Timestamp::try_from(metadata.ok()?.modified().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;
    use rooflet_testing::TempDir;

    fn asking(text: &str) -> KvCacheSpec {
        KvCacheSpec {
            disk_size: Some(text.to_owned()),
            ..KvCacheSpec::default()
        }
    }

    #[test]
    fn budget_is_small_without_an_explicit_limit() {
        let none = KvCacheSpec::default();
        for (spec, free, expected) in [
            (None, 500, Some(Bytes::gib(8))),
            (Some(&none), 500, Some(Bytes::gib(8))),
            (None, 30, Some(Bytes::gib(3))),
            (None, 19, None),
            (Some(&asking("1Gi")), 500, Some(Bytes::gib(1))),
            (Some(&asking("0")), 500, None),
            (Some(&asking("100Gi")), 19, Some(Bytes::gib(100))),
        ] {
            assert_eq!(budget(spec, Bytes::gib(free)), expected, "{spec:?}, {free}");
        }
    }

    #[test]
    fn next_worker_finds_the_directory_of_its_predecessor() {
        let root = Utf8Path::new("/kv");
        let choose = |namespace, name, used: &[&Utf8PathBuf]| {
            choose(
                root,
                namespace,
                name,
                &used.iter().map(|dir| dir.as_path()).collect(),
            )
        };
        let first = choose("default", "m", &[]);
        assert!(first.starts_with(root) && first.ends_with("0"), "{first}");
        let second = choose("default", "m", &[&first]);
        assert!(
            second.ends_with("1") && second.parent() == first.parent(),
            "{second}"
        );
        assert_eq!(choose("default", "m", &[&second]), first);
        for other in [choose("team", "m", &[]), choose("default", "../../m", &[])] {
            assert!(
                other.starts_with(root) && other.parent() != first.parent(),
                "{other}"
            );
            assert_eq!(other.components().count(), first.components().count());
        }
    }

    #[test]
    fn directory_is_private_and_creation_errors_are_returned() {
        let dir = TempDir::new();
        let root = dir.path();
        let dir = root.join("id/0");
        for _ in 0..2 {
            prepare(&dir).unwrap();
        }
        for (path, mode) in [(dir.clone(), 0o700), (dir.join("lock"), 0o600)] {
            let found = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{path}");
        }
        fs::write(root.join("file"), "").unwrap();
        prepare(&root.join("file/0")).unwrap_err();
    }

    #[test]
    fn removes_directories_unused_for_a_week() {
        let dir = TempDir::new();
        let root = dir.path();
        let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        let place = |name: &str, hours: u64| {
            let dir = root.join(name);
            fs::create_dir_all(dir.join("ab")).unwrap();
            let lock = fs::File::create(dir.join("lock")).unwrap();
            lock.set_modified(SystemTime::from(now) - Duration::from_hours(hours))
                .unwrap();
            dir
        };
        let (old, fresh, used) = (place("a/0", 200), place("b/0", 160), place("b/1", 200));
        fs::write(root.join("stray"), "").unwrap();
        let in_use = BTreeSet::from([used.as_path()]);
        remove_unused(root, &in_use, now, Bytes::ZERO);
        assert!(!old.exists() && !root.join("a").exists());
        assert!(fresh.exists() && used.exists() && root.join("stray").exists());
        remove_unused(&root.join("not/there"), &BTreeSet::new(), now, Bytes::ZERO);
    }

    #[test]
    fn removes_oldest_unused_directories_until_enough_space_is_free() {
        let dir = TempDir::new();
        let root = dir.path();
        let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
        let place = |name: &str, hours: u64| {
            let dir = root.join(name);
            fs::create_dir_all(dir.join("ab")).unwrap();
            fs::write(dir.join("ab/block"), [0; 100]).unwrap();
            let lock = fs::File::create(dir.join("lock")).unwrap();
            lock.set_modified(SystemTime::from(now) - Duration::from_hours(hours))
                .unwrap();
            dir
        };
        let [newest, oldest, middle] =
            [("a/0", 1), ("b/0", 3), ("c/0", 2)].map(|(name, age)| place(name, age));
        let used = place("d/0", 9);
        assert_eq!(
            (stored_bytes(root), stored_bytes(&oldest)),
            (Bytes(400), Bytes(100))
        );
        let in_use = BTreeSet::from([used.as_path()]);
        remove_unused(root, &in_use, now, Bytes(101));
        assert!(!oldest.exists() && !middle.exists() && newest.exists() && used.exists());
        remove_unused(root, &in_use, now, Bytes(1000));
        assert!(!newest.exists() && used.exists());
        assert_eq!(stored_bytes(root), Bytes(100));
        assert_eq!(stored_bytes(&root.join("not/there")), Bytes::ZERO);
    }
}
