//! Protection against web pages. A page of any site can make its visitor's browser send requests to
//! this machine, and read the responses if CORS permits it. Responses also reveal requests of other
//! clients, for example by `cached_tokens`. Browsers send the origin of the page (`Origin`) and the
//! requested host name (`Host`). Requests of other programs have no `Origin` and pass.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::Request;
use http::HeaderValue;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;

use super::ApiError;

/// Schemes of pages that belong to an installed program.
const APP_SCHEMES: [&str; 9] = [
    "app",
    "capacitor",
    "chrome-extension",
    "file",
    "moz-extension",
    "safari-web-extension",
    "tauri",
    "vscode-file",
    "vscode-webview",
];

/// Suffixes of names that public DNS servers do not resolve, in addition to names without a dot.
const PRIVATE_SUFFIXES: [&str; 3] = [".localhost", ".local", ".internal"];

/// Value of `--allowed-origins`: allowed origins besides those of this machine and of installed
/// apps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    any: bool,
    /// Origins in the form of browsers: lower case, without the default port.
    named: BTreeSet<String>,
}

/// Error: a part of the list is not an origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an origin: use scheme, host and optional port, such as https://chat.example.com, without a path, or `*` for all origins"
)]
pub struct InvalidOrigin(String);

impl FromStr for AllowedOrigins {
    type Err = InvalidOrigin;

    fn from_str(list: &str) -> Result<Self, InvalidOrigin> {
        let mut origins = Self::default();
        for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if part == "*" {
                origins.any = true;
            } else {
                let origin = origin(part).ok_or_else(|| InvalidOrigin(part.to_owned()))?;
                origins.named.insert(origin);
            }
        }
        Ok(origins)
    }
}

impl fmt::Display for AllowedOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.any.then_some("*").into_iter();
        let all: Vec<_> = all.chain(self.named.iter().map(String::as_str)).collect();
        f.write_str(&all.join(","))
    }
}

/// Normalizes an origin to the form of browsers.
fn origin(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, host) = text.split_once("://")?;
    let authority: Authority = host.strip_suffix('/').unwrap_or(host).parse().ok()?;
    let is_plain = !scheme.is_empty() && !authority.host().is_empty() && !text.contains(['@', '*']);
    let scheme: http::uri::Scheme = is_plain.then(|| scheme.parse().ok())??;
    Some(match (scheme.as_str(), authority.port_u16()) {
        ("http", Some(80)) | ("https", Some(443)) => format!("{scheme}://{}", authority.host()),
        _ => format!("{scheme}://{authority}"),
    })
}

/// Origin and host checks of one listener.
#[derive(Debug)]
pub struct OriginRules {
    allowed: AllowedOrigins,
    /// Allowed host names of a loopback listener. A request with another name results from a page
    /// whose DNS name resolves to this machine (DNS rebinding). `None`: all names are allowed.
    names: Option<Vec<String>>,
}

impl OriginRules {
    /// Creates the rules of a listener. `address` is its address, if it has one. `names` are the
    /// known names of this machine.
    pub fn new(
        allowed: AllowedOrigins,
        address: Option<SocketAddr>,
        names: impl IntoIterator<Item = String>,
    ) -> Arc<Self> {
        let is_loopback = address.is_some_and(|address| address.ip().is_loopback());
        let origins = allowed.named.iter().filter_map(|origin| authority(origin));
        let origins = origins.map(|authority| authority.host().to_owned());
        let names = names.into_iter().map(|name| name.to_ascii_lowercase());
        let names = (is_loopback && !allowed.any).then(|| names.chain(origins).collect());
        Arc::new(Self { allowed, names })
    }

    /// Returns the origin of the requesting page, if any. Returns an error if the request must be
    /// rejected.
    pub(super) fn check(&self, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
        let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
        let host = host.or_else(|| Some(request.uri().authority()?.as_str().as_bytes()));
        if let Some(host) = host.filter(|host| !self.allows_host(host)) {
            let host = String::from_utf8_lossy(host);
            return Err(ApiError::host_not_allowed(&host));
        }
        let Some(origin) = request.headers().get(ORIGIN) else {
            return Ok(None);
        };
        match self.allows_origin(origin) {
            true => Ok(Some(origin.clone())),
            false => Err(ApiError::origin_not_allowed(&String::from_utf8_lossy(
                origin.as_bytes(),
            ))),
        }
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else {
            return self.allowed.any;
        };
        let origin = origin.to_ascii_lowercase();
        self.allowed.any || self.allowed.named.contains(&origin) || is_of_this_machine(&origin)
    }

    fn allows_host(&self, host: &[u8]) -> bool {
        let Some(names) = &self.names else {
            return true;
        };
        let Ok(authority) = Authority::try_from(host) else {
            return false;
        };
        let host = authority.host().to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        address(host).is_some()
            // Public DNS servers do not resolve names without a dot.
            || (!host.is_empty() && !host.contains('.'))
            || PRIVATE_SUFFIXES.iter().any(|suffix| host.ends_with(suffix))
            || names.iter().any(|name| name == host)
    }
}

