//! Routing table: models and their ready replicas. An immutable value; versions share the models
//! that did not change. [`RouteIndex`](super::index::RouteIndex) derives it from the watched
//! objects.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::estimate::Speed;
use rooflet_api::v1alpha1::{LoadedModel, RoutingSpec};
use rooflet_base::quantity::parse_duration;
use rooflet_proxy::Upstream;
use rooflet_roofline::loading::{Download, WeightRead};

/// Number of parts of a table. A new version copies the changed parts only, so a change costs about
/// one 512th of the table's pointers.
const SHARDS: usize = 512;
/// Maximum queue time if the deployment and the request set none.
const DEFAULT_QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// Namespace and name of a replica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) replica: String,
}

/// Ready replica, with the inputs of routing decisions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Replica {
    pub(crate) target: Target,
    /// Hash of namespace and name; equal in all gateways.
    pub(crate) id: u64,
    pub(crate) upstream: Upstream,
    pub(crate) revision: Option<String>,
    /// Maximum number of concurrent requests.
    pub(crate) rows: u32,
    pub(crate) speed: Speed,
    /// Running and waiting requests of all gateways, from the agent's last report.
    pub(crate) reported: Option<u64>,
    /// True if the replica frees its model without requests.
    pub(crate) unloads: bool,
}

/// Routing settings of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Routing {
    pub(crate) queue_timeout: Duration,
    /// `None`: derived from the total rows of the replicas.
    pub(crate) max_queued: Option<usize>,
    pub(crate) fallbacks: Vec<String>,
    pub(crate) hedge_after: Option<Duration>,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            queue_timeout: DEFAULT_QUEUE_TIMEOUT,
            max_queued: None,
            fallbacks: Vec::new(),
            hedge_after: None,
        }
    }
}

impl Routing {
    pub(super) fn new(spec: &RoutingSpec) -> Self {
        let default = Self::default();
        let time = |text: &String| parse_duration(text);
        Self {
            queue_timeout: spec
                .queue_timeout
                .as_ref()
                .and_then(time)
                .unwrap_or(default.queue_timeout),
            max_queued: spec.max_queued_requests.map(|most| most as usize),
            fallbacks: spec.fallbacks.clone(),
            hedge_after: spec.hedging.as_ref().and_then(|hedging| time(&hedging.after)),
        }
    }
}

/// Namespace and served name of a model.
pub(crate) type ModelKey = (String, String);

/// Model, identified by namespace and served name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Model {
    pub(crate) namespace: String,
    /// Served name, as used by the workers.
    pub(crate) name: String,
    pub(crate) replicas: Vec<Replica>,
    /// Reason for the absence of ready replicas, from the deployment's status.
    pub(crate) unavailable_reason: Option<String>,
    /// True if the deployment has desired replicas or autoscaling.
    pub(crate) has_desired_replicas: bool,
    /// Maximum concurrent requests of all desired replicas.
    pub(crate) wanted_rows: u32,
    /// True if a replica may become ready, so that requests are queued instead of rejected.
    pub(crate) may_become_ready: bool,
    /// True if a replica is unschedulable.
    pub(crate) is_unplaced: bool,
    /// Ids of replicas that are bound to a node and not ready.
    pub(crate) starting: Vec<u64>,
    /// Shortest time to read the weights, over the starting replicas.
    pub(crate) reading: Option<WeightRead>,
    /// Shortest remaining download of the starting replicas. `None` if one of them has its model.
    pub(crate) download: Option<Download>,
    /// Duration of the last start of a replica.
    pub(crate) last_start: Option<Duration>,
    /// Percentage of requests by revision, during a canary rollout.
    pub(crate) traffic: Vec<(String, u32)>,
    pub(crate) routing: Routing,
    /// True if the deployment is autoscaled.
    pub(crate) autoscaled: bool,
    /// Creation time, as Unix time in seconds.
    pub(crate) created: i64,
    pub(crate) context_tokens: Option<u32>,
    /// Facts from the replica with the largest weights.
    pub(crate) loaded: Option<LoadedModel>,
}

/// Failed lookup of a model by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    NotFound,
    /// Several namespaces serve the name. The field lists the qualified names.
    Ambiguous(Vec<String>),
}

/// Models whose served names have the same hash.
#[derive(Debug, Clone, Default, PartialEq)]
struct Shard {
    /// Ordered by served name and namespace.
    models: Vec<Arc<Model>>,
    /// Replicas on nodes whose Ready condition is Unknown.
    silent: BTreeSet<(ModelKey, u64)>,
}

impl Shard {
    fn position(&self, (namespace, name): &ModelKey) -> Result<usize, usize> {
        let key = (name.as_str(), namespace.as_str());
        self.models.binary_search_by(|model| model.sort_key().cmp(&key))
    }
}

/// All models, by namespace and served name. Clones share all models.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RoutingTable {
    shards: Vec<Arc<Shard>>,
}

impl Default for RoutingTable {
    fn default() -> Self {
        Self {
            shards: vec![Arc::default(); SHARDS],
        }
    }
}

fn shard_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() % SHARDS as u64) as usize
}

