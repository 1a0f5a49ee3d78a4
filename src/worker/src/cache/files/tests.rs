use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use safetensors::Dtype;

use super::*;
use crate::cache::block_file::RawTensor;
use rooflet_testing::TempDir;

fn open(dir: &TempDir, model: &str) -> Result<BlockFiles, OpenFilesError> {
    let dir = dir.path().join("a/kv");
    BlockFiles::open(&dir, model.to_owned(), Clock::System)
}

fn name(tokens: &[u32]) -> BlockName {
    BlockName {
        model: "m".to_owned(),
        parent: BlockKey::root("m", ""),
        depth: 0,
        tokens: tokens.to_vec(),
    }
}

fn block(tokens: usize) -> RawBlock {
    let bytes = tokens * 2 * 4;
    let tensor = |place| RawTensor {
        dtype: Dtype::F32,
        shape: vec![1, 2, tokens, 1],
        place,
    };
    RawBlock {
        data: vec![3; 2 * bytes],
        layers: vec![[tensor(0..bytes), tensor(bytes..2 * bytes)]],
        snapshot: None,
    }
}

#[test]
fn blocks_survive_a_restart_in_order_of_last_use() {
    let dir = TempDir::new();
    let files = open(&dir, "m").unwrap();
    for tokens in [&[1, 2][..], &[3], &[4, 5]] {
        let bytes = files.write(name(tokens), &block(tokens.len())).unwrap();
        let file = fs::metadata(files.path(name(tokens).key())).unwrap();
        assert_eq!((file.len(), file.permissions().mode() & 0o777), (bytes, 0o600));
    }
    let age = |tokens: &[u32], seconds| {
        let file = File::open(files.path(name(tokens).key())).unwrap();
        let then = SystemTime::from(Clock::System.now()) - Duration::from_secs(seconds);
        file.set_modified(then).unwrap();
    };
    age(&[1, 2], 30);
    age(&[3], 20);
    age(&[4, 5], 10);
    assert_eq!(
        files.read(name(&[1, 2]).key(), Vec::new()).unwrap().layers.len(),
        1
    );
    drop(files);
    let files = open(&dir, "m").unwrap();
    let found: Vec<Vec<u32>> = files.scan().into_iter().map(|file| file.name.tokens).collect();
    assert_eq!(
        found,
        [vec![3], vec![4, 5], vec![1, 2]],
        "reading marks a file as used"
    );
    files.remove(name(&[3]).key());
    assert_eq!(files.scan().len(), 2);
}

#[test]
fn rejects_a_directory_in_use() {
    let dir = TempDir::new();
    let first = open(&dir, "m").unwrap();
    let err = open(&dir, "m").unwrap_err();
    assert!(err.to_string().contains("in use by another worker"), "{err}");
    drop(first);
    open(&dir, "m").unwrap();
}

#[test]
fn removes_invalid_files_and_quarantines_damaged_ones() {
    let dir = TempDir::new();
    let files = open(&dir, "m").unwrap();
    let key = name(&[1, 2]).key();
    files.write(name(&[1, 2]), &block(2)).unwrap();
    let path = files.path(key);
    let beside = |name: &str| path.with_file_name(name);
    fs::write(beside("half.tmp"), "half").unwrap();
    fs::copy(&path, beside("other.safetensors")).unwrap();
    fs::write(files.dir.join("unrelated"), "stays").unwrap();
    assert_eq!(files.scan().len(), 1);
    assert!(!beside("half.tmp").exists() && !beside("other.safetensors").exists());
    assert!(files.dir.join("unrelated").exists(), "unrelated files stay");

    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let err = files.read(key, vec![7; 3]).unwrap_err().to_string();
    assert!(err.contains("checksum mismatch"), "{err}");
    assert!(!path.exists());
    assert_eq!(entries(&files.dir.join(QUARANTINE)).count(), 1);
    assert!(matches!(
        files.read(key, vec![7; 3]),
        Err(ReadBlockError::Io { .. })
    ));
}

#[test]
fn quarantine_is_bounded() {
    let dir = TempDir::new();
    let files = open(&dir, "m").unwrap();
    for token in 0..12 {
        files.write(name(&[token]), &block(1)).unwrap();
        let path = files.path(name(&[token]).key());
        fs::write(&path, "damaged").unwrap();
        files.read(name(&[token]).key(), Vec::new()).unwrap_err();
        assert!(!path.exists());
    }
    assert_eq!(entries(&files.dir.join(QUARANTINE)).count(), MAX_QUARANTINED);
}

#[test]
fn unusable_directory_is_named_in_the_error() {
    let dir = TempDir::new();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let err = BlockFiles::open(&file, "m".to_owned(), Clock::System).unwrap_err();
    assert!(err.to_string().contains(file.as_str()), "{err}");
}

/// The file is no longer counted, so it must not stay on the disk.
#[test]
fn removes_unreadable_files() {
    let dir = TempDir::new();
    let files = open(&dir, "m").unwrap();
    let key = name(&[1]).key();
    files.write(name(&[1]), &block(1)).unwrap();
    let path = files.path(key);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let err = files.read(key, Vec::new()).unwrap_err();
    assert!(matches!(err, ReadBlockError::Io { .. }), "{err}");
    assert!(path.symlink_metadata().is_err());
    assert!(files.read(key, Vec::new()).is_err());
}
