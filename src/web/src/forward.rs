//! Headers and bodies of forwarded requests and responses.

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderMap, HeaderName, StatusCode};
use tokio_util::sync::CancellationToken;

/// Request headers that are forwarded to every upstream.
const REQUEST_HEADERS: [HeaderName; 2] = [ACCEPT, CONTENT_TYPE];
const RESPONSE_HEADERS: [HeaderName; 4] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    WARNING,
    HeaderName::from_static("x-request-id"),
];
const RESPONSE_PREFIXES: [&str; 2] = ["x-rooflet-", "x-ratelimit-"];

/// Returns the request headers that are forwarded: those of every upstream, and `more`.
pub(crate) fn request_headers(headers: &HeaderMap, more: &[HeaderName]) -> HeaderMap {
    let names = REQUEST_HEADERS.iter().chain(more);
    let kept = names.filter_map(|name| Some((name.clone(), headers.get(name)?.clone())));
    kept.collect()
}

fn is_forwarded(name: &HeaderName) -> bool {
    let mut prefixes = RESPONSE_PREFIXES.iter();
    RESPONSE_HEADERS.contains(name) || prefixes.any(|prefix| name.as_str().starts_with(prefix))
}

/// Returns the response of an upstream to the browser. The body ends when the session ends.
pub(crate) fn response<B>(
    status: StatusCode,
    headers: &HeaderMap,
    body: B,
    ended: &CancellationToken,
) -> Response
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let stream = Body::new(body).into_data_stream();
    let body = Body::from_stream(stream.take_until(ended.clone().cancelled_owned()));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kept = headers.iter().filter(|(name, _)| is_forwarded(name));
    response
        .headers_mut()
        .extend(kept.map(|(name, value)| (name.clone(), value.clone())));
    response
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(names: &[&'static str]) -> HeaderMap {
        let header = |name: &&'static str| (HeaderName::from_static(name), HeaderValue::from_static("v"));
        names.iter().map(header).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_listed_request_headers_are_forwarded() {
        let sent = headers(&[
            "accept",
            "content-type",
            "authorization",
            "cookie",
            "impersonate-user",
            "impersonate-group",
            "x-csrf-token",
            "x-remote-user",
            "x-forwarded-for",
            "x-session-id",
            "host",
            "connection",
            "upgrade",
        ]);
        let kept = request_headers(&sent, &[HeaderName::from_static("x-session-id")]);
        assert_eq!(names(&kept), ["accept", "content-type", "x-session-id"]);
    }

    #[test]
    fn only_listed_response_headers_are_forwarded() {
        let sent = headers(&[
            "content-type",
            "set-cookie",
            "www-authenticate",
            "location",
            "access-control-allow-origin",
            "x-rooflet-replica",
            "x-ratelimit-limit-requests",
            "retry-after",
            "clear-site-data",
        ]);
        let answer = response(StatusCode::OK, &sent, Body::empty(), &CancellationToken::new());
        let expect = [
            "content-type",
            "retry-after",
            "x-ratelimit-limit-requests",
            "x-rooflet-replica",
        ];
        assert_eq!(names(answer.headers()), expect);
    }
}
