//! Which nodes can take a replica at all, and why the others cannot.

use std::ops::ControlFlow;

use super::rejection::Rejection;
use crate::fleet::machine::Fit;
use crate::fleet::node::{Copies, Load, NodeState};
use crate::request::ReplicaRequest;
use crate::taints::toleration_of;
use rooflet_api::v1alpha1::{AntiAffinity, Taint, TaintEffect, Toleration};
use rooflet_roofline::admission::Refusal;
use rooflet_roofline::memory::RUNTIME_OVERHEAD;

impl Rejection {
    /// The same, with whom the replica would hurt.
    pub(crate) fn with_victim(self, fit: &Fit, load: &Load) -> Self {
        let is_hurt = matches!(
            &self,
            Self::Speed {
                refusal: Refusal::Bandwidth { .. }
            }
        );
        let appraisal = fit.appraisal.as_ref().filter(|_| is_hurt);
        match appraisal.and_then(|appraisal| appraisal.too_slow(load.free_share(), &load.commitments)) {
            Some(refusal) => Self::Speed { refusal },
            None => self,
        }
    }
}

/// Whether `node` can take the replica beside `load`. `fit` is what the replica takes of its
/// machine.
///
/// Where the replica may be placed among the domains of a spread depends on all nodes; see
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

/// Gives `tell` everything that stands against the replica there, as [`filter`] sees it, until it
/// breaks off.
pub(crate) fn rejections<B>(
    request: &ReplicaRequest,
    node: &NodeState,
    fit: &Fit,
    load: &Load,
    mut tell: impl FnMut(Rejection) -> ControlFlow<B>,
) -> ControlFlow<B> {
    if let Some(reason) = &node.not_ready {
        let reason = reason.clone();
        tell(Rejection::NotReady { reason })?;
    }
    if node.cordoned {
        tell(Rejection::Cordoned)?;
    }
    if let Some(taint) = repelled_by(request, node).next() {
        let taint = written(taint);
        tell(Rejection::Taint { taint })?;
    }
    if !node.is_selected(&request.placement) {
        tell(Rejection::NodeSelector)?;
    }
    if let Some(message) = request.refused.get(&node.name) {
        let message = message.clone();
        tell(Rejection::Refused { message })?;
    }
    if let Some(obstacle) = &fit.obstacle {
        tell(obstacle.clone())?;
    }
    if request.anti_affinity() == AntiAffinity::Required && node.copies_of(request) != Copies::default() {
        tell(Rejection::AntiAffinity)?;
    }
    let free = load.free(node.allocatable);
    let Some(appraisal) = &fit.appraisal else {
        // Until its agent has said what it takes, the node is full.
        if fit.obstacle.is_none() && free < RUNTIME_OVERHEAD {
            tell(Rejection::Memory { free, needed: None })?;
        }
        return ControlFlow::Continue(());
    };
    // A replica of which nobody knows what it takes may take everything, whatever is overridden.
    let forced = request.overridden && load.undetermined == 0;
    let disk = node.disk(load);
    if forced || appraisal.fits(free, disk, load.free_share()) {
        return ControlFlow::Continue(());
    }
    let memory = || Rejection::Memory {
        free,
        needed: Some(appraisal.reservation),
    };
    if appraisal.reservation.total() > free {
        return tell(memory());
    }
    if let Some(refusal) = appraisal.too_large(disk) {
        return tell(Rejection::Disk { refusal });
    }
    if appraisal.speed.is_none() && appraisal.has_objectives() {
        let refusal = Refusal::SpeedUnknown;
        return tell(Rejection::Speed { refusal });
    }
    // Whom it would hurt is told of the few nodes that are told of at all.
    tell(match appraisal.too_slow(load.free_share(), &[]) {
        Some(refusal) => Rejection::Speed { refusal },
        None => memory(),
    })
}

/// The taints for which the replica may not be placed there.
pub(crate) fn repelled_by<'a>(
    request: &'a ReplicaRequest,
    node: &'a NodeState,
) -> impl Iterator<Item = &'a Taint> {
    node.taints.iter().filter(|taint| match taint.effect {
        TaintEffect::NoSchedule | TaintEffect::NoExecute => !tolerated(taint, &request.placement.tolerations),
        TaintEffect::PreferNoSchedule => false,
    })
}

/// Whether `taint` is one of those that do not matter. A place is good for as long as it is
/// tolerated.
fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    toleration_of(taint, tolerations).is_some()
}

/// Weight of a taint of the machine's use, such as its battery, beside one of effect
/// PreferNoSchedule.
const PREFERENCE_WEIGHT: usize = 4;

/// Weighted number of untolerated taints that keep the replica away only while another node takes
/// it.
pub(crate) fn reluctance(request: &ReplicaRequest, node: &NodeState) -> u32 {
    let is_untolerated = |taint: &&Taint| !tolerated(taint, &request.placement.tolerations);
    let soft = node
        .taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule)
        .filter(is_untolerated);
    let preferences = node.preferences.iter().filter(is_untolerated);
    let count = soft.count() + PREFERENCE_WEIGHT * preferences.count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// As kubectl writes it.
pub(crate) fn written(taint: &Taint) -> String {
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
