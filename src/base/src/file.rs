//! Files: atomic replacement, directory listings, missing files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};

/// Converts a "not found" error to `None`.
pub fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Replaces a file atomically and durably: after a crash or an error, readers find either the old
/// or the new contents. Only the owner can read the file.
pub fn replace(path: impl AsRef<Path>, contents: &[u8]) -> io::Result<()> {
    let path = path.as_ref();
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(format!(".{}", std::process::id()));
    let temporary = directory.join(name);
    let written = write_new(&temporary, contents)
        .and_then(|()| fs::rename(&temporary, path))
        // The rename is durable only after the directory is synced.
        .and_then(|()| File::open(directory)?.sync_all());
    if written.is_err() {
        // The temporary file may not exist, or may already be renamed.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    // The file may remain from a killed process with the same pid.
    if_there(fs::remove_file(path))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents)?;
    // Without the sync, the file could be empty after a power failure.
    file.sync_all()
}

/// Returns the subdirectories; empty if the directory cannot be read.
pub fn directories(path: &Utf8Path) -> Vec<Utf8PathBuf> {
    let entries = path.read_dir_utf8().into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.into_path());
    paths.filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn replaces_file_with_private_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "a longer text with public permissions").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn failed_replacement_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("directory");
        fs::create_dir_all(path.join("full")).unwrap();
        replace(&path, b"new").unwrap_err();
        assert!(path.join("full").is_dir());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        replace(directory.path().join("missing/file"), b"new").unwrap_err();
    }

    #[test]
    fn only_missing_files_are_no_error() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            if_there(fs::read_to_string(directory.path().join("missing"))).unwrap(),
            None
        );
        if_there(fs::read_to_string(&directory)).unwrap_err();
        fs::create_dir(directory.path().join("one")).unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap();
        assert_eq!(directories(path), [path.join("one")]);
        assert_eq!(directories(&path.join("missing")), [""; 0]);
    }
}
