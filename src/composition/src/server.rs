//! Control plane in one process: API server, controller and gateway, or a subset of these roles.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::net::TcpListener;
use tracing::{info, warn};
use uuid::Uuid;

use super::audit_log::AuditLog;
use super::data_dir;
use super::kubeconfig::follow;
use super::listeners::{self, BindError};
use super::page_options::{PageOptions, catalogue, planner};
use super::process_kubeconfigs::{self, ProcessKubeconfigError, ProcessKubeconfigs};
use super::secrets_seal::SecretsSeal;
use super::status_server;
use super::token_issuers;
use super::traces;
use rooflet_api::crd;
use rooflet_apiserver::{
    ApiServer, ApiServerConfig, Audit, AuditPolicy, CertificateSigners, EventRetention, InFlightLimits,
    NodeResource, StartApiServerError,
};
use rooflet_artifact::remote::HubAccess;
use rooflet_authorizer::NodeAuthorizer;
use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::metrics::Registry;
use rooflet_base::task::{Tasks, TasksError};
use rooflet_client::{ConnectError, KubeconfigSource};
use rooflet_controller as controller;
use rooflet_controller::{BandwidthHistory, ControllerConfig, SpeedHistory};
use rooflet_gateway as gateway;
use rooflet_gateway::GatewayAccess;
use rooflet_host as host;
use rooflet_host::Host;
use rooflet_pki as pki;
use rooflet_pki::kubeconfig::Credentials;
use rooflet_pki::{
    AccountKey, Authority, AuthorityKind, CertificateMetrics, Identity, IssueError, MachineTls,
    MachineTlsError, OpenAccountKeyError, OpenAuthorityError, OpenSecretsKeyError, OpenTokenError,
    Revocations, SecretsKey, ServingCertificate, Token, TokenIssuer, UserCertificates, kubeconfig,
};
use rooflet_proxy::AgentTls;
use rooflet_store::{OpenStoreError, Store, StoreConfig, StoreMetrics};
use rooflet_trust::{
    AuthorityRotation, FleetAuthorities, MachineCertificate, PublishedAuthorities, PublishedTrust, Purpose,
    TrustPublisher,
};
use rooflet_web::{GatewayAddress, HistorySource, WebConfig};

/// Timeout of streams after the process was asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// File of the store in the data directory.
pub const STORE: &str = "store.redb";
/// Default file of the key of Secrets in the data directory.
pub const SECRETS_KEY: &str = "secrets-key";

/// File in the data directory: denied uses of API keys.
const GATEWAY_AUDIT: &str = "gateway-audit.log";

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
    pub gateway_access: GatewayAccess,
    /// Certificates that the metrics show.
    pub certificates: CertificateMetrics,
    /// Another API server, for processes without the role apiserver.
    pub api_server: Option<KubeconfigSource>,
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

