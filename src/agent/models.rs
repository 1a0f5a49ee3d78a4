//! What the agent knows of the models on its disk: sizes for admission and for `FleetNode.status.models`, read from
//! headers and read again only when a file has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8PathBuf;

use crate::api::v1alpha1::{DEFAULT_CONTEXT_TOKENS, ModelSource, NodeModel};
use crate::artifact::{Located, ModelDirectory};
use crate::error::Chain;
use crate::model_dir::{self, ModelDir};
use crate::roofline::dimensions::KvBits;
use crate::roofline::facts::ModelFacts;
use crate::roofline::kv_quantisation::{KvQuantisation, KvQuantisationError};
use crate::roofline::memory::ServedModel;
use crate::roofline::model::FloatType;
use crate::roofline::predict::ModelCost;

/// A model that can be served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServableModel {
    pub(crate) path: Utf8PathBuf,
    pub(crate) fingerprint: u64,
    pub(crate) architecture: &'static str,
    pub(crate) served: Arc<ServedModel>,
    pub(crate) max_context_tokens: u32,
    /// Why its KV cache cannot be kept in few bits.
    pub(crate) unquantisable: Option<KvQuantisationError>,
}

impl ServableModel {
    /// The same with a KV cache of so many bits, where it can be had; where not, admission refuses it.
    pub(crate) fn with_kv_bits(self, bits: Option<u32>) -> Self {
        let served = ServedModel::clone(&self.served).with_kv_bits(bits);
        match (served, &self.unquantisable) {
            (Ok(served), None) => Self {
                served: Arc::new(served),
                ..self
            },
            (Ok(_), Some(_)) | (Err(_), _) => self,
        }
    }

    /// The context that is reserved: what is asked for, else the model's own maximum within the default's bound.
    pub(crate) fn context_tokens(&self, asked: Option<u32>) -> u32 {
        asked.unwrap_or_else(|| self.max_context_tokens.min(DEFAULT_CONTEXT_TOKENS))
    }
}

/// Why a model cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelProblem {
    pub(crate) reason: &'static str,
    /// Names the file and the fix.
    pub(crate) message: String,
}

/// The element type that the engine computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComputeType {
    /// As the files hold it.
    Stored,
    /// MLX's CPU back end computes in 32 bits, whatever the files hold.
    Float32,
}

impl ComputeType {
    /// By the engine's device (`cpu`, `metal`, `cuda`); the larger one while the device is not known.
    pub(crate) fn of_device(device: Option<&str>) -> Self {
        match device {
            Some("metal" | "cuda") => Self::Stored,
            None if cfg!(target_os = "macos") => Self::Stored,
            Some(_) | None => Self::Float32,
        }
    }
}

/// The models of one node, with what was found out about them.
#[derive(Debug)]
pub(crate) struct Models {
    directory: ModelDirectory,
    compute: ComputeType,
    known: BTreeMap<ModelSource, Known>,
    /// Instead of a directory: models that a simulated machine has, by name.
    simulated: Option<BTreeMap<String, ServableModel>>,
}

#[derive(Debug)]
struct Known {
    located: Located,
    outcome: Result<ServableModel, ModelProblem>,
    /// Of a model that cannot be served, as far as its files tell.
    facts: Option<Box<ModelFacts>>,
}

impl Models {
    pub(crate) fn new(directory: ModelDirectory, compute: ComputeType) -> Self {
        Self {
            directory,
            compute,
            known: BTreeMap::new(),
            simulated: None,
        }
    }

    /// The models of a machine that has no disk.
    pub(crate) fn simulated(models: BTreeMap<String, ServableModel>) -> Self {
        Self {
            simulated: Some(models),
            ..Self::new(ModelDirectory::new(None), ComputeType::Stored)
        }
    }

    /// Forgets what depends on the element type, if that turns out to be another one.
    pub(crate) fn set_compute(&mut self, compute: ComputeType) {
        if self.compute != compute {
            self.compute = compute;
            self.known.clear();
        }
    }

    /// Finds and inspects a model. Reads headers only, and only if a file has changed.
    pub(crate) fn inspect(&mut self, source: &ModelSource) -> Result<ServableModel, ModelProblem> {
        if let Some(models) = &self.simulated {
            let found = match source {
                ModelSource::Local(name) => models.get(name),
                ModelSource::File(_) => None,
            };
            return found.cloned().ok_or_else(|| ModelProblem {
                reason: "ModelNotFound",
                message: format!("{source} is not among the models of this simulated machine"),
            });
        }
        let located = match self.directory.locate(source) {
            Ok(located) => located,
            Err(err) => {
                self.known.remove(source);
                return Err(ModelProblem {
                    reason: err.reason(),
                    message: Chain(&err).to_string(),
                });
            }
        };
        if let Some(known) = self.known.get(source).filter(|known| known.located == located) {
            return known.outcome.clone();
        }
        let outcome = servable(&located, self.compute);
        let facts = match &outcome {
            Ok(_) => None,
            // Why it cannot be served is said already.
            Err(_) => model_dir::facts(&located.path).ok().map(Box::new),
        };
        self.known.insert(
            source.clone(),
            Known {
                located,
                outcome: outcome.clone(),
                facts,
            },
        );
        outcome
    }

