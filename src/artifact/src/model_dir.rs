//! Inspection of a model directory: `config.json` and the headers of the safetensors files, with
//! limits on everything that is read. Weights are not read, except parts of a redundant head. The
//! result is a [`ModelDir`] with a complete and supported model, or the [`ModelFacts`] of any
//! model, or an error that names the file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use rooflet_base::file::if_there;
use rooflet_model::checkpoint;
use rooflet_model::checkpoint::{
    CheckpointError, HEADER_LENGTH_BYTES, INDEX_FILE, MAX_INDEX_BYTES, MAX_WEIGHT_FILES, ModelShape,
    SINGLE_FILE, StoredTensor, TensorTable,
};
use rooflet_model::config::{ModelConfig, ModelConfigError};
use rooflet_model::facts::{FactsError, ModelFacts, Tensors, WeightIndex, WeightIndexError};
use rooflet_model::fields::{CONFIG_FILE, MAX_CONFIG_BYTES};

/// Maximum number of pieces of two tensors that are compared, and their size in bytes. Smaller
/// tensors are compared completely.
const COMPARED_PIECES: u64 = 256;
const COMPARED_PIECE_BYTES: u64 = 64 << 10;

/// Directory with a complete, supported model.
#[derive(Debug, Clone)]
pub struct ModelDir {
    pub path: Utf8PathBuf,
    pub shape: ModelShape,
    /// Weight files, sorted by name.
    pub weight_files: Vec<Utf8PathBuf>,
}

/// Error of a directory that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum InspectModelError {
    #[error("model directory `{path}` does not exist")]
    NoDirectory { path: Utf8PathBuf },
    #[error("`{path}` is not a model directory: it has no {file}")]
    MissingFile { path: Utf8PathBuf, file: String },
    #[error("`{path}` has no weights: no model*.safetensors file")]
    NoWeights { path: Utf8PathBuf },
    #[error("`{path}` is larger than the limit of {limit} bytes")]
    TooLarge { path: Utf8PathBuf, limit: u64 },
    #[error("`{path}` has more than {MAX_WEIGHT_FILES} weight files")]
    TooManyFiles { path: Utf8PathBuf },
    #[error("`{path}`: {problem}")]
    InvalidIndex {
        path: Utf8PathBuf,
        problem: WeightIndexError,
    },
    #[error("reading `{path}`")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("model directory `{path}`")]
    Config {
        path: Utf8PathBuf,
        #[source]
        err: ModelConfigError,
    },
    #[error("`{path}`")]
    Facts {
        path: Utf8PathBuf,
        #[source]
        err: FactsError,
    },
    #[error("model directory `{path}`")]
    Checkpoint {
        path: Utf8PathBuf,
        #[source]
        err: CheckpointError,
    },
}

impl InspectModelError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoDirectory { .. } => "ModelNotFound",
            Self::MissingFile { .. } | Self::NoWeights { .. } => "IncompleteModel",
            Self::TooLarge { .. } | Self::TooManyFiles { .. } | Self::InvalidIndex { .. } => {
                "InvalidModelFile"
            }
            Self::Read { .. } => "ReadFailed",
            Self::Config { err, .. } => err.reason(),
            Self::Facts { err, .. } => err.reason(),
            Self::Checkpoint { err, .. } => err.reason(),
        }
    }

    /// Returns true if the error may disappear although no file changes, for example with
    /// permissions, too many open files or disk errors.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Read { .. } => true,
            Self::NoDirectory { .. }
            | Self::MissingFile { .. }
            | Self::NoWeights { .. }
            | Self::TooLarge { .. }
            | Self::TooManyFiles { .. }
            | Self::InvalidIndex { .. }
            | Self::Config { .. }
            | Self::Facts { .. }
            | Self::Checkpoint { .. } => false,
        }
    }
}

