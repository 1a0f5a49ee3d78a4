//! Faults: kind, start and duration, listed in the scenario or drawn from the seed. Faults are
//! values, so that a failing run can be reduced by removing faults.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::scenario::duration_text;

/// Minimum duration of a leader's pause. During a shorter one, the Lease does not expire.
pub(crate) const MIN_LEADER_PAUSE: Duration = Duration::from_secs(20);

/// Fault with its start and duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultSpec {
    #[serde(with = "duration_text")]
    pub at: Duration,
    /// Duration of the fault. Momentary faults, such as a worker crash, ignore it.
    #[serde(default = "default_length", rename = "for", with = "duration_text")]
    pub lasts: Duration,
    #[serde(flatten)]
    pub what: Fault,
}

fn default_length() -> Duration {
    Duration::from_secs(60)
}

/// Kind of a fault, and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Fault {
    /// The machine loses power. Agent and workers end; files remain.
    Crash { node: String },
    /// The agent's process is stopped. Workers continue.
    AgentRestart { node: String },
    /// A worker process of the node crashes.
    WorkerCrash { node: String },
    /// The agent cannot reach the API server; the gateway reaches the agent.
    Cut { node: String },
    /// The machine is disconnected from the network.
    Isolate { node: String },
    /// Weights are read slower, by this factor.
    SlowDisk { node: String, factor: f64 },
    /// The chip is slower because of heat, by this factor.
    Thermal { node: String, factor: f64 },
    /// Other programs use this share of the machine's memory.
    MemoryTaken { node: String, share: f64 },
    /// The Mac runs on battery.
    OnBattery { node: String },
    /// The Mac's lid is closed.
    LidClosed { node: String },
    /// A user works at the Mac.
    UserPresent { node: String },
    /// The workers are killed, and this share of memory stays wired until the machine restarts.
    WiredLeak { node: String, share: f64 },
    /// The kernel panics in the GPU drivers: the machine restarts, and a panic report remains.
    KernelPanic { node: String },
    /// The wall clock is this many seconds ahead.
    ClockSkew { node: String, seconds: i64 },
    /// The controller receives no watch events.
    StaleController {},
    /// The gateway receives no watch events.
    StaleGateway {},
    /// The controller lists all objects again, as after an expired watch.
    Relist {},
    /// No controller runs. The next one lists all objects.
    ControllerRestart {},
    /// This share of all writes is lost: the request or the response.
    LostWrites { share: f64 },
    /// This share of watch events is repeated after newer events.
    RepeatedEvents { share: f64 },
    /// This share of watch events arrives after later ones.
    ReorderedEvents { share: f64 },
    /// The API server's process crashes. The last writes may be lost if no client has received
    /// them.
    StoreCrash {},
    /// The leader is paused until another one leads, at least for 20 s, and then resumes.
    PausedLeader {},
    /// Every message takes longer, by this factor.
    SlowNetwork { factor: f64 },
    /// A user deletes the FleetNode. A running agent registers it again.
    DeleteNode { node: String },
}

impl FaultSpec {
    pub fn node(&self) -> Option<&str> {
        match &self.what {
            Fault::Crash { node }
            | Fault::AgentRestart { node }
            | Fault::WorkerCrash { node }
            | Fault::Cut { node }
            | Fault::Isolate { node }
            | Fault::SlowDisk { node, .. }
            | Fault::Thermal { node, .. }
            | Fault::MemoryTaken { node, .. }
            | Fault::OnBattery { node }
            | Fault::LidClosed { node }
            | Fault::UserPresent { node }
            | Fault::WiredLeak { node, .. }
            | Fault::KernelPanic { node }
            | Fault::ClockSkew { node, .. }
            | Fault::DeleteNode { node } => Some(node),
            Fault::StaleController {}
            | Fault::StaleGateway {}
            | Fault::Relist {}
            | Fault::ControllerRestart {}
            | Fault::LostWrites { .. }
            | Fault::RepeatedEvents { .. }
            | Fault::ReorderedEvents { .. }
            | Fault::StoreCrash {}
            | Fault::PausedLeader {}
            | Fault::SlowNetwork { .. } => None,
        }
    }
}

