use rooflet_mlx::mlx_rs::Array;

use super::*;
use crate::cache::block_file::RawBlock;
use crate::cache::tests::{ROOMY, block, compute, model, text};
use crate::cache::tree::Tree;
use crate::cache::{BlockFiles, raw};
use rooflet_base::clock::Clock;
use rooflet_mlx as mlx;
use rooflet_testing::TempDir;

/// Copies a block in slices that end within elements and within arrays.
fn copied(block: &KvBlock) -> RawBlock {
    let mut copying = BlockCopy::new(block).unwrap();
    while !copying.copy(101).unwrap() {}
    copying.into_block()
}

#[test]
fn copied_blocks_can_be_restored() {
    let _mlx = mlx::exclusive();
    let model = model();
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(300), 300, 0);
    for tokens in [0..256, 256..300] {
        let block = block(&row, tokens);
        assert_eq!(copied(&block).data.len() as u64, block.bytes());
    }
    // Blocks that share memory are copied like separate ones.
    let parts = [0..100, 100..256, 256..300];
    for (one, tokens) in row.blocks(&parts, false).unwrap().iter().zip(parts) {
        assert_eq!(one.layers()[0].0.dim(2), 300);
        assert_eq!((copied(one), one.bytes()), {
            let alone = block(&row, tokens);
            (copied(&alone), alone.bytes())
        });
    }
    for dtype in [
        rooflet_mlx::mlx_rs::Dtype::Float32,
        rooflet_mlx::mlx_rs::Dtype::Float16,
        rooflet_mlx::mlx_rs::Dtype::Bfloat16,
    ] {
        let array = |from: i32| {
            let numbers: Vec<f32> = (from..from + 24).map(|number| number as f32 / 7.0).collect();
            let array = Array::from_slice(&numbers, &[1, 2, 3, 4]);
            array.as_dtype(dtype).unwrap()
        };
        let block = KvBlock::alone(vec![(array(0), array(24))], Some(vec![(array(48), array(72))]));
        let raw = copied(&block);
        assert_eq!(raw.data.len() as u64, block.bytes());
        let back = KvBlock::from(raw::arrays(&raw).unwrap());
        for (one, other) in block.arrays().zip(back.arrays()) {
            assert_eq!(one.dtype(), other.dtype());
            assert_eq!(one.shape(), other.shape());
            let equal = one.eq(other).unwrap().all(None).unwrap();
            assert!(equal.item_exact::<bool>());
        }
    }
}

/// Block with 2.5 MiB for 256 tokens.
fn large_block() -> KvBlock {
    let half = || rooflet_mlx::mlx_rs::ops::ones::<f32>(&[1, 1, 256, 1280]).unwrap();
    KvBlock::alone(vec![(half(), half())], None)
}

/// Creates a directory that contains the block.
fn one_file(dir: &TempDir) -> BlockFiles {
    let files = BlockFiles::open(dir.path(), "m".to_owned(), Clock::System).unwrap();
    let name = BlockName {
        model: "m".to_owned(),
        parent: BlockKey::root("m", ""),
        depth: 0,
        tokens: text(256),
    };
    files.write(name, &copied(&large_block())).unwrap();
    files
}

fn with_disk(files: BlockFiles, wake: impl Fn() + Send + 'static) -> PrefixCache {
    let disk = Disk::spawn(files, wake).unwrap();
    PrefixCache::new(ROOMY, ResumePoints::Anywhere).with_files("m".to_owned(), disk, ROOMY)
}

fn now() -> Instant {
    Clock::System.instant()
}

/// Prefix cache that has processed the files of [`one_file`], and the receiver of its wake-ups.
fn with_known_files(dir: &TempDir) -> (PrefixCache, std::sync::mpsc::Receiver<()>) {
    let (woken_tx, woken) = std::sync::mpsc::channel();
    let mut prefixes = with_disk(one_file(dir), move || {
        // The receiver may have been dropped.
        let _ = woken_tx.send(());
    });
    woken.recv_timeout(Duration::from_secs(60)).unwrap();
    prefixes.poll_files(ROOMY, now, || true).unwrap();
    (prefixes, woken)
}

