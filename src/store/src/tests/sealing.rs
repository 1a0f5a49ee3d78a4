//! Encryption of values in the file.

use super::*;

/// Hides values below `/secret/` by inverting their bytes, with the id of the key in front.
#[derive(Debug)]
struct Inverting {
    id: u8,
}

impl Seal for Inverting {
    fn covers(&self, key: &str) -> bool {
        key.starts_with("/secret/")
    }

    fn seal(&self, _key: &str, value: &[u8]) -> Result<Vec<u8>, SealValueError> {
        let inverted = value.iter().map(|byte| !byte);
        Ok(std::iter::once(self.id).chain(inverted).collect())
    }

    fn open(&self, key: &str, sealed: &[u8]) -> Result<OpenedValue, SealValueError> {
        let (id, value) = sealed.split_first().expect("an id");
        if *id > self.id {
            return Err(SealValueError {
                key: key.to_owned(),
                reason: format!("no key {id}"),
            });
        }
        Ok(OpenedValue {
            value: value.iter().map(|byte| !byte).collect(),
            is_current: *id == self.id,
        })
    }
}

fn sealing(path: &Path, id: Option<u8>) -> StoreConfig {
    StoreConfig {
        seal: id.map(|id| Arc::new(Inverting { id }) as Arc<dyn Seal>),
        ..StoreConfig::at(path)
    }
}

async fn write(config: &StoreConfig, key: &str, text: &str) {
    let store = Store::open(config.clone(), Clock::System).expect("a store");
    store.commit(put(key, Expect::Any, text)).await.expect("written");
    store.close().await;
}

async fn value(config: &StoreConfig, key: &str) -> Result<String, OpenStoreError> {
    let store = Store::open(config.clone(), Clock::System)?;
    let record = store.get(&Key::new(key)).expect("the key");
    store.close().await;
    Ok(text(&record))
}

fn file_contains(path: &Path, text: &str) -> bool {
    let content = std::fs::read(path).expect("the file");
    content.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn covered_values_are_never_plain_in_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.redb");
    let config = sealing(&path, Some(1));
    write(&config, "/secret/a", "swordfish").await;
    write(&config, "/open/a", "daylight").await;
    assert!(!file_contains(&path, "swordfish"));
    assert!(file_contains(&path, "daylight"));
    assert_eq!(value(&config, "/secret/a").await.unwrap(), "swordfish");
}

#[tokio::test]
async fn plain_file_is_encrypted_at_the_first_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.redb");
    write(&sealing(&path, None), "/secret/a", "swordfish").await;
    assert!(file_contains(&path, "swordfish"));
    let config = sealing(&path, Some(1));
    assert_eq!(value(&config, "/secret/a").await.unwrap(), "swordfish");
    assert!(!file_contains(&path, "swordfish"));
    write(&config, "/secret/b", "more").await;
    assert_eq!(value(&config, "/secret/b").await.unwrap(), "more");
}

#[tokio::test]
async fn rotation_encrypts_again_and_missing_key_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.redb");
    write(&sealing(&path, Some(1)), "/secret/a", "swordfish").await;
    let rotated = sealing(&path, Some(2));
    assert_eq!(value(&rotated, "/secret/a").await.unwrap(), "swordfish");
    let before = std::fs::read(&path).expect("the file");
    for wrong in [sealing(&path, Some(1)), sealing(&path, None)] {
        let err = value(&wrong, "/secret/a").await.expect_err("no key");
        assert!(matches!(err, OpenStoreError::Sealed { .. }), "{err}");
        assert!(std::fs::read(&path).expect("the file") == before);
    }
    assert_eq!(value(&rotated, "/secret/a").await.unwrap(), "swordfish");
}

/// The new file would occupy the space that the next start needs.
#[test]
fn failed_encryption_on_a_full_disk_leaves_no_new_file() {
    let disk = PowerCutDisk::new();
    let mut store = Manual::open(&disk, &config()).unwrap();
    store
        .commit_one(put("/secret/a", Expect::Any, "swordfish"))
        .unwrap();
    drop(store);
    disk.set_full(true);
    let sealed = sealing(Path::new("simulated.redb"), Some(1));
    assert!(Manual::open(&disk, &sealed).is_err());
    assert!(!disk.has_replacement());
    disk.set_full(false);
    let store = Manual::open(&disk, &sealed).unwrap();
    assert_eq!(
        store.list("/secret/"),
        [("/secret/a".to_owned(), "swordfish".to_owned())]
    );
}
