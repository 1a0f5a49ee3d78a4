//! Why a node cannot take a replica, and how conditions, events and messages say it.

use std::borrow::Cow;

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
    pub(crate) fn rank(&self) -> u8 {
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
    pub(crate) fn margin(&self) -> f64 {
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

    /// The numbers behind it, where there are any.
    pub(crate) fn working(&self) -> Option<String> {
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
    pub(crate) fn at_most(&self) -> Option<String> {
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
    pub(crate) fn words(&self) -> Cow<'static, str> {
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
