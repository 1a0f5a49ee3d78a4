//! Groups nodes on which a model runs equally fast into machines, and computes the requirements of
//! a request once per machine.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Index;
use std::sync::Arc;

use crate::placement::rejection::Rejection;
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::{ArtifactSpec, ModelSource, NodeModel};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::Requirements;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, ServedModel};
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::predict::{Hardware, Parameters};

/// Maximum number of cached kinds of requests. A fleet serves fewer models; at the limit, the cache
/// is cleared.
const MAX_KINDS: usize = 4096;

/// Properties of a node that determine the speed of a model without other replicas.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Machine {
    /// Basis of speed predictions, if known.
    pub(crate) hardware: Option<Hardware>,
    /// Calibrations from real requests.
    pub(crate) calibrations: Vec<Calibration>,
    pub(crate) models: Vec<NodeModel>,
}

impl Machine {
    pub(crate) fn model(&self, name: &str) -> Option<&NodeModel> {
        self.models.iter().find(|model| model.name == name)
    }

    /// Returns the node's copy of the model, or its properties after the download.
    pub(crate) fn model_of<'a>(&'a self, request: &'a ReplicaRequest) -> Option<&'a NodeModel> {
        let here = self.model(&request.source.as_ref()?.listed_as()?);
        here.or(request.artifact.as_deref().map(|artifact| &artifact.model))
    }

    /// Returns a hash of the machine.
    fn hash_value(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self.hardware {
            Some(Hardware::Chip(chip)) => std::ptr::from_ref(chip).hash(&mut hasher),
            Some(Hardware::Measured(machine)) => machine.read.to_bits().hash(&mut hasher),
            None => {}
        }
        self.calibrations.len().hash(&mut hasher);
        for model in &self.models {
            (&model.name, model.weights_bytes).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn fit(&self, request: &ReplicaRequest) -> Fit {
        let never = |rejection| Fit {
            obstacle: Some(rejection),
            ..Fit::default()
        };
        let Some(source) = &request.source else {
            return never(Rejection::ModelNotServable {
                problem: "the model source is unsupported in this version".to_owned(),
            });
        };
        // Only the agent can read the files at a path.
        let Some(name) = source.listed_as() else {
            return Fit::default();
        };
        let (model, download) = match (self.model(&name), &request.artifact) {
            (Some(model), _) => (model, Bytes::ZERO),
            (None, Some(artifact)) => (&artifact.model, Bytes(artifact.download_bytes)),
            (None, None) => {
                return never(Rejection::ModelMissing {
                    model: name.into_owned(),
                });
            }
        };
        if let Some(problem) = &model.problem {
            return never(Rejection::ModelNotServable {
                problem: problem.clone(),
            });
        }
        let served = match ServedModel::published(model) {
            Ok(served) => served,
            Err(err) => {
                return never(Rejection::ModelNotServable {
                    problem: err.to_string(),
                });
            }
        };
        let served = match served.with_kv_bits(request.kv_bits) {
            Ok(served) => served,
            Err(err) => {
                return never(Rejection::ModelNotServable {
                    problem: err.to_string(),
                });
            }
        };
        let ask = request.ask(model, &served, download);
        let model_max_tokens = model.max_context_tokens;
        let too_long = model_max_tokens > 0
            && request
                .context_tokens
                .is_some_and(|tokens| tokens > model_max_tokens);
        Fit {
            requirements: Some(Requirements::new(
                &ask,
                self.hardware,
                &self.calibrations,
                Parameters::built_in(),
            )),
            obstacle: too_long.then_some(Rejection::ContextTooLong { model_max_tokens }),
            download,
        }
    }
}

/// Requirements of a kind of request on a machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Fit {
    /// `None` if only the agent can compute them, or the model cannot be served.
    pub(crate) requirements: Option<Requirements>,
    /// Reason why the request never runs on this machine, independent of other replicas.
    pub(crate) obstacle: Option<Rejection>,
    /// Bytes of the model to download.
    pub(crate) download: Bytes,
}

impl Fit {
    /// Returns the memory without which the machine rejects the request, or `None` if it always
    /// rejects the request.
    pub(crate) fn memory(&self, request: &ReplicaRequest) -> Option<Bytes> {
        if self.obstacle.is_some() {
            return None;
        }
        Some(match &self.requirements {
            Some(_) if request.overridden => Bytes::ZERO,
            Some(requirements) => requirements.reservation.total(),
            None => RUNTIME_OVERHEAD,
        })
    }
}

/// Availability of a model: number of machines by context length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offer {
    /// Number of machines that can serve the model, by maximum context in tokens; 0 if unknown.
    contexts: BTreeMap<u32, usize>,
    /// Number of machines with a copy that cannot be served.
    broken: usize,
}

