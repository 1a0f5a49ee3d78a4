//! Repository of a hub at one commit: the files that a node needs, and the configuration and tensor
//! headers, available before the download.

use serde::Deserialize;

use super::remote::{Checkpoint, HubAccess, KnownTensors, ReadRemoteError, Remote, RemoteModel, below};
use rooflet_api::v1alpha1::{ArtifactSpec, HubModel, NodeModel};
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_model::checkpoint::{CheckpointError, INDEX_FILE, ModelShape, TOOL_USE_FILE};
use rooflet_model::config::{ModelConfig, ModelConfigError};
use rooflet_model::facts::ModelFacts;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::ModelCost;

/// Maximum size of a repository's file list. The largest have some thousand files.
const MAX_LISTING_BYTES: u64 = 16 << 20;

/// Extensions of the files that a worker reads besides weights: configuration, tokenizer, chat
/// template.
const TEXT_EXTENSIONS: [&str; 4] = [".json", ".jinja", ".txt", ".model"];

/// Model of a hub before its download.
#[derive(Debug)]
pub struct HubSnapshot {
    /// Model with its commit.
    pub model: HubModel,
    /// Files that a node needs, sorted by name.
    pub files: Vec<HubFile>,
    checkpoint: Checkpoint,
}

/// File of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    pub name: String,
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits. The hub reports it only for large files.
    pub sha256: Option<String>,
}

/// Error: the engine does not support the model.
#[derive(Debug, thiserror::Error)]
pub enum UnservableError {
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("it has no model*.safetensors: use a repository with weights as published for MLX")]
    NoWeights,
}

impl UnservableError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Config(err) => err.reason(),
            Self::Checkpoint(err) => err.reason(),
            Self::NoWeights => "IncompleteModel",
        }
    }
}

/// Response of `GET /api/models/OWNER/NAME/revision/REVISION?blobs=true`.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Resolves the model's revision to a commit and reads configuration and headers, at most some
/// megabytes.
pub async fn fetch_snapshot(model: &HubModel, hub: &HubAccess) -> Result<HubSnapshot, ReadRemoteError> {
    let wanted = RemoteModel::Hub(model.clone());
    let revision = model.revision.as_deref().unwrap_or("main");
    let path = ["api", "models", &model.owner, &model.name, "revision", revision];
    let mut url = below(&hub.endpoint, path);
    url.set_query(Some("blobs=true"));
    let text = Remote::new(&wanted, hub)?.page(&url, MAX_LISTING_BYTES).await?;
    let listing: Listing = serde_json::from_str(&text).map_err(|err| ReadRemoteError::InvalidListing {
        url: url.to_string(),
        problem: err.to_string(),
    })?;
    let is_commit = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    if !is_commit(&listing.sha) {
        return Err(ReadRemoteError::InvalidListing {
            url: url.to_string(),
            problem: format!("`{}` is not a commit", listing.sha),
        });
    }
    let pinned = HubModel {
        revision: Some(listing.sha),
        ..model.clone()
    };
    let remote_model = RemoteModel::Hub(pinned.clone());
    let checkpoint = Remote::new(&remote_model, hub)?.checkpoint().await?;
    let files =
        needed(listing.siblings, &checkpoint.tensors).map_err(|err| ReadRemoteError::InvalidListing {
            url: url.to_string(),
            problem: err.to_string(),
        })?;
    Ok(HubSnapshot {
        model: pinned,
        files,
        checkpoint,
    })
}

/// Error: the hub lists a file without its size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the size of {file} is missing")]
struct UnknownSizeError {
    file: String,
}

