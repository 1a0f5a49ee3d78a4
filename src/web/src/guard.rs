//! Checks of `Host` and `Origin`, and headers that restrict pages. A page of any site can make its
//! visitor's browser send requests to this machine, also under a name of the site that resolves to
//! this machine.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::error::WebError;

/// Policy of the page, besides its scripts and styles: requests only to its own server.
const PAGE_POLICY: &str = "default-src 'none'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; \
     manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Policy of forwarded answers: a browser that shows one runs nothing.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
/// Disables buffers of reverse proxies in front of the server.
const NO_BUFFER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Marks a response as a part of the page, with its content security policy.
#[derive(Clone)]
pub(crate) struct PartOfPage(pub(crate) HeaderValue);

/// Returns the policy of the page. `styles` and `scripts` are sources that permit the inline elements of its
/// document.
pub(crate) fn page_policy(styles: &[String], scripts: &[String]) -> HeaderValue {
    let or_none = |sources: String| {
        if sources.is_empty() {
            "'none'".to_owned()
        } else {
            sources
        }
    };
    let styles = or_none(styles.join(" "));
    let scripts = scripts
        .iter()
        .map(|source| format!(" {source}"))
        .collect::<String>();
    let policy = format!("{PAGE_POLICY}; style-src {styles}; script-src 'self'{scripts}");
    HeaderValue::try_from(policy).expect("hashes are ASCII")
}

/// Names under which browsers reach the server.
#[derive(Debug)]
pub(crate) struct Guard {
    hosts: BTreeSet<String>,
    has_tls: bool,
}

impl Guard {
    /// `listen` is the address of the server, and `names` are further names and addresses. Loopback
    /// names are always included. The port is not compared, because it does not protect against
    /// foreign names, and a forwarded port differs.
    pub(crate) fn new(listen: IpAddr, names: &[String], has_tls: bool) -> Self {
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let addresses = loopback
            .into_iter()
            .chain((!listen.is_unspecified()).then_some(listen));
        let named = names.iter().map(|name| match name.parse() {
            Ok(address) => host_of(address),
            Err(_) => name.to_ascii_lowercase(),
        });
        let hosts = addresses
            .map(host_of)
            .chain(named)
            .chain(["localhost".to_owned()]);
        Self {
            hosts: hosts.collect(),
            has_tls,
        }
    }

    /// Checks the host name of a request. Returns host and port as the browser sent them.
    fn check_host(&self, request: &Request) -> Result<String, WebError> {
        let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
        let sent = header.or_else(|| request.uri().authority().map(Authority::as_str));
        let sent = sent.unwrap_or_default().to_ascii_lowercase();
        match sent.parse::<Authority>() {
            Ok(authority) if !sent.contains('@') && self.hosts.contains(authority.host()) => Ok(sent),
            Ok(_) | Err(_) => Err(WebError::HostNotAllowed(sent.chars().take(100).collect())),
        }
    }

    /// Checks that a request was not sent by a page of another origin. `host` is the checked name.
    fn check_origin(&self, method: &Method, headers: &HeaderMap, host: &str) -> Result<(), WebError> {
        let is_safe = method.is_safe();
        let from = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
        let is_own = match from {
            None | Some(b"same-origin") => true,
            // The user entered the address.
            Some(b"none") => is_safe,
            Some(_) => false,
        };
        let is_origin_own = match headers.get(ORIGIN) {
            None => is_safe,
            Some(origin) => origin.to_str().is_ok_and(|origin| {
                let origin = origin.to_ascii_lowercase();
                // Plain HTTP may be behind a proxy with TLS.
                origin == format!("https://{host}") || !self.has_tls && origin == format!("http://{host}")
            }),
        };
        (is_own && is_origin_own)
            .then_some(())
            .ok_or(WebError::OriginNotAllowed)
    }

