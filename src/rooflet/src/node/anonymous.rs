//! Listeners that serve other machines without authentication.

use std::net::SocketAddr;

use tracing::warn;

/// Consent to serve other machines.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct AllowAnonymous {
    /// Serve other machines although requests need no key and are not encrypted. Required to listen
    /// on an address other than loopback.
    #[arg(long)]
    allow_anonymous: bool,
}

/// Listener that other machines reach without consent.
#[derive(Debug, thiserror::Error)]
#[error(
    "{flag} {address}: every client that reaches this address could send requests, without a key and without encryption; \
     in a trusted network, add --allow-anonymous, otherwise use a loopback address"
)]
pub(crate) struct ExposedError {
    flag: &'static str,
    address: SocketAddr,
}

impl AllowAnonymous {
    /// Returns whether the flag is set.
    pub(crate) fn is_given(self) -> bool {
        self.allow_anonymous
    }

    /// Checks that other machines reach `address` only with consent. Logs a warning if they do.
    pub(crate) fn check(self, flag: &'static str, address: SocketAddr) -> Result<(), ExposedError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if self.allow_anonymous {
            warn!(
                %address,
                "every client that reaches this address can send requests, without a key and without encryption (--allow-anonymous)"
            );
            return Ok(());
        }
        Err(ExposedError { flag, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_consent() {
        let check = |address: &str, allow_anonymous| {
            let args = AllowAnonymous { allow_anonymous };
            args.check("--listen", address.parse().expect("an address"))
        };
        for loopback in ["127.0.0.1:0", "[::1]:7500"] {
            check(loopback, false).unwrap();
        }
        for other in ["0.0.0.0:7500", "[::]:7500", "192.0.2.7:7500"] {
            let refused = check(other, false).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("--listen {other}: every client")));
            check(other, true).unwrap();
        }
    }
}
