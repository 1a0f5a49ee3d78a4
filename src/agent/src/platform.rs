//! Differences between the agent of a real machine and the agent of a simulated machine.

use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;

use super::models::{ComputeType, Models};
use crate::agent::Agent;
use crate::config::{SimulatedEngine, SimulatedMachine};
use crate::models::pulls::Pulls;
use crate::node::probe::{Conditions, PowerState, ProbeState, ProbeStep, Prober};
use rooflet_artifact::ModelDirectory;
use rooflet_base::task::Tasks;
use rooflet_client::Changes;
use rooflet_host::Identity;

/// Engine, models and probe of a real or simulated machine.
pub(super) struct Platform {
    /// Version of rooflet and of the engine, as quarantine records store it.
    pub(super) engine: String,
    /// Leading arguments of the worker command. The arguments common to all workers follow.
    pub(super) worker: Vec<String>,
    pub(super) models: Models,
    /// True if the workers compute on the node's own chip, so that measured speeds may calibrate
    /// predictions.
    pub(super) computes_here: bool,
    /// State of the machine's speed measurement at the start.
    pub(super) probe: ProbeState,
    /// Setup of the probe. `None` if the machine must not be probed.
    pub(super) probe_setup: Option<ProbeSetup>,
    /// True if the agent prevents sleep of this machine.
    pub(super) prevents_sleep: bool,
}

/// Setup of the probe process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeSetup {
    /// Arguments of the child process.
    pub(super) arguments: Vec<String>,
    /// Time for which the probe loads the machine before the sustained measurement.
    pub(super) sustained: Duration,
    /// A measurement under other conditions is not reused.
    pub(super) conditions: Conditions,
}

impl Platform {
    pub(super) fn of(agent: &Agent, tasks: &Tasks, changes: &Changes) -> Self {
        match &agent.config.simulated {
            None => Self::real(agent, tasks, changes),
            Some(SimulatedMachine { engine: None, .. }) => Self::with_real_engine(agent, tasks, changes),
            Some(SimulatedMachine {
                engine: Some(engine), ..
            }) => Self::simulated(engine),
        }
    }

    fn real(agent: &Agent, tasks: &Tasks, changes: &Changes) -> Self {
        let config = &agent.config;
        let sustained = config.probe_sustained;
        let conditions = Conditions {
            installation: installation(
                &agent.holder.machine_id,
                &agent.identity,
                &config.engine,
                sustained,
            ),
            power: PowerState::of(agent.host.power()),
        };
        let probe = ProbeState {
            step: ProbeStep::Waiting,
            last: Prober::stored(&agent.state, &conditions),
        };
        let device = probe.last.as_ref().map(|last| last.report.engine.device.as_str());
        Self {
            engine: program_with(&agent.config.engine),
            worker: vec!["worker".to_owned()],
            models: models(agent, device, tasks, changes),
            computes_here: true,
            probe,
            probe_setup: config.probe.then(|| ProbeSetup {
                arguments: probe_arguments(config.model_dir.as_deref(), sustained),
                sustained: sustained.unwrap_or_default(),
                conditions,
            }),
            prevents_sleep: true,
        }
    }

    /// Returns a simulated machine whose workers run the real engine on the host.
    fn with_real_engine(agent: &Agent, tasks: &Tasks, changes: &Changes) -> Self {
        Self {
            engine: program_with(&agent.config.engine),
            worker: vec!["worker".to_owned()],
            models: models(agent, None, tasks, changes),
            computes_here: false,
            probe: ProbeState::simulated(),
            probe_setup: None,
            prevents_sleep: false,
        }
    }

    fn simulated(engine: &SimulatedEngine) -> Self {
        Self {
            engine: program_with("a simulated engine"),
            worker: engine.worker.clone(),
            models: Models::simulated(engine.models.clone()),
            computes_here: true,
            probe: ProbeState::simulated(),
            probe_setup: None,
            prevents_sleep: false,
        }
    }

    /// Returns true if the probe is enabled and no recent measurement exists.
    pub(super) fn must_probe(&self, now: Timestamp) -> bool {
        let last = self.probe.last.as_ref();
        self.probe_setup.is_some() && last.is_none_or(|last| last.remaining_validity(now).is_zero())
    }
}

