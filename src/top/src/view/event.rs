//! Row of an event.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use serde::Serialize;

use super::{id, text};
use crate::age::age;
use crate::table::{Cell, Column, Row, Tone};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};

pub(super) const COLUMNS: [Column; 6] = [
    Column::number("LAST", 0),
    Column::text("TYPE", 4),
    Column::text("OBJECT", 3),
    Column::text("REASON", 1),
    Column::number("COUNT", 5),
    Column::flexible("MESSAGE", 2),
];

/// Event about an object of rooflet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRow {
    #[serde(skip)]
    pub(crate) id: String,
    pub(crate) namespace: String,
    /// Time of the last occurrence.
    pub(crate) time: Option<Timestamp>,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Short kind and name, such as `mrep/guide-1`.
    pub(crate) object: String,
    pub(crate) reason: String,
    pub(crate) count: i32,
    pub(crate) message: String,
}

impl EventRow {
    /// Returns `None` for an event about an object of another API group.
    pub(super) fn new(event: &Event) -> Option<Self> {
        let about = &event.involved_object;
        let group = about.api_version.as_deref().unwrap_or_default().split('/').next();
        if group != Some("rooflet.dev") {
            return None;
        }
        let series = event.series.as_ref();
        let times = [
            series
                .and_then(|series| series.last_observed_time.as_ref())
                .map(|time| time.0),
            event.last_timestamp.as_ref().map(|time| time.0),
            event.event_time.as_ref().map(|time| time.0),
            event.first_timestamp.as_ref().map(|time| time.0),
            event.metadata.creation_timestamp.as_ref().map(|time| time.0),
        ];
        let namespace = text(&event.namespace().unwrap_or_default());
        Some(Self {
            id: id(&namespace, &text(&event.name_any())),
            time: times.into_iter().flatten().next(),
            kind: text(event.type_.as_deref().unwrap_or_default()),
            object: object(
                about.kind.as_deref().unwrap_or_default(),
                about.name.as_deref().unwrap_or_default(),
            ),
            reason: text(event.reason.as_deref().unwrap_or_default()),
            count: series
                .and_then(|series| series.count)
                .or(event.count)
                .unwrap_or(1),
            message: text(event.message.as_deref().unwrap_or_default()),
            namespace,
        })
    }

    pub(super) fn row(&self, now: Timestamp) -> Row {
        let tone = match self.kind.as_str() {
            "Normal" | "" => Tone::Plain,
            _ => Tone::Warning,
        };
        Row {
            id: self.id.clone(),
            cells: vec![
                super::age_cell(self.time, |time| age(time, now)),
                Cell::text(&self.kind).with_tone(tone),
                Cell::text(&self.object),
                Cell::text(&self.reason).with_tone(tone),
                Cell::number(Some(f64::from(self.count)), |count| format!("{count:.0}")),
                Cell::text(&self.message),
            ],
        }
    }
}

/// Returns kind and name as kubectl accepts them.
fn object(kind: &str, name: &str) -> String {
    fn is<K: kube::Resource<DynamicType = ()>>(kind: &str) -> bool {
        K::kind(&()) == kind
    }
    let short = match kind {
        kind if is::<ModelDeployment>(kind) => "mdep",
        kind if is::<ModelReplica>(kind) => "mrep",
        kind if is::<ModelRevision>(kind) => "mrev",
        kind if is::<FleetNode>(kind) => "mac",
        other => other,
    };
    format!("{}/{}", text(short), text(name))
}
