//! Simulated disk for tests. Power can fail between any two operations, and unsynced writes then
//! survive in any combination of sectors. Space can run out. A sync can fail, after which the disk
//! drops the unsynced writes but still returns them to readers.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{Database, StorageBackend};

use super::medium::{Medium, OpenError, builder};

/// Unit of atomic writes.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
pub(super) struct PowerCutDisk(Arc<Mutex<Inner>>);

#[derive(Clone, Default)]
struct Inner {
    files: HashMap<u64, File>,
    next_file: u64,
    main: Option<u64>,
    /// `main` after a power cut. Differs until the directory is synced.
    durable_main: Option<u64>,
    replacement: Option<u64>,
    /// Number of changes so far.
    changes: u64,
    cut_at: Option<u64>,
    syncs: u64,
    full: bool,
    has_reserve: bool,
    /// Bytes that can be written to a full disk after the reserve was released.
    spare_bytes: usize,
    /// Number of syncs until one fails.
    healthy_syncs: Option<u64>,
    error_after_sync: bool,
    fails_directory_sync: bool,
    sync_failed: bool,
}

#[derive(Clone, Default)]
struct File {
    /// Content that the process reads back.
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::SetLen(len) => set_len(bytes, *len),
        Change::Write { offset, data } => write_at(bytes, *offset, data),
    }
}

fn set_len(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len, 0);
}

fn write_at(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if bytes.len() < offset + data.len() {
        bytes.resize(offset + data.len(), 0);
    }
    bytes[offset..offset + data.len()].copy_from_slice(data);
}

impl PowerCutDisk {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics while it holds the lock")
    }

    /// Cuts the power after `changes` more changes.
    pub(super) fn cut_after(&self, changes: u64) {
        let mut inner = self.lock();
        inner.cut_at = Some(inner.changes + changes);
    }

    pub(super) fn lost_power(&self) -> bool {
        let inner = self.lock();
        inner.cut_at.is_some_and(|cut| inner.changes >= cut)
    }

    pub(super) fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    pub(super) fn has_replacement(&self) -> bool {
        self.lock().replacement.is_some()
    }

    pub(super) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Makes one sync fail after `healthy_syncs` successful ones.
    pub(super) fn fail_a_sync_after(&self, healthy_syncs: u64) {
        self.lock().healthy_syncs = Some(healthy_syncs);
    }

    /// Makes the next sync of the directory fail.
    pub(super) fn fail_a_directory_sync(&self) {
        self.lock().fails_directory_sync = true;
    }

    /// Makes the next sync succeed but report an error.
    pub(super) fn report_error_after_sync(&self) {
        self.lock().error_after_sync = true;
    }

    /// Returns the disk after the process has ended, without further faults. The kernel loses only changes
    /// whose sync has failed.
    pub(super) fn after_kill(&self) -> Self {
        let mut killed = Inner {
            cut_at: None,
            healthy_syncs: None,
            error_after_sync: false,
            fails_directory_sync: false,
            ..self.lock().clone()
        };
        for file in killed.files.values_mut() {
            file.live = file.durable.clone();
            for change in &file.unsynced {
                apply(&mut file.live, change);
            }
        }
        Self(Arc::new(Mutex::new(killed)))
    }

    /// Returns the disk after a power cut. Unsynced sectors, and an unsynced rename, survive if `survives`
    /// returns true.
    pub(super) fn after_power_cut(&self, mut survives: impl FnMut() -> bool) -> Self {
        let inner = self.lock();
        let main = match inner.main == inner.durable_main || survives() {
            true => inner.main,
            false => inner.durable_main,
        };
        let mut restored = Inner {
            next_file: inner.next_file,
            main,
            durable_main: main,
            ..Inner::default()
        };
        for (id, file) in &inner.files {
            let mut bytes = file.durable.clone();
            for change in &file.unsynced {
                match change {
                    Change::SetLen(len) => {
                        if survives() {
                            set_len(&mut bytes, *len);
                        }
                    }
                    Change::Write { offset, data } => {
                        let mut at = 0;
                        while at < data.len() {
                            // Sectors are aligned to the disk, not to the write.
                            let end = data.len().min(at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES);
                            if survives() {
                                write_at(&mut bytes, offset + at, &data[at..end]);
                            }
                            at = end;
                        }
                    }
                }
            }
            restored.files.insert(
                *id,
                File {
                    live: bytes.clone(),
                    durable: bytes,
                    unsynced: Vec::new(),
                },
            );
        }
        Self(Arc::new(Mutex::new(restored)))
    }

    fn open_file(&self, id: u64) -> Result<Database, OpenError> {
        self.lock().sync_failed = false;
        Ok(builder().create_with_backend(Backend {
            disk: self.clone(),
            file: id,
        })?)
    }
}

