//! Measurement of the disk's read speed without the page cache. This speed bounds a cold start.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};

use camino::{Utf8Path, Utf8PathBuf};

use rooflet_base::clock::Clock;

/// Bytes per read. Reads are long and sequential, as when weights are loaded.
const CHUNK_BYTES: usize = 8 << 20;
/// Alignment of memory, offsets and lengths of direct reads: 4 KiB, the largest block size in use.
const ALIGNMENT: usize = 4096;
/// Minimum file size. The time to read a smaller file depends mostly on the seek.
const MIN_FILE_BYTES: u64 = 64 << 20;
/// Maximum bytes to read, which exceeds the internal cache of a disk.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum duration of the reads in seconds, for slow disks.
const MAX_SECONDS: f64 = 3.0;
/// Maximum number of entries of a directory tree that are searched.
const MAX_ENTRIES: usize = 10_000;

/// True if a direct read never uses the page cache, as on Linux. macOS only guarantees that a
/// direct read does not fill the cache; cached pages may still be used.
const BYPASS_IS_CERTAIN: bool = cfg!(target_os = "linux");

/// Measurement of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskRead {
    pub path: Utf8PathBuf,
    /// True if all bytes came from the disk, not from the page cache.
    pub past_cache: bool,
    pub chunk_bytes: usize,
    /// Duration of each read in seconds, in order.
    pub seconds: Vec<f64>,
}

/// Reason why no file was measured.
#[derive(Debug, thiserror::Error)]
pub enum DiskReadError {
    #[error("reading `{path}`")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("`{path}` has {bytes} bytes: name a file of {} MiB or more", MIN_FILE_BYTES >> 20)]
    TooSmall { path: Utf8PathBuf, bytes: u64 },
    #[error("reading `{path}`, the largest file of the directory")]
    Largest {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("no file below `{path}` has {} MiB or more", MIN_FILE_BYTES >> 20)]
    NoFile { path: Utf8PathBuf },
}

/// Reads `path`, or the largest file below it, in chunks.
pub fn read(path: &Utf8Path, clock: &Clock) -> Result<DiskRead, DiskReadError> {
    let failed = |err| DiskReadError::Read {
        path: path.to_owned(),
        err,
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    let is_directory = metadata.is_dir();
    let (path, bytes) = if is_directory {
        largest_file(path)
            .filter(|(_, bytes)| *bytes >= MIN_FILE_BYTES)
            .ok_or_else(|| DiskReadError::NoFile {
                path: path.to_owned(),
            })?
    } else {
        (path.to_owned(), metadata.len())
    };
    if bytes < MIN_FILE_BYTES {
        return Err(DiskReadError::TooSmall { path, bytes });
    }
    let outcome = match open_direct(&path) {
        // Some file systems, such as tmpfs, do not support direct reads. The first read then fails.
        Ok(file) => read_chunks(file, clock).map(|seconds| (BYPASS_IS_CERTAIN, seconds)),
        Err(err) => Err(err),
    };
    let (past_cache, seconds) = outcome
        .or_else(|_| Ok((false, read_chunks(File::open(&path)?, clock)?)))
        .map_err(|err| {
            let path = path.clone();
            match is_directory {
                true => DiskReadError::Largest { path, err },
                false => DiskReadError::Read { path, err },
            }
        })?;
    Ok(DiskRead {
        path,
        past_cache,
        chunk_bytes: CHUNK_BYTES,
        seconds,
    })
}

fn largest_file(directory: &Utf8Path) -> Option<(Utf8PathBuf, u64)> {
    let mut largest: Option<(Utf8PathBuf, u64)> = None;
    let mut directories = vec![directory.to_owned()];
    let mut entries = 0;
    // Entries that cannot be read are skipped, because any large file is sufficient.
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir_utf8().into_iter().flatten().flatten() {
            entries += 1;
            if entries > MAX_ENTRIES {
                return largest;
            }
            let Ok(metadata) = entry.path().symlink_metadata() else {
                continue;
            };
            let bytes = metadata.len();
            if metadata.is_dir() {
                directories.push(entry.path().to_owned());
            } else if metadata.is_file() && largest.as_ref().is_none_or(|(_, most)| bytes > *most) {
                largest = Some((entry.path().to_owned(), bytes));
            }
        }
    }
    largest
}

#[cfg(not(target_os = "macos"))]
fn open_direct(path: &Utf8Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(path)
}

#[cfg(target_os = "macos")]
fn open_direct(path: &Utf8Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).open(path)?;
    super::macos::read_past_cache(&file)?;
    Ok(file)
}

/// Returns the duration of each read. The rest of the file after the last complete chunk is not
/// read.
fn read_chunks(mut file: File, clock: &Clock) -> io::Result<Vec<f64>> {
    let mut memory = vec![0_u8; CHUNK_BYTES + ALIGNMENT];
    let skip = memory.as_ptr().align_offset(ALIGNMENT);
    let chunk = &mut memory[skip..skip + CHUNK_BYTES];
    let whole_chunks = file.seek(SeekFrom::End(0))?.min(MAX_BYTES) / CHUNK_BYTES as u64;
    file.rewind()?;
    let begin = clock.instant();
    let mut seconds = Vec::new();
    for _ in 0..whole_chunks {
        let from = clock.instant();
        file.read_exact(chunk)?;
        let now = clock.instant();
        seconds.push(now.duration_since(from).as_secs_f64());
        if now.duration_since(begin).as_secs_f64() > MAX_SECONDS {
            break;
        }
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    fn file(directory: &Utf8Path, name: &str, mebibytes: usize) -> Utf8PathBuf {
        let path = directory.join(name);
        fs::write(&path, vec![7_u8; mebibytes << 20]).unwrap();
        path
    }

    #[test]
    fn reads_largest_file_of_a_tree_in_chunks() {
        let directory = TempDir::new();
        let path = directory.path();
        fs::create_dir(path.join("model")).unwrap();
        let weights = file(&path.join("model"), "weights", 65);
        file(path, "small", 1);
        let read = read(path, &Clock::System).unwrap();
        assert_eq!((&read.path, read.seconds.len()), (&weights, 65 / 8));
        assert!(read.seconds.iter().all(|seconds| *seconds > 0.0));
    }

    #[test]
    fn errors_name_the_path() {
        let directory = TempDir::new();
        let path = directory.path();
        let small = file(path, "small", 1);
        let error = |path: &Utf8Path| read(path, &Clock::System).unwrap_err().to_string();
        assert_eq!(
            error(&small),
            format!("`{small}` has 1048576 bytes: name a file of 64 MiB or more")
        );
        assert_eq!(error(path), format!("no file below `{path}` has 64 MiB or more"));
        assert_eq!(error("/does/not/exist".into()), "reading `/does/not/exist`");
    }
}
