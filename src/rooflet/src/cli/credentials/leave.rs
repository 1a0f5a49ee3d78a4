//! `rooflet leave`: removes this machine from its fleet.

use camino::Utf8PathBuf;

use crate::cli::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_trust::{LeaveError, Membership};

/// Arguments of `rooflet leave`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// State directory of the agent, which contains the credentials.
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR", value_parser = crate::cli::directory("ROOFLET_STATE_DIR"), default_value_t = crate::cli::default_data_dir().join("agent"))]
    state_dir: Utf8PathBuf,
    /// Leave although replicas run on this node, or although the API server does not accept the
    /// request. In the second case, an administrator must delete the FleetNode.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let found = Membership::read(&args.state_dir, &Clock::System)
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let Some(membership) = found else {
        ui::output("this machine has not joined a control plane\n");
        return Ok(());
    };
    let (node, server) = (&membership.node, &membership.server);
    match membership.leave(args.force).await {
        Ok(()) => {}
        Err(err @ (LeaveError::List(_) | LeaveError::Delete(_))) if args.force => {
            ui::progress(&format!(
                "{}: ask an administrator to run `kubectl delete fleetnode {node}`, so that the node's certificates \
                 are revoked",
                Chain(&err)
            ));
        }
        Err(err) => return Err(anyhow::Error::from(err).into()),
    }
    membership
        .forget()
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    ui::output(&format!(
        "node {node} left {server}: its credentials are removed; stop its agent, if one runs\n"
    ));
    Ok(())
}
