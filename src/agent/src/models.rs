//! What the agent knows of the models on its disk: sizes for admission and for `FleetNode.status.models`, read from
//! headers and read again only when a file has changed.

pub(crate) mod pulls;
mod servable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use self::pulls::{Looked, Pulls};
pub(crate) use self::servable::{ASKING_HUB, PendingPull, Trouble};
pub use self::servable::{ComputeType, ModelProblem, ServableModel};
use rooflet_api::v1alpha1::{DownloadSpeed, HubModel, ModelSource, NodeModel};
use rooflet_artifact::hub;
use rooflet_artifact::hub::Survey;
use rooflet_artifact::model_dir;
use rooflet_artifact::model_dir::{InspectModelError, ModelDir};
use rooflet_artifact::{Downloads, Located, ModelDirectory, ResolveModelError};
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::dimensions::KvBits;
use rooflet_model::facts::ModelFacts;
use rooflet_model::model::FloatType;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::ModelCost;

/// The models of one node, with what was found out about them.
pub(crate) struct Models {
    directory: ModelDirectory,
    compute: ComputeType,
    known: BTreeMap<ModelSource, Known>,
    /// Models of a hub that are not here.
    offered: BTreeMap<HubModel, Offered>,
    /// `None`: nothing is downloaded.
    pub(super) pulls: Option<Pulls>,
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

/// What a hub told of a model, and what follows for this node.
struct Offered {
    survey: Arc<Survey>,
    outcome: Result<ServableModel, ModelProblem>,
}

impl Models {
    pub(crate) fn new(directory: ModelDirectory, compute: ComputeType) -> Self {
        Self {
            directory,
            compute,
            known: BTreeMap::new(),
            offered: BTreeMap::new(),
            pulls: None,
            simulated: None,
        }
    }

    /// The same, with models of a hub.
    pub(crate) fn with_pulls(self, pulls: Pulls) -> Self {
        Self {
            directory: self.directory.with_downloads(pulls.downloads().clone()),
            pulls: Some(pulls),
            ..self
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
            self.offered.clear();
        }
    }

    /// Finds and inspects a model. Reads headers only, and only if a file has changed.
    pub(crate) fn inspect(&mut self, source: &ModelSource) -> Result<ServableModel, ModelProblem> {
        if let Some(models) = &self.simulated {
            let found = match source {
                ModelSource::Local(name) => models.get(name),
                ModelSource::File(_) | ModelSource::Hub(_) => None,
            };
            return found.cloned().ok_or_else(|| {
                let message = format!("{source} is not among the models of this simulated machine");
                ModelProblem::lasting("ModelNotFound", message)
            });
        }
        let located = match (self.directory.locate(source), source) {
            (Ok(located), _) => located,
            (Err(ResolveModelError::NotDownloaded { .. }), ModelSource::Hub(model)) => {
                return self.look(model);
            }
            (Err(err), _) => {
                self.known.remove(source);
                return Err(ModelProblem::lasting(err.reason(), Chain(&err).to_string()));
            }
        };
        if let (ModelSource::Hub(model), Some(pulls)) = (source, &mut self.pulls) {
            pulls.forget(model);
        }
        if let Some(known) = self.known.get(source).filter(|known| known.located == located) {
            return known.outcome.clone();
        }
        let inspected = ModelDir::inspect(&located.path);
        let is_passing = inspected.as_ref().is_err_and(InspectModelError::may_pass);
        let outcome = servable(inspected, &located, self.compute);
        if is_passing {
            self.known.remove(source);
            return outcome;
        }
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

    /// Where the model is that was downloaded, or is on its way: also while nothing else is known of it.
    pub(crate) fn downloaded_to(&self, source: &ModelSource) -> Option<Utf8PathBuf> {
        match (source, &self.pulls) {
            (ModelSource::Hub(model), Some(pulls)) => {
                let downloads = pulls.downloads();
                Some(downloads.path(&downloads.pinned(model)))
            }
            (ModelSource::Local(_) | ModelSource::File(_), _) | (ModelSource::Hub(_), None) => None,
        }
    }

    /// What was downloaded of models whose directories are none of `used`; nothing while that is not known.
    pub(crate) fn unused(&self, used: Option<&BTreeSet<Utf8PathBuf>>) -> Bytes {
        let downloads = self.pulls.as_ref().map(Pulls::downloads);
        downloads
            .zip(used)
            .map_or(Bytes::ZERO, |(downloads, used)| downloads.unused(used))
    }

    /// Downloads a model; `missing` bytes are made free for it before, of models that are none of `used`.
    pub(crate) fn pull(&mut self, source: &ModelSource, used: &BTreeSet<Utf8PathBuf>, missing: Bytes) {
        if let (ModelSource::Hub(model), Some(pulls)) = (source, &mut self.pulls) {
            pulls.start(model, used, missing);
        }
    }

    /// Stops downloads that none of these replicas needs.
    pub(crate) fn retain_pulls(&mut self, wanted: &BTreeSet<HubModel>) {
        self.offered.retain(|model, _| wanted.contains(model));
        if let Some(pulls) = &mut self.pulls {
            pulls.retain(wanted);
        }
    }

    /// A worker is started with the model in this directory.
    pub(crate) fn touch(&self, path: &Utf8Path) {
        if let Some(pulls) = &self.pulls {
            pulls.downloads().touch(path);
        }
    }

    pub(crate) fn download_speed(&self) -> Option<DownloadSpeed> {
        self.pulls.as_ref()?.speed()
    }

    /// When downloads are to be looked at although nothing has changed.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        self.pulls.as_ref()?.look_again()
    }

