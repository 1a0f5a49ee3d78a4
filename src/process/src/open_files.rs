//! Limit of open files and connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Desired limit. Sockets count as files: the server of a large fleet has thousands, and macOS
/// starts with 256.
const WANTED: u64 = 65_536;
/// Maximum that macOS grants if it reports no limit (`OPEN_MAX`).
const MACOS_MOST: u64 = 10_240;

/// Raises the limit as far as permitted without privileges. Child processes inherit it.
pub fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    for wanted in [WANTED, MACOS_MOST] {
        let wanted = wanted.min(hard);
        if wanted <= soft {
            return;
        }
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => return,
            Err(err) => tracing::debug!(wanted, error = %err, "limit of open files not raised"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_limit_as_far_as_permitted() {
        let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, before.min(1024), hard).expect("lowered");
        raise_limit();
        let after = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        // macOS may reject the first value.
        let most = [WANTED, MACOS_MOST].map(|most| most.min(hard));
        assert!(most.contains(&after.0) && after.1 == hard, "{after:?}");
    }
}