impl ModelDir {
    /// Reads configuration and headers. This takes milliseconds, regardless of the size of the
    /// weights.
    pub fn inspect(path: &Utf8Path) -> Result<Self, InspectModelError> {
        if !path.is_dir() {
            return Err(InspectModelError::NoDirectory {
                path: path.to_owned(),
            });
        }
        let text = read_bounded(path, CONFIG_FILE, MAX_CONFIG_BYTES)?;
        let config = ModelConfig::parse(&text).map_err(|err| InspectModelError::Config {
            path: path.to_owned(),
            err,
        })?;
        let weight_files = weight_files(path)?;
        let mut tensors = TensorTable::default();
        for file in &weight_files {
            add_headers(path, file, &mut tensors)?;
        }
        let shape_of = |config| {
            ModelShape::new(config, &tensors).map_err(|err| InspectModelError::Checkpoint {
                path: path.to_owned(),
                err,
            })
        };
        let mut shape = shape_of(config)?;
        let copies = shape.head_copies.iter();
        let equal: Result<Vec<bool>, InspectModelError> =
            copies.map(|(head, table)| are_equal(path, head, table)).collect();
        if equal?.contains(&false) {
            shape = shape_of(ModelConfig {
                tie_word_embeddings: Some(false),
                ..shape.config
            })?;
        }
        Ok(Self {
            path: path.to_owned(),
            shape,
            weight_files,
        })
    }
}

/// Returns the facts of the model at `path`, a directory or its `config.json`. The engine need not
/// support the model. The facts derive from the headers if every file is present, else from the
/// index, else only from the configuration.
pub fn facts(path: &Utf8Path) -> Result<ModelFacts, InspectModelError> {
    let dir = if path.is_dir() {
        path
    } else if path.is_file() {
        path.parent().unwrap_or(path)
    } else {
        return Err(InspectModelError::NoDirectory {
            path: path.to_owned(),
        });
    };
    let config = if path.is_dir() {
        CONFIG_FILE
    } else {
        path.file_name().unwrap_or(CONFIG_FILE)
    };
    let text = read_bounded(dir, config, MAX_CONFIG_BYTES)?;
    let of = |tensors: Tensors<'_>| {
        ModelFacts::new(&text, tensors).map_err(|err| InspectModelError::Facts {
            path: path.to_owned(),
            err,
        })
    };
    // A file with another name does not describe the weights in the same directory.
    if config != CONFIG_FILE {
        return of(Tensors::Unknown);
    }
    match weight_files(dir) {
        Ok(files) => {
            let mut tensors = TensorTable::default();
            for file in &files {
                add_headers(dir, file, &mut tensors)?;
            }
            of(Tensors::Headers(&tensors))
        }
        Err(InspectModelError::MissingFile { .. }) => {
            let text = read_bounded(dir, INDEX_FILE, MAX_INDEX_BYTES)?;
            let index = WeightIndex::parse(&text).map_err(|problem| InspectModelError::InvalidIndex {
                path: dir.join(INDEX_FILE),
                problem,
            })?;
            of(Tensors::Index(&index))
        }
        Err(InspectModelError::NoWeights { .. }) => of(Tensors::Unknown),
        Err(err) => Err(err),
    }
}

/// Reads a text file of the directory. Rejects a file that is larger than the limit.
pub fn read_bounded(dir: &Utf8Path, name: &str, limit: u64) -> Result<String, InspectModelError> {
    read_optional(dir, name, limit)?.ok_or_else(|| InspectModelError::MissingFile {
        path: dir.to_owned(),
        file: name.to_owned(),
    })
}

/// Reads a text file like [`read_bounded`], and returns `None` if it does not exist.
pub fn read_optional(dir: &Utf8Path, name: &str, limit: u64) -> Result<Option<String>, InspectModelError> {
    let path = dir.join(name);
    let failed = |err| InspectModelError::Read {
        path: path.clone(),
        err,
    };
    let Some(file) = if_there(File::open(&path)).map_err(failed)? else {
        return Ok(None);
    };
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > limit {
        return Err(InspectModelError::TooLarge { path, limit });
    }
    Ok(Some(text))
}

