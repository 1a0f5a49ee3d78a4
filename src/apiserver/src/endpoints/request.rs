//! HTTP request with parsed query parameters and headers.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use rustls::pki_types::CertificateDer;

use rooflet_base::percent;

/// Query parameters, in order. Names without `=` have an empty value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses like Go's `url.ParseQuery`. Drops malformed pairs, and ignores empty ones (`?&a=b`).
    pub(crate) fn parse(text: &str) -> Self {
        let decode = |text: &str| percent::decode(&text.replace('+', " "));
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'))
            .filter_map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((decode(name)?, decode(value)?))
            });
        Self(pairs.collect())
    }

    /// Returns the first value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a parameter, unless it is absent or empty.
    pub(crate) fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Parses a boolean like apimachinery: every value except `false` and `0` is true, even empty.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|value| !(value.eq_ignore_ascii_case("false") || value == "0"))
    }
}

/// Request with its complete body.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub method: Method,
    pub path: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Client certificate chain; usually empty.
    pub certificates: Certificates,
    /// Address of the client.
    pub client: Option<IpAddr>,
}

/// Certificate chain of a client, its own certificate first.
pub(crate) type Certificates = Arc<[CertificateDer<'static>]>;

impl Request {
    /// Returns a header's text, or an empty text if the header is absent or not ASCII.
    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    pub(crate) fn accept(&self) -> &str {
        self.header(header::ACCEPT)
    }

    pub(crate) fn content_type(&self) -> &str {
        self.header(header::CONTENT_TYPE)
    }

    /// Returns true if the response must be indented: on request, or for terminal and browser
    /// clients.
    pub(crate) fn is_pretty(&self) -> bool {
        if let Some(pretty) = self.query.non_empty("pretty") {
            return matches!(pretty, "1" | "t" | "T" | "true" | "TRUE" | "True");
        }
        let agent = self.header(header::USER_AGENT);
        ["curl", "Wget", "Mozilla/5.0"]
            .iter()
            .any(|human| agent.starts_with(human))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_empty_first_parameter() {
        let query = Query::parse("&limit=500&labelSelector=a+in+%28x%2Cy%29&flag");
        assert_eq!(query.get("limit"), Some("500"));
        assert_eq!(query.get("labelSelector"), Some("a in (x,y)"));
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("absent"), None);
    }

    #[test]
    fn drops_only_malformed_pairs() {
        let query = Query::parse("a=%zz&b=%2&c=1");
        assert_eq!(
            (query.get("a"), query.get("b"), query.get("c")),
            (None, None, Some("1"))
        );
    }

    #[test]
    fn parses_flags_like_apimachinery() {
        let query = Query::parse("a=&b=1&c=false&d=0&e=FALSE&f=no");
        let got: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"]
            .iter()
            .map(|name| query.flag(name))
            .collect();
        assert_eq!(
            got,
            [
                Some(true),
                Some(true),
                Some(false),
                Some(false),
                Some(false),
                Some(true),
                None
            ]
        );
    }
}
