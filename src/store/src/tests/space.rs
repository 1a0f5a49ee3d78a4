//! Disk space: deletions on a full disk, recovery, smaller files after deletions.

use std::fs;
use std::time::Duration;

use super::*;
use crate::medium::FileMedium;
use rooflet_base::clock::ManualClock;

/// Store on a full disk with the records `/k/0` to `/k/9`.
fn on_full_disk() -> (PowerCutDisk, Manual) {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &config()).unwrap();
    for key in 0..10 {
        store
            .commit_one(put(&format!("/k/{key}"), Expect::Absent, "x".repeat(20_000)))
            .unwrap();
    }
    store.maintain();
    disk.set_full(true);
    (disk, store)
}

fn failure(store: &Manual) -> Option<String> {
    rooflet_base::mutex::lock(&store.writer.failure()).clone()
}

#[test]
fn deletions_succeed_on_a_full_disk_and_make_room_for_other_writes() {
    let (disk, mut store) = on_full_disk();
    let mut watcher = store.watch("/", store.revision()).unwrap();
    let small = |key: &str| put(key, Expect::Any, "small");
    assert!(matches!(
        store.commit_one(small("/k/new")),
        Err(CommitError::Io(_))
    ));
    assert!(failure(&store).is_some());
    let mut marked = put("/k/1", Expect::Any, "terminating");
    marked.change = match marked.change {
        Change::Put(encode) => Change::PutBeforeDeletion(encode),
        other @ (Change::PutBeforeDeletion(_) | Change::Delete(_)) => other,
    };
    store.commit_one(marked).unwrap();
    store.commit_one(delete("/k/0", Expect::Any)).unwrap();
    let large = || put("/k/large", Expect::Any, "y".repeat(200_000));
    let rejected = store.commit_one(large()).unwrap_err();
    assert!(matches!(rejected, CommitError::Full { .. }), "{rejected:?}");
    assert!(failure(&store).is_some_and(|reason| reason.contains("the disk is full")));
    for key in 1..8 {
        store
            .commit_one(delete(&format!("/k/{key}"), Expect::Any))
            .unwrap();
    }
    // The file has free pages now, although the disk is still full.
    store.commit_one(small("/k/new")).unwrap();
    assert_eq!(failure(&store), None);
    let keys: Vec<_> = store.list("/").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["/k/8", "/k/9", "/k/new"]);
    assert_eq!(drain(&mut watcher).len(), 10, "open watches miss no event");
    store.writer.close();
    let store = Manual::open(&disk.after_power_cut(|| false), &config()).unwrap();
    let kept: Vec<_> = store.list("/").into_iter().map(|(key, _)| key).collect();
    assert_eq!(kept, keys);
}

#[test]
fn all_writes_succeed_again_after_the_disk_has_free_space() {
    let (disk, mut store) = on_full_disk();
    store.commit_one(delete("/k/0", Expect::Any)).unwrap();
    let large = || put("/k/large", Expect::Any, "y".repeat(200_000));
    store.commit_one(large()).unwrap_err();
    store.maintain();
    assert!(failure(&store).is_some(), "the disk is still full");
    disk.set_full(false);
    eventually_written(&mut store, large);
    store.maintain();
    assert_eq!(failure(&store), None);
}

/// Writes until the store has allocated its reserve, which it tries once per second.
fn eventually_written(store: &mut Manual, write: impl Fn() -> Write) {
    let clock = Clock::System;
    let deadline = clock.instant() + Duration::from_secs(10);
    while let Err(err) = store.commit_one(write()) {
        assert!(clock.instant() < deadline, "{err}");
        std::thread::yield_now();
    }
}

#[test]
fn maintenance_notices_that_writes_succeed_again() {
    let (disk, mut store) = on_full_disk();
    store.commit_one(put("/k/new", Expect::Any, "small")).unwrap_err();
    assert!(failure(&store).is_some());
    disk.set_full(false);
    store.maintain();
    assert_eq!(failure(&store), None);
}