/// Returns the models of the model directory and, if configured, of the hub.
fn models(agent: &Agent, device: Option<&str>, tasks: &Tasks, changes: &Changes) -> Models {
    let config = &agent.config;
    let directory = ModelDirectory::new(config.model_dir.clone());
    let models = Models::new(directory, ComputeType::of_device(device));
    match config.hub.clone() {
        Some(hub) => {
            let (clock, changes) = (agent.clock.clone(), changes.clone());
            let metrics = agent.metrics.clone();
            models.with_pulls(Pulls::new(hub, &agent.state, tasks, clock, changes, metrics))
        }
        None => models,
    }
}

/// Returns the arguments of the probe process. The probe measures the disk that holds the models.
fn probe_arguments(model_dir: Option<&Utf8Path>, sustained: Option<Duration>) -> Vec<String> {
    let mut arguments = ["probe", "--output", "json"].map(str::to_owned).to_vec();
    if let Some(model_dir) = model_dir {
        arguments.extend(["--disk".to_owned(), model_dir.to_string()]);
    }
    if let Some(sustained) = sustained {
        arguments.extend(["--sustained".to_owned(), sustained.as_secs().to_string()]);
    }
    arguments
}

/// Describes the machine, its system and the program that a measurement depends on.
fn installation(machine_id: &str, identity: &Identity, engine: &str, sustained: Option<Duration>) -> String {
    let hot = sustained.map_or_else(String::new, |time| format!(", hot after {} s", time.as_secs()));
    format!(
        "machine {machine_id}, {} {}, {}, {}{hot}{}",
        identity.operating_system,
        identity.os_build,
        identity.chip.name,
        program_with(engine),
        if cfg!(debug_assertions) {
            ", debug build"
        } else {
            ""
        },
    )
}

/// Returns the version of rooflet together with the engine's.
fn program_with(engine: &str) -> String {
    format!("rooflet {}, {engine}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use camino::Utf8PathBuf;

    use super::*;
    use crate::config::AgentConfig;
    use rooflet_base::clock::{Clock, ManualClock};
    use rooflet_base::units::Bytes;
    use rooflet_host::{FakeHost, Host};
    use rooflet_testing::TempDir;

    fn config(state_dir: Utf8PathBuf, simulated: Option<SimulatedMachine>) -> AgentConfig {
        AgentConfig {
            node_name: "mini-1".to_owned(),
            state_dir,
            model_dir: None,
            hub: None,
            manifest_dir: None,
            endpoint: "http://mini-1:7490".to_owned(),
            tls: None,
            allowed_origins: Default::default(),
            quiet_hours: Default::default(),
            engine: "mlx 0.0.0".to_owned(),
            matrix_unit_kernels: None,
            is_anonymous: false,
            has_token: false,
            program: "/bin/rooflet".into(),
            grace: Duration::ZERO,
            answer_grace: Duration::ZERO,
            keep_workers: false,
            probe: true,
            probe_sustained: Some(Duration::from_secs(90)),
            let_sleep: false,
            gateway_log: None,
            simulated,
        }
    }

    /// Name, worker arguments, `computes_here`, probe arguments, `prevents_sleep`.
    #[test]
    fn simulated_machine_is_never_probed() {
        let engine = SimulatedEngine {
            models: BTreeMap::new(),
            worker: vec!["simulated-worker".to_owned()],
        };
        let on = |engine| {
            Some(SimulatedMachine {
                labels: BTreeMap::new(),
                engine,
            })
        };
        let sustained: &[&str] = &["probe", "--output", "json", "--sustained", "90"];
        for (simulated, worker, computes_here, measured_with, prevents_sleep) in [
            (None, "worker", true, Some(sustained), true),
            (on(None), "worker", false, None, false),
            (on(Some(engine)), "simulated-worker", true, None, false),
        ] {
            let directory = TempDir::new();
            let state_dir = directory.path().join("state");
            let clock = Clock::Manual(ManualClock::new(Timestamp::UNIX_EPOCH));
            let host = Host::Fake(FakeHost::new("mini-1", Bytes::gib(16)));
            let agent = Agent::new(config(state_dir, simulated), host, clock).unwrap();
            let parts = Platform::of(&agent, &Tasks::new(), &Changes::new());
            assert_eq!(parts.worker, [worker]);
            assert_eq!(parts.computes_here, computes_here, "{worker}");
            let arguments = parts
                .probe_setup
                .as_ref()
                .map(|probe_setup| probe_setup.arguments.clone());
            let expected = measured_with.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            assert_eq!(arguments, expected, "{worker}");
            assert_eq!(parts.must_probe(Timestamp::UNIX_EPOCH), measured_with.is_some());
            assert_eq!(parts.prevents_sleep, prevents_sleep, "{worker}");
        }
    }
}
