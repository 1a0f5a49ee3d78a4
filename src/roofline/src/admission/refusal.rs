//! Why a node does not take a replica.

use std::fmt;

use crate::disk::{DiskDemand, NodeDisk};
use crate::memory::MemoryRefusal;
use crate::predict::{Basis, Constraint, Interval};
use rooflet_base::units::Bytes;

/// One reason against a replica on a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    Memory(MemoryRefusal),
    /// What it is told to store cannot be promised beside what others are.
    Disk {
        wanted: DiskDemand,
        disk: NodeDisk,
    },
    /// It has objectives, and the node's speed is not known.
    SpeedUnknown,
    /// Not even the whole chip would decode fast enough.
    TooSlow {
        objective: f64,
        predicted: Interval,
        basis: Basis,
        binding: Constraint,
    },
    /// Not even the whole chip would prefill fast enough.
    FirstTokenTooLate {
        max_seconds: f64,
        predicted: Interval,
        prompt_tokens: u32,
        basis: Basis,
    },
    /// The chip could, and its time is promised to others.
    Bandwidth {
        share: f64,
        free_share: f64,
        /// The replica that would fall furthest below its objective: name, objective and what would
        /// be left to it.
        victim: Option<(String, f64, f64)>,
    },
}

impl Refusal {
    /// What would have to be more.
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

    /// A CamelCase word for conditions, events and metrics.
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
            Self::Disk { wanted, disk } => {
                let DiskDemand { prefixes, download } = *wanted;
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
                    ", and {} of the {} that replicas may store on the node's disk are promised to no other",
                    disk.free, disk.limit
                )
            }
            Self::SpeedUnknown => f.write_str(
                "it has objectives, and the node's speed is not known yet: its probe has not ended",
            ),
            Self::TooSlow {
                objective,
                predicted,
                basis,
                binding,
            } => write!(
                f,
                "spec.objectives.decodeTokensPerSecond is {objective}, and the whole chip would give each stream {:.1} \
                 tokens/s (10th percentile; median {:.1}, {}, bound by {})",
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
                    "it needs {} of the chip's time for its objectives, and {} are not promised to other replicas",
                    percent(*share),
                    percent(*free_share)
                )?;
                if let Some((replica, objective, left)) = victim {
                    write!(
                        f,
                        ": {replica} would be left with {left:.1} of its {objective} tokens/s"
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