    fn check(&self, request: &Request) -> Result<(), WebError> {
        let host = self.check_host(request)?;
        let path = request.uri().path();
        let is_page = !path.starts_with("/session") && !path.starts_with("/proxy");
        // A link of another site may open the page.
        match is_page && request.method().is_safe() {
            true => Ok(()),
            false => self.check_origin(request.method(), request.headers(), &host),
        }
    }
}

fn host_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Checks a request, and adds headers to its response.
pub(crate) async fn middleware(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(err) => err.into_response(),
    };
    let page = response.extensions_mut().remove::<PartOfPage>();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    set(REFERRER_POLICY, "no-referrer");
    set(OPENER_POLICY, "same-origin");
    set(RESOURCE_POLICY, "same-origin");
    set(PERMISSIONS_POLICY, "camera=(), geolocation=(), microphone=()");
    match page {
        Some(PartOfPage(policy)) => {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
        None => {
            set(CONTENT_SECURITY_POLICY, DATA_POLICY);
            set(CACHE_CONTROL, "no-store, no-transform");
            set(NO_BUFFER, "no");
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn guard(listen: &str, has_tls: bool) -> Guard {
        let names = ["Mini.local".to_owned(), "2001:db8::7".to_owned()];
        Guard::new(listen.parse().expect("an address"), &names, has_tls)
    }

    #[test]
    fn host_must_be_a_name_of_the_server() {
        let guard = guard("192.0.2.7", false);
        let check = |host: &str| {
            let request = Request::builder().header(HOST, host);
            guard.check_host(&request.body(Body::empty()).expect("valid"))
        };
        for own in [
            "127.0.0.1:7490",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7490",
            "192.0.2.7:7490",
            "mini.local:7490",
            "[2001:db8::7]:7490",
        ] {
            assert_eq!(check(own), Ok(own.to_ascii_lowercase()), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "127.0.0.1.evil.example:7490",
            "localhost.evil.example",
            "evil@localhost",
            "0.0.0.0:7490",
            "192.0.2.8",
        ] {
            let err = check(foreign).expect_err(foreign);
            assert_eq!(err, WebError::HostNotAllowed(foreign.to_owned()));
        }
    }

    #[test]
    fn origin_must_be_the_page_itself() {
        let check = |method: Method, has_tls, headers: &[(HeaderName, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let headers = headers.collect();
            guard("127.0.0.1", has_tls)
                .check_origin(&method, &headers, "localhost:7490")
                .is_ok()
        };
        let own = (ORIGIN, "http://localhost:7490");
        let site = |value| (FETCH_SITE, value);
        assert!(check(Method::GET, false, &[]));
        assert!(check(Method::GET, false, &[site("same-origin")]));
        assert!(check(Method::GET, false, &[site("none")]));
        assert!(check(Method::POST, false, std::slice::from_ref(&own)));
        assert!(check(Method::POST, false, &[(ORIGIN, "https://localhost:7490")]));
        assert!(check(Method::POST, true, &[(ORIGIN, "https://localhost:7490")]));
        assert!(check(Method::POST, false, &[own.clone(), site("same-origin")]));

        assert!(!check(Method::POST, true, std::slice::from_ref(&own)));
        assert!(!check(Method::POST, false, &[]), "no origin");
        for foreign in [
            "http://localhost:7491",
            "http://127.0.0.1:7490",
            "http://evil.example",
            "null",
            "",
        ] {
            assert!(!check(Method::POST, false, &[(ORIGIN, foreign)]), "{foreign}");
            assert!(!check(Method::GET, false, &[(ORIGIN, foreign)]), "{foreign}");
        }
        for other in ["same-site", "cross-site"] {
            assert!(!check(Method::GET, false, &[site(other)]), "{other}");
            assert!(
                !check(Method::POST, false, &[own.clone(), site(other)]),
                "{other}"
            );
        }
        assert!(!check(Method::POST, false, &[own, site("none")]));
    }
}
