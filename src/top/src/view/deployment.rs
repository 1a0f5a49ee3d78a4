//! Row of a deployment.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use super::format::{rate, seconds};
use super::{Condition, ReplicaRow, Requests, Speed, created, id, text};
use crate::age::age;
use crate::table::{Cell, Column, Order, Row, Tone};
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::ModelDeployment;

pub(super) const COLUMNS: [Column; 12] = [
    Column::text("NAMESPACE", 8),
    Column::text("NAME", 0),
    Column::number("READY", 1),
    Column::number("UP-TO-DATE", 9),
    Column::text("MODEL", 10),
    Column::number("TOK/S PRED", 3),
    Column::number("TOK/S MEAS", 2),
    Column::number("TTFT PRED", 5),
    Column::number("TTFT MEAS", 5),
    Column::number("RUN/WAIT", 4),
    Column::text("STATE", 6),
    Column::number("AGE", 7),
];

/// Model to serve.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeploymentRow {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Source of the model.
    pub(crate) model: String,
    pub(crate) desired_replicas: i32,
    pub(crate) ready_replicas: i32,
    pub(crate) updated_replicas: i32,
    /// Decode tokens/s of one stream: mean of the replicas, computed by the controller.
    pub(crate) tokens_per_second: Speed,
    pub(crate) time_to_first_token_seconds: Speed,
    /// Sum of the replicas whose nodes report.
    pub(crate) requests: Option<Requests>,
    pub(crate) paused: bool,
    pub(crate) created: Option<Timestamp>,
    pub(crate) conditions: Vec<Condition>,
}

impl DeploymentRow {
    pub(super) fn new(deployment: &ModelDeployment, replicas: &[ReplicaRow]) -> Self {
        let status = deployment.status.clone().unwrap_or_default();
        let (namespace, name) = (
            text(&deployment.namespace().unwrap_or_default()),
            text(&deployment.name_any()),
        );
        let own = replicas
            .iter()
            .filter(|replica| replica.namespace == namespace && replica.deployment.as_ref() == Some(&name));
        Self {
            model: text(&deployment.spec.model.source),
            desired_replicas: deployment.spec.replicas,
            ready_replicas: status.ready_replicas,
            updated_replicas: status.updated_replicas,
            tokens_per_second: Speed::of_summary(status.tokens_per_second.as_deref()),
            time_to_first_token_seconds: Speed::of_summary(status.time_to_first_token.as_deref()),
            requests: Requests::sum(own.filter_map(ReplicaRow::current_requests)),
            paused: deployment.spec.paused,
            created: created(deployment),
            conditions: Condition::all(&status.conditions),
            namespace,
            name,
        }
    }

    pub(crate) fn id(&self) -> String {
        id(&self.namespace, &self.name)
    }

    /// Returns `Ready`, or the reason why the deployment is not ready.
    pub(crate) fn state(&self) -> Cell {
        let is = |kind, status| Condition::find(&self.conditions, kind).filter(|one| one.status == status);
        if let Some(degraded) = is(condition_type::DEGRADED, "True") {
            return Cell::text(&degraded.reason).with_tone(Tone::Bad);
        }
        if self.paused {
            return Cell::text("Paused").with_tone(Tone::Warning);
        }
        match Condition::find(&self.conditions, condition_type::READY) {
            Some(ready) if ready.status == "True" => Cell::text("Ready").with_tone(Tone::Good),
            Some(ready) => Cell::text(&ready.reason).with_tone(Tone::Warning),
            None => Cell::unknown(),
        }
    }

    pub(super) fn row(&self, now: Timestamp) -> Row {
        let decode = &self.tokens_per_second;
        let first_token = &self.time_to_first_token_seconds;
        let tone = match self.ready_replicas >= self.desired_replicas {
            true => Tone::Good,
            false => Tone::Warning,
        };
        let mut ready = Cell::text(format!("{}/{}", self.ready_replicas, self.desired_replicas));
        ready.order = Order::Number(f64::from(self.ready_replicas));
        Row {
            id: self.id(),
            cells: vec![
                Cell::text(&self.namespace),
                Cell::text(&self.name),
                ready.with_tone(tone),
                Cell::number(Some(f64::from(self.updated_replicas)), |count| {
                    format!("{count:.0}")
                }),
                Cell::text(&self.model),
                Cell::number(decode.predicted, rate),
                Cell::number(decode.measured, rate),
                Cell::number(first_token.predicted, seconds),
                Cell::number(first_token.measured, seconds),
                super::load_cell(self.requests),
                self.state(),
                super::age_cell(self.created, |created| age(created, now)),
            ],
        }
    }
}
