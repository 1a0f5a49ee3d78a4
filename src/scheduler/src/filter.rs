//! Which nodes can take a replica at all, and why the others cannot.

use std::borrow::Cow;
use std::ops::ControlFlow;

use super::machine::Fit;
use super::node::{Copies, Load, NodeState};
use super::request::ReplicaRequest;
use super::taints::toleration_of;
use rooflet_api::v1alpha1::{AntiAffinity, Taint, TaintEffect, Toleration};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::Refusal;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, Reservation};

/// Why a node cannot take a replica. The order is that in which they are told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rejection {
    NotReady {
        reason: String,
    },
    Cordoned,
    Taint {
        taint: String,
    },
    NodeSelector,
    ModelMissing {
        model: String,
    },
    ModelNotServable {
        problem: String,
    },
    ContextTooLong {
        model_max_tokens: u32,
    },
    /// It is in no domain of the spread.
    TopologyKeyMissing {
        key: String,
    },
    /// Its agent refused the same a short time ago.
    Refused {
        message: String,
    },
    AntiAffinity,
    /// Its domain has its part already.
    Skew {
        domain: String,
    },
    Memory {
        free: Bytes,
        /// `None` while only its agent can tell.
        needed: Option<Reservation>,
    },
    /// Its disk is promised to others, or too small.
    Disk {
        refusal: Refusal,
    },
    /// Its memory would do, and its speed does not.
    Speed {
        refusal: Refusal,
    },
    /// It is kept for the replicas of nodes that may fail.
    FailureReserve {
        nodes: usize,
    },
}

