//! Reasons why a node rejects a replica.

use std::fmt;

use crate::disk::{DiskDemand, NodeDisk};
use crate::memory::MemoryRefusal;
use crate::predict::{Basis, Constraint, Interval};
use rooflet_base::units::Bytes;

/// Reason why a node rejects a replica.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    Memory(MemoryRefusal),
    /// The disk has not enough unreserved space.
    Disk {
        requested: DiskDemand,
        disk: NodeDisk,
    },
    /// The replica has objectives, and the speed of the node is unknown.
    SpeedUnknown,
    /// The whole chip would decode too slowly.
    TooSlow {
        objective: f64,
        predicted: Interval,
        basis: Basis,
        binding: Constraint,
    },
    /// The whole chip would prefill too slowly.
    FirstTokenTooLate {
        max_seconds: f64,
        predicted: Interval,
        prompt_tokens: u32,
        basis: Basis,
    },
    /// The unreserved time of the chip is too short.
    Bandwidth {
        share: f64,
        free_share: f64,
        /// Replica that would miss its objective most: name, objective and remaining speed.
        victim: Option<(String, f64, f64)>,
    },
}

impl Refusal {
    /// Returns the resource that is insufficient.
    pub fn constraint(&self) -> Constraint {
        match self {
            Self::Memory(MemoryRefusal::NeverFits { .. }) => Constraint::WorkingSet,
            Self::Memory(MemoryRefusal::Reserved { .. } | MemoryRefusal::NotFreeNow { .. }) => {
                Constraint::Memory
            }
            Self::Disk { .. } => Constraint::Disk,
            Self::SpeedUnknown => Constraint::Policy,
            Self::TooSlow { binding, .. } => *binding,
            Self::FirstTokenTooLate { .. } => Constraint::Compute,
            Self::Bandwidth { .. } => Constraint::Bandwidth,
        }
    }

    /// Returns the CamelCase reason for conditions, events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Memory(refusal) => refusal.reason(),
            Self::Disk { .. } => "InsufficientDisk",
            Self::SpeedUnknown => "NotProbed",
            Self::TooSlow { .. } => "ObjectiveOutOfReach",
            Self::FirstTokenTooLate { .. } => "ObjectiveOutOfReach",
            Self::Bandwidth { .. } => "InsufficientBandwidth",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(refusal) => write!(f, "{refusal}"),
            Self::Disk { requested, disk } => {
                let DiskDemand { prefixes, download } = *requested;
                match (prefixes > Bytes::ZERO, download > Bytes::ZERO) {
                    (true, true) => write!(
                        f,
                        "{download} of the model are to be downloaded, spec.serving.kvCache.diskSize is {prefixes}"
                    )?,
                    (true, false) => write!(f, "spec.serving.kvCache.diskSize is {prefixes}")?,
                    (false, _) => write!(f, "{download} of the model are to be downloaded")?,
                }
                write!(
                    f,
                    ", and {} of the {} that replicas may store on the node's disk are unreserved",
                    disk.free, disk.limit
                )
            }
            Self::SpeedUnknown => f.write_str(
                "it has objectives, and the node's speed is not known yet: its probe has not finished",
            ),
            Self::TooSlow {
                objective,
                predicted,
                basis,
                binding,
            } => write!(
                f,
                "spec.objectives.decodeTokensPerSecond is {objective}, and the whole chip would decode {:.1} tokens/s \
                 per stream (10th percentile; median {:.1}, {}, bound by {})",
                predicted.p10,
                predicted.p50,
                basis.as_str(),
                binding.as_str()
            ),
            Self::FirstTokenTooLate {
                max_seconds,
                predicted,
                prompt_tokens,
                basis,
            } => write!(
                f,
                "spec.objectives.timeToFirstToken.max is {max_seconds} s, and a prompt of {prompt_tokens} tokens would \
                 take {:.2} s (90th percentile; median {:.2} s, {})",
                predicted.p90,
                predicted.p50,
                basis.as_str()
            ),
            Self::Bandwidth {
                share,
                free_share,
                victim,
            } => {
                write!(
                    f,
                    "it needs {} of the chip's time for its objectives, and {} are unreserved",
                    percent(*share),
                    percent(*free_share)
                )?;
                if let Some((replica, objective, left)) = victim {
                    write!(
                        f,
                        ": {replica} would drop to {left:.1} tokens/s, below its objective of {objective} tokens/s"
                    )?;
                }
                Ok(())
            }
        }
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
