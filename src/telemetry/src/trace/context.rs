//! The context that goes from process to process with a request (W3C Trace Context).

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Of W3C Trace Context, level 1.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A trace's id, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(u128);

/// A span's id, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(u64);

impl TraceId {
    pub(super) fn random() -> Self {
        Self(random_id())
    }

    /// Those by which it is decided whether a trace is sampled.
    pub(super) fn low_bits(self) -> u64 {
        self.0 as u64
    }
}

impl SpanId {
    pub(super) fn random() -> Self {
        Self(random_id() as u64 | 1)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a span is: what its children and other processes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// From `traceparent`; later versions begin as this one does. `None` where it is none: then a trace begins here.
    fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hexadecimal = |digits: usize| {
            let part = parts.next()?;
            let is_hexadecimal = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (part.len() == digits && is_hexadecimal).then_some(part)
        };
        let version = hexadecimal(2)?;
        let trace = u128::from_str_radix(hexadecimal(32)?, 16).ok()?;
        let span = u64::from_str_radix(hexadecimal(16)?, 16).ok()?;
        let flags = u8::from_str_radix(hexadecimal(2)?, 16).ok()?;
        let has_more = parts.next().is_some();
        if version == "ff" || (version == "00" && has_more) || trace == 0 || span == 0 {
            return None;
        }
        Some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & 1 == 1,
        })
    }

    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let only = all.next().filter(|_| all.next().is_none())?;
        Self::parse(only.to_str().ok()?)
    }

    pub(super) fn child(self) -> Self {
        Self {
            span: SpanId::random(),
            ..self
        }
    }

    /// As `traceparent`.
    pub fn to_header(self) -> HeaderValue {
        let text = format!(
            "00-{}-{}-{:02x}",
            self.trace,
            self.span,
            u8::from(self.is_sampled)
        );
        HeaderValue::from_str(&text).expect("digits and dashes")
    }
}

fn random_id() -> u128 {
    // 1 of 2^128 is 0, which is no id.
    rand::random::<u128>().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The examples of W3C Trace Context, sections 3.2.2 and 4.
    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent).unwrap();
        assert_eq!(context.to_header(), parent);
        let unsampled = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert!(!unsampled.unwrap().is_sampled);
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be-like";
        assert_eq!(TraceContext::parse(later), Some(context));
        for none in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_it(header in ".{0,80}") {
            if let Some(context) = TraceContext::parse(&header) {
                let again = TraceContext::parse(context.to_header().to_str().unwrap());
                prop_assert_eq!(again, Some(context));
            }
        }
    }
}
