//! Directory of block files: `xx/KEY.safetensors`, where `xx` is the first byte of the key. Files
//! are written under a temporary name and renamed, so that no incomplete file has a block's name.
//! They are not synced: a lost file only costs a computation, and a damaged one is detected on
//! reading and moved to `quarantine/`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};

use super::block_file::{self, BlockFileError, BlockName, MAX_HEADER_BYTES, RawBlock};
use super::key::BlockKey;
use rooflet_base::clock::Clock;
use rooflet_host::Host;

/// Disk space that is left free for other users of the file system.
const MIN_FREE_BYTES: u64 = rooflet_roofline::disk::MIN_FREE.0;
/// Maximum number of damaged files that are kept for inspection.
const MAX_QUARANTINED: usize = 8;

const EXTENSION: &str = "safetensors";
const UNFINISHED: &str = "tmp";
const QUARANTINE: &str = "quarantine";
const LOCK: &str = "lock";

/// Reason why a directory cannot be used for block files.
#[derive(Debug, thiserror::Error)]
pub enum OpenFilesError {
    #[error("cannot use prefix cache directory `{path}`")]
    Io {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error(
        "prefix cache directory `{path}` is in use by another worker; each worker needs its own directory"
    )]
    InUse { path: Utf8PathBuf },
    #[error("failed to read the model's files")]
    Model {
        #[source]
        err: io::Error,
    },
    #[error("failed to start the thread for prefix files")]
    Spawn {
        #[source]
        err: io::Error,
    },
}

impl OpenFilesError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Io { .. } => "PrefixCacheUnusable",
            Self::InUse { .. } => "PrefixCacheInUse",
            Self::Model { .. } => "ReadFailed",
            Self::Spawn { .. } => "EngineFailed",
        }
    }
}

/// Reason why a block could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadBlockError {
    #[error("failed to read `{path}`")]
    Io {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("`{path}`: {err}")]
    Damaged { path: Utf8PathBuf, err: BlockFileError },
}

/// Reason why a block was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteBlockError {
    #[error("failed to write `{path}`")]
    Io {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("failed to encode the block")]
    Encode {
        #[source]
        err: BlockFileError,
    },
    #[error("the disk is full: less than {} MiB would be left free", MIN_FREE_BYTES >> 20)]
    DiskFull,
}

/// File of an earlier worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFile {
    pub(super) name: BlockName,
    pub(super) bytes: u64,
    pub(super) snapshot: bool,
    pub(super) used: SystemTime,
}

/// Directory of block files, locked by this worker.
#[derive(Debug)]
pub(crate) struct BlockFiles {
    dir: Utf8PathBuf,
    model: String,
    clock: Clock,
    /// Lock, held for the lifetime of this value.
    _lock: File,
}

