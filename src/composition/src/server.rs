//! Control plane in one process: API server, controller and gateway, or a subset of these roles.

mod api_server;
mod names;
mod roles;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::net::TcpListener;
use tracing::warn;

use self::roles::Roles;
use super::kubeconfig::follow;
use super::listeners::{self, BindError};
use super::page_options::PageOptions;
use super::process_kubeconfigs::ProcessKubeconfigError;
use super::secrets_seal::SecretsSeal;
use super::status_server;
use rooflet_apiserver::{AuditPolicy, InFlightLimits, StartApiServerError};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::metrics::Registry;
use rooflet_base::task::{Tasks, TasksError};
use rooflet_client::{ConnectError, KubeconfigSource};
use rooflet_controller::{BandwidthHistory, SpeedHistory};
use rooflet_gateway::GatewayAccess;
use rooflet_host as host;
use rooflet_pki::{
    Authority, AuthorityKind, CertificateFiles, CertificateMetrics, IssueError, MachineTlsError,
    OpenAccountKeyError, OpenAuthorityError, OpenSecretsKeyError, OpenTokenError, TokenIssuer, kubeconfig,
};
use rooflet_store::{OpenStoreError, StoreConfig};

/// Default time for answers in progress to finish after the process was asked to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(15);

/// File of the store in the data directory.
pub const STORE: &str = "store.redb";
/// Default file of the key of Secrets in the data directory.
pub const SECRETS_KEY: &str = "secrets-key";

/// Role of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// The embedded API server and its store.
    Apiserver,
    /// Deployments, scheduling, node lifecycle.
    Controller,
    /// The OpenAI-compatible URL.
    Gateway,
    /// The web page.
    Web,
}

/// Configuration of the control plane.
#[derive(Debug)]
pub struct ServerConfig {
    pub data_dir: Utf8PathBuf,
    pub listen: SocketAddr,
    /// Additional names and addresses in the API server's certificate.
    pub tls_sans: Vec<String>,
    pub gateway_listen: SocketAddr,
    /// Address of the web page, for servers with the role web.
    pub web_listen: Option<SocketAddr>,
    pub page: PageOptions,
    /// Address of health and metrics.
    pub metrics_listen: Option<SocketAddr>,
    pub kubeconfig_out: Utf8PathBuf,
    pub roles: Vec<Role>,
    /// True if the data directory has the authority of this fleet, although another process serves
    /// the API.
    pub has_local_authority: bool,
    /// Limits of concurrent requests to the API server.
    pub in_flight: InFlightLimits,
    /// External issuers of tokens for the API server.
    pub issuers: Vec<TokenIssuer>,
    /// Requests to the API server that are recorded in `audit.log`.
    pub audit: Option<AuditPolicy>,
    /// Retention of events after they last occurred.
    pub event_ttl: Duration,
    /// Node-loss reserve: number of nodes whose replicas must fit on the remaining nodes.
    pub reserve_node_failures: usize,
    /// Access to the model hub of `hf://` sources.
    pub hub: HubAccess,
    /// File of the key that encrypts Secrets. Default: in the data directory.
    pub secrets_key: Option<Utf8PathBuf>,
    /// True to encrypt all Secrets with a new key.
    pub rotates_secrets_key: bool,
    /// Certificate of gateway and web page. Default: one of the fleet's authority.
    pub certificate_files: Option<Arc<CertificateFiles>>,
    pub gateway_access: GatewayAccess,
    /// Certificates that the metrics show.
    pub certificates: CertificateMetrics,
    /// Another API server, for processes without the role apiserver.
    pub api_server: Option<KubeconfigSource>,
}

