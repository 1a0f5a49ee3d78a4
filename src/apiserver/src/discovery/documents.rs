//! Responses of non-resource paths (health, discovery, OpenAPI, metrics) and their cache headers.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::discovery;
use crate::discovery::health;
use crate::discovery::openapi;
use crate::endpoints::handlers::Api;
use crate::endpoints::negotiate::{self, Encoding, JSON};
use crate::endpoints::reply::{self, PLAIN_TEXT, Reply};
use crate::endpoints::request::Request;
use crate::endpoints::routes::Route;
use crate::registry::Snapshot;
use crate::registry::resource::to_bytes;
use crate::status::ApiError;
use rooflet_base::metrics;

/// Time for which clients may keep a document that they request by its hash.
const IMMUTABLE_FOR: SignedDuration = SignedDuration::from_hours(365 * 24);

impl Api {
    /// Handles a non-resource request.
    pub(crate) fn document(&self, request: &Request, route: &Route) -> Result<Reply, ApiError> {
        let snapshot = self.engine.registry.snapshot();
        let json = |value: &Value| Ok(reply::json(StatusCode::OK, request.is_pretty(), value));
        let encoded = |value: &Value| {
            let encoding = negotiate::document(request.accept())?;
            let pretty = request.is_pretty();
            Ok(reply::encoded(StatusCode::OK, encoding, pretty, to_bytes(value)))
        };
        match route {
            Route::Root => json(&discovery::paths(&snapshot)),
            Route::Version => {
                negotiate::check_route(request.accept(), &[JSON])?;
                json(&health::version())
            }
            Route::Health { endpoint, check } => {
                let is_ready = self.is_ready.load(Ordering::Acquire);
                // `/livez` ignores these checks. A supervisor restarts a server that is not live,
                // and a restart does not restore a lost data directory.
                let is_live_only = endpoint == "livez";
                let checks = [
                    ("ping", true),
                    ("bootstrap", is_ready || is_live_only),
                    (
                        "data-directory",
                        is_live_only || self.engine.store.check_files().is_ok(),
                    ),
                    (
                        "storage",
                        is_live_only || self.engine.store.write_failure().is_none(),
                    ),
                ];
                Ok(health::reply(endpoint, check.as_deref(), &request.query, &checks))
            }
            Route::Metrics => {
                let text = metrics::render(&self.metrics_registry);
                Ok(reply::bytes(StatusCode::OK, metrics::TEXT_FORMAT, text))
            }
            Route::CoreVersions => {
                negotiate::check_route(request.accept(), &negotiate::SERVED)?;
                match discovery::aggregated_encoding(request.accept()) {
                    Some(encoding) => Ok(aggregated_reply(request, &snapshot, true, encoding)),
                    None => encoded(&discovery::core_versions(&self.address)),
                }
            }
            Route::Groups => match discovery::aggregated_encoding(request.accept()) {
                // Like kube-apiserver, `/apis/` has no aggregated form.
                Some(encoding) if request.path == "/apis" => {
                    Ok(aggregated_reply(request, &snapshot, false, encoding))
                }
                Some(_) | None => encoded(&discovery::group_list(&snapshot)),
            },
            Route::Group(name) => match snapshot.group(name).filter(|group| !group.name.is_empty()) {
                Some(group) => encoded(&discovery::group(group)),
                None => Err(ApiError::no_route()),
            },
            Route::Resources { group, version } => match snapshot.group_version(group, version) {
                Some(found) => {
                    if found.has_built_in() {
                        negotiate::check_route(request.accept(), &negotiate::SERVED)?;
                    }
                    encoded(&discovery::resource_list(group, found))
                }
                None => Err(snapshot.not_served(group)),
            },
            Route::OpenApiV2 => Ok(open_api_v2(request, &snapshot)),
            Route::OpenApiIndex => Ok(open_api_index(request, &snapshot, self.engine.clock.now())),
            Route::OpenApiDocument(path) => Ok(open_api_document(
                request,
                &snapshot,
                path,
                self.engine.clock.now(),
            )),
            Route::Unknown if request.path.starts_with("/api/") => Err(ApiError::resource_not_served()),
            Route::Snapshot | Route::Resource(_) | Route::Unknown => Err(ApiError::no_route()),
        }
    }
}

