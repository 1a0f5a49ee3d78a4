//! What a `watch` channel has now, as a copy. The only borrower of such channels: whoever holds one
//! borrow and asks for another of the same channel waits, where a writer has come in between, for
//! somebody who waits for them.

use tokio::sync::watch;

/// A channel of which the last value can be had; what is large in there is behind an
/// [`Arc`](std::sync::Arc).
pub trait Latest<T> {
    fn latest(&self) -> T;
}

impl<T: Clone> Latest<T> for watch::Receiver<T> {
    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    fn latest(&self) -> T {
        self.borrow().clone()
    }
}

impl<T: Clone> Latest<T> for watch::Sender<T> {
    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    fn latest(&self) -> T {
        self.borrow().clone()
    }
}

/// A receiver that remembers what it has seen.
pub trait LatestSeen<T> {
    /// The last value; `changed()` waits for the next one.
    fn see_latest(&mut self) -> T;
}

impl<T: Clone> LatestSeen<T> for watch::Receiver<T> {
    #[expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]
    fn see_latest(&mut self) -> T {
        self.borrow_and_update().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_looked_holds_nobody_up() {
        let (value_tx, mut value_rx) = watch::channel(1);
        let looked = (value_rx.latest(), value_tx.latest());
        value_tx.send_replace(2);
        assert_eq!((looked, value_rx.has_changed().unwrap()), ((1, 1), true));
        assert_eq!(
            (value_rx.see_latest(), value_rx.has_changed().unwrap()),
            (2, false)
        );
    }
}
