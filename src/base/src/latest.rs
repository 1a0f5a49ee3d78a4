//! Copies of the latest value of a `watch` channel. Only this module borrows from such channels: a
//! second borrow in the same thread can deadlock if a writer waits in between.

use tokio::sync::watch;

/// Channel whose latest value can be read. Large values should be in an [`Arc`](std::sync::Arc).
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

/// Receiver that marks values as seen.
pub trait LatestSeen<T> {
    /// Returns the latest value. Afterwards `changed()` waits for the next one.
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
    fn latest_does_not_hold_a_borrow() {
        let (value_tx, mut value_rx) = watch::channel(1);
        let values = (value_rx.latest(), value_tx.latest());
        value_tx.send_replace(2);
        assert_eq!((values, value_rx.has_changed().unwrap()), ((1, 1), true));
        assert_eq!(
            (value_rx.see_latest(), value_rx.has_changed().unwrap()),
            (2, false)
        );
    }
}