/// Starts the roles. Returns when all of them serve. They end with `tasks`.
pub async fn start(config: ServerConfig, tasks: &Tasks) -> Result<(), StartServerError> {
    let has = |role| config.roles.contains(&role);
    if !has(Role::Apiserver) && config.api_server.is_none() {
        return Err(StartServerError::NoApiServer);
    }
    // All ports are bound first: a process that fails to bind must not have changed anything.
    let api_listener = match has(Role::Apiserver) {
        true => Some(listeners::bind("--listen", config.listen).await?),
        false => None,
    };
    let gateway_listener = match has(Role::Gateway) {
        true => Some(listeners::bind("--gateway-listen", config.gateway_listen).await?),
        false => None,
    };
    let status_listener = match config.metrics_listen {
        Some(address) => Some(listeners::bind("--metrics-listen", address).await?),
        None => None,
    };
    let web_listener = match config.web_listen {
        Some(address) => Some(listeners::bind("--web-listen", address).await?),
        None => None,
    };
    let web_address = web_listener.as_ref().map(TcpListener::local_addr).transpose();
    let web_address = web_address.map_err(StartServerError::Listener)?;
    let registry = Registry::new();
    config.certificates.register(&registry)?;
    let clock = Clock::System;

    let (api_server, authorities) = match api_listener {
        Some(listener) => {
            let address = listener.local_addr().map_err(StartServerError::Listener)?;
            let listener = listener.into_std().map_err(StartServerError::Listener)?;
            let started =
                start_api_server(&config, listener, address, web_address, &clock, &registry, tasks).await?;
            (
                KubeconfigSource::File(config.kubeconfig_out.clone()),
                Some(started),
            )
        }
        None => (
            config.api_server.clone().ok_or(StartServerError::NoApiServer)?,
            None,
        ),
    };
    let client = follow(&api_server, &clock, tasks).await?;
    let local_authority = || Authority::open(config.data_dir.as_std_path(), AuthorityKind::Serving, &clock);
    let local_authority = config.has_local_authority.then(local_authority).transpose()?;
    let serving = authorities.map(|started| {
        let StartedApiServer {
            authorities,
            users,
            revocations,
        } = started;
        let publisher = TrustPublisher {
            client: client.clone(),
            clock: clock.clone(),
            authorities: PublishedAuthorities::Server(authorities.clone()),
            revocations,
        };
        publisher.start(tasks);
        let serving = Arc::clone(&authorities.servers);
        let rotation = AuthorityRotation {
            client: client.clone(),
            authorities,
            users,
            clock: clock.clone(),
        };
        rotation.start(tasks);
        serving
    });
    let serving = serving.or_else(|| {
        let authority = Arc::new(local_authority?);
        reload(Arc::clone(&authority), clock.clone(), tasks);
        Some(authority)
    });
    let (speeds, bandwidths) = (SpeedHistory::default(), BandwidthHistory::default());
    if has(Role::Controller) {
        let data_dir = config.data_dir.clone();
        let config = ControllerConfig {
            identity: identity(&Host::Native.identity().hostname, &config.roles, &data_dir),
            reserve_node_failures: config.reserve_node_failures,
            hub: config.hub.clone(),
            history: speeds.clone(),
            bandwidths: bandwidths.clone(),
            issues_certificates: api_server == KubeconfigSource::ServiceAccount,
        };
        // The controller has an identity of its own: the audit log distinguishes it from the administrator.
        let client = match has(Role::Apiserver) {
            true => {
                let own = process_kubeconfigs::of_controller(&data_dir);
                follow(&KubeconfigSource::File(own), &clock, tasks).await?
            }
            false => client.clone(),
        };
        controller::run(config, client, clock.clone(), tasks, &registry)?;
    }
    let certificate = |server: &'static str, address: SocketAddr| match &serving {
        Some(authority) if !address.ip().is_loopback() => {
            let names = machine_names(address.ip(), config.tls_sans.clone());
            let certificate = ServingCertificate::issue(Arc::clone(authority), names, clock.clone())?;
            config.certificates.observe_serving(server, &certificate);
            Ok(Some(Arc::new(certificate.server_config_without_clients()?)))
        }
        Some(_) | None => Ok::<_, StartServerError>(None),
    };
    let agent_tls = |purpose: fn(String) -> Purpose| {
        let tls = MachineTls::new(Revocations::default());
        let revocations = tls.revocations().clone();
        let agents = AgentTls::new(Arc::new(tls.client_config()?), move |certificate| {
            revocations.contain(certificate)
        });
        config.certificates.observe_machine(&tls);
        let name = Host::Native.identity().hostname.to_lowercase();
        let trust = PublishedTrust::watch(client.clone(), false, tasks);
        MachineCertificate::keep(client.clone(), trust, tls, purpose(name), None, tasks);
        Ok::<_, StartServerError>(Some(agents))
    };
    if let (Some(listener), Some(address)) = (web_listener, web_address) {
        let files = &config.gateway_access.serving_tls;
        // The certificate of the gateway is that of `certificate`, or of the files.
        let gateway = match (config.gateway_listen.ip().is_loopback(), files, &serving) {
            (_, Some(_), _) => None,
            (true, None, _) | (false, None, None) => Some(None),
            (false, None, Some(authority)) => Some(Some(Arc::new(authority.client_config()?))),
        };
        let page = WebConfig {
            api_server: api_server.clone(),
            has_api_server: has(Role::Apiserver),
            history: has(Role::Controller).then(|| {
                let clock = clock.clone();
                HistorySource::new(
                    move |uid| speeds.of(uid, clock.now()),
                    move |uid| bandwidths.of(uid),
                )
            }),
            planner: planner(config.reserve_node_failures, clock.clone()),
            catalogue: catalogue(),
            prometheus: config.page.prometheus(),
            gateway: match &config.page.gateway_url {
                Some(url) => Some(GatewayAddress::Remote(url.clone())),
                None => gateway.map(|tls| GatewayAddress::Local {
                    address: config.gateway_listen,
                    tls,
                }),
            },
            agent_tls: agent_tls(|name| Purpose::Operator { name })?,
            serving_tls: match address.ip().is_loopback() {
                true => None,
                false => files
                    .clone()
                    .map_or_else(|| certificate("web", address), |tls| Ok(Some(tls)))?,
            },
            names: machine_names(address.ip(), config.tls_sans.clone()),
        };
        rooflet_web::serve(listener, page, clock.clone(), tasks).map_err(StartServerError::Listener)?;
    }
    if let Some(listener) = gateway_listener {
        let tracer = traces::start("rooflet-gateway", tasks.stop_token(), tasks);
        let mut access = config.gateway_access.clone();
        let address = listener.local_addr().map_err(StartServerError::Listener)?;
        if access.serving_tls.is_none() {
            access.serving_tls = certificate("gateway", address)?;
        }
        access.agent_tls = agent_tls(|name| Purpose::Gateway { name })?;
        // The file system of a pod is read-only.
        let has_directory = !matches!(api_server, KubeconfigSource::ServiceAccount);
        if config.audit.is_some() && has_directory {
            data_dir::create(&config.data_dir).map_err(|err| StartServerError::DataDir {
                path: config.data_dir.clone(),
                err,
            })?;
            access.audit = Some(AuditLog::of_denials(&config.data_dir.join(GATEWAY_AUDIT), tasks));
        }
        gateway::serve(listener, client, clock, tasks, &registry, tracer, access)?;
    }
    if let Some(listener) = status_listener {
        status_server::serve(listener, registry, tasks);
    }
    host::freed_memory::release_regularly(tasks);
    Ok(())
}

