//! What is simulated, as a user writes it: a fleet, models, deployments, demand, and what goes
//! wrong when.

pub(crate) mod fault;
pub(crate) mod machine;
pub(crate) mod planted;
pub(crate) mod policy;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::scenario::fault::Fault;
use crate::scenario::fault::FaultSpec;
use crate::scenario::fault::RandomFaults;
use crate::scenario::fault::ThermalTrace;
use rooflet_api::v1alpha1::{MacSpec, ModelDeployment, Taint};
use rooflet_api::{GROUP, VERSION};
use rooflet_apimachinery::schema::{StructuralSchema, names};
use rooflet_base::quantity;
use rooflet_base::yaml;

/// Why a scenario cannot be simulated: the field, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ScenarioError {
    pub field: String,
    pub message: String,
}

impl ScenarioError {
    pub(crate) fn new(field: impl Into<String>, message: impl ToString) -> Self {
        Self {
            field: field.into(),
            message: message.to_string(),
        }
    }
}

/// The longest time that is simulated.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The most Macs one scenario has.
const MOST_MACS: u32 = 20_000;
const HOURS: usize = 24;

/// See the module. Reading it checks everything that can be wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// How long, such as `24h`.
    #[serde(default = "default_duration", with = "duration_text")]
    pub duration: Duration,
    /// When the virtual clock starts, for hours of the day and for timestamps.
    #[serde(default = "default_start")]
    pub start: Timestamp,
    pub fleet: Fleet,
    pub models: Vec<Model>,
    #[serde(default)]
    pub deployments: Vec<Deployment>,
    #[serde(default)]
    pub demand: Vec<Demand>,
    /// Changes that people make.
    #[serde(default)]
    pub changes: Vec<ChangeAt>,
    #[serde(default)]
    pub faults: Vec<FaultSpec>,
    #[serde(default)]
    pub thermal_traces: Vec<ThermalTrace>,
    #[serde(default)]
    pub random_faults: Option<RandomFaults>,
    #[serde(default)]
    pub network: Network,
    /// After the last fault and change, and ten minutes to heal, every deployment must have its
    /// replicas: the fleet is large enough for them.
    #[serde(default)]
    pub must_heal: bool,
}

fn default_duration() -> Duration {
    Duration::from_secs(24 * 3600)
}

/// 00:00 UTC of a Monday.
fn default_start() -> Timestamp {
    Timestamp::from_second(1_767_571_200).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fleet {
    /// As in a CapacityPlan. A Mac is named after its class: `mini-1`, `mini-2`.
    pub macs: Vec<MacSpec>,
    /// How fast weights are read from disk, in bytes per second. No data sheet says it.
    #[serde(default = "default_disk")]
    pub disk_bytes_per_second: f64,
    /// Labels of all Macs of a class, by the class.
    #[serde(default)]
    pub labels: BTreeMap<String, BTreeMap<String, String>>,
    /// `--quiet-hours` of all Macs of a class, by the class. On a virtual clock they are in UTC.
    #[serde(default)]
    pub quiet_hours: BTreeMap<String, String>,
}

fn default_disk() -> f64 {
    2e9
}

/// A model that lies in the model directory of every Mac.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// The directory's name: deployments have `local://NAME`.
    pub name: String,
    /// A published model by its name, such as `qwen3-8b`.
    pub model: String,
    /// Format of the weights where the model's name does not say it, such as mlx4.
    #[serde(default)]
    pub quantization: Option<String>,
    #[serde(default = "default_max_context")]
    pub max_context_tokens: u32,
    /// It answers so many times more slowly than is predicted of it: a bad revision, to see what
    /// notices it.
    #[serde(default = "default_slower")]
    pub slower: f64,
    /// Classes of Macs that have it. Default: all.
    #[serde(default)]
    pub on: Vec<String>,
}

fn default_slower() -> f64 {
    1.0
}

fn default_max_context() -> u32 {
    32_768
}

/// A ModelDeployment of the namespace `default`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deployment {
    pub name: String,
    pub spec: Value,
}

