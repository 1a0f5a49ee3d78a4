//! `rooflet agent`

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use camino::Utf8PathBuf;
use kube::Client;

use super::Failure;
use super::ui::address::address;
use rooflet_agent::sync::ANSWER_GRACE;
use rooflet_agent::workers::GRACE;
use rooflet_agent::{
    Agent, AgentConfig, AgentTls, NodeCredentials, NodeToken, QuietHours, SimulatedMachine, StartAgentError,
};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::{KubeconfigSource, Renewable, client_certificate, connect};
use rooflet_composition::anonymous::AllowAnonymous;
use rooflet_composition::audit_log::AuditLog;
use rooflet_composition::tls_files::TlsFiles;
use rooflet_composition::{listeners, own_log, shutdown};
use rooflet_host::{FakeHost, Host};
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_launchd::Daemon;
use rooflet_pki::{CertificateMetrics, MachineTls, NodeCertificate, Revocations};
use rooflet_roofline::chip;
use rooflet_simulation::{chip_of, identity};
use rooflet_trust::{KUBECONFIG_FILE, MACHINE_TLS_FILE, MachineCertificate, PublishedTrust, Purpose};

/// File in the state directory: refused requests of other machines.
const AUDIT: &str = "audit.log";

/// Arguments of `rooflet agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kubeconfig of the API server. Default: the API server that this node has joined, otherwise
    /// the service account of the pod. With --manifest-dir and without any, only the manifests
    /// define replicas.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
    /// Run one replica of each ModelDeployment in this directory, with or without an API server.
    #[arg(long, value_name = "DIR")]
    manifest_dir: Option<Utf8PathBuf>,
    /// Name of this machine's FleetNode. Default: the previous name, which is stored in the state
    /// directory, initially the host name.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Directory of `local://NAME` models, one subdirectory each.
    #[arg(long, value_name = "DIR", env = "ROOFLET_MODEL_DIR", value_parser = super::directory("ROOFLET_MODEL_DIR"))]
    model_dir: Option<Utf8PathBuf>,
    /// Directory of the agent's logs and of the records with which it finds its workers.
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR", value_parser = super::directory("ROOFLET_STATE_DIR"), default_value_t = super::default_data_dir().join("agent"))]
    state_dir: Utf8PathBuf,
    /// Address of the agent's HTTP server. Port 0 selects a free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    #[command(flatten)]
    anonymous: AllowAnonymous,
    #[command(flatten)]
    tls: TlsFiles,
    /// Web origins that may send requests to this agent, such as `https://chat.example.com`; `*`
    /// for all. Pages of this machine (localhost) and of installed apps are always allowed. Clients
    /// other than browsers are not restricted.
    #[arg(long, value_name = "ORIGIN[,…]", env = "ROOFLET_ALLOWED_ORIGINS")]
    allowed_origins: Option<AllowedOrigins>,
    /// Address at which the gateway reaches this agent, if it differs from --listen.
    #[arg(long, value_name = "HOST")]
    advertise_address: Option<String>,
    /// Time for in-flight requests to finish when the agent stops or memory is low, such as 30s.
    #[arg(long, value_name = "DURATION", default_value_t = GRACE.as_secs(), value_parser = super::grace_seconds)]
    grace_seconds: u64,
    /// Maximum time for in-flight requests to finish when a replica is replaced, moved or scaled down,
    /// such as 10m. The agent waits no longer than the longest possible answer takes.
    #[arg(long, value_name = "DURATION", default_value_t = ANSWER_GRACE.as_secs(), value_parser = super::grace_seconds)]
    answer_grace_seconds: u64,
    /// Keep workers running when the agent stops; the next agent adopts them. After a crash of the
    /// agent, workers always keep running.
    #[arg(long)]
    keep_workers: bool,
    /// Daily times at which this machine should not serve requests. Its replicas move to other
    /// nodes that have capacity.
    #[arg(long, value_name = "HH:MM-HH:MM[,…]")]
    quiet_hours: Option<QuietHours>,
    /// Do not measure the memory bandwidth.
    #[arg(long)]
    no_probe: bool,
    /// Load the machine for this time before each measurement, so that predictions apply to the
    /// sustained speed of a hot machine. Replicas start afterwards. 2m is enough for a Mac without a
    /// fan.
    #[arg(long, value_name = "DURATION", conflicts_with = "no_probe", value_parser = super::sustained_seconds, allow_negative_numbers = true)]
    probe_sustained_seconds: Option<u64>,
    /// Let this Mac sleep on AC power when no request is in flight. By default, the agent prevents
    /// sleep on AC power (the display may sleep); on battery, only requests prevent sleep.
    #[arg(long)]
    let_sleep: bool,
    /// Simulate a Mac with this chip, such as "M4 Pro", to try a fleet on one machine. Admission,
    /// placement and predictions use its data sheet; workers run the engine of this machine. The
    /// node has the label rooflet.dev/simulated.
    #[arg(long, value_name = "CHIP", requires = "simulated_memory")]
    simulated_chip: Option<String>,
    /// Memory of the simulated Mac. Workers use this machine's memory; the agent does not check
    /// that it is sufficient.
    #[arg(long, value_name = "SIZE", requires = "simulated_chip", value_parser = super::fit::memory_size)]
    simulated_memory: Option<Bytes>,
    /// GPU cores of the simulated Mac, if its chip has variants with different numbers of cores.
    #[arg(long, value_name = "N", requires = "simulated_chip")]
    simulated_gpu_cores: Option<u32>,
    /// Take facts about the machine from a report of `rooflet doctor --save`, to try how an agent
    /// acts on that Mac: chip, memory, power supply, lid, heat. Host name, disks and engine are this
    /// machine's. The node has the label rooflet.dev/simulated.
    #[arg(
        long,
        value_name = "FILE",
        env = "ROOFLET_RECORDED",
        conflicts_with = "simulated_chip"
    )]
    recorded: Option<Utf8PathBuf>,
    /// Log of a gateway on this machine, for `rooflet logs gateway`. Default: the log of the service
    /// that `rooflet server install` installed.
    #[arg(long, value_name = "FILE")]
    gateway_log: Option<Utf8PathBuf>,
    /// Stop when standard input closes. A supervisor holds the other end.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// API server of the agent, with the credentials of a node that has joined a fleet.
