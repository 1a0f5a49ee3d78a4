//! What keeps models away from a node: the taints a person gave it, and those that follow from its
//! conditions.
//!
//! Those of conditions are never written into the object: they come and go with the conditions,
//! tell nobody's manifests that something was changed, and are tolerated like any other.

use std::time::Duration;

use kube::Resource;

use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{FleetNode, Taint, TaintEffect, Toleration, TolerationOperator};

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

/// The taints that follow from the node's conditions.
pub fn of_conditions(node: &FleetNode) -> impl Iterator<Item = Taint> {
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

/// The condition that a taint follows from, if it is not a person's.
pub(super) fn condition_behind(taint: &Taint) -> Option<&'static str> {
    let found = OF_CONDITIONS.iter().find(|(_, key, _)| *key == taint.key);
    found.map(|(condition, ..)| *condition)
}

/// Taints that follow from the machine's use: its battery, its lid and its quiet hours. They keep a
/// replica away only while another node takes it, because a fleet of one laptop has no other node.
pub fn preferences(node: &FleetNode) -> impl Iterator<Item = Taint> {
    of_conditions(node).filter(|taint| taint.effect == TaintEffect::NoExecute)
}

/// All taints of a node except its [`preferences`].
pub(super) fn strict(node: &FleetNode) -> Vec<Taint> {
    let conditions = of_conditions(node).filter(|taint| taint.effect != TaintEffect::NoExecute);
    node.spec.taints.iter().cloned().chain(conditions).collect()
}

/// All of a node's taints, those that a person gave it first.
pub fn of(node: &FleetNode) -> Vec<Taint> {
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

/// The toleration that lets `taint` be; the first one counts, as in Kubernetes.
pub(super) fn toleration_of<'a>(taint: &Taint, tolerations: &'a [Toleration]) -> Option<&'a Toleration> {
    tolerations.iter().find(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let same_effect = toleration.effect.is_none_or(|effect| effect == taint.effect);
        let same_key = key.is_empty() || key == taint.key;
        same_effect
            && same_key
            && match toleration.operator {
                TolerationOperator::Exists => true,
                TolerationOperator::Equal => {
                    !key.is_empty()
                        && toleration.value.as_deref().unwrap_or_default()
                            == taint.value.as_deref().unwrap_or_default()
                }
            }
    })
}

/// For how long a replica may stay on a node after a taint has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Nothing tolerates it.
    Untolerated,
    For(Duration),
    Forever,
}

/// What a replica with these tolerations makes of a taint of effect NoExecute.
pub fn stay(taint: &Taint, tolerations: &[Toleration]) -> Stay {
    match toleration_of(taint, tolerations).map(|toleration| toleration.toleration_seconds) {
        None => Stay::Untolerated,
        Some(None) => Stay::Forever,
        Some(Some(seconds)) => Stay::For(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
    }
}
