//! Identity of the store's files. A file that is deleted or replaced still accepts writes through
//! its open handle, but a restarted server does not find them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rooflet_base::file::if_there;
use rooflet_base::mutex::lock;

/// Files of a store that are no longer at their paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MisplacedFiles {
    #[error("`{}` is missing", path.display())]
    Missing { path: PathBuf },
    #[error(
        "data directory `{}` was deleted or replaced while the server runs; writes are rejected; \
         export all objects with kubectl, stop the server, restore the directory from a backup, and \
         start the server",
        path.display()
    )]
    Directory { path: PathBuf },
    #[error(
        "`{}` was replaced by another file while the server runs; writes are rejected; restart the \
         server to use that file, or move it away to keep the state of the running server",
        path.display()
    )]
    Replaced { path: PathBuf },
}

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self(metadata.dev(), metadata.ino()))
    }

    /// Returns the identity of the file at `path`, or `None` if no file exists.
    fn at(path: &Path) -> io::Result<Option<Self>> {
        let metadata = if_there(fs::metadata(path))?;
        Ok(metadata.map(|metadata| Self(metadata.dev(), metadata.ino())))
    }
}

/// Paths of the store's files with the identities of the open files.
#[derive(Debug)]
pub(super) struct Location {
    path: PathBuf,
    lock_path: PathBuf,
    lock: FileId,
    opened: Mutex<Opened>,
}

#[derive(Debug, Default)]
struct Opened {
    store: Option<FileId>,
    replacement: Option<FileId>,
}

impl Location {
    pub(super) fn new(path: &Path, lock_path: &Path, lock: &File) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            lock_path: lock_path.to_owned(),
            lock: FileId::of(lock)?,
            opened: Mutex::default(),
        })
    }

    pub(super) fn record_opened(&self, store: &File) -> io::Result<()> {
        lock(&self.opened).store = Some(FileId::of(store)?);
        Ok(())
    }

    pub(super) fn record_replacement(&self, replacement: &File) -> io::Result<()> {
        lock(&self.opened).replacement = Some(FileId::of(replacement)?);
        Ok(())
    }

    /// Records that the replacement is now the store file.
    pub(super) fn record_published(&self) {
        let mut opened = lock(&self.opened);
        opened.store = opened.replacement.take();
    }

    /// Checks that the open files are at their paths. A path that cannot be read counts as present:
    /// only a certain loss stops writes.
    pub(super) fn check(&self) -> Result<(), MisplacedFiles> {
        let path = || self.path.clone();
        match FileId::at(&self.lock_path) {
            Ok(found) if found != Some(self.lock) => {
                let directory = self.path.parent().unwrap_or(&self.path);
                return Err(MisplacedFiles::Directory {
                    path: directory.to_owned(),
                });
            }
            Ok(_) | Err(_) => {}
        }
        match FileId::at(&self.path) {
            Ok(None) => Err(MisplacedFiles::Missing { path: path() }),
            Ok(found) if found != lock(&self.opened).store => Err(MisplacedFiles::Replaced { path: path() }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Checks that a new store file overwrites only the file of this store.
    pub(super) fn check_replaceable(&self) -> Result<(), MisplacedFiles> {
        match self.check() {
            Err(MisplacedFiles::Missing { .. }) => Ok(()),
            checked => checked,
        }
    }
}
