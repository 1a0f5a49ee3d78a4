//! Compressed tar archives of small files, in the ustar format of POSIX.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;
/// Longest name of a ustar header without a prefix.
const MAX_NAME_BYTES: usize = 100;

/// Archive that is kept in memory.
pub(super) struct Archive {
    bytes: Vec<u8>,
    /// Modification time of all files, in seconds since 1970.
    time: i64,
}

impl Archive {
    pub(super) fn new(time: i64) -> Self {
        Self {
            bytes: Vec::new(),
            time,
        }
    }

    /// Adds a file below the directory `rooflet-bundle`. Long names are shortened at the front.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) {
        let name = format!("rooflet-bundle/{name}");
        let start = (name.len().saturating_sub(MAX_NAME_BYTES)..=name.len())
            .find(|at| name.is_char_boundary(*at))
            .unwrap_or_default();
        self.bytes
            .extend(header(&name[start..], content.len(), self.time));
        self.bytes.extend_from_slice(content);
        let padding = content.len().next_multiple_of(BLOCK) - content.len();
        self.bytes.extend(std::iter::repeat_n(0, padding));
    }

    /// Returns the compressed archive.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.bytes.extend([0; 2 * BLOCK]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&self.bytes)?;
        encoder.finish()
    }
}

fn header(name: &str, size: usize, time: i64) -> [u8; BLOCK] {
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, &format!("{:011o}", time.max(0)));
    // The checksum is computed with spaces in its own field.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
pub(super) fn unpacked(compressed: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(compressed);
    decoder.read_to_end(&mut bytes).expect("gzip");
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The system's tar reads the archive.
    #[test]
    fn tar_extracts_the_files() {
        let directory = rooflet_testing::TempDir::new();
        let mut archive = Archive::new(1_700_000_000);
        archive.add("a.txt", b"hello\n");
        archive.add("logs/empty.log", b"");
        let long = format!("logs/{}.log", "x".repeat(200));
        archive.add(&long, &[b'y'; 1000]);
        let path = directory.path().join("bundle.tar.gz");
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
        let output = Command::new("tar")
            .args(["-xzf", path.as_str(), "-C", directory.path().as_str()])
            .output()
            .expect("tar is installed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = std::fs::read_to_string(directory.path().join("rooflet-bundle/a.txt")).unwrap();
        assert_eq!(text, "hello\n");
    }
}
