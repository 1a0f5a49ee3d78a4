//! `rooflet server --simulate`: agents of simulated machines in the process of the control plane.
//!
//! Each is the real agent with a fake host. It uses the real protocol to the API server, listens on
//! its own port, and starts one process per replica:
//! [`worker`](super::worker). All nodes have the label for simulated nodes.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tracing::info;

use super::mac::{self, NetworkLinks, SimulatedMac};
use crate::network_link::{self, NetworkLink};
use rooflet_agent::sync::ANSWER_GRACE;
use rooflet_agent::{AgentConfig, SimulatedEngine, SimulatedMachine, StartAgentError};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_client::{ConnectError, KubeconfigSource, connect, connect_via};
use rooflet_host::FakeHost;
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_simulation::{Fault, FaultSpec, Machine, Scenario, ScenarioError, machines};

/// Time for in-flight requests to finish.
const GRACE: Duration = Duration::from_secs(10);

/// Simulated machines, and the directory of their agents' state.
#[derive(Debug, Clone)]
pub struct SimulatedFleet {
    pub scenario: Scenario,
    /// Scenario file, which workers read as well.
    pub file: Utf8PathBuf,
    pub state_dir: Utf8PathBuf,
    pub api_server: KubeconfigSource,
    /// Path of the rooflet binary.
    pub program: Utf8PathBuf,
}

/// Error of starting the simulated machines.
#[derive(Debug, thiserror::Error)]
pub enum StartFleetError {
    #[error("creating the simulated fleet")]
    Scenario(#[from] ScenarioError),
    #[error("connecting to the API server")]
    Connect(#[from] ConnectError),
    #[error("binding a port for the simulated agent of {node}")]
    Listen {
        node: String,
        #[source]
        err: std::io::Error,
    },
    #[error("starting the simulated agent of {node}")]
    Agent {
        node: String,
        #[source]
        err: Box<StartAgentError>,
    },
}

/// Starts an agent for every machine. The agents end with `tasks` and stop their workers.
pub async fn start(fleet: &SimulatedFleet, tasks: &Tasks) -> Result<(), StartFleetError> {
    let machines = machines(&fleet.scenario)?;
    let client = connect(&fleet.api_server, &Clock::System).await?;
    let (count, faults) = (machines.len(), fleet.scenario.planned_faults());
    for machine in machines {
        let node = machine.name.clone();
        let machine_faults = faults.iter().filter(|fault| fault.node() == Some(&node));
        let machine_faults: Vec<_> = machine_faults.cloned().collect();
        let listens = |err| StartFleetError::Listen {
            node: node.clone(),
            err,
        };
        let (address, listener) = network_link::end().await.map_err(listens)?;
        let is_cut = |fault: &FaultSpec| matches!(fault.what, Fault::Cut { .. } | Fault::Isolate { .. });
        let mut ways = (address, client.clone(), None);
        if machine_faults.iter().any(is_cut) {
            let (near, up) = network_link::end().await.map_err(listens)?;
            let (others, down) = network_link::end().await.map_err(listens)?;
            let (client, server) = connect_via(&fleet.api_server, near, &Clock::System).await?;
            let links = NetworkLinks {
                up: NetworkLink::connect(tasks, up, server),
                down: NetworkLink::connect(tasks, down, address.to_string()),
            };
            ways = (others, client, Some(links));
        }
        let (reached_at, client_of_its_own, links) = ways;
        let state_dir = fleet.state_dir.join(&node);
        let conditions = state_dir.join("conditions.json");
        let mut config = config(fleet, &machine, &conditions, format!("http://{reached_at}"));
        // A simulated restart keeps the workers; the final stop ends them.
        config.keep_workers = !machine_faults.is_empty();
        let memory = machine.class.memory;
        let mac = SimulatedMac {
            host: FakeHost::of(machine.identity(), memory),
            memory,
            client: client_of_its_own,
            admin: client.clone(),
            address,
            links,
            conditions,
            faults: machine_faults,
            config,
        };
        mac.begin(listener, tasks).map_err(|err| StartFleetError::Agent {
            node,
            err: Box::new(err),
        })?;
    }
    info!(
        machines = count,
        "simulated agents started; their figures are not measured"
    );
    Ok(())
}

fn config(fleet: &SimulatedFleet, machine: &Machine, conditions: &Utf8Path, endpoint: String) -> AgentConfig {
    AgentConfig {
        allowed_origins: AllowedOrigins::default(),
        node_name: machine.name.clone(),
        state_dir: fleet.state_dir.join(&machine.name),
        model_dir: None,
        hub: None,
        manifest_dir: None,
        endpoint,
        tls: None,
        quiet_hours: machine.class.quiet_hours.clone(),
        engine: "none".to_owned(),
        matrix_unit_kernels: None,
        is_anonymous: false,
        has_token: false,
        program: fleet.program.clone(),
        grace: GRACE,
        answer_grace: ANSWER_GRACE,
        keep_workers: false,
        probe: false,
        probe_sustained: None,
        let_sleep: false,
        gateway_log: None,
        simulated: Some(SimulatedMachine {
            labels: machine.class.labels.clone(),
            engine: Some(SimulatedEngine {
                models: machine.class.models.clone(),
                worker: worker_arguments(&fleet.file, &machine.name, conditions),
            }),
        }),
    }
}

fn worker_arguments(file: &Utf8Path, machine: &str, conditions: &Utf8Path) -> Vec<String> {
    [
        mac::WORKER,
        "--fleet",
        file.as_str(),
        "--machine",
        machine,
        "--conditions",
        conditions.as_str(),
        "--",
    ]
    .map(str::to_owned)
    .into()
}
