//! Sizes and durations of a probe by backend and memory. The module is pure.

use std::time::Duration;

use super::sampling::Sampling;
use crate::backend::Backend;
use rooflet_base::units::Bytes;

/// Minimum number of distinct buffers that are used in turn, so that no cache holds a byte when it
/// is read again.
pub(super) const MIN_BUFFERS: usize = 4;

/// Divisor of the available memory: the probe uses a quarter, because other programs use the
/// machine too.
const MEMORY_SHARE: u64 = 4;

/// Total size of the buffers of one figure on a fast engine: four of 512 MB, 16 times the size of
/// the largest system cache.
const FULL_BYTES: usize = 2 << 30;

/// Sizes and durations of a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Total size of the buffers of one figure.
    pub(super) total_bytes: usize,
    /// Rows and columns of the quantised matrices.
    pub(super) side: i32,
    /// Rows and columns of a matrix whose product costs little more than its launch.
    pub(super) tiny_side: i32,
    /// Number of cached tokens that one token attends to.
    pub(super) attention_tokens: i32,
    /// Widths of the layers whose small kernels are measured.
    pub(super) hidden_sizes: [i32; 2],
    /// Rows and columns of the dense product.
    pub(super) matmul_side: i32,
    /// Rows and columns of the quantised matrix that is multiplied by many rows.
    pub(super) prefill_side: i32,
    pub(super) sampling: Sampling,
}

impl Plan {
    pub(super) fn new(backend: Backend, memory: Bytes) -> Self {
        let limit = usize::try_from(memory.0 / MEMORY_SHARE).unwrap_or(usize::MAX);
        let plan = match backend {
            // CPU caches are smaller and CPU kernels slower: larger sizes would only take longer.
            Backend::Cpu => Self {
                total_bytes: 128 << 20,
                side: 1024,
                tiny_side: 64,
                attention_tokens: 256,
                hidden_sizes: [512, 2048],
                matmul_side: 256,
                prefill_side: 128,
                sampling: Sampling {
                    sample: Duration::from_millis(6),
                    figure: Duration::from_millis(150),
                    min_samples: 10,
                    max_samples: 30,
                },
            },
            Backend::Metal | Backend::Cuda => Self {
                total_bytes: FULL_BYTES,
                side: 8192,
                tiny_side: 320,
                attention_tokens: 8192,
                hidden_sizes: [1024, 4096],
                matmul_side: 4096,
                prefill_side: 4096,
                sampling: Sampling {
                    sample: Duration::from_millis(20),
                    figure: Duration::from_millis(600),
                    min_samples: 30,
                    max_samples: 30,
                },
            },
        };
        Self {
            total_bytes: plan.total_bytes.min(limit),
            ..plan
        }
    }

    /// Returns true if the buffers are smaller than the measurement rules require.
    pub(super) fn is_reduced(&self) -> bool {
        self.total_bytes < FULL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_at_most_a_quarter_of_the_memory() {
        let plan = Plan::new(Backend::Metal, Bytes::gib(4));
        assert_eq!(plan.total_bytes, 1 << 30);
        assert!(plan.is_reduced());
        assert!(!Plan::new(Backend::Metal, Bytes::gib(8)).is_reduced());
    }

    #[test]
    fn cpu_plan_is_reduced() {
        assert!(Plan::new(Backend::Cpu, Bytes::gib(64)).is_reduced());
    }
}
