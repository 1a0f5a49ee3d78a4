//! Mutexes whose values are whole at every moment, so that a panic elsewhere is no reason to stop.

use std::sync::Condvar;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks, whether or not somebody panicked while holding the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets others have the lock until somebody notifies, or for so long.
pub fn wait<'m, T>(changed: &Condvar, guard: MutexGuard<'m, T>, at_most: Duration) -> MutexGuard<'m, T> {
    let waited = changed.wait_timeout(guard, at_most);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
