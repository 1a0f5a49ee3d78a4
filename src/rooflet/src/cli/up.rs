//! `rooflet up`: control plane, gateway and agent on this machine, in one process tree.

mod ask;
mod cluster;

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use self::cluster::Cluster;
use super::server::{settle, settle_web};
use super::ui::address::address;
use super::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;
use rooflet_client::KubeconfigSource;
use rooflet_composition::anonymous::{AllowAnonymous, Transport};
use rooflet_composition::data_dir;
use rooflet_composition::process_kubeconfigs;
use rooflet_composition::server;
use rooflet_composition::shutdown;
use rooflet_composition::supervisor::{ChildEvent, ChildSpec, Supervised};
use rooflet_host::cache_dir;
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_process::logs::Log;
use rooflet_web::{WebListen, sign_in_link};

/// Timeout until the control plane answers.
const SERVER_READY: Duration = Duration::from_secs(60);
/// Timeout until the gateway accepts connections, and interval of attempts.
const GATEWAY_READY: Duration = Duration::from_secs(60);
const GATEWAY_POLL: Duration = Duration::from_millis(50);
/// Timeout until the agent has registered and measured its machine.
const NODE_READY: Duration = Duration::from_secs(180);
/// Timeout until an applied deployment is ready.
const MODEL_READY: Duration = Duration::from_secs(600);
/// Timeout until all tasks have ended after the child processes have exited.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Arguments of `rooflet up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of store, keys, logs and kubeconfig.
    #[arg(long, env = "ROOFLET_DATA_DIR", value_parser = super::directory("ROOFLET_DATA_DIR"), default_value_t = super::default_data_dir())]
    data_dir: Utf8PathBuf,
    /// Directory with one model per subdirectory, for `local://NAME`. Default: DATA_DIR/models.
    #[arg(long, env = "ROOFLET_MODEL_DIR", value_parser = super::directory("ROOFLET_MODEL_DIR"))]
    model_dir: Option<Utf8PathBuf>,
    /// Address of the API server.
    #[arg(long, default_value = super::DEFAULT_LISTEN, value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Address of the OpenAI-compatible gateway.
    #[arg(long, default_value = super::DEFAULT_GATEWAY_LISTEN, value_name = "ADDR:PORT", value_parser = address)]
    gateway_listen: SocketAddr,
    /// Address of the web page, or `off`. Beyond loopback, the page has HTTPS.
    #[arg(long, default_value = super::DEFAULT_WEB_LISTEN, value_name = "ADDR:PORT")]
    web_listen: WebListen,
    #[command(flatten)]
    anonymous: AllowAnonymous,
    /// Web origins that may send requests to gateway and agent, such as `https://chat.example.com`;
    /// `*` for all. Pages of this machine (localhost) and of installed apps are always allowed.
    /// Clients other than browsers are not restricted.
    #[arg(long, value_name = "ORIGIN[,…]", env = "ROOFLET_ALLOWED_ORIGINS")]
    allowed_origins: Option<AllowedOrigins>,
    /// Path of the written kubeconfig. Default: DATA_DIR/kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<Utf8PathBuf>,
    /// Name of this machine's FleetNode. Default: the previous name, initially the host name.
    #[arg(long)]
    node_name: Option<String>,
    /// Let this Mac sleep on AC power when no request is in flight. By default, it stays awake on
    /// AC power (the display may sleep); on battery, only requests prevent sleep.
    #[arg(long)]
    let_sleep: bool,
    /// Apply these manifests after the start, and wait until their deployments are ready.
    #[arg(long, value_name = "FILE")]
    apply: Vec<Utf8PathBuf>,
    /// Send this question to the first applied deployment and print the streamed answer.
    #[arg(long, value_name = "QUESTION", requires = "apply")]
    ask: Option<String>,
    /// Stop all processes afterwards. The exit code shows whether all steps succeeded.
    #[arg(long)]
    exit: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let layout = Layout::prepare(&args)?;
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    let stop = tasks.stop_token();

    let (events_tx, mut events) = mpsc::channel(64);
    let mut children = Vec::new();
    let outcome = tokio::select! {
        outcome = bring_up(&args, &layout, &tasks, &events_tx, &mut children) => outcome,
        failure = watch(&mut events) => Err(failure),
        () = stop.cancelled() => match args.exit {
            true => Err(anyhow!("interrupted before all steps were complete").into()),
            false => Ok(()),
        },
    };
    let outcome = match outcome {
        Ok(()) if !args.exit && !stop.is_cancelled() => tokio::select! {
            failure = watch(&mut events) => Err(failure),
            () = stop.cancelled() => Ok(()),
        },
        other => other,
    };

    ui::progress("stopping …");
    events.close();
    // The agent stops first, so that its workers finish in-flight requests while the control plane
    // still runs.
    while let Some(child) = children.pop() {
        child.stop().await;
    }
    tasks.cancel();
    drop(tasks.join(STOP_GRACE).await);
    ui::progress("stopped");
    outcome
}

