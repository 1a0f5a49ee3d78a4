//! Files that only their owner may read, written whole or not at all.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rooflet_base::file;

/// The file is whole, as it was or as it was to be.
#[derive(Debug, thiserror::Error)]
#[error("writing `{}`", path.display())]
pub struct WriteFileError {
    path: PathBuf,
    source: io::Error,
}

/// Replaces `path` in one step that survives a power cut.
pub(super) fn write(path: &Path, contents: &str) -> Result<(), WriteFileError> {
    file::replace(path, contents.as_bytes()).map_err(|source| WriteFileError {
        path: path.to_owned(),
        source,
    })
}

/// The contents, `None` where there is no such file. A file that others could read is closed to
/// them.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    let Some(contents) = file::if_there(fs::read_to_string(path))? else {
        return Ok(None);
    };
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "a secret file was open to other users; closed it to them");
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(Some(contents))
}
