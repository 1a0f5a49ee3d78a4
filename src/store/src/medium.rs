//! Storage of the database: a locked file, and its atomic replacement by a new one.

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

use super::error::{OpenStoreError, is_disk_full};
use super::location::Location;
use super::reserve::Reserve;
use rooflet_base::file::if_there;
use rooflet_base::mutex::lock;

/// Cache size of redb. Small, because all current records are in memory; only writes use it.
const CACHE_BYTES: usize = 4 << 20;
const MAGIC: &[u8] = b"redb";
/// Mode of the files: readable by the owner only, because values include Secrets.
const MODE: u32 = 0o600;

/// Storage that holds the database. Implemented by a file, and in tests by a simulated disk.
pub(super) trait Medium: Send {
    /// Returns the path for messages.
    fn path(&self) -> &Path;
    /// Opens the database read-only, or returns `None` if none exists. Repairs and other writes
    /// stay in memory.
    fn inspect(&self) -> Result<Option<Database>, OpenError>;
    /// Opens the database for writing and repairs it after a crash.
    fn open(&self) -> Result<Option<Database>, OpenError>;
    /// Creates an empty database next to the current one. Replaces leftovers of an earlier attempt.
    fn create_replacement(&self) -> Result<Database, OpenError>;
    /// Replaces the database by the replacement atomically. After an error, nothing has changed.
    fn publish_replacement(&self) -> io::Result<()>;
    /// Makes the last replacement durable.
    fn sync_directory(&self) -> io::Result<()>;
    /// Removes a replacement that was not published.
    fn discard_replacement(&self) -> io::Result<()>;
    /// Returns the size of the database.
    fn file_bytes(&self) -> io::Result<u64>;
    /// Allocates the space that is reserved for deletions, unless it is allocated.
    fn hold_reserve(&self) -> io::Result<()>;
    /// Frees the reserved space. Returns false if none was allocated.
    fn release_reserve(&self) -> io::Result<bool>;
    /// Returns true if a sync has failed since the last `open` or `create_replacement`. The content
    /// on disk is then undefined, even if it reads back correctly: the kernel may have dropped
    /// dirty pages.
    fn sync_failed(&self) -> bool;
    /// Returns the location of the files, or `None` for a simulated disk.
    fn location(&self) -> Option<Arc<Location>> {
        None
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("the file does not start with the database header")]
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

/// Database file, locked against other processes for the lifetime of the value.
#[derive(Debug)]
pub(super) struct FileMedium {
    path: PathBuf,
    replacement: PathBuf,
    location: Arc<Location>,
    reserve: Reserve,
    sync_failed: Arc<AtomicBool>,
    /// `None` for a file that is only read.
    _lock: Option<File>,
}

impl FileMedium {
    pub(super) fn lock(path: &Path) -> Result<Self, OpenStoreError> {
        let lock_path = with_suffix(path, ".lock");
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
        // The kernel releases the lock when its process exits, so leftover content has no meaning. The
        // description is not essential: a server must start on a full disk.
        let holder = format!("process {}", std::process::id());
        match write!(lock, "{holder}").and_then(|()| lock.set_len(holder.len() as u64)) {
            Err(err) if !is_disk_full(&err) => return Err(failed("writing the lock file")(err)),
            Ok(()) | Err(_) => {}
        }
        Ok(Self {
            path: path.to_owned(),
            replacement: with_suffix(path, ".new"),
            location: Arc::new(
                Location::new(path, &lock_path, &lock).map_err(failed("reading the lock file"))?,
            ),
            reserve: Reserve::at(with_suffix(path, ".reserve")),
            sync_failed: Arc::default(),
            _lock: Some(lock),
        })
    }

    /// Returns a file for [`Medium::inspect`], which no process has open.
    pub(super) fn read_only(path: &Path) -> Result<Self, OpenStoreError> {
        let failed = |source| OpenStoreError::Io {
            action: "opening store file",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            replacement: with_suffix(path, ".new"),
            location: Arc::new(Location::new(path, path, &file).map_err(failed)?),
            reserve: Reserve::at(with_suffix(path, ".reserve")),
            sync_failed: Arc::default(),
            _lock: None,
        })
    }

    fn open_file(&self, writes: bool) -> Result<Option<File>, OpenError> {
        let opened = OpenOptions::new().read(true).write(writes).open(&self.path);
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

/// Creates a file, or empties an existing one.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(path)
}

/// Creates an empty database in a new file, which nothing else uses.
pub(super) fn create_file(path: &Path) -> Result<Database, OpenError> {
    let backend = FileBackend {
        file: create(path)?,
        sync_failed: Arc::default(),
    };
    Ok(builder().create_with_backend(backend)?)
}

/// Makes a rename to `path` durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

/// Returns the description that the lock holder wrote to the lock file.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    match lock.take(64).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "another process".to_owned(),
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl Medium for FileMedium {
    fn path(&self) -> &Path {
        &self.path
    }

    fn inspect(&self) -> Result<Option<Database>, OpenError> {
        let Some(file) = self.open_file(false)? else {
            return Ok(None);
        };
        Ok(Some(builder().create_with_backend(Overlay::new(file)?)?))
    }

    fn open(&self) -> Result<Option<Database>, OpenError> {
        let Some(file) = self.open_file(true)? else {
            return Ok(None);
        };
        self.location.record_opened(&file)?;
        Ok(Some(builder().create_with_backend(self.backend(file))?))
    }

    fn create_replacement(&self) -> Result<Database, OpenError> {
        let file = create(&self.replacement)?;
        self.location.record_replacement(&file)?;
        Ok(builder().create_with_backend(self.backend(file))?)
    }

    fn publish_replacement(&self) -> io::Result<()> {
        fs::rename(&self.replacement, &self.path)?;
        self.location.record_published();
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        sync_directory(&self.path)
    }

    fn discard_replacement(&self) -> io::Result<()> {
        if_there(fs::remove_file(&self.replacement)).map(drop)
    }

    fn file_bytes(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.path)?.len())
    }

    fn hold_reserve(&self) -> io::Result<()> {
        self.reserve.hold()
    }

    fn release_reserve(&self) -> io::Result<bool> {
        self.reserve.release()
    }

    fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Acquire)
    }

    fn location(&self) -> Option<Arc<Location>> {
        Some(Arc::clone(&self.location))
    }
}

/// File backend that records failed syncs. Unlike redb's own, it does not lock the file, because
/// [`FileMedium`] holds the lock.
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
        // Rust uses F_FULLFSYNC on macOS, which also flushes the drive's cache.
        self.file
            .sync_data()
            .inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// Read-only view of a file that keeps writes in memory.
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

    /// Reads a page of the file, padded with zeroes at the end of the file.
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

/// Splits `len` bytes at `offset` into pages: page number, range in the page, range in the buffer.
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
        // A region that is truncated and extended again must read as zeroes.
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