impl Fault {
    /// Returns true if the strength of the fault is a share.
    pub(crate) fn has_share(&self) -> bool {
        matches!(
            self,
            Self::MemoryTaken { .. }
                | Self::WiredLeak { .. }
                | Self::LostWrites { .. }
                | Self::RepeatedEvents { .. }
                | Self::ReorderedEvents { .. }
        )
    }

    /// Returns the fault's name in a scenario if it cannot be injected into simulated machines with
    /// a real control plane.
    pub(crate) fn only_modelled(&self) -> Option<&'static str> {
        match self {
            Self::ClockSkew { .. } => Some("clockSkew"),
            Self::StaleController {} => Some("staleController"),
            Self::StaleGateway {} => Some("staleGateway"),
            Self::Relist {} => Some("relist"),
            Self::ControllerRestart {} => Some("controllerRestart"),
            Self::LostWrites { .. } => Some("lostWrites"),
            Self::RepeatedEvents { .. } => Some("repeatedEvents"),
            Self::ReorderedEvents { .. } => Some("reorderedEvents"),
            Self::StoreCrash {} => Some("storeCrash"),
            Self::PausedLeader {} => Some("pausedLeader"),
            Self::SlowNetwork { .. } => Some("slowNetwork"),
            Self::Crash { .. }
            | Self::AgentRestart { .. }
            | Self::WorkerCrash { .. }
            | Self::Cut { .. }
            | Self::Isolate { .. }
            | Self::SlowDisk { .. }
            | Self::Thermal { .. }
            | Self::MemoryTaken { .. }
            | Self::OnBattery { .. }
            | Self::LidClosed { .. }
            | Self::UserPresent { .. }
            | Self::WiredLeak { .. }
            | Self::KernelPanic { .. }
            | Self::DeleteNode { .. } => None,
        }
    }

    /// Returns the fault's name in a scenario if the simulation does not model it.
    pub(crate) fn only_injectable(&self) -> Option<&'static str> {
        match self {
            Self::WiredLeak { .. } => Some("wiredLeak"),
            Self::KernelPanic { .. } => Some("kernelPanic"),
            Self::Crash { .. }
            | Self::AgentRestart { .. }
            | Self::WorkerCrash { .. }
            | Self::Cut { .. }
            | Self::Isolate { .. }
            | Self::SlowDisk { .. }
            | Self::Thermal { .. }
            | Self::MemoryTaken { .. }
            | Self::OnBattery { .. }
            | Self::LidClosed { .. }
            | Self::UserPresent { .. }
            | Self::ClockSkew { .. }
            | Self::StaleController {}
            | Self::StaleGateway {}
            | Self::Relist {}
            | Self::ControllerRestart {}
            | Self::LostWrites { .. }
            | Self::RepeatedEvents { .. }
            | Self::ReorderedEvents { .. }
            | Self::StoreCrash {}
            | Self::PausedLeader {}
            | Self::SlowNetwork { .. }
            | Self::DeleteNode { .. } => None,
        }
    }
}

impl FaultSpec {
    /// Returns true if the faults have the same kind and node.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.what) == std::mem::discriminant(&other.what)
            && self.node() == other.node()
    }

    /// Returns the factor or share; 1 for faults without one.
    pub fn strength(&self) -> f64 {
        match self.what {
            Fault::SlowDisk { factor, .. }
            | Fault::Thermal { factor, .. }
            | Fault::SlowNetwork { factor } => factor,
            Fault::MemoryTaken { share, .. }
            | Fault::WiredLeak { share, .. }
            | Fault::LostWrites { share }
            | Fault::RepeatedEvents { share }
            | Fault::ReorderedEvents { share } => share,
            Fault::Crash { .. }
            | Fault::AgentRestart { .. }
            | Fault::WorkerCrash { .. }
            | Fault::Cut { .. }
            | Fault::Isolate { .. }
            | Fault::OnBattery { .. }
            | Fault::LidClosed { .. }
            | Fault::UserPresent { .. }
            | Fault::KernelPanic { .. }
            | Fault::ClockSkew { .. }
            | Fault::StaleController {}
            | Fault::StaleGateway {}
            | Fault::Relist {}
            | Fault::ControllerRestart {}
            | Fault::StoreCrash {}
            | Fault::PausedLeader {}
            | Fault::DeleteNode { .. } => 1.0,
        }
    }
}

