//! The managers of an object: `metadata.managedFields`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compare::Comparison;
use super::field_set::FieldSet;
use super::manager::{Manager, Operation};
use super::schema::TypeSchema;

/// Maximum entries of [`Operation::Update`]. Further entries merge with the oldest ones.
const UPDATE_ENTRIES_MAX: usize = 10;
/// Manager of merged entries.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// Manager of the fields that an object had before the first apply.
pub(super) const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The only encoding of field sets.
const FIELDS_V1: &str = "FieldsV1";

/// Fields that belong to no manager, because the server sets them or they identify the object.
const UNOWNED: [&[&str]; 12] = [
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Managers of an object and the fields that each of them owns.
#[derive(Debug, Clone, Default)]
pub struct Managers {
    pub(super) entries: Vec<Entry>,
}

/// Fields of a manager. Not empty.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) manager: Manager,
    /// Time of the last change, RFC 3339 in seconds.
    pub(super) time: Option<String>,
    pub(super) fields: FieldSet,
}

/// Entry in its JSON form.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEntry {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    manager: String,
    operation: Operation,
    #[serde(default)]
    api_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(default)]
    fields_type: String,
    #[serde(rename = "fieldsV1", default)]
    fields_v1: Option<FieldSet>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    subresource: String,
}

/// Reason why a text is not a list of managers.
#[derive(Debug, thiserror::Error)]
pub enum DecodeManagersError {
    #[error("malformed managed fields")]
    Malformed(#[from] serde_json::Error),
    #[error("apiVersion must not be empty")]
    NoApiVersion,
    #[error("invalid fieldsType {0:?}")]
    FieldsType(String),
}

/// Write of an object by a request that is not an apply.
#[derive(Debug, Clone, Copy)]
pub struct Tracked<'a> {
    pub schema: &'a TypeSchema,
    pub old: &'a Value,
    pub new: &'a Value,
    pub manager: &'a Manager,
    /// Fields that the request cannot change, with all fields below them.
    pub ignored: &'a FieldSet,
    /// Current time, RFC 3339 in seconds.
    pub now: &'a str,
}

impl Managers {
    /// Decodes a JSON list of entries.
    pub fn decode(text: &str) -> Result<Self, DecodeManagersError> {
        let wire: Vec<WireEntry> = serde_json::from_str(text)?;
        let mut managers = Self::default();
        for entry in wire {
            if entry.api_version.is_empty() {
                return Err(DecodeManagersError::NoApiVersion);
            }
            if entry.fields_type != FIELDS_V1 {
                return Err(DecodeManagersError::FieldsType(entry.fields_type));
            }
            let manager = Manager {
                name: entry.manager,
                operation: entry.operation,
                api_version: entry.api_version,
                subresource: entry.subresource,
            };
            // The last of several entries with the same identity applies.
            managers.entries.retain(|known| !known.manager.is(&manager));
            managers.entries.push(Entry {
                manager,
                time: entry.time,
                fields: entry.fields_v1.unwrap_or_default(),
            });
        }
        Ok(managers)
    }

    /// Encodes the entries as a JSON list: applied entries first, then by time. Returns `None` if
    /// there are no entries.
    pub fn encode(&self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| {
            let Manager {
                name,
                operation,
                api_version,
                subresource,
            } = &entry.manager;
            (operation, entry.time.as_deref(), name, api_version, subresource)
        });
        let wire: Vec<WireEntry> = entries
            .into_iter()
            .map(|entry| WireEntry {
                manager: entry.manager.name.clone(),
                operation: entry.manager.operation,
                api_version: entry.manager.api_version.clone(),
                time: entry.time.clone(),
                fields_type: FIELDS_V1.to_owned(),
                fields_v1: Some(entry.fields.clone()),
                subresource: entry.manager.subresource.clone(),
            })
            .collect();
        Some(serde_json::to_string(&wire).expect("serialising strings and sets cannot fail"))
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Compares two encoded lists without the times of their entries.
    pub fn differ_only_in_time(a: &str, b: &str) -> bool {
        let (Ok(mut a), Ok(mut b)) = (Self::decode(a), Self::decode(b)) else {
            return false;
        };
        for managers in [&mut a, &mut b] {
            for entry in &mut managers.entries {
                entry.time = None;
            }
        }
        a.encode() == b.encode()
    }

