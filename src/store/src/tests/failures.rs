//! Power cuts at every point, full disks, failing syncs.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

use super::*;

/// Limits that trigger compaction within the workload.
fn small() -> StoreConfig {
    let history = HistoryLimits {
        events_max: 4,
        garbage_rows_max: 3,
        ..HistoryLimits::default()
    };
    StoreConfig { history, ..config() }
}

/// Batches of puts, overwrites, deletions and values larger than a page.
fn workload() -> Vec<Vec<(&'static str, Option<String>)>> {
    let some = |text: &str| Some(text.to_owned());
    vec![
        vec![("/k/a", some("1"))],
        vec![("/k/b", some("2")), ("/k/a", some("3"))],
        vec![("/k/b", None)],
        vec![
            ("/k/c", Some("x".repeat(9_000))),
            ("/k/a", None),
            ("/k/a", some("4")),
        ],
        vec![("/k/d", some("5"))],
        vec![("/k/c", Some("y".repeat(5_000))), ("/k/b", some("6"))],
        vec![("/k/d", None), ("/k/b", some("7"))],
        vec![("/k/a", some("8"))],
    ]
}

fn write(key: &str, text: Option<String>) -> Write {
    match text {
        Some(text) => put(key, Expect::Any, text),
        None => delete(key, Expect::Any),
    }
}

/// Returns the expected content after the first `steps` writes of the workload.
fn map_after(steps: usize) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for (key, text) in workload().into_iter().flatten().take(steps) {
        match text {
            Some(text) => map.insert(key.to_owned(), text),
            None => map.remove(key),
        };
    }
    map
}

/// Runs the workload until the power fails. Returns the numbers of acknowledged and started writes.
fn run_until_power_fails(disk: &PowerCutDisk) -> (usize, usize) {
    let Ok(mut store) = Manual::open(disk, &small()) else {
        return (0, 0);
    };
    let (mut acknowledged, mut started) = (0, 0);
    for batch in workload() {
        let size = batch.len();
        started += size;
        let outcomes = store.batch(batch.into_iter().map(|(key, text)| write(key, text)));
        if outcomes.iter().any(Result::is_err) {
            assert!(
                outcomes.iter().all(Result::is_err),
                "a batch is durable completely or not at all"
            );
            return (acknowledged, started);
        }
        acknowledged += size;
    }
    store.writer.close();
    (acknowledged, started)
}

fn check_after_power_cut(disk: &PowerCutDisk, acknowledged: usize, started: usize, case: &str) {
    let mut store = Manual::open(disk, &small()).unwrap_or_else(|err| panic!("{case}: {err:?}"));
    let steps = usize::try_from(store.revision().0 - 1).unwrap();
    assert!(
        steps >= acknowledged,
        "{case}: {acknowledged} writes were acknowledged, {steps} survived"
    );
    assert!(
        steps <= started,
        "{case}: {steps} writes survived, {started} were started"
    );
    let found: BTreeMap<String, String> = store.list("/").into_iter().collect();
    assert_eq!(
        found,
        map_after(steps),
        "{case}: content differs from the first {steps} writes"
    );
    let mut watcher = store.watch("/", store.compacted()).unwrap();
    let events = drain(&mut watcher);
    let expected: Vec<u64> = (store.compacted().0.max(1) + 1..=store.revision().0).collect();
    assert_eq!(
        events.iter().map(|event| event.revision.0).collect::<Vec<_>>(),
        expected,
        "{case}: history has a gap"
    );
    // The store accepts further writes.
    let next = store.commit_one(put("/k/z", Expect::Absent, "after")).unwrap();
    assert_eq!(next.modified, Revision(steps as u64 + 2), "{case}");
}

#[test]
fn acknowledged_writes_survive_a_power_cut_at_every_point() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut cuts = 0;
    for cut in 0.. {
        let disk = PowerCutDisk::new();
        disk.cut_after(cut);
        let (acknowledged, started) = run_until_power_fails(&disk);
        let whole = !disk.lost_power();
        let case = |survivors: &str| {
            format!("power cut before change {cut}, {survivors} of the unsynced sectors survive")
        };
        check_after_power_cut(
            &disk.after_power_cut(|| false),
            acknowledged,
            started,
            &case("none"),
        );
        check_after_power_cut(
            &disk.after_power_cut(|| true),
            acknowledged,
            started,
            &case("all"),
        );
        for keep_of_4 in [1, 2, 3] {
            let torn = disk.after_power_cut(|| rng.next_u32() % 4 < keep_of_4);
            check_after_power_cut(&torn, acknowledged, started, &case("some"));
        }
        if whole {
            break;
        }
        cuts = cut;
    }
    assert!(cuts > 60, "the workload was cut at only {cuts} points");
}

