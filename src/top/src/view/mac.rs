//! Row of a Mac.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use super::format::{bandwidth, memory, usage_cell};
use super::{Condition, ReplicaRow, Requests, Usage, created, text};
use crate::age::age;
use crate::table::{Cell, Column, Row, Tone};
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::SIMULATED_LABEL;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::quantity::parse_bytes;

pub(super) const COLUMNS: [Column; 9] = [
    Column::text("NAME", 0),
    Column::text("STATUS", 1),
    Column::text("CHIP", 7),
    Column::number("MEMORY", 2),
    Column::number("BANDWIDTH", 3),
    Column::number("REPLICAS", 4),
    Column::number("RUN/WAIT", 5),
    Column::text("CONDITIONS", 6),
    Column::number("AGE", 8),
];

/// Conditions that are not a problem while they are true.
const EXPECTED: [&str; 3] = [
    condition_type::READY,
    condition_type::PROBE_FRESH,
    condition_type::DRAINED,
];

/// Machine of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MacRow {
    pub(crate) name: String,
    /// Status of the condition Ready: True, False or Unknown.
    pub(crate) ready: String,
    pub(crate) cordoned: bool,
    pub(crate) draining: bool,
    /// True if the node has no machine. Its measurements are not real speeds.
    pub(crate) simulated: bool,
    pub(crate) chip: String,
    /// Reserved and allocatable memory, from the status of the node.
    #[serde(rename = "memoryBytes")]
    pub(crate) memory: Option<Usage>,
    /// Reserved and measured bandwidth. `None` until the agent has measured it.
    #[serde(rename = "bandwidthBytesPerSecond")]
    pub(crate) bandwidth: Option<Usage>,
    /// Bandwidth of the chip's data sheet. Not measured.
    #[serde(rename = "nominalBandwidthBytesPerSecond")]
    pub(crate) nominal_bandwidth: Option<f64>,
    pub(crate) replicas: u64,
    pub(crate) requests: Option<Requests>,
    pub(crate) operating_system: String,
    pub(crate) engine: String,
    pub(crate) agent_version: String,
    pub(crate) created: Option<Timestamp>,
    pub(crate) conditions: Vec<Condition>,
}

impl MacRow {
    pub(super) fn new(node: &FleetNode, replicas: &[ReplicaRow]) -> Self {
        let status = node.status.clone().unwrap_or_default();
        let conditions = Condition::all(&status.conditions);
        let name = text(&node.name_any());
        let on_node = replicas
            .iter()
            .filter(|replica| replica.node.as_ref() == Some(&name));
        let bytes = |quantity: &str| parse_bytes(quantity).ok().map(|bytes| bytes.0);
        let memory = bytes(&status.allocatable.memory).zip(bytes(&status.summary.free_memory));
        let measured = status.allocatable.memory_bandwidth.as_deref().and_then(bytes);
        let free_bandwidth = gigabytes_per_second(&status.summary.free_bandwidth);
        Self {
            ready: Condition::find(&conditions, condition_type::READY)
                .map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
            cordoned: node.spec.unschedulable || node.spec.drain,
            draining: node.spec.drain,
            simulated: node.labels().contains_key(SIMULATED_LABEL),
            chip: text(&status.chip.name),
            memory: memory.map(|(allocatable, free)| Usage::of_free(allocatable, free)),
            bandwidth: measured
                .zip(free_bandwidth)
                .map(|(measured, free)| Usage::of_free(measured, free)),
            nominal_bandwidth: status.data_sheet.map(|sheet| sheet.memory_bytes_per_second),
            replicas: u64::try_from(status.replicas).unwrap_or_default(),
            requests: Requests::sum(on_node.filter_map(ReplicaRow::current_requests)),
            operating_system: text(&status.node_info.operating_system),
            engine: text(&status.node_info.engine),
            agent_version: text(&status.node_info.agent_version),
            created: created(node),
            conditions,
            name,
        }
    }

    /// Returns the status in the form of `kubectl get nodes`.
    pub(crate) fn status(&self) -> String {
        let ready = match self.ready.as_str() {
            "True" => "Ready",
            "False" => "NotReady",
            _ => "Unknown",
        };
        match (self.draining, self.cordoned) {
            (true, _) => format!("{ready},Draining"),
            (false, true) => format!("{ready},Cordoned"),
            (false, false) => ready.to_owned(),
        }
    }

    /// Returns the chip, with a note if the node is simulated.
    pub(crate) fn chip(&self) -> String {
        match self.simulated {
            true => format!("{} (simulated)", self.chip),
            false => self.chip.clone(),
        }
    }

    /// Returns the conditions that report a problem while they are true.
    pub(crate) fn problem_conditions(&self) -> impl Iterator<Item = &Condition> {
        let is_problem = |condition: &&Condition| {
            condition.status == "True" && !EXPECTED.contains(&condition.kind.as_str())
        };
        self.conditions.iter().filter(is_problem)
    }

    fn problems(&self) -> String {
        let kinds: Vec<_> = self.problem_conditions().map(|one| one.kind.as_str()).collect();
        kinds.join(",")
    }

    pub(super) fn row(&self, now: Timestamp) -> Row {
        let status = match (self.ready.as_str(), self.cordoned) {
            ("True", false) => Tone::Good,
            ("True", true) => Tone::Warning,
            _ => Tone::Bad,
        };
        Row {
            id: self.name.clone(),
            cells: vec![
                Cell::text(&self.name),
                Cell::text(self.status()).with_tone(status),
                Cell::text(self.chip().trim()),
                usage_cell(self.memory, memory),
                usage_cell(self.bandwidth, bandwidth),
                Cell::count(Some(self.replicas)),
                super::load_cell(self.requests),
                Cell::text(self.problems()).with_tone(Tone::Warning),
                super::age_cell(self.created, |created| age(created, now)),
            ],
        }
    }
}

/// Parses a rate such as `112GB/s`.
fn gigabytes_per_second(text: &str) -> Option<u64> {
    let gigabytes: f64 = text.strip_suffix("GB/s")?.parse().ok()?;
    (gigabytes.is_finite() && gigabytes >= 0.0).then_some((gigabytes * 1e9) as u64)
}
