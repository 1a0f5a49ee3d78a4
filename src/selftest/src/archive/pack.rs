//! Creation of the archive from `e2e/fixtures`, for tests: recognises the rows of matrices that the
//! generator reproduces.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};
use flate2::Compression;
use flate2::write::GzEncoder;
use safetensors::{Dtype, SafeTensors};

use super::*;

/// Tensors of a model in the order of their seeds; no tiny model has more.
const MAX_TENSORS: u32 = 64;
const ARCHIVE_PATH: &str = "src/selftest/src/archive/models.gz";
/// Variable that makes the test of the archive write it. `cargo xtask generate` sets it.
const WRITE_ARCHIVE: &str = "ROOFLET_WRITE_ARCHIVE";
/// Maximum size of the archive in the binary.
const MAX_ARCHIVE_BYTES: usize = 600_000;

fn root() -> Utf8PathBuf {
    Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Files of the fixtures that the self test needs, sorted by path.
fn fixtures() -> Vec<File> {
    let base = root().join("e2e/fixtures");
    let mut paths = vec![base.join("logits.json"), base.join("reference.json")];
    for model in base.join("models").read_dir_utf8().unwrap() {
        let files = model.unwrap().into_path().read_dir_utf8().unwrap();
        let files = files.map(|file| file.unwrap().into_path());
        paths.extend(files.filter(|path| {
            let name = path.file_name().unwrap();
            name == "config.json" || name.starts_with("model")
        }));
    }
    paths.sort();
    let file = |path: &Utf8PathBuf| File {
        path: path.strip_prefix(&base).unwrap().to_string(),
        contents: std::fs::read(path).unwrap(),
    };
    paths.iter().map(file).collect()
}

/// Rows that the seeds of a model generate, by their first two values.
struct GeneratedRows {
    noise: Vec<([u32; 3], Vec<f64>)>,
    by_width: HashMap<usize, HashMap<[u8; 8], (usize, usize)>>,
}

impl GeneratedRows {
    /// Generates the rows of a model. The seed of a tensor consists of the length and the last
    /// character of the model's name, and of the index of the tensor.
    fn new(model: &str, largest: usize) -> Self {
        let length = u32::try_from(model.len()).unwrap();
        let last = u32::from(*model.as_bytes().last().unwrap());
        let noise = (0..MAX_TENSORS).map(|index| {
            let seed = [length, last, index];
            (seed, Noise::new(&seed).take(largest).collect())
        });
        Self {
            noise: noise.collect(),
            by_width: HashMap::new(),
        }
    }

    /// Finds the row of a matrix.
    fn find(&mut self, row: &[u8]) -> Option<Rows> {
        let width = row.len() / 4;
        let noise = &self.noise;
        let by_start = self.by_width.entry(width).or_insert_with(|| {
            let mut rows = HashMap::new();
            for (at, (_, values)) in noise.iter().enumerate() {
                for (number, row) in values.chunks_exact(width).enumerate() {
                    rows.insert(start(row), (at, number * width));
                }
            }
            rows
        });
        let (at, skip) = *by_start.get(row.get(..8)?)?;
        let rows = Rows {
            seed: noise[at].0,
            skip,
            values: width,
            width,
        };
        let mut generated = Vec::new();
        let values = noise[at].1[skip..skip + width].iter();
        generated.extend(values.flat_map(|value| scaled(*value, width).to_le_bytes()));
        (generated == row).then_some(rows)
    }
}

fn start(row: &[f64]) -> [u8; 8] {
    let [a, b] = [row[0], row[1]].map(|value| scaled(value, row.len()).to_le_bytes());
    [a, b].concat().try_into().unwrap()
}

/// Ranges of bytes of a safetensors file that are generated.
fn generated(file: &File) -> Vec<(Range<usize>, Rows)> {
    let (header, metadata) = SafeTensors::read_metadata(&file.contents).unwrap();
    let path = Utf8Path::new(&file.path);
    let model = path.parent().unwrap().file_name().unwrap();
    let matrices: Vec<_> = metadata
        .tensors()
        .into_values()
        .filter(|tensor| {
            tensor.dtype == Dtype::F32 && tensor.shape.len() > 1 && tensor.shape.last() > Some(&1)
        })
        .collect();
    let largest = matrices.iter().map(|tensor| tensor.shape.iter().product());
    let mut rows = GeneratedRows::new(model, largest.max().unwrap_or(0));
    let mut found: Vec<(Range<usize>, Rows)> = Vec::new();
    let mut places = BTreeSet::new();
    for tensor in matrices {
        let width = *tensor.shape.last().unwrap();
        let (start, end) = tensor.data_offsets;
        let start = 8 + header + start;
        let end = 8 + header + end;
        places.extend((start..end).step_by(4 * width).map(|place| (place, 4 * width)));
    }
    for (place, length) in places {
        let Some(row) = rows.find(&file.contents[place..place + length]) else {
            continue;
        };
        match found.last_mut() {
            Some((range, rows))
                if range.end == place
                    && (rows.seed, rows.width) == (row.seed, row.width)
                    && rows.skip + rows.values == row.skip =>
            {
                range.end = place + length;
                rows.values += row.values;
            }
            Some(_) | None => found.push((place..place + length, row)),
        }
    }
    found
}

fn pack(files: &[File]) -> Vec<u8> {
    let mut literals = Vec::new();
    let mut index = Vec::new();
    for file in files {
        let mut parts = Vec::new();
        let mut packed = 0;
        let mut literal = |range: Range<usize>, parts: &mut Vec<Part>| {
            if !range.is_empty() {
                parts.push(Part::Literal(range.len()));
                literals.extend_from_slice(&file.contents[range]);
            }
        };
        if file.path.ends_with(".safetensors") {
            for (range, rows) in generated(file) {
                literal(packed..range.start, &mut parts);
                parts.push(Part::Noise(rows));
                packed = range.end;
            }
        }
        literal(packed..file.contents.len(), &mut parts);
        index.push(Entry {
            path: file.path.clone(),
            parts,
        });
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut encoder, &index).unwrap();
    encoder.write_all(b"\n").unwrap();
    encoder.write_all(&literals).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn archive_equals_the_fixtures() {
    let fixtures = fixtures();
    if std::env::var_os(WRITE_ARCHIVE).is_some() {
        std::fs::write(root().join(ARCHIVE_PATH), pack(&fixtures)).unwrap();
        return;
    }
    let unpacked = unpack().unwrap();
    let paths = |files: &[File]| files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
    let remedy = "run `cargo xtask generate`";
    assert_eq!(paths(&unpacked), paths(&fixtures), "{remedy}");
    for (unpacked, fixture) in unpacked.iter().zip(&fixtures) {
        assert!(unpacked == fixture, "{} is stale: {remedy}", fixture.path);
    }
    assert!(ARCHIVE.len() < MAX_ARCHIVE_BYTES, "{} bytes", ARCHIVE.len());
}

#[test]
fn damaged_archive_is_detected() {
    let mut damaged = ARCHIVE.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    unpack_archive(&damaged).unwrap_err();
    unpack_archive(&ARCHIVE[..middle]).unwrap_err();
    unpack_archive(&pack(&[])).unwrap();
}
