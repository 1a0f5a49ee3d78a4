//! `rooflet doctor`: checks this machine and prints remedies.

mod bundle;

use anyhow::{Context, anyhow};
use camino::Utf8PathBuf;

use super::ui::output::Output;
use super::{Failure, ui};
use rooflet_base::error::ExitStatus;
use rooflet_base::file;
use rooflet_client::KubeconfigSource;
use rooflet_doctor::{Report, Settings};

/// Arguments of `rooflet doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Also write the report to this file, with the raw facts of a Mac. It contains no names, no
    /// paths and no serial numbers.
    #[arg(long, value_name = "FILE")]
    save: Option<Utf8PathBuf>,
    /// Also write an archive for an issue: report, versions, logs below the data directory, objects and
    /// events of the API server. Secrets are removed; names of machines, models and files remain.
    #[arg(long, value_name = "FILE.tar.gz", conflicts_with = "recorded")]
    bundle: Option<Utf8PathBuf>,
    /// With --bundle: the data directory whose logs are added [default: ~/.rooflet].
    #[arg(long, value_name = "DIR", env = "ROOFLET_DATA_DIR", value_parser = super::directory("ROOFLET_DATA_DIR"))]
    data_dir: Option<Utf8PathBuf>,
    /// Check the machine of a saved report instead of this one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "quick", "as_daemon", "sleep"])]
    recorded: Option<Utf8PathBuf>,
    /// Skip the checks of the engine, which take about 20 seconds.
    #[arg(long)]
    quick: bool,
    /// On a Mac, run the checks in a job of launchd, and list those whose status differs in this
    /// session.
    #[arg(long)]
    as_daemon: bool,
    /// Also wait until you have put this machine to sleep and woken it, and check clocks, network and
    /// the heartbeat of this machine's node afterwards.
    #[arg(long, conflicts_with = "as_daemon")]
    sleep: bool,
    /// Kubeconfig of the API server to check. Default: the kubeconfig in the agent's state directory,
    /// otherwise that of kubectl, otherwise that of `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recorded", "as_daemon"])]
    kubeconfig: Option<Utf8PathBuf>,
    /// Directory of local models.
    #[arg(long, value_name = "DIR", env = "ROOFLET_MODEL_DIR")]
    model_dir: Option<Utf8PathBuf>,
    /// State directory of the agent [default: ~/.rooflet/agent].
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR")]
    state_dir: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<ExitStatus, Failure> {
    let report = match &args.recorded {
        Some(path) => Report::of_recording(path).map_err(|err| Failure::new(ExitStatus::Config, err))?,
        None if args.as_daemon => {
            check_launchd()?;
            Report::of_daemon(&args.settings()).await?
        }
        None => Report::of_this_machine(&args.settings()).await,
    };
    args.output.print(&report, || Ok(report.text()))?;
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&report).context("encoding the report")? + "\n";
        // The file must be complete as soon as it exists: the process that starts a job of launchd
        // waits for the job's report.
        file::replace(path, text.as_bytes()).with_context(|| format!("--save: writing `{path}`"))?;
        ui::progress(&format!("saved to {path}"));
    }
    if let Some(path) = &args.bundle {
        let data_dir = args.data_dir.clone().unwrap_or_else(super::default_data_dir);
        let given = args.kubeconfig.clone().map(KubeconfigSource::File);
        let kubeconfig = given.unwrap_or_else(super::default_kubeconfig);
        bundle::write(path, &report, &data_dir, &kubeconfig).await?;
    }
    Ok(match report.has_failed() {
        true => ExitStatus::Failure,
        false => ExitStatus::Success,
    })
}

impl Args {
    fn settings(&self) -> Settings {
        let state_dir = self.state_dir.clone();
        Settings {
            state_dir: state_dir.unwrap_or_else(|| super::default_data_dir().join("agent")),
            model_dir: self.model_dir.clone(),
            kubeconfig: self.kubeconfig.clone(),
            default_kubeconfig: super::default_kubeconfig,
            is_quick: self.quick,
            with_sleep: self.sleep,
            progress: ui::progress,
        }
    }
}

fn check_launchd() -> Result<(), Failure> {
    match cfg!(target_os = "macos") {
        true => Ok(()),
        false => {
            let problem = "--as-daemon: only macOS has launchd; omit it on this machine";
            Err(Failure::new(ExitStatus::Usage, anyhow!(problem)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_systems_have_no_launchd() {
        if !cfg!(target_os = "macos") {
            let err = check_launchd().unwrap_err();
            assert_eq!(err.status, ExitStatus::Usage);
            assert!(err.error.to_string().contains("--as-daemon"), "{}", err.error);
        }
    }
}
