//! Threads of a lower priority than the rest of the process, for the agents of simulated machines.
//! In a real fleet, agents do not share a machine with the control plane.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio_util::context::TokioContext;

/// Reduction of the priority on Linux. Child processes inherit it. On other systems, a thread has no
/// priority of its own, and the threads have the normal priority.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Runtime whose threads have a lower priority. Dropping it does not wait for its tasks.
pub struct LowPriorityRuntime(Option<Runtime>);

impl LowPriorityRuntime {
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .thread_name("simulated-macs")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Returns a future whose tasks, timers and sockets belong to this runtime. The caller's runtime
    /// polls the future itself.
    pub fn wrap<F: Future>(&self, future: F) -> TokioContext<F> {
        let runtime = self.0.as_ref().expect("the runtime exists until it is dropped");
        TokioContext::new(future, runtime.handle().clone())
    }
}

impl Drop for LowPriorityRuntime {
    fn drop(&mut self) {
        // A runtime that waits for its tasks must not be dropped by a task.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(target_os = "linux")]
fn lower_priority() {
    // Without the permission, the thread runs with the normal priority.
    let _ = rustix::process::nice(NICE);
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rooflet_base::task::Tasks;

    use super::*;

    #[test]
    fn tasks_of_wrapped_future_run_with_lower_priority() {
        let caller = Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let own = rustix::process::getpriority_process(None).expect("a priority");
        let measured = caller.block_on(async {
            let runtime = LowPriorityRuntime::start().expect("a runtime");
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let start = async {
                Tasks::new().spawn_detached(async {
                    let _ = sender.send(rustix::process::getpriority_process(None));
                });
            };
            runtime.wrap(start).await;
            receiver.await.expect("the task runs")
        });
        assert_eq!(measured.expect("a priority"), (own + NICE).min(19));
    }
}
