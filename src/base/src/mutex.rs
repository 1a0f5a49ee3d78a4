//! Mutexes that ignore poisoning, for values that are consistent at every moment.

use std::sync::Condvar;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks the mutex, even if another thread panicked while holding it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the lock until a notification or the timeout.
pub fn wait<'m, T>(changed: &Condvar, guard: MutexGuard<'m, T>, at_most: Duration) -> MutexGuard<'m, T> {
    let waited = changed.wait_timeout(guard, at_most);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
