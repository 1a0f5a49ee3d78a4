//! Filter phase: decides whether a node can run a replica, and for which reasons it cannot.

use std::ops::ControlFlow;

use super::rejection::Rejection;
use crate::condition_taints::toleration_of;
use crate::fleet::machine::Fit;
use crate::fleet::node::{Copies, Load, NodeState};
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::{AntiAffinity, Taint, TaintEffect, Toleration};
use rooflet_roofline::admission::Refusal;
use rooflet_roofline::memory::RUNTIME_OVERHEAD;

impl Rejection {
    /// Adds the replicas whose objectives the replica would violate to a rejection for bandwidth.
    pub(crate) fn with_victim(self, fit: &Fit, load: &Load) -> Self {
        let is_bandwidth = matches!(
            &self,
            Self::Speed {
                refusal: Refusal::Bandwidth { .. }
            }
        );
        let requirements = fit.requirements.as_ref().filter(|_| is_bandwidth);
        match requirements
            .and_then(|requirements| requirements.bandwidth_refusal(load.free_share(), &load.commitments))
        {
            Some(refusal) => Self::Speed { refusal },
            None => self,
        }
    }
}

/// Checks whether `node` can run the replica in addition to `load`. `fit` holds the requirements of
/// the replica on this machine. Returns the first reason against the node.
///
/// Topology spread constraints are not checked here, because they depend on all nodes; see
/// [`super::topology`].
pub(crate) fn filter(
    request: &ReplicaRequest,
    node: &NodeState,
    fit: &Fit,
    load: &Load,
) -> Result<(), Rejection> {
    match rejections(request, node, fit, load, ControlFlow::Break) {
        ControlFlow::Break(rejection) => Err(rejection),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Calls `report` with each reason against the node, in the order of [`filter`], until it returns
/// `Break`.
pub(crate) fn rejections<B>(
    request: &ReplicaRequest,
    node: &NodeState,
    fit: &Fit,
    load: &Load,
    mut report: impl FnMut(Rejection) -> ControlFlow<B>,
) -> ControlFlow<B> {
    if let Some(reason) = &node.not_ready {
        let reason = reason.clone();
        report(Rejection::NotReady { reason })?;
    }
    if node.cordoned {
        report(Rejection::Cordoned)?;
    }
    if let Some(taint) = untolerated_taints(request, node).next() {
        let taint = format_taint(taint);
        report(Rejection::Taint { taint })?;
    }
    if !node.is_selected(&request.placement) {
        report(Rejection::NodeSelector)?;
    }
    if let Some(message) = request.refused.get(&node.name) {
        let message = message.clone();
        report(Rejection::Refused { message })?;
    }
    if let Some(obstacle) = &fit.obstacle {
        report(obstacle.clone())?;
    }
    if request.anti_affinity() == AntiAffinity::Required && node.copies_of(request) != Copies::default() {
        report(Rejection::AntiAffinity)?;
    }
    let free = load.free(node.allocatable);
    let Some(requirements) = &fit.requirements else {
        // The model's requirements are unknown. Every model needs at least the memory of the
        // runtime.
        if fit.obstacle.is_none() && free < RUNTIME_OVERHEAD {
            report(Rejection::Memory { free, needed: None })?;
        }
        return ControlFlow::Continue(());
    };
    // A bound replica with unknown requirements may use all memory. An override does not apply
    // then.
    let forced = request.overridden && load.undetermined == 0;
    let disk = node.disk(load);
    if forced || requirements.fits(free, disk, load.free_share()) {
        return ControlFlow::Continue(());
    }
    let memory = || Rejection::Memory {
        free,
        needed: Some(requirements.reservation),
    };
    if requirements.reservation.total() > free {
        return report(memory());
    }
    if let Some(refusal) = requirements.disk_refusal(disk) {
        return report(Rejection::Disk { refusal });
    }
    if requirements.speed.is_none() && requirements.has_objectives() {
        let refusal = Refusal::SpeedUnknown;
        return report(Rejection::Speed { refusal });
    }
    // `with_victim` adds the affected replicas later, only for the nodes listed in the message.
    report(match requirements.bandwidth_refusal(load.free_share(), &[]) {
        Some(refusal) => Rejection::Speed { refusal },
        None => memory(),
    })
}

/// Returns the taints that keep the replica from the node.
pub(crate) fn untolerated_taints<'a>(
    request: &'a ReplicaRequest,
    node: &'a NodeState,
) -> impl Iterator<Item = &'a Taint> {
    node.taints.iter().filter(|taint| match taint.effect {
        TaintEffect::NoSchedule | TaintEffect::NoExecute => !tolerated(taint, &request.placement.tolerations),
        TaintEffect::PreferNoSchedule => false,
    })
}

/// Returns whether a toleration matches the taint. A toleration with `tolerationSeconds` counts
/// too.
fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    toleration_of(taint, tolerations).is_some()
}

/// Weight of a usage taint, such as battery, relative to a PreferNoSchedule taint.
const USAGE_TAINT_WEIGHT: usize = 4;

/// Returns the weighted number of untolerated taints that only lower the score of the node.
pub(crate) fn soft_taint_weight(request: &ReplicaRequest, node: &NodeState) -> u32 {
    let is_untolerated = |taint: &&Taint| !tolerated(taint, &request.placement.tolerations);
    let soft = node
        .taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule)
        .filter(is_untolerated);
    let usage = node.usage_taints.iter().filter(is_untolerated);
    let count = soft.count() + USAGE_TAINT_WEIGHT * usage.count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the taint in the notation of kube-scheduler's messages, such as
/// `{key=value:NoSchedule}`.
pub(crate) fn format_taint(taint: &Taint) -> String {
    let effect = match taint.effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    match &taint.value {
        Some(value) => format!("{{{}={value}:{effect}}}", taint.key),
        None => format!("{{{}:{effect}}}", taint.key),
    }
}
