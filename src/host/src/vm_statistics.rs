//! What macOS's counts of pages come to.

use rooflet_base::units::Bytes;

/// Pages of main memory, as `host_statistics64` counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VmStatistics {
    /// Of one page.
    pub(super) page: Bytes,
    /// With the speculative ones, which `vm_stat` leaves out of its "Pages free".
    pub(super) free: u32,
    /// Read ahead from files, and not asked for yet.
    pub(super) speculative: u32,
    /// Not wired, and what they hold is in a file, too; with the speculative ones.
    pub(super) file_backed: u32,
    /// Their owners do without what they hold.
    pub(super) purgeable: u32,
    pub(super) wired: u32,
}

impl VmStatistics {
    /// What can be had at once, without anything being compressed or swapped out: xnu's
    /// "fully-reclaimable" pages
    /// (<https://github.com/apple-oss-distributions/xnu/blob/main/doc/vm/memorystatus_notify.md>).
    pub(super) fn available(&self) -> Bytes {
        let free = self.free.saturating_sub(self.speculative);
        let pages = [free, self.file_backed, self.purgeable];
        self.page * pages.into_iter().map(u64::from).sum()
    }

    /// Wired down: neither compressed nor swapped out.
    pub(super) fn wired(&self) -> Bytes {
        self.page * u64::from(self.wired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a Mac with 24 GB that worked as usual, by its owner in HMCL-dev/HMCL#4876; cut.
    const RECORDED: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
        Pages free:                                3857.\n\
        Pages active:                            446206.\n\
        Pages inactive:                          443760.\n\
        Pages speculative:                         1075.\n\
        Pages wired down:                        181483.\n\
        Pages purgeable:                          17340.\n\
        File-backed pages:                       294894.\n\
        Anonymous pages:                         596147.\n\
        Pages occupied by compressor:            442179.\n";

    fn recorded(name: &str) -> u32 {
        let (_, count) = RECORDED.split_once(&format!("{name}:")).unwrap();
        let count = count.trim_start().split('.').next().unwrap();
        count.parse().unwrap()
    }

    fn statistics() -> VmStatistics {
        VmStatistics {
            page: Bytes(16384),
            free: recorded("Pages free") + recorded("Pages speculative"),
            speculative: recorded("Pages speculative"),
            file_backed: recorded("File-backed pages"),
            purgeable: recorded("Pages purgeable"),
            wired: recorded("Pages wired down"),
        }
    }

    #[test]
    fn what_caches_hold_of_files_is_available_and_the_compressor_takes_nothing_from_it() {
        // 1.5 % of the machine's memory if the compressor's pages are taken from those that are
        // free, inactive or purgeable.
        assert_eq!(statistics().available(), Bytes(316_091 * 16384));
        assert_eq!(statistics().wired(), Bytes(181_483 * 16384));
        let busy = VmStatistics {
            free: 0,
            file_backed: 1075,
            purgeable: 0,
            ..statistics()
        };
        assert_eq!(busy.available(), Bytes(1075 * 16384));
    }

    #[test]
    fn speculative_pages_are_among_the_file_backed_ones() {
        let queues = ["Pages active", "Pages inactive", "Pages speculative"];
        let contents = ["File-backed pages", "Anonymous pages"];
        assert_eq!(
            queues.map(recorded).iter().sum::<u32>(),
            contents.map(recorded).iter().sum::<u32>()
        );
    }
}