/// Slowdown of a Mac by heat over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ThermalTrace {
    pub node: String,
    #[serde(default, with = "duration_text")]
    pub from: Duration,
    /// Length of a step.
    #[serde(with = "duration_text")]
    pub every: Duration,
    /// Slowdown of each step.
    pub factors: Vec<f64>,
}

impl ThermalTrace {
    /// Returns a fault for each step with a slowdown.
    pub(crate) fn faults(&self) -> impl Iterator<Item = FaultSpec> {
        let steps = self.factors.iter().zip(0_u32..);
        steps
            .filter(|(factor, _)| **factor > 1.0)
            .map(|(factor, step)| FaultSpec {
                at: self.from + self.every * step,
                lasts: self.every,
                what: Fault::Thermal {
                    node: self.node.clone(),
                    factor: *factor,
                },
            })
    }
}

/// Faults drawn from the seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomFaults {
    /// Mean time between the starts of two faults.
    #[serde(with = "duration_text")]
    pub every: Duration,
    /// End of all faults. The rest of the run is time for recovery.
    #[serde(with = "duration_text")]
    pub until: Duration,
    /// Maximum duration of a fault.
    #[serde(default = "default_longest", with = "duration_text")]
    pub longest: Duration,
}

fn default_longest() -> Duration {
    Duration::from_secs(120)
}

impl RandomFaults {
    /// Draws the faults of a seed on these nodes, in the order of their starts.
    pub(crate) fn draw(&self, seed: u64, nodes: &[String]) -> Vec<FaultSpec> {
        let mut random = Random::stream(seed, "faults");
        let mut faults = Vec::new();
        let mut at = 0.0;
        loop {
            at += random.exponential(self.every.as_secs_f64());
            // Printed faults have a resolution of milliseconds.
            let begins = Duration::from_millis((at * 1e3) as u64);
            if begins >= self.until || nodes.is_empty() {
                return faults;
            }
            let longest = self.longest.min(self.until - begins);
            let lasts = Duration::from_millis((random.unit() * longest.as_millis() as f64) as u64 + 1);
            let node = nodes[random.below(nodes.len())].clone();
            faults.push(FaultSpec {
                at: begins,
                lasts,
                what: random_fault(&mut random, node),
            });
        }
    }
}

fn random_fault(random: &mut Random, node: String) -> Fault {
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    match random.below(22) {
        0 => Fault::Crash { node },
        1 => Fault::AgentRestart { node },
        2 => Fault::WorkerCrash { node },
        3 => Fault::Cut { node },
        4 => Fault::Isolate { node },
        5 => Fault::SlowDisk {
            node,
            factor: tenth(1.0 + 9.0 * random.unit()),
        },
        6 => Fault::Thermal {
            node,
            factor: tenth(1.0 + 2.0 * random.unit()),
        },
        7 => Fault::MemoryTaken {
            node,
            share: tenth(0.1 + 0.7 * random.unit()),
        },
        8 => Fault::ClockSkew {
            node,
            seconds: random.below(1200) as i64 - 600,
        },
        9 => Fault::StaleController {},
        10 => Fault::StaleGateway {},
        11 => Fault::Relist {},
        12 => Fault::ControllerRestart {},
        13 => Fault::LostWrites {
            share: tenth(0.1 + 0.4 * random.unit()),
        },
        14 => Fault::SlowNetwork {
            factor: tenth(10.0 + 290.0 * random.unit()),
        },
        15 => Fault::OnBattery { node },
        16 => Fault::RepeatedEvents {
            share: tenth(0.1 + 0.9 * random.unit()),
        },
        17 => Fault::ReorderedEvents {
            share: tenth(0.1 + 0.9 * random.unit()),
        },
        18 => Fault::StoreCrash {},
        19 | 20 => Fault::PausedLeader {},
        _ => Fault::DeleteNode { node },
    }
}