/// Prints events of the child processes. Returns when one of them cannot run.
async fn watch(events: &mut mpsc::Receiver<ChildEvent>) -> Failure {
    while let Some(event) = events.recv().await {
        match event {
            ChildEvent::Restarting { name, how, wait } => {
                ui::progress(&format!(
                    "the {name} {how}; restarting in {:.1} s",
                    wait.as_secs_f64()
                ));
            }
            ChildEvent::GaveUp { name, how, log, .. } => {
                let words = match log.as_str() {
                    "" => String::new(),
                    log => format!("; last lines of its log:\n{log}"),
                };
                return Failure::new(ExitStatus::Unavailable, anyhow!("the {name} {how}{words}"));
            }
        }
    }
    // The channel closes only after all children were stopped on request.
    std::future::pending().await
}

async fn bring_up(
    args: &Args,
    layout: &Layout,
    tasks: &Tasks,
    events: &mpsc::Sender<ChildEvent>,
    children: &mut Vec<Supervised>,
) -> Result<(), Failure> {
    let clock = Clock::System;
    let begin = clock.instant();
    ui::progress(&format!(
        "rooflet {}: starting control plane and agent (data in {})",
        env!("CARGO_PKG_VERSION"),
        layout.data_dir
    ));
    children.push(Supervised::start(
        layout.server(),
        clock.clone(),
        tasks,
        events.clone(),
    ));
    let cluster = Cluster::connect(&layout.kubeconfig, SERVER_READY).await?;
    ui::progress(&format!(
        "control plane ready after {:.1} s: https://{}",
        (clock.instant() - begin).as_secs_f64(),
        layout.listen
    ));

    for child in [layout.gateway(), layout.agent()] {
        children.push(Supervised::start(child, clock.clone(), tasks, events.clone()));
    }
    gateway_listens(layout.gateway_listen).await?;
    ui::progress("agent: waiting for this machine to register and to measure its memory bandwidth …");
    for line in cluster.node_ready(&layout.node_name, NODE_READY).await? {
        ui::progress(&line);
    }

    let mut deployments = Vec::new();
    for file in &args.apply {
        for applied in cluster.apply(file).await? {
            ui::progress(&applied.to_string());
            deployments.extend(applied.deployment);
        }
    }
    for deployment in &deployments {
        cluster
            .deployment_ready(deployment, MODEL_READY, &mut |line| ui::progress(line))
            .await?;
    }
    let model = match deployments.first() {
        Some(deployment) => Some(cluster.serving_name(deployment).await?),
        None => None,
    };
    if let Some(question) = &args.ask {
        let Some(model) = &model else {
            return Err(Failure::new(
                ExitStatus::Config,
                anyhow!("--ask: the applied files contain no ModelDeployment"),
            ));
        };
        ask::ask(
            &format!("http://{}", layout.gateway_listen),
            model,
            question,
            &clock,
        )
        .await?;
    }
    if !args.exit {
        if layout.web_listen.0.is_some() {
            let source = KubeconfigSource::File(layout.kubeconfig.clone());
            let link = sign_in_link(&source, &clock).await.map_err(anyhow::Error::from)?;
            ui::progress(&format!(
                "web page: {link}\n  (signs in once, within 2 minutes; `rooflet ui` prints another link)"
            ));
        }
        next_steps(layout, model.as_deref().unwrap_or("NAME"));
    }
    Ok(())
}

/// Waits until the gateway accepts connections.
async fn gateway_listens(address: SocketAddr) -> anyhow::Result<()> {
    let connect = async {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(GATEWAY_POLL).await;
        }
    };
    let outcome = tokio::time::timeout(GATEWAY_READY, connect).await;
    outcome.with_context(|| format!("the gateway does not listen on {address}; see its log"))
}

fn next_steps(layout: &Layout, model: &str) {
    ui::progress(&format!(
        "\nnext:\n  export KUBECONFIG={}\n  kubectl get mdep,mrep,mac -o wide\n  curl http://{}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is rooflet?\"}}]}}'\nCtrl-C stops all processes; the next start restores the state.",
        shell_word(layout.kubeconfig.as_str()),
        layout.gateway_listen,
    ));
}

/// Quotes a text for a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Paths and ports.
struct Layout {
    data_dir: Utf8PathBuf,
    model_dir: Utf8PathBuf,
    kubeconfig: Utf8PathBuf,
    listen: SocketAddr,
    gateway_listen: SocketAddr,
    web_listen: WebListen,
    node_name: String,
    allowed_origins: AllowedOrigins,
    let_sleep: bool,
    /// Lock that allows one `rooflet up` per data directory.
    _lock: File,
}

