//! Score of the feasible nodes. Scores are integers, so that equal nodes compare as equal.

use std::cmp::Reverse;
use std::fmt;

use super::filter::soft_taint_weight;
use crate::fleet::machine::Fit;
use crate::fleet::node::{Copies, Load, NodeState};
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::{AntiAffinity, PlacementStrategy};
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::RUNTIME_OVERHEAD;

/// Score of a node. Lower is better; fields compare from top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlacementScore {
    /// Replicas beyond maxSkew in the node's domain.
    pub(crate) excess: u32,
    /// Weighted number of untolerated soft taints.
    pub(crate) soft_taints: u32,
    /// Replicas of the same deployment on the node, so that one node failure does not affect all of
    /// them. Replicas of the same revision come first, because a rollout removes the others.
    pub(crate) copies: Copies,
    pub(crate) terms: Terms,
    /// Index of the node; equal nodes are chosen in order of name.
    pub(crate) at: usize,
}

/// Terms of the strategy, most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Terms {
    SloSlack {
        /// Slack that all replicas on the node lose, the new one included, in percent. Slack is the
        /// share of its time that a replica does not need for its objective, up to `ENOUGH_SLACK`.
        /// Whole percents, because predictions are not more precise.
        slack_lost: i64,
        loading: Loading,
        /// Level of the node's free chip time and memory. Nodes with less come first, so that the
        /// fastest nodes stay free for models that need them.
        room: i64,
        memory_left: Bytes,
    },
    /// Strategy SloSlack for a replica without objectives.
    BestEffort {
        /// Level of `SharedSpeed::gain`: nodes without such replicas first.
        gain: Reverse<i64>,
        slack_lost: i64,
        /// Level of `SharedSpeed::own`.
        own: Reverse<i64>,
        loading: Loading,
        memory_left: Bytes,
        /// `SharedSpeed::own` in tokens per 1,000 seconds; 0 if unknown.
        tokens: i64,
    },
    BinPack {
        /// True if the node has no other replicas.
        unused: bool,
        /// Remaining memory or chip time in percent, whichever is less.
        left: i64,
        loading: Loading,
        memory_left: Bytes,
    },
    Spread {
        /// Used memory or chip time in percent, whichever is more.
        used: i64,
        replicas: usize,
        loading: Loading,
    },
    Fastest {
        /// Microseconds per token of one stream in the remaining chip time; `i64::MAX` if unknown.
        token_micros: i64,
        slack_lost: i64,
        loading: Loading,
        memory_left: Bytes,
    },
}

/// Time until the weights are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loading {
    /// Another replica on the node has the model in memory.
    Loaded,
    Read {
        /// Upper bound in seconds, rounded up to a power of two, so that small differences between
        /// disks do not outweigh the following terms.
        within_seconds: u32,
        /// True if the bound uses published figures because disk or network were not measured.
        nominal: bool,
        /// True if the weights must be downloaded first.
        download: bool,
    },
    /// Only the agent can determine the size of the weights.
    Unknown,
}

impl PlacementScore {
    pub(crate) fn new(request: &ReplicaRequest, at: usize, node: &NodeState, fit: &Fit, load: &Load) -> Self {
        let copies = match request.anti_affinity() {
            AntiAffinity::Preferred | AntiAffinity::Required => node.copies_of(request),
            AntiAffinity::Ignored => Copies::default(),
        };
        Self {
            excess: 0,
            soft_taints: soft_taint_weight(request, node),
            copies,
            terms: Terms::new(request, node, fit, load),
            at,
        }
    }

    /// Returns the terms that are more important than those of the strategy.
    pub(super) fn precedence(&self) -> (u32, u32, Copies) {
        (self.excess, self.soft_taints, self.copies)
    }

    /// Returns the score as text.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (count, what) in [
            (self.excess, "beyond maxSkew"),
            (self.soft_taints, "untolerated PreferNoSchedule taints"),
            (self.copies.same, "replicas of the same deployment"),
            (self.copies.others, "replicas of another revision"),
        ] {
            if count > 0 {
                text.push_str(&format!("{count} {what}, "));
            }
        }
        format!("{text}{}", self.terms)
    }
}

