//! What a model's keys and values depend on, as one text: the model's files, the engine and the element type.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::time::SystemTime;

use camino::Utf8Path;
use sha2::{Digest, Sha256};

use crate::model_dir::ModelDir;

/// Weights are sampled, not read: hashing tens of gigabytes would delay every start. Together with sizes, headers and
/// the times of their last change, which a copy of other weights does not share by accident.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: usize = 64 << 10;

/// `engine` names everything else that decides about bits.
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

/// Size, time of the last change, and parts at equal distances, the first of which is the file's beginning.
fn samples(path: &Utf8Path) -> io::Result<Vec<Vec<u8>>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let changed = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH);
    let changed = changed.map_or(0, |since| since.as_nanos());
    let mut parts = vec![
        metadata.len().to_le_bytes().to_vec(),
        changed.to_le_bytes().to_vec(),
    ];
    for sample in 0..SAMPLES {
        file.seek(SeekFrom::Start(metadata.len() / SAMPLES * sample))?;
        let mut part = Vec::with_capacity(SAMPLE_BYTES);
        (&file).take(SAMPLE_BYTES as u64).read_to_end(&mut part)?;
        parts.push(part);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn it_changes_with_every_file_and_with_the_engine() {
        let from = Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("e2e/fixtures/models/qwen3");
        let dir = tempfile::tempdir().unwrap();
        let to = Utf8Path::from_path(dir.path()).unwrap();
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
        File::open(&weights)
            .unwrap()
            .set_modified(time + std::time::Duration::from_nanos(1))
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
        assert_eq!((seen.len(), count), (6, 6));
    }
}
