//! Reserved and free amount of a resource.

use serde::Serialize;

/// Reserved and free part of a resource, in bytes or bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) allocatable: u64,
}

impl Usage {
    /// Returns the usage of a resource with this allocatable and free amount.
    pub(super) fn of_free(allocatable: u64, free: u64) -> Self {
        let free = free.min(allocatable);
        Self {
            reserved: allocatable - free,
            free,
            allocatable,
        }
    }

    /// Returns the reserved share, from 0 to 1.
    pub(crate) fn reserved_share(self) -> f64 {
        self.reserved as f64 / self.allocatable.max(1) as f64
    }

    /// Returns the sum, or `None` without parts.
    pub(super) fn sum(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        parts.into_iter().reduce(|sum, part| Self {
            reserved: sum.reserved.saturating_add(part.reserved),
            free: sum.free.saturating_add(part.free),
            allocatable: sum.allocatable.saturating_add(part.allocatable),
        })
    }
}
