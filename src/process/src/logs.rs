//! Log files of child processes: limited by rotation, kept across restarts of the child, read from
//! the end, and followed.
//!
//! The child appends to the open file itself, so that it can outlive this process. Rotation
//! therefore copies the file to `NAME.1` and truncates it. A line that is written between the two
//! steps is lost.

mod redirected;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use futures::Stream;

use rooflet_base::file::if_there;

/// Size at which a log is rotated. One rotated file is kept, so that the logs of a replica take at
/// most twice this size, plus the bytes written between two checks.
pub const MAX_LOG_BYTES: u64 = 10 << 20;

/// Maximum number of attempts to read the last lines while the log is rotated.
const MAX_TRIES: usize = 128;

/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Interval at which a followed log is checked at its end.
const FOLLOW_POLL: Duration = Duration::from_millis(200);

/// Location of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    path: Utf8PathBuf,
}

/// Start position for reading a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// From the oldest kept byte.
    Start,
    /// From the last lines.
    LastLines(usize),
}

impl Log {
    pub fn new(path: Utf8PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    fn rotated(&self) -> Utf8PathBuf {
        Utf8PathBuf::from(format!("{}.1", self.path))
    }

    /// Opens the log for the child. Only the owner can read it, because it may contain client data.
    pub fn open_append(&self) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.path)
    }

    /// Returns the size of the current file; 0 if it is missing.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Rotates the log if it exceeds `max_bytes`. Returns whether it was rotated.
    pub fn rotate(&self, max_bytes: u64) -> io::Result<bool> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        let Some(mut log) = if_there(opened)? else {
            return Ok(false);
        };
        if log.metadata()?.len() <= max_bytes {
            return Ok(false);
        }
        let next = Utf8PathBuf::from(format!("{}.1.next", self.path));
        // A limit, because a child that writes faster than the copy would delay its end forever.
        let limit = max_bytes.saturating_mul(4).max(CHUNK_BYTES as u64);
        let copied = copy(&mut log, limit, &next).and_then(|()| fs::rename(&next, self.rotated()));
        if copied.is_err() {
            // An incomplete copy would occupy a disk that may be full. It may not exist.
            let _ = fs::remove_file(&next);
        }
        copied?;
        log.set_len(0)?;
        Ok(true)
    }

    /// Opens the log for reading. A missing log is empty.
    pub fn read(&self, from: From) -> io::Result<LogReader> {
        let mut reader = LogReader {
            log: self.clone(),
            current: None,
            pending: Vec::new(),
            rotations: None,
        };
        let mut tries = 1;
        loop {
            match reader.open(from) {
                Ok(()) => return Ok(reader),
                // The log was truncated: its contents are now in the rotated file.
                Err(err) if err.kind() == io::ErrorKind::UnexpectedEof && tries < MAX_TRIES => tries += 1,
                Err(err) => return Err(err),
            }
        }
    }
}

/// Copies at most `limit` bytes to a new private file.
fn copy(log: &mut File, limit: u64, to: &Utf8Path) -> io::Result<()> {
    let mut copy = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    io::copy(&mut log.take(limit), &mut copy).map(drop)
}

/// Read position in a log. Rotations neither lose nor repeat bytes that are still kept.
#[derive(Debug)]
pub struct LogReader {
    log: Log,
    /// Current file and read position.
    current: Option<(File, u64)>,
    /// Rotated files to read first, each with its read position.
    pending: Vec<(File, u64)>,
    /// Inode and size of the rotated file when `current` was opened.
    rotations: Option<(u64, u64)>,
}

impl LogReader {
    fn open(&mut self, from: From) -> io::Result<()> {
        let rotated = if_there(File::open(self.log.rotated()))?;
        self.rotations = rotated.as_ref().map(mark).transpose()?;
        let current = if_there(File::open(&self.log.path))?;
        let (mut skip_rotated, mut skip_current) = (0, 0);
        if let From::LastLines(lines) = from {
            let lengths = [&rotated, &current].map(|file| file.as_ref().map_or(Ok(0), length));
            let [rotated_bytes, current_bytes] =
                [lengths[0].as_ref(), lengths[1].as_ref()].map(|l| l.map_or(0, |l| *l));
            (skip_current, skip_rotated) =
                match current.as_ref().map(|file| last_lines(file, lines)).transpose()? {
                    Some(Tail::At(offset)) => (offset, rotated_bytes),
                    found => {
                        let missing = match found {
                            Some(Tail::Only(count)) => lines - count,
                            Some(Tail::At(_)) | None => lines,
                        };
                        let at = match rotated
                            .as_ref()
                            .map(|file| last_lines(file, missing))
                            .transpose()?
                        {
                            Some(Tail::At(offset)) => offset,
                            Some(Tail::Only(_)) | None => 0,
                        };
                        (0, at)
                    }
                };
            skip_current = skip_current.min(current_bytes);
        }
        self.pending = rotated.map(|file| (file, skip_rotated)).into_iter().collect();
        self.current = current.map(|file| (file, skip_current));
        Ok(())
    }

