//! Spans and measurements as OTLP's JSON says them: ids in hexadecimal, 64-bit numbers as text
//! (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>).

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value as Json, json};

use crate::meter::{Attributes, Histogram, Instrument, Measured};
use crate::trace::{Span, SpanKind, Value};

/// An `ExportTraceServiceRequest`.
pub(super) fn spans(resource: &[(String, String)], spans: &[Span]) -> Json {
    json!({"resourceSpans": [{
        "resource": {"attributes": texts(resource)},
        "scopeSpans": [{"scope": scope(), "spans": spans.iter().map(span).collect::<Vec<Json>>()}],
    }]})
}

/// An `ExportMetricsServiceRequest`. All of it was measured in the interval, which is Unix time.
pub(super) fn metrics(resource: &[(String, String)], measured: &Measured, interval: &Range<i128>) -> Json {
    let metric = |(instrument, histograms): (&Instrument, &BTreeMap<Attributes, Histogram>)| {
        let points = histograms
            .iter()
            .map(|(attributes, histogram)| point(*instrument, attributes, histogram, interval));
        json!({
            "name": instrument.name(),
            "description": instrument.description(),
            "unit": instrument.unit(),
            // AGGREGATION_TEMPORALITY_CUMULATIVE.
            "histogram": {"aggregationTemporality": 2, "dataPoints": points.collect::<Vec<Json>>()},
        })
    };
    json!({"resourceMetrics": [{
        "resource": {"attributes": texts(resource)},
        "scopeMetrics": [{"scope": scope(), "metrics": measured.iter().map(metric).collect::<Vec<Json>>()}],
    }]})
}

fn point(
    instrument: Instrument,
    attributes: &[(&'static str, String)],
    histogram: &Histogram,
    interval: &Range<i128>,
) -> Json {
    let counts: Vec<String> = histogram.counts.iter().map(u64::to_string).collect();
    json!({
        "attributes": texts(attributes),
        "startTimeUnixNano": interval.start.to_string(),
        "timeUnixNano": interval.end.to_string(),
        "count": histogram.counts.iter().sum::<u64>().to_string(),
        "sum": histogram.sum,
        "min": histogram.min,
        "max": histogram.max,
        "bucketCounts": counts,
        "explicitBounds": instrument.bounds(),
    })
}

fn scope() -> Json {
    json!({"name": "rooflet", "version": env!("CARGO_PKG_VERSION")})
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

fn texts<N: AsRef<str>>(attributes: &[(N, String)]) -> Vec<Json> {
    let text = |(name, value): &(N, String)| json!({"key": name.as_ref(), "value": {"stringValue": value}});
    attributes.iter().map(text).collect()
}