/// Requests for one deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Demand {
    pub deployment: String,
    /// On average over the day; they come at random, one independent of the other.
    pub requests_per_second: f64,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
    /// A multiple of the rate for each hour of the day in UTC. Default: 1 always.
    #[serde(default)]
    pub by_hour: Vec<f64>,
    /// No request comes earlier.
    #[serde(default, with = "duration_text")]
    pub from: Duration,
    /// A client gives up when it has no first token after this time.
    #[serde(default = "default_patience", with = "duration_text")]
    pub patience: Duration,
    /// What counts as good, where the deployment promises nothing.
    #[serde(default)]
    pub objectives: rooflet_api::v1alpha1::ObjectivesSpec,
}

fn default_patience() -> Duration {
    Duration::from_secs(60)
}

/// What a person does at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeAt {
    #[serde(with = "duration_text")]
    pub at: Duration,
    #[serde(flatten)]
    pub what: ChangeWhat,
}

/// See [`ChangeAt`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChangeWhat {
    /// A merge patch of a deployment's spec.
    Patch {
        deployment: String,
        spec: Value,
    },
    Delete {
        deployment: String,
    },
    Cordon {
        node: String,
        cordoned: bool,
    },
    Drain {
        node: String,
        drain: bool,
    },
    Taint {
        node: String,
        taints: Vec<Taint>,
    },
    /// The revisions and replicas of a deployment lose their controller, as after
    /// `kubectl delete --cascade=orphan` and a new deployment of the same name. Not part of a
    /// scenario file.
    #[serde(skip)]
    Orphan {
        deployment: String,
    },
    /// Sets an annotation of a deployment. Not part of a scenario file.
    #[serde(skip)]
    Annotate {
        deployment: String,
        key: String,
        value: String,
    },
}

/// How long messages take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    #[serde(with = "duration_text")]
    pub shortest: Duration,
    #[serde(with = "duration_text")]
    pub longest: Duration,
}

impl Default for Network {
    /// A local network and a server that syncs its disk before it answers.
    fn default() -> Self {
        Self {
            shortest: Duration::from_millis(1),
            longest: Duration::from_millis(20),
        }
    }
}

