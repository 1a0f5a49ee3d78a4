//! Binding of ports. A process binds all its ports before it starts any work.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// Error of binding a port.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "{flag} {address}: the port is in use by another process; stop that process or choose another port (0 selects a free port)"
    )]
    InUse { flag: &'static str, address: SocketAddr },
    #[error("{flag} {address}: failed to listen")]
    Other {
        flag: &'static str,
        address: SocketAddr,
        #[source]
        err: io::Error,
    },
}

impl BindError {
    pub fn new(flag: &'static str, address: SocketAddr, err: io::Error) -> Self {
        if err.kind() == io::ErrorKind::AddrInUse {
            Self::InUse { flag, address }
        } else {
            Self::Other { flag, address, err }
        }
    }
}

/// Binds `address`, the value of `flag`.
pub async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|err| BindError::new(flag, address, err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_in_use_is_reported() {
        let first = bind("--listen", "127.0.0.1:0".parse().expect("an address"))
            .await
            .expect("a free port");
        let address = first.local_addr().expect("bound");
        let err = bind("--listen", address).await.expect_err("taken");
        assert!(
            matches!(err, BindError::InUse { .. }) && err.to_string().contains("--listen 127.0.0.1:"),
            "{err}"
        );
    }
}
