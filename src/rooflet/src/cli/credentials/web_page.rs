//! `rooflet ui`: prints or opens a link that signs in at the web page.

use std::process::Command;

use anyhow::Context;
use camino::Utf8PathBuf;

use crate::cli::{Failure, default_kubeconfig, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::KubeconfigSource;
use rooflet_web::sign_in_link;

/// Program that opens a URL in the default browser.
const OPENER: &str = if cfg!(target_os = "macos") {
    "open"
} else {
    "xdg-open"
};

/// Arguments of `rooflet ui`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Open the link in the default browser instead of printing it.
    #[arg(long)]
    open: bool,
    /// Kubeconfig that the server wrote. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let source = args
        .kubeconfig
        .map_or_else(default_kubeconfig, KubeconfigSource::File);
    let link = sign_in_link(&source, &Clock::System).await;
    let link = link.map_err(|err| Failure::new(ExitStatus::Config, err))?;
    if !args.open {
        ui::output(&format!("{link}\n"));
        return Ok(());
    }
    let opened = Command::new(OPENER).arg(&link).status();
    let opened = opened.with_context(|| format!("running `{OPENER}`; run `rooflet ui` without --open"))?;
    opened
        .success()
        .then_some(())
        .with_context(|| format!("`{OPENER}` failed; run `rooflet ui` without --open"))
        .map_err(Failure::from)
}