struct Joined {
    /// `None` in a pod, and without an API server.
    kubeconfig: Option<Utf8PathBuf>,
    api_server: Option<KubeconfigSource>,
    certificate: Option<NodeCertificate>,
    token: Option<NodeToken>,
}

impl Joined {
    async fn read(args: &Args) -> Result<Self, Failure> {
        let stored = Some(args.state_dir.join(KUBECONFIG_FILE)).filter(|path| path.exists());
        let kubeconfig = args.kubeconfig.clone().or(stored);
        let pod = KubeconfigSource::of_pod().filter(|_| args.manifest_dir.is_none());
        let api_server = kubeconfig.clone().map(KubeconfigSource::File).or(pod);
        let Some(source) = &api_server else {
            return match args.manifest_dir {
                Some(_) => Ok(Self {
                    kubeconfig: None,
                    api_server: None,
                    certificate: None,
                    token: None,
                }),
                None => Err(usage(
                    "this machine has not joined a control plane: run `rooflet join`, or pass --kubeconfig or \
                     --manifest-dir",
                )),
            };
        };
        let certificate = client_certificate(source).await.map_err(config)?;
        let certificate = certificate
            .and_then(|pem| NodeCertificate::read(&pem))
            .filter(|certificate| certificate.node.is_some());
        let token = match certificate {
            Some(_) => None,
            None => NodeToken::read(source).await.map_err(config)?,
        };
        Ok(Self {
            kubeconfig,
            api_server,
            certificate,
            token,
        })
    }

    /// Returns true if the API server or controller issues certificates for this node.
    fn is_node(&self) -> bool {
        self.certificate.is_some() || self.token.is_some()
    }

    /// Returns the name of the node in the credentials.
    fn node(&self) -> Option<&str> {
        match &self.certificate {
            Some(certificate) => certificate.node.as_deref(),
            None => self.token.as_ref().map(|token| token.node.as_str()),
        }
    }

