//! `rooflet top`

use camino::Utf8PathBuf;

use crate::cli::ui::{self, output::Output};
use crate::cli::{Failure, default_kubeconfig, objects};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{KubeconfigSource, server_of};
use rooflet_top::{TableKind, View, is_interactive, read, show};

/// Arguments of `rooflet top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// First table of the live view, or the only printed table. JSON and YAML contain all tables.
    #[arg(value_enum, value_name = "TABLE")]
    table: Option<TableKind>,
    /// Print the tables once.
    #[arg(long)]
    once: bool,
    /// Namespace of deployments, replicas and events. Default: all namespaces.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Print in this format once.
    #[arg(long, short, value_enum)]
    output: Option<Output>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<ExitStatus, Failure> {
    let client = objects::client(args.kubeconfig.clone()).await?;
    if !args.once && args.output.is_none() && is_interactive() {
        let source = args
            .kubeconfig
            .map_or_else(default_kubeconfig, KubeconfigSource::File);
        let (server, _) = server_of(&source).await?;
        let table = args.table.unwrap_or_default();
        show(
            &client,
            server.to_string().trim_end_matches('/'),
            args.namespace,
            table,
            &Clock::System,
        )
        .await?;
        return Ok(ExitStatus::Success);
    }
    let view: View = read(&client, args.namespace, &Clock::System).await;
    let output = args.output.unwrap_or_default();
    output.print(&view, || Ok(view.text(args.table)))?;
    for problem in view.problems() {
        ui::progress(&format!("error: {problem}"));
    }
    Ok(match view.problems().count() {
        0 => ExitStatus::Success,
        _ => ExitStatus::Failure,
    })
}
