//! Models on the node's disk: sizes for admission and for `FleetNode.status.models`. Sizes come
//! from file headers, which are read again only when a file has changed.

pub(crate) mod pulls;
mod servable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use self::pulls::{HubLookup, Pulls};
pub(crate) use self::servable::{ASKING_HUB, DownloadProblem, PendingPull};
pub use self::servable::{ComputeType, ModelProblem, ServableModel};
use rooflet_api::v1alpha1::{DownloadSpeed, HubModel, ModelSource, NodeModel};
use rooflet_artifact::hub;
use rooflet_artifact::hub::HubSnapshot;
use rooflet_artifact::model_dir;
use rooflet_artifact::model_dir::{InspectModelError, ModelDir};
use rooflet_artifact::{Downloads, Located, ModelDirectory, ResolveModelError};
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::FloatType;
use rooflet_model::facts::ModelFacts;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::ModelCost;

/// Models of one node and the results of their inspection.
pub(crate) struct Models {
    directory: ModelDirectory,
    compute: ComputeType,
    inspections: BTreeMap<ModelSource, Inspection>,
    /// Models on the hub that are not downloaded.
    snapshots: BTreeMap<HubModel, InspectedModel>,
    /// `None` if downloads are disabled.
    pub(super) pulls: Option<Pulls>,
    /// Models of a simulated machine by name. They replace the directory.
    simulated: Option<BTreeMap<String, ServableModel>>,
}

#[derive(Debug)]
struct Inspection {
    located: Located,
    outcome: Result<ServableModel, ModelProblem>,
    /// Facts read from the files of a model that cannot be served.
    facts: Option<Box<ModelFacts>>,
}

/// Hub model that is not downloaded, and whether this node can serve it.
struct InspectedModel {
    snapshot: Arc<HubSnapshot>,
    outcome: Result<ServableModel, ModelProblem>,
}

impl Models {
    pub(crate) fn new(directory: ModelDirectory, compute: ComputeType) -> Self {
        Self {
            directory,
            compute,
            inspections: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            pulls: None,
            simulated: None,
        }
    }

    /// Adds downloads from a hub.
    pub(crate) fn with_pulls(self, pulls: Pulls) -> Self {
        Self {
            directory: self.directory.with_downloads(pulls.downloads().clone()),
            pulls: Some(pulls),
            ..self
        }
    }

    /// Creates the models of a simulated machine, which has no disk.
    pub(crate) fn simulated(models: BTreeMap<String, ServableModel>) -> Self {
        Self {
            simulated: Some(models),
            ..Self::new(ModelDirectory::new(None), ComputeType::Stored)
        }
    }

    /// Sets the element type. A change discards all results that depend on it.
    pub(crate) fn set_compute(&mut self, compute: ComputeType) {
        if self.compute != compute {
            self.compute = compute;
            self.inspections.clear();
            self.snapshots.clear();
        }
    }

    /// Finds and inspects a model. Reads file headers, and only if a file has changed.
    pub(crate) fn inspect(&mut self, source: &ModelSource) -> Result<ServableModel, ModelProblem> {
        if let Some(models) = &self.simulated {
            let found = match source {
                ModelSource::Local(name) => models.get(name),
                ModelSource::File(_) | ModelSource::Hub(_) => None,
            };
            return found.cloned().ok_or_else(|| {
                let message = format!("{source} is not among the models of this simulated machine");
                ModelProblem::permanent("ModelNotFound", message)
            });
        }
        let located = match (self.directory.locate(source), source) {
            (Ok(located), _) => located,
            (Err(ResolveModelError::NotDownloaded { .. }), ModelSource::Hub(model)) => {
                return self.look_up_hub(model);
            }
            (Err(err), _) => {
                self.inspections.remove(source);
                return Err(ModelProblem::permanent(err.reason(), Chain(&err).to_string()));
            }
        };
        if let (ModelSource::Hub(model), Some(pulls)) = (source, &mut self.pulls) {
            pulls.forget(model);
        }
        if let Some(inspection) = self
            .inspections
            .get(source)
            .filter(|inspection| inspection.located == located)
        {
            return inspection.outcome.clone();
        }
        let inspected = ModelDir::inspect(&located.path);
        let is_transient = inspected.as_ref().is_err_and(InspectModelError::is_transient);
        let outcome = servable(inspected, &located, self.compute);
        if is_transient {
            self.inspections.remove(source);
            return outcome;
        }
        let facts = match &outcome {
            Ok(_) => None,
            // The problem of `outcome` is the reason; an error here adds nothing.
            Err(_) => model_dir::facts(&located.path).ok().map(Box::new),
        };
        self.inspections.insert(
            source.clone(),
            Inspection {
                located,
                outcome: outcome.clone(),
                facts,
            },
        );
        outcome
    }

    /// Returns the directory of a model that is downloaded, or that a download will create.
    pub(crate) fn downloaded_to(&self, source: &ModelSource) -> Option<Utf8PathBuf> {
        match (source, &self.pulls) {
            (ModelSource::Hub(model), Some(pulls)) => {
                let downloads = pulls.downloads();
                Some(downloads.path(&downloads.pinned(model)))
            }
            (ModelSource::Local(_) | ModelSource::File(_), _) | (ModelSource::Hub(_), None) => None,
        }
    }