/// Returns the files named by the index, or every `model*.safetensors` without an index. If files
/// of the index are missing, returns the single weight file.
fn weight_files(dir: &Utf8Path) -> Result<Vec<Utf8PathBuf>, InspectModelError> {
    let mut names: Vec<String> = match read_optional(dir, INDEX_FILE, MAX_INDEX_BYTES)? {
        Some(text) => {
            let path = dir.join(INDEX_FILE);
            let index = WeightIndex::parse(&text)
                .map_err(|problem| InspectModelError::InvalidIndex { path, problem })?;
            index.files.into_iter().collect()
        }
        None => {
            let failed = |err| InspectModelError::Read {
                path: dir.to_owned(),
                err,
            };
            let mut names = Vec::new();
            for entry in dir.read_dir_utf8().map_err(failed)? {
                let name = entry.map_err(failed)?.file_name().to_owned();
                if name.starts_with("model") && name.ends_with(".safetensors") {
                    names.push(name);
                }
            }
            names
        }
    };
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(InspectModelError::NoWeights { path: dir.to_owned() });
    }
    if names.len() > MAX_WEIGHT_FILES {
        return Err(InspectModelError::TooManyFiles { path: dir.to_owned() });
    }
    if let Some(missing) = names.iter().find(|name| !dir.join(name).is_file()) {
        // The index is stale if a single weight file exists.
        let whole = dir.join(SINGLE_FILE);
        if whole.is_file() {
            return Ok(vec![whole]);
        }
        return Err(InspectModelError::MissingFile {
            path: dir.to_owned(),
            file: missing.clone(),
        });
    }
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

fn add_headers(dir: &Utf8Path, path: &Utf8Path, tensors: &mut TensorTable) -> Result<(), InspectModelError> {
    let failed = |err| InspectModelError::Read {
        path: path.to_owned(),
        err,
    };
    let invalid = |err| InspectModelError::Checkpoint {
        path: dir.to_owned(),
        err,
    };
    let name = path.file_name().expect("the path ends with a file name");
    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    if file_bytes < HEADER_LENGTH_BYTES {
        let problem = format!("the file has {file_bytes} bytes");
        return Err(invalid(CheckpointError::CorruptHeader {
            file: name.to_owned(),
            problem,
        }));
    }
    let mut first = [0; HEADER_LENGTH_BYTES as usize];
    file.read_exact(&mut first).map_err(failed)?;
    let length = checkpoint::header_bytes(name, first, file_bytes).map_err(invalid)?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(failed)?;
    tensors
        .add_file(name, &header, file_bytes - HEADER_LENGTH_BYTES - length)
        .map_err(invalid)
}

