//! `rooflet server rotate-ca`: replaces the certificate authorities of a running fleet.

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use jiff::Timestamp;

use crate::cli::ui::duration::duration;
use crate::cli::{Failure, objects, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::ApiError;
use rooflet_trust::{
    RequestRotationError, RotationPhase, RotationStatus, request_retirement, request_rotation,
    rotation_status,
};

/// Time in which a running server executes a request.
const PATIENCE: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(500);

/// Arguments of `rooflet server rotate-ca`. On a Kubernetes cluster, the leading controller
/// executes the request.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Minimum time during which old and new authorities are trusted, such as 24h or 7d. In this time,
    /// people replace their kubeconfigs, and Macs that sleep get new certificates. Afterwards, the old
    /// authorities are retired as soon as no client uses their certificates.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration)]
    after: Duration,
    /// Print the state of the rotation, and change nothing.
    #[arg(long, conflicts_with_all = ["after", "retire", "force"])]
    status: bool,
    /// Retire the old authorities now, without waiting.
    #[arg(long, conflicts_with = "after")]
    retire: bool,
    /// With --retire: also if clients use certificates of the old authorities. They have no access
    /// afterwards: Macs must join again, people need new credentials.
    #[arg(long, requires = "retire")]
    force: bool,
    /// Kubeconfig of an administrator. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(in crate::cli) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig).await?;
    if args.status {
        let text = match rotation_status(&client).await? {
            Some(status) => describe(&status),
            None => "The authorities have not been rotated.\n".to_owned(),
        };
        ui::output(&text);
        return Ok(());
    }
    let (requested, phase) = match args.retire {
        true => {
            let requested = request_retirement(&client, args.force).await.map_err(failure)?;
            (requested, RotationPhase::Completed)
        }
        false => {
            let now = Clock::System.now();
            let requested = request_rotation(&client, args.after, now)
                .await
                .map_err(failure)?;
            (requested, RotationPhase::Rotating)
        }
    };
    let executed = async {
        loop {
            match rotation_status(&client).await? {
                Some(status) if is_executed(&status, requested, phase) => return Ok::<_, ApiError>(status),
                Some(_) | None => tokio::time::sleep(PERIOD).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, executed).await {
        Ok(status) => ui::output(&describe(&status?)),
        Err(_) => {
            let what = anyhow!(
                "the request was not executed within {} s; the log of rooflet's API server, on a Kubernetes cluster that \
                 of the leading controller, contains the reason",
                PATIENCE.as_secs()
            );
            return Err(Failure::new(ExitStatus::Unavailable, what));
        }
    }
    Ok(())
}

/// Returns whether the server has executed a request that leads to `phase`.
fn is_executed(status: &RotationStatus, requested: Timestamp, phase: RotationPhase) -> bool {
    // A rotation without a waiting time may be completed already.
    status.requested == requested && (status.phase == phase || status.phase == RotationPhase::Completed)
}

fn failure(err: RequestRotationError) -> Failure {
    match err {
        RequestRotationError::Api(err) => err.into(),
        RequestRotationError::InProgress { .. }
        | RequestRotationError::NotInProgress
        | RequestRotationError::InUse { .. } => Failure::new(ExitStatus::Failure, err),
    }
}

/// Returns the state of a rotation for people.
fn describe(status: &RotationStatus) -> String {
    let started = format!("{:.0}", status.started);
    match (status.phase, status.completed) {
        (RotationPhase::Completed, completed) => {
            let completed = completed.map(|at| format!("{at:.0}")).unwrap_or_default();
            format!("Completed: the authorities of {started} are the only ones since {completed}.\n")
        }
        (RotationPhase::Rotating, _) => {
            let waiting = match status.waiting_for.as_slice() {
                [] => "No client uses a certificate of the old authorities.".to_owned(),
                users => format!(
                    "Clients with certificates of the old authorities: {}.",
                    users.join(", ")
                ),
            };
            format!(
                "Rotating: new authorities issue certificates since {started}. The old authorities are trusted until \
                 {:.0} at least.\n{waiting}\nReplace copies of the kubeconfig, and lists of authorities of the \
                 gateway's clients.\n",
                status.retire_after
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn state_names_the_clients_that_are_waited_for() {
        let rotating = RotationStatus {
            requested: at(0),
            phase: RotationPhase::Rotating,
            started: at(0),
            retire_after: at(3600),
            completed: None,
            waiting_for: vec!["system:node:mini-1".to_owned()],
        };
        let text = describe(&rotating);
        assert!(
            text.contains("1970-01-01T01:00:00Z") && text.contains("system:node:mini-1"),
            "{text}"
        );
        let completed = RotationStatus {
            phase: RotationPhase::Completed,
            completed: Some(at(7200)),
            ..rotating
        };
        assert!(describe(&completed).contains("1970-01-01T02:00:00Z"));
        assert!(is_executed(&completed, at(0), RotationPhase::Rotating));
        assert!(!is_executed(&completed, at(1), RotationPhase::Rotating));
    }
}
