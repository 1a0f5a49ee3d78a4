//! Address of the client of a request.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::Extensions;

/// Returns the client's IP address, if known.
pub(crate) fn client_address(extensions: &Extensions) -> Option<IpAddr> {
    let info = extensions.get::<ConnectInfo<SocketAddr>>();
    info.map(|ConnectInfo(address)| address.ip())
}
