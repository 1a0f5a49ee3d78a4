//! Creation of directories with keys, logs and applied objects.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::Utf8Path;

const MODE: u32 = 0o700;

/// Creates `path` and its missing parents with access for the owner only. Existing directories keep
/// their mode, because the user may have granted access deliberately.
pub fn create(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn new_directories_are_private_and_existing_ones_unchanged() {
        let directory = TempDir::new();
        let there = directory.path();
        fs::set_permissions(there, Permissions::from_mode(0o755)).expect("ours");
        create(&there.join("a/b")).expect("created");
        create(&there.join("a/b")).expect("an existing directory is no error");
        let mode = |path: &Utf8Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(there), mode(&there.join("a")), mode(&there.join("a/b"))),
            (0o755, 0o700, 0o700)
        );
    }
}
