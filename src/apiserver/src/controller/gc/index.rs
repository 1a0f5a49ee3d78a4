//! Who depends on whom, kept up to date by the store's events.

use std::collections::{BTreeSet, HashMap};

use super::decide::{FOREGROUND, ORPHAN, OwnerReference, owner_references};
use crate::object;
use rooflet_store::{Event, EventKind, Key, Record};

/// All objects that name owners, by owner.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By the owner's uid.
    dependents: HashMap<String, Dependents>,
}

#[derive(Debug, Default)]
struct Dependents {
    keys: BTreeSet<Key>,
    /// The owner was seen to go. Tells even where its kind went with it.
    owner_is_gone: bool,
}

/// What one step of the store may change the fate of.
#[derive(Debug, Default)]
pub(super) struct Affected {
    pub(super) keys: BTreeSet<Key>,
    /// Owners that one dependent less may hold up.
    pub(super) owners: Vec<OwnerReference>,
}

impl Index {
    /// Takes in an object that is there. True if it needs a look.
    pub(super) fn insert(&mut self, record: &Record) -> bool {
        let references = owner_references(record.json());
        for reference in &references {
            let dependents = self.dependents.entry(reference.uid.clone()).or_default();
            dependents.keys.insert(record.key.clone());
        }
        !references.is_empty() || waits_for_collector(record)
    }

    /// Follows one step of the store.
    pub(super) fn follow(&mut self, event: &Event) -> Affected {
        let mut affected = Affected::default();
        let previous = event.previous.as_deref();
        let before = previous
            .map(|record| owner_references(record.json()))
            .unwrap_or_default();
        let now = match event.kind {
            EventKind::Created | EventKind::Modified => owner_references(event.record.json()),
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
                if let Some(dependents) = self.dependents.get_mut(object::uid(event.record.json())) {
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

    pub(super) fn saw_go(&self, owner: &str) -> bool {
        self.dependents
            .get(owner)
            .is_some_and(|dependents| dependents.owner_is_gone)
    }

    /// Every object that names an owner.
    pub(super) fn all(&self) -> BTreeSet<Key> {
        self.dependents
            .values()
            .flat_map(|dependents| dependents.keys.iter().cloned())
            .collect()
    }
}

/// The object is deleted but for a finalizer that the collector takes away.
fn waits_for_collector(record: &Record) -> bool {
    let object = record.json();
    object::is_being_deleted(object)
        && object::finalizers(object).any(|name| [ORPHAN, FOREGROUND].contains(&name))
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
        let Affected { keys, owners } = index.follow(&event);
        let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
        let owners: Vec<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        format!("{} | {}", keys.join(" "), owners.join(" "))
    }

    #[test]
    fn each_step_says_whose_fate_it_may_change() {
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
        assert!(!index.saw_go("owner"));
        assert_eq!(
            step(index, EventKind::Deleted, "owner", Some(&[]), &[]),
            "/g/k/n/a /g/k/n/b | "
        );
        assert!(index.saw_go("owner"));
        assert_eq!(
            step(index, EventKind::Deleted, "a", Some(&["owner"]), &["owner"]),
            " | owner"
        );
        assert_eq!(
            step(index, EventKind::Deleted, "b", Some(&["owner"]), &["owner"]),
            " | owner"
        );
        assert!(
            !index.saw_go("owner"),
            "nothing is remembered of what nothing depends on"
        );
    }
}
