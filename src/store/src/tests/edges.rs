//! File, lock, damage, concurrent callers, limits.

use std::collections::HashSet;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::super::writer::VALUE_BYTES_MAX;
use super::*;
use rooflet_base::clock::ManualClock;

#[tokio::test]
async fn committed_write_is_readable_listed_watched_and_survives_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let store = open_file(&path).unwrap();
    assert_eq!(store.revision(), Revision(1));
    let mut watcher = store.watch("/a/", store.revision()).unwrap();
    let record = store.commit(put("/a/1", Expect::Absent, "one")).await.unwrap();
    assert_eq!(record.modified, Revision(2));
    assert_eq!(
        store.get(&Key::new("/a/1")).unwrap().modified,
        Revision(2),
        "an acknowledged write is visible"
    );
    assert_eq!(watcher.next().await.unwrap().revision, Revision(2));
    store
        .commit(delete("/a/1", Expect::At(Revision(2))))
        .await
        .unwrap();
    assert!(store.wait_for(Revision(3)).await);
    store.close().await;
    assert_eq!(watcher.next().await.unwrap().kind, EventKind::Deleted);
    assert!(
        watcher.next().await.is_none(),
        "closing the store ends its watchers"
    );
    assert!(matches!(
        store.commit(put("/a/2", Expect::Any, "late")).await,
        Err(CommitError::Closed)
    ));

    let store = open_file(&path).unwrap();
    assert_eq!(
        store.revision(),
        Revision(3),
        "the revision of a deletion survives a restart"
    );
    let record = store.commit(put("/a/1", Expect::Absent, "again")).await.unwrap();
    assert_eq!((record.created, record.modified), (Revision(4), Revision(4)));
    store.close().await;
}

#[test]
fn store_files_are_accessible_to_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open_file(&dir.path().join("store.redb")).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{:?}",
            entry.path()
        );
    }
}

#[tokio::test]
async fn second_open_reports_file_and_lock_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let store = open_file(&path).unwrap();
    let err = open_file(&path).map(drop).unwrap_err();
    assert_eq!(
        err.to_string(),
        format!(
            "store file `{}` is in use by process {}; stop that process or choose another data directory",
            path.display(),
            std::process::id()
        )
    );
    store.close().await;
    open_file(&path)
        .expect("closing the store releases the lock")
        .close()
        .await;
}

#[test]
fn rejects_foreign_files_without_changing_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    fs::write(&path, "apiVersion: v1\n").unwrap();
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(matches!(err, OpenStoreError::NotAStore { .. }), "{err:?}");
    assert!(err.to_string().contains("store.redb"), "{err}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "apiVersion: v1\n");
    // A redb file with other tables belongs to another program.
    fs::remove_file(&path).unwrap();
    drop(redb::Database::create(&path).unwrap());
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(matches!(err, OpenStoreError::NotAStore { .. }), "{err:?}");
    // A missing directory is not created.
    let err = open_file(&dir.path().join("missing/store.redb"))
        .map(drop)
        .unwrap_err();
    assert!(matches!(err, OpenStoreError::Io { .. }), "{err:?}");
    assert!(err.to_string().contains("missing/store.redb.lock"), "{err}");
}