    /// Returns the next bytes; empty at the current end.
    pub fn next_chunk(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some((file, offset)) = self.pending.first_mut() {
                let chunk = read_at(file, offset)?;
                if !chunk.is_empty() {
                    return Ok(chunk);
                }
                self.pending.remove(0);
                continue;
            }
            self.notice_rotation()?;
            if !self.pending.is_empty() {
                continue;
            }
            let Some((file, offset)) = &mut self.current else {
                return Ok(Bytes::new());
            };
            return read_at(file, offset);
        }
    }

    /// Detects a rotation: the rest of the previous file is then in the rotated file, and the log
    /// starts again.
    fn notice_rotation(&mut self) -> io::Result<()> {
        if self.current.is_none() {
            self.current = if_there(File::open(&self.log.path))?.map(|file| (file, 0));
        }
        let rotated = if_there(File::open(self.log.rotated()))?;
        let now = rotated.as_ref().map(mark).transpose()?;
        if now == self.rotations {
            return Ok(());
        }
        self.rotations = now;
        if let (Some(file), Some((_, offset))) = (rotated, &mut self.current) {
            self.pending.push((file, std::mem::take(offset)));
        }
        Ok(())
    }
}

/// Streams a log: existing bytes, and with `follow` new bytes until the reader disconnects.
pub fn stream(reader: LogReader, follow: bool) -> impl Stream<Item = io::Result<Bytes>> {
    futures::stream::try_unfold(reader, move |mut reader| async move {
        loop {
            let read = move || reader.next_chunk().map(|chunk| (chunk, reader));
            let (chunk, back) = tokio::task::spawn_blocking(read)
                .await
                .map_err(io::Error::other)??;
            if !chunk.is_empty() {
                return Ok(Some((chunk, back)));
            }
            if !follow {
                return Ok(None);
            }
            reader = back;
            tokio::time::sleep(FOLLOW_POLL).await;
        }
    })
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

fn mark(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.ino(), metadata.len()))
}

fn read_at(mut file: &File, offset: &mut u64) -> io::Result<Bytes> {
    file.seek(SeekFrom::Start(*offset))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let bytes = file.read(&mut chunk)?;
    chunk.truncate(bytes);
    *offset += bytes as u64;
    Ok(chunk.into())
}

/// Position of the last lines of a file.
#[derive(Debug, PartialEq, Eq)]
enum Tail {
    /// Offset of the first of these lines.
    At(u64),
    /// The file has only this number of lines.
    Only(usize),
}

