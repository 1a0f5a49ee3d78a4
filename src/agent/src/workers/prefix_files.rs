//! Where workers store prefixes beyond their lives: `kv/ID/N` of the state directory. ID stands for the namespace and the
//! served name, so that a worker that takes another's place finds what that one has computed; what is in the files
//! decides whether it can be used. N tells those apart that run at the same time.

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

/// The most that one worker stores where nobody says how much: half a million tokens of a model with 16 KiB each, or
/// fifty thousand with 160.
const DEFAULT: Bytes = Bytes::gib(8);
/// Of what is promised to nobody.
const DEFAULT_SHARE: u64 = 10;
/// With less than this left, the disk is left to others.
const LITTLE_LEFT: Bytes = Bytes::gib(20);

/// Directories that no worker has used for so long are removed: what they serve is gone, or elsewhere.
const KEPT_UNUSED: Duration = Duration::from_hours(7 * 24);

/// The file that a worker holds while it uses a directory; see `worker/src/cache/files.rs`.
const LOCK: &str = "lock";

/// A worker's own directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixFiles {
    pub dir: Utf8PathBuf,
    /// The most that the files in it may have.
    pub limit: Bytes,
}

/// How much a worker may store with so much of the disk promised to nobody; `None` is nothing. What is asked for is not
/// lessened: admission has found room for it, and near a full disk the worker itself stops writing.
pub(crate) fn budget(spec: Option<&KvCacheSpec>, left: Bytes) -> Option<Bytes> {
    let bytes = match spec.and_then(KvCacheSpec::disk_bytes) {
        Some(asked) => asked,
        None if left < LITTLE_LEFT => Bytes::ZERO,
        None => Bytes(left.0 / DEFAULT_SHARE).min(DEFAULT),
    };
    (bytes > Bytes::ZERO).then_some(bytes)
}

/// The first directory of these replicas that is not in use.
pub(crate) fn choose(
    root: &Utf8Path,
    namespace: &str,
    serving_name: &str,
    used: &BTreeSet<&Utf8Path>,
) -> Utf8PathBuf {
    let of_name = root.join(identifier(&ReplicaKey::new(namespace, serving_name)));
    let mut dirs = (0_usize..).map(|n| of_name.join(n.to_string()));
    let free = dirs.find(|dir| !used.contains(dir.as_path()));
    free.expect("finitely many are in use")
}

/// Makes the directory and its lock, as a worker would: one that cannot is no reason for the replica not to serve.
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

/// What the files below a directory have.
pub(crate) fn stored(dir: &Utf8Path) -> Bytes {
    let entries = dir.read_dir_utf8().into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => stored(entry.path()),
        Ok(metadata) => Bytes(metadata.len()),
        // It was removed meanwhile.
        Err(_) => Bytes::ZERO,
    });
    sizes.sum()
}

/// Removes directories that have not been used for long, and others that are not used, the oldest first, until `wanted`
/// is free again.
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
        let is_old = last_used.is_some_and(|used| since(now, used) > KEPT_UNUSED);
        if !is_old && wanted == Bytes::ZERO {
            continue;
        }
        let bytes = stored(&dir);
        match fs::remove_dir_all(&dir) {
            Ok(()) => {
                wanted = wanted - bytes;
                info!(%dir, "removed stored prefixes that no worker uses");
            }
            Err(err) => warn!(%dir, error = %err, "stored prefixes could not be removed"),
        }
    }
    for of_name in names {
        // Only where nothing is in it.
        drop(fs::remove_dir(of_name));
    }
}

/// A worker truncates its lock when it starts.
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
    fn the_budget_is_modest_unless_one_is_asked_for() {
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
    fn each_worker_has_a_directory_which_the_next_one_finds() {
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
    fn a_directory_is_private_and_what_cannot_be_made_is_told() {
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
    fn what_nobody_has_used_for_a_week_goes() {
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
    fn what_nobody_uses_makes_room_for_what_is_promised_the_oldest_first() {
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
        assert_eq!((stored(root), stored(&oldest)), (Bytes(400), Bytes(100)));
        let in_use = BTreeSet::from([used.as_path()]);
        remove_unused(root, &in_use, now, Bytes(101));
        assert!(!oldest.exists() && !middle.exists() && newest.exists() && used.exists());
        remove_unused(root, &in_use, now, Bytes(1000));
        assert!(!newest.exists() && used.exists());
        assert_eq!(stored(root), Bytes(100));
        assert_eq!(stored(&root.join("not/there")), Bytes::ZERO);
    }
}
