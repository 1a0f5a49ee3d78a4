//! Spans as OTLP's JSON says them: ids in hexadecimal, 64-bit numbers as text
//! (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>).

use serde_json::{Value as Json, json};

use crate::trace::{Span, SpanKind, Value};

/// An `ExportTraceServiceRequest`.
pub(super) fn body(resource: &[(String, String)], spans: &[Span]) -> Json {
    let attributes: Vec<Json> = resource
        .iter()
        .map(|(name, value)| json!({"key": name, "value": {"stringValue": value}}))
        .collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{
            "scope": {"name": "rooflet", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans.iter().map(span).collect::<Vec<Json>>(),
        }],
    }]})
}

fn span(span: &Span) -> Json {
    let attributes: Vec<Json> = span
        .attributes
        .iter()
        .map(|(name, of)| json!({"key": name, "value": value(of)}))
        .collect();
    let mut encoded = json!({
        "traceId": span.context.trace.to_string(),
        "spanId": span.context.span.to_string(),
        "name": span.name,
        // Of opentelemetry.proto.trace.v1.Span.SpanKind.
        "kind": match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        "startTimeUnixNano": span.begin_nanos.to_string(),
        "endTimeUnixNano": span.end_nanos.to_string(),
        "attributes": attributes,
        // STATUS_CODE_ERROR, or unset: whether an answer is what was wanted is not ours to say.
        "status": if span.failed { json!({"code": 2}) } else { json!({}) },
    });
    if let Some(parent) = span.parent {
        encoded["parentSpanId"] = json!(parent.to_string());
    }
    encoded
}

fn value(value: &Value) -> Json {
    match value {
        Value::Text(text) => json!({"stringValue": text}),
        Value::Int(number) => json!({"intValue": number.to_string()}),
        Value::Float(number) => json!({"doubleValue": number}),
        Value::Texts(texts) => {
            let values: Vec<Json> = texts.iter().map(|text| json!({"stringValue": text})).collect();
            json!({"arrayValue": {"values": values}})
        }
    }
}