    /// Returns the size of the downloaded models whose directories are not in `used`. Zero if
    /// `used` is not known yet.
    pub(crate) fn unused(&self, used: Option<&BTreeSet<Utf8PathBuf>>) -> Bytes {
        let downloads = self.pulls.as_ref().map(Pulls::downloads);
        downloads
            .zip(used)
            .map_or(Bytes::ZERO, |(downloads, used)| downloads.unused(used))
    }

    /// Downloads a model, unless its download has started.
    pub(crate) fn pull(&mut self, model: &HubModel) {
        if let Some(pulls) = &mut self.pulls {
            pulls.start(model);
        }
    }

    /// Frees `missing` bytes by deleting downloaded models whose directories are not in `used`.
    pub(crate) fn remove_unused(&self, used: &BTreeSet<Utf8PathBuf>, missing: Bytes) {
        if let Some(pulls) = &self.pulls {
            pulls.downloads().remove_unused(used, missing);
        }
    }

    /// Stops downloads of models that are not in `wanted`.
    pub(crate) fn retain_pulls(&mut self, wanted: &BTreeSet<HubModel>) {
        self.snapshots.retain(|model, _| wanted.contains(model));
        if let Some(pulls) = &mut self.pulls {
            pulls.retain(wanted);
        }
    }

    /// Records that a worker is started with the model in this directory.
    pub(crate) fn touch(&self, path: &Utf8Path) {
        if let Some(pulls) = &self.pulls {
            pulls.downloads().touch(path);
        }
    }

    /// Returns the last start of a worker with a downloaded model, in whole seconds.
    fn last_use(&self, source: &ModelSource) -> Option<Time> {
        let (ModelSource::Hub(model), Some(pulls)) = (source, &self.pulls) else {
            return None;
        };
        let used = Timestamp::try_from(pulls.downloads().last_use(model)?).ok()?;
        Timestamp::from_second(used.as_second()).ok().map(Time)
    }

    /// Returns the end of a model's download, rounded up to whole seconds.
    fn downloaded_time(&self, model: &HubModel) -> Option<Time> {
        let ended = self.pulls.as_ref()?.downloads().downloaded_at(model)?;
        Some(Time(whole_seconds_up(Timestamp::try_from(ended).ok()?)))
    }

    /// Deletes a downloaded model on request, unless its directory is in `used` or the request is for an
    /// earlier download.
    pub(crate) fn delete(&self, model: &HubModel, requested: Timestamp, used: &BTreeSet<Utf8PathBuf>) {
        let Some(downloads) = self.pulls.as_ref().map(Pulls::downloads) else {
            return;
        };
        if downloads.find(model).is_none_or(|path| used.contains(&path)) {
            return;
        }
        let is_requested = |Time(downloaded)| downloaded <= requested;
        if !self.downloaded_time(model).is_some_and(is_requested) {
            return;
        }
        match downloads.delete(model) {
            Ok(Some(bytes)) => info!(%model, %bytes, "deleted model on request"),
            Ok(None) => {}
            Err(err) => warn!(%model, error = %err, "failed to delete a model on request"),
        }
    }

    pub(crate) fn download_speed(&self) -> Option<DownloadSpeed> {
        self.pulls.as_ref()?.speed()
    }

    /// Returns the interval after which the progress of downloads is read again although nothing
    /// has changed.
    pub(crate) fn requeue_after(&self) -> Option<Duration> {
        self.pulls.as_ref()?.requeue_after()
    }

    /// Inspects a hub model that is not downloaded.
    fn look_up_hub(&mut self, model: &HubModel) -> Result<ServableModel, ModelProblem> {
        let Some(pulls) = &mut self.pulls else {
            let message = format!("{model} is not on this node, and downloads are disabled");
            return Err(ModelProblem::permanent("ModelNotFound", message));
        };
        match pulls.look_up(model) {
            HubLookup::Pending => Err(ModelProblem {
                reason: ASKING_HUB,
                message: format!("requesting the metadata of {model} from the hub"),
                is_transient: true,
            }),
            HubLookup::Failed(DownloadProblem {
                reason,
                message,
                is_transient,
            }) => Err(ModelProblem {
                reason,
                message,
                is_transient,
            }),
            HubLookup::Found {
                snapshot,
                done,
                is_under_way,
                problem,
            } => {
                let known = self.snapshots.get(model);
                let known = known.filter(|known| Arc::ptr_eq(&known.snapshot, &snapshot));
                let outcome = match known {
                    Some(known) => known.outcome.clone(),
                    None => {
                        let outcome = inspect_snapshot(&snapshot, pulls.downloads(), self.compute);
                        let snapshot = snapshot.clone();
                        let known = InspectedModel {
                            snapshot,
                            outcome: outcome.clone(),
                        };
                        self.snapshots.insert(model.clone(), known);
                        outcome
                    }
                };
                let pull = PendingPull {
                    model: snapshot.model.clone(),
                    bytes: snapshot.bytes(),
                    done,
                    is_under_way,
                    problem,
                };
                // The target of a symbolic link in the path may have been mounted since the inspection.
                let path = pulls.downloads().path(&snapshot.model);
                outcome.map(|found| ServableModel {
                    path,
                    pull: Some(pull),
                    ..found
                })
            }
        }
    }