impl Inner {
    fn change(&mut self) -> io::Result<()> {
        if self.cut_at.is_some_and(|cut| self.changes >= cut) {
            return Err(io::Error::other("power is off"));
        }
        self.changes += 1;
        Ok(())
    }

    fn file(&mut self, id: u64) -> &mut File {
        self.files.get_mut(&id).expect("files are never removed")
    }
}

impl Medium for PowerCutDisk {
    fn path(&self) -> &Path {
        Path::new("simulated.redb")
    }

    fn inspect(&self) -> Result<Option<Database>, OpenError> {
        self.after_power_cut(|| true).open()
    }

    fn open(&self) -> Result<Option<Database>, OpenError> {
        let main = self.lock().main;
        main.map(|id| self.open_file(id)).transpose()
    }

    fn create_replacement(&self) -> Result<Database, OpenError> {
        let id = {
            let mut inner = self.lock();
            inner.change()?;
            let id = inner.next_file;
            inner.next_file += 1;
            inner.files.insert(id, File::default());
            inner.replacement = Some(id);
            id
        };
        self.open_file(id)
    }

    fn publish_replacement(&self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.change()?;
        inner.main = inner.replacement.take();
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.change()?;
        if std::mem::take(&mut inner.fails_directory_sync) {
            return Err(io::Error::other("input/output error"));
        }
        inner.durable_main = inner.main;
        Ok(())
    }

    fn discard_replacement(&self) -> io::Result<()> {
        self.lock().replacement = None;
        Ok(())
    }

    fn file_bytes(&self) -> io::Result<u64> {
        let mut inner = self.lock();
        let main = inner.main.ok_or(io::ErrorKind::NotFound)?;
        Ok(inner.file(main).live.len() as u64)
    }

    fn hold_reserve(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.full && !inner.has_reserve {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.has_reserve = true;
        inner.spare_bytes = 0;
        Ok(())
    }

    fn release_reserve(&self) -> io::Result<bool> {
        let mut inner = self.lock();
        let was_held = std::mem::take(&mut inner.has_reserve);
        if was_held {
            inner.spare_bytes = 16 << 20;
        }
        Ok(was_held)
    }

    fn sync_failed(&self) -> bool {
        self.lock().sync_failed
    }
}

struct Backend {
    disk: PowerCutDisk,
    file: u64,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated file {}", self.file)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().file(self.file).live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut inner = self.disk.lock();
        let live = &inner.file(self.file).live;
        let start = offset as usize;
        let bytes = live
            .get(start..start + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        inner.change()?;
        let full = inner.full && inner.spare_bytes == 0;
        let file = inner.file(self.file);
        if full && len as usize > file.live.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        set_len(&mut file.live, len as usize);
        file.unsynced.push(Change::SetLen(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        inner.change()?;
        inner.syncs += 1;
        inner.healthy_syncs = match inner.healthy_syncs {
            Some(0) => {
                inner.sync_failed = true;
                inner.file(self.file).unsynced.clear();
                inner.healthy_syncs = None;
                return Err(io::Error::other("input/output error"));
            }
            left => left.map(|left| left - 1),
        };
        let file = inner.file(self.file);
        for change in std::mem::take(&mut file.unsynced) {
            apply(&mut file.durable, &change);
        }
        match std::mem::take(&mut inner.error_after_sync) {
            true => Err(io::Error::other("interrupted")),
            false => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.lock();
        inner.change()?;
        if inner.full {
            let left = inner.spare_bytes.checked_sub(data.len());
            inner.spare_bytes = left.ok_or(io::ErrorKind::StorageFull)?;
        }
        let file = inner.file(self.file);
        write_at(&mut file.live, offset as usize, data);
        file.unsynced.push(Change::Write {
            offset: offset as usize,
            data: data.to_vec(),
        });
        Ok(())
    }
}
