//! Requests to the API server with the user's credential.

use std::sync::Arc;

use axum::Extension;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::Response;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use super::error::WebError;
use super::forward;
use super::signed_in::SignedIn;
use rooflet_base::error::Chain;

/// Maximum size of a request body, as in kube-apiserver.
const MAX_BODY_BYTES: usize = 3 << 20;
/// Prefix of the paths that are forwarded.
pub(crate) const PREFIX: &str = "/proxy/api";
/// First segments of the API server's paths that are forwarded.
const ROOTS: [&str; 4] = ["api", "apis", "openapi", "version"];

/// Handler of `/proxy/api/PATH`.
pub(crate) async fn forward_request(
    Extension(signed_in): Extension<Arc<SignedIn>>,
    request: Request,
) -> Result<Response, WebError> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let path = api_path(path.strip_prefix(PREFIX).unwrap_or_default())?.to_owned();
    let body = to_bytes(body, MAX_BODY_BYTES)
        .await
        .map_err(|_| WebError::RequestTooLarge(MAX_BODY_BYTES))?;
    let mut upstream = http::Request::new(Body::from(body));
    *upstream.method_mut() = parts.method;
    *upstream.headers_mut() = forward::request_headers(&parts.headers, &[]);
    let (head, body) = send(&signed_in, upstream, &path).await?.into_parts();
    Ok(forward::response(
        head.status,
        &head.headers,
        body,
        &signed_in.ended,
    ))
}

/// Reads an object with the user's rights. Returns the API server's response if it has none.
pub(crate) async fn get(signed_in: &SignedIn, path: &str) -> Result<Result<Value, Response>, WebError> {
    let mut request = http::Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    let (head, body) = send(signed_in, request, path).await?.into_parts();
    if !head.status.is_success() {
        let response = forward::response(head.status, &head.headers, body, &signed_in.ended);
        return Ok(Err(response));
    }
    let unreadable = |what: String| unreachable(&what);
    let bytes = body.collect().await.map_err(|err| unreadable(err.to_string()))?;
    let object = serde_json::from_slice(&bytes.to_bytes()).map_err(|err| unreadable(err.to_string()))?;
    Ok(Ok(object))
}

/// Sends a request. If the API server rejects the credential, the session ends.
pub(crate) async fn send(
    signed_in: &SignedIn,
    mut request: http::Request<Body>,
    path: &str,
) -> Result<http::Response<Body>, WebError> {
    *request.uri_mut() = path
        .parse()
        .map_err(|_| WebError::InvalidRequest("the path is not valid".to_owned()))?;
    let response = signed_in.client.send(request).await;
    let response = response.map_err(|err| unreachable(&Chain(&err).to_string()))?;
    if response.status() == StatusCode::UNAUTHORIZED {
        signed_in.ended.cancel();
        return Err(WebError::CredentialExpired);
    }
    Ok(response)
}

pub(crate) fn unreachable(what: &str) -> WebError {
    WebError::UpstreamUnreachable {
        upstream: "the API server",
        what: what.to_owned(),
    }
}

/// Checks that a path with its query is one of the API server's.
pub(crate) fn api_path(path: &str) -> Result<&str, WebError> {
    let plain = path.split('?').next().unwrap_or_default();
    let mut segments = plain.split('/');
    let is_rooted = segments.next() == Some("") && segments.next().is_some_and(|root| ROOTS.contains(&root));
    let is_relative = |segment: &str| {
        matches!(
            segment.to_ascii_lowercase().replace("%2e", ".").as_str(),
            "." | ".."
        )
    };
    match is_rooted && !plain.split('/').any(is_relative) {
        true => Ok(path),
        false => Err(WebError::InvalidRequest(format!(
            "the path must begin with /{}",
            ROOTS.join(", /")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_kubernetes_api_are_forwarded() {
        for valid in [
            "/api",
            "/api/v1/namespaces/a/events?watch=true&x=/../",
            "/apis/rooflet.dev/v1alpha1/fleetnodes/a.b",
            "/openapi/v3",
            "/version",
        ] {
            assert_eq!(api_path(valid), Ok(valid));
        }
        for invalid in [
            "",
            "/",
            "/metrics",
            "/apix/v1",
            "api/v1",
            "//evil.example/api",
            "/api/../metrics",
            "/api/%2e%2E/metrics",
            "/api/./v1",
        ] {
            api_path(invalid).unwrap_err();
        }
    }
}
