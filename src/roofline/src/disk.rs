//! What replicas may store on a node's disk. Pure; the scheduler and the agent judge by the same
//! figures.
//!
//! Promised is the model that a node has to download for a replica, and what the replica was told
//! it may store: without `kvCache.diskSize` it stores a part of what is left, which no placement
//! depends on.

use rooflet_base::units::Bytes;

/// A worker stores nothing more where less than this would stay free.
pub const LEFT_FREE: Bytes = Bytes::gib(2);

/// What is published of a disk is a multiple of this, so that not every file that somebody writes
/// is news.
const STEP: Bytes = Bytes::gib(1);

/// What a replica takes of its node's disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskDemand {
    /// What it was told it may store of its KV cache (`kvCache.diskSize`).
    pub prefixes: Bytes,
    /// What is to be downloaded of its model.
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

/// A node's disk as far as replicas may use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeDisk {
    /// What all replicas that were told how much may store together; what they have stored is part
    /// of it.
    pub limit: Bytes,
    /// Of that, what none was promised.
    pub free: Bytes,
}

impl NodeDisk {
    pub fn new(limit: Bytes, promised: Bytes) -> Self {
        Self {
            limit,
            free: limit - promised,
        }
    }
}

/// The limit of a disk with so much free, where prefixes have `stored`, and workers that nobody
/// told how much keep `automatic`.
///
/// In whole steps, and never more than there is. It stays as `previous` until that would be too
/// much, or two steps too little.
pub fn limit(free: Bytes, stored: Bytes, automatic: Bytes, previous: Option<Bytes>) -> Bytes {
    let exact = free + stored - LEFT_FREE - automatic;
    match previous {
        Some(previous) if previous <= exact && exact - previous < STEP * 2 => previous,
        Some(_) | None => Bytes(exact.0 / STEP.0 * STEP.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_changes_with_the_disk_and_not_with_every_file() {
        let limit = |free_mib, previous| {
            let free = Bytes::mib(free_mib) + LEFT_FREE;
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
