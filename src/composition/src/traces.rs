//! Export of request spans and metrics of this process.

use tokio_util::sync::CancellationToken;

use rooflet_base::task::Tasks;
use rooflet_telemetry::trace::Tracer;

/// Timeout of the last export when a process stops.
pub const LAST_EXPORT: std::time::Duration = std::time::Duration::from_secs(3);

/// Returns a tracer that exports spans according to the `OTEL_*` variables until `stop`.
#[cfg(feature = "otlp")]
pub fn start(service: &str, stop: CancellationToken, tasks: &Tasks) -> Tracer {
    rooflet_telemetry::otlp::start(service, rooflet_base::clock::Clock::System, stop, tasks)
}

/// Returns a tracer without export, because this build lacks the feature.
#[cfg(not(feature = "otlp"))]
pub(crate) fn start(_service: &str, _stop: CancellationToken, _tasks: &Tasks) -> Tracer {
    Tracer::default()
}
