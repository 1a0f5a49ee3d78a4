//! Row of a replica.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use super::format::{gibibytes, rate, seconds};
use super::{Condition, Requests, Speed, created, id, text};
use crate::age::age;
use crate::table::{Cell, Column, Row, Tone};
use rooflet_api::conditions::{NODE_NOT_READY, condition_type};
use rooflet_api::meta::{DEPLOYMENT_LABEL, REVISION_LABEL};
use rooflet_api::v1alpha1::{ModelReplica, ReplicaPhase};
use rooflet_base::quantity::parse_bytes;

pub(super) const COLUMNS: [Column; 14] = [
    Column::text("NAMESPACE", 9),
    Column::text("NAME", 0),
    Column::text("PHASE", 1),
    Column::text("MODEL", 10),
    Column::text("NODE", 5),
    Column::number("MEMORY", 7),
    Column::number("TOK/S PRED", 3),
    Column::number("TOK/S MEAS", 2),
    Column::text("BASIS", 12),
    Column::number("TTFT PRED", 6),
    Column::number("TTFT MEAS", 6),
    Column::number("RUN/WAIT", 4),
    Column::number("DONE", 8),
    Column::number("AGE", 11),
];

/// One copy of a model on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaRow {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) deployment: Option<String>,
    pub(crate) revision: Option<String>,
    /// Served model name.
    pub(crate) model: String,
    pub(crate) node: Option<String>,
    /// True if the node has no machine. Its measurements are not real speeds.
    pub(crate) simulated: bool,
    /// Phase of the status; `Terminating` after the replica was deleted.
    pub(crate) phase: String,
    pub(crate) ready: bool,
    pub(crate) restarts: i32,
    /// Memory reserved on the node.
    #[serde(rename = "reservedMemoryBytes")]
    pub(crate) reserved_memory: Option<u64>,
    /// Progress of the model's download, from 0 to 1.
    pub(crate) download: Option<f64>,
    /// Decode tokens/s of one stream.
    pub(crate) tokens_per_second: Speed,
    pub(crate) time_to_first_token_seconds: Speed,
    pub(crate) requests: Option<Requests>,
    /// Reasons for which the node rejects the replica.
    pub(crate) refusals: Vec<String>,
    pub(crate) created: Option<Timestamp>,
    pub(crate) conditions: Vec<Condition>,
}

impl ReplicaRow {
    pub(super) fn new(replica: &ModelReplica, is_simulated: impl Fn(&str) -> bool) -> Self {
        let status = replica.status.clone().unwrap_or_default();
        let conditions = Condition::all(&status.conditions);
        let label = |name: &str| replica.labels().get(name).map(|value| text(value));
        let ready = Condition::find(&conditions, condition_type::READY);
        let download = status
            .download
            .as_ref()
            .filter(|download| download.total_bytes > 0);
        let node = replica.spec.node_name.as_deref();
        Self {
            namespace: text(&replica.namespace().unwrap_or_default()),
            name: text(&replica.name_any()),
            deployment: label(DEPLOYMENT_LABEL),
            revision: label(REVISION_LABEL),
            model: text(replica.spec.serving.name.as_deref().unwrap_or_default()),
            node: node.map(text),
            simulated: node.is_some_and(is_simulated),
            phase: match replica.metadata.deletion_timestamp {
                Some(_) => "Terminating".to_owned(),
                None => status.phase.as_str().to_owned(),
            },
            ready: ready.is_some_and(|ready| ready.status == "True"),
            restarts: status.restarts,
            reserved_memory: status
                .reserved_memory
                .as_deref()
                .and_then(|quantity| parse_bytes(quantity).ok())
                .map(|bytes| bytes.0),
            download: download.map(|download| download.bytes as f64 / download.total_bytes as f64),
            tokens_per_second: Speed::decode(&status),
            time_to_first_token_seconds: Speed::first_token(&status),
            requests: status.requests.as_ref().map(Requests::new),
            refusals: status
                .admission
                .iter()
                .flat_map(|admission| &admission.refusals)
                .map(|refusal| text(refusal))
                .collect(),
            created: created(replica),
            conditions,
        }
    }

    /// Returns the requests, unless the node is silent: it then keeps the last count.
    pub(super) fn current_requests(&self) -> Option<Requests> {
        let ready = Condition::find(&self.conditions, condition_type::READY);
        let is_lost = ready.is_some_and(|ready| ready.reason == NODE_NOT_READY);
        self.requests.filter(|_| !is_lost)
    }

    pub(crate) fn id(&self) -> String {
        id(&self.namespace, &self.name)
    }

    /// Returns the phase, with the progress of a download.
    fn phase(&self) -> Cell {
        let phase = match self.download {
            Some(share) if self.phase == ReplicaPhase::Pulling.as_str() => {
                format!("{} {:.0}%", self.phase, share * 100.0)
            }
            _ => self.phase.clone(),
        };
        let tone = match self.phase.as_str() {
            "Ready" => Tone::Good,
            "Failed" => Tone::Bad,
            _ => Tone::Warning,
        };
        Cell::text(phase).with_tone(tone)
    }

    pub(super) fn row(&self, now: Timestamp) -> Row {
        let decode = &self.tokens_per_second;
        let first_token = &self.time_to_first_token_seconds;
        Row {
            id: self.id(),
            cells: vec![
                Cell::text(&self.namespace),
                Cell::text(&self.name),
                self.phase(),
                Cell::text(&self.model),
                Cell::text(self.node.as_deref().unwrap_or_default()),
                Cell::number(self.reserved_memory.map(|bytes| bytes as f64), |bytes| {
                    gibibytes(bytes as u64)
                }),
                Cell::number(decode.predicted, rate),
                Cell::number(decode.measured, rate),
                Cell::text(decode.predicted_basis.as_deref().unwrap_or_default()),
                Cell::number(first_token.predicted, seconds),
                Cell::number(first_token.measured, seconds),
                super::load_cell(self.requests),
                Cell::count(self.requests.map(|requests| requests.completed)),
                super::age_cell(self.created, |created| age(created, now)),
            ],
        }
    }
}
