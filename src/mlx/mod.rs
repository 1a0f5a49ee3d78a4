//! MLX, the inference engine: which device it runs on, weights from files, and what this machine can do.
//!
//! One thread owns every MLX object and makes every MLX call; see `worker/engine`.

pub(crate) mod device;
pub(crate) mod load;
pub(crate) mod probe;
mod sys;

/// Held by each test that computes: one thread at a time uses MLX, in tests as elsewhere.
#[cfg(test)]
pub(crate) fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    static MLX: std::sync::Mutex<()> = std::sync::Mutex::new(());
    MLX.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