    /// Drops the entries of API versions that are not served any more.
    pub fn retain_versions(&mut self, is_served: impl Fn(&str) -> bool) {
        self.entries.retain(|entry| is_served(&entry.manager.api_version));
    }

    /// Updates the entries after a write: the manager owns the fields that the write changed, and
    /// only them in addition to its fields. If the values do not conform to the schema, drops all
    /// entries, like kube-apiserver.
    pub fn track(&mut self, write: Tracked<'_>) {
        let Ok(compared) = write.schema.compare(write.old, write.new) else {
            self.entries.clear();
            return;
        };
        self.reconcile(write.schema);
        let changes = compared.without(write.ignored);
        self.release(&changes, None);
        let own = changes.written().difference(&Self::unowned());
        if own.is_empty() {
            return;
        }
        self.give(write.manager, &own, Some(write.now));
        self.merge_oldest();
    }

    /// Takes fields that a write removed or changed from all managers except one.
    pub(super) fn release(&mut self, changes: &Comparison, except: Option<&Manager>) {
        let written = changes.written();
        if written.is_empty() && changes.removed.is_empty() {
            return;
        }
        let released = written.union(&changes.removed);
        for entry in &mut self.entries {
            if except.is_none_or(|manager| !entry.manager.is(manager)) {
                entry.fields = entry.fields.difference(&released);
            }
        }
        self.entries.retain(|entry| !entry.fields.is_empty());
    }

    /// Adds fields to the entry of a manager. Creates the entry if there is none.
    pub(super) fn give(&mut self, manager: &Manager, fields: &FieldSet, time: Option<&str>) {
        match self.entry_mut(manager) {
            Some(entry) => {
                entry.fields = entry.fields.union(fields);
                entry.time = time.map(str::to_owned).or_else(|| entry.time.take());
            }
            None => self.entries.push(Entry {
                manager: manager.clone(),
                time: time.map(str::to_owned),
                fields: fields.clone(),
            }),
        }
    }

    pub(super) fn entry_mut(&mut self, manager: &Manager) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.manager.is(manager))
    }

    pub(super) fn entry(&self, manager: &Manager) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.manager.is(manager))
    }

    /// Adapts all sets to the current schema.
    pub(super) fn reconcile(&mut self, schema: &TypeSchema) {
        for entry in &mut self.entries {
            if let Some(fields) = schema.reconcile(&entry.fields) {
                entry.fields = fields;
            }
        }
    }

    /// Merges the oldest updates of each version until there are not too many entries.
    fn merge_oldest(&mut self) {
        let is_update = |entry: &Entry| entry.manager.operation == Operation::Update;
        let mut count = self.entries.iter().filter(|entry| is_update(entry)).count();
        if count <= UPDATE_ENTRIES_MAX {
            return;
        }
        let (mut updates, others): (Vec<Entry>, Vec<Entry>) =
            std::mem::take(&mut self.entries).into_iter().partition(is_update);
        self.entries = others;
        updates.sort_by(|a, b| {
            (a.time.as_deref(), a.manager.sort_key()).cmp(&(b.time.as_deref(), b.manager.sort_key()))
        });
        // The first entry of a version keeps its manager unless a second one merges with it.
        let mut buckets: BTreeMap<String, Entry> = BTreeMap::new();
        for entry in updates {
            let version = entry.manager.api_version.clone();
            match buckets.get_mut(&version) {
                Some(bucket) if count > UPDATE_ENTRIES_MAX => {
                    bucket.manager = Manager {
                        name: ANCIENT_CHANGES.to_owned(),
                        operation: Operation::Update,
                        api_version: version,
                        subresource: String::new(),
                    };
                    bucket.fields = bucket.fields.union(&entry.fields);
                    bucket.time = entry.time;
                    count -= 1;
                }
                None if count > UPDATE_ENTRIES_MAX => drop(buckets.insert(version, entry)),
                Some(_) | None => self.entries.push(entry),
            }
        }
        self.entries.extend(buckets.into_values());
    }

    /// Fields that belong to no manager.
    pub(super) fn unowned() -> FieldSet {
        FieldSet::of_fields(&UNOWNED)
    }
}