#[test]
fn acknowledged_writes_survive_second_power_cut_during_recovery() {
    let mut rng = StdRng::seed_from_u64(1);
    for cut in (5..).step_by(7) {
        let disk = PowerCutDisk::new();
        disk.cut_after(cut);
        let (acknowledged, started) = run_until_power_fails(&disk);
        if !disk.lost_power() {
            break;
        }
        let first = disk.after_power_cut(|| rng.next_u32() % 2 == 0);
        for again in 0.. {
            let second = first.after_power_cut(|| true);
            second.cut_after(again);
            let opened = Manual::open(&second, &small()).map(|store| store.writer.close());
            let finished = !second.lost_power();
            drop(opened);
            let third = second.after_power_cut(|| rng.next_u32() % 2 == 0);
            check_after_power_cut(
                &third,
                acknowledged,
                started,
                &format!("cut before {cut}, again before {again}"),
            );
            if finished {
                break;
            }
        }
    }
}

#[test]
fn full_disk_fails_writes_without_changing_state() {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &small()).unwrap();
    store.commit_one(put("/k/a", Expect::Absent, "kept")).unwrap();
    let mut watcher = store.watch("/", Revision(1)).unwrap();
    disk.set_full(true);
    for attempt in 0..3 {
        let err = store
            .commit_one(put("/k/a", Expect::At(Revision(2)), format!("lost {attempt}")))
            .unwrap_err();
        assert!(matches!(err, CommitError::Io(_)), "{err:?}");
        let chain = rooflet_base::error::Chain(&err).to_string();
        assert!(
            chain.starts_with("the write could not be made durable: "),
            "{chain}"
        );
        assert!(chain.contains("simulated.redb"), "{chain}");
        assert_eq!(store.list("/"), [("/k/a".to_owned(), "kept".to_owned())]);
        assert_eq!(store.revision(), Revision(2));
    }
    disk.set_full(false);
    let record = store
        .commit_one(put("/k/a", Expect::At(Revision(2)), "written"))
        .unwrap();
    assert_eq!(record.modified, Revision(3));
    let seen: Vec<_> = drain(&mut watcher)
        .iter()
        .map(|event| (event.revision.0, text(&event.record)))
        .collect();
    assert_eq!(seen, [(2, "kept".to_owned()), (3, "written".to_owned())]);
    store.writer.close();
    let store = Manual::open(&disk.after_power_cut(|| false), &small()).unwrap();
    assert_eq!(store.list("/"), [("/k/a".to_owned(), "written".to_owned())]);
}

#[test]
fn failed_batch_fails_all_its_writes_and_leaves_no_trace() {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &small()).unwrap();
    disk.set_full(true);
    let outcomes = store.batch([
        put("/k/a", Expect::Absent, "1"),
        put("/k/a", Expect::Absent, "conflicts only with what failed"),
        put("/k/b", Expect::Absent, "2"),
    ]);
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Err(CommitError::Io(_)))),
        "{outcomes:?}"
    );
    disk.set_full(false);
    let record = store.commit_one(put("/k/a", Expect::Absent, "3")).unwrap();
    assert_eq!((record.created, record.modified), (Revision(2), Revision(2)));
}

/// After a failed sync, the kernel may drop dirty pages although the file still reads back
/// correctly. The worst case is a failed compaction, which rewrites pages with old rows.
#[test]
fn acknowledged_writes_survive_failed_sync() {
    let history = HistoryLimits {
        events_max: 5,
        garbage_rows_max: 20,
        ..HistoryLimits::default()
    };
    let config = StoreConfig { history, ..config() };
    for healthy_syncs in 0..48 {
        let disk = PowerCutDisk::new();
        let mut store = Manual::open(&disk, &config).unwrap();
        disk.fail_a_sync_after(healthy_syncs);
        let mut acknowledged = BTreeMap::new();
        for round in 0..40 {
            // Half of the keys are written once, the rest repeatedly.
            let batch =
                [format!("/k/{round}"), format!("/k/again/{}", round % 4)].map(|key| (key, "v".repeat(300)));
            let writes = batch
                .iter()
                .map(|(key, text)| put(key, Expect::Any, text.clone()));
            if store.batch(writes).iter().all(Result::is_ok) {
                acknowledged.extend(batch);
            }
        }
        let expected: Vec<_> = acknowledged.into_iter().collect();
        assert!(expected.len() >= 42, "only one batch may fail");
        assert!(store.list("/") == expected);
        let found = Manual::open(&disk.after_power_cut(|| false), &config)
            .unwrap()
            .list("/");
        assert!(
            found == expected,
            "{} of {} records survived, failed sync after {healthy_syncs}",
            found.len(),
            expected.len()
        );
    }
}

