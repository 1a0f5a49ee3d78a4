//! What goes wrong, when and for how long: written down in the scenario, or drawn from the seed. A
//! value, so that a failing run can be shrunk by leaving faults out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::scenario::duration_text;

/// Shorter pauses end nobody's Lease, and nobody notices them.
pub(crate) const PAUSED_LEAST: Duration = Duration::from_secs(20);

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultSpec {
    #[serde(with = "duration_text")]
    pub at: Duration,
    /// Until it is over. What has no end of its own, such as a crashed worker, ignores it.
    #[serde(default = "default_length", rename = "for", with = "duration_text")]
    pub lasts: Duration,
    #[serde(flatten)]
    pub what: Fault,
}

fn default_length() -> Duration {
    Duration::from_secs(60)
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Fault {
    /// The machine loses power; agent and workers are gone, what is on disk stays.
    Crash { node: String },
    /// The agent's process is away. Workers live on.
    AgentRestart { node: String },
    /// One worker process of the node dies.
    WorkerCrash { node: String },
    /// The agent cannot reach the API server; the gateway reaches the agent.
    Cut { node: String },
    /// Nobody reaches the machine, and it reaches nobody.
    Isolate { node: String },
    /// Weights are read so many times slower.
    SlowDisk { node: String, factor: f64 },
    /// The chip is so many times slower: heat.
    Thermal { node: String, factor: f64 },
    /// Its owner's programs take this share of its memory.
    MemoryTaken { node: String, share: f64 },
    /// It is unplugged.
    OnBattery { node: String },
    /// Its lid is closed.
    LidClosed { node: String },
    /// Somebody is at its keyboard.
    UserPresent { node: String },
    /// Its workers are killed, and this share of its memory stays wired until it is started again.
    WiredLeak { node: String, share: f64 },
    /// Its kernel panics in the GPU's drivers: power is lost, and a report stays.
    KernelPanic { node: String },
    /// Its wall clock is so many seconds ahead.
    ClockSkew { node: String, seconds: i64 },
    /// Nothing new reaches the controller.
    StaleController {},
    /// Nothing new reaches the gateway.
    StaleGateway {},
    /// The controller lists everything anew, as after a watch that was too old.
    Relist {},
    /// No controller runs; the next one knows nothing but what it lists.
    ControllerRestart {},
    /// This share of all writes is lost, on the way there or on the way back.
    LostWrites { share: f64 },
    /// This share of what watches tell is told again later, when newer things have been told.
    RepeatedEvents { share: f64 },
    /// This share of what watches tell is told late, after what came after it.
    ReorderedEvents { share: f64 },
    /// The API server's process is gone. What it wrote last may be lost, as long as nobody was told
    /// of it.
    StoreCrash {},
    /// The leader stands still until another one leads, at least for
    /// [`PAUSED_LEAST`], and then goes on.
    PausedLeader {},
    /// Every message takes so many times longer.
    SlowNetwork { factor: f64 },
    /// Somebody deletes the FleetNode object; a living agent registers again.
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
    /// It is done to a part of something.
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

    /// As a scenario names it, where it is nothing that can be done to a machine beside a real
    /// control plane.
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

    /// As a scenario names it, where it is nothing that the model of an agent knows of.
    pub(crate) fn only_played(&self) -> Option<&'static str> {
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
    /// Of the same kind, on the same node.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.what) == std::mem::discriminant(&other.what)
            && self.node() == other.node()
    }

    /// Its factor or share, where it has one.
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

/// How hot a Mac is over time: so many times slower, step by step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ThermalTrace {
    pub node: String,
    #[serde(default, with = "duration_text")]
    pub from: Duration,
    /// The length of a step.
    #[serde(with = "duration_text")]
    pub every: Duration,
    pub factors: Vec<f64>,
}

impl ThermalTrace {
    /// One fault for each step that is slower than a cool chip.
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
    /// The mean time between two.
    #[serde(with = "duration_text")]
    pub every: Duration,
    /// None begins or lasts later. What is left of the scenario is time to heal.
    #[serde(with = "duration_text")]
    pub until: Duration,
    /// Those that end by themselves last at most so long.
    #[serde(default = "default_longest", with = "duration_text")]
    pub longest: Duration,
}

fn default_longest() -> Duration {
    Duration::from_secs(120)
}

impl RandomFaults {
    /// The faults of one seed on these nodes, by the time at which they begin.
    pub(crate) fn draw(&self, seed: u64, nodes: &[String]) -> Vec<FaultSpec> {
        let mut random = Random::stream(seed, "faults");
        let mut faults = Vec::new();
        let mut at = 0.0;
        loop {
            at += random.exponential(self.every.as_secs_f64());
            // Whole milliseconds, so that a printed fault is the same one.
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
                what: any(&mut random, node),
            });
        }
    }
}

fn any(random: &mut Random, node: String) -> Fault {
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