/// Returns host and port of an origin.
fn authority(origin: &str) -> Option<Authority> {
    origin.split_once("://")?.1.parse().ok()
}

fn is_of_this_machine(origin: &str) -> bool {
    let Some((scheme, _)) = origin.split_once("://") else {
        return false;
    };
    if !matches!(scheme, "http" | "https") {
        return APP_SCHEMES.contains(&scheme);
    }
    authority(origin).is_some_and(|authority| {
        let host = authority.host();
        let is_own = |address: IpAddr| address.is_loopback() || address.is_unspecified();
        host == "localhost" || host.ends_with(".localhost") || address(host).is_some_and(is_own)
    })
}

fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(listener: &str, allowed: &str, headers: &[(&str, &str)]) -> Result<Option<String>, u16> {
        let allowed = allowed.parse().expect("origins");
        let address = listener.parse().expect("an address");
        let rules = OriginRules::new(allowed, Some(address), ["Studio.lan".to_owned()]);
        let request = headers.iter().fold(Request::builder(), |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request.body(Body::empty()).expect("a request");
        match rules.check(&request) {
            Ok(origin) => Ok(origin.map(|origin| origin.to_str().expect("text").to_owned())),
            Err(err) => {
                assert!(err.message.contains("--allowed-origins"), "{}", err.message);
                Err(err.status.as_u16())
            }
        }
    }

    #[test]
    fn allows_local_and_app_origins_and_listed_ones() {
        let from = |origin, allowed| check("0.0.0.0:8080", allowed, &[("origin", origin)]);
        for own in [
            "http://localhost:3000",
            "https://LOCALHOST",
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "app://obsidian.md",
            "file://",
            "tauri://localhost",
            "vscode-webview://0abc",
            "chrome-extension://abc",
        ] {
            assert_eq!(from(own, ""), Ok(Some(own.to_owned())), "{own}");
        }
        for other in [
            "https://evil.example",
            "https://localhost.evil.example",
            "https://127.0.0.1.evil.example",
            "http://192.168.1.7",
            "https://localhost@evil.example",
            "null",
            "",
        ] {
            assert_eq!(from(other, ""), Err(403), "{other}");
            assert_eq!(from(other, "https://chat.example.com"), Err(403), "{other}");
            assert_eq!(from(other, "*"), Ok(Some(other.to_owned())), "{other}");
        }
        for list in [
            "https://chat.example.com",
            "http://a:1, HTTPS://Chat.Example.com:443/",
        ] {
            let named = "https://chat.example.com";
            assert_eq!(from(named, list), Ok(Some(named.to_owned())), "{list}");
            assert_eq!(from("http://chat.example.com", list), Err(403), "{list}");
            assert_eq!(from("https://chat.example.com:8443", list), Err(403), "{list}");
        }
        assert_eq!(check("0.0.0.0:8080", "", &[]), Ok(None), "no page");
    }

    /// DNS rebinding: a name of the attacker that resolves to 127.0.0.1 makes its page same-origin.
    #[test]
    fn loopback_listener_requires_known_host() {
        let host = |host, listener, allowed| check(listener, allowed, &[("host", host)]);
        for own in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3",
            "localhost",
            "Localhost.:8080",
            "studio:8080",
            "studio.lan:8080",
            "studio.local",
            "host.docker.internal:8080",
        ] {
            assert_eq!(host(own, "127.0.0.1:8080", ""), Ok(None), "{own}");
        }
        for other in [
            "evil.example:8080",
            "localhost.evil.example",
            "studio.example",
            "",
            "a b",
        ] {
            assert_eq!(host(other, "127.0.0.1:8080", ""), Err(403), "{other}");
            assert_eq!(host(other, "[::1]:8080", ""), Err(403), "{other}");
            assert_eq!(host(other, "127.0.0.1:8080", "*"), Ok(None), "{other}");
            assert_eq!(host(other, "0.0.0.0:8080", ""), Ok(None), "{other}");
        }
        let named = "https://chat.example.com";
        assert_eq!(host("chat.example.com", "127.0.0.1:8080", named), Ok(None));
    }

    #[test]
    fn rejects_invalid_origins_by_name() {
        for bad in [
            "example.com",
            "https://",
            "https://a/b",
            "https://*.example.com",
            "http://u@h",
            "://h",
        ] {
            let err = format!("https://ok,{bad}")
                .parse::<AllowedOrigins>()
                .expect_err(bad);
            assert_eq!(err, InvalidOrigin(bad.to_owned()));
        }
        let list: AllowedOrigins = " https://B:443/,*,http://a:80 ,".parse().expect("origins");
        assert_eq!(list.to_string(), "*,http://a,https://b");
        assert_eq!(list.to_string().parse(), Ok(list));
    }
}
