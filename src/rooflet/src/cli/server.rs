//! `rooflet server`

pub(super) mod data;
mod processes;
pub(super) mod rotate_ca;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Context;
use camino::Utf8PathBuf;

use self::processes::Processes;
use super::Failure;
use super::ui::address::address;
use super::ui::duration::duration;
use rooflet_apiserver::{AuditPolicy, InFlightLimits};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::environment;
use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;
use rooflet_client::KubeconfigSource;
use rooflet_composition::anonymous::{AllowAnonymous, Transport};
use rooflet_composition::listeners::BindError;
use rooflet_composition::low_priority::LowPriorityRuntime;
use rooflet_composition::own_log;
use rooflet_composition::page_options::PageOptions;
use rooflet_composition::process_kubeconfigs;
use rooflet_composition::server;
use rooflet_composition::server::{Role, ServerConfig, StartServerError};
use rooflet_composition::shutdown;
use rooflet_composition::simulated::fleet::{self, SimulatedFleet};
use rooflet_composition::tls_files::TlsFiles;
use rooflet_composition::token_issuers;
use rooflet_gateway::{AccessLog, GatewayAccess};
use rooflet_host::{Host, sleep};
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_pki::CertificateMetrics;
use rooflet_simulation::{Scenario, machines};
use rooflet_web::WebListen;

