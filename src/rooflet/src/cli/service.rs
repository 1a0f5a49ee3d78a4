//! `install`, `status` and `uninstall` of `rooflet agent` and `rooflet server`, which launchd then runs
//! from the start of the Mac.
//!
//! The crate `launchd` plans and executes the steps.

mod passed;
mod report;

use std::net::SocketAddr;
use std::slice;
use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};

use self::passed::Passed;
use self::report::Report;
use super::ui::output::Output;
use super::{DEFAULT_LISTEN, Failure, objects, token, ui};
use rooflet_base::error::ExitStatus;
#[cfg(test)]
use rooflet_launchd::Job;
use rooflet_launchd::{BINARIES, Daemon, Installation, Programs, PropertyList, Step, System, USER};
use rooflet_trust::KUBECONFIG_FILE;

/// Timeout until a new API server answers.
const API_SERVER_START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(500);
/// Programs of another machine.
const PRINTED: Programs = Programs::Printed(|command| ui::progress(&format!("on the Mac, run: {command}")));
/// Directory that does not exist.
const NO_FILES: &str = "/nonexistent";

/// Arguments of a verb that runs a service: those of the service `A`, or a verb about the installed
/// service.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ServiceArgs<A: clap::Args> {
    #[command(flatten)]
    pub(super) run: A,
    #[command(subcommand)]
    pub(super) verb: Option<Verb<A>>,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb<A: clap::Args> {
    /// On a Mac, install the service: launchd runs it from the start of the Mac, without a login, as an
    /// unprivileged user. Run it again to upgrade the binary or to change arguments.
    Install(InstallArgs<A>),
    /// On a Mac, print the state of the installed service. The exit code is 1 if it does not run.
    Status(StatusArgs),
    /// On a Mac, stop the service and remove it from launchd. Its data is kept.
    Uninstall(UninstallArgs),
}

/// Arguments of `rooflet agent install` and `rooflet server install`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "All flags of the service are accepted, too. Without any, an installed service keeps its flags."
)]
pub(super) struct InstallArgs<A: clap::Args> {
    /// User as whom the service runs. Default: that of the installed service, otherwise `_rooflet`,
    /// which is created without a password and a home directory.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    passed: Passed<A>,
}

/// Arguments of `rooflet agent status` and `rooflet server status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Arguments of `rooflet agent uninstall` and `rooflet server uninstall`.
#[derive(Debug, clap::Args)]
pub(super) struct UninstallArgs {
    /// Also delete state, credentials, downloaded models and logs of the service. Local models are kept.
    /// With the last service, binary and user are deleted, too.
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    changes: Changes,
}

/// Where changes are made.
#[derive(Debug, Clone, clap::Args)]
struct Changes {
    /// Print the steps, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Change the files below this directory instead of those of the system, for a package or an image.
    /// Commands for the Mac's accounts and for launchd are printed.
    #[arg(long, value_name = "DIR", conflicts_with = "dry_run")]
    prefix: Option<Utf8PathBuf>,
}

/// Returns names and texts of the property lists of services without flags.
#[cfg(feature = "mlx")]
pub(super) fn examples() -> impl Iterator<Item = (String, String)> {
    Daemon::ALL.into_iter().map(|daemon| {
        let installation = Installation::new(daemon, USER.to_owned(), Vec::new(), "".into(), None);
        (format!("{}.plist", daemon.label()), installation.job().text())
    })
}

/// Runs a verb about an installed service.
pub(super) async fn run<A: clap::Args>(daemon: Daemon, verb: Verb<A>) -> Result<ExitStatus, Failure> {
    match verb {
        Verb::Install(args) => install(daemon, args).await?,
        Verb::Uninstall(args) => uninstall(daemon, &args).await?,
        Verb::Status(args) => return status(daemon, &args).await,
    }
    Ok(ExitStatus::Success)
}

impl Changes {
    /// Returns the system to change. Fails if this machine or this user cannot be changed.
    fn system(&self, daemon: Daemon, verb: &str) -> Result<System, Failure> {
        let root = Utf8Path::new("/");
        match &self.prefix {
            Some(prefix) => Ok(System::new(prefix, PRINTED)),
            // On other systems, the steps are those of a new Mac.
            None if self.dry_run && !cfg!(target_os = "macos") => {
                Ok(System::new(Utf8Path::new(NO_FILES), PRINTED))
            }
            None => {
                require_macos(daemon, verb)?;
                if !self.dry_run && !nix::unistd::geteuid().is_root() {
                    let command = format!("rooflet {} {verb}", daemon.verb());
                    let problem = anyhow!("`{command}` changes the system: run `sudo {command}`");
                    return Err(Failure::new(ExitStatus::Usage, problem));
                }
                Ok(System::new(root, Programs::Native))
            }
        }
    }

    /// Executes or prints steps. Returns whether they were executed on this machine.
    async fn make(&self, system: &System, steps: &[Step]) -> Result<bool, Failure> {
        if self.dry_run {
            for step in steps {
                ui::output(&format!("{step}\n"));
            }
            return Ok(false);
        }
        for step in steps {
            if let Some(line) = step.progress() {
                ui::progress(&line);
            }
            system.apply(slice::from_ref(step)).await?;
        }
        Ok(self.prefix.is_none())
    }
}

fn require_macos(daemon: Daemon, verb: &str) -> Result<(), Failure> {
    if cfg!(target_os = "macos") {
        return Ok(());
    }
    let service = daemon.verb();
    let problem = anyhow!(
        "`rooflet {service} {verb}` is for macOS; on Linux, run `rooflet {service}` as a service of systemd \
         (docs/nodes.md has a unit)"
    );
    Err(Failure::new(ExitStatus::Usage, problem))
}

