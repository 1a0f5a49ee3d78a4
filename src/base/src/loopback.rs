//! Detection of loopback hosts. Proxies from the environment do not apply to them.

use std::net::IpAddr;

use reqwest::{Client, ClientBuilder, Url};

/// Returns whether a host, as written in URLs, is a loopback address.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}

/// Returns a builder for an HTTP client of one server.
pub fn client_of(url: &Url) -> ClientBuilder {
    let client = Client::builder();
    if url.host_str().is_some_and(is_loopback) {
        client.no_proxy()
    } else {
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_loopback_in_all_forms() {
        for host in ["127.0.0.1", "127.8.9.1", "[::1]", "localhost", "LocalHost"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "10.0.0.1",
            "0.0.0.0",
            "[fe80::1]",
            "127.0.0.1.example.com",
            "localhost.example.com",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