#[tokio::test]
async fn rejects_newer_format_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    open_file(&path).unwrap().close().await;
    {
        let database = redb::Database::open(&path).unwrap();
        let txn = database.begin_write().unwrap();
        txn.open_table(redb::TableDefinition::<&str, u64>::new("meta"))
            .unwrap()
            .insert("format", 7)
            .unwrap();
        txn.commit().unwrap();
    }
    let before = fs::read(&path).unwrap();
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(
        matches!(
            err,
            OpenStoreError::NewerFormat {
                found: 7,
                supported: 2,
                ..
            }
        ),
        "{err}"
    );
    assert!(fs::read(&path).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn damaged_file_is_rejected_or_reads_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.redb");
    let store = open_file(&whole).unwrap();
    for key in 0..40 {
        store
            .commit(put(&format!("/k/{key}"), Expect::Absent, "v".repeat(300)))
            .await
            .unwrap();
    }
    store.close().await;
    let length = fs::metadata(&whole).unwrap().len();
    let path = dir.path().join("damaged.redb");
    let mut rejected = 0;
    for round in 0..64 {
        fs::copy(&whole, &path).unwrap();
        let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let offset = (length / 64) * round + (round * 37) % 512;
        let mut bytes = vec![0; 64];
        file.seek(SeekFrom::Start(offset)).unwrap();
        let read = file.read(&mut bytes).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.write_all(&bytes[..read]).unwrap();
        drop(file);
        match open_file(&path) {
            Ok(store) => {
                let listing = store.list("/", &ListOptions::default()).unwrap();
                assert_eq!(listing.records.len(), 40, "damage at {offset}");
                for record in &listing.records {
                    assert_eq!(
                        text(record),
                        "v".repeat(300),
                        "damage at {offset} in {}",
                        record.key
                    );
                }
                store.close().await;
            }
            Err(err) => {
                assert!(
                    matches!(
                        err,
                        OpenStoreError::Corrupt { .. } | OpenStoreError::NotAStore { .. }
                    ),
                    "damage at {offset}: {err:?}"
                );
                assert!(path.exists());
                rejected += 1;
            }
        }
    }
    assert!(rejected > 0, "no damage was detected");
    // A truncated file.
    fs::copy(&whole, &path).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(length / 3)
        .unwrap();
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(matches!(err, OpenStoreError::Corrupt { .. }), "{err:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_get_unique_ordered_revisions() {
    const WRITERS: usize = 16;
    const ROUNDS: usize = 25;
    let dir = tempfile::tempdir().unwrap();
    let store = open_file(&dir.path().join("store.redb")).unwrap();
    let mut watcher = store.watch("/", Revision(1)).unwrap();
    let counter = store.commit(put("/counter", Expect::Absent, "0")).await.unwrap();
    let increment = |store: Store, mut seen: Arc<Record>| async move {
        let mut revisions = Vec::new();
        while revisions.len() < ROUNDS {
            let count: usize = text(&seen).parse().unwrap();
            match store
                .commit(put(
                    "/counter",
                    Expect::At(seen.modified),
                    (count + 1).to_string(),
                ))
                .await
            {
                Ok(record) => {
                    revisions.push(record.modified);
                    seen = record;
                }
                Err(CommitError::Conflict { current }) => {
                    seen = current.expect("the counter is never deleted")
                }
                Err(err) => panic!("{err}"),
            }
        }
        revisions
    };
    let writers = (0..WRITERS).map(|_| increment(store.clone(), Arc::clone(&counter)));
    let revisions: Vec<Revision> = futures::future::join_all(writers)
        .await
        .into_iter()
        .flatten()
        .collect();
    let unique: HashSet<_> = revisions.iter().collect();
    assert_eq!(unique.len(), WRITERS * ROUNDS);
    assert_eq!(
        text(&store.get(&Key::new("/counter")).unwrap()),
        (WRITERS * ROUNDS).to_string(),
        "an update was lost"
    );
    for expected in 2..=store.revision().0 {
        assert_eq!(watcher.next().await.unwrap().revision, Revision(expected));
    }
    store.close().await;
}

#[test]
fn lagging_watcher_is_closed_without_affecting_other_watchers() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let limits = WatchLimits {
        events_max: 3,
        bytes_max: 1 << 20,
    };
    let shared = store.writer.shared();
    let mut slow = Watcher::start(&shared, "/", Revision(1), limits).unwrap();
    let mut quick = Watcher::start(&shared, "/", Revision(1), limits).unwrap();
    let mut elsewhere = Watcher::start(&shared, "/elsewhere/", Revision(1), limits).unwrap();
    for write in 0..5 {
        store
            .commit_one(put("/k/a", Expect::Any, format!("{write}")))
            .unwrap();
        assert_eq!(quick.ready().unwrap().revision, Revision(2 + write));
    }
    assert!(slow.ready().is_none());
    assert_eq!(
        slow.progress(),
        Revision(1),
        "progress of a closed watcher stays at its last delivered event"
    );
    assert_eq!(
        elsewhere.progress(),
        Revision(6),
        "progress advances without events"
    );
    assert!(elsewhere.ready().is_none());
    // A new watch from the last progress misses no event.
    let mut again = store.watch("/", slow.progress()).unwrap();
    assert_eq!(drain(&mut again).len(), 5);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(slow.next()).is_none());
}

