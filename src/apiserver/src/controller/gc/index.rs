//! Index of dependents by owner, updated by store events.

use std::collections::{BTreeSet, HashMap};

use super::decide::{FOREGROUND, ORPHAN, OwnerReference, owner_references};
use crate::object;
use rooflet_store::{Event, EventKind, Key, Record};

/// All objects with owner references, by owner.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Dependents by the owner's uid.
    dependents: HashMap<String, Dependents>,
}

#[derive(Debug, Default)]
struct Dependents {
    keys: BTreeSet<Key>,
    /// True after the owner's deletion was observed, even if its kind was deleted, too.
    owner_is_gone: bool,
}

/// Objects whose decision an event may change.
#[derive(Debug, Default)]
pub(super) struct Affected {
    pub(super) keys: BTreeSet<Key>,
    /// Owners that have lost a dependent.
    pub(super) owners: Vec<OwnerReference>,
}

impl Index {
    /// Adds an object. Returns true if the object must be processed.
    pub(super) fn insert(&mut self, record: &Record) -> bool {
        let references = owner_references(&record.json());
        for reference in &references {
            let dependents = self.dependents.entry(reference.uid.clone()).or_default();
            dependents.keys.insert(record.key.clone());
        }
        !references.is_empty() || waits_for_collector(record)
    }

    /// Applies an event of the store.
    pub(super) fn apply(&mut self, event: &Event) -> Affected {
        let mut affected = Affected::default();
        let previous = event.previous.as_deref();
        let before = previous
            .map(|record| owner_references(&record.json()))
            .unwrap_or_default();
        let now = match event.kind {
            EventKind::Created | EventKind::Modified => owner_references(&event.record.json()),
            EventKind::Deleted => Vec::new(),
        };
        for reference in before
            .iter()
            .filter(|old| now.iter().all(|new| new.uid != old.uid))
        {
            self.remove(&reference.uid, event.key());
        }
        match event.kind {
            EventKind::Created | EventKind::Modified => {
                if self.insert(&event.record) {
                    affected.keys.insert(event.key().clone());
                }
            }
            EventKind::Deleted => {
                if let Some(dependents) = self.dependents.get_mut(object::uid(&event.record.json())) {
                    dependents.owner_is_gone = true;
                    affected.keys.extend(dependents.keys.iter().cloned());
                }
            }
        }
        if before != now {
            affected.owners = before;
        }
        affected
    }

    fn remove(&mut self, owner: &str, key: &Key) {
        let Some(dependents) = self.dependents.get_mut(owner) else {
            return;
        };
        dependents.keys.remove(key);
        if dependents.keys.is_empty() {
            self.dependents.remove(owner);
        }
    }

    pub(super) fn dependents(&self, owner: &str) -> impl Iterator<Item = &Key> {
        self.dependents
            .get(owner)
            .into_iter()
            .flat_map(|dependents| &dependents.keys)
    }

    pub(super) fn has_seen_deletion(&self, owner: &str) -> bool {
        self.dependents
            .get(owner)
            .is_some_and(|dependents| dependents.owner_is_gone)
    }

    /// Returns all objects with owner references.
    pub(super) fn all(&self) -> BTreeSet<Key> {
        self.dependents
            .values()
            .flat_map(|dependents| dependents.keys.iter().cloned())
            .collect()
    }
}

/// Returns true if the object is being deleted and waits for a finalizer of the garbage collector.
fn waits_for_collector(record: &Record) -> bool {
    let object = record.json();
    object::is_being_deleted(&object)
        && object::finalizers(&object).any(|name| [ORPHAN, FOREGROUND].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::{Value, json};

    fn record(name: &str, owners: &[&str]) -> std::sync::Arc<Record> {
        let references: Vec<Value> = owners.iter().map(|uid| json!({"uid": uid})).collect();
        let object = json!({"metadata": {"name": name, "uid": name, "ownerReferences": references}});
        Record::for_tests(
            Key::new(format!("/g/k/n/{name}")),
            Bytes::from(object.to_string()),
        )
    }

    fn step(index: &mut Index, kind: EventKind, name: &str, before: Option<&[&str]>, now: &[&str]) -> String {
        let previous = before.map(|owners| record(name, owners));
        let event = Event {
            revision: rooflet_store::Revision(9),
            kind,
            record: record(name, now),
            previous,
        };
        let Affected { keys, owners } = index.apply(&event);
        let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
        let owners: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        format!("{} | {}", keys.join(" "), owners.join(" "))
    }

    #[test]
    fn events_report_affected_objects_and_owners() {
        let mut index = Index::default();
        let index = &mut index;
        assert_eq!(step(index, EventKind::Created, "owner", None, &[]), " | ");
        assert_eq!(
            step(index, EventKind::Created, "a", None, &["owner"]),
            "/g/k/n/a | "
        );
        assert_eq!(
            step(index, EventKind::Created, "b", None, &["owner", "other"]),
            "/g/k/n/b | "
        );
        assert_eq!(
            step(index, EventKind::Modified, "a", Some(&["owner"]), &["owner"]),
            "/g/k/n/a | "
        );
        assert_eq!(
            step(
                index,
                EventKind::Modified,
                "b",
                Some(&["owner", "other"]),
                &["owner"]
            ),
            "/g/k/n/b | owner other"
        );
        assert_eq!(index.dependents("other").count(), 0);
        assert!(!index.has_seen_deletion("owner"));
        assert_eq!(
            step(index, EventKind::Deleted, "owner", Some(&[]), &[]),
            "/g/k/n/a /g/k/n/b | "
        );
        assert!(index.has_seen_deletion("owner"));
        assert_eq!(
            step(index, EventKind::Deleted, "a", Some(&["owner"]), &["owner"]),
            " | owner"
        );
        assert_eq!(
            step(index, EventKind::Deleted, "b", Some(&["owner"]), &["owner"]),
            " | owner"
        );
        assert!(
            !index.has_seen_deletion("owner"),
            "owners without dependents are not indexed"
        );
    }
}
