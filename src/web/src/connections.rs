//! Connections to the gateway and to agents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use rooflet_proxy::{Proxy, Upstream};

/// Address of the gateway.
#[derive(Debug, Clone)]
pub struct GatewayAddress {
    /// If the gateway listens on all addresses, the loopback address is used.
    pub address: SocketAddr,
    /// Authority of the gateway's certificate in PEM, if the gateway serves HTTPS.
    pub authority: Option<String>,
}

/// Connections to gateway and agents.
pub(crate) struct Upstreams {
    pub(crate) gateway: Option<(Proxy, Upstream)>,
    pub(crate) agents: Proxy,
}

impl Upstreams {
    pub(crate) fn new(gateway: Option<GatewayAddress>, agent_tls: Option<Arc<ClientConfig>>) -> Self {
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
    fn upstream(&self) -> Option<(Proxy, Upstream)> {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let authority = address.to_string().parse().ok()?;
        let Some(pem) = &self.authority else {
            return Some((Proxy::new(), Upstream::Tcp(authority)));
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate.ok()?).ok()?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // The certificate must contain this address.
        let node = address.ip().to_string();
        Some((Proxy::with_tls(Arc::new(tls)), Upstream::Node { authority, node }))
    }
}
