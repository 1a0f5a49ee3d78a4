//! Small file system in memory, for tests of a full disk.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Scratch;

/// File system that is unmounted when dropped.
pub(crate) struct SmallDisk {
    mount_point: PathBuf,
    _directory: Scratch,
}

impl SmallDisk {
    /// Mounts a file system. Requires Linux and the permission; otherwise, returns the reason.
    pub(crate) fn mount(mebibytes: u32) -> Result<Self, String> {
        let directory = Scratch::new();
        let mount_point = directory.join("disk");
        fs::create_dir(&mount_point).map_err(|err| err.to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"]);
        run(mount.arg(&mount_point))?;
        Ok(Self {
            mount_point,
            _directory: directory,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Fills the rest of the disk with a file of another program.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.mount_point.join("ballast")).expect("a file");
        loop {
            match file.write(&[1; 4096]) {
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::StorageFull => return,
                Err(err) => panic!("{err}"),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg("--lazy").arg(&self.mount_point)));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|err| format!("{command:?}: {err}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