impl Offer {
    pub fn is_servable(&self) -> bool {
        !self.contexts.is_empty()
    }

    /// Returns the shortest and longest known maximum context.
    pub fn contexts(&self) -> Option<(u32, u32)> {
        let mut known = self.contexts.keys().copied().filter(|tokens| *tokens > 0);
        let shortest = known.next()?;
        Some((shortest, known.next_back().unwrap_or(shortest)))
    }

    fn count(&mut self, model: &NodeModel) -> &mut usize {
        match model.problem {
            None => self.contexts.entry(model.max_context_tokens).or_default(),
            Some(_) => &mut self.broken,
        }
    }

    fn add(&mut self, model: &NodeModel) {
        *self.count(model) += 1;
    }

    fn remove(&mut self, model: &NodeModel) {
        *self.count(model) -= 1;
        self.contexts.retain(|_, machines| *machines > 0);
    }

    fn is_empty(&self) -> bool {
        self.contexts.is_empty() && self.broken == 0
    }
}

/// Part of a request that determines its requirements on a machine; floating-point values as bits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    source: Option<ModelSource>,
    /// Part of the key: replicas that the controller did not create may state different properties
    /// of the same source.
    artifact: Option<Arc<ArtifactSpec>>,
    context_tokens: Option<u32>,
    max_concurrency: u32,
    kv_bits: Option<u32>,
    disk: Bytes,
    decode: Option<u64>,
    first_token: Option<(u64, Option<u32>)>,
}

impl From<&ReplicaRequest> for Ask {
    fn from(request: &ReplicaRequest) -> Self {
        let objectives = request.objectives;
        Self {
            source: request.source.clone(),
            artifact: request.artifact.clone(),
            context_tokens: request.context_tokens,
            max_concurrency: request.max_concurrency,
            kv_bits: request.kv_bits,
            disk: request.disk,
            decode: objectives.decode.map(f64::to_bits),
            first_token: objectives
                .first_token
                .map(|objective| (objective.max_seconds.to_bits(), objective.prompt_tokens)),
        }
    }
}

/// Distinct kinds of requests and machines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machines {
    asks: BTreeMap<Ask, usize>,
    entries: Vec<Entry>,
    by_hash: HashMap<u64, Vec<usize>>,
    unused: Vec<usize>,
    /// Availability by model name.
    offers: HashMap<String, Offer>,
    /// Number of machines added so far.
    entered: u64,
    /// Value of `entered` at the last complete computation of each kind of request.
    complete: Vec<Option<u64>>,
}

#[derive(Debug, Clone)]
struct Entry {
    machine: Arc<Machine>,
    hash_value: u64,
    nodes: usize,
    /// Requirements by kind of request.
    fits: Vec<Option<Fit>>,
}