    /// What is known of a model that would have to be downloaded.
    fn look(&mut self, model: &HubModel) -> Result<ServableModel, ModelProblem> {
        let Some(pulls) = &mut self.pulls else {
            let message = format!("{model} would have to be downloaded, and this node downloads nothing");
            return Err(ModelProblem::lasting("ModelNotFound", message));
        };
        match pulls.look(model) {
            Looked::Asked => Err(ModelProblem {
                reason: ASKING_HUB,
                message: format!("the hub is asked what {model} is"),
                is_passing: true,
            }),
            Looked::Unknown(Trouble {
                reason,
                message,
                is_passing,
            }) => Err(ModelProblem {
                reason,
                message,
                is_passing,
            }),
            Looked::Known {
                survey,
                done,
                trouble,
            } => {
                let known = self.offered.get(model);
                let known = known.filter(|known| Arc::ptr_eq(&known.survey, &survey));
                let outcome = match known {
                    Some(known) => known.outcome.clone(),
                    None => {
                        let outcome = offered(&survey, pulls.downloads(), self.compute);
                        let survey = survey.clone();
                        let known = Offered {
                            survey,
                            outcome: outcome.clone(),
                        };
                        self.offered.insert(model.clone(), known);
                        outcome
                    }
                };
                let pull = PendingPull {
                    model: survey.model.clone(),
                    bytes: survey.bytes(),
                    done,
                    trouble,
                };
                outcome.map(|found| ServableModel {
                    pull: Some(pull),
                    ..found
                })
            }
        }
    }

    /// Everything in the model directory and what was downloaded, servable or not.
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
        let names = self
            .directory
            .names()
            .map_err(|err| ModelProblem::lasting(err.reason(), Chain(&err).to_string()))?;
        let local = names.into_iter().map(|name| {
            let source = format!("local://{name}").parse();
            (name, source.ok())
        });
        let downloaded = self.directory.downloaded().into_iter();
        let downloaded = downloaded.map(|model| (model.to_string(), Some(ModelSource::Hub(model))));
        let all: Vec<_> = local.chain(downloaded).collect();
        let described = all.into_iter().map(|(name, source)| self.describe(name, source));
        Ok(described.collect())
    }