impl Rejection {
    /// A CamelCase word for conditions, events and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotReady { .. } => "NodeNotReady",
            Self::Cordoned => "NodeCordoned",
            Self::Taint { .. } => "UntoleratedTaint",
            Self::NodeSelector => "NodeSelectorMismatch",
            Self::ModelMissing { .. } => "ModelNotFound",
            Self::ModelNotServable { .. } => "ModelNotServable",
            Self::ContextTooLong { .. } => "ContextTooLong",
            Self::TopologyKeyMissing { .. } => "TopologyKeyMissing",
            Self::Refused { .. } => "RefusedByAgent",
            Self::AntiAffinity => "AntiAffinity",
            Self::Skew { .. } => "TopologySpread",
            Self::Memory { .. } => "InsufficientMemory",
            Self::Disk { refusal } | Self::Speed { refusal } => refusal.reason(),
            Self::FailureReserve { .. } => "FailureReserve",
        }
    }

    /// How near a node is to taking the replica: the higher, the less is missing.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::NotReady { .. } => 0,
            Self::Cordoned => 1,
            Self::Taint { .. } => 2,
            Self::NodeSelector => 3,
            Self::ModelMissing { .. } => 4,
            Self::ModelNotServable { .. } => 5,
            Self::ContextTooLong { .. } => 6,
            Self::TopologyKeyMissing { .. } => 7,
            Self::Refused { .. } => 8,
            Self::AntiAffinity => 9,
            Self::Skew { .. } => 10,
            Self::Memory { .. } => 11,
            Self::Disk { refusal } | Self::Speed { refusal } => match refusal {
                Refusal::Memory(_) => 11,
                Refusal::TooSlow { .. } => 12,
                Refusal::FirstTokenTooLate { .. } => 13,
                Refusal::SpeedUnknown => 14,
                Refusal::Bandwidth { .. } => 15,
                Refusal::Disk { .. } => 16,
            },
            Self::FailureReserve { .. } => 17,
        }
    }

    /// What admission has against it.
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Disk { refusal } | Self::Speed { refusal } => Some(refusal),
            Self::Memory { .. }
            | Self::NotReady { .. }
            | Self::Cordoned
            | Self::Taint { .. }
            | Self::NodeSelector
            | Self::ModelMissing { .. }
            | Self::ModelNotServable { .. }
            | Self::ContextTooLong { .. }
            | Self::TopologyKeyMissing { .. }
            | Self::Refused { .. }
            | Self::AntiAffinity
            | Self::Skew { .. }
            | Self::FailureReserve { .. } => None,
        }
    }

    /// Among rejections of the same kind, more is nearer.
    pub(super) fn margin(&self) -> f64 {
        if let Self::Memory { free, .. } = self {
            return free.0 as f64;
        }
        match self.refusal() {
            Some(Refusal::Disk { disk, .. }) => disk.free.0 as f64,
            Some(Refusal::Bandwidth { free_share, .. }) => *free_share,
            Some(Refusal::TooSlow { predicted, .. }) => predicted.p10,
            Some(Refusal::FirstTokenTooLate { predicted, .. }) => -predicted.p90,
            Some(Refusal::SpeedUnknown | Refusal::Memory(_)) | None => 0.0,
        }
    }

    /// The same, with whom the replica would hurt.
    pub(super) fn with_victim(self, fit: &Fit, load: &Load) -> Self {
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

    /// The numbers behind it, where there are any.
    pub(super) fn working(&self) -> Option<String> {
        let Self::Memory { free, needed } = self else {
            return self.refusal().map(ToString::to_string);
        };
        Some(match needed {
            Some(needed) => format!("needs {needed}, {free} free"),
            None => {
                format!(
                    "needs {RUNTIME_OVERHEAD} for the runtime and what lies at its path takes, {free} free"
                )
            }
        })
    }

    /// How near the nearest of several nodes comes, in a few words.
    pub(super) fn at_most(&self) -> Option<String> {
        if let Self::Memory { free, .. } = self {
            return Some(format!("{free} free at most"));
        }
        match self.refusal()? {
            Refusal::Disk { disk, .. } => Some(format!("{} free at most", disk.free)),
            Refusal::Bandwidth { free_share, .. } => Some(format!(
                "{:.0} % of a chip's time free at most",
                free_share * 100.0
            )),
            Refusal::TooSlow { predicted, .. } => Some(format!("{:.1} tokens/s at most", predicted.p10)),
            Refusal::FirstTokenTooLate { predicted, .. } => {
                Some(format!("first token after {:.2} s at best", predicted.p90))
            }
            Refusal::SpeedUnknown | Refusal::Memory(_) => None,
        }
    }

    /// Nodes with the same words are counted together.
    pub(super) fn words(&self) -> Cow<'static, str> {
        match self {
            Self::NotReady { reason } => format!("not ready ({reason})").into(),
            Self::Cordoned => "cordoned".into(),
            Self::Taint { taint } => format!("untolerated taint {taint}").into(),
            Self::NodeSelector => "labels do not match spec.placement.nodeSelector".into(),
            Self::ModelMissing { model } => format!("no model `{model}` in the model directory").into(),
            Self::ModelNotServable { problem } => format!("cannot serve the model: {problem}").into(),
            Self::ContextTooLong { model_max_tokens } => {
                format!("model made for at most {model_max_tokens} tokens of context").into()
            }
            Self::TopologyKeyMissing { key } => format!("no label {key} of spec.placement.spread").into(),
            Self::Refused { message } => format!("refused it a short time ago: {message}").into(),
            Self::AntiAffinity => {
                "replica of the same deployment there already (spec.placement.antiAffinity)".into()
            }
            Self::Skew { domain } => format!("would exceed spec.placement.spread.maxSkew in {domain}").into(),
            Self::Memory { .. } => "insufficient memory".into(),
            Self::Disk { refusal } | Self::Speed { refusal } => match refusal {
                Refusal::Disk { .. } => "insufficient disk".into(),
                Refusal::Bandwidth { .. } => "insufficient bandwidth".into(),
                Refusal::SpeedUnknown => "not probed yet".into(),
                Refusal::TooSlow { .. } | Refusal::FirstTokenTooLate { .. } => {
                    "too slow for spec.objectives".into()
                }
                Refusal::Memory(_) => "insufficient memory".into(),
            },
            Self::FailureReserve { nodes } => {
                format!("kept free for the failure of {nodes} nodes (--reserve-node-failures)").into()
            }
        }
    }
}

/// Whether `node` can take the replica beside `load`. `fit` is what the replica takes of its machine.
///
/// Where the replica may be placed among the domains of a spread depends on all nodes; see [`super::topology`].
pub(super) fn filter(
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

/// Gives `tell` everything that stands against the replica there, as [`filter`] sees it, until it breaks off.
pub(super) fn rejections<B>(
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
pub(super) fn repelled_by<'a>(
    request: &'a ReplicaRequest,
    node: &'a NodeState,
) -> impl Iterator<Item = &'a Taint> {
    node.taints.iter().filter(|taint| match taint.effect {
        TaintEffect::NoSchedule | TaintEffect::NoExecute => !tolerated(taint, &request.placement.tolerations),
        TaintEffect::PreferNoSchedule => false,
    })
}

/// Whether `taint` is one of those that do not matter. A place is good for as long as it is tolerated.
fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    toleration_of(taint, tolerations).is_some()
}

/// How many taints would rather not have the replica.
pub(super) fn reluctance(request: &ReplicaRequest, node: &NodeState) -> u32 {
    let count = node
        .taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule)
        .filter(|taint| !tolerated(taint, &request.placement.tolerations))
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// As kubectl writes it.
pub(super) fn written(taint: &Taint) -> String {
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
