//! Files in directories that another user can change while this process runs as root.
//!
//! No symbolic link is followed. Files are checked after they are opened, because the user can replace them
//! before.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};

use camino::{Utf8Component, Utf8Path};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};

use super::Result;
use super::files::named;
use rooflet_base::file::if_there;

/// Without `NONBLOCK`, a pipe would block.
const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a file or directory below a directory. The directory itself may be a symbolic link.
pub(super) fn open(directory: &Utf8Path, below: &Utf8Path) -> io::Result<File> {
    let mut file = File::open(directory)?;
    for component in below.components() {
        let Utf8Component::Normal(name) = component else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        file = File::from(openat(&file, name, FLAGS, Mode::empty())?);
    }
    Ok(file)
}

/// Makes a user the owner of an open file or directory, and of all files in the directory if `recursive`.
/// Fails if a file has another name too: the user could have linked a file of the system.
pub(super) fn change(path: &Utf8Path, file: &File, user: u32, recursive: bool) -> Result<()> {
    let changing = || format!("changing the owner of `{path}`");
    let found = named(file.metadata(), changing)?;
    if recursive && found.is_dir() {
        change_entries(path, file, user)?;
    }
    if found.uid() == user {
        return Ok(());
    }
    let is_only_name = found.is_dir() || (found.is_file() && found.nlink() == 1);
    let checked = is_only_name.then_some(()).ok_or_else(|| {
        io::Error::other(
            "the file has several names (hard links) or is no file: delete it, then repeat the command",
        )
    });
    named(checked.and_then(|()| fchown(file, Some(user), None)), changing)
}

fn change_entries(path: &Utf8Path, directory: &File, user: u32) -> Result<()> {
    let entries = named(Dir::read_from(directory).map_err(io::Error::from), || {
        format!("reading `{path}`")
    })?;
    for entry in entries {
        let entry = named(entry.map_err(io::Error::from), || format!("reading `{path}`"))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let place = path.join(name.to_string_lossy().as_ref());
        let opened = named(open_entry(directory, name), || format!("opening `{place}`"))?;
        if let Some(file) = opened {
            change(&place, &file, user, true)?;
        }
    }
    Ok(())
}

/// Opens a file or directory; `None` for links, sockets and pipes, whose owner does not matter, and for
/// files that the service has deleted.
fn open_entry(directory: &File, name: &CStr) -> io::Result<Option<File>> {
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
    let is_file = |mode| {
        matches!(
            FileType::from_raw_mode(mode),
            FileType::RegularFile | FileType::Directory
        )
    };
    match if_there(found)? {
        Some(found) if is_file(found.st_mode) => {}
        Some(_) | None => return Ok(None),
    }
    let file = openat(directory, name, FLAGS, Mode::empty()).map_err(io::Error::from);
    Ok(if_there(file)?.map(File::from))
}
