//! Status of a definition: accepted names, establishment, termination. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Condition;
use crate::builtin::BuiltIn;
use crate::object;

pub(crate) const ESTABLISHED: &str = "Established";
const NAMES_ACCEPTED: &str = "NamesAccepted";
const TERMINATING: &str = "Terminating";
const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";
/// Finalizer of a definition that keeps it until its objects are deleted.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn find_condition<'a>(crd: &'a Value, kind: &str) -> Option<&'a Value> {
    crd["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

pub(crate) fn is_condition_true(crd: &Value, kind: &str) -> bool {
    find_condition(crd, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Adds or replaces a condition. lastTransitionTime changes only with the status.
pub(crate) fn set_condition(crd: &mut Value, condition: &Condition, now: Timestamp) {
    let mut new = condition.to_json(now);
    let conditions = &mut crd["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    match conditions.iter_mut().find(|old| old["type"] == condition.kind) {
        Some(old) => {
            if old["status"] == new["status"] {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// Names in a group that are used by built-in kinds or accepted for other definitions.
#[derive(Debug, Default)]
pub(crate) struct NamesInUse {
    resources: Vec<String>,
    kinds: Vec<String>,
}

/// Collects the used names of a group: those of the built-in kinds, and the accepted names of
/// `others`, which are definitions of that group.
pub(crate) fn names_in_use<'a>(group: &str, others: impl Iterator<Item = &'a Value>) -> NamesInUse {
    let mut in_use = NamesInUse::default();
    for facts in BuiltIn::of_group(group) {
        let resources = [facts.plural, facts.singular]
            .into_iter()
            .chain(facts.short_names.iter().copied());
        in_use.resources.extend(resources.map(str::to_owned));
        in_use
            .kinds
            .extend([facts.kind.to_owned(), format!("{}List", facts.kind)]);
    }
    for other in others {
        let names = &other["status"]["acceptedNames"];
        let texts = |keys: &[&str]| -> Vec<String> {
            let one = keys.iter().filter_map(|key| names[*key].as_str());
            one.filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        in_use.resources.extend(texts(&["plural", "singular"]));
        let short = names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        in_use.resources.extend(short.map(str::to_owned));
        in_use.kinds.extend(texts(&["kind", "listKind"]));
    }
    in_use
}

/// Returns the definition with updated status, given the names in use, or `None` if the status is
/// current.
pub(crate) fn next_status(crd: &Value, in_use: &NamesInUse, now: Timestamp) -> Option<Value> {
    let requested = &crd["spec"]["names"];
    let approval = approval(crd).filter(|approval| {
        let current = find_condition(crd, APPROVED);
        current.is_none_or(|current| {
            current["message"] != approval.message || current["reason"] != approval.reason
        })
    });
    if crd["status"]["acceptedNames"] == *requested
        && is_condition_true(crd, ESTABLISHED)
        && approval.is_none()
    {
        return None;
    }
    let mut next = crd.clone();
    if let Some(approval) = approval {
        set_condition(&mut next, &approval, now);
    }
    let mut accepted = crd["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({});
    }
    let mut conflict: Option<(&str, String)> = None;
    let single = [
        ("plural", "PluralConflict", &in_use.resources),
        ("singular", "SingularConflict", &in_use.resources),
        ("kind", "KindConflict", &in_use.kinds),
        ("listKind", "ListKindConflict", &in_use.kinds),
    ];
    for (key, reason, in_use) in single {
        let name = requested[key].as_str().unwrap_or_default();
        if accepted[key] != requested[key] && in_use.iter().any(|in_use| in_use == name) {
            conflict = Some((reason, format!("{name:?} is already in use")));
        } else {
            accepted[key] = requested[key].clone();
        }
    }
    let short = |names: &Value| -> Vec<String> {
        names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let (accepted_short, requested_short) = (short(&crd["status"]["acceptedNames"]), short(requested));
    let conflicting: Vec<String> = requested_short
        .iter()
        .filter(|name| !accepted_short.contains(name) && in_use.resources.contains(name))
        .map(|name| format!("{name:?} is already in use"))
        .collect();
    if !conflicting.is_empty() {
        let message = if conflicting.len() == 1 {
            conflicting.join("")
        } else {
            format!("[{}]", conflicting.join(", "))
        };
        conflict = Some(("ShortNamesConflict", message));
    } else if let Some(accepted) = accepted.as_object_mut() {
        object::set_or_remove(accepted, "shortNames", requested.get("shortNames").cloned());
    }
    if let Some(accepted) = accepted.as_object_mut() {
        object::set_or_remove(accepted, "categories", requested.get("categories").cloned());
    }
    next["status"]["acceptedNames"] = accepted;
    let names_accepted = match &conflict {
        Some((reason, message)) => Condition {
            kind: NAMES_ACCEPTED,
            status: false,
            reason: (*reason).to_owned(),
            message: message.clone(),
        },
        None => Condition {
            kind: NAMES_ACCEPTED,
            status: true,
            reason: "NoConflicts".to_owned(),
            message: "no conflicts found".to_owned(),
        },
    };
    set_condition(&mut next, &names_accepted, now);
    // An established definition stays established, even if it loses names.
    if !is_condition_true(crd, ESTABLISHED) {
        let (reason, message) = match conflict {
            None => ("InitialNamesAccepted", "the initial names have been accepted"),
            Some(_) => ("NotAccepted", "not all names are accepted"),
        };
        let established = Condition {
            kind: ESTABLISHED,
            status: names_accepted.status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        set_condition(&mut next, &established, now);
    }
    (next["status"] != crd["status"]).then_some(next)
}

/// Returns the condition of a group that belongs to the Kubernetes community, or `None` for other groups.
fn approval(crd: &Value) -> Option<Condition> {
    let group = object::text(crd, &["spec", "group"]);
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")));
    if !is_protected {
        return None;
    }
    let annotation = object::text(crd, &["metadata", "annotations", "api-approved.kubernetes.io"]);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let (status, reason, message) = if annotation.is_empty() {
        let message =
            format!("protected groups must have approval annotation \"api-approved.kubernetes.io\", {see}");
        (false, "MissingAnnotation", message)
    } else if annotation.starts_with("unapproved") {
        (
            false,
            "UnapprovedAnnotation",
            format!("not approved: {annotation:?}"),
        )
    } else if annotation
        .split_once("://")
        .is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty())
    {
        (true, "ApprovedAnnotation", format!("approved in {annotation}"))
    } else {
        let message = format!(
            "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason \
             starting with \"unapproved\", {see}"
        );
        (false, "InvalidAnnotation", message)
    };
    Some(Condition {
        kind: APPROVED,
        status,
        reason: reason.to_owned(),
        message,
    })
}

/// Marks a definition as terminating until its objects are deleted.
pub(crate) fn mark_terminating(crd: &mut Value, now: Timestamp) {
    let time = rooflet_apimachinery::time::format_time(now);
    object::metadata_mut(crd).insert("deletionTimestamp".to_owned(), Value::from(time));
    let mut finalizers: Vec<String> = object::finalizers(crd).map(str::to_owned).collect();
    if !finalizers.iter().any(|name| name == CLEANUP_FINALIZER) {
        finalizers.push(CLEANUP_FINALIZER.to_owned());
    }
    object::set_finalizers(crd, finalizers);
    let condition = Condition {
        kind: TERMINATING,
        status: true,
        reason: "InstanceDeletionPending".to_owned(),
        message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
            .to_owned(),
    };
    set_condition(crd, &condition, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str) -> Value {
        json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com", "names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
            "shortNames": ["gz"]}}, "status": {"conditions": null, "storedVersions": ["v1"]}})
    }

    #[test]
    fn accepts_free_names_once() {
        let crd = definition("gizmos", "Gizmo");
        let next = next_status(&crd, &NamesInUse::default(), Timestamp::UNIX_EPOCH).expect("a change");
        assert!(is_condition_true(&next, NAMES_ACCEPTED) && is_condition_true(&next, ESTABLISHED));
        assert_eq!(next["status"]["acceptedNames"], crd["spec"]["names"]);
        assert_eq!(next_status(&next, &NamesInUse::default(), Timestamp::MAX), None);
    }

    #[test]
    fn approval_of_a_protected_group_is_a_condition() {
        let mut crd = definition("gizmos", "Gizmo");
        let check = |crd: &Value| {
            let next = next_status(crd, &NamesInUse::default(), Timestamp::UNIX_EPOCH).expect("a change");
            let condition = find_condition(&next, APPROVED).cloned();
            assert_eq!(next_status(&next, &NamesInUse::default(), Timestamp::MAX), None);
            condition.map(|condition| format!("{} {}", condition["status"], condition["reason"]))
        };
        assert_eq!(check(&crd), None);
        crd["spec"]["group"] = json!("x.k8s.io");
        assert_eq!(check(&crd).as_deref(), Some(r#""False" "MissingAnnotation""#));
        for (annotation, expect) in [
            ("https://example.com/1", r#""True" "ApprovedAnnotation""#),
            ("unapproved, a test", r#""False" "UnapprovedAnnotation""#),
            ("maybe", r#""False" "InvalidAnnotation""#),
        ] {
            crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": annotation});
            assert_eq!(check(&crd).as_deref(), Some(expect));
        }
    }

    #[test]
    fn rejects_kind_in_use_with_reason() {
        let first = definition("gizmos", "Gizmo");
        let first = next_status(&first, &NamesInUse::default(), Timestamp::UNIX_EPOCH).expect("a change");
        let in_use = names_in_use("example.com", [&first].into_iter());
        let mut second = definition("widgets", "Gizmo");
        second["spec"]["names"]["shortNames"] = json!([]);
        second["spec"]["names"]["singular"] = json!("widget");
        second["spec"]["names"]["listKind"] = json!("WidgetList");
        let next = next_status(&second, &in_use, Timestamp::UNIX_EPOCH).expect("a change");
        let condition = find_condition(&next, NAMES_ACCEPTED).expect("set");
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("KindConflict"))
        );
        assert_eq!(condition["message"], "\"Gizmo\" is already in use");
        assert!(!is_condition_true(&next, ESTABLISHED));
        assert_eq!(next_status(&next, &in_use, Timestamp::MAX), None);
    }

    #[test]
    fn rejects_names_of_built_in_kinds() {
        let mut crd = definition("leases", "Lease");
        crd["spec"]["group"] = json!("coordination.k8s.io");
        crd["status"]["acceptedNames"] = json!({"kind": "", "plural": ""});
        let in_use = names_in_use("coordination.k8s.io", std::iter::empty());
        let next = next_status(&crd, &in_use, Timestamp::UNIX_EPOCH).expect("a change");
        let condition = find_condition(&next, NAMES_ACCEPTED).expect("set");
        assert_eq!(
            (&condition["status"], &condition["message"]),
            (&json!("False"), &json!("\"LeaseList\" is already in use"))
        );
    }

    #[test]
    fn deletion_waits_for_objects() {
        let mut crd = definition("gizmos", "Gizmo");
        mark_terminating(&mut crd, Timestamp::UNIX_EPOCH);
        assert_eq!(object::finalizers(&crd).collect::<Vec<_>>(), [CLEANUP_FINALIZER]);
        assert!(is_condition_true(&crd, TERMINATING) && object::is_being_deleted(&crd));
    }
}
