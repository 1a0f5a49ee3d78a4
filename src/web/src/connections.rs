//! Connections to the gateway and to agents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustls::ClientConfig;

use rooflet_proxy::{AgentTls, Proxy, Upstream};

/// Address of the gateway.
#[derive(Debug, Clone)]
pub enum GatewayAddress {
    /// Gateway of this machine.
    Local {
        /// If the gateway listens on all addresses, the loopback address is used.
        address: SocketAddr,
        /// TLS that trusts the gateway's certificate, if the gateway serves HTTPS.
        tls: Option<Arc<ClientConfig>>,
    },
    /// Gateway of another machine, with plain HTTP.
    Remote(Upstream),
}

/// Connections to gateway and agents.
pub(crate) struct Upstreams {
    pub(crate) gateway: Option<(Proxy, Upstream)>,
    pub(crate) agents: Proxy,
}

impl Upstreams {
    pub(crate) fn new(gateway: Option<GatewayAddress>, agent_tls: Option<AgentTls>) -> Self {
        Self {
            gateway: gateway.and_then(|gateway| gateway.upstream()),
            agents: agent_tls.map_or_else(Proxy::new, Proxy::with_tls),
        }
    }

    pub(crate) fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }
}

impl GatewayAddress {
    fn upstream(self) -> Option<(Proxy, Upstream)> {
        let (mut address, tls) = match self {
            Self::Local { address, tls } => (address, tls),
            Self::Remote(upstream) => return Some((Proxy::new(), upstream)),
        };
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let authority = address.to_string().parse().ok()?;
        let Some(tls) = tls else {
            return Some((Proxy::new(), Upstream::Tcp(authority)));
        };
        // The certificate must contain this address.
        let node = address.ip().to_string();
        let tls = AgentTls::new(tls, |_| false);
        Some((Proxy::with_tls(tls), Upstream::Node { authority, node }))
    }
}
