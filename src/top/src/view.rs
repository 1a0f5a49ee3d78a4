//! The fleet as rows of four tables. The module is pure.

mod condition;
mod deployment;
mod event;
pub(crate) mod format;
mod mac;
mod replica;
mod requests;
mod speed;
mod totals;
mod usage;

pub(crate) use self::condition::Condition;
pub(crate) use self::deployment::DeploymentRow;
pub(crate) use self::event::EventRow;
pub(crate) use self::mac::MacRow;
pub(crate) use self::replica::ReplicaRow;
pub(crate) use self::requests::Requests;
pub(crate) use self::speed::Speed;
pub(crate) use self::totals::Totals;
pub(crate) use self::usage::Usage;

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::objects::Objects;
use crate::printable::printable;
use crate::table::{Cell, Order, Table, Tone};
use crate::table_kind::TableKind;
use rooflet_api::meta::SIMULATED_LABEL;

/// Maximum number of events in a view. The newest events are kept.
const MAX_EVENTS: usize = 500;
/// Maximum number of printed events, if other tables are printed, too.
const MAX_PRINTED_EVENTS: usize = 20;

/// The fleet at a point in time. All texts are printable.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Time of the view.
    pub(crate) time: Timestamp,
    pub(crate) totals: Totals,
    pub(crate) macs: Vec<MacRow>,
    pub(crate) replicas: Vec<ReplicaRow>,
    pub(crate) deployments: Vec<DeploymentRow>,
    /// Newest first.
    pub(crate) events: Vec<EventRow>,
    /// Objects that could not be read.
    pub(crate) problems: Vec<Problem>,
}

/// Reason why the objects of a table could not be read, or not completely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Problem {
    pub(crate) table: TableKind,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(table: TableKind, message: &str) -> Self {
        Self {
            table,
            message: text(message),
        }
    }
}

impl View {
    pub(crate) fn new(objects: &Objects, problems: Vec<Problem>, now: Timestamp) -> Self {
        let simulated: BTreeSet<String> = objects
            .nodes
            .iter()
            .filter(|node| node.labels().contains_key(SIMULATED_LABEL))
            .map(|node| node.name_any())
            .collect();
        let replica = |replica: &_| ReplicaRow::new(replica, |node| simulated.contains(node));
        let replicas: Vec<ReplicaRow> = objects.replicas.iter().map(|one| replica(one)).collect();
        let macs: Vec<MacRow> = objects
            .nodes
            .iter()
            .map(|node| MacRow::new(node, &replicas))
            .collect();
        let deployment = |deployment: &_| DeploymentRow::new(deployment, &replicas);
        let deployments = objects.deployments.iter().map(|one| deployment(one)).collect();
        let mut events: Vec<EventRow> = objects
            .events
            .iter()
            .filter_map(|event| EventRow::new(event))
            .collect();
        events.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.id.cmp(&b.id)));
        events.truncate(MAX_EVENTS);
        Self {
            time: now,
            totals: Totals::new(&macs, &replicas),
            macs,
            replicas,
            deployments,
            events,
            problems,
        }
    }

    /// Returns the kinds that could not be read, with the reasons.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let show = |problem: &Problem| format!("{}: {}", problem.table.title(), problem.message);
        self.problems.iter().map(show)
    }

    /// Returns one table, or all tables with headings. All tables contain the newest events only.
    pub fn text(&self, only: Option<TableKind>) -> String {
        let text = |kind: TableKind| {
            let mut table = self.table(kind);
            if only.is_none() && kind == TableKind::Events {
                table.rows.truncate(MAX_PRINTED_EVENTS);
            }
            let title = kind.title().to_uppercase();
            match (table.text(), only) {
                (Some(text), Some(_)) => text,
                (Some(text), None) => format!("{title}\n{text}"),
                (None, _) if self.problem(kind).is_some() => format!("{title}: unreadable\n"),
                (None, _) => format!("{title}: none\n"),
            }
        };
        match only {
            Some(kind) => text(kind),
            None => TableKind::ALL.map(text).join("\n"),
        }
    }

    /// Returns the problem of a table.
    pub(crate) fn problem(&self, table: TableKind) -> Option<&str> {
        let found = self.problems.iter().find(|problem| problem.table == table);
        found.map(|problem| problem.message.as_str())
    }

    /// Returns the rows of a table in the default order.
    pub(crate) fn table(&self, kind: TableKind) -> Table {
        let now = self.time;
        match kind {
            TableKind::Macs => Table {
                columns: &mac::COLUMNS,
                rows: self.macs.iter().map(|row| row.row(now)).collect(),
            },
            TableKind::Replicas => Table {
                columns: &replica::COLUMNS,
                rows: self.replicas.iter().map(|row| row.row(now)).collect(),
            },
            TableKind::Deployments => Table {
                columns: &deployment::COLUMNS,
                rows: self.deployments.iter().map(|row| row.row(now)).collect(),
            },
            TableKind::Events => Table {
                columns: &event::COLUMNS,
                rows: self.events.iter().map(|row| row.row(now)).collect(),
            },
        }
    }
}

/// Returns a text from the API in a form that cannot control the terminal.
fn text(text: &str) -> String {
    printable(text)
}

fn id(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

fn created<K: Resource>(object: &K) -> Option<Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0)
}

/// Cell with the running and waiting requests.
fn load_cell(requests: Option<Requests>) -> Cell {
    requests.map_or_else(Cell::unknown, |requests| {
        let mut cell = Cell::text(format!("{}/{}", requests.running, requests.waiting));
        cell.order = Order::Number(requests.running as f64 + requests.waiting as f64);
        match requests.waiting {
            0 => cell,
            _ => cell.with_tone(Tone::Warning),
        }
    })
}

/// Cell with an age. Its order is that of the ages: the youngest object is first.
fn age_cell(time: Option<Timestamp>, show: impl FnOnce(Timestamp) -> String) -> Cell {
    time.map_or_else(Cell::unknown, |time| {
        let mut cell = Cell::text(show(time));
        cell.order = Order::Number(-(time.as_millisecond() as f64));
        cell
    })
}

#[cfg(test)]
mod tests;