/// Limits of `--event-ttl`.
const MIN_EVENT_TTL: Duration = Duration::from_secs(60);
const MAX_EVENT_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Arguments of `rooflet server`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store and the keys.
    #[arg(long, env = "ROOFLET_SERVER_DATA_DIR", value_parser = super::directory("ROOFLET_SERVER_DATA_DIR"), default_value_t = super::default_data_dir().join("server"))]
    data_dir: Utf8PathBuf,
    /// Address of the API server.
    #[arg(long, default_value = super::DEFAULT_LISTEN, value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Additional names and addresses for the API server's certificate. It always contains the
    /// loopback addresses and the address of --listen. If that is the unspecified address, it
    /// contains all addresses of this machine and its name.
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    tls_san: Vec<String>,
    /// Address of the OpenAI-compatible gateway.
    #[arg(long, default_value = super::DEFAULT_GATEWAY_LISTEN, value_name = "ADDR:PORT", value_parser = address)]
    gateway_listen: SocketAddr,
    /// Address of the web page, or `off`. Beyond loopback, the page needs HTTPS.
    #[arg(long, default_value = super::DEFAULT_WEB_LISTEN, value_name = "ADDR:PORT")]
    web_listen: WebListen,
    #[command(flatten)]
    page: Box<PageOptions>,
    #[command(flatten)]
    anonymous: AllowAnonymous,
    #[command(flatten)]
    tls: TlsFiles,
    /// Require an API key for every request to the gateway. `rooflet key create` creates keys.
    /// Without this option, a request needs no key, but a key that it presents must be valid.
    #[arg(long)]
    require_keys: bool,
    /// Additional address of `/health` and `/metrics`, without keys. The gateway serves both at its
    /// own address, too, but with --require-keys `/metrics` only to this machine. If the server has
    /// the role gateway and others, this address serves API server and controller.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    metrics_listen: Option<SocketAddr>,
    /// Web origins that may send requests to the gateway, such as `https://chat.example.com`; `*`
    /// for all. Pages of this machine (localhost) and of installed apps are always allowed. Clients
    /// other than browsers are not restricted.
    #[arg(long, value_name = "ORIGIN[,…]", env = "ROOFLET_ALLOWED_ORIGINS")]
    allowed_origins: Option<AllowedOrigins>,
    /// Requests that the gateway logs, one line each: `all`, `errors` (failed or cancelled) or
    /// `off`. The lines never contain prompts or answers.
    #[arg(long, value_name = "MODE", env = "ROOFLET_ACCESS_LOG", default_value = "all")]
    access_log: AccessLog,
    /// Path of the written kubeconfig. Default: DATA_DIR/kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<Utf8PathBuf>,
    /// File of the key that encrypts Secrets in the store. Created if it does not exist. Without the
    /// key, stored Secrets cannot be read. Default: DATA_DIR/secrets-key.
    #[arg(long, value_name = "FILE")]
    secrets_key: Option<Utf8PathBuf>,
    /// Encrypt all Secrets with a new key, and remove the old key from the file.
    #[arg(long)]
    rotate_secrets_key: bool,
    /// Roles of this server. With other roles, the gateway has a process of its own, so that its
    /// streams outlive a crash of the control plane.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "apiserver,controller,gateway,web"
    )]
    roles: Vec<Role>,
    /// Kubeconfig of another API server for the roles controller and gateway. Default: the value of
    /// KUBECONFIG, otherwise the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
    /// Maximum number of concurrent read requests to the API server. Further requests receive
    /// status 429. Watches are not counted.
    #[arg(long, default_value_t = InFlightLimits::default().requests, value_name = "N")]
    max_requests_inflight: NonZeroU32,
    /// Maximum number of concurrent write requests to the API server. Further requests receive
    /// status 429.
    #[arg(long, default_value_t = InFlightLimits::default().mutating_requests, value_name = "N")]
    max_mutating_requests_inflight: NonZeroU32,
    /// AuthenticationConfiguration of Kubernetes with issuers of tokens (OpenID Connect) whose users
    /// the API server accepts.
    #[arg(long, value_name = "FILE")]
    authentication_config: Option<Utf8PathBuf>,
    /// Requests to the API server that DATA_DIR/audit.log records, one line each, without bodies and
    /// credentials: `none`, `writes` (writes, denied requests, reads of Secrets) or `all`. Unless
    /// `none`, DATA_DIR/gateway-audit.log records denied uses of API keys.
    #[arg(long, value_name = "MODE", default_value = "writes", value_parser = audit_policy)]
    audit: AuditMode,
    /// Retention of events after they last occurred, such as 24h. The server keeps at most 16 MiB of
    /// events.
    #[arg(long, default_value = "168h", value_name = "DURATION", value_parser = event_ttl)]
    event_ttl: Duration,
    /// Node-loss reserve: place replicas so that the replicas of any N nodes fit on the remaining
    /// nodes.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    reserve_node_failures: u8,
    /// Add simulated Macs, such as those of examples/simulation/fleet.yaml: real agents with
    /// simulated machines and engines, labelled rooflet.dev/simulated. Only the file's fleet,
    /// models, faults and thermal traces are used.
    #[arg(long, value_name = "FLEET")]
    simulate: Option<Utf8PathBuf>,
    /// Time for answers in progress to finish after SIGTERM or Ctrl-C. The server accepts no further requests
    /// meanwhile. Then it ends the rest, and its exit status is 1.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "15s")]
    stop_grace: Duration,
    /// Let this Mac sleep on AC power. By default, the server prevents sleep on AC power (the
    /// display may sleep), and not on battery.
    #[arg(long)]
    let_sleep: bool,
    /// Use the authority in the data directory for the gateway's certificate. Set for the gateway
    /// process of a server with an API server.
    #[arg(long, hide = true)]
    local_authority: bool,
    /// Stop when standard input closes. A supervisor holds the other end.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // The server's own authority issues a certificate.
    let transport = match args.roles.contains(&Role::Apiserver) || args.local_authority {
        true => Transport::Tls,
        false => args.tls.transport(),
    };
    if let (true, Some(address), Transport::Plain) =
        (args.roles.contains(&Role::Web), args.web_listen.0, transport)
    {
        args.anonymous
            .check("--web-listen", address, Transport::PlainWithSignIn)
            .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    }
    if args.roles.contains(&Role::Gateway) && !(args.require_keys && transport == Transport::Tls) {
        args.anonymous
            .check("--gateway-listen", args.gateway_listen, transport)
            .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    }
    let fleet = simulated(&args).map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    if args.stop_with_stdin {
        shutdown::on_stdin_end(&tasks)?;
    } else {
        // A supervisor rotates the logs of its children.
        own_log::limit(&tasks);
    }
    if args.roles.contains(&Role::Gateway) && args.roles.iter().any(|role| *role != Role::Gateway) {
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        return processes(&args)?.run(&own, &tasks).await;
    }
    let issuers = args
        .authentication_config
        .as_deref()
        .map(token_issuers::load)
        .transpose();
    let issuers = issuers
        .map_err(|err| Failure::new(ExitStatus::Config, err))?
        .unwrap_or_default();
    let certificates = CertificateMetrics::default();
    let stop_grace = args.stop_grace;
    let config = ServerConfig {
        kubeconfig_out: kubeconfig_out(&args),
        data_dir: args.data_dir,
        listen: args.listen,
        tls_sans: args.tls_san,
        gateway_listen: args.gateway_listen,
        web_listen: args.web_listen.0.filter(|_| args.roles.contains(&Role::Web)),
        page: *args.page,
        metrics_listen: args.metrics_listen,
        roles: args.roles,
        has_local_authority: args.local_authority,
        in_flight: InFlightLimits {
            requests: args.max_requests_inflight,
            mutating_requests: args.max_mutating_requests_inflight,
        },
        issuers,
        audit: args.audit.0,
        event_ttl: args.event_ttl,
        reserve_node_failures: args.reserve_node_failures.into(),
        hub: HubAccess::from_environment().map_err(|err| Failure::new(ExitStatus::Usage, err))?,
        secrets_key: args.secrets_key,
        rotates_secrets_key: args.rotate_secrets_key,
        certificate_files: args
            .tls
            .open(&Clock::System, &certificates)
            .map_err(|err| Failure::new(ExitStatus::Config, err))?,
        gateway_access: GatewayAccess {
            allowed_origins: args.allowed_origins.unwrap_or_default(),
            log: args.access_log,
            requires_keys: args.require_keys,
            serving_tls: None,
            agent_tls: None,
            audit: None,
        },
        certificates,
        api_server: api_server(
            args.kubeconfig,
            environment::is_set("KUBECONFIG"),
            KubeconfigSource::of_pod(),
        ),
    };
    let never_serves = || false;
    let stop = tasks.stop_token();
    tasks.spawn_detached(sleep::prevent(Host::Native, args.let_sleep, never_serves, stop));
    server::start(config, &tasks)
        .await
        .map_err(|err: StartServerError| Failure::new(err.status(), err))?;
    let mut agents = None;
    if let Some(fleet) = &fleet {
        let runtime = LowPriorityRuntime::start().context("starting the threads of the simulated Macs")?;
        let runtime = agents.insert(runtime);
        runtime.wrap(fleet::start(fleet, &tasks)).await?;
    }
    server::wait(&tasks, stop_grace)
        .await
        .map_err(|err| Failure::from(anyhow::Error::from(err)))
}

