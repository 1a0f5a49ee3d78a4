//! Files that only their owner may read, written whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const MODE: u32 = 0o600;

/// The file is as it was.
#[derive(Debug, thiserror::Error)]
#[error("writing `{}`", path.display())]
pub(crate) struct WriteFileError {
    path: PathBuf,
    source: io::Error,
}

/// Replaces `path` in one step that survives a power cut.
pub(super) fn write(path: &Path, contents: &str) -> Result<(), WriteFileError> {
    let failed = |source| WriteFileError {
        path: path.to_owned(),
        source,
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = directory.join(temporary);
    let written = write_new(&temporary, contents)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(directory)?.sync_all());
    written.map_err(|err| {
        // It may never have come to be, or have its name by now.
        let _ = fs::remove_file(&temporary);
        failed(err)
    })
}

fn write_new(path: &Path, contents: &str) -> io::Result<()> {
    // What a killed process of the same number left behind.
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)?;
    file.write_all(contents.as_bytes())?;
    file.sync_all()
}

/// The contents, `None` where there is no such file. A file that others could read is closed to them.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    let contents = match fs::read_to_string(path) {
        Ok(contents) => contents,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "a secret file was open to other users; closed it to them");
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
    }
    Ok(Some(contents))
}