/// The thread fails while a request waits for a read.
#[test]
fn failure_of_the_file_thread_ends_all_waiting() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let (woken_tx, woken) = std::sync::mpsc::channel();
    let (fail, failing) = std::sync::mpsc::channel::<()>();
    let failing = std::sync::Mutex::new(Some(failing));
    let wake = move || {
        woken_tx.send(()).unwrap();
        if let Some(failing) = failing.lock().unwrap().take() {
            failing.recv().unwrap();
            panic!("on purpose");
        }
    };
    let mut prefixes = with_disk(one_file(&dir), wake);
    let wait = || woken.recv_timeout(Duration::from_secs(60)).unwrap();
    wait();
    prefixes.poll_files(ROOMY, now, || true).unwrap();
    let awaited = prefixes.load("", &text(300), ROOMY, None, now());
    assert!(prefixes.is_loading(&awaited) && prefixes.file_bytes() > Bytes::ZERO);
    fail.send(()).unwrap();
    wait();
    prefixes.poll_files(ROOMY, now, || true).unwrap();
    assert!(!prefixes.is_loading(&awaited) && prefixes.files_failed());
    assert_eq!(
        (prefixes.has_files(), prefixes.file_bytes()),
        (false, Bytes::ZERO)
    );
    assert!(prefixes.load("", &text(300), ROOMY, None, now()).is_empty());
}

#[test]
fn computes_blocks_of_slow_disks() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let (mut prefixes, woken) = with_known_files(&dir);
    let begin = now();
    assert_eq!(prefixes.load("", &text(300), ROOMY, Some(1e6), begin).len(), 1);
    woken.recv_timeout(Duration::from_secs(60)).unwrap();
    let after = |seconds| move || begin + Duration::from_secs(seconds);
    prefixes.poll_files(ROOMY, after(100), || true).unwrap();
    assert!(prefixes.bytes() > Bytes::ZERO);
    prefixes.evict(Bytes::ZERO);
    // The read took 100 seconds.
    let mut load = |rate| {
        let wanted = prefixes.load("", &text(300), ROOMY, Some(rate), after(101)());
        wanted.len()
    };
    assert_eq!(load(1e6), 0, "256 tokens in a quarter of a millisecond");
    assert_eq!(load(1.0), 1);
}

#[test]
fn copies_a_block_slice_by_slice() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let mut prefixes = with_disk(one_file(&dir), || ());
    let tokens: Vec<u32> = (0..256).map(|at| 9 + at % 7).collect();
    let root = BlockKey::root("m", "");
    // The block has two and a half slices.
    let block = large_block();
    let (bytes, snapshot) = (block.bytes(), false);
    assert_eq!(bytes, 5 << 19);
    let key = root.child(&tokens);
    let queue = |prefixes: &mut PrefixCache| {
        let size = Stored { bytes, snapshot };
        prefixes.tree.insert(root, [(&tokens[..], size, block.clone())]);
        prefixes.files.as_mut().unwrap().unsaved.push_back(key);
    };
    let is_written = |prefixes: &PrefixCache| prefixes.files.as_ref().unwrap().writing.contains_key(&key);
    queue(&mut prefixes);
    for _ in 0..2 {
        prefixes.advance_write(|| false).unwrap();
        assert!(prefixes.has_work() && !is_written(&prefixes));
    }
    prefixes.advance_write(|| false).unwrap();
    assert!(is_written(&prefixes) && !prefixes.has_work());

    // A block that is evicted while it is copied is not written.
    prefixes.files.as_mut().unwrap().writing.clear();
    prefixes.evict(Bytes::ZERO);
    queue(&mut prefixes);
    prefixes.advance_write(|| false).unwrap();
    prefixes.evict(Bytes::ZERO);
    prefixes.advance_write(|| false).unwrap();
    assert!(!prefixes.has_work() && !is_written(&prefixes));
}