/// Policy of `--audit`; `None` records nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AuditMode(Option<AuditPolicy>);

fn audit_policy(text: &str) -> Result<AuditMode, &'static str> {
    match text {
        "none" => Ok(AuditMode(None)),
        "writes" => Ok(AuditMode(Some(AuditPolicy::Writes))),
        "all" => Ok(AuditMode(Some(AuditPolicy::All))),
        _ => Err("must be `none`, `writes` or `all`"),
    }
}

/// Returns the processes of a server with the role gateway and others. Chooses the ports once,
/// because a process may restart and clients remember its port.
fn processes(args: &Args) -> Result<Processes, Failure> {
    let has_api_server = args.roles.contains(&Role::Apiserver);
    Ok(Processes {
        roles: args.roles.clone(),
        listen: match has_api_server {
            true => settle("--listen", args.listen)?,
            false => args.listen,
        },
        gateway_listen: settle("--gateway-listen", args.gateway_listen)?,
        web_listen: settle_web(args.web_listen)?,
        gateway_kubeconfig: process_kubeconfigs::of_gateway(&args.data_dir),
        stop_grace: args.stop_grace,
    })
}

/// Replaces port 0 by a free port. Fails if a port is in use.
pub(super) fn settle(flag: &'static str, address: SocketAddr) -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(|err| match BindError::new(flag, address, err) {
        taken @ BindError::InUse { .. } => Failure::new(ExitStatus::Unavailable, taken),
        other @ BindError::Other { .. } => Failure::new(ExitStatus::Config, other),
    })
}