    /// Connects to the API server. Returns a client whose credentials stay valid while the tasks run, and the
    /// trust of the fleet that a node has joined.
    async fn connect(
        self,
        serves_fleet: bool,
        tasks: &Tasks,
    ) -> Result<(Option<Client>, Option<PublishedTrust>), Failure> {
        let Some(source) = &self.api_server else {
            return Ok((None, None));
        };
        let client = connect(source, &Clock::System).await.map_err(config)?;
        let Some(path) = self.kubeconfig else {
            return Ok((Some(client), None));
        };
        let credentials = (self.certificate, self.token);
        let (client, trust) = keep_credentials(client, path, credentials, serves_fleet, tasks);
        Ok((Some(client), trust))
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(ExitStatus::Usage, anyhow::anyhow!(text.into()))
}

fn config(err: impl Into<anyhow::Error>) -> Failure {
    Failure::new(ExitStatus::Config, err)
}

/// Returns the name of the node: that of the flag and the credentials, otherwise the stored or default name.
fn node_name(args: &Args, joined: Option<&str>) -> Result<String, Failure> {
    if let (Some(named), Some(joined)) = (&args.node_name, joined)
        && named != joined
    {
        return Err(usage(format!(
            "--node-name {named}: the credentials of this machine are for node {joined}; omit --node-name, or join again with this name"
        )));
    }
    let given = args.node_name.clone().or(joined.map(str::to_owned));
    let name = super::node_name(given, &args.state_dir)?;
    match rooflet_schema::names::dns_subdomain(&name).first() {
        Some(problem) => Err(usage(format!("--node-name {name}: {problem}"))),
        None => Ok(name),
    }
}

/// Returns the host: this machine, a recorded or a simulated one.
fn host(args: &Args, node: &str) -> Result<Host, Failure> {
    match (&args.recorded, &args.simulated_chip, args.simulated_memory) {
        (Some(file), ..) => {
            let (_, facts) = rooflet_doctor::read_recording(file).map_err(config)?;
            Ok(Host::Recorded(facts.into()))
        }
        (None, Some(chip), Some(memory)) => simulated(node, chip, args.simulated_gpu_cores, memory)
            .map_err(|err| usage(format!("--simulated-chip {chip}: {err}"))),
        (None, _, _) => Ok(Host::Native),
    }
}

/// Returns host and port at which gateways reach the agent.
fn advertised(host: Option<&str>, bound: SocketAddr) -> String {
    match host {
        Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{}", bound.port()),
        Some(host) => format!("{host}:{}", bound.port()),
        None => bound.to_string(),
    }
}

/// Returns the path of this program, which workers execute.
fn program() -> anyhow::Result<Utf8PathBuf> {
    let program = std::env::current_exe().context("determining the path of this program")?;
    Utf8PathBuf::from_path_buf(program).map_err(|path| {
        anyhow::anyhow!(
            "path of this program `{}` is not UTF-8: move the program",
            path.display()
        )
    })
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let joined = Joined::read(&args).await?;
    let node_name = node_name(&args, joined.node())?;
    if args.listen.ip().is_unspecified() && args.advertise_address.is_none() {
        return Err(usage(format!(
            "--listen {}: pass --advertise-address with the address at which other machines reach this machine",
            args.listen
        )));
    }
    let certificates = CertificateMetrics::default();
    let files = args.tls.load(&Clock::System, &certificates).map_err(config)?;
    if files.is_some() && joined.api_server.is_some() {
        return Err(usage(
            "--tls-cert: gateways accept only certificates of the fleet; omit the flag, or omit the API server",
        ));
    }
    let is_joined = joined.is_node() && !args.anonymous.is_given();
    let requires_fleet = files.is_none() && is_joined && !args.listen.ip().is_loopback();
    if !requires_fleet {
        args.anonymous
            .check("--listen", args.listen, args.tls.transport())
            .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    }
    let host = host(&args, &node_name)?;
    let is_simulated = args.recorded.is_some() || args.simulated_chip.is_some();
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    if args.stop_with_stdin {
        shutdown::on_stdin_end(&tasks)?;
    } else {
        // A supervisor rotates the logs of its children.
        own_log::limit(&tasks);
    }
    let has_token = joined.token.is_some();
    let (client, trust) = joined.connect(requires_fleet, &tasks).await?;
    let listener = listeners::bind("--listen", args.listen)
        .await
        .map_err(|err| Failure::new(ExitStatus::Unavailable, err))?;
    let bound = listener.local_addr().context("reading the bound address")?;
    let fleet_tls = requires_fleet.then(|| MachineTls::new(Revocations::default()));
    if let (Some(tls), Some(client), Some(trust)) = (&fleet_tls, &client, trust) {
        let address = args.advertise_address.clone();
        let address = address.unwrap_or_else(|| bound.ip().to_string());
        let purpose = Purpose::agent(
            &node_name,
            address.trim_matches(['[', ']']),
            &Host::Native.identity().hostname,
        );
        let file = Some(args.state_dir.join(MACHINE_TLS_FILE));
        certificates.observe_machine(tls);
        MachineCertificate::keep(client.clone(), trust, tls.clone(), purpose, file, &tasks);
    }
    let tls = match (files, &fleet_tls) {
        (Some(config), _) => Some(AgentTls {
            config,
            fleet: None,
            audit: None,
            certificates,
        }),
        (None, Some(tls)) => Some(AgentTls {
            config: Arc::new(tls.server_config().context("setting up TLS")?),
            fleet: Some(tls.revocations().clone()),
            audit: Some(AuditLog::of_denials(&args.state_dir.join(AUDIT), &tasks)),
            certificates,
        }),
        (None, None) => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let config = AgentConfig {
        node_name,
        state_dir: args.state_dir,
        model_dir: args.model_dir,
        hub: Some(HubAccess::from_environment().map_err(|err| Failure::new(ExitStatus::Usage, err))?),
        manifest_dir: args.manifest_dir,
        allowed_origins: args.allowed_origins.unwrap_or_default(),
        endpoint: format!(
            "{scheme}://{}",
            advertised(args.advertise_address.as_deref(), bound)
        ),
        tls,
        quiet_hours: args.quiet_hours.unwrap_or_default(),
        program: program()?,
        engine: engine(),
        matrix_unit_kernels: matrix_unit_kernels(),
        has_token,
        is_anonymous: !args.listen.ip().is_loopback() && fleet_tls.is_none(),
        grace: Duration::from_secs(args.grace_seconds),
        answer_grace: Duration::from_secs(args.answer_grace_seconds),
        keep_workers: args.keep_workers,
        probe: !args.no_probe && cfg!(feature = "mlx"),
        probe_sustained: args.probe_sustained_seconds.map(Duration::from_secs),
        let_sleep: args.let_sleep,
        gateway_log: Some(args.gateway_log.unwrap_or_else(|| Daemon::Server.log())),
        simulated: is_simulated.then(SimulatedMachine::default),
    };
    let agent = Agent::new(config, host, Clock::System).map_err(|err| Failure::new(status(&err), err))?;
    if let Some(client) = &client {
        let free = agent.check_name(client).await;
        free.map_err(|taken| Failure::new(ExitStatus::Unavailable, taken))?;
    }
    agent
        .run(client, listener, tasks.stop_token())
        .await
        .map_err(|why| Failure::from(anyhow::anyhow!(why)))
}

/// Returns the name and version of the engine in this build. The version is that of the loaded
/// library, which can change without a new version of rooflet.
#[cfg(feature = "mlx")]
fn engine() -> String {
    let kernels = match matrix_unit_kernels() {
        Some(true) => " with kernels for matrix units",
        Some(false) | None => "",
    };
    format!("mlx {}{kernels}", rooflet_mlx::device::engine_version())
}

#[cfg(not(feature = "mlx"))]
fn engine() -> String {
    "no engine".to_owned()
}

/// Returns whether the engine in this build has kernels for matrix units; `None` if it is not built
/// for Metal.
fn matrix_unit_kernels() -> Option<bool> {
    #[cfg(feature = "mlx")]
    return rooflet_mlx::metallib::build().map(|build| build.has_matrix_units);
    #[cfg(not(feature = "mlx"))]
    return None;
}

/// Returns a client that follows changes of the kubeconfig, and whose certificate is renewed, while
/// the tasks run. Also returns the trust of the fleet that a node has joined.
fn keep_credentials(
    client: Client,
    kubeconfig: Utf8PathBuf,
    (certificate, token): (Option<NodeCertificate>, Option<NodeToken>),
    serves_fleet: bool,
    tasks: &Tasks,
) -> (Client, Option<PublishedTrust>) {
    let (client, renewable) = Renewable::new(client);
    // A node with a token needs the trust only for its own server.
    let follows_trust = certificate.is_some() || serves_fleet;
    let trust = follows_trust.then(|| PublishedTrust::watch(client.clone(), serves_fleet, tasks));
    let credentials = NodeCredentials {
        kubeconfig,
        certificate,
        token,
        trust: trust.clone(),
        client: client.clone(),
        renewable,
        clock: Clock::System,
    };
    tasks.spawn_detached(credentials.keep(tasks.stop_token()));
    (client, trust)
}

/// Returns the host of a simulated Mac. Only its disk is real.
fn simulated(
    node: &str,
    chip: &str,
    gpu_cores: Option<u32>,
    memory: Bytes,
) -> Result<Host, chip::UnknownChip> {
    let variant = chip::find(chip, gpu_cores, Some(memory))?;
    let identity = identity(node, chip_of(variant));
    Ok(Host::Fake(FakeHost::of(identity, memory).with_native_disk()))
}

fn status(err: &StartAgentError) -> ExitStatus {
    match err {
        StartAgentError::State(err) if err.is_locked() => ExitStatus::Unavailable,
        StartAgentError::State(_) | StartAgentError::Manifests(_) | StartAgentError::ModelDir { .. } => {
            ExitStatus::Config
        }
        StartAgentError::Metrics(_) => ExitStatus::Failure,
    }
}
