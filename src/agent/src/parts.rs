//! What differs between an agent of a real machine and one of a simulated machine. All else of an agent is the same for both.

use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;

use super::models::{ComputeType, Models};
use crate::agent::Agent;
use crate::config::{SimulatedEngine, SimulatedMachine};
use crate::models::pulls::Pulls;
use crate::node::probe::{ProbeState, ProbeStep, Prober};
use rooflet_artifact::ModelDirectory;
use rooflet_base::task::Tasks;
use rooflet_client::Changes;
use rooflet_host::Identity;

/// See the module.
pub(super) struct Parts {
    /// The program with its engine, as quarantine knows them.
    pub(super) engine: String,
    /// What workers are started with, before the arguments that every worker gets.
    pub(super) worker: Vec<String>,
    pub(super) models: Models,
    /// The workers compute on the node's chip: what they are measured to do can be held against what is predicted of it.
    pub(super) computes_here: bool,
    /// What is known of the machine's speed.
    pub(super) probe: ProbeState,
    /// How its speed is measured; `None` where it is not to be.
    pub(super) measuring: Option<Measuring>,
    /// The machine is kept from falling asleep while it serves.
    pub(super) stays_awake: bool,
}

/// How a machine is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measuring {
    /// Of the child process that does it.
    pub(super) arguments: Vec<String>,
    /// How much of its time the child loads the machine to see what heat leaves.
    pub(super) sustained: Duration,
    /// Machine, system and version: a figure measured under others is not used.
    pub(super) conditions: String,
}

impl Parts {
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
        let conditions = measuring_conditions(
            &agent.holder.machine_id,
            &agent.identity,
            &config.engine,
            sustained,
        );
        let probe = ProbeState {
            step: ProbeStep::Waiting,
            last: Prober::remembered(&agent.state, &conditions),
        };
        let device = probe.last.as_ref().map(|last| last.report.engine.device.as_str());
        Self {
            engine: program_with(&agent.config.engine),
            worker: vec!["worker".to_owned()],
            models: models(agent, device, tasks, changes),
            computes_here: true,
            probe,
            measuring: config.probe.then(|| Measuring {
                arguments: probe_arguments(config.model_dir.as_deref(), sustained),
                sustained: sustained.unwrap_or_default(),
                conditions,
            }),
            stays_awake: true,
        }
    }

    /// A simulated machine whose workers are real, and compute on the machine that they run on.
    fn with_real_engine(agent: &Agent, tasks: &Tasks, changes: &Changes) -> Self {
        Self {
            engine: program_with(&agent.config.engine),
            worker: vec!["worker".to_owned()],
            models: models(agent, None, tasks, changes),
            computes_here: false,
            probe: ProbeState::simulated(),
            measuring: None,
            stays_awake: false,
        }
    }

    fn simulated(engine: &SimulatedEngine) -> Self {
        Self {
            engine: program_with("a simulated engine"),
            worker: engine.worker.clone(),
            models: Models::simulated(engine.models.clone()),
            computes_here: true,
            probe: ProbeState::simulated(),
            measuring: None,
            stays_awake: false,
        }
    }

    /// There is something to measure.
    pub(super) fn must_probe(&self, now: Timestamp) -> bool {
        let last = self.probe.last.as_ref();
        self.measuring.is_some() && last.is_none_or(|last| last.fresh_for(now).is_zero())
    }
}

/// Those of the model directory, and those of the hub if there is one.
fn models(agent: &Agent, device: Option<&str>, tasks: &Tasks, changes: &Changes) -> Models {
    let config = &agent.config;
    let directory = ModelDirectory::new(config.model_dir.clone());
    let models = Models::new(directory, ComputeType::of_device(device));
    match config.hub.clone() {
        Some(hub) => {
            let (clock, changes) = (agent.clock.clone(), changes.clone());
            models.with_pulls(Pulls::new(hub, &agent.state, tasks, clock, changes))
        }
        None => models,
    }
}

/// The disk that is read is the one models are loaded from.
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

/// What a measured figure depends on.
fn measuring_conditions(
    machine_id: &str,
    identity: &Identity,
    engine: &str,
    sustained: Option<Duration>,
) -> String {
    let hot = sustained.map_or_else(String::new, |time| format!(", hot after {} s", time.as_secs()));
    format!(
        "machine {machine_id}, {} {}, {}, {}{hot}",
        identity.operating_system,
        identity.os_build,
        identity.chip.name,
        program_with(engine),
    )
}

/// This version of rooflet with an engine.
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
            allowed_origins: Default::default(),
            quiet_hours: Default::default(),
            engine: "mlx 0.0.0".to_owned(),
            program: "/bin/rooflet".into(),
            grace: Duration::ZERO,
            answer_grace: Duration::ZERO,
            keep_workers: false,
            probe: true,
            probe_sustained: Some(Duration::from_secs(90)),
            simulated,
        }
    }

    /// Name; worker, computes here, is measured with, stays awake.
    #[test]
    fn a_simulated_machine_is_never_measured() {
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
        for (simulated, worker, computes_here, measured_with, stays_awake) in [
            (None, "worker", true, Some(sustained), true),
            (on(None), "worker", false, None, false),
            (on(Some(engine)), "simulated-worker", true, None, false),
        ] {
            let directory = TempDir::new();
            let state_dir = directory.path().join("state");
            let clock = Clock::Manual(ManualClock::new(Timestamp::UNIX_EPOCH));
            let host = Host::Fake(FakeHost::new("mini-1", Bytes::gib(16)));
            let agent = Agent::new(config(state_dir, simulated), host, clock).unwrap();
            let parts = Parts::of(&agent, &Tasks::new(), &Changes::new());
            assert_eq!(parts.worker, [worker]);
            assert_eq!(parts.computes_here, computes_here, "{worker}");
            let arguments = parts
                .measuring
                .as_ref()
                .map(|measuring| measuring.arguments.clone());
            let expected = measured_with.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            assert_eq!(arguments, expected, "{worker}");
            assert_eq!(parts.must_probe(Timestamp::UNIX_EPOCH), measured_with.is_some());
            assert_eq!(parts.stays_awake, stays_awake, "{worker}");
        }
    }
}
