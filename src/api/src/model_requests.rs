//! Requests of an administrator about the downloaded models of a node, as annotations of its
//! FleetNode.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use crate::meta::{DELETE_MODELS_ANNOTATION, KEEP_MODELS_ANNOTATION};
use crate::v1alpha1::HubModel;

/// Models that a node keeps, and models that it deletes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelRequests {
    /// Models that the agent downloads and keeps without a replica.
    pub keep: BTreeSet<HubModel>,
    /// Models that the agent deletes if their `downloadedTime` is not after the time and no replica uses
    /// them. The time is the `downloadedTime` of the model when the administrator sent the request, so
    /// that a later download stays.
    pub delete: BTreeMap<HubModel, Timestamp>,
}

impl ModelRequests {
    /// Parses the annotations of a FleetNode. Ignores malformed entries.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        let entries = |name: &str| {
            let text = annotations.get(name).map_or("", String::as_str);
            text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
        };
        let delete = |entry: &str| {
            let (model, time) = entry.split_once('=')?;
            Some((model.parse().ok()?, time.parse().ok()?))
        };
        Self {
            keep: entries(KEEP_MODELS_ANNOTATION)
                .filter_map(|entry| entry.parse().ok())
                .collect(),
            delete: entries(DELETE_MODELS_ANNOTATION).filter_map(delete).collect(),
        }
    }

    /// Returns the annotations with their values. `None` removes an annotation.
    pub fn annotations(&self) -> [(&'static str, Option<String>); 2] {
        let joined = |entries: Vec<String>| (!entries.is_empty()).then(|| entries.join(","));
        let keep = self.keep.iter().map(ToString::to_string).collect();
        let delete = self.delete.iter().map(|(model, time)| format!("{model}={time}"));
        [
            (KEEP_MODELS_ANNOTATION, joined(keep)),
            (DELETE_MODELS_ANNOTATION, joined(delete.collect())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_round_trip_and_malformed_entries_are_ignored() {
        let (kept, old) = ("hf://o/kept@main", "hf://o/old@c0");
        let time = "2026-11-27T01:00:00Z";
        let annotations = BTreeMap::from([
            (KEEP_MODELS_ANNOTATION.to_owned(), format!("{kept}, local://x,,")),
            (
                DELETE_MODELS_ANNOTATION.to_owned(),
                format!("{old}={time},hf://o/other@c1=soon,hf://o/x"),
            ),
        ]);
        let requests = ModelRequests::of(&annotations);
        assert_eq!(requests.keep.len(), 1);
        let expect = [
            (KEEP_MODELS_ANNOTATION, Some(kept.to_owned())),
            (DELETE_MODELS_ANNOTATION, Some(format!("{old}={time}"))),
        ];
        assert_eq!(requests.annotations(), expect);
        let none = ModelRequests::of(&BTreeMap::new()).annotations();
        assert!(none.iter().all(|(_, value)| value.is_none()));
    }
}
