//! Files that only their owner can read, written atomically.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rooflet_base::file;

/// Error of an atomic write. The file has either its old or its new content.
#[derive(Debug, thiserror::Error)]
#[error("writing `{}`", path.display())]
pub struct WriteFileError {
    path: PathBuf,
    source: io::Error,
}

impl WriteFileError {
    /// Returns true if the disk has no space left.
    pub(super) fn is_disk_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Replaces `path` atomically, also in case of a power failure.
pub(super) fn write(path: &Path, contents: &str) -> Result<(), WriteFileError> {
    file::replace(path, contents.as_bytes()).map_err(|source| WriteFileError {
        path: path.to_owned(),
        source,
    })
}

/// Returns true if only the owner can read a file.
pub(super) fn is_private(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 == 0)
}

/// Reads a file; `None` if it does not exist. Revokes permissions of other users.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    let Some(contents) = file::if_there(fs::read_to_string(path))? else {
        return Ok(None);
    };
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "revoked permissions of other users on a secret file");
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(Some(contents))
}