/// Like [`settle`], for the web page.
pub(super) fn settle_web(listen: WebListen) -> Result<WebListen, Failure> {
    let settled = listen.0.map(|address| settle("--web-listen", address));
    settled.transpose().map(WebListen)
}

fn kubeconfig_out(args: &Args) -> Utf8PathBuf {
    let given = args.kubeconfig_out.clone();
    given.unwrap_or_else(|| args.data_dir.join("kubeconfig"))
}

/// Parses the retention of events.
fn event_ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        ttl if (MIN_EVENT_TTL..=MAX_EVENT_TTL).contains(&ttl) => Ok(ttl),
        _ => Err("must be a duration from 1m to 365d".to_owned()),
    }
}

/// Returns the kubeconfig of another API server, if one is configured. `is_set` is true if
/// KUBECONFIG is set. `pod` is the service account of the pod in which this process runs.
fn api_server(
    kubeconfig: Option<Utf8PathBuf>,
    is_set: bool,
    pod: Option<KubeconfigSource>,
) -> Option<KubeconfigSource> {
    let environment = is_set.then_some(KubeconfigSource::Environment);
    kubeconfig.map(KubeconfigSource::File).or(environment).or(pod)
}

/// Loads the fleet of `--simulate` before anything is started.
fn simulated(args: &Args) -> anyhow::Result<Option<SimulatedFleet>> {
    let Some(file) = &args.simulate else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let scenario = Scenario::parse(&text).with_context(|| file.to_string())?;
    scenario.check_injectable().with_context(|| file.to_string())?;
    machines(&scenario).with_context(|| file.to_string())?;
    let program = std::env::current_exe().context("determining the path of this program")?;
    let own = KubeconfigSource::File(kubeconfig_out(args));
    Ok(Some(SimulatedFleet {
        scenario,
        file: file
            .canonicalize_utf8()
            .with_context(|| format!("reading {file}"))?,
        state_dir: args.data_dir.join("simulated"),
        api_server: match args.roles.contains(&Role::Apiserver) {
            true => own,
            false => {
                let is_set = environment::is_set("KUBECONFIG");
                api_server(args.kubeconfig.clone(), is_set, KubeconfigSource::of_pod()).unwrap_or(own)
            }
        },
        program: Utf8PathBuf::try_from(program)
            .context("path of this program is not UTF-8: move the program")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_ttl_is_between_a_minute_and_a_year() {
        for week in ["168h", "7d"] {
            assert_eq!(event_ttl(week), Ok(Duration::from_secs(7 * 24 * 3600)));
        }
        for wrong in ["", "0s", "59s", "8761h", "366d", "24"] {
            event_ttl(wrong).unwrap_err();
        }
    }

    #[test]
    fn configured_api_server_is_used() {
        let file = KubeconfigSource::File("a".into());
        let pod = Some(KubeconfigSource::ServiceAccount);
        for (kubeconfig, is_set, pod, expect) in [
            (Some("a"), true, pod.clone(), Some(file.clone())),
            (Some("a"), false, None, Some(file)),
            (None, true, pod.clone(), Some(KubeconfigSource::Environment)),
            (None, false, pod.clone(), pod),
            (None, false, None, None),
        ] {
            assert_eq!(api_server(kubeconfig.map(Into::into), is_set, pod), expect);
        }
    }
}
