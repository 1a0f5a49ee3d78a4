//! Backups, restored stores and damaged files.

use tempfile::tempdir;

use super::*;
use crate::{CopyStoreError, StoreLock, contents, restore, salvage};

/// Number of records. They fill several pages of the file.
const RECORDS: usize = 400;

fn key(number: usize) -> String {
    format!("/registry/{number:04}")
}

async fn filled(path: &Path) -> Store {
    let store = open_file(path).expect("a new store");
    for number in 0..RECORDS {
        let text = "x".repeat(100);
        store
            .commit(put(&key(number), Expect::Absent, text))
            .await
            .expect("written");
    }
    store.commit(delete(&key(0), Expect::Any)).await.expect("deleted");
    store
        .commit(put(&key(1), Expect::Any, "new"))
        .await
        .expect("written");
    store
}

fn all(store: &Store) -> Vec<(String, String)> {
    let listing = store.list("/", &ListOptions::default()).expect("a list");
    let records = listing.records.iter();
    records
        .map(|record| (record.key.to_string(), text(record)))
        .collect()
}

#[tokio::test]
async fn backup_of_an_open_store_opens_as_a_store() {
    let directory = tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let store = filled(&at("store")).await;
    let copied = store.copy_to(&at("backup")).expect("a copy");
    assert_eq!((copied.revision, copied.records), (store.revision(), RECORDS - 1));
    let found = contents(&StoreConfig::at(at("backup")), &Clock::System);
    assert_eq!(found.expect("a valid file"), copied);

    let backup = open_file(&at("backup")).expect("a store");
    assert_eq!(all(&backup), all(&store));
    assert_eq!(backup.revision(), store.revision());
    let next = backup.commit(put("/registry/next", Expect::Absent, "next")).await;
    assert_eq!(next.expect("written").modified, Revision(store.revision().0 + 1));
    let again = store.copy_to(&at("backup"));
    assert!(matches!(again, Err(CopyStoreError::Exists { .. })), "{again:?}");
}

#[tokio::test]
async fn restored_store_skips_revisions_and_its_clients_list_again() {
    let directory = tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let store = filled(&at("store")).await;
    store.copy_to(&at("backup")).expect("a copy");
    // After the backup, the store assigns a revision to a client.
    let later = store
        .commit(put("/registry/later", Expect::Absent, "later"))
        .await;
    let later = later.expect("written").modified;

    restore(&StoreConfig::at(at("backup")), &at("restored"), &Clock::System).expect("restored");
    for _ in 0..2 {
        let restored = open_file(&at("restored")).expect("a store");
        assert!(
            restored.revision() > Revision(later.0 + 1_000_000),
            "{}",
            restored.revision()
        );
        let watched = restored.watch("/registry/", later).map(|_| ());
        watched.expect_err("the client must list again");
        assert_eq!(all(&restored).len(), RECORDS - 1);
        restored
            .commit(put(&key(1), Expect::Any, "after"))
            .await
            .expect("written");
        restored.close().await;
    }
}

#[tokio::test]
async fn salvage_keeps_the_readable_records() {
    let directory = tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let store = filled(&at("store")).await;
    let before = all(&store);
    store.close().await;

    let config = StoreConfig::at(at("store"));
    let lock = StoreLock::acquire(&config.path).expect("not in use");
    let whole = salvage(&lock, &config, &at("whole")).expect("salvaged");
    assert_eq!((whole.is_incomplete, whole.lost.len()), (false, 0));
    let copy = open_file(&at("whole")).expect("a store");
    assert_eq!(all(&copy), before);
    drop(lock);

    let intact = std::fs::read(&config.path).expect("readable");
    // A part with values, and the header, without which the database library reads nothing.
    let value = before[RECORDS / 2].1.as_bytes();
    let middle = intact.len() / 2;
    let found = intact[middle..]
        .windows(value.len())
        .position(|part| part == value);
    let values = middle + found.expect("a value in the second half");
    for (from, length, least) in [(values, 4096, RECORDS / 4), (0, 512, RECORDS - 1)] {
        let mut damaged = intact.clone();
        damaged[from..from + length].fill(0xff);
        std::fs::write(&config.path, damaged).expect("writable");
        open_file(&config.path).map(|_| ()).expect_err("damaged");

        let lock = StoreLock::acquire(&config.path).expect("not in use");
        lock.contents(&config, &Clock::System).expect_err("damaged");
        let to = at(&format!("salvaged-{from}"));
        let salvaged = salvage(&lock, &config, &to).expect("salvaged");
        assert!(salvaged.is_incomplete, "{salvaged:?}");
        let left = all(&open_file(&to).expect("a store"));
        assert!(left.len() >= least, "{} records are left", left.len());
        assert!(left.iter().all(|one| before.contains(one)), "no other record");
    }
}
