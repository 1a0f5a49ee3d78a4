//! Identity of a file of kernels. The build script uses this file, too.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::str::FromStr;

/// Bytes of the beginning that are compared. The file begins with the names and digests of its
/// functions; the whole file has more than 100 MB.
const HEAD: u64 = 256 << 10;

/// Size and checksum of the beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) bytes: u64,
    head: u64,
}

impl Fingerprint {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut head = Vec::new();
        file.take(HEAD).read_to_end(&mut head)?;
        Ok(Self {
            bytes,
            head: checksum(&head),
        })
    }
}

/// Computes the FNV-1a hash of the bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.bytes, self.head)
    }
}

/// Error for a text that is not a fingerprint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidFingerprint;

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (bytes, head) = text.split_once('-').ok_or(InvalidFingerprint)?;
        Ok(Self {
            bytes: bytes.parse().map_err(|_| InvalidFingerprint)?,
            head: u64::from_str_radix(head, 16).map_err(|_| InvalidFingerprint)?,
        })
    }
}