    /// Everything in the model directory, servable or not.
    pub(crate) fn list(&mut self) -> Result<Vec<NodeModel>, ModelProblem> {
        if let Some(models) = &self.simulated {
            let publish = |(name, model): (&String, &ServableModel)| {
                let architecture = model.architecture.to_owned();
                model
                    .served
                    .publish(name.clone(), architecture, model.max_context_tokens)
            };
            return Ok(models.iter().map(publish).collect());
        }
        let names = self.directory.names().map_err(|err| ModelProblem {
            reason: err.reason(),
            message: Chain(&err).to_string(),
        })?;
        Ok(names.into_iter().map(|name| self.describe(name)).collect())
    }

    fn describe(&mut self, name: String) -> NodeModel {
        let source = format!("local://{name}").parse::<ModelSource>();
        let outcome = match &source {
            Ok(source) => self.inspect(source),
            Err(_) => Err(ModelProblem {
                reason: "InvalidName",
                message: format!(
                    "`{name}` cannot be named by a source: use letters, digits, `.`, `_` and `-`, first a letter or digit"
                ),
            }),
        };
        match outcome {
            Ok(facts) => facts
                .served
                .publish(name, facts.architecture.to_owned(), facts.max_context_tokens),
            Err(problem) => {
                let known = source.ok().and_then(|source| self.known.get(&source));
                let facts = known.and_then(|known| known.facts.as_deref());
                let known = facts.map_or_else(NodeModel::default, unservable);
                NodeModel {
                    name,
                    problem: Some(problem.message),
                    ..known
                }
            }
        }
    }
}

/// What is published of a model that cannot be served: what another version, or another machine, would need to know.
fn unservable(facts: &ModelFacts) -> NodeModel {
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

fn servable(located: &Located, compute: ComputeType) -> Result<ServableModel, ModelProblem> {
    let model = ModelDir::inspect(&located.path).map_err(|err| ModelProblem {
        reason: err.reason(),
        message: Chain(&err).to_string(),
    })?;
    let element = match compute {
        ComputeType::Stored => model.shape.element,
        ComputeType::Float32 => FloatType::F32,
    };
    let config = &model.shape.config;
    Ok(ServableModel {
        path: located.path.clone(),
        fingerprint: located.fingerprint,
        architecture: config.architecture.as_str(),
        served: Arc::new(ServedModel {
            cost: ModelCost::of_checkpoint(&model.shape, element),
            kv_bits: KvBits::new(8 * element.bytes() as u32),
        }),
        max_context_tokens: u32::try_from(config.max_context_tokens).unwrap_or(u32::MAX),
        unquantisable: KvQuantisation::new(8, config).err(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "max_position_embeddings": 512, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "tie_word_embeddings": true}"#;

    fn listed(config: &str) -> NodeModel {
        let directory = tempfile::tempdir().unwrap();
        let header = r#"{"model.embed_tokens.weight": {"dtype": "BF16", "shape": [100, 64], "data_offsets": [0, 12800]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + 12_800, 0);
        let model = directory.path().join("tiny");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("config.json"), config).unwrap();
        std::fs::write(model.join("model.safetensors"), file).unwrap();
        let root = Utf8PathBuf::from_path_buf(directory.path().to_owned()).unwrap();
        let mut models = Models::new(ModelDirectory::new(Some(root)), ComputeType::Stored);
        models.list().unwrap().remove(0)
    }

    #[test]
    fn a_model_that_cannot_be_served_is_described_all_the_same() {
        let model = listed(CONFIG);
        assert!(
            model
                .problem
                .as_deref()
                .unwrap()
                .contains("`mixtral` is not supported")
        );
        assert_eq!(
            (model.name.as_str(), model.architecture.as_str()),
            ("tiny", "mixtral")
        );
        assert_eq!((model.weights_bytes, model.max_context_tokens), (12_800, 512));
        assert_eq!(model.kv_bytes_per_token, 2 * 2 * 2 * 16 * 2);
        assert_eq!(model.cost.unwrap().layers[0].feed_forward.experts, 8);
    }

    #[test]
    fn of_an_unknown_family_the_weights_are_known() {
        let model = listed(r#"{"model_type": "mamba9", "max_position_embeddings": 512}"#);
        assert!(model.problem.is_some() && model.cost.is_none());
        assert_eq!(
            (model.architecture.as_str(), model.weights_bytes),
            ("mamba9", 12_800)
        );
    }
}
