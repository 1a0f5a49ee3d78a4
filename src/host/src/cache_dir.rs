//! Directories of large files that can be downloaded or computed again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::Utf8Path;

use super::native;

/// Name of the file that excludes a directory from Spotlight.
const NEVER_INDEX: &str = ".metadata_never_index";

/// Creates a directory with access for the owner only. On a Mac, Time Machine does not back up the
/// new directory and Spotlight does not index it. An existing directory stays as it is, because the
/// user may have included it deliberately.
pub fn create(path: &Utf8Path) -> io::Result<()> {
    create_on(cfg!(target_os = "macos"), path)
}

/// Returns whether Time Machine and Spotlight skip a directory. `None` on machines without them.
pub fn is_excluded(path: &Utf8Path) -> Option<bool> {
    Some(native::is_excluded_from_backup(path)? && path.join(NEVER_INDEX).is_file())
}

fn create_on(is_mac: bool, path: &Utf8Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if is_mac {
        fs::write(path.join(NEVER_INDEX), "")?;
        native::exclude_from_backup(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn only_new_directories_are_excluded_from_indexes() {
        let directory = TempDir::new();
        let new = directory.path().join("agent/models");
        create_on(true, &new).unwrap();
        assert!(new.join(NEVER_INDEX).is_file());
        fs::remove_file(new.join(NEVER_INDEX)).unwrap();
        create_on(true, &new).unwrap();
        assert!(!new.join(NEVER_INDEX).exists(), "included by the user");
        let on_linux = directory.path().join("kv");
        create_on(false, &on_linux).unwrap();
        assert!(on_linux.is_dir() && !on_linux.join(NEVER_INDEX).exists());
    }
}
