//! Decisions of the garbage collector for one object, from its owners and dependents. Pure.

use serde_json::Value;

use crate::endpoints::options::Propagation;
use crate::object;

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// Entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnerReference {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// True if a foreground deletion of the owner waits for this object.
    pub(super) blocks: bool,
}

pub(super) fn owner_references(object: &Value) -> Vec<OwnerReference> {
    let references = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    references
        .map(|reference| {
            let text = |key| object::text(reference, &[key]).to_owned();
            let api_version = text("apiVersion");
            let group = api_version
                .split_once('/')
                .map_or("", |(group, _)| group)
                .to_owned();
            let blocks = reference["blockOwnerDeletion"].as_bool() == Some(true);
            OwnerReference {
                group,
                kind: text("kind"),
                name: text("name"),
                uid: text("uid"),
                blocks,
            }
        })
        .collect()
}

/// State of the owner of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Exists, or its kind is not served and its existence cannot be determined.
    Present,
    /// Does not exist, or an object with another uid has its name.
    Absent,
    /// In foreground deletion, waiting for its dependents.
    WaitsForDependents,
}

/// State of an object that references this one as an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependent {
    pub(super) blocks: bool,
    pub(super) is_being_deleted: bool,
    pub(super) waits_for_dependents: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    /// No owner of the object exists any more, or the existing ones wait for its deletion.
    Delete(Propagation),
    /// The owner waits for the object, and a dependent of the object waits, too. In a cycle, both
    /// would wait forever, so the object must not block its owners when it is deleted.
    UnblockAndDelete,
    /// An owner exists. The references to the owners with these uids are obsolete.
    DropOwners(Vec<String>),
    /// The object waits for its dependents. Those that block its deletion must be processed.
    AwaitDependents,
    /// The dependents are kept, without their reference to this owner.
    Orphan,
    /// No dependent blocks the deletion any more.
    Release,
}

/// Decides for one object. `owners` correspond to `references` by index.
pub(super) fn decide(
    object: &Value,
    references: &[OwnerReference],
    owners: &[Owner],
    dependents: &[Dependent],
) -> Decision {
    let has = |finalizer: &str| object::finalizers(object).any(|name| name == finalizer);
    if object::is_being_deleted(object) {
        return match (has(ORPHAN), has(FOREGROUND)) {
            (true, _) => Decision::Orphan,
            (false, true) if dependents.iter().any(|dependent| dependent.blocks) => Decision::AwaitDependents,
            (false, true) => Decision::Release,
            (false, false) => Decision::Keep,
        };
    }
    if owners.is_empty() {
        return Decision::Keep;
    }
    if owners.contains(&Owner::Present) {
        let obsolete = references
            .iter()
            .zip(owners)
            .filter(|(_, owner)| **owner != Owner::Present);
        let obsolete: Vec<String> = obsolete.map(|(reference, _)| reference.uid.clone()).collect();
        return if obsolete.is_empty() {
            Decision::Keep
        } else {
            Decision::DropOwners(obsolete)
        };
    }
    if owners.contains(&Owner::WaitsForDependents) && !dependents.is_empty() {
        let in_a_circle = dependents.iter().any(|dependent| dependent.waits_for_dependents);
        return if in_a_circle {
            Decision::UnblockAndDelete
        } else {
            Decision::Delete(Propagation::Foreground)
        };
    }
    Decision::Delete(match (has(ORPHAN), has(FOREGROUND)) {
        (true, _) => Propagation::Orphan,
        (false, true) => Propagation::Foreground,
        (false, false) => Propagation::Background,
    })
}

