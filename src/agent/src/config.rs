//! Configuration of an agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use rustls::ServerConfig;

use crate::models::ServableModel;
use crate::node::quiet_hours::QuietHours;
use rooflet_artifact::remote::HubAccess;
use rooflet_http_server::DenialAudit;
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_pki::{CertificateMetrics, Revocations};

/// Configuration of an agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    pub node_name: String,
    pub state_dir: Utf8PathBuf,
    pub model_dir: Option<Utf8PathBuf>,
    /// Access to the model hub of `hf://` sources. `None` disables downloads.
    pub hub: Option<HubAccess>,
    pub manifest_dir: Option<Utf8PathBuf>,
    /// Base URL under which gateways and users reach the agent's HTTP server.
    pub endpoint: String,
    /// TLS of the HTTP server; `None` for plain HTTP.
    pub tls: Option<AgentTls>,
    /// Web origins whose pages may send requests to the agent.
    pub allowed_origins: AllowedOrigins,
    /// True if the HTTP server listens beyond loopback and accepts clients without a certificate.
    pub is_anonymous: bool,
    /// True if the agent authenticates with the token of a FleetNode, which exists before the agent starts.
    pub has_token: bool,
    /// Times at which the machine does not serve.
    pub quiet_hours: QuietHours,
    /// Path of the rooflet binary that runs workers and the probe.
    pub program: Utf8PathBuf,
    /// Name and version of the inference engine that workers run, such as `mlx 0.32.2`.
    /// Measurements and quarantine are valid for one engine version only.
    pub engine: String,
    /// True if the engine has kernels for the matrix units of GPUs. `None` if workers do not compute
    /// on a GPU of this machine.
    pub matrix_unit_kernels: Option<bool>,
    /// Time that workers get to finish in-flight requests when the agent stops.
    pub grace: Duration,
    /// Maximum time that workers get to finish in-flight requests when their replicas are replaced,
    /// moved or scaled down.
    pub answer_grace: Duration,
    /// If true, workers keep running when the agent stops, and the next agent process adopts them.
    pub keep_workers: bool,
    /// If true, the agent measures the memory bandwidth when no recent measurement exists.
    pub probe: bool,
    /// Load time of the probe before the sustained measurement. `None` skips the sustained
    /// measurement.
    pub probe_sustained: Option<Duration>,
    /// If true, the machine may sleep on AC power while no request is in flight.
    pub let_sleep: bool,
    /// Log of a gateway on this machine, which the agent serves to administrators.
    pub gateway_log: Option<Utf8PathBuf>,
    /// Set for a simulated machine.
    pub simulated: Option<SimulatedMachine>,
}

/// TLS of the agent's HTTP server.
#[derive(Debug, Clone)]
pub struct AgentTls {
    pub config: Arc<ServerConfig>,
    /// Revoked nodes, if clients must present a certificate of the fleet.
    pub fleet: Option<Revocations>,
    /// Receives every request that the role of its client does not permit.
    pub audit: Option<DenialAudit>,
    /// Certificates that the agent's metrics show.
    pub certificates: CertificateMetrics,
}

/// Simulated machine. The agent never probes it: its speed comes from the chip's data sheet.
#[derive(Debug, Clone, Default)]
pub struct SimulatedMachine {
    pub labels: BTreeMap<String, String>,
    /// Simulated models and workers. `None` uses the real ones of this machine.
    pub engine: Option<SimulatedEngine>,
}

/// Models and workers of a machine that neither loads nor computes anything.
#[derive(Debug, Clone)]
pub struct SimulatedEngine {
    /// Models by the name of their directory.
    pub models: BTreeMap<String, ServableModel>,
    /// Leading arguments of the worker command. The arguments common to all workers follow.
    pub worker: Vec<String>,
}
