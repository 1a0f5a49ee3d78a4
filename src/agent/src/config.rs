//! What an agent is configured with.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8PathBuf;

use crate::models::ServableModel;
use crate::node::quiet_hours::QuietHours;
use rooflet_artifact::remote::HubAccess;
use rooflet_inference_api::openai::pages::AllowedOrigins;

/// What an agent is to do.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    pub node_name: String,
    pub state_dir: Utf8PathBuf,
    pub model_dir: Option<Utf8PathBuf>,
    /// Where models of `hf://` sources are; `None`: none are downloaded.
    pub hub: Option<HubAccess>,
    pub manifest_dir: Option<Utf8PathBuf>,
    /// Base URL at which others reach the agent's HTTP server.
    pub endpoint: String,
    /// Whose pages may ask here.
    pub allowed_origins: AllowedOrigins,
    /// When the machine is not to serve.
    pub quiet_hours: QuietHours,
    /// The binary that workers and the probe are started from: this one.
    pub program: Utf8PathBuf,
    /// Name and version of the inference engine that workers run, such as `mlx 0.32.2`. Measurements and quarantine hold for
    /// one engine only.
    pub engine: String,
    /// How long a worker may finish what it is answering.
    pub grace: Duration,
    /// The most that they may take for that when their replicas are replaced, moved or scaled away.
    pub answer_grace: Duration,
    /// Leave workers running when the agent stops, for its next life.
    pub keep_workers: bool,
    /// Measure the memory bandwidth when there is no fresh figure.
    pub probe: bool,
    /// Part of that: how long to wait for what heat leaves of the speed.
    pub probe_sustained: Option<Duration>,
    /// The machine is not a real one.
    pub simulated: Option<SimulatedMachine>,
}

/// A machine that is not a real one. It is never probed: its speed is its data sheet's.
#[derive(Debug, Clone, Default)]
pub struct SimulatedMachine {
    pub labels: BTreeMap<String, String>,
    /// What it has instead of a model directory and an engine; `None`: the real ones of this machine.
    pub engine: Option<SimulatedEngine>,
}

/// Models and workers of a machine that loads and computes nothing.
#[derive(Debug, Clone)]
pub struct SimulatedEngine {
    /// By the directory's name.
    pub models: BTreeMap<String, ServableModel>,
    /// What workers are started with, before the arguments that every worker gets.
    pub worker: Vec<String>,
}