#[test]
fn watcher_with_a_filter_queues_only_selected_events() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let limits = WatchLimits {
        events_max: 1,
        bytes_max: 1 << 20,
    };
    store.commit_one(put("/k/a", Expect::Any, "0")).unwrap();
    store.commit_one(put("/k/b", Expect::Any, "0")).unwrap();
    let filter: EventFilter = Box::new(|event| event.key().as_str() == "/k/a");
    let shared = store.writer.shared();
    let mut watcher = Watcher::start_selected(&shared, "/", Some(filter), Revision(1), limits).unwrap();
    assert_eq!(drain(&mut watcher).len(), 1, "history");
    for _ in 0..3 {
        store.commit_one(put("/k/b", Expect::Any, "1")).unwrap();
    }
    store.commit_one(put("/k/a", Expect::Any, "1")).unwrap();
    let events = drain(&mut watcher);
    assert_eq!(events.len(), 1, "other events do not count towards the limit");
    assert_eq!(events[0].revision, store.revision());
    store.commit_one(put("/k/b", Expect::Any, "2")).unwrap();
    assert_eq!(
        watcher.progress(),
        store.revision(),
        "progress advances without events"
    );
}

#[test]
fn watch_from_future_revision_skips_earlier_events() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let mut watcher = store.watch("/", Revision(3)).unwrap();
    for _ in 0..3 {
        store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    }
    assert_eq!(
        drain(&mut watcher)
            .iter()
            .map(|event| event.revision.0)
            .collect::<Vec<_>>(),
        [4]
    );
}

#[test]
fn history_is_limited_by_age_count_and_bytes() {
    let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let history = HistoryLimits {
        events_min: 2,
        events_max: 10,
        bytes_max: 100_000,
        age_max: Duration::from_secs(300),
        garbage_rows_max: 0,
    };
    let config = StoreConfig { history, ..config() };
    let writer = open::writer(
        Box::new(PowerCutDisk::new()),
        &config,
        Clock::Manual(manual.clone()),
    )
    .unwrap();
    let mut store = Manual { writer };
    for _ in 0..5 {
        store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    }
    manual.advance(Duration::from_secs(299));
    store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    assert_eq!(store.compacted(), Revision(0), "younger than five minutes");
    manual.advance(Duration::from_secs(2));
    store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    assert_eq!(
        store.compacted(),
        Revision(6),
        "events older than five minutes are compacted, except the last two"
    );
    for _ in 0..20 {
        store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    }
    assert_eq!(store.revision().0 - store.compacted().0, 10, "bounded by count");
    store
        .commit_one(put("/k/a", Expect::Any, "y".repeat(99_900)))
        .unwrap();
    assert_eq!(
        store.revision().0 - store.compacted().0,
        10,
        "a current record is not part of the history"
    );
    store.commit_one(put("/k/a", Expect::Any, "x")).unwrap();
    assert_eq!(
        store.revision().0 - store.compacted().0,
        1,
        "bounded by bytes, but the newest event stays"
    );
}

#[test]
fn compaction_limits_file_size_and_keeps_current_state() {
    let history = HistoryLimits {
        events_max: 10,
        garbage_rows_max: 50,
        ..HistoryLimits::default()
    };
    let config = StoreConfig { history, ..config() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let writer = open::writer(Box::new(FileMedium::lock(&path).unwrap()), &config, Clock::System).unwrap();
    let mut store = Manual { writer };
    store
        .commit_one(put("/k/old", Expect::Absent, "untouched"))
        .unwrap();
    for write in 0..600 {
        let key = format!("/k/{}", write % 3);
        let outcome = if write % 10 == 9 {
            store.commit_one(delete(&key, Expect::Any))
        } else {
            store.commit_one(put(&key, Expect::Any, "z".repeat(10_000)))
        };
        outcome.unwrap();
    }
    let (listed, revision) = (store.list("/"), store.revision());
    store.writer.close();
    let size = fs::metadata(&path).unwrap().len();
    assert!(size < 4 << 20, "6 MB were written, the file has {size} bytes");
    let store = Manual {
        writer: open::writer(Box::new(FileMedium::lock(&path).unwrap()), &config, Clock::System).unwrap(),
    };
    assert_eq!((store.list("/"), store.revision()), (listed, revision));
    assert!(store.compacted().0 >= 500, "a compacted revision stays compacted");
}

#[test]
fn invalid_value_or_encoder_panic_fails_only_its_own_write() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let with = |encode: fn(Revision) -> Bytes| Write {
        key: Key::new("/k/bad"),
        expect: Expect::Any,
        change: Change::Put(Box::new(encode)),
    };
    let outcomes = store.batch([
        put("/k/a", Expect::Absent, "1"),
        with(|_| panic!("a bug in an encoder (expected in this test's output)")),
        with(|_| Bytes::from_static(b"{\"half\":")),
        with(|_| Bytes::from(vec![b' '; VALUE_BYTES_MAX + 1])),
        put("/k/b", Expect::Absent, "2"),
        delete("/k/none", Expect::Any),
    ]);
    assert!(
        matches!(
            outcomes.as_slice(),
            [
                Ok(first),
                Err(CommitError::Encoder { .. }),
                Err(CommitError::NotJson { .. }),
                Err(CommitError::TooLarge { .. }),
                Ok(second),
                Err(CommitError::Conflict { .. }),
            ] if (first.modified, second.modified) == (Revision(2), Revision(3))
        ),
        "{outcomes:?}"
    );
}

