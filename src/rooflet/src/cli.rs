//! The command line: one file per verb, each with its arguments and a `run`.

mod agent;
mod bench;
mod claim;
mod completion;
mod crd;
mod credentials;
mod doctor;
mod failure;
mod fit;
mod nodes;
mod objects;
mod observation;
mod plan;
#[cfg(feature = "mlx")]
mod probe;
mod rebalance;
#[cfg(feature = "mlx")]
mod reference;
mod rollout;
#[cfg(feature = "mlx")]
mod selftest;
mod server;
mod service;
mod simulate;
mod ui;
mod up;
mod version;
#[cfg(feature = "mlx")]
mod worker;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use rooflet_agent::state::node_name_in;
use rooflet_base::environment;
use rooflet_base::error::ExitStatus;
use rooflet_client::KubeconfigSource;
use rooflet_host::{Host, local_host_name};
use rooflet_process::open_files;
use rooflet_roofline::probing::MAX_SUSTAINED_SECONDS;
use rooflet_telemetry::logging::{self, LogFormat};

use self::credentials::{join, key, leave, login, token, web_page, whoami};
use self::nodes::{cordon, drain, models};
use self::observation::{events, logs, status, top};
use self::service::ServiceArgs;
use self::ui::duration::seconds_within;
use rooflet_launchd::Daemon;

pub(crate) use self::failure::Failure;

/// Maximum time for in-flight requests to finish.
const MAX_GRACE_SECONDS: u64 = 3600;

/// Default address of the API server.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:7443";
/// Default address of the gateway.
pub(crate) const DEFAULT_GATEWAY_LISTEN: &str = "127.0.0.1:7480";
/// Default address of the web page.
pub(crate) const DEFAULT_WEB_LISTEN: &str = "127.0.0.1:7490";

/// Declarative node agent and control plane for fleets of Macs that serve language models.
#[derive(Debug, Parser)]
#[command(
    name = "rooflet",
    version,
    arg_required_else_help = true,
    subcommand_required = true
)]
struct Cli {
    /// Format of log lines. ROOFLET_LOG selects the logged levels, such as `info` or
    /// `rooflet=debug`.
    #[arg(long, global = true, value_enum, default_value_t, env = "ROOFLET_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

/// Arguments of `rooflet server`: those of the control plane, or a verb about it.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct ServerArgs {
    #[command(flatten)]
    run: server::Args,
    #[command(subcommand)]
    verb: Option<ServerVerb>,
}

#[derive(Debug, Subcommand)]
enum ServerVerb {
    #[command(flatten)]
    Service(service::Verb<server::Args>),
    #[command(flatten)]
    Data(server::data::Verb),
    /// Replace the certificate authorities of the fleet while it runs.
    RotateCa(server::rotate_ca::Args),
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run control plane, gateway and agent on this machine, in one process tree.
    Up(up::Args),
    /// Run the control plane: API server, controller and gateway.
    Server(ServerArgs),
    /// Run the node agent, which serves replicas of the API server or of manifests.
    Agent(ServiceArgs<agent::Args>),
    /// Join this machine to a remote control plane as a node.
    Join(join::Args),
    /// Remove this machine from its fleet: delete its FleetNode and its credentials.
    Leave(leave::Args),
    /// Store your credentials for a remote API server in a kubeconfig.
    Login(login::Args),
    /// Print the user that the API server sees, and the end of the credentials.
    Whoami(whoami::Args),
    /// Create, list and delete the tokens with which other machines join.
    Token(token::Args),
    /// Create, list and delete API keys of the gateway's clients, and print their use.
    Key(key::Args),
    /// Print a link that opens the web page of this machine's server and signs in.
    Ui(web_page::Args),
    /// Print the log of a replica on any node.
    Logs(logs::Args),
    /// Print events, changed conditions and worker exits in the order of time.
    Events(events::Args),
    /// Print the fleet on one screen: problems first, then deployments and Macs.
    Status(status::Args),
    /// Show the fleet live in the terminal, or once: Macs, replicas, deployments, events.
    ///
    /// With --once or --output, and if standard output is not a terminal, the command prints the
    /// tables and exits. Press ? in the live view for its keys.
    Top(top::Args),
    /// List the models on the nodes, and request downloads and deletions.
    Models(models::Args),
    /// Mark nodes as unschedulable.
    Cordon(cordon::Args),
    /// Mark nodes as schedulable.
    Uncordon(cordon::Args),
    /// Move a node's replicas to other nodes, within the disruption budgets of their deployments.
    Drain(drain::Args),
    /// Propose moves of replicas to better nodes, and execute them on request.
    Rebalance(rebalance::Args),
    /// Manage rollouts: status, pause, undo, promote and abort, like `kubectl rollout` for
    /// Deployments.
    Rollout(rollout::Args),
    /// Predict whether a model fits a machine, and its speed there.
    Fit(fit::Args),
    /// Predict whether Macs satisfy a demand, the largest possible demand, and which Macs to buy.
    Plan(plan::Args),
    /// Simulate a fleet on a virtual clock.
    Simulate(simulate::Args),
    /// Serve as the worker of a simulated machine. Agents of `server --simulate` start it.
    #[command(hide = true)]
    SimulatedWorker(simulate::worker::Args),
    /// Check this machine and print remedies: chip, memory, power, disk, engine.
    Doctor(doctor::Args),
    /// Check that the engine computes correctly on this device: kernels, tiny models, bandwidth,
    /// and a soak on request.
    #[cfg(feature = "mlx")]
    Selftest(selftest::Args),
    /// Measure this machine's memory bandwidth through the engine, or request a measurement of a
    /// node.
    #[cfg(feature = "mlx")]
    Probe(probe::Args),
    /// Benchmark one OpenAI-compatible server, or compare two: time to first token, decode speed,
    /// throughput.
    Bench(bench::Args),
    /// Predict and measure the decode speed of this machine with models of random weights.
    #[cfg(feature = "mlx")]
    BenchRoofline(bench::roofline::Args),
    /// Serve one model directory as an OpenAI-compatible server. Agents start workers themselves.
    #[cfg(feature = "mlx")]
    Worker(worker::Args),
    /// Render the chat template of a request. Workers start it.
    #[cfg(feature = "mlx")]
    #[command(hide = true)]
    RenderTemplate,
    /// Check published numbers against physics, known facts and their own arithmetic.
    Claim(Box<claim::Args>),
    /// Print a script that completes commands and options in a shell.
    ///
    /// bash: `source <(rooflet completion bash)`. zsh: `rooflet completion zsh > ~/.zfunc/_rooflet`, with
    /// `~/.zfunc` in `fpath`. fish: `rooflet completion fish > ~/.config/fish/completions/rooflet.fish`.
    Completion(completion::Args),
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    Crd(crd::Args),
    /// Write the reference pages of the documentation.
    #[cfg(feature = "mlx")]
    #[command(hide = true)]
    Reference(reference::Args),
    /// Print the version.
    Version(version::Args),
}