/// The disk may contain a batch that was reported as failed. The next write must remove it.
#[test]
fn write_reported_as_failed_does_not_reappear() {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &small()).unwrap();
    store.commit_one(put("/k/a", Expect::Absent, "kept")).unwrap();
    disk.report_error_after_sync();
    let outcomes = store.batch([put("/k/a", Expect::Any, "lost"), put("/k/b", Expect::Any, "lost")]);
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(store.list("/"), [("/k/a".to_owned(), "kept".to_owned())]);
    let next = store.commit_one(put("/k/c", Expect::Absent, "next")).unwrap();
    assert_eq!(next.modified, Revision(3));
    let expected = store.list("/");
    assert_eq!(expected.len(), 2);
    let store = Manual::open(&disk.after_power_cut(|| false), &small()).unwrap();
    assert_eq!((store.list("/"), store.revision()), (expected, Revision(3)));
}

#[test]
fn batch_uses_one_sync() {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &config()).unwrap();
    let mut syncs = |writes: usize, round: &str| {
        let before = disk.syncs();
        let outcomes =
            store.batch((0..writes).map(|write| put(&format!("/{round}/{write}"), Expect::Absent, "value")));
        assert!(outcomes.iter().all(Result::is_ok));
        disk.syncs() - before
    };
    assert_eq!(syncs(1, "first"), 1);
    assert_eq!(syncs(200, "many"), 1);
    assert_eq!(syncs(1, "last"), 1);
}

/// Deletes or replaces files under an open store, and returns the error of the next write.
async fn write_after(
    damage: impl FnOnce(&Path),
) -> (tempfile::TempDir, Store, Result<Arc<Record>, CommitError>) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("server");
    std::fs::create_dir(&data).unwrap();
    let store = open_file(&data.join("store.redb")).unwrap();
    store.commit(put("/k/a", Expect::Absent, "kept")).await.unwrap();
    assert_eq!(store.check_files(), Ok(()));
    damage(&data);
    let written = store.commit(put("/k/b", Expect::Absent, "new")).await;
    (dir, store, written)
}

fn message_of(written: Result<Arc<Record>, CommitError>) -> String {
    rooflet_base::error::Chain(&written.unwrap_err()).to_string()
}

#[tokio::test]
async fn writes_fail_after_the_data_directory_is_deleted() {
    let (_dir, store, written) = write_after(|data| std::fs::remove_dir_all(data).unwrap()).await;
    let message = message_of(written);
    assert!(
        message.contains("was deleted or replaced while the server runs"),
        "{message}"
    );
    assert!(store.check_files().is_err());
    let again = store.commit(put("/k/b", Expect::Absent, "new")).await;
    assert!(message_of(again).contains("restore the directory from a backup"));
    assert_eq!(
        text(&store.get(&Key::new("/k/a")).unwrap()),
        "kept",
        "reads still work"
    );
    assert!(store.get(&Key::new("/k/b")).is_none());
}

#[tokio::test]
async fn running_server_does_not_overwrite_a_restored_backup() {
    let (dir, store, written) = write_after(|data| {
        std::fs::remove_dir_all(data).unwrap();
        std::fs::create_dir(data).unwrap();
        std::fs::write(data.join("store.redb"), "a backup").unwrap();
    })
    .await;
    assert!(written.is_err());
    assert!(store.commit(put("/k/b", Expect::Absent, "new")).await.is_err());
    let file = dir.path().join("server/store.redb");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "a backup");

    let (dir, store, written) = write_after(|data| {
        std::fs::write(data.join("other"), "another file").unwrap();
        std::fs::rename(data.join("other"), data.join("store.redb")).unwrap();
    })
    .await;
    assert!(message_of(written).contains("was replaced by another file"));
    assert!(store.commit(put("/k/b", Expect::Absent, "new")).await.is_err());
    let file = dir.path().join("server/store.redb");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "another file");
}

/// The lock file proves that no other server uses the directory.
#[tokio::test]
async fn deleted_store_file_is_written_again_from_memory() {
    let (dir, store, written) =
        write_after(|data| std::fs::remove_file(data.join("store.redb")).unwrap()).await;
    assert!(message_of(written).contains("is missing"));
    store.commit(put("/k/b", Expect::Absent, "new")).await.unwrap();
    assert_eq!(store.check_files(), Ok(()));
    store.close().await;
    let store = open_file(&dir.path().join("server/store.redb")).unwrap();
    for (key, value) in [("/k/a", "kept"), ("/k/b", "new")] {
        assert_eq!(text(&store.get(&Key::new(key)).unwrap()), value);
    }
}
