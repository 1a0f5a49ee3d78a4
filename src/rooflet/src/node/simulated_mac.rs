//! One simulated Mac: the lives of its agent, and what the scenario's faults do to it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::cable::Cable;
use rooflet_agent::{Agent, AgentConfig, StartAgentError};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_host::{FakeHost, Host, PanicReport};
use rooflet_process::find_by_argument;
use rooflet_simulation::{Fault, FaultSpec, idle, power};

/// The verb that workers of simulated machines are started with.
pub(super) const WORKER: &str = "simulated-worker";
/// How long an agent may take to stop beside its workers' grace.
const AGENT_ENDS: Duration = Duration::from_secs(4);

/// What slows a simulated chip and its disk down at the moment: what workers read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// The chip is so many times slower.
    pub(crate) chip: f64,
    /// Weights are read so many times slower.
    pub(crate) disk: f64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { chip: 1.0, disk: 1.0 }
    }
}

impl Conditions {
    /// Where nothing can be read nothing is slower.
    pub(crate) async fn read(file: &Utf8Path) -> Self {
        let text = tokio::fs::read(file).await.unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// The two cables of a machine whose network is to fail.
#[derive(Debug)]
pub(super) struct Cables {
    /// To the API server.
    pub(super) up: Cable,
    /// From the gateway.
    pub(super) down: Cable,
}

/// See the module.
pub(super) struct SimulatedMac {
    pub(super) config: AgentConfig,
    pub(super) host: FakeHost,
    pub(super) memory: Bytes,
    pub(super) client: Client,
    /// Not over the machine's own cable.
    pub(super) admin: Client,
    /// Where the agent listens.
    pub(super) address: SocketAddr,
    pub(super) cables: Option<Cables>,
    pub(super) conditions: Utf8PathBuf,
    pub(super) faults: Vec<FaultSpec>,
}

impl SimulatedMac {
    /// Begins to live until `tasks` stop.
    pub(super) fn begin(self, listener: TcpListener, tasks: &Tasks) -> Result<(), StartAgentError> {
        let agent = Agent::new(self.config.clone(), Host::Fake(self.host.clone()), Clock::System)?;
        let mut lives = Lives {
            life: None,
            active: Vec::new(),
            mac: self,
        };
        lives.begin(agent, listener);
        tasks.spawn_detached(lives.run(tasks.stop_token()));
        Ok(())
    }
}

/// One life of the agent after the other.
struct Lives {
    mac: SimulatedMac,
    /// Faults that are on, by their place in the machine's.
    active: Vec<usize>,
    life: Option<Tasks>,
}

impl Lives {
    /// The faults begin and end at their time, counted from now.
    async fn run(mut self, stop: CancellationToken) {
        let start = Clock::System.instant();
        for (at, index, begins) in timeline(&self.mac.faults) {
            let wait = at.saturating_sub(Clock::System.instant() - start);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
            match begins {
                true => self.active.push(index),
                false => self.active.retain(|one| *one != index),
            }
            let fault = self.mac.faults[index].clone();
            info!(node = self.mac.config.node_name, begins, fault = ?fault.what, "simulated");
            if let Err(err) = self.apply(&fault, begins).await {
                error!(node = self.mac.config.node_name, error = %Chain(&err), "the simulated Mac stays as it is");
            }
        }
        stop.cancelled().await;
        self.end().await;
        if self.mac.config.keep_workers {
            self.stop_workers();
        }
    }

    fn begin(&mut self, agent: Agent, listener: TcpListener) {
        let (life, client, node) = (
            Tasks::new(),
            self.mac.client.clone(),
            self.mac.config.node_name.clone(),
        );
        let stop = life.stop_token();
        life.spawn_detached(async move {
            if let Err(err) = agent.run(Some(client), listener, stop).await {
                error!(node, why = err.to_string(), "a simulated agent has ended");
            }
        });
        self.life = Some(life);
    }

    /// The agent's process ends. Its workers live on where it was told to leave them.
    async fn end(&mut self) {
        if let Some(life) = self.life.take() {
            life.cancel();
            if let Err(why) = life.join(self.mac.config.grace + AGENT_ENDS).await {
                warn!(
                    node = self.mac.config.node_name,
                    why, "a simulated agent did not stop cleanly"
                );
            }
        }
    }

    /// Of the faults of one kind that are on, the strongest shows.
    fn strongest(&self, is_kind: fn(&Fault) -> bool, otherwise: f64) -> f64 {
        let active = self.active.iter().map(|index| &self.mac.faults[*index]);
        let strengths = active
            .filter(|fault| is_kind(&fault.what))
            .map(FaultSpec::strength);
        strengths.fold(otherwise, f64::max)
    }

    fn is_on(&self, is_kind: fn(&Fault) -> bool) -> bool {
        self.active
            .iter()
            .any(|index| is_kind(&self.mac.faults[*index].what))
    }

    async fn apply(&mut self, fault: &FaultSpec, begins: bool) -> io::Result<()> {
        match &fault.what {
            Fault::Crash { .. } | Fault::AgentRestart { .. } | Fault::KernelPanic { .. } => {
                if begins {
                    self.end().await;
                    if !matches!(fault.what, Fault::AgentRestart { .. }) {
                        self.kill_workers(usize::MAX);
                        let panics = matches!(fault.what, Fault::KernelPanic { .. });
                        self.mac.host.restart(panics.then(|| self.panic_report()));
                    }
                }
                let is_down = self.is_on(|fault| {
                    matches!(
                        fault,
                        Fault::Crash { .. } | Fault::AgentRestart { .. } | Fault::KernelPanic { .. }
                    )
                });
                if !is_down && self.life.is_none() {
                    let listener = TcpListener::bind(self.mac.address).await?;
                    let host = Host::Fake(self.mac.host.clone());
                    let agent = Agent::new(self.mac.config.clone(), host, Clock::System);
                    self.begin(agent.map_err(io::Error::other)?, listener);
                }
            }
            Fault::WorkerCrash { .. } => {
                if begins {
                    self.kill_workers(1);
                }
            }
            Fault::Cut { .. } | Fault::Isolate { .. } => {
                let is_isolated = self.is_on(|fault| matches!(fault, Fault::Isolate { .. }));
                let is_cut = self.is_on(|fault| matches!(fault, Fault::Cut { .. }));
                if let Some(cables) = &self.mac.cables {
                    cables.up.plug(!is_cut && !is_isolated);
                    cables.down.plug(!is_isolated);
                }
            }
            Fault::SlowDisk { .. } | Fault::Thermal { .. } | Fault::OnBattery { .. } => {
                let conditions = Conditions {
                    chip: self.strongest(|fault| matches!(fault, Fault::Thermal { .. }), 1.0),
                    disk: self.strongest(|fault| matches!(fault, Fault::SlowDisk { .. }), 1.0),
                };
                let on_battery = self.is_on(|fault| matches!(fault, Fault::OnBattery { .. }));
                self.mac.host.set_power(power(conditions.chip, on_battery));
                tokio::fs::write(&self.mac.conditions, serde_json::to_vec(&conditions)?).await?;
            }
            Fault::LidClosed { .. } => {
                let closed = self.is_on(|fault| matches!(fault, Fault::LidClosed { .. }));
                self.mac.host.set_lid_closed(closed);
            }
            Fault::UserPresent { .. } => {
                let present = self.is_on(|fault| matches!(fault, Fault::UserPresent { .. }));
                self.mac.host.set_idle(idle(present));
            }
            Fault::WiredLeak { share, .. } => {
                if begins {
                    self.mac.host.strand(self.share_of_memory(*share));
                    // Drivers keep what processes had that were killed.
                    self.kill_workers(usize::MAX);
                }
            }
            Fault::MemoryTaken { .. } => {
                let share = self.strongest(|fault| matches!(fault, Fault::MemoryTaken { .. }), 0.0);
                self.mac
                    .host
                    .set_available(self.mac.memory - self.share_of_memory(share));
            }
            Fault::DeleteNode { node } => {
                if begins {
                    let nodes = Api::<FleetNode>::all(self.mac.admin.clone());
                    let deleted = nodes.delete(node, &DeleteParams::default()).await;
                    deleted.map_err(io::Error::other)?;
                }
            }
            // Refused before anything was started: see `Scenario::check_playable`.
            Fault::ClockSkew { .. }
            | Fault::StaleController {}
            | Fault::StaleGateway {}
            | Fault::Relist {}
            | Fault::ControllerRestart {}
            | Fault::LostWrites { .. }
            | Fault::RepeatedEvents { .. }
            | Fault::ReorderedEvents { .. }
            | Fault::StoreCrash {}
            | Fault::PausedLeader {}
            | Fault::SlowNetwork { .. } => {}
        }
        Ok(())
    }

    fn share_of_memory(&self, share: f64) -> Bytes {
        Bytes((self.mac.memory.0 as f64 * share) as u64)
    }

    /// In the words of published ones.
    fn panic_report(&self) -> PanicReport {
        PanicReport {
            at: Clock::System.now(),
            os_build: self.mac.host.os_build(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            by_gpu: true,
        }
    }

    /// As the loss of power ends them, or a crash.
    fn kill_workers(&self, most: usize) {
        for worker in find_by_argument(WORKER, self.mac.conditions.as_str())
            .iter()
            .take(most)
        {
            if let Err(err) = worker.kill_group() {
                warn!(pid = worker.pid(), error = %Chain(&err), "a simulated worker cannot be killed");
            }
        }
    }

    /// Those that the last agent left.
    fn stop_workers(&self) {
        for worker in find_by_argument(WORKER, self.mac.conditions.as_str()) {
            // It has a grace of its own.
            if let Err(err) = worker.terminate() {
                warn!(pid = worker.pid(), error = %Chain(&err), "a simulated worker cannot be stopped");
            }
        }
    }
}

/// When each fault begins and ends, in order.
fn timeline(faults: &[FaultSpec]) -> Vec<(Duration, usize, bool)> {
    let moments = faults.iter().enumerate();
    let mut moments: Vec<_> = moments
        .flat_map(|(index, fault)| [(fault.at, index, true), (fault.at + fault.lasts, index, false)])
        .collect();
    // Of two at the same time the one that ends goes first: the steps of a trace follow one another.
    moments.sort_by_key(|(at, index, begins)| (*at, *begins, *index));
    moments
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn steps_of_a_trace_follow_one_another() {
        let hot = |at: u64, factor| FaultSpec {
            at: Duration::from_secs(at),
            lasts: Duration::from_secs(10),
            what: Fault::Thermal {
                node: "mini-1".to_owned(),
                factor,
            },
        };
        let moments = timeline(&[hot(0, 2.0), hot(10, 3.0)]);
        let seconds = |at| Duration::from_secs(at);
        let expect = [(0, 0, true), (10, 0, false), (10, 1, true), (20, 1, false)];
        assert_eq!(
            moments,
            expect.map(|(at, index, begins)| (seconds(at), index, begins))
        );
    }

    #[tokio::test]
    async fn nothing_is_slower_where_nothing_is_written() {
        let directory = TempDir::new();
        let file = directory.path().join("conditions.json");
        assert_eq!(Conditions::read(&file).await, Conditions::default());
        let hot = Conditions { chip: 1.5, disk: 1.0 };
        std::fs::write(&file, serde_json::to_vec(&hot).unwrap()).unwrap();
        assert_eq!(Conditions::read(&file).await, hot);
    }
}
