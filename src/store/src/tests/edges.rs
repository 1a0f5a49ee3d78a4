//! The real file, its lock, its damage; concurrent callers; limits.

use std::collections::HashSet;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::super::writer::VALUE_BYTES_MAX;
use super::*;
use rooflet_base::clock::ManualClock;

#[tokio::test]
async fn a_write_is_read_listed_watched_and_survives_reopening() {
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
        "acknowledged is visible"
    );
    assert_eq!(watcher.next().await.unwrap().revision, Revision(2));
    store
        .commit(delete("/a/1", Expect::At(Revision(2))))
        .await
        .unwrap();
    assert!(store.reached(Revision(3)).await);
    store.close().await;
    assert_eq!(watcher.next().await.unwrap().kind, EventKind::Deleted);
    assert!(watcher.next().await.is_none(), "a closed store ends its watchers");
    assert!(matches!(
        store.commit(put("/a/2", Expect::Any, "late")).await,
        Err(CommitError::Closed)
    ));

    let store = open_file(&path).unwrap();
    assert_eq!(
        store.revision(),
        Revision(3),
        "the revision of a deletion is not forgotten"
    );
    let record = store.commit(put("/a/1", Expect::Absent, "again")).await.unwrap();
    assert_eq!((record.created, record.modified), (Revision(4), Revision(4)));
    store.close().await;
}

#[test]
fn files_are_their_owners_alone() {
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
async fn a_second_open_names_the_file_and_who_holds_it() {
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
        .expect("the lock ends with its holder")
        .close()
        .await;
}

#[test]
fn what_is_not_a_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    fs::write(&path, "apiVersion: v1\n").unwrap();
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(matches!(err, OpenStoreError::NotAStore { .. }), "{err:?}");
    assert!(err.to_string().contains("store.redb"), "{err}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "apiVersion: v1\n");
    // A file of the same library with other tables is another program's.
    fs::remove_file(&path).unwrap();
    drop(redb::Database::create(&path).unwrap());
    let err = open_file(&path).map(drop).unwrap_err();
    assert!(matches!(err, OpenStoreError::NotAStore { .. }), "{err:?}");
    // A directory that is missing is not made up.
    let err = open_file(&dir.path().join("missing/store.redb"))
        .map(drop)
        .unwrap_err();
    assert!(matches!(err, OpenStoreError::Io { .. }), "{err:?}");
    assert!(err.to_string().contains("missing/store.redb.lock"), "{err}");
}

#[tokio::test]
async fn a_newer_format_is_refused_by_its_number() {
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
                supported: 1,
                ..
            }
        ),
        "{err}"
    );
    assert!(fs::read(&path).unwrap() == before, "the file was touched");
}

#[tokio::test]
async fn damage_anywhere_is_an_error_or_harmless() {
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
    let mut refused = 0;
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
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "no damage was met");
    // A file cut short.
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
async fn concurrent_writers_get_revisions_of_their_own_in_one_order() {
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
                Err(CommitError::Conflict { current }) => seen = current.expect("never deleted"),
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
        "no lost update"
    );
    for expected in 2..=store.revision().0 {
        assert_eq!(watcher.next().await.unwrap().revision, Revision(expected));
    }
    store.close().await;
}

#[test]
fn a_watcher_that_lags_is_closed_and_others_go_on() {
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
        store.one(put("/k/a", Expect::Any, format!("{write}"))).unwrap();
        assert_eq!(quick.ready().unwrap().revision, Revision(2 + write));
    }
    assert!(slow.ready().is_none());
    assert_eq!(
        slow.progress(),
        Revision(1),
        "a closed watcher promises nothing it has not delivered"
    );
    assert_eq!(elsewhere.progress(), Revision(6), "a quiet watcher moves on");
    assert!(elsewhere.ready().is_none());
    // The slow client comes back and misses nothing.
    let mut again = store.watch("/", slow.progress()).unwrap();
    assert_eq!(drain(&mut again).len(), 5);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(slow.next()).is_none());
}

#[test]
fn a_watcher_of_the_future_sees_only_the_future() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    let mut watcher = store.watch("/", Revision(3)).unwrap();
    for _ in 0..3 {
        store.one(put("/k/a", Expect::Any, "x")).unwrap();
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
fn history_is_kept_by_age_and_bounded_by_count_and_bytes() {
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
        store.one(put("/k/a", Expect::Any, "x")).unwrap();
    }
    manual.advance(Duration::from_secs(299));
    store.one(put("/k/a", Expect::Any, "x")).unwrap();
    assert_eq!(store.compacted(), Revision(0), "younger than five minutes");
    manual.advance(Duration::from_secs(2));
    store.one(put("/k/a", Expect::Any, "x")).unwrap();
    assert_eq!(
        store.compacted(),
        Revision(6),
        "older than five minutes, but for the last two"
    );
    for _ in 0..20 {
        store.one(put("/k/a", Expect::Any, "x")).unwrap();
    }
    assert_eq!(store.revision().0 - store.compacted().0, 10, "bounded by count");
    store.one(put("/k/a", Expect::Any, "y".repeat(99_900))).unwrap();
    assert_eq!(
        store.revision().0 - store.compacted().0,
        1,
        "bounded by bytes, but the newest stays"
    );
}

#[test]
fn compaction_keeps_the_file_small_and_the_present_whole() {
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
    store.one(put("/k/old", Expect::Absent, "untouched")).unwrap();
    for write in 0..600 {
        let key = format!("/k/{}", write % 3);
        let outcome = if write % 10 == 9 {
            store.one(delete(&key, Expect::Any))
        } else {
            store.one(put(&key, Expect::Any, "z".repeat(10_000)))
        };
        outcome.unwrap();
    }
    let (listed, revision) = (store.list("/"), store.revision());
    store.writer.close();
    let size = fs::metadata(&path).unwrap().len();
    assert!(
        size < 4 << 20,
        "six megabytes were written, {size} bytes are kept"
    );
    let store = Manual {
        writer: open::writer(Box::new(FileMedium::lock(&path).unwrap()), &config, Clock::System).unwrap(),
    };
    assert_eq!((store.list("/"), store.revision()), (listed, revision));
    assert!(store.compacted().0 >= 500, "a compacted revision stays compacted");
}

#[test]
fn a_bad_value_or_encoder_harms_only_its_own_write() {
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
fn a_key_orders_by_namespace_then_name() {
    let mut store = Manual::open(&PowerCutDisk::new(), &config()).unwrap();
    for key in ["/r/b/a", "/r/a/b", "/r/a/a", "/s/a/a"] {
        store.one(put(key, Expect::Absent, "x")).unwrap();
    }
    let keys: Vec<_> = store.list("/r/").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["/r/a/a", "/r/a/b", "/r/b/a"]);
}

#[test]
fn what_happens_is_counted() {
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
    store.one(put("/k/a", Expect::Absent, "conflict")).unwrap_err();
    disk.set_full(true);
    store.one(put("/k/b", Expect::Absent, "lost")).unwrap_err();
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
fn a_guard_is_asked_at_the_very_moment_of_the_write() {
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
                Err(CommitError::Unguarded { .. }),
                Ok(_),
                Ok(_),
                Ok(_),
                Err(CommitError::Unguarded { .. }),
                Ok(_),
                Err(CommitError::Unguarded { .. }),
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(store.list("/room/"), [("/room/2".to_owned(), "x".to_owned())]);
}