/// Returns the object without its references to `uids`.
pub(super) fn without_owners(object: &Value, uids: &[String]) -> Value {
    let mut object = object.clone();
    let mut left = object["metadata"]["ownerReferences"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    left.retain(|reference| !uids.iter().any(|uid| reference["uid"] == uid.as_str()));
    let left = (!left.is_empty()).then(|| Value::from(left));
    object::set_or_remove(object::metadata_mut(&mut object), "ownerReferences", left);
    object
}

/// Returns the object with owner references that do not block a deletion.
pub(super) fn unblocked(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(references) = object["metadata"]["ownerReferences"].as_array_mut() {
        for reference in references {
            reference["blockOwnerDeletion"] = Value::from(false);
        }
    }
    object
}

pub(super) fn without_finalizer(object: &Value, finalizer: &str) -> Value {
    let mut object = object.clone();
    let left = object::finalizers(&object)
        .filter(|name| *name != finalizer)
        .map(str::to_owned)
        .collect();
    object::set_finalizers(&mut object, left);
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks a decision. `object` is `live` or `deleting`, optionally with `+finalizer`. Owners
    /// are `solid absent waits`; dependents are `free blocking deleting waiting`.
    fn check(object: &str, owners: &str, dependents: &str, expect: Decision) {
        let mut words = object.split('+');
        let mut value = json!({"metadata": {"name": "x"}});
        if words.next() == Some("deleting") {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        value["metadata"]["finalizers"] = json!(words.collect::<Vec<_>>());
        let owners: Vec<Owner> = owners
            .split_whitespace()
            .map(|word| match word {
                "solid" => Owner::Present,
                "absent" => Owner::Absent,
                "waits" => Owner::WaitsForDependents,
                _ => panic!("{word}"),
            })
            .collect();
        value["metadata"]["ownerReferences"] = (0..owners.len())
            .map(|uid| json!({"apiVersion": "g/v1", "kind": "K", "name": "n", "uid": uid.to_string()}))
            .collect();
        let dependents: Vec<Dependent> = dependents
            .split_whitespace()
            .map(|word| Dependent {
                blocks: word != "free",
                is_being_deleted: matches!(word, "deleting" | "waiting"),
                waits_for_dependents: word == "waiting",
            })
            .collect();
        let got = decide(&value, &owner_references(&value), &owners, &dependents);
        assert_eq!(got, expect, "{object} {owners:?} {dependents:?}");
    }

    #[test]
    fn object_is_kept_while_one_owner_exists() {
        check("live", "", "", Decision::Keep);
        check("live", "solid", "", Decision::Keep);
        check(
            "live",
            "solid absent waits",
            "",
            Decision::DropOwners(vec!["1".into(), "2".into()]),
        );
        check("live", "absent", "", Decision::Delete(Propagation::Background));
        check(
            "live",
            "absent absent",
            "free",
            Decision::Delete(Propagation::Background),
        );
        check("live+orphan", "absent", "", Decision::Delete(Propagation::Orphan));
        check(
            "live+foregroundDeletion",
            "absent",
            "",
            Decision::Delete(Propagation::Foreground),
        );
        check("deleting+a/b", "absent", "", Decision::Keep);
    }

    #[test]
    fn foreground_deletion_starts_with_the_leaves() {
        check(
            "deleting+foregroundDeletion",
            "",
            "blocking free",
            Decision::AwaitDependents,
        );
        check(
            "deleting+foregroundDeletion",
            "",
            "deleting",
            Decision::AwaitDependents,
        );
        check("deleting+foregroundDeletion", "", "free", Decision::Release);
        check("deleting+foregroundDeletion", "", "", Decision::Release);
        check("live", "waits", "", Decision::Delete(Propagation::Background));
        check("live", "waits", "free", Decision::Delete(Propagation::Foreground));
        check("live", "waits", "waiting", Decision::UnblockAndDelete);
    }

    #[test]
    fn orphaning_keeps_dependents() {
        check("deleting+orphan", "", "blocking", Decision::Orphan);
        check("deleting+orphan", "", "", Decision::Orphan);
    }

    #[test]
    fn edits_remove_only_the_named_entries() {
        let object = json!({"metadata": {"finalizers": ["a/b", "orphan"], "ownerReferences": [
            {"uid": "1", "blockOwnerDeletion": true}, {"uid": "2"}]}});
        assert_eq!(
            without_owners(&object, &["1".into()])["metadata"]["ownerReferences"],
            json!([{"uid": "2"}])
        );
        assert!(
            without_owners(&object, &["1".into(), "2".into()])["metadata"]
                .get("ownerReferences")
                .is_none()
        );
        assert_eq!(
            without_finalizer(&object, ORPHAN)["metadata"]["finalizers"],
            json!(["a/b"])
        );
        let unblocked = unblocked(&object);
        assert!(
            owner_references(&unblocked)
                .iter()
                .all(|reference| !reference.blocks)
        );
    }
}
