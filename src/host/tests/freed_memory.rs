//! The memory of the process is measured, so this test has a process of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs;

/// Returns the resident memory of this process in pages.
fn resident_pages() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("the memory of this process");
    let resident = statm.split(' ').nth(1).expect("the second number");
    resident.parse().expect("a number of pages")
}

#[test]
fn freed_memory_returns_to_the_system() {
    let begin = resident_pages();
    let small: Vec<Box<[u8; 64]>> = (0..1 << 20).map(|_| Box::new([1; 64])).collect();
    let used = resident_pages() - begin;
    // The last value stays allocated, so that the heap cannot shrink from its end.
    let last = small.into_iter().next_back();
    rooflet_host::release_freed_memory();
    let left = resident_pages().saturating_sub(begin);
    assert!(left < used / 4, "{left} of {used} pages");
    drop(last);
}