    /// `source`: by which it is found; `None`: none can name it.
    fn describe(&mut self, name: String, source: Option<ModelSource>) -> NodeModel {
        let outcome = match &source {
            Some(source) => self.inspect(source),
            None => Err(ModelProblem::lasting(
                "InvalidName",
                format!(
                    "`{name}` cannot be named by a source: use letters, digits, `.`, `_` and `-`, first a letter or digit"
                ),
            )),
        };
        match outcome {
            Ok(facts) => facts
                .served
                .publish(name, facts.architecture.to_owned(), facts.max_context_tokens),
            Err(problem) => {
                let known = source.and_then(|source| self.known.get(&source));
                let facts = known.and_then(|known| known.facts.as_deref());
                let known = facts.map_or_else(NodeModel::default, hub::describe);
                NodeModel {
                    name,
                    problem: Some(problem.message),
                    ..known
                }
            }
        }
    }
}

fn servable(
    inspected: Result<ModelDir, InspectModelError>,
    located: &Located,
    compute: ComputeType,
) -> Result<ServableModel, ModelProblem> {
    let model = inspected.map_err(|err| ModelProblem::lasting(err.reason(), Chain(&err).to_string()))?;
    Ok(of_shape(
        &model.shape,
        compute,
        located.path.clone(),
        located.fingerprint,
    ))
}

/// What a model will be once its files are here.
fn offered(
    survey: &Survey,
    downloads: &Downloads,
    compute: ComputeType,
) -> Result<ServableModel, ModelProblem> {
    let shape = survey.shape().map_err(|err| {
        let message = format!("{}: {}", survey.model, Chain(&err));
        ModelProblem::lasting(err.reason(), message)
    })?;
    Ok(of_shape(&shape, compute, downloads.path(&survey.model), 0))
}

fn of_shape(shape: &ModelShape, compute: ComputeType, path: Utf8PathBuf, fingerprint: u64) -> ServableModel {
    let element = match compute {
        ComputeType::Stored => shape.element,
        ComputeType::Float32 => FloatType::F32,
    };
    let config = &shape.config;
    ServableModel {
        path,
        fingerprint,
        architecture: config.architecture.as_str(),
        served: Arc::new(ServedModel {
            cost: ModelCost::of_checkpoint(shape, element),
            kv_bits: KvBits::new(8 * element.bytes() as u32),
        }),
        max_context_tokens: u32::try_from(config.max_context_tokens).unwrap_or(u32::MAX),
        unquantisable: KvQuantisation::new(8, config).err(),
        pull: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    const CONFIG: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "max_position_embeddings": 512, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "tie_word_embeddings": true}"#;

    fn listed(config: &str) -> NodeModel {
        let directory = TempDir::new();
        let header = r#"{"model.embed_tokens.weight": {"dtype": "BF16", "shape": [100, 64], "data_offsets": [0, 12800]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + 12_800, 0);
        let model = directory.path().join("tiny");
        std::fs::create_dir(&model).unwrap();
        std::fs::write(model.join("config.json"), config).unwrap();
        std::fs::write(model.join("model.safetensors"), file).unwrap();
        let root = directory.path().to_owned();
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

    /// Permissions and a limit of open files change no file.
    #[test]
    fn what_could_not_be_read_is_looked_at_again() {
        let directory = TempDir::new();
        let root = directory.path().to_owned();
        for name in ["no-json", "unreadable/config.json"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("no-json/config.json"), "{").unwrap();
        let mut models = Models::new(ModelDirectory::new(Some(root)), ComputeType::Stored);
        let listed = models.list().unwrap();
        assert!(listed.iter().all(|model| model.problem.is_some()));
        let kept: Vec<_> = models.known.keys().map(ToString::to_string).collect();
        assert_eq!(kept, ["local://no-json"]);
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
