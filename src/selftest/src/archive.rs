//! Tiny models and their reference logits (`e2e/fixtures`) in the binary. Most of their weights are
//! noise from a seed, so the archive contains the seeds, and the weights are generated when it is
//! unpacked: a few hundred kilobytes instead of four megabytes.
//!
//! Format: gzip of a line with the index in JSON, and the literal bytes of all files.

mod noise;
#[cfg(test)]
mod pack;

use std::io::{self, Read};

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use self::noise::Noise;

/// Archive of this binary. `cargo xtask generate` writes it.
const ARCHIVE: &[u8] = include_bytes!("archive/models.gz");

/// Unpacked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// Path relative to `e2e/fixtures`.
    pub(super) path: String,
    pub(super) contents: Vec<u8>,
}

/// Damage of the archive, and so of the binary.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("failed to decompress the models of the self test")]
    Decompress {
        #[source]
        err: io::Error,
    },
    #[error("failed to read the index of the models of the self test")]
    Index {
        #[source]
        err: serde_json::Error,
    },
    #[error("the archive of the models of the self test is truncated")]
    Truncated,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: String,
    parts: Vec<Part>,
}

/// Part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Number of literal bytes.
    Literal(usize),
    Noise(Rows),
}

/// Consecutive rows of a generated matrix in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Rows {
    seed: [u32; 3],
    /// Values before the first row.
    skip: usize,
    values: usize,
    /// Values of a row, which determine the scale.
    width: usize,
}

impl Rows {
    /// Appends the rows in little-endian float32.
    fn append(self, contents: &mut Vec<u8>) {
        let values = Noise::new(&self.seed).skip(self.skip).take(self.values);
        contents.extend(values.flat_map(|value| scaled(value, self.width).to_le_bytes()));
    }
}

/// Returns the weight for `noise` in a matrix with rows of `width` values. The order of operations
/// is that of `e2e/fixtures/logits.py`.
fn scaled(noise: f64, width: usize) -> f32 {
    noise as f32 * (1.5 / (width as f64).sqrt()) as f32
}

/// Returns the files of this binary's archive, sorted by path.
pub(super) fn unpack() -> Result<Vec<File>, UnpackError> {
    unpack_archive(ARCHIVE)
}

fn unpack_archive(archive: &[u8]) -> Result<Vec<File>, UnpackError> {
    let mut bytes = Vec::new();
    GzDecoder::new(archive)
        .read_to_end(&mut bytes)
        .map_err(|err| UnpackError::Decompress { err })?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (index, literals) = bytes.split_at(end.ok_or(UnpackError::Truncated)?);
    let mut literals = &literals[1..];
    let index: Vec<Entry> = serde_json::from_slice(index).map_err(|err| UnpackError::Index { err })?;
    let mut files = Vec::with_capacity(index.len());
    for Entry { path, parts } in index {
        let mut contents = Vec::new();
        for part in parts {
            match part {
                Part::Noise(rows) => rows.append(&mut contents),
                Part::Literal(count) => {
                    let (part, rest) = literals.split_at_checked(count).ok_or(UnpackError::Truncated)?;
                    contents.extend_from_slice(part);
                    literals = rest;
                }
            }
        }
        files.push(File { path, contents });
    }
    Ok(files)
}