impl Machines {
    /// Adds a node's machine. Returns its id, which is valid until [`Machines::leave`].
    pub(crate) fn enter(&mut self, machine: Machine) -> (usize, Arc<Machine>) {
        let hash_value = machine.hash_value();
        let alike = self.by_hash.entry(hash_value).or_default();
        if let Some(id) = alike
            .iter()
            .copied()
            .find(|id| *self.entries[*id].machine == machine)
        {
            let entry = &mut self.entries[id];
            entry.nodes += 1;
            return (id, entry.machine.clone());
        }
        self.entered += 1;
        for model in first_of_each_name(&machine.models) {
            self.offers.entry(model.name.clone()).or_default().add(model);
        }
        let entry = Entry {
            machine: Arc::new(machine),
            hash_value,
            nodes: 1,
            fits: Vec::new(),
        };
        let machine = entry.machine.clone();
        let id = match self.unused.pop() {
            Some(id) => {
                self.entries[id] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        alike.push(id);
        (id, machine)
    }

    pub(crate) fn leave(&mut self, id: usize) {
        let entry = &mut self.entries[id];
        entry.nodes -= 1;
        if entry.nodes > 0 {
            return;
        }
        entry.fits = Vec::new();
        let hash_value = entry.hash_value;
        for model in first_of_each_name(&entry.machine.models) {
            if let Some(offer) = self.offers.get_mut(&model.name) {
                offer.remove(model);
                if offer.is_empty() {
                    self.offers.remove(&model.name);
                }
            }
        }
        if let Some(alike) = self.by_hash.get_mut(&hash_value) {
            alike.retain(|known| *known != id);
            if alike.is_empty() {
                self.by_hash.remove(&hash_value);
            }
        }
        self.unused.push(id);
    }

    pub(crate) fn offer(&self, model: &str) -> Option<&Offer> {
        self.offers.get(model)
    }

    fn ask(&mut self, request: &ReplicaRequest) -> usize {
        let ask = Ask::from(request);
        if let Some(id) = self.asks.get(&ask) {
            return *id;
        }
        if self.asks.len() >= MAX_KINDS {
            self.asks.clear();
            self.complete.clear();
            for entry in &mut self.entries {
                entry.fits.clear();
            }
        }
        let id = self.asks.len();
        self.asks.insert(ask, id);
        id
    }

    /// Returns the requirements of the request on one machine.
    pub(crate) fn fit(&mut self, id: usize, request: &ReplicaRequest) -> &Fit {
        let ask = self.ask(request);
        self.entries[id].fit(ask, request)
    }

    /// Returns the smallest memory that the request needs on a machine, or `None` if it runs on none.
    pub(crate) fn least_memory(&mut self, request: &ReplicaRequest) -> Option<Bytes> {
        let fits = self.fits(request);
        let in_use = fits.entries.iter().filter(|entry| entry.nodes > 0);
        let needs = in_use.filter_map(|entry| entry.fits[fits.ask].as_ref()?.memory(request));
        needs.min()
    }

    /// Returns the requirements of the request on all machines.
    pub(crate) fn fits(&mut self, request: &ReplicaRequest) -> Fits<'_> {
        let ask = self.ask(request);
        if self.complete.len() <= ask {
            self.complete.resize(ask + 1, None);
        }
        if self.complete[ask] != Some(self.entered) {
            for entry in &mut self.entries {
                entry.fit(ask, request);
            }
            self.complete[ask] = Some(self.entered);
        }
        Fits {
            entries: &self.entries,
            ask,
        }
    }
}

/// Returns the first model of each name, as [`Machine::model`] does.
fn first_of_each_name(models: &[NodeModel]) -> impl Iterator<Item = &NodeModel> {
    let is_first = |(at, model): &(usize, &NodeModel)| {
        let before = &models[..*at];
        before.iter().all(|other| other.name != model.name)
    };
    models.iter().enumerate().filter(is_first).map(|(_, model)| model)
}

/// Requirements of one request on each machine, by machine id.
pub(crate) struct Fits<'a> {
    entries: &'a [Entry],
    ask: usize,
}

impl Index<usize> for Fits<'_> {
    type Output = Fit;

    fn index(&self, id: usize) -> &Fit {
        let fit = self.entries[id].fits[self.ask].as_ref();
        fit.expect("`Machines::fits` has computed it for every machine")
    }
}

impl Entry {
    fn fit(&mut self, ask: usize, request: &ReplicaRequest) -> &Fit {
        if self.fits.len() <= ask {
            self.fits.resize(ask + 1, None);
        }
        self.fits[ask].get_or_insert_with(|| self.machine.fit(request))
    }
}