    /// Returns all models of the model directory and all downloaded models, including those that
    /// cannot be served.
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
            .map_err(|err| ModelProblem::permanent(err.reason(), Chain(&err).to_string()))?;
        let local = names.into_iter().map(|name| {
            let source = format!("local://{name}").parse();
            (name, source.ok())
        });
        let downloaded = self.directory.downloaded().into_iter();
        let downloaded = downloaded.map(|model| (model.to_string(), Some(ModelSource::Hub(model))));
        let all: Vec<_> = local.chain(downloaded).collect();
        let described = all.into_iter().map(|(name, source)| {
            let last_used_time = source.as_ref().and_then(|source| self.last_use(source));
            let downloaded_time = match &source {
                Some(ModelSource::Hub(model)) => self.downloaded_time(model),
                Some(ModelSource::Local(_) | ModelSource::File(_)) | None => None,
            };
            NodeModel {
                last_used_time,
                downloaded_time,
                ..self.describe(name, source)
            }
        });
        Ok(described.collect())
    }

    /// Describes one model. `source` is `None` if the directory's name is not a valid model name.
    fn describe(&mut self, name: String, source: Option<ModelSource>) -> NodeModel {
        let outcome = match &source {
            Some(source) => self.inspect(source),
            None => Err(ModelProblem::permanent(
                "InvalidName",
                format!(
                    "`{name}` is not a valid model name: use letters, digits, `.`, `_` and `-`, and start with a letter or digit"
                ),
            )),
        };
        match outcome {
            Ok(facts) => facts
                .served
                .publish(name, facts.architecture.to_owned(), facts.max_context_tokens),
            Err(problem) => {
                let inspection = source.and_then(|source| self.inspections.get(&source));
                let facts = inspection.and_then(|inspection| inspection.facts.as_deref());
                let described = facts.map_or_else(NodeModel::default, hub::describe);
                NodeModel {
                    name,
                    problem: Some(problem.message),
                    ..described
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
    let model = inspected.map_err(|err| ModelProblem::permanent(err.reason(), Chain(&err).to_string()))?;
    Ok(servable_from_shape(
        &model.shape,
        compute,
        located.path.clone(),
        located.fingerprint,
    ))
}

/// Returns the model that a download will create.
fn inspect_snapshot(
    snapshot: &HubSnapshot,
    downloads: &Downloads,
    compute: ComputeType,
) -> Result<ServableModel, ModelProblem> {
    let shape = snapshot.shape().map_err(|err| {
        let message = format!("{}: {}", snapshot.model, Chain(&err));
        ModelProblem::permanent(err.reason(), message)
    })?;
    Ok(servable_from_shape(
        &shape,
        compute,
        downloads.path(&snapshot.model),
        0,
    ))
}

fn servable_from_shape(
    shape: &ModelShape,
    compute: ComputeType,
    path: Utf8PathBuf,
    fingerprint: u64,
) -> ServableModel {
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

fn whole_seconds_up(time: Timestamp) -> Timestamp {
    let seconds = time.as_second() + i64::from(time.subsec_nanosecond() > 0);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
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
    fn describes_models_that_cannot_be_served() {
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
    fn end_of_a_download_is_rounded_up() {
        let up = |time: &str| whole_seconds_up(time.parse().unwrap()).to_string();
        assert_eq!(up("2026-11-27T08:00:00.000000001Z"), "2026-11-27T08:00:01Z");
        assert_eq!(up("2026-11-27T08:00:00Z"), "2026-11-27T08:00:00Z");
    }

    /// Missing permissions and the limit of open files change no file, so the result must not be
    /// cached.
    #[test]
    fn unreadable_model_is_inspected_again() {
        let directory = TempDir::new();
        let root = directory.path().to_owned();
        for name in ["no-json", "unreadable/config.json"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("no-json/config.json"), "{").unwrap();
        let mut models = Models::new(ModelDirectory::new(Some(root)), ComputeType::Stored);
        let listed = models.list().unwrap();
        assert!(listed.iter().all(|model| model.problem.is_some()));
        let kept: Vec<_> = models.inspections.keys().map(ToString::to_string).collect();
        assert_eq!(kept, ["local://no-json"]);
    }

    #[test]
    fn reports_weights_of_unknown_model_family() {
        let model = listed(r#"{"model_type": "mamba9", "max_position_embeddings": 512}"#);
        assert!(model.problem.is_some() && model.cost.is_none());
        assert_eq!(
            (model.architecture.as_str(), model.weights_bytes),
            ("mamba9", 12_800)
        );
    }
}
