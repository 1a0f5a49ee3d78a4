//! Loop of the controllers: lists the objects, watches all changes, and processes work in between.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use rooflet_store::{Event, ListOptions, Record, Store};

const EVERYTHING: &str = "/";
/// Delay before failed work is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Controller that processes changes of the store.
pub(crate) trait WatchLoop {
    /// Prefix of the objects that are listed at the start. Changes of all objects are watched.
    const LISTED: &'static str;

    /// Resets the state to the listed objects.
    fn reset(&mut self, listed: Vec<Arc<Record>>);

    fn observe_event(&mut self, event: &Event);

    fn has_work(&self) -> bool;

    /// Processes a part of the work.
    fn work(&mut self) -> impl Future<Output = ()> + Send;

    fn has_failed(&self) -> bool;

    /// Adds failed work to the pending work.
    fn requeue_failed(&mut self);
}

/// Runs the controller until `stop`.
pub(crate) async fn run(store: &Store, mut controller: impl WatchLoop, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = run_once(store, &mut controller) => {}
        }
        // The watch lagged, or the store is closing: list again.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

async fn run_once<C: WatchLoop>(store: &Store, controller: &mut C) {
    let Ok(listing) = store.list(C::LISTED, &ListOptions::default()) else {
        return;
    };
    let Ok(mut watcher) = store.watch(EVERYTHING, listing.revision) else {
        return;
    };
    controller.reset(listing.records);
    loop {
        while let Some(event) = watcher.ready() {
            controller.observe_event(&event);
        }
        if controller.has_work() {
            controller.work().await;
            continue;
        }
        let retry = tokio::time::sleep(RETRY_DELAY);
        tokio::select! {
            event = watcher.next() => match event {
                Some(event) => controller.observe_event(&event),
                None => return,
            },
            () = retry, if controller.has_failed() => controller.requeue_failed(),
        }
    }
}
