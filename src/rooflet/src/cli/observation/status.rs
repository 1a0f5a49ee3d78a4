//! `rooflet status`

use camino::Utf8PathBuf;

use crate::cli::ui::{self, output::Output};
use crate::cli::{Failure, objects};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_top::{FleetStatus, read};

/// Arguments of `rooflet status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Namespace of deployments and replicas. Default: all namespaces.
    #[arg(long, short)]
    namespace: Option<String>,
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<ExitStatus, Failure> {
    let client = objects::client(args.kubeconfig).await?;
    let view = read(&client, args.namespace, &Clock::System).await;
    let status = FleetStatus::new(&view);
    args.output.print(&status, || Ok(status.text()))?;
    // The table contains the problems.
    if !matches!(args.output, Output::Table) {
        for problem in view.problems() {
            ui::progress(&format!("error: {problem}"));
        }
    }
    Ok(match view.problems().count() {
        0 => ExitStatus::Success,
        _ => ExitStatus::Failure,
    })
}
