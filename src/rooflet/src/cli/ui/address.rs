//! Addresses of flags.

use std::net::SocketAddr;

/// Parses an IP address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let example = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => "127.0.0.1:7443, or 0.0.0.0:7443 for all addresses of this machine".to_owned(),
        };
        format!("must be an IP address and a port, such as {example}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_form_of_an_address() {
        assert!(address("[::1]:0").is_ok());
        let problem = |text: &str| address(text).expect_err("no address");
        assert_eq!(
            problem("localhost:80"),
            "must be an IP address and a port, such as 127.0.0.1:80"
        );
        assert!(problem("localhost").contains("such as 127.0.0.1:7443"));
    }
}
