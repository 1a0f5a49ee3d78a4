//! Taints of nodes: those in the spec and those that follow from conditions.
//!
//! Taints of conditions are never written into the object, so that they cannot differ from the
//! conditions and never conflict with a user's manifest. Tolerations apply to both kinds.

use std::time::Duration;

use kube::Resource;

use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{FleetNode, Taint, TaintEffect, Toleration, TolerationOperator};

/// Conditions that act as taints, with key and effect of the taint.
const CONDITION_TAINTS: [(&str, &str, TaintEffect); 8] = [
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

/// Returns the taints that follow from the node's conditions.
pub fn condition_taints(node: &FleetNode) -> impl Iterator<Item = Taint> {
    let conditions = node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    CONDITION_TAINTS
        .into_iter()
        .filter(|(condition, ..)| is_true(conditions, condition))
        .map(|(_, key, effect)| Taint {
            key: key.to_owned(),
            value: None,
            effect,
        })
}

/// Returns the condition from which the taint follows, or `None` for a taint from a spec.
pub(super) fn condition_of(taint: &Taint) -> Option<&'static str> {
    let found = CONDITION_TAINTS.iter().find(|(_, key, _)| *key == taint.key);
    found.map(|(condition, ..)| *condition)
}

/// Returns the taints that follow from the machine's use: battery, closed lid and quiet hours.
///
/// These taints repel a replica only if another node accepts it. Otherwise a fleet of one laptop
/// would serve no model.
pub fn usage_taints(node: &FleetNode) -> impl Iterator<Item = Taint> {
    condition_taints(node).filter(|taint| taint.effect == TaintEffect::NoExecute)
}

/// Returns all taints of a node except its [`usage_taints`].
pub(super) fn strict_taints(node: &FleetNode) -> Vec<Taint> {
    let conditions = condition_taints(node).filter(|taint| taint.effect != TaintEffect::NoExecute);
    node.spec.taints.iter().cloned().chain(conditions).collect()
}

/// Returns all taints of a node, those of the spec first.
pub fn taints_of(node: &FleetNode) -> Vec<Taint> {
    node.spec
        .taints
        .iter()
        .cloned()
        .chain(condition_taints(node))
        .collect()
}

/// Returns whether the node accepts no new replica, regardless of tolerations.
pub(super) fn is_cordoned(node: &FleetNode) -> bool {
    node.spec.unschedulable || node.spec.drain || node.meta().deletion_timestamp.is_some()
}

/// Returns the first toleration that matches the taint. As in Kubernetes, later ones have no
/// effect.
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

/// Time for which a replica may stay on a node with a NoExecute taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TolerationPeriod {
    /// No toleration matches the taint.
    None,
    /// The toleration has `tolerationSeconds`.
    Limited(Duration),
    Unlimited,
}

/// Returns the time for which a replica with these tolerations tolerates a NoExecute taint.
pub fn toleration_period(taint: &Taint, tolerations: &[Toleration]) -> TolerationPeriod {
    match toleration_of(taint, tolerations).map(|toleration| toleration.toleration_seconds) {
        None => TolerationPeriod::None,
        Some(None) => TolerationPeriod::Unlimited,
        Some(Some(seconds)) => {
            let seconds = u64::try_from(seconds).unwrap_or(0);
            TolerationPeriod::Limited(Duration::from_secs(seconds))
        }
    }
}
