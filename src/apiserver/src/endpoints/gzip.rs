//! Large answers to clients far away: compressed, where the client asks for it.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::FutureExt as _;
use http::{HeaderValue, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};

use crate::endpoints::reply::Reply;

/// Below this the work costs more than it saves. A real server's limit and level.
const BODY_MIN_BYTES: u64 = 128 << 10;
const LEVEL: u32 = 1;

/// Whether a client takes gzip, as a real server reads the header: by name, without weights.
pub(crate) fn is_wanted(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|one| one.trim() == "gzip")
}

/// Compresses a body that is whole and large. Streams have no size and pass as they are.
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
    // It is in memory already, and no part of it can fail.
    let plain = match body.collect().now_or_never() {
        Some(Ok(collected)) => collected.to_bytes(),
        Some(Err(never)) => match never {},
        None => Bytes::new(),
    };
    let body = match gzip(&plain) {
        Ok(smaller) => {
            let headers = &mut parts.headers;
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
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
    fn gzip_is_asked_for_by_name() {
        for (header, expect) in [
            ("gzip", true),
            ("br, gzip", true),
            ("identity", false),
            ("", false),
            ("xgzip", false),
        ] {
            assert_eq!(is_wanted(header), expect, "{header}");
        }
    }
}