impl ServerConfig {
    fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// Error that prevents the start of the control plane. No role is running when it is returned.
#[derive(Debug, thiserror::Error)]
pub enum StartServerError {
    #[error(
        "--roles without `apiserver` needs an API server: pass --kubeconfig, set KUBECONFIG, or run in a pod with a service account"
    )]
    NoApiServer,
    #[error("creating the data directory `{path}`")]
    DataDir {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("opening the store")]
    Store(#[from] OpenStoreError),
    #[error("opening the encryption key of Secrets")]
    SecretsKey(#[from] OpenSecretsKeyError),
    #[error("opening the certificate authority")]
    Authority(#[from] OpenAuthorityError),
    #[error("opening the administrator's token")]
    Token(#[from] OpenTokenError),
    #[error("opening the key of service accounts")]
    AccountKey(#[from] OpenAccountKeyError),
    #[error("issuing the serving certificate")]
    Certificate(#[from] IssueError),
    #[error("setting up TLS for agents")]
    AgentTls(#[from] MachineTlsError),
    #[error("setting up TLS for the gateway")]
    GatewayTls(#[from] rustls::Error),
    #[error("writing the kubeconfig")]
    Kubeconfig(#[from] kubeconfig::WriteKubeconfigError),
    #[error("writing the kubeconfigs of gateway and controller")]
    ProcessKubeconfigs(#[from] ProcessKubeconfigError),
    #[error("starting the API server")]
    ApiServer(#[from] StartApiServerError),
    #[error("connecting to the API server")]
    Connect(#[from] ConnectError),
    #[error("taking over a listener")]
    Listener(#[source] io::Error),
    #[error("registering metrics")]
    Metrics(#[from] rooflet_base::metrics::Error),
}

impl StartServerError {
    /// Returns the exit status for the error.
    pub fn status(&self) -> ExitStatus {
        match self {
            Self::NoApiServer => ExitStatus::Usage,
            Self::Bind(BindError::InUse { .. }) | Self::Store(OpenStoreError::InUse { .. }) => {
                ExitStatus::Unavailable
            }
            Self::DataDir { .. }
            | Self::Bind(BindError::Other { .. })
            | Self::Store(_)
            | Self::Authority(_)
            | Self::SecretsKey(_)
            | Self::Token(_)
            | Self::AccountKey(_)
            | Self::Certificate(_)
            | Self::AgentTls(_)
            | Self::GatewayTls(_)
            | Self::Kubeconfig(_)
            | Self::ProcessKubeconfigs(_) => ExitStatus::Config,
            Self::ApiServer(_) | Self::Connect(_) | Self::Listener(_) | Self::Metrics(_) => {
                ExitStatus::Failure
            }
        }
    }
}

/// Listeners of the roles.
struct Listeners {
    api_server: Option<TcpListener>,
    gateway: Option<TcpListener>,
    status: Option<TcpListener>,
    page: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &ServerConfig) -> Result<Self, BindError> {
        let of_role = |role, address| config.has(role).then_some(address);
        Ok(Self {
            api_server: bind("--listen", of_role(Role::Apiserver, config.listen)).await?,
            gateway: bind("--gateway-listen", of_role(Role::Gateway, config.gateway_listen)).await?,
            status: bind("--metrics-listen", config.metrics_listen).await?,
            page: bind("--web-listen", config.web_listen).await?,
        })
    }
}

async fn bind(flag: &'static str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, BindError> {
    match address {
        Some(address) => listeners::bind(flag, address).await.map(Some),
        None => Ok(None),
    }
}

/// Starts the roles. Returns when all of them serve. They end with `tasks`.
pub async fn start(config: ServerConfig, tasks: &Tasks) -> Result<(), StartServerError> {
    let api_server = match config.has(Role::Apiserver) {
        true => KubeconfigSource::File(config.kubeconfig_out.clone()),
        false => config.api_server.clone().ok_or(StartServerError::NoApiServer)?,
    };
    // All ports are bound first: a process that fails to bind must not have changed anything.
    let listeners = Listeners::bind(&config).await?;
    let page_address = listeners.page.as_ref().map(TcpListener::local_addr).transpose();
    let page_address = page_address.map_err(StartServerError::Listener)?;
    let registry = Registry::new();
    config.certificates.register(&registry)?;
    let clock = Clock::System;

    let started = match listeners.api_server {
        Some(listener) => {
            Some(api_server::start(&config, listener, page_address, &clock, &registry, tasks).await?)
        }
        None => None,
    };
    let client = follow(&api_server, &clock, tasks).await?;
    let serving = match started {
        Some(started) => Some(started.publish_trust(&client, &clock, tasks)),
        None if config.has_local_authority => Some(follow_local_authority(&config, &clock, tasks)?),
        None => None,
    };
    let roles = Roles {
        config: &config,
        api_server,
        client,
        serving,
        clock: &clock,
        registry: &registry,
        tasks,
        speeds: SpeedHistory::default(),
        bandwidths: BandwidthHistory::default(),
    };
    if config.has(Role::Controller) {
        roles.start_controller().await?;
    }
    if let (Some(listener), Some(address)) = (listeners.page, page_address) {
        roles.start_page(listener, address)?;
    }
    if let Some(listener) = listeners.gateway {
        roles.start_gateway(listener)?;
    }
    if let Some(listener) = listeners.status {
        status_server::serve(listener, registry, tasks);
    }
    host::freed_memory::release_regularly(tasks);
    Ok(())
}

/// Interval between checks whether another process rotated the authority.
const RELOAD_PERIOD: Duration = Duration::from_secs(2);

/// Returns the authority of serving certificates in the data directory. Follows rotations of it by
/// another process until `tasks` stop.
fn follow_local_authority(
    config: &ServerConfig,
    clock: &Clock,
    tasks: &Tasks,
) -> Result<Arc<Authority>, StartServerError> {
    let authority = Authority::open(config.data_dir.as_std_path(), AuthorityKind::Serving, clock)?;
    let authority = Arc::new(authority);
    let (followed, clock, stop) = (Arc::clone(&authority), clock.clone(), tasks.stop_token());
    tasks.spawn_detached(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RELOAD_PERIOD) => {}
            }
            if let Err(err) = followed.reload(&clock) {
                warn!(error = %Chain(&err), "failed to read the certificate authority again");
            }
        }
    });
    Ok(authority)
}

/// Returns the configuration of the store in a data directory.
pub fn store_config(
    data_dir: &Utf8Path,
    secrets_key: &Utf8Path,
    rotates_secrets_key: bool,
) -> Result<StoreConfig, OpenSecretsKeyError> {
    let mut config = rooflet_apiserver::store_config(data_dir.join(STORE));
    config.seal = Some(Arc::new(SecretsSeal::open(secrets_key, rotates_secrets_key)?));
    Ok(config)
}

/// Waits until `tasks` stop and have ended. `grace` limits the time between the two.
pub async fn wait(tasks: &Tasks, grace: Duration) -> Result<(), TasksError> {
    tasks.join(grace).await
}