impl BlockFiles {
    /// Opens the directory and creates it if it does not exist. `model` is the fingerprint of the
    /// model and of the engine.
    pub(crate) fn open(dir: &Utf8Path, model: String, clock: Clock) -> Result<Self, OpenFilesError> {
        let failed = |err| OpenFilesError::Io {
            path: dir.to_owned(),
            err,
        };
        make_dir(dir).map_err(failed)?;
        let lock = private(&dir.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(OpenFilesError::InUse { path: dir.to_owned() });
            }
            Err(fs::TryLockError::Error(err)) => return Err(failed(err)),
        }
        Ok(Self {
            dir: dir.to_owned(),
            model,
            clock,
            _lock: lock,
        })
    }

    /// Returns all blocks, of any model, the least recently used first. Removes files that are not
    /// complete blocks.
    pub(super) fn scan(&self) -> Vec<FoundFile> {
        let mut found = Vec::new();
        let byte = |name: &str| name.len() == 2 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
        for dir in entries(&self.dir).filter(|path| path.file_name().is_some_and(byte)) {
            for path in entries(&dir) {
                match describe(&path) {
                    Ok(file) => found.push(file),
                    Err(err) => {
                        tracing::info!(%path, error = %err, "removing invalid prefix block file");
                        drop(fs::remove_file(&path));
                    }
                }
            }
        }
        found.sort_by_key(|file| file.used);
        found
    }

    /// Reads and verifies a block; `buffer` is reused. Moves a damaged file to the quarantine, and
    /// removes an unreadable one.
    pub(super) fn read(&self, key: BlockKey, mut buffer: Vec<u8>) -> Result<RawBlock, ReadBlockError> {
        let path = self.path(key);
        let failed = |err: io::Error| {
            if err.kind() != io::ErrorKind::NotFound {
                self.remove(key);
            }
            ReadBlockError::Io {
                path: path.clone(),
                err,
            }
        };
        let mut file = File::open(&path).map_err(failed)?;
        buffer.clear();
        buffer.reserve(usize::try_from(file.metadata().map_err(failed)?.len()).unwrap_or(0));
        file.read_to_end(&mut buffer).map_err(failed)?;
        // Marks the file as used for the order after a restart. A failure only makes its eviction
        // earlier.
        drop(file.set_modified(SystemTime::from(self.clock.now())));
        block_file::decode(buffer, &self.model, key).map_err(|err| {
            self.quarantine(&path);
            ReadBlockError::Damaged { path, err }
        })
    }

    /// Writes a block and returns the size of its file.
    pub(super) fn write(&self, name: BlockName, block: &RawBlock) -> Result<u64, WriteBlockError> {
        let path = self.path(name.key());
        let failed = |err| WriteBlockError::Io {
            path: path.clone(),
            err,
        };
        let bytes = block_file::encode(&name, block).map_err(|err| WriteBlockError::Encode { err })?;
        let disk = Host::Native.disk(&self.dir).map_err(failed)?;
        if disk.free.0.saturating_sub(bytes.len() as u64) < MIN_FREE_BYTES {
            return Err(WriteBlockError::DiskFull);
        }
        let unfinished = path.with_extension(UNFINISHED);
        let write = || {
            make_dir(path.parent().unwrap_or(&self.dir))?;
            let mut file = private(&unfinished)?;
            file.write_all(&bytes)?;
            fs::rename(&unfinished, &path)
        };
        write().map_err(|err| {
            drop(fs::remove_file(&unfinished));
            failed(err)
        })?;
        Ok(bytes.len() as u64)
    }

    pub(super) fn remove(&self, key: BlockKey) {
        let path = self.path(key);
        if let Err(err) = fs::remove_file(&path) {
            tracing::warn!(%path, error = %err, "failed to remove prefix block");
        }
    }

    /// Returns the path of a block's file. It depends on the hash only: no text of a request
    /// becomes part of a path.
    fn path(&self, key: BlockKey) -> Utf8PathBuf {
        let name = key.to_string();
        self.dir.join(&name[..2]).join(name).with_extension(EXTENSION)
    }

    fn quarantine(&self, path: &Utf8Path) {
        let dir = self.dir.join(QUARANTINE);
        let move_there = || {
            make_dir(&dir)?;
            if entries(&dir).count() >= MAX_QUARANTINED {
                return fs::remove_file(path);
            }
            fs::rename(path, dir.join(path.file_name().unwrap_or(QUARANTINE)))
        };
        if let Err(err) = move_there() {
            tracing::warn!(%path, error = %err, "failed to quarantine damaged prefix block");
        }
    }
}

/// Creates a directory for this user only, because the files contain tokens of prompts.
fn make_dir(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn private(path: &Utf8Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn entries(dir: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> + use<> {
    let entries = dir.read_dir_utf8().into_iter().flatten();
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path().to_owned())
}

/// Reason why a file is not a block.
#[derive(Debug, thiserror::Error)]
enum DescribeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the header is too long")]
    HeaderTooLong,
    #[error(transparent)]
    Header(#[from] BlockFileError),
    #[error("the name belongs to another block")]
    OtherName,
}

/// Reads the metadata of a file from its header.
fn describe(path: &Utf8Path) -> Result<FoundFile, DescribeError> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut length = [0; size_of::<u64>()];
    file.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER_BYTES {
        return Err(DescribeError::HeaderTooLong);
    }
    let mut header = vec![0; length];
    file.read_exact(&mut header)?;
    let label = block_file::decode_label(&header)?;
    let (name, snapshot) = (label.name, label.snapshot);
    if path.file_name() != Some(&*format!("{}.{EXTENSION}", name.key())) {
        return Err(DescribeError::OtherName);
    }
    Ok(FoundFile {
        name,
        snapshot,
        bytes: metadata.len(),
        used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
    })
}

#[cfg(test)]
mod tests;
