//! Background tasks: named, tracked, cancelled together. The only caller of `tokio::spawn`.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span};

use crate::mutex::lock;

/// A set of tasks that stop together. Clones are the same set.
///
/// A task that returns an error or panics stops the whole set: half a process is worse than none,
/// and a supervisor (launchd, `rooflet up`) starts it afresh.
#[derive(Clone, Default)]
pub struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
    failure: Arc<Mutex<Option<String>>>,
}

impl Tasks {
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the set is to stop.
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task on which the process depends.
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
                    tasks.fail(format!("{name}: {err}"));
                }
            }
            .instrument(info_span!("task", name)),
        );
    }

    /// Starts a task whose end, good or bad, concerns nobody else: one connection, one request, one
    /// child's log.
    pub fn spawn_detached(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_tracked(future);
    }

    /// Starts a task that lives as long as the process does and that [`Tasks::join`] does not wait
    /// for.
    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    pub fn spawn_unjoined(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(future));
    }

    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    fn spawn_tracked(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(self.tracker.track_future(future)));
    }

    /// Asks every task to stop.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Waits for all tasks to end, at most `grace`. Returns what the first failed task said, if one
    /// failed.
    pub async fn join(&self, grace: Duration) -> Result<(), String> {
        self.stop.cancelled().await;
        self.tracker.close();
        let all_ended = tokio::time::timeout(grace, self.tracker.wait()).await;
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure);
        }
        all_ended.map_err(|_| {
            format!(
                "{} tasks did not stop within {} s",
                self.tracker.len(),
                grace.as_secs()
            )
        })
    }

    fn fail(&self, why: String) {
        error!(error = %why, "a task the process depends on failed; stopping");
        lock(&self.failure).get_or_insert(why);
        self.stop.cancel();
    }
}

/// What [`Tasks::spawn`] runs.
pub type BoxedTask<E> = std::pin::Pin<Box<dyn Future<Output = Result<(), E>> + Send>>;

struct PanicGuard {
    tasks: Tasks,
    name: &'static str,
    armed: bool,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if self.armed && std::thread::panicking() {
            self.tasks.fail(format!("{}: panicked", self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_task_stops_the_set() {
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
            Err("fails: no disk".to_owned())
        );
    }

    #[tokio::test]
    async fn a_panicking_task_stops_the_set() {
        let tasks = Tasks::new();
        tasks.spawn::<String>("breaks", |_| Box::pin(async { panic!("on purpose") }));
        assert_eq!(
            tasks.join(Duration::from_secs(5)).await,
            Err("breaks: panicked".to_owned())
        );
    }

    #[tokio::test]
    async fn cancelling_ends_every_task() {
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
