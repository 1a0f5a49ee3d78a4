//! Disk space that only deletions may use.
//!
//! A deletion appends to the file, too. On a full disk, it would fail like every other write, and no
//! object could be deleted to free space. The reserve is a file beside the store, whose removal
//! makes room for deletions.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rooflet_base::file::if_there;

/// Size of the reserve: the deletion of the largest object, with the pages that change meanwhile.
const RESERVE_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: usize = 64 << 10;

/// File that occupies the reserved space.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Allocates the space, unless it is allocated. Fails with [`io::ErrorKind::StorageFull`] if the
    /// disk has less free space.
    pub(super) fn hold(&self) -> io::Result<()> {
        if if_there(fs::metadata(&self.path))?.is_some_and(|found| found.len() == RESERVE_BYTES) {
            return Ok(());
        }
        let filled = self.fill();
        if filled.is_err() {
            self.release()?;
        }
        filled
    }

    /// Frees the space. Returns false if none was allocated.
    pub(super) fn release(&self) -> io::Result<bool> {
        let removed = if_there(fs::remove_file(&self.path))?;
        Ok(removed.is_some())
    }

    fn fill(&self) -> io::Result<()> {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.path)?;
        let block = incompressible();
        for _ in 0..RESERVE_BYTES / BLOCK_BYTES as u64 {
            file.write_all(&block)?;
        }
        Ok(())
    }
}

/// Returns a block that a file system with compression cannot store in less space.
fn incompressible() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(BLOCK_BYTES / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_allocated_once_and_released() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("reserve");
        let reserve = Reserve::at(path.clone());
        assert!(!reserve.release().expect("nothing to remove"));
        reserve.hold().expect("allocated");
        assert_eq!(fs::metadata(&path).expect("a file").len(), RESERVE_BYTES);
        reserve.hold().expect("allocated before");
        assert!(reserve.release().expect("removed"));
        assert!(!path.exists());
        fs::write(&path, "incomplete").expect("written");
        reserve.hold().expect("allocated again");
        assert_eq!(fs::metadata(&path).expect("a file").len(), RESERVE_BYTES);
    }
}
