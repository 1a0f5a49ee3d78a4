//! Limit of the memory that a process may allocate. The process exits if an allocation exceeds the limit:
//! macOS does not enforce `RLIMIT_AS`.

#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use rooflet_worker::MEMORY_EXCEEDED;

#[global_allocator]
static ALLOCATOR: Budgeted = Budgeted {
    limit: AtomicIsize::new(0),
    used: AtomicIsize::new(0),
};

/// The system's allocator with a limit.
struct Budgeted {
    /// Maximum number of bytes; 0 without a limit, and then nothing is counted.
    limit: AtomicIsize,
    /// Bytes that were allocated and not freed since the limit was set.
    used: AtomicIsize,
}

impl Budgeted {
    fn grow(&self, bytes: usize) {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 {
            return;
        }
        let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > limit {
            // SAFETY: `_exit` ends the process without running any code of this program.
            unsafe { nix::libc::_exit(MEMORY_EXCEEDED) }
        }
    }

    fn shrink(&self, bytes: usize) {
        if self.limit.load(Ordering::Relaxed) != 0 {
            let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

// SAFETY: every method forwards its arguments to the system's allocator, whose contract is the same.
unsafe impl GlobalAlloc for Budgeted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: as of the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.shrink(layout.size());
        // SAFETY: as of the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match size.checked_sub(layout.size()) {
            Some(more) => self.grow(more),
            None => self.shrink(layout.size() - size),
        }
        // SAFETY: as of the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Limits the memory that this process allocates from now on. The process exits with [`MEMORY_EXCEEDED`] if it
/// allocates more.
pub(super) fn limit(bytes: usize) {
    let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
    ALLOCATOR.limit.store(bytes, Ordering::Relaxed);
}
