//! Scenario file: fleet, models, deployments, demand, changes and faults.

pub(crate) mod access;
pub(crate) mod fault;
pub(crate) mod machine;
pub(crate) mod planted;
pub(crate) mod policy;

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::scenario::access::Access;
use crate::scenario::fault::Fault;
use crate::scenario::fault::FaultSpec;
use crate::scenario::fault::RandomFaults;
use crate::scenario::fault::ThermalTrace;
use rooflet_api::v1alpha1::{MacSpec, ModelDeployment, Taint};
use rooflet_api::{GROUP, VERSION};
use rooflet_base::quantity;
use rooflet_base::yaml;
use rooflet_schema::{StructuralSchema, names};

/// Invalid field of a scenario, and the remedy.
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

/// Maximum duration of a run.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);
/// Maximum number of Macs.
const MAX_MACS: u32 = 20_000;
const HOURS: usize = 24;

/// Scenario. [`Scenario::parse`] validates all fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Length of the run, such as `24h`.
    #[serde(default = "default_duration", with = "duration_text")]
    pub duration: Duration,
    /// Start of the virtual clock, for hours of the day and for timestamps.
    #[serde(default = "default_start")]
    pub start: Timestamp,
    pub fleet: Fleet,
    pub models: Vec<Model>,
    #[serde(default)]
    pub deployments: Vec<Deployment>,
    #[serde(default)]
    pub demand: Vec<Demand>,
    /// Changes by users.
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
    #[serde(default)]
    pub access: Option<Access>,
    /// If true, every deployment must have all its replicas ten minutes after the last fault or
    /// change. The fleet must be large enough.
    #[serde(default)]
    pub must_heal: bool,
}

fn default_duration() -> Duration {
    Duration::from_secs(24 * 3600)
}

/// Returns 00:00 UTC of a Monday.
fn default_start() -> Timestamp {
    Timestamp::from_second(1_767_571_200).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Machines of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fleet {
    /// Classes of Macs, as in a CapacityPlan. Macs are named after their class: `mini-1`, `mini-2`.
    pub macs: Vec<MacSpec>,
    /// Read speed of the disks in bytes per second. Data sheets do not contain it.
    #[serde(default = "default_disk")]
    pub disk_bytes_per_second: f64,
    /// Labels of the Macs, by class.
    #[serde(default)]
    pub labels: BTreeMap<String, BTreeMap<String, String>>,
    /// `--quiet-hours` of the agents, by class. On a virtual clock they are in UTC.
    #[serde(default)]
    pub quiet_hours: BTreeMap<String, String>,
}

fn default_disk() -> f64 {
    2e9
}

/// Model in the model directories of the Macs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Name of the directory. Deployments refer to it with `local://NAME`.
    pub name: String,
    /// Name of a published model, such as `qwen3-8b`.
    pub model: String,
    /// Format of the weights, such as mlx4, if the model's name does not contain it.
    #[serde(default)]
    pub quantization: Option<String>,
    #[serde(default = "default_max_context")]
    pub max_context_tokens: u32,
    /// Slowdown of the answers compared with the prediction, to simulate a faulty revision.
    #[serde(default = "default_slower")]
    pub slower: f64,
    /// Classes of Macs that have the model. Default: all.
    #[serde(default)]
    pub on: Vec<String>,
}

fn default_slower() -> f64 {
    1.0
}

fn default_max_context() -> u32 {
    32_768
}

/// ModelDeployment in the namespace `default`.
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
    /// Name of the API key that the clients present, if the scenario has `access`.
    #[serde(default)]
    pub key: Option<String>,
    /// Base rate. Arrivals are random and independent (a Poisson process).
    pub requests_per_second: f64,
    /// Mean number of prompt tokens.
    pub prompt_tokens: u32,
    /// Mean number of answer tokens.
    pub answer_tokens: u32,
    /// Factors of the rate for each hour of the day in UTC. Default: 1 for all hours.
    #[serde(default)]
    pub by_hour: Vec<f64>,
    /// Time of the first possible request.
    #[serde(default, with = "duration_text")]
    pub from: Duration,
    /// Timeout of a client that waits for the first token.
    #[serde(default = "default_patience", with = "duration_text")]
    pub patience: Duration,
    /// Objectives of the requests, for deployments without objectives.
    #[serde(default)]
    pub objectives: rooflet_api::v1alpha1::ObjectivesSpec,
}

