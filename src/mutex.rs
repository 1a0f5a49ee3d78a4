//! Mutexes whose values are whole at every moment, so that a panic elsewhere is no reason to stop.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not somebody panicked while holding the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
