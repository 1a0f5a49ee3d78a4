//! Simulated Mac: runs of its agent, and the effects of the scenario's faults.

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

use crate::network_link::NetworkLink;
use rooflet_agent::{Agent, AgentConfig, StartAgentError};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_host::{FakeHost, Host, PanicCause, PanicReport};
use rooflet_process::find_by_argument;
use rooflet_simulation::{Fault, FaultSpec, idle, power};

/// Verb that starts workers of simulated machines.
pub(super) const WORKER: &str = "simulated-worker";
/// Additional time for an agent to stop, beyond the grace period of its workers.
const AGENT_ENDS: Duration = Duration::from_secs(4);

/// Current slowdown of a simulated chip and its disk. Workers read it from a file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// Factor by which the chip is slower.
    pub(crate) chip: f64,
    /// Factor by which loading of weights is slower.
    pub(crate) disk: f64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { chip: 1.0, disk: 1.0 }
    }
}

impl Conditions {
    /// Reads the file. An unreadable file means no slowdown.
    pub(crate) async fn read(file: &Utf8Path) -> Self {
        let text = tokio::fs::read(file).await.unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// Interruptible network connections of a machine.
#[derive(Debug)]
pub(super) struct NetworkLinks {
    /// Connection to the API server.
    pub(super) up: NetworkLink,
    /// Connection from the gateway.
    pub(super) down: NetworkLink,
}

/// Simulated Mac.
pub(super) struct SimulatedMac {
    pub(super) config: AgentConfig,
    pub(super) host: FakeHost,
    pub(super) memory: Bytes,
    pub(super) client: Client,
    /// Client that bypasses the machine's interruptible connection.
    pub(super) admin: Client,
    /// Address of the agent.
    pub(super) address: SocketAddr,
    pub(super) links: Option<NetworkLinks>,
    pub(super) conditions: Utf8PathBuf,
    pub(super) faults: Vec<FaultSpec>,
}

impl SimulatedMac {
    /// Starts the machine, which runs until `tasks` stop.
    pub(super) fn begin(self, listener: TcpListener, tasks: &Tasks) -> Result<(), StartAgentError> {
        let agent = Agent::new(self.config.clone(), Host::Fake(self.host.clone()), Clock::System)?;
        let mut runs = AgentRuns {
            run_tasks: None,
            active: Vec::new(),
            mac: self,
        };
        runs.begin(agent, listener);
        tasks.spawn_detached(runs.run(tasks.stop_token()));
        Ok(())
    }
}

/// Successive runs of the agent.
struct AgentRuns {
    mac: SimulatedMac,
    /// Active faults, as indices into the machine's faults.
    active: Vec<usize>,
    run_tasks: Option<Tasks>,
}

impl AgentRuns {
    /// Applies and ends the faults at their times, relative to now.
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
            info!(node = self.mac.config.node_name, begins, fault = ?fault.what, "simulated fault");
            if let Err(err) = self.apply(&fault, begins).await {
                error!(node = self.mac.config.node_name, error = %Chain(&err), "failed to apply simulated fault");
            }
        }
        stop.cancelled().await;
        self.end().await;
        if self.mac.config.keep_workers {
            self.stop_workers();
        }
    }

    fn begin(&mut self, agent: Agent, listener: TcpListener) {
        let (run_tasks, client, node) = (
            Tasks::new(),
            self.mac.client.clone(),
            self.mac.config.node_name.clone(),
        );
        let stop = run_tasks.stop_token();
        run_tasks.spawn_detached(async move {
            if let Err(err) = agent.run(Some(client), listener, stop).await {
                error!(node, why = err.to_string(), "simulated agent failed");
            }
        });
        self.run_tasks = Some(run_tasks);
    }

    /// Stops the agent. Its workers keep running if this is configured.
    async fn end(&mut self) {
        if let Some(run_tasks) = self.run_tasks.take() {
            run_tasks.cancel();
            if let Err(error) = run_tasks.join(self.mac.config.grace + AGENT_ENDS).await {
                warn!(
                    node = self.mac.config.node_name,
                    %error, "simulated agent did not stop cleanly"
                );
            }
        }
    }

    /// Returns the strongest active fault of a kind.
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
                if !is_down && self.run_tasks.is_none() {
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
                if let Some(links) = &self.mac.links {
                    links.up.set_connected(!is_cut && !is_isolated);
                    links.down.set_connected(!is_isolated);
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
                    // Drivers keep the memory of killed processes.
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
            // `Scenario::check_injectable` rejects these faults before the start.
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

    /// Returns a panic report with the text of published reports.
    fn panic_report(&self) -> PanicReport {
        PanicReport {
            at: Clock::System.now(),
            os_build: self.mac.host.os_build(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            cause: PanicCause::GpuDriver,
            written: None,
        }
    }

    /// Kills workers, like a power loss or a crash.
    fn kill_workers(&self, most: usize) {
        for worker in find_by_argument(WORKER, self.mac.conditions.as_str())
            .iter()
            .take(most)
        {
            if let Err(err) = worker.kill_group() {
                warn!(pid = worker.pid(), error = %Chain(&err), "failed to kill simulated worker");
            }
        }
    }

    /// Stops the workers that the last agent left running.
    fn stop_workers(&self) {
        for worker in find_by_argument(WORKER, self.mac.conditions.as_str()) {
            // The worker has its own grace period.
            if let Err(err) = worker.terminate() {
                warn!(pid = worker.pid(), error = %Chain(&err), "failed to stop simulated worker");
            }
        }
    }
}

/// Returns the start and end of each fault, in order of time.
fn timeline(faults: &[FaultSpec]) -> Vec<(Duration, usize, bool)> {
    let moments = faults.iter().enumerate();
    let mut moments: Vec<_> = moments
        .flat_map(|(index, fault)| [(fault.at, index, true), (fault.at + fault.lasts, index, false)])
        .collect();
    // At equal times, ends come before starts, because the steps of a trace follow one another.
    moments.sort_by_key(|(at, index, begins)| (*at, *begins, *index));
    moments
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn steps_of_a_trace_do_not_overlap() {
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
    async fn missing_conditions_file_means_no_slowdown() {
        let directory = TempDir::new();
        let file = directory.path().join("conditions.json");
        assert_eq!(Conditions::read(&file).await, Conditions::default());
        let hot = Conditions { chip: 1.5, disk: 1.0 };
        std::fs::write(&file, serde_json::to_vec(&hot).unwrap()).unwrap();
        assert_eq!(Conditions::read(&file).await, hot);
    }
}
