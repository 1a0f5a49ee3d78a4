//! Background tasks: named, tracked, cancelled together. Only this module calls `tokio::spawn`.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span};

use crate::mutex::lock;

/// Maximum grace after a failure: a supervisor restarts the process when it has ended.
const FAILURE_GRACE: Duration = Duration::from_secs(15);

/// Set of tasks that stop together. Clones refer to the same set.
///
/// If a task returns an error or panics, the whole set stops. The supervisor (launchd,
/// `rooflet up`) then restarts the process.
#[derive(Clone, Default)]
pub struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
    failure: Arc<Mutex<Option<TasksError>>>,
}

/// Reason why a set of tasks did not end cleanly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TasksError {
    /// A task of [`Tasks::spawn`] returned an error.
    #[error("{task}: {error}")]
    Failed { task: &'static str, error: String },
    /// A task of [`Tasks::spawn`] panicked.
    #[error("{0}: panicked")]
    Panicked(&'static str),
    /// Tasks still ran when the grace period ended.
    #[error("{count} tasks did not stop within {} s", grace.as_secs())]
    StillRunning { count: usize, grace: Duration },
}

impl Tasks {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the token that is cancelled when the set stops.
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task that the process needs. If it fails, the set stops.
    pub fn spawn<E>(&self, name: &'static str, task: impl FnOnce(CancellationToken) -> BoxedTask<E>)
    where
        E: fmt::Display + Send + 'static,
    {
        let future = task(self.stop.clone());
        let tasks = self.clone();
        let guard = PanicGuard {
            tasks: self.clone(),
            name,
            armed: true,
        };
        self.spawn_tracked(
            async move {
                let mut guard = guard;
                let outcome = future.await;
                guard.armed = false;
                if let Err(err) = outcome {
                    tasks.fail(TasksError::Failed {
                        task: name,
                        error: err.to_string(),
                    });
                }
            }
            .instrument(info_span!("task", name)),
        );
    }

    /// Starts a task whose result does not matter to the set, such as a connection, a request or
    /// the log of a child.
    pub fn spawn_detached(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_tracked(future);
    }

    /// Starts a task that [`Tasks::join`] does not wait for.
    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    pub fn spawn_unjoined(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(future));
    }

    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    fn spawn_tracked(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(self.tracker.track_future(future)));
    }

    /// Cancels all tasks.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Waits until the set stops, then up to `grace` for all tasks, after a failure at most 15 s.
    /// Returns the error of the first failed task.
    pub async fn join(&self, grace: Duration) -> Result<(), TasksError> {
        self.stop.cancelled().await;
        self.tracker.close();
        let has_failed = lock(&self.failure).is_some();
        let grace = if has_failed {
            grace.min(FAILURE_GRACE)
        } else {
            grace
        };
        let all_ended = tokio::time::timeout(grace, self.tracker.wait()).await;
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure);
        }
        all_ended.map_err(|_| TasksError::StillRunning {
            count: self.tracker.len(),
            grace,
        })
    }

    fn fail(&self, why: TasksError) {
        error!(error = %why, "required task failed, stopping");
        lock(&self.failure).get_or_insert(why);
        self.stop.cancel();
    }
}

/// Future of [`Tasks::spawn`].
pub type BoxedTask<E> = std::pin::Pin<Box<dyn Future<Output = Result<(), E>> + Send>>;

struct PanicGuard {
    tasks: Tasks,
    name: &'static str,
    armed: bool,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if self.armed && std::thread::panicking() {
            self.tasks.fail(TasksError::Panicked(self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_task_stops_the_set() {
        let tasks = Tasks::new();
        tasks.spawn("waits", |stop| {
            Box::pin(async move {
                stop.cancelled().await;
                Ok::<_, String>(())
            })
        });
        tasks.spawn("fails", |_| Box::pin(async { Err("no disk") }));
        assert_eq!(
            tasks.join(Duration::from_secs(5)).await,
            Err(TasksError::Failed {
                task: "fails",
                error: "no disk".to_owned(),
            })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failure_limits_the_grace() {
        let tasks = Tasks::new();
        tasks.spawn("streams", |_| {
            Box::pin(std::future::pending::<Result<(), String>>())
        });
        tasks.spawn("fails", |_| Box::pin(async { Err("no disk") }));
        let joined = tokio::time::timeout(FAILURE_GRACE * 2, tasks.join(FAILURE_GRACE * 100));
        assert!(joined.await.expect("a limited grace").is_err());
    }

    #[tokio::test]
    async fn panicking_task_stops_the_set() {
        let tasks = Tasks::new();
        tasks.spawn::<String>("breaks", |_| Box::pin(async { panic!("on purpose") }));
        assert_eq!(
            tasks.join(Duration::from_secs(5)).await,
            Err(TasksError::Panicked("breaks"))
        );
    }

    #[tokio::test]
    async fn cancelling_stops_every_task() {
        let tasks = Tasks::new();
        tasks.spawn("waits", |stop| {
            Box::pin(async move {
                stop.cancelled().await;
                Ok::<_, String>(())
            })
        });
        tasks.cancel();
        assert_eq!(tasks.join(Duration::from_secs(5)).await, Ok(()));
    }
}