impl Terms {
    fn new(request: &ReplicaRequest, node: &NodeState, fit: &Fit, load: &Load) -> Self {
        let requirements = fit.requirements.as_ref();
        let needed = requirements.map_or(RUNTIME_OVERHEAD, |requirements| requirements.reservation.total());
        let memory_left = load.free(node.allocatable) - needed;
        let share = requirements.map_or(0.0, |requirements| requirements.share);
        let part_left = || {
            let memory = memory_left.0 as f64 / node.allocatable.0.max(1) as f64;
            (memory, (load.free_share() - share).max(0.0))
        };
        let rate = || {
            let speed = requirements.and_then(|requirements| requirements.speed);
            speed.map_or(UNKNOWN_RATE, |speed| speed.decode.p50)
        };
        let has_objectives = request.has_objectives();
        let slack_lost = || percent(load.pressure_with(share, has_objectives) - load.pressure);
        let loading = Loading::new(request, node, fit);
        match request.placement.strategy {
            PlacementStrategy::SloSlack if !has_objectives => {
                let known = requirements.and_then(|requirements| requirements.speed);
                let speed = load.with_best_effort(known.map_or(UNKNOWN_RATE, |speed| speed.decode.p50));
                Self::BestEffort {
                    gain: Reverse(gain_level(speed.gain)),
                    slack_lost: slack_lost(),
                    own: Reverse(speed_level(speed.own)),
                    loading,
                    memory_left,
                    tokens: known.map_or(0, |_| (speed.own * 1e3).round() as i64),
                }
            }
            PlacementStrategy::SloSlack => Self::SloSlack {
                slack_lost: slack_lost(),
                room: room_level(load.free_share() * rate(), load.free(node.allocatable)),
                loading,
                memory_left,
            },
            PlacementStrategy::BinPack => {
                let (memory, time) = part_left();
                Self::BinPack {
                    unused: load.is_empty(),
                    left: percent(memory.min(time)),
                    loading,
                    memory_left,
                }
            }
            PlacementStrategy::Spread => {
                let (memory, time) = part_left();
                Self::Spread {
                    used: percent(1.0 - memory.min(time)),
                    replicas: node.residents.len(),
                    loading,
                }
            }
            PlacementStrategy::Fastest => {
                let rate = requirements
                    .and_then(|requirements| requirements.speed)
                    .map(|speed| speed.decode.p50 * load.left(has_objectives))
                    .filter(|rate| *rate > 0.0);
                Self::Fastest {
                    token_micros: rate.map_or(i64::MAX, |rate| (1e6 / rate).round() as i64),
                    slack_lost: slack_lost(),
                    loading,
                    memory_left,
                }
            }
        }
    }
}

impl Loading {
    fn new(request: &ReplicaRequest, node: &NodeState, fit: &Fit) -> Self {
        let Some(arrival) = node.load_time(request, fit) else {
            return Self::Loaded;
        };
        match fit.requirements {
            Some(_) => Self::Read {
                within_seconds: (arrival.seconds().ceil() as u32)
                    .clamp(1, 1 << 31)
                    .next_power_of_two(),
                nominal: arrival.is_nominal(),
                download: arrival.download.is_some(),
            },
            None => Self::Unknown,
        }
    }
}

/// Assumed decode speed on nodes whose speed is unknown, in tokens per second: slower than every
/// known node.
const UNKNOWN_RATE: f64 = 0.001;

/// Ratio of two adjacent levels of speed. Speeds on one level count as equal, because predictions
/// are not more precise.
const LEVEL: f64 = 1.05;

/// Gains below this are 0, in tokens per second.
const MIN_GAIN: f64 = 0.05;

/// Returns the logarithmic level of a speed in tokens per second.
fn speed_level(speed: f64) -> i64 {
    match speed > 0.0 {
        true => (speed.ln() / LEVEL.ln()).round() as i64,
        false => i64::MIN,
    }
}

/// Returns the level of a node's free resources: the binary logarithm of the predicted speed of the
/// new replica in the free chip time, times the free memory.
fn room_level(speed: f64, memory: Bytes) -> i64 {
    let room = speed.max(UNKNOWN_RATE) * memory.0.max(1) as f64;
    room.log2().round() as i64
}

/// Returns the logarithmic level of a gain or loss in tokens per second, symmetric around 0.
fn gain_level(gain: f64) -> i64 {
    let level = (gain.abs() / MIN_GAIN).ln().max(0.0) / LEVEL.ln();
    level.copysign(gain).round() as i64
}

fn percent(part: f64) -> i64 {
    (part * 100.0).round() as i64
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SloSlack {
                slack_lost,
                loading,
                memory_left,
                ..
            } => {
                write!(f, "{slack_lost} % slack lost, {loading}, {memory_left} left free")
            }
            Self::BestEffort {
                tokens,
                slack_lost,
                loading,
                memory_left,
                ..
            } => {
                match *tokens {
                    0 => f.write_str("speed unknown")?,
                    tokens => write!(f, "{:.1} tokens/s", tokens as f64 / 1e3)?,
                }
                write!(
                    f,
                    ", {slack_lost} % slack lost, {loading}, {memory_left} left free"
                )
            }
            Self::BinPack {
                unused,
                left,
                loading,
                memory_left,
            } => {
                let used = if *unused { "unused" } else { "used" };
                write!(f, "{used}, {left} % left, {loading}, {memory_left} left free")
            }
            Self::Spread {
                used,
                replicas,
                loading,
            } => write!(f, "{used} % used, {replicas} replicas, {loading}"),
            Self::Fastest {
                token_micros,
                slack_lost,
                loading,
                memory_left,
            } => {
                match *token_micros {
                    i64::MAX => f.write_str("speed unknown")?,
                    micros => write!(f, "{:.1} tokens/s", 1e6 / micros.max(1) as f64)?,
                }
                write!(
                    f,
                    ", {slack_lost} % slack lost, {loading}, {memory_left} left free"
                )
            }
        }
    }
}

impl fmt::Display for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loaded => f.write_str("model loaded"),
            Self::Read {
                within_seconds,
                nominal,
                download,
            } => {
                let (how, nominal) = match (download, nominal) {
                    (true, true) => ("downloaded and read", " by a nominal download or disk speed"),
                    (true, false) => ("downloaded and read", ""),
                    (false, true) => ("read", " by a nominal disk speed"),
                    (false, false) => ("read", ""),
                };
                write!(f, "weights {how} within {within_seconds} s{nominal}")
            }
            Self::Unknown => f.write_str("time to load unknown"),
        }
    }
}
