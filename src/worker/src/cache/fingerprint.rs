//! Fingerprint of everything that keys and values depend on: the model's files, the engine and the
//! element type.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;
use sha2::{Digest, Sha256};

use rooflet_artifact::model_dir::ModelDir;

/// Number of samples per weight file. The fingerprint does not cover all bytes, because hashing
/// tens of gigabytes would delay every start. It covers the name, size and header of each file, the
/// modification times of its content and of its inode, and these samples.
///
/// A file that was written, replaced or copied since gets another fingerprint, because programs
/// cannot set the inode's time. At worst, prefixes are computed again. Silent corruption by the
/// disk is not detected.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: u64 = 64 << 10;

/// Maximum size of a weight file's header that is hashed completely. Headers have a few megabytes
/// at most.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Computes the fingerprint. `engine` identifies everything else that determines the bits.
pub(crate) fn fingerprint(model: &ModelDir, engine: &str) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(engine.as_bytes());
    for file in ["config.json", "tokenizer.json"] {
        add(&fs::read(model.path.join(file))?);
    }
    for path in &model.weight_files {
        add(path.file_name().unwrap_or_default().as_bytes());
        for part in samples(path)? {
            add(&part);
        }
    }
    Ok(hex::encode(hash.finalize()))
}

fn samples(path: &Utf8Path) -> io::Result<Vec<Vec<u8>>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let times = [
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ];
    let mut parts = vec![metadata.len().to_le_bytes().to_vec()];
    parts.extend(times.map(|time| time.to_le_bytes().to_vec()));
    let mut length = [0; size_of::<u64>()];
    file.read_exact(&mut length)?;
    let mut part = |from: u64, length: u64| {
        file.seek(SeekFrom::Start(from))?;
        let mut part = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        (&file).take(length).read_to_end(&mut part)?;
        parts.push(part);
        Ok::<_, io::Error>(())
    };
    part(
        0,
        u64::from_le_bytes(length).min(MAX_HEADER_BYTES) + size_of::<u64>() as u64,
    )?;
    for sample in 0..SAMPLES {
        part(metadata.len() / SAMPLES * sample, SAMPLE_BYTES)?;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camino::Utf8PathBuf;

    use super::*;
    use rooflet_base::clock::Clock;
    use rooflet_testing::TempDir;

    #[test]
    fn changes_with_every_file_and_with_the_engine() {
        let from = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("e2e/fixtures/models/qwen3");
        let dir = TempDir::new();
        let to = dir.path();
        for entry in from.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        let now = || fingerprint(&ModelDir::inspect(to).unwrap(), "a").unwrap();
        let mut seen = vec![now()];
        assert_eq!(now(), seen[0]);
        seen.push(fingerprint(&ModelDir::inspect(to).unwrap(), "b").unwrap());
        let weights = to.join("model.safetensors");
        let time = weights.metadata().unwrap().modified().unwrap();
        let mut bytes = fs::read(&weights).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&weights, &bytes).unwrap();
        File::open(&weights).unwrap().set_modified(time).unwrap();
        seen.push(now());
        // Only the inode's time changes, as soon as its clock has advanced.
        let inode_time = || {
            let metadata = weights.metadata().unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let before = inode_time();
        let deadline = Clock::System.instant() + Duration::from_secs(10);
        while inode_time() == before && Clock::System.instant() < deadline {
            File::open(&weights).unwrap().set_modified(time).unwrap();
        }
        seen.push(now());
        File::open(&weights)
            .unwrap()
            .set_modified(time + Duration::from_nanos(1))
            .unwrap();
        seen.push(now());
        for file in ["config.json", "tokenizer.json"] {
            let mut text = fs::read_to_string(to.join(file)).unwrap();
            text.push('\n');
            fs::write(to.join(file), text).unwrap();
            seen.push(now());
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((seen.len(), count), (7, 7));
    }
}