/// Runs the command line `args`, whose first element is the program name. Prints errors to standard
/// error. docs/reference/command-line.md lists the exit codes.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    #[cfg(feature = "mlx")]
    rooflet_mlx::set_environment();
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(err) => {
            let wrong = err.use_stderr();
            drop(err.print());
            return if wrong {
                ExitCode::from(ExitStatus::Usage as u8)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // kube logs every failed connection as an error; the caller handles and reports it.
    let filtered = logging::init(cli.log_format, "info,kube_client=off,kube_runtime=off");
    let filtered = filtered.map_err(|err| Failure::new(ExitStatus::Usage, err));
    open_files::raise_limit();
    let done = filtered.and_then(|()| execute(cli.command));
    // Incomplete output counts as a failure.
    let done = done.and_then(|status| match ui::lost() {
        Some(err) => Err(anyhow::anyhow!("writing to standard output: {err}").into()),
        None => Ok(status),
    });
    match done {
        Ok(status) => ExitCode::from(status as u8),
        Err(failure) => {
            ui::error(&failure.error);
            ExitCode::from(failure.status as u8)
        }
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = without(&|name| environment::is_empty(name), Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|err| err.format(&mut command))
}

/// Variables that name data directories. An empty value is rejected, because the user probably did
/// not intend the default.
const KEEPING: [&str; 3] = ["ROOFLET_DATA_DIR", "ROOFLET_SERVER_DATA_DIR", "ROOFLET_STATE_DIR"];

/// Removes empty environment variables from the arguments of a command and its subcommands, except
/// [`KEEPING`].
fn without(is_empty: &dyn Fn(&OsStr) -> bool, command: clap::Command) -> clap::Command {
    let ignored = |name: &OsStr| is_empty(name) && !KEEPING.iter().any(|own| name == *own);
    command
        .mut_args(|arg| match arg.get_env().is_some_and(ignored) {
            true => arg.env(None::<&'static str>),
            false => arg,
        })
        .mut_subcommands(|verb| without(is_empty, verb))
}

fn execute(command: Command) -> Result<ExitStatus, Failure> {
    match command {
        // These verbs return an exit status for a negative answer.
        Command::Fit(args) => return fit::run(&args),
        Command::Claim(args) => return claim::run(&args),
        Command::Plan(args) => return plan::run(&args),
        Command::Simulate(args) => return simulate::run(&args),
        Command::Doctor(args) => return block_on(doctor::run(args)),
        Command::Status(args) => return block_on(status::run(args)),
        Command::Top(args) => return block_on(top::run(args)),
        Command::Server(ServerArgs { verb: Some(verb), .. }) => match verb {
            ServerVerb::Service(verb) => return block_on(service::run(Daemon::Server, verb)),
            ServerVerb::Data(verb) => block_on(server::data::run(verb)),
            ServerVerb::RotateCa(args) => block_on(server::rotate_ca::run(args)),
        },
        Command::Agent(ServiceArgs { verb: Some(verb), .. }) => {
            return block_on(service::run(Daemon::Agent, verb));
        }
        #[cfg(feature = "mlx")]
        Command::Selftest(args) => return selftest::run(&args),
        // Times of network reads are accurate only if reader and clock share a thread.
        Command::Bench(args) => return block_on_one(bench::run(args)),
        Command::Up(args) => block_on(up::run(args)),
        Command::Server(args) => block_on(server::run(args.run)),
        // A priority applies to one thread, and a fleet has thousands of these processes.
        Command::SimulatedWorker(args) => block_on_one(simulate::worker::run(args)),
        Command::Agent(args) => block_on(agent::run(args.run)),
        Command::Join(args) => block_on(join::run(args)),
        Command::Leave(args) => block_on(leave::run(args)),
        Command::Login(args) => block_on(login::run(args)),
        Command::Whoami(args) => block_on(whoami::run(args)),
        Command::Key(args) => block_on(key::run(args)),
        Command::Token(args) => block_on(token::run(args)),
        Command::Ui(args) => block_on(web_page::run(args)),
        Command::Logs(args) => block_on(logs::run(args)),
        Command::Models(args) => block_on(models::run(args)),
        Command::Events(args) => block_on(events::run(args)),
        Command::Cordon(args) => block_on(cordon::cordon(args)),
        Command::Uncordon(args) => block_on(cordon::uncordon(args)),
        Command::Drain(args) => block_on(drain::run(args)),
        Command::Rebalance(args) => block_on(rebalance::run(args)),
        Command::Rollout(args) => block_on(rollout::run(args)),
        #[cfg(feature = "mlx")]
        Command::Probe(args) => match args.node {
            Some(node) => block_on(probe::request(&node, args.kubeconfig)),
            None => probe::run(&args),
        },
        #[cfg(feature = "mlx")]
        Command::BenchRoofline(args) => block_on(bench::roofline::run(args)),
        #[cfg(feature = "mlx")]
        Command::Worker(args) => block_on(worker::run(args)),
        #[cfg(feature = "mlx")]
        Command::RenderTemplate => worker::render_template::run().map_err(Failure::from),
        Command::Completion(args) => completion::run(&args),
        Command::Crd(args) => crd::run(&args),
        #[cfg(feature = "mlx")]
        Command::Reference(args) => reference::run(&args),
        Command::Version(args) => version::run(&args),
    }?;
    Ok(ExitStatus::Success)
}

/// Runs an asynchronous verb to completion.
fn block_on<T>(verb: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run_on(tokio::runtime::Builder::new_multi_thread(), verb)
}

/// Runs an asynchronous verb to completion on a single thread.
fn block_on_one<T>(verb: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run_on(tokio::runtime::Builder::new_current_thread(), verb)
}

fn run_on<T>(
    mut builder: tokio::runtime::Builder,
    verb: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // reqwest is built without a TLS provider and uses the default provider of the process.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = builder.enable_all().build().context("starting the runtime")?;
    let outcome = runtime.block_on(verb);
    // A blocking read of standard input may still run and must not keep the process alive.
    runtime.shutdown_background();
    outcome
}

/// Returns the user's home directory, or the current directory if it is unknown.
fn home() -> Utf8PathBuf {
    std::env::home_dir()
        .and_then(|home| Utf8PathBuf::from_path_buf(home).ok())
        .unwrap_or_default()
}

/// Returns `~/.rooflet`.
fn default_data_dir() -> Utf8PathBuf {
    home().join(".rooflet")
}

/// Returns a parser of an argument that names a directory. `variable` is the environment variable
/// of the argument.
fn directory(
    variable: &'static str,
) -> impl Fn(&str) -> Result<Utf8PathBuf, String> + Clone + Send + Sync + 'static {
    move |path| match path {
        "" => Err(format!(
            "must not be empty: pass a directory, or omit the argument and unset {variable}"
        )),
        path => Ok(path.into()),
    }
}

/// Returns kubectl's kubeconfig. If kubectl has none, returns the default one of `rooflet up` or
/// `rooflet server`.
fn default_kubeconfig() -> KubeconfigSource {
    if environment::is_set("KUBECONFIG") {
        KubeconfigSource::Environment
    } else {
        kubeconfig_in(&home())
    }
}

fn kubeconfig_in(home: &Utf8Path) -> KubeconfigSource {
    if home.join(".kube/config").exists() {
        return KubeconfigSource::Environment;
    }
    [".rooflet/kubeconfig", ".rooflet/server/kubeconfig"]
        .map(|file| home.join(file))
        .into_iter()
        .find(|file| file.exists())
        .map_or(KubeconfigSource::Environment, KubeconfigSource::File)
}

/// Parses the load time of the sustained measurement.
fn sustained_seconds(text: &str) -> Result<u64, String> {
    seconds_within(text, 1..=MAX_SUSTAINED_SECONDS)
}

/// Parses the time for in-flight requests to finish.
fn grace_seconds(text: &str) -> Result<u64, String> {
    seconds_within(text, 0..=MAX_GRACE_SECONDS)
}

/// Returns the node name: the explicit name, otherwise the name stored in the state directory,
/// otherwise the Mac's name in the local network or the host name. The stored name prevents a
/// second node when a network changes the Mac's host name.
fn node_name(explicit: Option<String>, state_dir: &Utf8Path) -> Result<String, Failure> {
    if let Some(name) = explicit {
        return Ok(name);
    }
    let stored = node_name_in(state_dir).with_context(|| {
        format!(
            "reading the node name in `{state_dir}`: pass it with --node-name, or choose another directory"
        )
    });
    let stored = stored.map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let of_machine = || local_host_name().unwrap_or_else(|| Host::Native.identity().hostname);
    Ok(stored.unwrap_or_else(|| as_node_name(&of_machine())))
}

/// Converts a host name to a valid FleetNode name.
fn as_node_name(hostname: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' || c == '-' {
            c
        } else {
            '-'
        }
    };
    let name: String = hostname.to_lowercase().chars().map(allowed).collect();
    let name = name.trim_matches(['.', '-']);
    if name.is_empty() {
        "node".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rooflet_agent::state::StateDir;
    use rooflet_testing::TempDir;

    #[test]
    fn empty_directory_argument_is_rejected_with_its_variable() {
        let parse = directory("ROOFLET_DATA_DIR");
        assert_eq!(parse("a b"), Ok("a b".into()));
        let refused = parse("").unwrap_err();
        assert!(refused.contains("ROOFLET_DATA_DIR"), "{refused}");
    }

    #[test]
    fn empty_variables_are_ignored_except_those_of_data_directories() {
        fn variables(command: &clap::Command) -> BTreeSet<&OsStr> {
            let verbs = command.get_subcommands().flat_map(variables);
            let own = command.get_arguments().filter_map(|arg| arg.get_env());
            own.chain(verbs).collect()
        }
        assert!(variables(&Cli::command()).contains(OsStr::new("ROOFLET_MODEL_DIR")));
        let command = without(&|_| true, Cli::command());
        assert_eq!(variables(&command), KEEPING.map(OsStr::new).into());
    }

    #[test]
    fn node_name_survives_a_change_of_host_name() {
        let directory = TempDir::new();
        let state_dir = directory.path();
        let name = |explicit: Option<&str>| node_name(explicit.map(str::to_owned), state_dir);
        let hostname = local_host_name().unwrap_or_else(|| Host::Native.identity().hostname);
        let hostname = as_node_name(&hostname);
        assert_eq!(name(None).unwrap(), hostname);
        let state = StateDir::open(state_dir).unwrap();
        state.save_node_name("anna-s-macbook-air.local").unwrap();
        assert_eq!(name(None).unwrap(), "anna-s-macbook-air.local");
        assert_eq!(name(Some("air")).unwrap(), "air");
        std::fs::write(state_dir.join("node-name.json"), "{").unwrap();
        let err = name(None).unwrap_err();
        assert_eq!(err.status, ExitStatus::Config);
        assert!(err.error.to_string().contains("--node-name"), "{}", err.error);
    }

    #[test]
    fn converts_host_names_to_node_names() {
        assert_eq!(
            as_node_name("Anna's MacBook Air.local"),
            "anna-s-macbook-air.local"
        );
        assert_eq!(as_node_name("…"), "node");
    }

    #[test]
    fn own_kubeconfig_is_the_default_if_kubectl_has_none() {
        let directory = TempDir::new();
        let home = directory.path();
        let write = |path: &str| {
            let path = home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            KubeconfigSource::File(path)
        };
        assert_eq!(kubeconfig_in(home), KubeconfigSource::Environment);
        let of_server = write(".rooflet/server/kubeconfig");
        assert_eq!(kubeconfig_in(home), of_server);
        let of_up = write(".rooflet/kubeconfig");
        assert_eq!(kubeconfig_in(home), of_up);
        write(".kube/config");
        assert_eq!(kubeconfig_in(home), KubeconfigSource::Environment);
    }
}
