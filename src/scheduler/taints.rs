//! What keeps models away from a node: the taints a person gave it, and those that follow from its conditions.
//!
//! Those of conditions are never written into the object: they come and go with the conditions, tell nobody's manifests
//! that something was changed, and are tolerated like any other.

use kube::Resource;

use crate::api::conditions::{condition_type, is_true};
use crate::api::v1alpha1::{FleetNode, Taint, TaintEffect};

/// Conditions that act as taints, the taint's key and its effect.
const OF_CONDITIONS: [(&str, &str, TaintEffect); 8] = [
    (
        condition_type::REBOOT_REQUIRED,
        "rooflet.dev/reboot-required",
        TaintEffect::NoSchedule,
    ),
    (
        condition_type::MEMORY_PRESSURE,
        "rooflet.dev/memory-pressure",
        TaintEffect::NoSchedule,
    ),
    (
        condition_type::DISK_PRESSURE,
        "rooflet.dev/disk-pressure",
        TaintEffect::NoSchedule,
    ),
    (
        condition_type::THERMAL_PRESSURE,
        "rooflet.dev/thermal-pressure",
        TaintEffect::NoSchedule,
    ),
    (
        condition_type::ON_BATTERY,
        "rooflet.dev/on-battery",
        TaintEffect::NoExecute,
    ),
    (
        condition_type::LID_CLOSED,
        "rooflet.dev/lid-closed",
        TaintEffect::NoExecute,
    ),
    (
        condition_type::QUIET_HOURS,
        "rooflet.dev/quiet-hours",
        TaintEffect::NoExecute,
    ),
    (
        condition_type::USER_PRESENT,
        "rooflet.dev/user-present",
        TaintEffect::PreferNoSchedule,
    ),
];

/// The taints that follow from the node's conditions. Their NoExecute moves replicas where there is room, within their
/// deployments' bounds; a person's does so at once.
pub(crate) fn of_conditions(node: &FleetNode) -> impl Iterator<Item = Taint> {
    let conditions = node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    OF_CONDITIONS
        .into_iter()
        .filter(|(condition, ..)| is_true(conditions, condition))
        .map(|(_, key, effect)| Taint {
            key: key.to_owned(),
            value: None,
            effect,
        })
}

/// All of a node's taints.
pub(super) fn of(node: &FleetNode) -> Vec<Taint> {
    node.spec
        .taints
        .iter()
        .cloned()
        .chain(of_conditions(node))
        .collect()
}

/// Whether new replicas are kept away whatever they tolerate.
pub(super) fn is_cordoned(node: &FleetNode) -> bool {
    node.spec.unschedulable || node.spec.drain || node.meta().deletion_timestamp.is_some()
}
