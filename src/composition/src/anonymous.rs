//! Listeners that serve other machines without authentication.

use std::net::SocketAddr;

use tracing::warn;

/// Consent to serve other machines.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct AllowAnonymous {
    /// Serve other machines although requests need no key, and are not encrypted unless the
    /// listener has a certificate. Required for a gateway, an agent, a worker, or a web page
    /// without HTTPS on an address other than loopback, except for a gateway with HTTPS that
    /// requires keys, and for the agent of a node that has joined a fleet. The API server and
    /// --metrics-listen do not need it.
    #[arg(long)]
    allow_anonymous: bool,
}

/// Encryption of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Plain,
    Tls,
    /// Plain HTTP, and every request needs a session.
    PlainWithSignIn,
}

impl Transport {
    /// Returns the missing protection, for messages.
    fn missing(self) -> &'static str {
        match self {
            Self::Plain => "without a key and without encryption",
            Self::Tls => "without a key",
            Self::PlainWithSignIn => "without encryption",
        }
    }

    /// Returns another remedy than consent, for messages.
    fn remedy(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::PlainWithSignIn => ", or --tls-cert",
            Self::Tls => ", or --require-keys for a gateway",
        }
    }
}

/// Listener that other machines reach without consent.
#[derive(Debug, thiserror::Error)]
#[error(
    "{flag} {address}: every client that reaches this address could send requests, {}; \
     in a trusted network, add --allow-anonymous{}, otherwise use a loopback address",
    transport.missing(),
    transport.remedy()
)]
pub struct ExposedError {
    flag: &'static str,
    address: SocketAddr,
    transport: Transport,
}

impl AllowAnonymous {
    /// Returns whether the flag is set.
    pub fn is_given(self) -> bool {
        self.allow_anonymous
    }

    /// Checks that other machines reach `address` only with consent. Logs a warning if they do.
    pub fn check(
        self,
        flag: &'static str,
        address: SocketAddr,
        transport: Transport,
    ) -> Result<(), ExposedError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if self.allow_anonymous {
            warn!(
                %address,
                "every client that reaches this address can send requests, {} (--allow-anonymous)",
                transport.missing()
            );
            return Ok(());
        }
        Err(ExposedError {
            flag,
            address,
            transport,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_consent() {
        let check = |address: &str, allow_anonymous| {
            let args = AllowAnonymous { allow_anonymous };
            args.check("--listen", address.parse().expect("an address"), Transport::Plain)
        };
        for loopback in ["127.0.0.1:0", "[::1]:7500"] {
            check(loopback, false).unwrap();
        }
        for other in ["0.0.0.0:7500", "[::]:7500", "192.0.2.7:7500"] {
            let refused = check(other, false).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("--listen {other}: every client")));
            check(other, true).unwrap();
        }
        let args = AllowAnonymous {
            allow_anonymous: false,
        };
        let other = "192.0.2.7:7500".parse().expect("an address");
        let refused = args.check("--listen", other, Transport::Tls).unwrap_err();
        let refused = refused.to_string();
        assert!(
            !refused.contains("encryption") && refused.contains("--require-keys"),
            "{refused}"
        );
    }
}