impl Scenario {
    /// Reads and checks a scenario.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario: Self =
            yaml::from_str(text).map_err(|err| ScenarioError::new("the scenario cannot be read", err))?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&mut self) -> Result<(), ScenarioError> {
        if self.duration.is_zero() || self.duration > LONGEST {
            let message = "must be more than 0 and at most a year, such as 24h";
            return Err(ScenarioError::new("duration", message));
        }
        if self.network.longest < self.network.shortest {
            return Err(ScenarioError::new(
                "network.longest",
                "is less than network.shortest",
            ));
        }
        let count: u32 = self.fleet.macs.iter().map(|mac| mac.count).sum();
        if count == 0 || count > MOST_MACS {
            let message = format!("{count} Macs: there must be from 1 to {MOST_MACS}");
            return Err(ScenarioError::new("fleet.macs", message));
        }
        if !(self.fleet.disk_bytes_per_second.is_finite() && self.fleet.disk_bytes_per_second > 0.0) {
            return Err(ScenarioError::new(
                "fleet.diskBytesPerSecond",
                "must be more than 0",
            ));
        }
        let classes: Vec<_> = self.fleet.macs.iter().map(class_name).collect();
        let of_labels = self.fleet.labels.keys().map(|name| ("labels", name));
        let of_hours = self.fleet.quiet_hours.keys().map(|name| ("quietHours", name));
        for (what, name) in of_labels.chain(of_hours) {
            if !classes.contains(name) {
                let message = format!("no class of Macs has this name; there are {}", classes.join(", "));
                return Err(ScenarioError::new(format!("fleet.{what}.{name}"), message));
            }
        }
        for (index, model) in self.models.iter().enumerate() {
            if !(1.0..=1000.0).contains(&model.slower) {
                let message = "must be from 1, as predicted, to 1000 times slower";
                return Err(ScenarioError::new(format!("models[{index}].slower"), message));
            }
        }
        let schema = StructuralSchema::of_kind::<ModelDeployment>();
        for (index, deployment) in self.deployments.iter_mut().enumerate() {
            let field = format!("deployments[{index}]");
            if let Some(what) = names::dns_subdomain(&deployment.name).into_iter().next() {
                return Err(ScenarioError::new(format!("{field}.name"), what));
            }
            deployment.spec = checked_spec(&schema, &field, &deployment.name, deployment.spec.clone())?;
        }
        for (index, demand) in self.demand.iter().enumerate() {
            let field = |name: &str| format!("demand[{index}].{name}");
            self.deployment(&demand.deployment, &field("deployment"))?;
            if !(0.0..=1e6).contains(&demand.requests_per_second) {
                return Err(ScenarioError::new(
                    field("requestsPerSecond"),
                    "must be from 0 to 1000000",
                ));
            }
            if demand.prompt_tokens == 0 || demand.answer_tokens == 0 {
                return Err(ScenarioError::new(
                    field("promptTokens"),
                    "and answerTokens must be 1 or more",
                ));
            }
            let hours = &demand.by_hour;
            if !(hours.is_empty() || hours.len() == HOURS) || hours.iter().any(|factor| *factor < 0.0) {
                let message = format!("has {} numbers; give {HOURS} of 0 or more, or none", hours.len());
                return Err(ScenarioError::new(field("byHour"), message));
            }
        }
        for (index, change) in self.changes.iter().enumerate() {
            let field = format!("changes[{index}]");
            match &change.what {
                ChangeWhat::Patch { deployment, spec } => {
                    let mut next = self.deployment(deployment, &field)?.spec.clone();
                    json_patch::merge(&mut next, spec);
                    checked_spec(&schema, &field, deployment, next)?;
                }
                ChangeWhat::Delete { deployment }
                | ChangeWhat::Orphan { deployment }
                | ChangeWhat::Annotate { deployment, .. } => drop(self.deployment(deployment, &field)?),
                ChangeWhat::Cordon { node, .. }
                | ChangeWhat::Drain { node, .. }
                | ChangeWhat::Taint { node, .. } => self.node(node, &field)?,
            }
        }
        for (index, fault) in self.faults.iter().enumerate() {
            if let Some(node) = fault.node() {
                self.node(node, &format!("faults[{index}].node"))?;
            }
            let (name, most) = match fault.what.has_share() {
                true => ("share", 1.0),
                false => ("factor", 1000.0),
            };
            if !(0.0..=most).contains(&fault.strength()) {
                let message = format!("must be from 0 to {most}");
                return Err(ScenarioError::new(format!("faults[{index}].{name}"), message));
            }
        }
        for (index, trace) in self.thermal_traces.iter().enumerate() {
            let field = |name: &str| format!("thermalTraces[{index}].{name}");
            self.node(&trace.node, &field("node"))?;
            if trace.every.is_zero() {
                return Err(ScenarioError::new(
                    field("every"),
                    "must be more than 0, such as 10m",
                ));
            }
            if trace
                .factors
                .iter()
                .any(|factor| !(1.0..=1000.0).contains(factor))
            {
                let message = "must be from 1, a cool chip, to 1000 times slower";
                return Err(ScenarioError::new(field("factors"), message));
            }
        }
        Ok(())
    }

    /// Whether all that is to go wrong can be done to simulated machines beside a real control
    /// plane.
    pub fn check_playable(&self) -> Result<(), ScenarioError> {
        self.check_faults(
            Fault::only_modelled,
            "cannot be done to a real control plane; leave it out, or use `rooflet simulate`",
        )?;
        if self.random_faults.is_some() {
            let message = "are for `rooflet simulate`; leave them out, or write down faults";
            return Err(ScenarioError::new("randomFaults", message));
        }
        Ok(())
    }

    /// Whether all that is to go wrong is modelled.
    pub fn check_modelled(&self) -> Result<(), ScenarioError> {
        self.check_faults(
            Fault::only_played,
            "is not modelled; leave it out, or use `rooflet server --simulate`",
        )
    }

    fn check_faults(
        &self,
        is_wrong: fn(&Fault) -> Option<&'static str>,
        message: &str,
    ) -> Result<(), ScenarioError> {
        let named = self.faults.iter().map(|fault| is_wrong(&fault.what));
        match named.enumerate().find_map(|(index, name)| Some((index, name?))) {
            Some((index, name)) => Err(ScenarioError::new(format!("faults[{index}].{name}"), message)),
            None => Ok(()),
        }
    }

    /// The faults that are written down, those of thermal traces among them.
    pub fn planned_faults(&self) -> Vec<FaultSpec> {
        let traced = self.thermal_traces.iter().flat_map(ThermalTrace::faults);
        self.faults.iter().cloned().chain(traced).collect()
    }

    fn deployment(&self, name: &str, field: &str) -> Result<&Deployment, ScenarioError> {
        let found = self.deployments.iter().find(|deployment| deployment.name == name);
        found.ok_or_else(|| ScenarioError::new(field, format!("no deployment is named `{name}`")))
    }

    fn node(&self, name: &str, field: &str) -> Result<(), ScenarioError> {
        if self.node_names().any(|known| known == name) {
            return Ok(());
        }
        let first = self.node_names().next().unwrap_or_default();
        let message = format!("no Mac is named `{name}`; they are named like `{first}`");
        Err(ScenarioError::new(field, message))
    }

    /// Whether the number of replicas of any deployment may follow its requests.
    pub(crate) fn autoscales(&self) -> bool {
        let has = |spec: &Value| !spec["autoscaling"].is_null();
        let patches = self.changes.iter().filter_map(|change| match &change.what {
            ChangeWhat::Patch { spec, .. } => Some(spec),
            ChangeWhat::Delete { .. }
            | ChangeWhat::Cordon { .. }
            | ChangeWhat::Drain { .. }
            | ChangeWhat::Taint { .. }
            | ChangeWhat::Orphan { .. }
            | ChangeWhat::Annotate { .. } => None,
        });
        self.deployments
            .iter()
            .map(|one| &one.spec)
            .chain(patches)
            .any(has)
    }

    /// How many times more slowly than predicted a model answers, by its directory's name.
    pub fn slower(&self, model: &str) -> f64 {
        let found = self.models.iter().find(|known| known.name == model);
        found.map_or(1.0, |found| found.slower)
    }

    /// What clients call a deployment's model.
    pub(crate) fn served_name(&self, deployment: &str) -> String {
        let found = self.deployments.iter().find(|known| known.name == deployment);
        let name = found.and_then(|found| found.spec["serving"]["name"].as_str());
        name.unwrap_or(deployment).to_owned()
    }

    /// Names of all Macs, class by class.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = String> {
        let classes = self.fleet.macs.iter();
        classes.flat_map(|mac| (1..=mac.count).map(move |number| format!("{}-{number}", class_name(mac))))
    }
}