/// Other programs have used the free disk space.
#[test]
fn full_disk_removes_old_files_then_pauses_writes() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let (mut prefixes, _woken) = with_known_files(&dir);
    assert!(prefixes.file_bytes() > Bytes::ZERO);
    let begin = now();
    let unwritten = BlockKey::root("m", "").child(&[7]);
    prefixes.files.as_mut().unwrap().writing.insert(
        unwritten,
        Writing {
            parent: BlockKey::root("m", ""),
            tokens: vec![7],
            bytes: 1,
            snapshot: false,
        },
    );
    prefixes.free_disk_space(unwritten, begin);
    assert_eq!(prefixes.file_bytes(), Bytes::ZERO);
    let files = prefixes.files.as_ref().unwrap();
    assert!(files.writing.is_empty() && files.full_until.is_none());

    prefixes.free_disk_space(unwritten, begin);
    let model = model();
    let mut row = model.new_cache();
    compute(&model, &mut row, &text(300), 300, 0);
    let keep = |prefixes: &mut PrefixCache, at| {
        prefixes.load("", &text(300), ROOMY, None, at);
        prefixes
            .store("", &text(300), &row, StoreStage::Finished, ROOMY)
            .unwrap();
        prefixes.has_work()
    };
    assert!(!keep(&mut prefixes, begin + FULL_PAUSE / 2));
    assert!(keep(&mut prefixes, begin + FULL_PAUSE));
}

#[test]
fn faulty_values_leave_no_files() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let (mut prefixes, _woken) = with_known_files(&dir);
    let root = BlockKey::root("m", "");
    // One block is written, one is copied, and one waits.
    for first in 1..4 {
        let tokens = vec![first; 256];
        let block = large_block();
        let (bytes, snapshot) = (block.bytes(), false);
        let size = Stored { bytes, snapshot };
        prefixes.tree.insert(root, [(&tokens[..], size, block)]);
        let unsaved = &mut prefixes.files.as_mut().unwrap().unsaved;
        unsaved.push_back(root.child(&tokens));
    }
    prefixes.advance_write(|| true).unwrap();
    prefixes.advance_write(|| false).unwrap();
    let awaited = prefixes.load("", &text(300), ROOMY, None, now());
    assert!(prefixes.has_work() && prefixes.is_loading(&awaited));
    prefixes.evict(Bytes::ZERO);
    prefixes.remove_files("", &text(300));
    assert!(!prefixes.has_work() && !prefixes.is_loading(&awaited));
    assert_eq!(prefixes.file_bytes(), Bytes::ZERO);
    // Waits for the thread.
    drop(prefixes);
    let files = BlockFiles::open(dir.path(), "m".to_owned(), Clock::System).unwrap();
    assert!(files.scan().is_empty());
}

/// The text of the request continues after the snapshot.
#[test]
fn faulty_snapshot_inside_a_block_leaves_no_file() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let mut prefixes = with_disk(one_file(&dir), || ());
    prefixes.tree = Tree::new(ResumePoints::AtSnapshots);
    let size = Stored {
        bytes: 1,
        snapshot: true,
    };
    let root = BlockKey::root("m", "");
    prefixes.tree.add_file(root, &text(100), size);
    prefixes.remove_files("", &text(300));
    assert_eq!(prefixes.file_bytes(), Bytes::ZERO);
}

/// The file has no snapshot, so the tree must not record one for it.
#[test]
fn snapshot_added_during_the_copy_is_not_in_the_file() {
    let _mlx = mlx::exclusive();
    let dir = TempDir::new();
    let mut prefixes = with_disk(one_file(&dir), || ());
    prefixes.tree = Tree::new(ResumePoints::AtSnapshots);
    let tokens: Vec<u32> = (0..256).map(|at| 9 + at % 7).collect();
    let root = BlockKey::root("m", "");
    let with = |snapshot: bool| {
        let half = || rooflet_mlx::mlx_rs::ops::ones::<f32>(&[1, 1, 256, 1280]).unwrap();
        let state = || rooflet_mlx::mlx_rs::ops::ones::<f32>(&[1, 4]).unwrap();
        let block = KvBlock::alone(vec![(half(), half())], snapshot.then(|| vec![(state(), state())]));
        let size = Stored {
            bytes: block.bytes(),
            snapshot,
        };
        (&tokens[..], size, block)
    };
    let key = root.child(&tokens);
    prefixes.tree.insert(root, [with(false)]);
    prefixes.files.as_mut().unwrap().unsaved.push_back(key);
    prefixes.advance_write(|| false).unwrap();
    prefixes.tree.insert(root, [with(true)]);
    assert!(prefixes.tree.get(key).unwrap().content.snapshot().is_some());
    while prefixes.has_work() {
        prefixes.advance_write(|| false).unwrap();
    }
    assert!(!prefixes.files.as_ref().unwrap().writing[&key].snapshot);
}
