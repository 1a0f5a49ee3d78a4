//! Log of a process whose standard error was redirected to a file.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use camino::Utf8PathBuf;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::Log;

impl Log {
    /// Returns the log to which `stream` appends, for rotation by the writing process itself.
    ///
    /// Returns `None` unless the stream is a regular file that was opened for appending, as launchd
    /// and `2>>FILE` do. Other streams would continue at their old position after truncation.
    pub fn redirected(stream: impl AsFd) -> Option<Self> {
        let stream: OwnedFd = stream.as_fd().try_clone_to_owned().ok()?;
        let flags = OFlag::from_bits_retain(fcntl(&stream, FcntlArg::F_GETFL).ok()?);
        let path = path_of(&stream)?;
        let metadata = File::from(stream).metadata().ok()?;
        // The name may belong to another file by now.
        let named = std::fs::metadata(&path).ok()?;
        let is_same = (named.dev(), named.ino()) == (metadata.dev(), metadata.ino());
        (metadata.is_file() && flags.contains(OFlag::O_APPEND) && is_same).then(|| Self::new(path))
    }
}

#[cfg(target_os = "macos")]
fn path_of(stream: &OwnedFd) -> Option<Utf8PathBuf> {
    let mut path = PathBuf::new();
    fcntl(stream, FcntlArg::F_GETPATH(&mut path)).ok()?;
    Utf8PathBuf::from_path_buf(path).ok()
}

#[cfg(not(target_os = "macos"))]
fn path_of(stream: &OwnedFd) -> Option<Utf8PathBuf> {
    use std::os::fd::AsRawFd;
    let link = PathBuf::from(format!("/proc/self/fd/{}", stream.as_raw_fd()));
    Utf8PathBuf::from_path_buf(std::fs::read_link(link).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn file_opened_for_appending_is_rotated_by_its_writer() {
        let directory = TempDir::new();
        let path = directory.path().canonicalize_utf8().unwrap().join("agent.log");
        let mut stream = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        stream.write_all(b"first\n").unwrap();
        let log = Log::redirected(&stream).expect("a log");
        assert_eq!(log.path(), path);
        assert!(log.rotate(5).unwrap());
        stream.write_all(b"second\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second\n");
        assert_eq!(fs::read_to_string(log.rotated()).unwrap(), "first\n");
    }

    #[test]
    fn other_streams_are_not_logs() {
        let directory = TempDir::new();
        let path = directory.path().join("agent.log");
        let not_appending = File::create(&path).unwrap();
        assert_eq!(Log::redirected(&not_appending), None);
        let (_reader, pipe) = std::io::pipe().unwrap();
        assert_eq!(Log::redirected(&pipe), None);
        let device = OpenOptions::new().append(true).open("/dev/null").unwrap();
        assert_eq!(Log::redirected(&device), None);
        let renamed = OpenOptions::new().append(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(Log::redirected(&renamed), None);
    }
}