impl RoutingTable {
    #[cfg(test)]
    pub(crate) fn of_models(models: impl IntoIterator<Item = Model>) -> Self {
        let mut table = Self::default();
        for model in models {
            table.set(&model.key(), Some(model), BTreeSet::new());
        }
        table
    }

    /// Replaces a model and its replicas on silent nodes. Returns whether the table changed.
    pub(super) fn set(&mut self, key: &ModelKey, model: Option<Model>, silent: BTreeSet<u64>) -> bool {
        let shard = &mut self.shards[shard_of(&key.1)];
        let known = shard.position(key).ok().map(|at| &*shard.models[at]);
        let of_model = (key.clone(), 0)..=(key.clone(), u64::MAX);
        let known_silent = shard.silent.range(of_model.clone()).map(|(_, id)| id);
        let is_model_changed = known != model.as_ref();
        let is_silent_changed = !known_silent.eq(&silent);
        if is_silent_changed {
            let shard = Arc::make_mut(shard);
            let before: Vec<_> = shard.silent.range(of_model).cloned().collect();
            for gone in &before {
                shard.silent.remove(gone);
            }
            shard
                .silent
                .extend(silent.into_iter().map(|id| (key.clone(), id)));
        }
        if is_model_changed {
            let shard = Arc::make_mut(shard);
            match (shard.position(key), model) {
                (Ok(at), Some(model)) => shard.models[at] = Arc::new(model),
                (Ok(at), None) => drop(shard.models.remove(at)),
                (Err(at), Some(model)) => shard.models.insert(at, Arc::new(model)),
                (Err(_), None) => {}
            }
        }
        is_model_changed || is_silent_changed
    }

    /// Returns the keys of the models that differ from an earlier version of this table, in order.
    pub(crate) fn changed_since(&self, before: &Self) -> BTreeSet<ModelKey> {
        let mut changed = BTreeSet::new();
        for (now, before) in self.shards.iter().zip(&before.shards) {
            if Arc::ptr_eq(now, before) {
                continue;
            }
            let differs = |model: &&Arc<Model>, other: &Shard| {
                let at = other.position(&model.key());
                !at.is_ok_and(|at| Arc::ptr_eq(model, &other.models[at]))
            };
            let new = now.models.iter().filter(|model| differs(model, before));
            let old = before.models.iter().filter(|model| differs(model, now));
            changed.extend(new.chain(old).map(|model| model.key()));
        }
        changed
    }

    fn of_name(&self, name: &str) -> &[Arc<Model>] {
        let models = &self.shards[shard_of(name)].models;
        let start = models.partition_point(|model| model.name.as_str() < name);
        let end = models.partition_point(|model| model.name.as_str() <= name);
        &models[start..end]
    }

    /// Returns the model for a served name or `namespace/name`.
    pub(crate) fn find(&self, requested: &str) -> Result<&Model, LookupError> {
        match self.of_name(requested) {
            [model] => return Ok(model),
            [] => {}
            all => {
                let names = all.iter().map(|model| model.full_name());
                return Err(LookupError::Ambiguous(names.collect()));
            }
        }
        let (namespace, name) = requested.split_once('/').ok_or(LookupError::NotFound)?;
        self.get(&(namespace.to_owned(), name.to_owned()))
            .ok_or(LookupError::NotFound)
    }

    /// Returns the model with this [`Model::key`].
    pub(crate) fn get(&self, key: &ModelKey) -> Option<&Model> {
        let shard = &self.shards[shard_of(&key.1)];
        Some(&shard.models[shard.position(key).ok()?])
    }

    /// Returns whether the node of the model's replica has stopped reporting.
    pub(crate) fn is_silent(&self, model: &ModelKey, replica: u64) -> bool {
        let shard = &self.shards[shard_of(&model.1)];
        shard.silent.contains(&(model.clone(), replica))
    }

    /// Returns all models, in no particular order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Model> {
        self.shards
            .iter()
            .flat_map(|shard| shard.models.iter().map(AsRef::as_ref))
    }

    /// Returns the models of a namespace with their served names, ordered by name.
    pub(crate) fn models_in(&self, namespace: &str) -> Vec<(String, &Model)> {
        let in_namespace = self.all().filter(|model| model.namespace == namespace);
        let mut models: Vec<_> = in_namespace.map(|model| (model.name.clone(), model)).collect();
        models.sort_by(|(one, _), (other, _)| one.cmp(other));
        models
    }

    /// Returns all models, each with its shortest unambiguous name, ordered by namespace and served
    /// name.
    pub(crate) fn models(&self) -> Vec<(String, &Model)> {
        let mut models: Vec<_> = self.all().collect();
        models.sort_by_key(|model| (&model.namespace, &model.name));
        let name = |model: &Model| match self.of_name(&model.name) {
            [_] => model.name.clone(),
            _ => model.full_name(),
        };
        models.into_iter().map(|model| (name(model), model)).collect()
    }
}

impl Model {
    pub(crate) fn key(&self) -> ModelKey {
        (self.namespace.clone(), self.name.clone())
    }

    fn sort_key(&self) -> (&str, &str) {
        (&self.name, &self.namespace)
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
