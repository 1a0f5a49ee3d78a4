//! Responses of the hub and its CDN.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::json;

use super::{Access, Contents, Download, Fault, File, Repository, Shared, Times};

/// Maximum number of chunks per second if the rate is limited.
const TICKS_A_SECOND: u32 = 50;
const TICK: Duration = Duration::from_millis(1000 / TICKS_A_SECOND as u64);

/// Size of a chunk if the rate is not limited.
const CHUNK_BYTES: usize = 64 << 10;

/// Status, code and message of a rejected request, in the hub's wording.
type Rejection = (StatusCode, &'static str, &'static str);

fn reject((status, code, message): Rejection) -> Response {
    let mut response = (status, [("X-Error-Message", message)]).into_response();
    if !code.is_empty() {
        let headers = response.headers_mut();
        headers.insert("X-Error-Code", HeaderValue::from_static(code));
    }
    response
}

const NO_PAGE: Rejection = (StatusCode::NOT_FOUND, "", "Sorry, we can't find the page.");
const NO_FILE: Rejection = (StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found");

/// Requested part of a revision of a model.
enum Resource {
    Description,
    Tree,
    /// Redirect to the content of a file.
    Location(String),
    Content(String),
}

impl Contents {
    /// Returns a model and the commit of a revision, if the token permits access.
    fn find(
        &self,
        model: &str,
        revision: &str,
        resource: &Resource,
        token: Option<&str>,
    ) -> Result<(&Repository, &str), Rejection> {
        // Without a token, the response does not disclose whether the model exists.
        let unknown = match token {
            None => (StatusCode::UNAUTHORIZED, "", "Invalid username or password."),
            Some(_) => (StatusCode::NOT_FOUND, "RepoNotFound", "Repository not found"),
        };
        let repository = self.repositories.get(model).ok_or(unknown)?;
        match (repository.access, resource) {
            (Access::Private(required), _) if token != Some(required) => return Err(unknown),
            (Access::Gated(required), Resource::Location(_) | Resource::Content(_))
                if token != Some(required) =>
            {
                let (status, message) = match token {
                    None => (StatusCode::UNAUTHORIZED, "Access is restricted. Please log in."),
                    Some(_) => (StatusCode::FORBIDDEN, "You are not in the authorized list."),
                };
                return Err((status, "GatedRepo", message));
            }
            (Access::Public | Access::Gated(_) | Access::Private(_), _) => {}
        }
        let commit = repository.heads.get(revision).map_or(revision, String::as_str);
        match repository.commits.get_key_value(commit) {
            Some((commit, _)) => Ok((repository, commit)),
            None => Err((StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id")),
        }
    }

    /// Returns the first fault of a response with these bytes of a file, and its position.
    fn fault(&mut self, name: &str, bytes: &Range<usize>) -> Option<(usize, Fault)> {
        let applies = |(file, at, ..): &(String, usize, Fault, Times)| file == name && bytes.contains(at);
        let index = self.faults.iter().position(applies)?;
        let (_, at, fault, times) = self.faults[index];
        if times == Times::Once {
            self.faults.remove(index);
        }
        Some((at, fault))
    }
}

pub(super) async fn serve_hub(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path();
    let asked = format!("{} {path}", request.method());
    shared.contents().requests.push(asked);
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let (owner, name, revision, resource) = match parts.as_slice() {
        ["api", "models", owner, name, "revision", revision] => {
            (owner, name, revision, Resource::Description)
        }
        ["api", "models", owner, name, "tree", revision] => (owner, name, revision, Resource::Tree),
        ["api", "resolve-cache", "models", owner, name, commit, file @ ..] => {
            (owner, name, commit, Resource::Content(file.join("/")))
        }
        [owner, name, "resolve", revision, file @ ..] => {
            (owner, name, revision, Resource::Location(file.join("/")))
        }
        _ => return reject(NO_PAGE),
    };
    let (model, revision) = (format!("{owner}/{name}"), revision.replace("%2F", "/"));
    let token = request.headers().get(header::AUTHORIZATION);
    let token = token.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let contents = shared.contents();
    let (repository, commit) = match contents.find(&model, &revision, &resource, token) {
        Ok(found) => found,
        Err(rejection) => return reject(rejection),
    };
    let files = &repository.commits[commit];
    let with_blobs = request.uri().query() == Some("blobs=true");
    let sibling = |(name, file): (&String, &Arc<File>)| {
        let mut described = json!({"rfilename": name});
        if with_blobs {
            described = file.described(name, false);
        }
        if let Some(bytes) = contents.claims.get(name) {
            described["size"] = (*bytes).into();
        }
        described
    };
    match resource {
        Resource::Description => Json(json!({
            "id": model,
            "modelId": model,
            "sha": commit,
            "private": matches!(repository.access, Access::Private(_)),
            "gated": if matches!(repository.access, Access::Gated(_)) { json!("manual") } else { json!(false) },
            "siblings": files.iter().map(sibling).collect::<Vec<_>>(),
        }))
        .into_response(),
        Resource::Tree => {
            let files = files.iter().map(|(name, file)| file.described(name, true));
            Json(files.collect::<Vec<_>>()).into_response()
        }
        Resource::Location(name) => match files.get(&name) {
            Some(file) => redirect(&shared, file, &format!("{model}/{commit}/{name}"), commit),
            None => reject(NO_FILE),
        },
        Resource::Content(name) => match files.get(&name).cloned() {
            Some(file) => {
                let commit = [("X-Repo-Commit", commit.to_owned())];
                drop(contents);
                (commit, content(&shared, &name, &file, &file.blob_id, &request)).into_response()
            }
            None => reject(NO_FILE),
        },
    }
}

/// Redirects to the content of a file. The hub never sends content at the requested URL.
fn redirect(shared: &Shared, file: &File, path: &str, commit: &str) -> Response {
    let (status, location, etag) = match file.pointer_bytes {
        Some(_) => {
            let cdn = shared.cdn.lock().expect("no holder of the lock panics");
            // The host differs, too, because some clients distinguish hub and CDN by host name.
            let location = format!("http://localhost:{}/{path}?{SIGNATURE}", cdn.port());
            (StatusCode::FOUND, location, &file.sha256)
        }
        None => {
            let location = format!("/api/resolve-cache/models/{path}");
            (StatusCode::TEMPORARY_REDIRECT, location, &file.blob_id)
        }
    };
    let headers = [
        ("Location", location),
        ("X-Repo-Commit", commit.to_owned()),
        ("X-Linked-Size", file.content.len().to_string()),
        ("X-Linked-Etag", format!("\"{etag}\"")),
    ];
    (status, headers).into_response()
}

/// Query of a valid URL of the CDN.
const SIGNATURE: &str = "Signature=valid";

pub(super) async fn serve_cdn(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if request.uri().query() != Some(SIGNATURE) {
        return StatusCode::FORBIDDEN.into_response();
    }
    // Storage accepts only one authentication mechanism: the signature or a token.
    if request.headers().contains_key(header::AUTHORIZATION) {
        return (StatusCode::BAD_REQUEST, "Only one auth mechanism allowed").into_response();
    }
    let parts: Vec<&str> = request.uri().path().splitn(5, '/').skip(1).collect();
    let [owner, name, commit, file_name] = parts.as_slice() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let file = {
        let contents = shared.contents();
        let repository = contents.repositories.get(&format!("{owner}/{name}"));
        let files = repository.and_then(|repository| repository.commits.get(*commit));
        files.and_then(|files| files.get(*file_name)).cloned()
    };
    match file {
        Some(file) => content(&shared, file_name, &file, &file.sha256, &request),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Parses the requested range: the first byte, and the last one if present.
fn range(headers: &HeaderMap) -> Option<(usize, Option<usize>)> {
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let (begin, end) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((begin.parse().ok()?, end.parse().ok()))
}

/// Returns a file or the requested range of it, changed by faults.
fn content(shared: &Arc<Shared>, name: &str, file: &File, etag: &str, request: &Request) -> Response {
    let (range, length) = (range(request.headers()), file.content.len());
    let is_get = request.method() == Method::GET;
    if is_get {
        let file = name.to_owned();
        shared.contents().downloads.push(Download { file, range });
    }
    let (begin, end) = match range {
        None => (0, length),
        Some((begin, last)) => (begin, last.map_or(length, |last| length.min(last + 1))),
    };
    if range.is_some() && begin >= end {
        let all = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
        return (StatusCode::RANGE_NOT_SATISFIABLE, all).into_response();
    }
    let mut sent = file.content.slice(begin..end);
    let mut is_cut = false;
    let fault = match is_get {
        true => shared.contents().fault(name, &(begin..end)),
        false => None,
    };
    match fault {
        Some((_, Fault::Busy)) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Some((at, Fault::Cut)) => {
            sent.truncate(at - begin);
            is_cut = true;
        }
        Some((at, Fault::Corrupt)) => {
            let mut changed = sent.to_vec();
            changed[at - begin] ^= 1;
            sent = changed.into();
        }
        None => {}
    }
    let headers = [
        (header::CONTENT_LENGTH, (end - begin).to_string()),
        (header::ETAG, format!("\"{etag}\"")),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
    ];
    let body = body(Arc::clone(shared), sent, is_cut);
    if range.is_none() {
        return (headers, body).into_response();
    }
    let part = [(
        header::CONTENT_RANGE,
        format!("bytes {begin}-{}/{length}", end - 1),
    )];
    (StatusCode::PARTIAL_CONTENT, headers, part, body).into_response()
}

/// Sends `rest` at the limited rate, and then breaks the connection if `is_cut`.
fn body(shared: Arc<Shared>, rest: Bytes, is_cut: bool) -> Body {
    let parts = stream::unfold((rest, shared), move |(mut rest, shared)| async move {
        if rest.is_empty() {
            if !is_cut {
                return None;
            }
            // The data must be transmitted before the connection breaks.
            tokio::time::sleep(TICK).await;
            return Some((Err(io::Error::other("cut")), (rest, shared)));
        }
        let limit = shared.contents().bytes_per_second;
        let part = match limit {
            Some(limit) => {
                let part = (limit / TICKS_A_SECOND).max(1);
                tokio::time::sleep(Duration::from_secs(1) * part / limit).await;
                part as usize
            }
            None => CHUNK_BYTES,
        };
        let part = rest.split_to(part.min(rest.len()));
        Some((Ok(part), (rest, shared)))
    });
    Body::from_stream(parts)
}