fn default_patience() -> Duration {
    Duration::from_secs(60)
}

/// Change by a user at a point in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeAt {
    #[serde(with = "duration_text")]
    pub at: Duration,
    #[serde(flatten)]
    pub what: ChangeWhat,
}

/// Change by a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChangeWhat {
    /// Merge patch of a deployment's spec.
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
    /// Removes the controller of a deployment's revisions and replicas, as
    /// `kubectl delete --cascade=orphan` followed by a new deployment with the same name. Not
    /// available in scenario files.
    #[serde(skip)]
    Orphan {
        deployment: String,
    },
    /// Sets an annotation of a deployment. Not available in scenario files.
    #[serde(skip)]
    Annotate {
        deployment: String,
        key: String,
        value: String,
    },
}

/// Delay of messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    #[serde(with = "duration_text")]
    pub shortest: Duration,
    #[serde(with = "duration_text")]
    pub longest: Duration,
}

impl Default for Network {
    /// Delays of a local network and of a server that syncs its disk before it responds.
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
            yaml::from_str(text).map_err(|err| ScenarioError::new("parsing the scenario", err))?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&mut self) -> Result<(), ScenarioError> {
        if self.duration.is_zero() || self.duration > MAX_DURATION {
            let message = "must be greater than 0 and at most a year, such as 24h";
            return Err(ScenarioError::new("duration", message));
        }
        if self.network.longest < self.network.shortest {
            return Err(ScenarioError::new(
                "network.longest",
                "must be greater than or equal to network.shortest",
            ));
        }
        let count: u32 = self.fleet.macs.iter().map(|mac| mac.count).sum();
        if count == 0 || count > MAX_MACS {
            let message = format!("{count} Macs; must be between 1 and {MAX_MACS}");
            return Err(ScenarioError::new("fleet.macs", message));
        }
        if !(self.fleet.disk_bytes_per_second.is_finite() && self.fleet.disk_bytes_per_second > 0.0) {
            return Err(ScenarioError::new(
                "fleet.diskBytesPerSecond",
                "must be greater than 0",
            ));
        }
        if let Some(access) = &self.access {
            access.check()?;
        }
        let classes: Vec<_> = self.fleet.macs.iter().map(class_name).collect();
        let of_labels = self.fleet.labels.keys().map(|name| ("labels", name));
        let of_hours = self.fleet.quiet_hours.keys().map(|name| ("quietHours", name));
        for (what, name) in of_labels.chain(of_hours) {
            if !classes.contains(name) {
                let message = format!(
                    "no class of Macs has this name; the classes are {}",
                    classes.join(", ")
                );
                return Err(ScenarioError::new(format!("fleet.{what}.{name}"), message));
            }
        }
        for (index, model) in self.models.iter().enumerate() {
            if !(1.0..=1000.0).contains(&model.slower) {
                let message = "must be between 1 (as predicted) and 1000";
                return Err(ScenarioError::new(format!("models[{index}].slower"), message));
            }
        }
        // Each of thousands of simulated workers parses a fleet without deployments.
        let schema = LazyCell::new(StructuralSchema::of_kind::<ModelDeployment>);
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
            if let Some(key) = &demand.key
                && self.access.as_ref().and_then(|access| access.key(key)).is_none()
            {
                let message = format!("access.keys has no key `{key}`");
                return Err(ScenarioError::new(field("key"), message));
            }
            if !(0.0..=1e6).contains(&demand.requests_per_second) {
                return Err(ScenarioError::new(
                    field("requestsPerSecond"),
                    "must be between 0 and 1000000",
                ));
            }
            if demand.prompt_tokens == 0 || demand.answer_tokens == 0 {
                return Err(ScenarioError::new(
                    field("promptTokens"),
                    "promptTokens and answerTokens must be greater than 0",
                ));
            }
            let hours = &demand.by_hour;
            if !(hours.is_empty() || hours.len() == HOURS) || hours.iter().any(|factor| *factor < 0.0) {
                let message = format!(
                    "has {} numbers; must have {HOURS} numbers of at least 0, or none",
                    hours.len()
                );
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
            let (name, max) = match fault.what.has_share() {
                true => ("share", 1.0),
                false => ("factor", 1000.0),
            };
            if !(0.0..=max).contains(&fault.strength()) {
                let message = format!("must be between 0 and {max}");
                return Err(ScenarioError::new(format!("faults[{index}].{name}"), message));
            }
        }
        for (index, trace) in self.thermal_traces.iter().enumerate() {
            let field = |name: &str| format!("thermalTraces[{index}].{name}");
            self.node(&trace.node, &field("node"))?;
            if trace.every.is_zero() {
                return Err(ScenarioError::new(
                    field("every"),
                    "must be greater than 0, such as 10m",
                ));
            }
            if trace
                .factors
                .iter()
                .any(|factor| !(1.0..=1000.0).contains(factor))
            {
                let message = "must be between 1 (no slowdown) and 1000";
                return Err(ScenarioError::new(field("factors"), message));
            }
        }
        Ok(())
    }

    /// Checks that all faults can be injected into simulated machines with a real control plane.
    pub fn check_injectable(&self) -> Result<(), ScenarioError> {
        self.check_faults(
            Fault::only_modelled,
            "not supported with a real control plane; remove it, or use `rooflet simulate`",
        )?;
        if self.random_faults.is_some() {
            let message = "supported only by `rooflet simulate`; remove them, or list faults";
            return Err(ScenarioError::new("randomFaults", message));
        }
        Ok(())
    }

    /// Checks that all faults are modelled.
    pub fn check_modelled(&self) -> Result<(), ScenarioError> {
        self.check_faults(
            Fault::only_injectable,
            "not modelled; remove it, or use `rooflet server --simulate`",
        )
    }

    fn check_faults(
        &self,
        unsupported: fn(&Fault) -> Option<&'static str>,
        message: &str,
    ) -> Result<(), ScenarioError> {
        let named = self.faults.iter().map(|fault| unsupported(&fault.what));
        match named.enumerate().find_map(|(index, name)| Some((index, name?))) {
            Some((index, name)) => Err(ScenarioError::new(format!("faults[{index}].{name}"), message)),
            None => Ok(()),
        }
    }

    /// Returns the listed faults and those of thermal traces.
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
        let message = format!("no Mac is named `{name}`; names have the form `{first}`");
        Err(ScenarioError::new(field, message))
    }

    /// Returns true if any deployment has autoscaling, from the start or after a change.
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

    /// Returns the slowdown of the model in the directory `model`.
    pub fn slower(&self, model: &str) -> f64 {
        let found = self.models.iter().find(|known| known.name == model);
        found.map_or(1.0, |found| found.slower)
    }

    /// Returns the served name of a deployment's model.
    pub(crate) fn served_name(&self, deployment: &str) -> String {
        let found = self.deployments.iter().find(|known| known.name == deployment);
        let name = found.and_then(|found| found.spec["serving"]["name"].as_str());
        name.unwrap_or(deployment).to_owned()
    }

    /// Returns the names of all Macs, class by class.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = String> {
        let classes = self.fleet.macs.iter();
        classes.flat_map(|mac| (1..=mac.count).map(move |number| format!("{}-{number}", class_name(mac))))
    }
}

/// Returns the name of the class, or a name derived from the chip, such as `m4-pro`.
pub(crate) fn class_name(mac: &MacSpec) -> String {
    let name = mac.name.as_deref().unwrap_or(&mac.chip);
    let name: String = name
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    name.trim_matches('-').to_owned()
}

/// Applies defaults and validates the spec as the API server does.
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

/// Serialization of durations in the format of Kubernetes tools.
pub(crate) mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use rooflet_base::quantity;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        quantity::parse_duration(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` must be a duration such as 90s, 10m or 24h")))
    }
}

/// Formats a duration for [`quantity::parse_duration`]: `1h30m`, `12.5s`, `300ms`.
pub fn format_duration(duration: Duration) -> String {
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
