//! `rooflet server --simulate`: agents of machines that do not exist, beside the control plane of this process.
//!
//! Each is the real agent with a host made of values. It speaks the real protocol to the API server, listens on a port of
//! its own, and starts a process per replica: [`simulated_worker`](super::simulated_worker). All are labelled.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::net::TcpListener;
use tracing::{error, info};

use crate::agent::{Agent, AgentConfig, QuietHours, SimulatedMachine, StartAgentError};
use crate::api::meta::SIMULATED_LABEL;
use crate::client::{ConnectError, KubeconfigSource, connect};
use crate::clock::Clock;
use crate::host::{FakeHost, Host};
use crate::simulation::{Machine, Scenario, ScenarioError, machines};
use crate::task::Tasks;

/// How long a worker may finish what it is answering.
const GRACE: Duration = Duration::from_secs(10);

/// Where the simulated machines come from and where their agents keep what they must not forget.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedFleet {
    pub(crate) scenario: Scenario,
    /// Workers read it, too.
    pub(crate) file: Utf8PathBuf,
    pub(crate) state_dir: Utf8PathBuf,
    pub(crate) kubeconfig: Utf8PathBuf,
    /// This binary.
    pub(crate) program: Utf8PathBuf,
}

/// Why the simulated machines cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartFleetError {
    #[error("the simulated fleet")]
    Scenario(#[from] ScenarioError),
    #[error("connecting to the API server")]
    Connect(#[from] ConnectError),
    #[error("a port for the simulated agent of {node}")]
    Listen {
        node: String,
        #[source]
        err: std::io::Error,
    },
    #[error("the simulated agent of {node}")]
    Agent {
        node: String,
        #[source]
        err: Box<StartAgentError>,
    },
}

/// Starts an agent for every machine. They end with `tasks`, and take their workers along.
pub(crate) async fn start(fleet: &SimulatedFleet, tasks: &Tasks) -> Result<(), StartFleetError> {
    let machines = machines(&fleet.scenario)?;
    let client = connect(&KubeconfigSource::File(fleet.kubeconfig.clone())).await?;
    let count = machines.len();
    for machine in machines {
        let node = machine.name.clone();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|err| StartFleetError::Listen {
            node: node.clone(),
            err,
        })?;
        let host = FakeHost::of(machine.identity(), machine.class.memory);
        let config = config(fleet, &machine, format!("http://{address}"));
        let agent =
            Agent::new(config, Host::Fake(host), Clock::System).map_err(|err| StartFleetError::Agent {
                node: node.clone(),
                err: Box::new(err),
            })?;
        let (client, stop) = (client.clone(), tasks.stop_token());
        tasks.spawn_detached(async move {
            if let Err(why) = agent.run(Some(client), listener, stop).await {
                error!(node, why, "a simulated agent has ended");
            }
        });
    }
    info!(
        machines = count,
        "simulated agents run; nothing they say was measured"
    );
    Ok(())
}

fn config(fleet: &SimulatedFleet, machine: &Machine, endpoint: String) -> AgentConfig {
    let mut labels = BTreeMap::from([(SIMULATED_LABEL.to_owned(), "true".to_owned())]);
    labels.extend(machine.class.labels.clone());
    AgentConfig {
        node_name: machine.name.clone(),
        state_dir: fleet.state_dir.join(&machine.name),
        model_dir: None,
        manifest_dir: None,
        endpoint,
        quiet_hours: QuietHours::default(),
        program: fleet.program.clone(),
        grace: GRACE,
        keep_workers: false,
        probe: false,
        simulated: Some(SimulatedMachine {
            models: machine.class.models.clone(),
            worker: worker_arguments(&fleet.file, &machine.name),
            labels,
        }),
    }
}

fn worker_arguments(file: &Utf8Path, machine: &str) -> Vec<String> {
    [
        "simulated-worker",
        "--fleet",
        file.as_str(),
        "--machine",
        machine,
        "--",
    ]
    .map(str::to_owned)
    .into()
}
