//! Explanation of connection errors that macOS' Local Network permission causes.
//!
//! Since macOS 15, a process whose responsible app lacks the permission gets "No route to host" for
//! every address of its own network, without a prompt. Terminal, ssh and launchd daemons always
//! have the permission; other terminals and LaunchAgents need it.

use std::io;
use std::net::IpAddr;

/// errno of "No route to host" on macOS.
const EHOSTUNREACH: i32 = 65;

const HINT: &str = "macOS may deny access to the local network to the app from which rooflet was started: allow \
                    that app in System Settings, Privacy & Security, Local Network";

/// Returns the text of a connection error, with a hint if the permission may be its cause. `host`
/// is an address, a name, or empty if unknown.
pub fn explain(err: &io::Error, host: &str) -> String {
    match hint(std::env::consts::OS, err.raw_os_error(), host) {
        Some(hint) => format!("{err}; {hint}"),
        None => err.to_string(),
    }
}

/// Returns the hint if it applies. `os` is a value of [`std::env::consts::OS`].
fn hint(os: &str, errno: Option<i32>, host: &str) -> Option<&'static str> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A name may belong to the local network.
    let may_be_local = bare.parse().map_or(true, is_local);
    (os == "macos" && errno == Some(EHOSTUNREACH) && may_be_local).then_some(HINT)
}

fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_local_addresses_on_macos_have_a_hint() {
        for (os, errno, host, expect) in [
            ("macos", 65, "192.168.1.7", true),
            ("macos", 65, "10.0.0.7", true),
            ("macos", 65, "172.16.0.7", true),
            ("macos", 65, "169.254.3.4", true),
            ("macos", 65, "[fe80::1]", true),
            ("macos", 65, "fd00::7", true),
            ("macos", 65, "::ffff:192.168.1.7", true),
            ("macos", 65, "mini-1.local", true),
            ("macos", 65, "", true),
            ("macos", 65, "8.8.8.8", false),
            ("macos", 65, "2001:4860:4860::8888", false),
            // Connection refused.
            ("macos", 61, "192.168.1.7", false),
            ("linux", 65, "192.168.1.7", false),
            ("linux", 113, "192.168.1.7", false),
        ] {
            assert_eq!(
                hint(os, Some(errno), host).is_some(),
                expect,
                "{os} {errno} {host}"
            );
        }
        assert_eq!(hint("macos", None, "192.168.1.7"), None);
    }

    #[test]
    fn other_errors_keep_their_text() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(explain(&refused, "192.168.1.7"), refused.to_string());
    }
}