/// Returns the aggregated document of `/api` if `core` is true, otherwise of `/apis`.
fn aggregated_reply(request: &Request, snapshot: &Snapshot, core: bool, encoding: Encoding) -> Reply {
    let (body, etag) = discovery::aggregated_body(snapshot, core);
    let content_type = format!("{};{}", encoding.content_type(), discovery::AGGREGATED);
    let mut reply = match is_cached(request, &etag) {
        true => bodiless(StatusCode::NOT_MODIFIED),
        false => reply::encoded(StatusCode::OK, encoding, request.is_pretty(), body),
    };
    let headers = reply.headers_mut();
    if let Some(header) = headers.get_mut(header::CONTENT_TYPE)
        && let Ok(value) = HeaderValue::from_str(&content_type)
    {
        *header = value;
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    add_validators(&mut reply, &etag);
    reply
}

/// Returns a response without body and content type.
fn bodiless(code: StatusCode) -> Reply {
    let mut reply = reply::bytes(code, PLAIN_TEXT, Bytes::new());
    reply.headers_mut().remove(header::CONTENT_TYPE);
    reply
}

/// Returns true if the client has the current document.
fn is_cached(request: &Request, etag: &str) -> bool {
    request.header(header::IF_NONE_MATCH) == format!("\"{etag}\"")
}

fn add_validators(reply: &mut Reply, etag: &str) {
    let headers = reply.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&format!("\"{etag}\"")) {
        headers.insert(header::ETAG, value);
    }
}

fn not_acceptable() -> Reply {
    let mut reply = bodiless(StatusCode::NOT_ACCEPTABLE);
    let headers = reply.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    reply
}

/// Handles the OpenAPI v2 document. Like kube-apiserver, the answer varies by encoding also if it is not
/// compressed.
fn open_api_v2(request: &Request, snapshot: &Snapshot) -> Reply {
    let Some(content_type) = openapi::media_type(request.accept(), openapi::V2_PROTOBUF) else {
        return varying_by_encoding(not_acceptable());
    };
    let document = openapi::document_v2(snapshot, content_type);
    let tag = snapshot
        .responses
        .get_or_compute(&format!("openapi-v2/{content_type}/etag"), || {
            Bytes::from(discovery::etag(&document))
        });
    let etag = String::from_utf8_lossy(&tag);
    let mut reply = match is_cached(request, &etag) {
        true => bodiless(StatusCode::NOT_MODIFIED),
        false => reply::bytes(StatusCode::OK, content_type, document),
    };
    add_validators(&mut reply, &etag);
    varying_by_encoding(reply)
}

fn varying_by_encoding(mut reply: Reply) -> Reply {
    let headers = reply.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    reply
}

fn open_api_document(request: &Request, snapshot: &Snapshot, path: &str, now: Timestamp) -> Reply {
    let Some(hash) = openapi::hash(snapshot, path) else {
        return bodiless(StatusCode::NOT_FOUND);
    };
    let Some(content_type) = openapi::media_type(request.accept(), openapi::V3_PROTOBUF) else {
        return not_acceptable();
    };
    let requested = request.query.non_empty("hash");
    let is_moved = requested.is_some_and(|requested| requested != hash);
    let mut reply = match is_cached(request, &hash) {
        _ if is_moved => reply::bytes(StatusCode::MOVED_PERMANENTLY, content_type, Bytes::new()),
        true => bodiless(StatusCode::NOT_MODIFIED),
        false => {
            let document = openapi::document(snapshot, path, content_type).unwrap_or_default();
            reply::bytes(StatusCode::OK, content_type, document)
        }
    };
    add_validators(&mut reply, &hash);
    let headers = reply.headers_mut();
    if is_moved {
        if let Ok(location) = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={hash}")) {
            headers.insert(header::LOCATION, location);
        }
    } else if requested.is_some() {
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, immutable"),
        );
        let expiry = http_date(now.saturating_add(IMMUTABLE_FOR).unwrap_or(now));
        headers.extend(expiry.map(|date| (header::EXPIRES, date)));
    }
    reply
}

/// Handles the index. It has no hash, so clients use If-Modified-Since.
fn open_api_index(request: &Request, snapshot: &Snapshot, now: Timestamp) -> Reply {
    let created = snapshot.created.as_second();
    let known = rfc2822::DateTimeParser::new()
        .parse_timestamp(request.header(header::IF_MODIFIED_SINCE))
        .ok();
    let mut reply = match known {
        Some(known) if created <= known.as_second() => {
            reply::bytes(StatusCode::NOT_MODIFIED, PLAIN_TEXT, Bytes::new())
        }
        Some(_) | None => reply::bytes(StatusCode::OK, PLAIN_TEXT, openapi::index(snapshot)),
    };
    // Another change may follow within the same second, which Last-Modified could not represent.
    let date = (created < now.as_second())
        .then(|| http_date(snapshot.created))
        .flatten();
    if let Some(date) = date {
        reply.headers_mut().insert(header::LAST_MODIFIED, date);
    }
    reply
}

fn http_date(time: Timestamp) -> Option<HeaderValue> {
    let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
    HeaderValue::from_str(&date.ok()?).ok()
}