impl Layout {
    fn prepare(args: &Args) -> Result<Self, Failure> {
        args.anonymous
            .check("--gateway-listen", args.gateway_listen, Transport::Plain)
            .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
        let config = |error: anyhow::Error| Failure::new(ExitStatus::Config, error);
        let data_dir = camino::absolute_utf8(&args.data_dir).map_err(|err| config(err.into()))?;
        let create = |directory: &Utf8Path| {
            data_dir::create(directory).with_context(|| format!("creating the directory `{directory}`"))
        };
        create(&data_dir.join("logs")).map_err(config)?;
        let lock = lock(&data_dir)?;
        let model_dir = match &args.model_dir {
            Some(given) if !given.is_dir() => {
                return Err(config(anyhow!(
                    "--model-dir {given}: the directory does not exist; it must contain one model per subdirectory"
                )));
            }
            Some(given) => camino::absolute_utf8(given).map_err(|err| config(err.into()))?,
            None => {
                let directory = data_dir.join("models");
                let created = cache_dir::create(&directory);
                created
                    .with_context(|| format!("creating the directory `{directory}`"))
                    .map_err(config)?;
                directory
            }
        };
        for file in &args.apply {
            // The file is read again when it is applied. An unreadable file must fail before
            // anything starts.
            cluster::read(file).map_err(|error| config(error.context("--apply")))?;
        }
        Ok(Self {
            kubeconfig: args
                .kubeconfig_out
                .clone()
                .unwrap_or_else(|| data_dir.join("kubeconfig")),
            // Ports are chosen once, because children may restart and clients remember the port.
            listen: settle("--listen", args.listen)?,
            gateway_listen: settle("--gateway-listen", args.gateway_listen)?,
            web_listen: settle_web(args.web_listen)?,
            node_name: super::node_name(args.node_name.clone(), &data_dir.join("agent"))?,
            allowed_origins: args.allowed_origins.clone().unwrap_or_default(),
            let_sleep: args.let_sleep,
            data_dir,
            model_dir,
            _lock: lock,
        })
    }

    fn server(&self) -> ChildSpec {
        let args = [
            "server".into(),
            "--roles=apiserver,controller,web".into(),
            "--stop-with-stdin".into(),
            format!("--data-dir={}", self.data_dir.join("server")),
            format!("--listen={}", self.listen),
            format!("--gateway-listen={}", self.gateway_listen),
            format!("--web-listen={}", self.web_listen),
            format!("--kubeconfig-out={}", self.kubeconfig),
        ];
        ChildSpec {
            name: "server",
            args: self.with_common(args.into()),
            log: Some(Log::new(self.data_dir.join("logs/server.log"))),
            stop_grace: server::STOP_GRACE,
        }
    }

    /// Returns the gateway. It has a process of its own, so that its streams outlive the control
    /// plane.
    fn gateway(&self) -> ChildSpec {
        let args = [
            "server".into(),
            "--roles=gateway".into(),
            "--stop-with-stdin".into(),
            format!("--data-dir={}", self.data_dir.join("server")),
            format!("--gateway-listen={}", self.gateway_listen),
            format!(
                "--kubeconfig={}",
                process_kubeconfigs::of_gateway(&self.data_dir.join("server"))
            ),
            format!("--allowed-origins={}", self.allowed_origins),
        ];
        // Verified by `Layout::prepare`.
        let consent = (!self.gateway_listen.ip().is_loopback()).then(|| "--allow-anonymous".to_owned());
        ChildSpec {
            name: "gateway",
            args: self.with_common(args.into_iter().chain(consent).collect()),
            log: Some(Log::new(self.gateway_log())),
            stop_grace: server::STOP_GRACE,
        }
    }

    fn gateway_log(&self) -> Utf8PathBuf {
        self.data_dir.join("logs/gateway.log")
    }

    /// Adds the arguments that all children have.
    fn with_common(&self, mut args: Vec<String>) -> Vec<OsString> {
        args.extend(self.let_sleep.then(|| "--let-sleep".to_owned()));
        args.into_iter().map(OsString::from).collect()
    }

    fn agent(&self) -> ChildSpec {
        let args = [
            "agent".into(),
            "--stop-with-stdin".into(),
            format!("--kubeconfig={}", self.kubeconfig),
            format!("--node-name={}", self.node_name),
            format!("--allowed-origins={}", self.allowed_origins),
            format!("--model-dir={}", self.model_dir),
            format!("--state-dir={}", self.data_dir.join("agent")),
            format!("--gateway-log={}", self.gateway_log()),
        ];
        ChildSpec {
            name: "agent",
            args: self.with_common(args.into()),
            log: Some(Log::new(self.data_dir.join("logs/agent.log"))),
            stop_grace: server::STOP_GRACE,
        }
    }
}

/// Locks the data directory.
fn lock(data_dir: &Utf8Path) -> Result<File, Failure> {
    let path = data_dir.join("up.lock");
    let open = || -> anyhow::Result<File> {
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening `{path}`"))
    };
    let file = open().map_err(|error| Failure::new(ExitStatus::Config, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            ExitStatus::Unavailable,
            anyhow!("another `rooflet up` uses `{data_dir}`; stop it, or pass another --data-dir"),
        )),
        Err(TryLockError::Error(err)) => Err(Failure::new(
            ExitStatus::Config,
            anyhow!(err).context(format!("locking `{path}`")),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_paths_for_a_shell() {
        assert_eq!(
            shell_word("/home/me/.rooflet/kubeconfig"),
            "/home/me/.rooflet/kubeconfig"
        );
        assert_eq!(
            shell_word("/Users/me/My Data/it's"),
            r"'/Users/me/My Data/it'\''s'"
        );
    }
}
