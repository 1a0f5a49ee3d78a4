use std::time::Duration;

use rooflet_base::task::Tasks;

/// Time after which the memory of the start is released.
const START_MEMORY_PERIOD: Duration = Duration::from_secs(5);
/// Interval of later releases. Bursts of requests leave freed memory behind, too.
const FREED_MEMORY_PERIOD: Duration = Duration::from_secs(60);

/// Calls [`super::release_freed_memory`] 5 s after the start and each minute, until `tasks` stop. The first
/// time, also unmaps code: most of the code that a start runs does not run again.
pub fn release_regularly(tasks: &Tasks) {
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        let mut period = START_MEMORY_PERIOD;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
            // The function visits the whole heap, which takes milliseconds if it is large. An error means that
            // the runtime stops.
            let _ = tokio::task::spawn_blocking(super::release_freed_memory).await;
            if period == START_MEMORY_PERIOD {
                super::native::release_code();
            }
            period = FREED_MEMORY_PERIOD;
        }
    });
}
