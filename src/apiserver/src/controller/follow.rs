//! Following the store: first what is there, then every change, and work in between. The loop of
//! the tasks that do what a controller manager does.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use rooflet_store::{Event, ListOptions, Record, Store};

const EVERYTHING: &str = "/";
/// How long to wait before something that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What one task makes of what it sees.
pub(crate) trait Follower {
    /// Objects below this are listed at the start. Changes of all objects are followed.
    const LISTED: &'static str;

    /// Forgets everything and begins with what is there.
    fn begin(&mut self, listed: Vec<Arc<Record>>);

    fn take_in(&mut self, event: &Event);

    fn has_work(&self) -> bool;

    /// Does some of the work.
    fn work(&mut self) -> impl Future<Output = ()> + Send;

    fn has_failed(&self) -> bool;

    /// Makes work again of what failed.
    fn try_again(&mut self);
}

/// Runs until `stop`.
pub(crate) async fn run(store: &Store, mut follower: impl Follower, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = follow(store, &mut follower) => {}
        }
        // The watch fell behind, or the store is closing: begin again from what is there.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

async fn follow<F: Follower>(store: &Store, follower: &mut F) {
    let Ok(listing) = store.list(F::LISTED, &ListOptions::default()) else {
        return;
    };
    let Ok(mut watcher) = store.watch(EVERYTHING, listing.revision) else {
        return;
    };
    follower.begin(listing.records);
    loop {
        while let Some(event) = watcher.ready() {
            follower.take_in(&event);
        }
        if follower.has_work() {
            follower.work().await;
            continue;
        }
        let retry = tokio::time::sleep(RETRY_DELAY);
        tokio::select! {
            event = watcher.next() => match event {
                Some(event) => follower.take_in(&event),
                None => return,
            },
            () = retry, if follower.has_failed() => follower.try_again(),
        }
    }
}
