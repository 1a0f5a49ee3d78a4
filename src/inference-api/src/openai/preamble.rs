//! Start of a streamed answer, before its first token. Until the first token, the request can move
//! to another replica.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Content type of a stream of JSON lines, as in Ollama's API.
pub const JSON_LINES: &str = "application/x-ndjson";

/// Maximum size of a preamble. A longer start counts as content.
pub const MAX_PREAMBLE_BYTES: usize = 64 << 10;

/// Returns whether the response is a stream: server-sent events, or lines of JSON.
pub fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let kinds = ["text/event-stream", JSON_LINES];
    kind.is_some_and(|kind| kinds.iter().any(|known| kind.starts_with(known.as_bytes())))
}

/// Returns whether the stream contains no content: only comments, roles, progress events and white
/// space.
pub fn is_preamble(text: &[u8]) -> bool {
    if text.trim_ascii().is_empty() {
        return true;
    }
    let text = String::from_utf8_lossy(text);
    let has_no_content = |event: &str| {
        let mut lines = event.lines();
        lines.all(|line| {
            let known = [
                "response.created",
                "response.in_progress",
                "message_start",
                "ping",
            ];
            match line.split_once(':') {
                Some(("event", name)) => known.contains(&name.trim()),
                Some(("data", data)) => {
                    let role = data.contains("\"role\":\"assistant\"") && data.contains("\"content\":\"\"");
                    let announces = |name: &&str| data.contains(&format!("\"type\":\"{name}\""));
                    role || known.iter().any(announces)
                }
                Some(("", _comment)) => true,
                Some(_) => false,
                None => line.is_empty(),
            }
        })
    };
    text.split("\n\n").all(has_no_content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preamble_ends_with_first_token() {
        let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
        let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let started = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
        let created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
        for text in ["", role, ": keepalive\n\n", started, created] {
            assert!(is_preamble(text.as_bytes()), "{text}");
            assert!(is_preamble(format!("{role}{text}").as_bytes()), "{text}");
            assert!(!is_preamble(format!("{text}{token}").as_bytes()), "{text}");
        }
        assert!(is_preamble(b"  "), "keep-alive of a stream of JSON lines");
        for text in [
            " {\"model\":\"guide\",\"response\":\"a\"}\n",
            "data: [DONE]\n\n",
            "data: {\"error\":{}}\n\n",
            "event: error\ndata: {}\n\n",
        ] {
            assert!(!is_preamble(text.as_bytes()), "{text}");
        }
    }
}
