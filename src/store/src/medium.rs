//! Where the database's bytes lie: a file, its lock, and how a whole new file takes its place.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{Builder, Database, DatabaseError, StorageBackend};

use super::error::OpenStoreError;
use rooflet_base::file::if_there;
use rooflet_base::mutex::lock;

/// Everything current is in memory already: redb's own cache only helps it to write.
const CACHE_BYTES: usize = 16 << 20;
const MAGIC: &[u8] = b"redb";
/// Values include Secrets: the file is its owner's alone.
const MODE: u32 = 0o600;

/// The store's side of a disk. Two of them: a file, and the tests' disk that loses power.
pub(super) trait Medium: Send {
    /// For messages.
    fn path(&self) -> &Path;
    /// The database as it lies there, `None` where there never was one; for looking only: repairs
    /// and whatever else is written to it stay in memory.
    fn inspect(&self) -> Result<Option<Database>, OpenError>;
    /// The same for use. Opening writes to the file, and repairs it after a crash.
    fn open(&self) -> Result<Option<Database>, OpenError>;
    /// An empty database beside it. Replaces the remains of an earlier attempt.
    fn create_replacement(&self) -> Result<Database, OpenError>;
    /// The replacement becomes the database, in one step and durably.
    fn publish_replacement(&self) -> io::Result<()>;
    /// Whether a sync has failed since the last `open` or `create_replacement`. What the disk holds
    /// is then unknown, even where reading it back looks well: the system may have dropped the
    /// pages it could not write.
    fn sync_failed(&self) -> bool;
}

#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("it does not begin like a database")]
    NotADatabase,
    #[error(transparent)]
    Database(#[from] redb::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<DatabaseError> for OpenError {
    fn from(err: DatabaseError) -> Self {
        Self::Database(err.into())
    }
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// The file, locked against every other process for as long as this value lives.
#[derive(Debug)]
pub(super) struct FileMedium {
    path: PathBuf,
    replacement: PathBuf,
    sync_failed: Arc<AtomicBool>,
    _lock: File,
}

impl FileMedium {
    pub(super) fn lock(path: &Path) -> Result<Self, OpenStoreError> {
        let lock_path = beside(path, ".lock");
        let failed = |action| {
            let path = lock_path.clone();
            move |source| OpenStoreError::Io { action, path, source }
        };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(&lock_path)
            .map_err(failed("opening the lock file"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenStoreError::InUse {
                    path: path.to_owned(),
                    holder: holder(&mut lock),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("locking")(source)),
        }
        // The system frees the lock with its process: what a killed one wrote here binds nobody.
        lock.set_len(0)
            .and_then(|()| write!(lock, "process {}", std::process::id()))
            .map_err(failed("writing the lock file"))?;
        Ok(Self {
            path: path.to_owned(),
            replacement: beside(path, ".new"),
            sync_failed: Arc::default(),
            _lock: lock,
        })
    }

    fn open_file(&self) -> Result<Option<File>, OpenError> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        let Some(mut file) = if_there(opened)? else {
            return Ok(None);
        };
        let mut start = Vec::new();
        (&mut file).take(MAGIC.len() as u64).read_to_end(&mut start)?;
        if start != MAGIC {
            return Err(OpenError::NotADatabase);
        }
        file.rewind()?;
        Ok(Some(file))
    }

    fn backend(&self, file: File) -> FileBackend {
        self.sync_failed.store(false, Ordering::Release);
        FileBackend {
            file,
            sync_failed: Arc::clone(&self.sync_failed),
        }
    }
}

/// Who holds the lock, as it wrote into the file.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    match lock.take(64).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "another process".to_owned(),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl Medium for FileMedium {
    fn path(&self) -> &Path {
        &self.path
    }

    fn inspect(&self) -> Result<Option<Database>, OpenError> {
        let Some(file) = self.open_file()? else {
            return Ok(None);
        };
        Ok(Some(builder().create_with_backend(Overlay::new(file)?)?))
    }

    fn open(&self) -> Result<Option<Database>, OpenError> {
        let Some(file) = self.open_file()? else {
            return Ok(None);
        };
        Ok(Some(builder().create_with_backend(self.backend(file))?))
    }

    fn create_replacement(&self) -> Result<Database, OpenError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(MODE)
            .open(&self.replacement)?;
        Ok(builder().create_with_backend(self.backend(file))?)
    }

    fn publish_replacement(&self) -> io::Result<()> {
        fs::rename(&self.replacement, &self.path)?;
        // The rename itself is durable once its directory is.
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        File::open(directory)?.sync_all()
    }

    fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Acquire)
    }
}

/// Plain positioned reads and writes. Ours rather than redb's because it must remember a failed
/// sync; the lock is the medium's.
struct FileBackend {
    file: File,
    sync_failed: Arc<AtomicBool>,
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // On macOS this is F_FULLFSYNC: through the drive's own cache too.
        self.file
            .sync_data()
            .inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// A file that is only read: what is written over it stays in memory.
struct Overlay {
    file: File,
    written: Mutex<Written>,
}

struct Written {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

const OVERLAY_PAGE_BYTES: u64 = 4096;

impl Overlay {
    fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self {
            file,
            written: Mutex::new(Written {
                len,
                pages: BTreeMap::new(),
            }),
        })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }

    /// The page numbered `page` as the file has it, zeroes where it ends.
    fn file_page(&self, page: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; OVERLAY_PAGE_BYTES as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self
                .file
                .read_at(&mut bytes[filled..], page * OVERLAY_PAGE_BYTES + filled as u64)?
            {
                0 => break,
                read => filled += read,
            }
        }
        Ok(bytes)
    }
}

/// The pages that `len` bytes from `offset` touch: page number, where in the page, where in the
/// buffer.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % OVERLAY_PAGE_BYTES) as usize;
        let part = (len - done).min(OVERLAY_PAGE_BYTES as usize - within);
        let buffer = done..done + part;
        done += part;
        Some((at / OVERLAY_PAGE_BYTES, within..within + part, buffer))
    })
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written();
        if offset + out.len() as u64 > written.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if written.pages.is_empty() {
            return self.file.read_exact_at(out, offset);
        }
        for (page, within, buffer) in pages(offset, out.len()) {
            match written.pages.get(&page) {
                Some(bytes) => out[buffer].copy_from_slice(&bytes[within]),
                None => out[buffer].copy_from_slice(&self.file_page(page)?[within]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written();
        // What is cut off and grown again reads as zeroes.
        for page in len.div_ceil(OVERLAY_PAGE_BYTES)..written.len.div_ceil(OVERLAY_PAGE_BYTES) {
            written.pages.insert(page, vec![0; OVERLAY_PAGE_BYTES as usize]);
        }
        written.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written();
        written.len = written.len.max(offset + data.len() as u64);
        for (page, within, buffer) in pages(offset, data.len()) {
            let bytes = match written.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.file_page(page)?),
            };
            bytes[within].copy_from_slice(&data[buffer]);
        }
        Ok(())
    }
}
