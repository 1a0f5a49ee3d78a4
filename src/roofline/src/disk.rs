//! Disk space of replicas on a node. The scheduler and the agent use the same figures.
//!
//! A replica reserves the download of its model and its configured KV cache size
//! (`kvCache.diskSize`). A replica without this field uses unreserved space, which no placement
//! depends on.

use rooflet_base::units::Bytes;

/// Minimum free space: a worker stores nothing if less would remain.
pub const MIN_FREE: Bytes = Bytes::gib(2);

/// Step of published limits, so that small writes do not change the status.
const STEP: Bytes = Bytes::gib(1);

/// Disk space that a replica reserves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskDemand {
    /// Configured size of the KV cache on disk (`kvCache.diskSize`).
    pub prefixes: Bytes,
    /// Missing bytes of its model.
    pub download: Bytes,
}

impl DiskDemand {
    pub fn of_prefixes(prefixes: Bytes) -> Self {
        Self {
            prefixes,
            download: Bytes::ZERO,
        }
    }

    pub fn total(self) -> Bytes {
        self.prefixes + self.download
    }
}

/// Disk space of a node for replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeDisk {
    /// Space for all replicas with a configured size, including their stored data.
    pub limit: Bytes,
    /// Unreserved part of `limit`.
    pub free: Bytes,
}

impl NodeDisk {
    pub fn new(limit: Bytes, reserved: Bytes) -> Self {
        Self {
            limit,
            free: limit - reserved,
        }
    }
}

/// Returns the limit of a disk with `free` bytes, on which prefixes occupy `stored` bytes and
/// workers without a configured size occupy `automatic` bytes.
///
/// The limit is a multiple of the step and at most the available space. It stays at `previous` as
/// long as `previous` does not exceed the available space and is less than two steps below it.
pub fn limit(free: Bytes, stored: Bytes, automatic: Bytes, previous: Option<Bytes>) -> Bytes {
    let exact = free + stored - MIN_FREE - automatic;
    match previous {
        Some(previous) if previous <= exact && exact - previous < STEP * 2 => previous,
        Some(_) | None => Bytes(exact.0 / STEP.0 * STEP.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_ignores_small_changes_of_free_space() {
        let limit = |free_mib, previous| {
            let free = Bytes::mib(free_mib) + MIN_FREE;
            super::limit(free, Bytes::gib(3), Bytes::gib(1), previous)
        };
        let first = limit(10_500, None);
        assert_eq!(first, Bytes::gib(12));
        for near in [10_300, 10_240, 11_000, 12_000, 12_280] {
            assert_eq!(limit(near, Some(first)), first, "{near}");
        }
        assert_eq!(limit(10_239, Some(first)), Bytes::gib(11));
        assert_eq!(limit(12_288, Some(first)), Bytes::gib(14));
        assert_eq!(
            super::limit(Bytes::gib(1), Bytes::ZERO, Bytes::ZERO, Some(first)),
            Bytes::ZERO
        );
    }
}
