//! A running agent and its orderly shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::control_plane::FinalReport;
use crate::state::StateDir;
use rooflet_base::task::{Tasks, TasksError};

/// Time limit of the final report when the agent stops.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for the agent's tasks to end.
const TASKS_END: Duration = Duration::from_secs(3);

/// Error of an agent that ended without being stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunAgentError {
    /// A task that the agent depends on failed, or tasks did not end in time.
    #[error(transparent)]
    Tasks(#[from] TasksError),
}

/// Handles of a running agent.
pub(crate) struct Running {
    pub(crate) tasks: Tasks,
    /// Stops the sync loop, which stops the workers, and the node reporter.
    pub(crate) stopping: CancellationToken,
    /// Fires when the sync loop has ended.
    pub(crate) synced: oneshot::Receiver<()>,
    /// `None` without an API server.
    pub(crate) final_report: Option<FinalReport>,
    /// Lock of the state directory, held until every task has ended.
    pub(crate) _state: Arc<StateDir>,
}

impl Running {
    /// Runs until `stop` and then shuts down in order. If a task fails, shuts down immediately.
    pub(crate) async fn until(self, stop: CancellationToken) -> Result<(), RunAgentError> {
        let failed = self.tasks.stop_token();
        tokio::select! {
            () = stop.cancelled() => {}
            () = failed.cancelled() => {}
        }
        self.stopping.cancel();
        if failed.is_cancelled() {
            // A task that the agent depends on failed. Workers keep running for the next agent
            // process.
            return join(&self.tasks).await;
        }
        // The sync loop ends when the last worker has exited.
        drop(self.synced.await);
        if let Some(final_report) = self.final_report
            && tokio::time::timeout(FINAL_REPORT_TIMEOUT, final_report.send())
                .await
                .is_err()
        {
            warn!("final report to the API server timed out");
        }
        self.tasks.cancel();
        let outcome = join(&self.tasks).await;
        info!("agent stopped");
        outcome
    }
}

async fn join(tasks: &Tasks) -> Result<(), RunAgentError> {
    Ok(tasks.join(TASKS_END).await?)
}
