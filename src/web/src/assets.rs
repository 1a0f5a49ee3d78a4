//! Files of the built page, embedded in the program.

use std::collections::BTreeMap;
use std::io::Write as _;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use sha2::{Digest as _, Sha256};

use super::error::WebError;
use super::guard::{PartOfPage, page_policy};

#[derive(rust_embed::Embed)]
#[folder = "page/dist/"]
#[allow_missing = true]
struct Bundle;

/// Content types by the end of the file name.
const TYPES: [(&str, &str); 9] = [
    (".html", "text/html; charset=utf-8"),
    (".js", "text/javascript; charset=utf-8"),
    (".css", "text/css; charset=utf-8"),
    (".svg", "image/svg+xml"),
    (".png", "image/png"),
    (".ico", "image/x-icon"),
    (".json", "application/json"),
    (".webmanifest", "application/manifest+json"),
    (".txt", "text/plain; charset=utf-8"),
];

struct File {
    content_type: &'static str,
    plain: Bytes,
    gzip: Bytes,
    /// Hash of the content.
    tag: String,
}

impl File {
    fn new(path: &str, content: &[u8]) -> Self {
        let type_ = TYPES.iter().find(|(end, _)| path.ends_with(end));
        let hash = Sha256::digest(content);
        Self {
            content_type: type_.map_or("application/octet-stream", |(_, type_)| type_),
            plain: Bytes::copy_from_slice(content),
            gzip: gzip(content),
            tag: hash[..12].iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

fn gzip(content: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(content).and_then(|()| encoder.finish());
    written.expect("memory accepts all writes").into()
}

/// Files by path.
pub(crate) struct Assets {
    files: BTreeMap<String, File>,
    /// Content security policy of the files.
    policy: HeaderValue,
}

impl Assets {
    /// Compresses all files.
    pub(crate) fn load() -> Self {
        let files = Bundle::iter().filter_map(|path| {
            let file = Bundle::get(&path)?;
            Some((format!("/{path}"), File::new(&path, &file.data)))
        });
        Self::new(files.collect())
    }

    fn new(files: BTreeMap<String, File>) -> Self {
        let document = files.get("/index.html").map(|file| file.plain.as_ref());
        let document = String::from_utf8_lossy(document.unwrap_or_default());
        let [styles, scripts] = ["style", "script"].map(|element| hashes(&document, element));
        Self {
            policy: page_policy(&styles, &scripts),
            files,
        }
    }

    /// Returns the response to a request for a file. The page itself is at `/`.
    pub(crate) fn respond(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response {
        if method != Method::GET && method != Method::HEAD {
            return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")]).into_response();
        }
        let path = if path == "/" { "/index.html" } else { path };
        let Some(file) = self.files.get(path) else {
            return WebError::NotFound("the server has no such path".to_owned()).into_response();
        };
        let is_gzip = accepts_gzip(headers);
        let (content, tag) = match is_gzip {
            true => (&file.gzip, format!("\"{}-gzip\"", file.tag)),
            false => (&file.plain, format!("\"{}\"", file.tag)),
        };
        let mut response = match is_known(headers, &tag) {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => Body::from(content.clone()).into_response(),
        };
        let added = response.headers_mut();
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            added.insert(ETAG, tag);
        }
        // The names of the files do not change with their content.
        added.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        added.insert(VARY, HeaderValue::from_static("accept-encoding"));
        added.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
        if is_gzip {
            added.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response.extensions_mut().insert(PartOfPage(self.policy.clone()));
        response
    }
}

/// Returns the sources of a policy that permit the inline elements of the document.
fn hashes(document: &str, element: &str) -> Vec<String> {
    let (start, end) = (format!("<{element}>"), format!("</{element}>"));
    let parts = document.split(&start).skip(1);
    let contents = parts.filter_map(|part| part.split_once(&end));
    contents
        .map(|(content, _)| {
            let hash = BASE64_STANDARD.encode(Sha256::digest(content));
            format!("'sha256-{hash}'")
        })
        .collect()
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
            let is_refused = weight
                .trim()
                .strip_prefix("q=")
                .is_some_and(|q| q.parse() == Ok(0.0));
            name.trim().eq_ignore_ascii_case("gzip") && !is_refused
        })
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).iter();
    known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|known| known.trim().trim_start_matches("W/") == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assets() -> Assets {
        let file = |path: &str, content: &str| (path.to_owned(), File::new(path, content.as_bytes()));
        let document = "<style>p{}</style><script>let a;</script><script>1</script><p>";
        Assets::new(
            [
                file("/index.html", document),
                file("/app.js", "let a;"),
                file("/LICENSE", ""),
            ]
            .into(),
        )
    }

    #[test]
    fn policy_permits_only_the_inline_elements_of_the_document() {
        // Output of `printf TEXT | openssl dgst -sha256 -binary | base64`.
        let policy = assets().policy;
        let policy = policy.to_str().expect("text");
        for source in [
            "style-src 'sha256-gG2yISYereRMiG2lMXrbiUgi0Ubw9p7QCeWcroOvy9Y=';",
            "script-src 'self' 'sha256-81WALLbUROF1pWdYjuQYKuIcGgY/+TqVJr8UsV6Tkvo=' 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='",
        ] {
            assert!(policy.contains(source), "{policy}");
        }
        assert!(Assets::new(BTreeMap::new()).policy.to_str().is_ok());
    }

    fn respond(path: &str, headers: &[(http::HeaderName, &str)]) -> Response {
        let headers = headers.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a value");
            (name.clone(), value)
        });
        assets().respond(&Method::GET, path, &headers.collect())
    }

    #[test]
    fn files_have_a_type_and_the_page_is_at_the_root() {
        for (path, type_) in [
            ("/", "text/html; charset=utf-8"),
            ("/index.html", "text/html; charset=utf-8"),
            ("/app.js", "text/javascript; charset=utf-8"),
            ("/LICENSE", "application/octet-stream"),
        ] {
            assert_eq!(respond(path, &[]).headers()[CONTENT_TYPE], type_, "{path}");
        }
        for path in ["/app.css", "/../Cargo.toml", "//app.js", ""] {
            assert_eq!(respond(path, &[]).status(), StatusCode::NOT_FOUND, "{path}");
        }
        let posted = assets().respond(&Method::POST, "/", &HeaderMap::new());
        assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn known_content_is_not_sent_again() {
        let first = respond("/app.js", &[]);
        let tag = first.headers()[ETAG].to_str().expect("text").to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}")] {
            let again = respond("/app.js", &[(IF_NONE_MATCH, &known)]);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known}");
        }
        let compressed = respond("/app.js", &[(IF_NONE_MATCH, &tag), (ACCEPT_ENCODING, "gzip")]);
        assert_eq!(compressed.status(), StatusCode::OK);
    }

    #[test]
    fn content_is_compressed_for_clients_that_accept_it() {
        let encoding = |accepted: &str| {
            let response = respond("/app.js", &[(ACCEPT_ENCODING, accepted)]);
            response.headers().get(CONTENT_ENCODING).cloned()
        };
        for accepted in ["gzip", "br, GZIP;q=0.5", "deflate,gzip"] {
            assert_eq!(encoding(accepted).expect("compressed"), "gzip");
        }
        for other in ["", "br", "gzip;q=0", "identity"] {
            assert_eq!(encoding(other), None, "{other}");
        }
    }
}