/// Returns the files of a repository that a worker reads.
fn needed(siblings: Vec<Sibling>, tensors: &KnownTensors) -> Result<Vec<HubFile>, UnknownSizeError> {
    let is_weights = |name: &str| match tensors {
        KnownTensors::Headers(tensors) => tensors.iter().any(|(_, tensor)| tensor.file == name),
        KnownTensors::Index(index) => index.files.contains(name),
        KnownTensors::Unknown => false,
    };
    let is_text = |name: &str| TEXT_EXTENSIONS.iter().any(|end| name.ends_with(end));
    // Subdirectories contain other formats of the same model, with one exception.
    let is_plain = |name: &str| !name.starts_with('.') && !name.contains(['/', '\\']);
    let wanted = |file: &Sibling| {
        let name = file.rfilename.as_str();
        name == TOOL_USE_FILE || is_plain(name) && (name == INDEX_FILE || is_text(name) || is_weights(name))
    };
    let mut files = Vec::new();
    for file in siblings.into_iter().filter(wanted) {
        let size = file.lfs.as_ref().map(|lfs| lfs.size).or(file.size);
        let Some(bytes) = size else {
            return Err(UnknownSizeError { file: file.rfilename });
        };
        files.push(HubFile {
            name: file.rfilename,
            bytes,
            sha256: file.lfs.map(|lfs| lfs.sha256.to_ascii_lowercase()),
        });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

impl HubSnapshot {
    /// Returns the size of all files.
    pub fn bytes(&self) -> Bytes {
        self.files.iter().map(|file| Bytes(file.bytes)).sum()
    }

    /// Returns the model in the form that the engine runs.
    pub fn shape(&self) -> Result<ModelShape, UnservableError> {
        let config = ModelConfig::parse(&self.checkpoint.config)?;
        match &self.checkpoint.tensors {
            KnownTensors::Headers(tensors) => {
                let shape = ModelShape::new(config, tensors)?;
                if shape.head_copies.is_empty() {
                    return Ok(shape);
                }
                // Only the values show whether a stored head is a copy of the embedding table. Until the download,
                // both count.
                let config = ModelConfig {
                    tie_word_embeddings: Some(false),
                    ..shape.config
                };
                Ok(ModelShape::new(config, tensors)?)
            }
            KnownTensors::Index(_) | KnownTensors::Unknown => Err(UnservableError::NoWeights),
        }
    }

    /// Returns the part that a [`ModelRevision`](rooflet_api::v1alpha1::ModelRevision) stores.
    pub fn artifact(&self) -> ArtifactSpec {
        let model = match self.shape() {
            Ok(shape) => publish(&shape),
            Err(err) => NodeModel {
                problem: Some(Chain(&err).to_string()),
                ..self
                    .checkpoint
                    .facts()
                    .map_or_else(|_| NodeModel::default(), |facts| describe(&facts))
            },
        };
        ArtifactSpec {
            download_bytes: self.bytes().0,
            model: NodeModel {
                name: self.model.to_string(),
                ..model
            },
        }
    }
}

/// Describes a model with computation in the type of its files, as on a Mac.
fn publish(shape: &ModelShape) -> NodeModel {
    let config = &shape.config;
    let served = ServedModel {
        cost: ModelCost::of_checkpoint(shape, shape.element),
        kv_bits: KvBits::new(8 * shape.element.bytes() as u32),
    };
    let longest = u32::try_from(config.max_context_tokens).unwrap_or(u32::MAX);
    served.publish(String::new(), config.architecture.as_str().to_owned(), longest)
}

/// Describes a model that cannot be served here. Another version or another machine may support it.
pub fn describe(facts: &ModelFacts) -> NodeModel {
    let architecture = facts.model_type.clone();
    let max_context_tokens = facts.max_context_tokens.unwrap_or(0);
    match facts.cost() {
        Some(cost) => ServedModel {
            cost,
            kv_bits: KvBits::HALF,
        }
        .publish(String::new(), architecture, max_context_tokens),
        None => NodeModel {
            architecture,
            weights_bytes: facts.weights.resident().0,
            max_context_tokens,
            ..NodeModel::default()
        },
    }
}

#[cfg(test)]
mod tests;
