//! An agent at work, and its end in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::control_plane::Farewell;
use crate::state::StateDir;
use rooflet_base::task::Tasks;

/// How long the last reports may take when the agent stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long the agent's tasks may take to end.
const TASKS_END: Duration = Duration::from_secs(3);

/// Why an agent ended other than by being stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunAgentError {
    /// A task that the agent depends on failed, or tasks did not end in time.
    #[error("{0}")]
    Tasks(String),
}

/// An agent at work.
pub(crate) struct Running {
    pub(crate) tasks: Tasks,
    /// Ends the sync loop, which stops the workers, and the node's reports.
    pub(crate) stopping: CancellationToken,
    /// Hears when the sync loop has ended.
    pub(crate) synced: oneshot::Receiver<()>,
    /// `None` without an API server.
    pub(crate) farewell: Option<Farewell>,
    /// Its lock is held until every task has ended.
    pub(crate) _state: Arc<StateDir>,
}

impl Running {
    /// Ends in order at `stop`, or at once when a task fails.
    pub(crate) async fn until(self, stop: CancellationToken) -> Result<(), RunAgentError> {
        let failed = self.tasks.stop_token();
        tokio::select! {
            () = stop.cancelled() => {}
            () = failed.cancelled() => {}
        }
        self.stopping.cancel();
        if failed.is_cancelled() {
            // A task the agent depends on has failed. Workers stay for the next life.
            return join(&self.tasks).await;
        }
        // The loop ends when the last worker is gone.
        drop(self.synced.await);
        if let Some(farewell) = self.farewell
            && tokio::time::timeout(FAREWELL, farewell.say()).await.is_err()
        {
            warn!("the API server did not take the agent's last words in time");
        }
        self.tasks.cancel();
        let outcome = join(&self.tasks).await;
        info!("the agent has stopped");
        outcome
    }
}

async fn join(tasks: &Tasks) -> Result<(), RunAgentError> {
    let joined = tasks.join(TASKS_END).await;
    joined.map_err(|err| RunAgentError::Tasks(err.to_string()))
}
