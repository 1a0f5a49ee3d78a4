//! Files of the system, or of a directory that stands for it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};

use super::{Result, SystemError, owner};
use crate::daemon::{DATA, below_data};
use crate::step::copy_of;
use rooflet_base::file::if_there;

/// Bytes that are compared at once.
const CHUNK: usize = 1 << 20;
/// Bytes at the end of a log that are read.
const LOG_END: u64 = 8 << 10;

#[derive(Debug)]
pub(crate) struct Files {
    root: Utf8PathBuf,
    /// Owner of installed files, if this process runs as root.
    owner: Option<u32>,
}

/// Adds the action to an error.
pub(super) fn named<T>(outcome: io::Result<T>, action: impl FnOnce() -> String) -> Result<T> {
    outcome.map_err(|err| SystemError::File {
        action: action(),
        err,
    })
}

/// Creates a file that belongs to this process's user. An earlier one with this name is deleted, because it
/// may have another owner or a second name.
fn create(path: &Utf8Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if_there(fs::remove_file(path))?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    let fill = || {
        write(&mut file)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    let filled = fill();
    if filled.is_err() {
        drop(fs::remove_file(path));
    }
    filled
}

impl Files {
    pub(crate) fn below(root: &Utf8Path) -> Self {
        Self {
            root: root.to_owned(),
            owner: rustix::process::geteuid().is_root().then_some(0),
        }
    }

    /// Returns the place of an absolute path.
    fn place(&self, path: &Utf8Path) -> Utf8PathBuf {
        self.root.join(path.as_str().trim_start_matches('/'))
    }

    /// Opens a directory or file that the user of a service may replace.
    fn open(&self, path: &Utf8Path) -> io::Result<File> {
        match (below_data(path), path.parent(), path.file_name()) {
            (Some(below), ..) => owner::open(&self.place(Utf8Path::new(DATA)), below),
            (None, Some(parent), Some(name)) => owner::open(&self.place(parent), Utf8Path::new(name)),
            (None, ..) => Err(io::ErrorKind::InvalidFilename.into()),
        }
    }

    /// Makes a user the owner of a directory or file.
    pub(crate) fn own(&self, path: &Utf8Path, user: u32, recursive: bool) -> Result<()> {
        let place = self.place(path);
        let file = named(self.open(path), || format!("opening `{place}`"))?;
        owner::change(&place, &file, user, recursive)
    }

    pub(crate) fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>> {
        let place = self.place(path);
        named(if_there(fs::read(&place)), || format!("reading `{place}`"))
    }

    /// Returns whether a file exists; `None` if this user may not know it.
    pub(crate) fn exists(&self, path: &Utf8Path) -> Option<bool> {
        self.place(path).try_exists().ok()
    }

    /// Returns the modes of the existing files and directories.
    pub(crate) fn modes(
        &self,
        paths: impl IntoIterator<Item = Utf8PathBuf>,
    ) -> Result<BTreeMap<Utf8PathBuf, u32>> {
        let mut modes = BTreeMap::new();
        for path in paths {
            let place = self.place(&path);
            let found = if_there(fs::symlink_metadata(&place));
            if let Some(found) = named(found, || format!("reading `{place}`"))? {
                modes.insert(path, found.permissions().mode() & 0o7777);
            }
        }
        Ok(modes)
    }

    /// Returns whether the user owns a file, or a directory and its entries.
    pub(crate) fn are_owned(&self, path: &Utf8Path, user: Option<u32>) -> bool {
        let place = self.place(path);
        let is_owned =
            |path: &Utf8Path| fs::symlink_metadata(path).is_ok_and(|found| Some(found.uid()) == user);
        // The data of another service may have another owner.
        let entries = place.read_dir_utf8().into_iter().flatten().flatten();
        let mut entries = entries.filter(|entry| {
            let found = entry.file_type();
            found.is_ok_and(|found| found.is_dir() || found.is_file())
        });
        let is_shared = path == DATA;
        is_owned(&place) && (is_shared || entries.all(|entry| is_owned(entry.path())))
    }

    /// Returns whether a file of the system equals another file.
    pub(crate) fn equal(&self, from: &Utf8Path, to: &Utf8Path) -> Result<bool> {
        let place = self.place(to);
        let compare = || -> io::Result<bool> {
            let Some(mut old) = if_there(File::open(&place))? else {
                return Ok(false);
            };
            let mut new = File::open(from)?;
            let (old_size, new_size) = (old.metadata()?.len(), new.metadata()?.len());
            if old_size != new_size {
                return Ok(false);
            }
            let (mut of_old, mut of_new) = (vec![0; CHUNK], vec![0; CHUNK]);
            let mut left = new_size;
            while left > 0 {
                let size = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
                old.read_exact(&mut of_old[..size])?;
                new.read_exact(&mut of_new[..size])?;
                if of_old[..size] != of_new[..size] {
                    return Ok(false);
                }
                left -= size as u64;
            }
            Ok(true)
        };
        named(compare(), || format!("comparing `{from}` with `{place}`"))
    }

    /// Returns whether a user other than root may change an installed file.
    pub(crate) fn is_replaceable(&self, path: &Utf8Path) -> bool {
        let found = fs::metadata(self.place(path));
        let is_open =
            |owner| found.is_ok_and(|found| found.uid() != owner || found.permissions().mode() & 0o022 != 0);
        self.owner.is_some_and(is_open)
    }

    pub(crate) fn create_directory(&self, path: &Utf8Path, mode: u32) -> Result<()> {
        let place = self.place(path);
        let create = || {
            fs::create_dir_all(&place)?;
            self.open(path)?.set_permissions(Permissions::from_mode(mode))
        };
        named(create(), || format!("creating the directory `{place}`"))
    }

    /// Copies a program or its data to the name of the target's copy.
    pub(crate) fn copy(&self, from: &Utf8Path, to: &Utf8Path) -> Result<()> {
        let place = copy_of(&self.place(to));
        // `fs::copy` would keep owner, access rights and attributes of the source on macOS.
        let copy = || {
            create(&place, 0o755, |new| {
                io::copy(&mut File::open(from)?, new).map(drop)
            })
        };
        named(copy(), || format!("copying `{from}` to `{place}`"))
    }

    /// Replaces a file by its copy.
    pub(crate) fn rename(&self, to: &Utf8Path) -> Result<()> {
        let place = self.place(to);
        named(fs::rename(copy_of(&place), &place), || {
            format!("replacing `{place}`")
        })
    }

    pub(crate) fn write(&self, path: &Utf8Path, text: &[u8], mode: u32) -> Result<()> {
        let place = self.place(path);
        let new = copy_of(&place);
        let write = || {
            fs::create_dir_all(place.parent().unwrap_or(&self.root))?;
            create(&new, mode, |file| file.write_all(text))?;
            fs::rename(&new, &place)
        };
        named(write(), || format!("writing `{place}`"))
    }

    /// Deletes a file, or a directory with its content. A missing one is no error.
    pub(crate) fn delete(&self, path: &Utf8Path) -> Result<()> {
        let place = self.place(path);
        let delete = || match if_there(fs::symlink_metadata(&place))? {
            Some(found) if found.is_dir() => fs::remove_dir_all(&place),
            Some(_) => fs::remove_file(&place),
            None => Ok(()),
        };
        named(delete(), || format!("deleting `{place}`"))
    }

    pub(crate) fn delete_if_empty(&self, path: &Utf8Path) -> Result<()> {
        let place = self.place(path);
        match if_there(fs::remove_dir(&place)) {
            Err(err) if err.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => named(outcome.map(drop), || format!("deleting `{place}`")),
        }
    }

    /// Returns the last line of a log that is not empty.
    pub(crate) fn last_line(&self, path: &Utf8Path) -> Option<String> {
        use std::io::{Seek as _, SeekFrom};

        let mut file = self.open(path).ok()?;
        let size = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LOG_END))).ok()?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).ok()?;
        let end = String::from_utf8_lossy(&end);
        let line = end.lines().rfind(|line| !line.trim().is_empty())?;
        Some(line.to_owned())
    }
}

#[cfg(test)]
mod tests;