#[test]
fn keys_sort_by_namespace_then_name() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    for key in ["/r/b/a", "/r/a/b", "/r/a/a", "/s/a/a"] {
        store.commit_one(put(key, Expect::Absent, "x")).unwrap();
    }
    let keys: Vec<_> = store.list("/r/").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["/r/a/a", "/r/a/b", "/r/b/a"]);
}

#[test]
fn metrics_count_batches_conflicts_failures_and_compaction() {
    let registry = rooflet_base::metrics::Registry::new();
    let metrics = StoreMetrics::register(&registry).unwrap();
    let history = HistoryLimits {
        events_max: 2,
        garbage_rows_max: 1,
        ..HistoryLimits::default()
    };
    let config = StoreConfig {
        history,
        metrics,
        ..config()
    };
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &config).unwrap();
    let _watcher = store.watch("/", Revision(1)).unwrap();
    store.batch((0..5).map(|write| put("/k/a", Expect::Any, format!("{write}"))));
    store
        .commit_one(put("/k/a", Expect::Absent, "conflict"))
        .unwrap_err();
    disk.set_full(true);
    store.commit_one(put("/k/b", Expect::Absent, "lost")).unwrap_err();
    let text = rooflet_base::metrics::render(&registry);
    for line in [
        "rooflet_store_batch_writes_sum 6",
        "rooflet_store_commit_seconds_count 2",
        "rooflet_store_conflicts_total 1",
        "rooflet_store_failures_total 1",
        "rooflet_store_compacted_rows_total 2",
        "rooflet_store_records 1",
        "rooflet_store_history_events 2",
        "rooflet_store_watchers 1",
        "rooflet_store_watchers_lagged_total 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is not in:\n{text}");
    }
}

#[test]
fn guard_is_evaluated_at_commit_time() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let open = || {
        let holds = |record: &Record| text(record) == "open";
        Some(Guard {
            key: Key::new("/door"),
            holds: Box::new(holds),
        })
    };
    let outcomes = store.guarded_batch([
        (put("/room/1", Expect::Absent, "x"), open()),
        (put("/door", Expect::Absent, "open"), None),
        (put("/room/2", Expect::Absent, "x"), open()),
        (put("/door", Expect::Any, "closed"), None),
        (put("/room/3", Expect::Absent, "x"), open()),
        (delete("/door", Expect::Any), None),
        (put("/room/4", Expect::Absent, "x"), open()),
    ]);
    assert!(
        matches!(
            outcomes.as_slice(),
            [
                Err(CommitError::GuardFailed { .. }),
                Ok(_),
                Ok(_),
                Ok(_),
                Err(CommitError::GuardFailed { .. }),
                Ok(_),
                Err(CommitError::GuardFailed { .. }),
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(store.list("/room/"), [("/room/2".to_owned(), "x".to_owned())]);
}

#[tokio::test]
async fn excerpt_is_located_after_a_write_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        locate_excerpt: |json| {
            let start = json.windows(3).position(|part| part == b"<a>")?;
            Some(start..start + 3)
        },
        ..StoreConfig::at(dir.path().join("store.redb"))
    };
    let store = Store::open(config.clone(), Clock::System).unwrap();
    let with = store.commit(put("/a/1", Expect::Absent, "1 <a>")).await.unwrap();
    let without = store.commit(put("/a/2", Expect::Absent, "2")).await.unwrap();
    assert_eq!([with.excerpt(), without.excerpt()], [b"<a>", b"".as_slice()]);
    store.close().await;
    let store = Store::open(config, Clock::System).unwrap();
    let found = |key: &str| store.get(&Key::new(key)).unwrap().excerpt().to_vec();
    assert_eq!([found("/a/1"), found("/a/2")], [b"<a>".to_vec(), Vec::new()]);
}