/// Returns the identity of the controller in the leader election.
fn identity(hostname: &str, roles: &[Role], data_dir: &Utf8Path) -> String {
    if roles.contains(&Role::Apiserver) {
        // A data directory has one server at a time, so a restarted server may take over leadership
        // immediately.
        format!("{hostname}_{data_dir}")
    } else {
        // Pods that share the network of their node have the same host name and may have the same
        // process id.
        format!("{hostname}_{}", Uuid::new_v4())
    }
}

/// Interval between checks whether another process rotated the authority.
const RELOAD_PERIOD: Duration = Duration::from_secs(2);

/// Follows rotations of an authority by another process until `tasks` stop.
fn reload(authority: Arc<Authority>, clock: Clock, tasks: &Tasks) {
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RELOAD_PERIOD) => {}
            }
            if let Err(err) = authority.reload(&clock) {
                warn!(error = %Chain(&err), "failed to read the certificate authority again");
            }
        }
    });
}

/// Authorities and users of a started API server.
struct StartedApiServer {
    authorities: FleetAuthorities,
    users: UserCertificates,
    /// Revocations that the API server applies.
    revocations: Revocations,
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

async fn start_api_server(
    config: &ServerConfig,
    listener: std::net::TcpListener,
    address: SocketAddr,
    web_address: Option<SocketAddr>,
    clock: &Clock,
    registry: &Registry,
    tasks: &Tasks,
) -> Result<StartedApiServer, StartServerError> {
    let directory: &Utf8Path = &config.data_dir;
    data_dir::create(directory).map_err(|err| StartServerError::DataDir {
        path: directory.to_owned(),
        err,
    })?;
    // The store's lock detects another server with this directory, so the store is opened before
    // anything is written.
    let secrets_key = config
        .secrets_key
        .clone()
        .unwrap_or_else(|| directory.join(SECRETS_KEY));
    let mut store_config = store_config(directory, &secrets_key, config.rotates_secrets_key)?;
    store_config.metrics = StoreMetrics::register(registry)?;
    let store = Store::open(store_config, clock.clone())?;
    if config.rotates_secrets_key {
        SecretsKey::remove_old(secrets_key.as_std_path())?;
        info!(path = %secrets_key, "Secrets are encrypted with a new key");
    }
    let open_authority = |kind| Authority::open(directory.as_std_path(), kind, clock);
    let authorities = FleetAuthorities {
        servers: Arc::new(open_authority(AuthorityKind::Serving)?),
        clients: open_authority(AuthorityKind::Client)?,
        nodes: open_authority(AuthorityKind::Node)?,
    };
    let revocations = Revocations::default();
    let clients = authorities.clients.clone();
    let signers = CertificateSigners {
        client: authorities.clients.clone(),
        node: authorities.nodes.clone(),
        uri_of: Some(Box::new(move |common_name, organizations| {
            let identity = Identity::of_subject(common_name, organizations)?;
            Some(identity.uri(&clients.fleet()?))
        })),
        revocations: revocations.clone(),
        nodes: Some(NodeResource {
            group: rooflet_api::GROUP,
            version: rooflet_api::VERSION,
            plural: "fleetnodes",
        }),
    };
    let users = UserCertificates::new(&authorities.clients, revocations.clone(), clock.clone())?;
    let token = Token::open(directory.as_std_path())?;
    let names = machine_names(address.ip(), config.tls_sans.clone());
    let certificate = ServingCertificate::issue(Arc::clone(&authorities.servers), names, clock.clone())?;
    config.certificates.observe_serving("apiserver", &certificate);
    let tls = Arc::new(certificate.server_config(&users)?);

    token_issuers::keep(&config.issuers, tasks);
    let api = ApiServerConfig {
        token: token.clone(),
        account_key: Some(Arc::new(AccountKey::open(directory.as_std_path())?)),
        issuers: config.issuers.clone(),
        tls: Some(tls),
        authority: Some(authorities.servers.as_ref().clone()),
        users: Some(users.clone()),
        signers: Some(signers),
        in_flight: config.in_flight,
        audit: config.audit.map(|policy| Audit {
            policy,
            sink: Arc::new(AuditLog::start(&directory.join("audit.log"), tasks)),
        }),
        events: EventRetention {
            lifetime: config.event_ttl,
            ..EventRetention::default()
        },
        authorizers: vec![Arc::new(NodeAuthorizer)],
        policies: vec![Arc::new(NodeAuthorizer)],
        roles: rooflet_authorizer::roles(),
    };
    let server = ApiServer::new(api, store.clone(), clock.clone(), registry)?;
    let definitions: Vec<_> = crd::all()
        .iter()
        .map(|definition| serde_json::json!(definition))
        .collect();
    server.install_crds(&definitions).await?;
    drop(definitions);
    server.serve(listener, tasks).await?;

    // The kubeconfig is written last, so that it is usable as soon as it exists.
    let mut from_here = address;
    if address.ip().is_unspecified() {
        from_here.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let url = format!("https://{from_here}");
    let (own, server) = (config.kubeconfig_out.clone(), url.clone());
    let write_administrator = move |authority: &str| {
        kubeconfig::write_extended(
            own.as_std_path(),
            &server,
            authority,
            Credentials::Token(token.reveal()),
            web_address.map(rooflet_web::kubeconfig_extension),
        )
    };
    let processes = ProcessKubeconfigs {
        data_dir: directory.to_owned(),
        server: url,
        servers: Arc::clone(&authorities.servers),
        clients: authorities.clients.clone(),
        write_administrator: Box::new(write_administrator),
        hostname: Host::Native.identity().hostname.to_lowercase(),
        clock: clock.clone(),
    };
    let renew_at = processes.write_or_keep()?;
    (processes.write_administrator)(&authorities.servers.certificate_pem())?;
    processes.keep(renew_at, tasks);
    info!(kubeconfig = %config.kubeconfig_out, "kubeconfig written");
    tasks.spawn("store-close", |stop| {
        Box::pin(async move {
            stop.cancelled().await;
            store.close().await;
            Ok::<_, io::Error>(())
        })
    });
    Ok(StartedApiServer {
        authorities,
        users,
        revocations,
    })
}

/// Returns the names of a serving certificate of this machine.
fn machine_names(listen: IpAddr, extra: Vec<String>) -> Vec<String> {
    serving_names(listen, extra, || MachineNames {
        hostname: Host::Native.identity().hostname,
        addresses: host::addresses(),
    })
}

/// Names and addresses of this machine.
struct MachineNames {
    hostname: String,
    addresses: Vec<IpAddr>,
}

/// Returns the names of the serving certificate besides the loopback names: the listen address, or
/// all names and addresses of this machine if it is unspecified, and `extra`.
fn serving_names(listen: IpAddr, extra: Vec<String>, here: impl FnOnce() -> MachineNames) -> Vec<String> {
    let mut names = match listen.is_unspecified() {
        false => vec![listen.to_string()],
        true => {
            let here = here();
            let plain = here.hostname.to_lowercase();
            let local = (!plain.contains('.')).then(|| format!("{plain}.local"));
            let addresses = here.addresses.iter().map(IpAddr::to_string);
            let own = [plain].into_iter().chain(local).chain(addresses);
            // Host names that are invalid in certificates are skipped. An invalid name in `extra`
            // is an error.
            own.filter(|name| pki::is_ip_or_dns_name(name)).collect()
        }
    };
    names.extend(extra);
    names
}

/// Waits until the control plane has stopped.
pub async fn wait(tasks: &Tasks) -> Result<(), TasksError> {
    tasks.join(STOP_GRACE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_with_its_data_directory_keeps_its_identity() {
        let of = |roles: &[Role], data_dir: &str| identity("mini", roles, data_dir.into());
        let server = [Role::Apiserver, Role::Controller];
        assert_eq!(of(&server, "/a"), of(&server, "/a"));
        assert_ne!(of(&server, "/a"), of(&server, "/b"));
        let pod = [Role::Controller];
        assert_ne!(of(&pod, "/a"), of(&pod, "/a"));
    }

    #[test]
    fn unspecified_listen_address_adds_all_names_of_the_machine() {
        let check = |listen: &str, hostname: &str, extra: &[&str], expect: &[&str]| {
            let here = || MachineNames {
                hostname: hostname.to_owned(),
                addresses: vec![[192, 0, 2, 7].into(), "2001:db8::7".parse().expect("an address")],
            };
            let extra = extra.iter().map(|name| (*name).to_owned()).collect();
            let got = serving_names(listen.parse().expect("an address"), extra, here);
            assert_eq!(got, expect, "{listen} {hostname}");
        };
        let mini = "mini";
        check("192.0.2.1", mini, &[], &["192.0.2.1"]);
        check("192.0.2.1", mini, &["a.b"], &["192.0.2.1", "a.b"]);
        let all = ["mini", "mini.local", "192.0.2.7", "2001:db8::7"];
        check("0.0.0.0", "Mini", &[], &all);
        check("::", mini, &["a.b"], &[&all[..], &["a.b"]].concat());
        check(
            "::",
            "mini.local",
            &[],
            &["mini.local", "192.0.2.7", "2001:db8::7"],
        );
        check(
            "::",
            "Bob's Mac",
            &["Bob's Mac"],
            &["192.0.2.7", "2001:db8::7", "Bob's Mac"],
        );
    }
}