fn last_lines(mut file: &File, lines: usize) -> io::Result<Tail> {
    let end = length(file)?;
    if lines == 0 {
        return Ok(Tail::At(end));
    }
    let (mut position, mut found) = (end, 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    while position > 0 {
        let bytes = position.min(CHUNK_BYTES as u64);
        position -= bytes;
        let part = &mut chunk[..usize::try_from(bytes).expect("at most one chunk")];
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(part)?;
        for (index, byte) in part.iter().enumerate().rev() {
            let at = position + index as u64;
            // The newline at the end of the file does not start a line.
            if *byte == b'\n' && at + 1 < end {
                found += 1;
                if found == lines {
                    return Ok(Tail::At(at + 1));
                }
            }
        }
    }
    Ok(Tail::Only(if end > 0 { found + 1 } else { 0 }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use rooflet_testing::TempDir;

    struct Scene {
        _directory: TempDir,
        log: Log,
        child: File,
    }

    impl Scene {
        fn new() -> Self {
            let directory = TempDir::new();
            let log = Log::new(directory.path().join("worker.log"));
            let child = log.open_append().unwrap();
            Self {
                _directory: directory,
                log,
                child,
            }
        }

        fn write(&mut self, text: &str) {
            self.child.write_all(text.as_bytes()).unwrap();
        }

        fn read(&self, from: From) -> String {
            drain(&mut self.log.read(from).unwrap())
        }
    }

    fn drain(reader: &mut LogReader) -> String {
        let mut all = Vec::new();
        loop {
            let chunk = reader.next_chunk().unwrap();
            if chunk.is_empty() {
                return String::from_utf8(all).unwrap();
            }
            all.extend_from_slice(&chunk);
        }
    }

    #[test]
    fn last_lines_may_span_a_rotation() {
        let mut scene = Scene::new();
        scene.write("one\ntwo\nthree\n");
        assert!(scene.log.rotate(4).unwrap());
        assert!(!scene.log.rotate(4).unwrap(), "it is empty now");
        scene.write("four\nfive");
        for (lines, expect) in [
            (0, ""),
            (1, "five"),
            (2, "four\nfive"),
            (3, "three\nfour\nfive"),
            (9, "one\ntwo\nthree\nfour\nfive"),
        ] {
            assert_eq!(scene.read(From::LastLines(lines)), expect, "{lines}");
        }
        assert_eq!(scene.read(From::Start), "one\ntwo\nthree\nfour\nfive");
    }

    #[test]
    fn last_lines_are_readable_during_a_rotation() {
        let mut scene = Scene::new();
        let text = "a line\n".repeat(100_000);
        std::thread::scope(|scope| {
            let (log, child) = (scene.log.clone(), &mut scene.child);
            let writer = scope.spawn(move || {
                for _ in 0..100 {
                    child.write_all(text.as_bytes()).unwrap();
                    log.rotate(0).unwrap();
                }
            });
            while !writer.is_finished() {
                scene.log.read(From::LastLines(usize::MAX)).unwrap();
            }
        });
    }

    #[test]
    fn missing_log_is_empty_until_it_is_created() {
        let directory = TempDir::new();
        let log = Log::new(directory.path().join("worker.log"));
        let mut reader = log.read(From::LastLines(5)).unwrap();
        assert_eq!(drain(&mut reader), "");
        log.open_append().unwrap().write_all(b"hello\n").unwrap();
        assert_eq!(drain(&mut reader), "hello\n");
        assert!(!log.rotate(1 << 20).unwrap());
    }

    #[test]
    fn failed_rotation_leaves_no_copy_and_loses_nothing() {
        let mut scene = Scene::new();
        scene.write("one\n");
        fs::create_dir_all(scene.log.rotated().join("in the way")).unwrap();
        scene.log.rotate(1).unwrap_err();
        assert_eq!(scene.log.bytes(), 4);
        let next = format!("{}.1.next", scene.log.path);
        assert!(!Utf8Path::new(&next).exists());
        fs::remove_dir_all(scene.log.rotated()).unwrap();
        assert!(scene.log.rotate(1).unwrap());
        assert_eq!(scene.read(From::Start), "one\n");
    }

    #[test]
    fn rotated_log_has_limited_size() {
        let mut scene = Scene::new();
        for _ in 0..100 {
            scene.write(&"x".repeat(100));
            scene.log.rotate(1000).unwrap();
        }
        let size = |path: &Utf8Path| fs::metadata(path).unwrap().len();
        assert!(size(&scene.log.path) + size(&scene.log.rotated()) <= 2 * 1100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn follower_neither_misses_nor_repeats_bytes(steps in proptest::collection::vec((0usize..3, "[a-z\n]{1,30}"), 1..30)) {
            let mut scene = Scene::new();
            let mut reader = scene.log.read(From::Start).unwrap();
            let (mut written, mut seen) = (String::new(), String::new());
            let mut rotated_since_read = false;
            for (step, text) in steps {
                match step {
                    0 => {
                        scene.write(&text);
                        written.push_str(&text);
                    }
                    // Two rotations between two checks lose the contents of the first one.
                    1 if !rotated_since_read => rotated_since_read = scene.log.rotate(0).unwrap(),
                    _ => {
                        seen.push_str(&drain(&mut reader));
                        rotated_since_read = false;
                        prop_assert_eq!(&seen, &written);
                    }
                }
            }
            seen.push_str(&drain(&mut reader));
            prop_assert_eq!(&seen, &written);
        }
    }
}
