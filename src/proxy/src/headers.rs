//! Hop-by-hop headers, which must not be forwarded (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, EXPECT, HeaderMap, HeaderName, ORIGIN, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

/// Removes hop-by-hop headers and the headers that `Connection` lists.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// Removes `Expect`: the server that accepted the request has already answered `100-continue`.
pub(super) fn remove_expect(headers: &mut HeaderMap) {
    headers.remove(EXPECT);
}

/// Removes `Origin`: the server that received the browser's request has already checked it, and the
/// upstream may have other rules.
pub(super) fn remove_origin(headers: &mut HeaderMap) {
    headers.remove(ORIGIN);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn removes_origin() {
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, HeaderValue::from_static("https://chat.example.com"));
        remove_origin(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn removes_hop_by_hop_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("connection", "x-other"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("x-private", "1"),
            ("x-other", "2"),
            ("authorization", "Bearer k"),
            ("content-type", "application/json"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "content-type"]);
    }
}
