//! Directories that hold keys, models' logs and everything that was ever applied.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::Utf8Path;

const MODE: u32 = 0o700;

/// Creates `path` and what is missing above it, for their owner alone. One that is there is left as it is: whoever made
/// it may have wanted more to look in.
pub(crate) fn create(path: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn what_is_made_is_its_owners_alone_and_what_was_there_stays() {
        let directory = TempDir::new();
        let there = directory.path();
        fs::set_permissions(there, Permissions::from_mode(0o755)).expect("ours");
        create(&there.join("a/b")).expect("created");
        create(&there.join("a/b")).expect("it may be there already");
        let mode = |path: &Utf8Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(
            (mode(there), mode(&there.join("a")), mode(&there.join("a/b"))),
            (0o755, 0o700, 0o700)
        );
    }
}
