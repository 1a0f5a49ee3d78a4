//! HTTP responses.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream::{Stream, StreamExt as _};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::Value;

use crate::endpoints::negotiate::{Encoding, JSON};
use crate::registry::resource::to_bytes;
use crate::status::ApiError;
use rooflet_apimachinery::protobuf;
use rooflet_base::yaml;

pub(crate) type ApiBody = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Reply = Response<ApiBody>;

pub(crate) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

pub(crate) fn bytes(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()).boxed_unsync());
    *reply.status_mut() = code;
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply.headers_mut().insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    reply
}

/// Returns a response with serialized JSON, optionally indented or converted to YAML or protobuf.
pub(crate) fn encoded(code: StatusCode, encoding: Encoding, pretty: bool, json: Bytes) -> Reply {
    match encoding {
        Encoding::Json if !pretty => bytes(code, JSON, json),
        Encoding::Json => {
            match serde_json::from_slice::<Value>(&json).and_then(|value| serde_json::to_vec_pretty(&value)) {
                Ok(pretty) => bytes(code, JSON, pretty),
                Err(_) => bytes(code, JSON, json),
            }
        }
        Encoding::Yaml => {
            let text = serde_json::from_slice::<Value>(&json)
                .ok()
                .and_then(|value| yaml::to_string(&value).ok());
            match text {
                Some(text) => bytes(code, encoding.content_type(), text),
                None => bytes(code, JSON, json),
            }
        }
        Encoding::Protobuf => {
            let object = serde_json::from_slice::<Value>(&json).map_err(|err| err.to_string());
            let encoded =
                object.and_then(|object| protobuf::from_json(&object).map_err(|err| err.to_string()));
            match encoded {
                Ok(body) => bytes(code, encoding.content_type(), body),
                Err(reason) => error(&ApiError::internal(reason), Encoding::Json, pretty),
            }
        }
    }
}

pub(crate) fn json(code: StatusCode, pretty: bool, value: &Value) -> Reply {
    encoded(code, Encoding::Json, pretty, to_bytes(value))
}

pub(crate) fn error(err: &ApiError, encoding: Encoding, pretty: bool) -> Reply {
    let mut reply = if err.is_plain() {
        let mut reply = bytes(err.code(), PLAIN_TEXT, err.message().to_owned());
        let nosniff = HeaderValue::from_static("nosniff");
        reply
            .headers_mut()
            .insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
        reply
    } else {
        encoded(err.code(), encoding, pretty, to_bytes(&err.to_json()))
    };
    if let Some(seconds) = err.retry_after_seconds() {
        reply
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// Returns a streaming response. Headers are sent before the first frame.
pub(crate) fn stream(
    content_type: &'static str,
    frames: impl Stream<Item = Bytes> + Send + 'static,
) -> Reply {
    let body = StreamBody::new(frames.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))));
    let mut reply = Response::new(body.boxed_unsync());
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply.headers_mut().insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    reply
}

/// Maximum characters of all Warning headers of a response, and of each header if the total is
/// exceeded, as in kube-apiserver.
const WARNINGS_MAX_CHARS: usize = 4_096;
const WARNING_MAX_CHARS: usize = 256;

/// Adds a Warning header for each text. Beyond the limit, truncates texts and then omits the rest.
/// Omits texts that are not valid header values.
pub(crate) fn add_warnings(reply: &mut Reply, mut texts: Vec<String>) {
    let chars = |text: &String| text.chars().count();
    if texts.iter().map(chars).sum::<usize>() > WARNINGS_MAX_CHARS {
        let mut left = WARNINGS_MAX_CHARS;
        texts = texts
            .iter()
            .map(|text| text.chars().take(WARNING_MAX_CHARS).collect::<String>())
            .take_while(|text| {
                let fits = left.checked_sub(chars(text));
                left = fits.unwrap_or_default();
                fits.is_some()
            })
            .collect();
    }
    for text in texts {
        let quoted = text
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace(['\r', '\n'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            reply.headers_mut().append(header::WARNING, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_stay_within_the_limit() {
        let lengths = |texts: Vec<String>| {
            let mut reply = bytes(StatusCode::OK, JSON, "{}");
            add_warnings(&mut reply, texts);
            let headers = reply.headers().get_all(header::WARNING).iter();
            headers
                .map(|value| value.len() - "299 - \"\"".len())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            lengths(vec!["x".repeat(4_096)]),
            [4_096],
            "a single long text is not truncated"
        );
        assert_eq!(lengths(vec!["x".repeat(1_000); 5]), [256; 5]);
        assert_eq!(lengths(vec!["x".repeat(300); 50]), [256; 16]);
    }

    #[test]
    fn each_warning_is_quoted_in_its_own_header() {
        let mut reply = bytes(StatusCode::OK, JSON, "{}");
        add_warnings(
            &mut reply,
            vec!["unknown field \"spec.bogus\"".to_owned(), "second".to_owned()],
        );
        let got: Vec<_> = reply
            .headers()
            .get_all(header::WARNING)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        assert_eq!(
            got,
            [
                &b"299 - \"unknown field \\\"spec.bogus\\\"\""[..],
                b"299 - \"second\""
            ]
        );
    }
}