/// Compares two tensors of the same size. Of large tensors, compares evenly distributed pieces.
fn are_equal(dir: &Utf8Path, one: &StoredTensor, other: &StoredTensor) -> Result<bool, InspectModelError> {
    let open = |tensor: &StoredTensor| {
        let path = dir.join(&tensor.file);
        match File::open(&path) {
            Ok(file) => Ok((file, path)),
            Err(err) => Err(InspectModelError::Read { path, err }),
        }
    };
    let files = [open(one)?, open(other)?];
    let distance = (one.bytes / COMPARED_PIECES).max(COMPARED_PIECE_BYTES);
    let mut at = 0;
    while at < one.bytes {
        let length = COMPARED_PIECE_BYTES.min(one.bytes - at) as usize;
        let piece = |(file, path): &(File, Utf8PathBuf), tensor: &StoredTensor| {
            let mut bytes = vec![0; length];
            let read = file.read_exact_at(&mut bytes, tensor.begin + at);
            read.map(|()| bytes).map_err(|err| InspectModelError::Read {
                path: path.clone(),
                err,
            })
        };
        if piece(&files[0], one)? != piece(&files[1], other)? {
            return Ok(false);
        }
        at += distance;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::error::Chain;
    use rooflet_testing::TempDir;

    const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
        "intermediate_size": 128, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 32,
        "max_position_embeddings": 128}"#;

    fn message(files: &[(&str, &[u8])]) -> String {
        let dir = TempDir::new();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let path = dir.path();
        let err = ModelDir::inspect(path).unwrap_err();
        Chain(&err).to_string().replace(path.as_str(), "DIR")
    }

    /// Writes a model whose configuration ties the head to the embedding table, and whose file has
    /// a head with these values. Returns whether the inspected model is tied.
    fn is_tied(rows: usize, head: impl Fn(usize) -> u8) -> bool {
        let dir = TempDir::new();
        let config = CONFIG.replace(
            "\"vocab_size\": 32",
            &format!("\"vocab_size\": {rows}, \"tie_word_embeddings\": true"),
        );
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        let layer = |part: &str| format!("model.layers.0.{part}.weight");
        for (name, shape) in [
            ("model.embed_tokens.weight".to_owned(), vec![rows, 64]),
            ("lm_head.weight".to_owned(), vec![rows, 64]),
            ("model.norm.weight".to_owned(), vec![64]),
            (layer("input_layernorm"), vec![64]),
            (layer("post_attention_layernorm"), vec![64]),
            (layer("self_attn.q_proj"), vec![64, 64]),
            (layer("self_attn.k_proj"), vec![64, 64]),
            (layer("self_attn.v_proj"), vec![64, 64]),
            (layer("self_attn.o_proj"), vec![64, 64]),
            (layer("mlp.gate_proj"), vec![128, 64]),
            (layer("mlp.up_proj"), vec![128, 64]),
            (layer("mlp.down_proj"), vec![64, 128]),
        ] {
            let begin = data.len();
            let bytes = 2 * shape.iter().product::<usize>();
            data.extend((0..bytes).map(|at| if name == "lm_head.weight" { head(at) } else { 1 }));
            let entry =
                serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
            header.insert(name, entry);
        }
        let header = serde_json::Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        ModelDir::inspect(dir.path()).unwrap().shape.tied
    }

    #[test]
    fn head_that_differs_from_the_embedding_table_is_used() {
        assert!(is_tied(32, |_| 1), "a copy of the table");
        assert!(!is_tied(32, |at| u8::from(at != 4095)), "the last byte differs");
        // Larger than all compared pieces together.
        let rows = 140_000;
        assert!(is_tied(rows, |_| 1));
        assert!(!is_tied(rows, |at| u8::from(at < 10_000_000)));
    }

    #[test]
    fn error_describes_the_invalid_directory() {
        let config = ("config.json", CONFIG.as_bytes());
        assert_eq!(
            message(&[]),
            "`DIR` is not a model directory: it has no config.json"
        );
        assert_eq!(
            message(&[config]),
            "`DIR` has no weights: no model*.safetensors file"
        );
        assert_eq!(
            message(&[("config.json", b"{")]),
            "model directory `DIR`: config.json: not valid JSON: EOF while parsing an object at line 1 column 1"
        );
        assert_eq!(
            message(&[config, ("model.safetensors", b"abc")]),
            "model directory `DIR`: model.safetensors: not a safetensors file, or truncated: the file has 3 bytes"
        );
        assert_eq!(
            message(&[
                config,
                ("model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{}")
            ]),
            "model directory `DIR`: model.safetensors: not a safetensors file, or truncated: header of 18446744073709551615 bytes, the format allows 100000000"
        );
        assert_eq!(
            message(&[
                config,
                (INDEX_FILE, br#"{"weight_map": {"a": "model-2.safetensors"}}"#)
            ]),
            "`DIR` is not a model directory: it has no model-2.safetensors"
        );
        // With a stale index, the single weight file is read.
        assert_eq!(
            message(&[
                config,
                ("model.safetensors", b"abc"),
                (INDEX_FILE, br#"{"weight_map": {"a": "model-2.safetensors"}}"#)
            ]),
            "model directory `DIR`: model.safetensors: not a safetensors file, or truncated: the file has 3 bytes"
        );
        assert_eq!(
            message(&[
                config,
                (INDEX_FILE, br#"{"weight_map": {"a": "../x.safetensors"}}"#)
            ]),
            "`DIR/model.safetensors.index.json`: weight_map.a must be a file in the directory of the index, not `../x.safetensors`"
        );
        assert_eq!(
            ModelDir::inspect(Utf8Path::new("/nowhere/at/all"))
                .unwrap_err()
                .to_string(),
            "model directory `/nowhere/at/all` does not exist"
        );
    }
}
