//! Logs, request traces and the export of both to an OpenTelemetry collector.
//!
//! Invariant: no span, metric or log line contains a prompt or an answer.

pub mod logging;
pub mod meter;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(any(test, feature = "recorder"))]
pub mod recorder;
pub mod trace;
