//! W3C Trace Context in HTTP headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Header of W3C Trace Context, level 1.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Trace and span to which a request belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl TraceContext {
    pub(super) fn of(context: &SpanContext) -> Self {
        Self {
            trace: context.trace_id(),
            span: context.span_id(),
            flags: context.trace_flags(),
        }
    }

    /// Returns the value of a `traceparent` header.
    pub fn to_header(self) -> HeaderValue {
        let text = format!("00-{}-{}-{:02x}", self.trace, self.span, self.flags);
        HeaderValue::from_str(&text).expect("digits and dashes")
    }
}

/// Returns the caller's context; an empty one if the headers hold no valid `traceparent` or
/// several.
pub(super) fn extract(headers: &HeaderMap) -> Context {
    let context = Context::new();
    if headers.get_all(&TRACEPARENT).iter().count() != 1 {
        return context;
    }
    TraceContextPropagator::new().extract_with_context(&context, &HeaderExtractor(headers))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt as _;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| HeaderValue::from_str(value).unwrap());
        values.map(|value| (TRACEPARENT, value)).collect()
    }

    /// Examples of W3C Trace Context, sections 3.2.2 and 4.
    #[test]
    fn accepts_one_valid_traceparent() {
        let parsed = |values: &[&str]| {
            let context = extract(&headers(values));
            let span = context.span().span_context().clone();
            span.is_valid().then(|| TraceContext::of(&span).to_header())
        };
        assert_eq!(parsed(&[PARENT]).unwrap(), PARENT);
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be-like";
        assert_eq!(parsed(&[later]).unwrap(), PARENT);
        assert_eq!(parsed(&[]), None);
        assert_eq!(parsed(&[PARENT, PARENT]), None);
        for invalid in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert_eq!(parsed(&[invalid]), None, "{invalid}");
        }
    }
}