async fn install<A: clap::Args>(daemon: Daemon, args: InstallArgs<A>) -> Result<(), Failure> {
    let system = args.changes.system(daemon, "install")?;
    let installed = system.installed_list(daemon)?;
    let desired = desired(
        daemon,
        args.user,
        args.passed.arguments,
        installed.as_ref(),
        files()?,
    );
    let observed = system.observe(&desired, KUBECONFIG_FILE).await?;
    let steps =
        rooflet_launchd::install(&desired, &observed).map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    let verb = daemon.verb();
    if steps.is_empty() {
        ui::progress(&format!("`rooflet {verb}` is installed and needs no change"));
    }
    if !args.changes.make(&system, &steps).await? {
        return Ok(());
    }
    system.await_start(daemon).await?;
    ui::progress(&format!(
        "`rooflet {verb}` runs as {} from the start of this Mac; log: {}",
        desired.user,
        daemon.log()
    ));
    for line in rooflet_doctor::sleep_lines().await {
        ui::progress(&line);
    }
    match daemon {
        Daemon::Server => print_join_command(&desired).await,
        Daemon::Agent => Ok(()),
    }
}

/// Returns the files of this build: the binary, and the Metal kernels if they are in a file.
fn files() -> anyhow::Result<(Utf8PathBuf, Option<Utf8PathBuf>)> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.context("determining the path of this program")?;
    let utf8 = |path: std::path::PathBuf| {
        Utf8PathBuf::from_path_buf(path)
            .map_err(|path| anyhow!("`{}` is not UTF-8: move the program", path.display()))
    };
    #[cfg(feature = "mlx")]
    let kernels = rooflet_mlx::metallib::selected().map(|file| file.path().to_owned());
    #[cfg(not(feature = "mlx"))]
    let kernels = None;
    Ok((utf8(program)?, kernels.map(utf8).transpose()?))
}

/// Returns the desired installation. Without arguments, an installed service keeps its own. An installed
/// service always keeps its environment variables.
fn desired(
    daemon: Daemon,
    user: Option<String>,
    arguments: Vec<String>,
    installed: Option<&PropertyList>,
    (program, kernels): (Utf8PathBuf, Option<Utf8PathBuf>),
) -> Installation {
    let known_user = || installed.and_then(|job| job.user_name.clone());
    let user = user.or_else(known_user).unwrap_or_else(|| USER.to_owned());
    let arguments = match installed {
        Some(job) if arguments.is_empty() => job.service_arguments().to_vec(),
        Some(_) | None => arguments,
    };
    Installation::new(daemon, user, arguments, program, kernels).with_environment_of(installed)
}

/// Prints the command with which other machines join, if they can reach the API server.
async fn print_join_command(server: &Installation) -> Result<(), Failure> {
    let roles = server.values("--roles");
    if !roles.is_empty() && !roles.contains(&"apiserver") {
        return Ok(());
    }
    let listen = server.argument("--listen").unwrap_or(DEFAULT_LISTEN);
    let is_local = listen
        .parse::<SocketAddr>()
        .is_ok_and(|listen| listen.ip().is_loopback());
    if is_local {
        ui::progress("other machines cannot join: install again with `--listen 0.0.0.0:7443` to accept them");
        return Ok(());
    }
    let kubeconfig = match server.argument("--kubeconfig-out") {
        Some(path) => Utf8PathBuf::from(path),
        None => server.state_dir().join("kubeconfig"),
    };
    let answers = async {
        loop {
            if kubeconfig.exists()
                && let Ok(client) = objects::client(Some(kubeconfig.clone())).await
                && client.apiserver_version().await.is_ok()
            {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(API_SERVER_START, answers).await.is_err() {
        let problem = anyhow!(
            "the service runs, but its API server does not answer within {} s: see its log, then run `sudo rooflet token \
             create --kubeconfig {kubeconfig}`",
            API_SERVER_START.as_secs()
        );
        return Err(Failure::new(ExitStatus::Unavailable, problem));
    }
    ui::progress("run this command on every other machine (valid for 24 hours):");
    token::run(token::Args::create(kubeconfig)).await
}

async fn uninstall(daemon: Daemon, args: &UninstallArgs) -> Result<(), Failure> {
    let system = args.changes.system(daemon, "uninstall")?;
    let observed = system.observe_removal(daemon).await?;
    let steps = rooflet_launchd::uninstall(daemon, args.purge, &observed);
    let is_executed = args.changes.make(&system, &steps).await?;
    let verb = daemon.verb();
    if steps.is_empty() {
        ui::progress(&format!("`rooflet {verb}` is not installed"));
    } else if is_executed {
        ui::progress(&format!("`rooflet {verb}` is uninstalled"));
    }
    for line in rooflet_launchd::kept(daemon, args.purge, &observed) {
        ui::progress(&line);
    }
    Ok(())
}

async fn status(daemon: Daemon, args: &StatusArgs) -> Result<ExitStatus, Failure> {
    require_macos(daemon, "status")?;
    let system = System::new(Utf8Path::new("/"), Programs::Native);
    let binary = Utf8Path::new(BINARIES).join("rooflet");
    let report = Report::new(
        daemon,
        system.job(daemon).await,
        system.installed_list(daemon)?,
        system.is_current(&files()?.0, &binary)?,
        rooflet_doctor::sleep_lines().await,
    );
    args.output.print(&report, || Ok(report.text()))?;
    Ok(match report.is_running() {
        true => ExitStatus::Success,
        false => ExitStatus::Failure,
    })
}

#[cfg(test)]
mod tests;
