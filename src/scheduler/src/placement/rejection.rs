//! Reasons why a node rejects a replica, with their texts for conditions, events and messages.

use std::borrow::Cow;

use rooflet_base::units::Bytes;
use rooflet_roofline::admission::Refusal;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, Reservation};

/// Reason why a node rejects a replica, in the order of reports.
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
    /// The node lacks the label of the spread.
    TopologyKeyMissing {
        key: String,
    },
    /// The node's agent recently rejected a replica of the same revision.
    Refused {
        message: String,
    },
    AntiAffinity,
    /// One more replica in the node's domain would exceed maxSkew.
    Skew {
        domain: String,
    },
    Memory {
        free: Bytes,
        /// `None` if only the agent can compute it.
        needed: Option<Reservation>,
    },
    /// The node's disk is reserved or too small.
    Disk {
        refusal: Refusal,
    },
    /// The memory suffices, but not the speed.
    Speed {
        refusal: Refusal,
    },
    /// The capacity belongs to the node-loss reserve.
    FailureReserve {
        nodes: usize,
    },
}

impl Rejection {
    /// Returns the CamelCase reason for conditions, events and metrics.
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

    /// Returns how close a node is to accepting the replica; higher is closer.
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

    /// Returns the refusal of admission, if any.
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

    /// Returns the distance within one kind of rejection; higher is closer.
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

    /// Returns the numbers of the rejection, if any.
    pub(crate) fn working(&self) -> Option<String> {
        let Self::Memory { free, needed } = self else {
            return self.refusal().map(ToString::to_string);
        };
        Some(match needed {
            Some(needed) => format!("needs {needed}, {free} free"),
            None => {
                format!(
                    "needs {RUNTIME_OVERHEAD} for the runtime plus the files at its path (size unknown), {free} free"
                )
            }
        })
    }

    /// Returns a short text for the closest of several nodes.
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

    /// Returns a short text without numbers. Nodes with the same text are counted together.
    pub(crate) fn summary(&self) -> Cow<'static, str> {
        match self {
            Self::NotReady { reason } => format!("not ready ({reason})").into(),
            Self::Cordoned => "cordoned".into(),
            Self::Taint { taint } => format!("untolerated taint {taint}").into(),
            Self::NodeSelector => "labels do not match spec.placement.nodeSelector".into(),
            Self::ModelMissing { model } => format!("no model `{model}` in the model directory").into(),
            Self::ModelNotServable { problem } => format!("cannot serve the model: {problem}").into(),
            Self::ContextTooLong { model_max_tokens } => {
                format!("model supports at most {model_max_tokens} tokens of context").into()
            }
            Self::TopologyKeyMissing { key } => format!("no label {key} of spec.placement.spread").into(),
            Self::Refused { message } => format!("recently rejected by its agent: {message}").into(),
            Self::AntiAffinity => {
                "already runs a replica of the same deployment (spec.placement.antiAffinity)".into()
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
