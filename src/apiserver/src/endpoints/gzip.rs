//! Compression of large responses if the client accepts it.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::FutureExt as _;
use http::{HeaderValue, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};

use crate::endpoints::reply::Reply;

/// Minimum size. Size and level are those of kube-apiserver.
const BODY_MIN_BYTES: u64 = 128 << 10;
const LEVEL: u32 = 1;

/// Returns true if the client accepts gzip. Like kube-apiserver, ignores weights.
pub(crate) fn accepts_gzip(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|one| one.trim() == "gzip")
}

/// Compresses a complete, large body. Streams have no exact size and stay unchanged.
pub(crate) fn compressed(reply: Reply) -> Reply {
    if reply
        .body()
        .size_hint()
        .exact()
        .is_none_or(|size| size <= BODY_MIN_BYTES)
    {
        return reply;
    }
    let (mut parts, body) = reply.into_parts();
    // The body is in memory, so it is ready and cannot fail.
    let plain = match body.collect().now_or_never() {
        Some(Ok(collected)) => collected.to_bytes(),
        Some(Err(never)) => match never {},
        None => Bytes::new(),
    };
    let body = match gzip(&plain) {
        Ok(smaller) => {
            let headers = &mut parts.headers;
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            let by_encoding = HeaderValue::from_static("Accept-Encoding");
            if !headers
                .get_all(header::VARY)
                .iter()
                .any(|value| value == by_encoding)
            {
                headers.append(header::VARY, by_encoding);
            }
            smaller
        }
        Err(_) => plain,
    };
    Reply::from_parts(parts, Full::new(body).boxed_unsync())
}

fn gzip(plain: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::new(LEVEL));
    encoder.write_all(plain)?;
    encoder.finish().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_must_be_listed_by_name() {
        for (header, expect) in [
            ("gzip", true),
            ("br, gzip", true),
            ("identity", false),
            ("", false),
            ("xgzip", false),
        ] {
            assert_eq!(accepts_gzip(header), expect, "{header}");
        }
    }
}