#[test]
fn file_shrinks_after_most_records_were_deleted() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let open = || {
        let medium = FileMedium::lock(&path).unwrap();
        let writer = open::writer(Box::new(medium), &config(), Clock::Manual(manual.clone())).unwrap();
        Manual { writer }
    };
    let mut store = open();
    fill_and_delete(&mut store);
    store.maintain();
    let before = fs::metadata(&path).unwrap().len();
    assert!(before > 20 << 20, "watches can resume: {before}");
    expire_history(&mut store, &manual);
    store.maintain();
    let after = fs::metadata(&path).unwrap().len();
    assert!(after < before / 4, "{before} to {after} bytes");
    store.commit_one(put("/k/after", Expect::Absent, "3")).unwrap();
    let listed = store.list("/");
    store.writer.close();
    assert_eq!(open().list("/"), listed);
    assert_eq!(listed.len(), 1_001);
}

#[test]
fn file_shrinks_again_after_the_remaining_records_were_deleted() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let medium = FileMedium::lock(&path).unwrap();
    let writer = open::writer(Box::new(medium), &config(), Clock::Manual(manual.clone())).unwrap();
    let mut store = Manual { writer };
    let keys: Vec<_> = (0..3_000).map(|key| format!("/large/{key}")).collect();
    for batch in keys.chunks(100) {
        let writes = batch
            .iter()
            .map(|key| put(key, Expect::Absent, "x".repeat(20_000)));
        store.batch(writes);
    }
    let mut length_after_deletion = |deleted: &[String]| {
        for batch in deleted.chunks(100) {
            store.batch(batch.iter().map(|key| delete(key, Expect::Any)));
        }
        expire_history(&mut store, &manual);
        store.maintain();
        fs::metadata(&path).unwrap().len()
    };
    let (most, others) = keys.split_at(2_400);
    let before = length_after_deletion(most);
    assert!(before > 16 << 20, "large enough to be rewritten: {before} bytes");
    let after = length_after_deletion(others);
    assert!(after < before / 4, "{before} to {after} bytes");
}

/// Returns the keys of [`fill_and_delete`].
fn keys() -> impl Iterator<Item = String> {
    (0..1_000).map(|key| format!("/k/{key}"))
}

/// Writes records of 20 MB, and deletes all but one.
fn fill_and_delete(store: &mut Manual) {
    for batch in keys().collect::<Vec<_>>().chunks(100) {
        let writes = batch
            .iter()
            .map(|key| put(key, Expect::Absent, "x".repeat(20_000)));
        store.batch(writes);
    }
    store.batch(keys().skip(1).map(|key| delete(&key, Expect::Any)));
}

/// Lets the history expire: afterwards, more than 1,000 events are older than its limit.
fn expire_history(store: &mut Manual, clock: &ManualClock) {
    clock.advance(Duration::from_secs(601));
    store.batch(keys().map(|key| put(&key, Expect::Any, "1")));
    store.batch(keys().map(|key| put(&key, Expect::Any, "2")));
}

/// The path leads to the new file then, so writes to the open file would be lost.
#[test]
fn acknowledged_writes_survive_a_failed_sync_of_the_directory() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let disk = PowerCutDisk::new();
    let writer = open::writer(Box::new(disk.clone()), &config(), Clock::Manual(manual.clone())).unwrap();
    let mut store = Manual { writer };
    fill_and_delete(&mut store);
    expire_history(&mut store, &manual);
    disk.fail_a_directory_sync();
    store.maintain();
    store.commit_one(put("/k/after", Expect::Absent, "3")).unwrap();
    for survives in [true, false] {
        let store = Manual::open(&disk.after_power_cut(|| survives), &config()).unwrap();
        let found = store.list("/k/after");
        assert_eq!(found, [("/k/after".to_owned(), "3".to_owned())], "{survives}");
    }
}