/// `mini`, or the chip as a name of nodes can have it: `m4-pro`.
pub(crate) fn class_name(mac: &MacSpec) -> String {
    let name = mac.name.as_deref().unwrap_or(&mac.chip);
    let name: String = name
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    name.trim_matches('-').to_owned()
}

/// The spec with its defaults, or what the API server would say against it.
fn checked_spec(
    schema: &StructuralSchema,
    field: &str,
    name: &str,
    spec: Value,
) -> Result<Value, ScenarioError> {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    });
    if let Some(unknown) = schema.prune(&mut object).into_iter().next() {
        return Err(ScenarioError::new(format!("{field}.{unknown}"), "unknown field"));
    }
    schema.apply_defaults(&mut object);
    match schema.validate(&object, None).into_iter().next() {
        Some(error) => Err(ScenarioError::new(
            format!("{field}.{}", error.field),
            error.message,
        )),
        None => Ok(object["spec"].take()),
    }
}

/// Durations as Kubernetes' tools write them.
pub(crate) mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use rooflet_base::quantity;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::show(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        quantity::parse_duration(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` must be a duration such as 90s, 10m or 24h")))
    }
}

/// `1h30m`, `12.5s`, `300ms`: what [`quantity::parse_duration`] reads.
pub fn show(duration: Duration) -> String {
    let millis = duration.as_millis();
    let mut text = String::new();
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    if rest > 0 || text.is_empty() {
        match (rest / 1000, rest % 1000) {
            (0, millis) => text.push_str(&format!("{millis}ms")),
            (seconds, 0) => text.push_str(&format!("{seconds}s")),
            (seconds, millis) => text.push_str(&format!("{seconds}.{millis:03}s")),
        }
    }
    debug_assert!(quantity::parse_duration(&text).is_some());
    text
}
