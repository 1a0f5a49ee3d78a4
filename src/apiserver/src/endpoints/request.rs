//! One HTTP request as the handlers see it: path, query parameters and headers, parsed once.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use rustls::pki_types::CertificateDer;

use rooflet_base::percent;

/// The parameters of a query string, in order. Names without `=` have an empty value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses like Go's `url.ParseQuery`: malformed pairs are dropped, empty ones (`?&a=b`)
    /// ignored.
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

    /// The first value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter unless it is absent or empty.
    pub(crate) fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A boolean as API machinery reads it: anything but `false` and `0` is true, even nothing.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|value| !(value.eq_ignore_ascii_case("false") || value == "0"))
    }
}

/// A request whose body has been read.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub method: Method,
    pub path: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What the client showed of itself when it connected; empty for most.
    pub certificates: Certificates,
}

/// A client's certificate chain, its own first.
pub(crate) type Certificates = Arc<[CertificateDer<'static>]>;

impl Request {
    /// A header's text; empty if it is absent or not ASCII.
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

    /// People with a terminal or a browser get indented JSON.
    pub(crate) fn wants_pretty(&self) -> bool {
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
    fn an_empty_first_parameter_is_ignored() {
        let query = Query::parse("&limit=500&labelSelector=a+in+%28x%2Cy%29&flag");
        assert_eq!(query.get("limit"), Some("500"));
        assert_eq!(query.get("labelSelector"), Some("a in (x,y)"));
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("absent"), None);
    }

    #[test]
    fn a_malformed_pair_is_dropped_alone() {
        let query = Query::parse("a=%zz&b=%2&c=1");
        assert_eq!(
            (query.get("a"), query.get("b"), query.get("c")),
            (None, None, Some("1"))
        );
    }

    #[test]
    fn flags_read_as_api_machinery_does() {
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
