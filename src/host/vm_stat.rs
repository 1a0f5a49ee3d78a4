//! What `vm_stat` prints on macOS.

use crate::units::Bytes;

/// Pages that are wired down, in bytes.
pub(super) fn wired(output: &str) -> Option<Bytes> {
    let (_, size) = output.lines().next()?.split_once("page size of ")?;
    let page: u64 = size.split_whitespace().next()?.parse().ok()?;
    let pages = output
        .lines()
        .find_map(|line| line.strip_prefix("Pages wired down:"))?;
    let pages: u64 = pages.trim().trim_end_matches('.').parse().ok()?;
    Some(Bytes(page) * pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As macOS 26 prints it, cut.
    const OUTPUT: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
        Pages free:                                6071.\n\
        Pages active:                            388463.\n\
        Pages wired down:                        131072.\n\
        Pages purgeable:                            137.\n";

    #[test]
    fn wired_pages_are_counted_in_bytes() {
        assert_eq!(wired(OUTPUT), Some(Bytes::gib(2)));
        assert_eq!(wired(""), None);
        assert_eq!(wired("Pages wired down: 3."), None);
        assert_eq!(wired(&OUTPUT.replace("wired down", "wired")), None);
    }
}
