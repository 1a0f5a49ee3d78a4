//! Where the spans of this process's requests go, and what is measured of them.

use tokio_util::sync::CancellationToken;

use rooflet_base::task::Tasks;
use rooflet_telemetry::trace::Tracer;

/// How long the last spans may take once a process stops.
#[cfg(feature = "mlx")]
pub(crate) const LAST_EXPORT: std::time::Duration = std::time::Duration::from_secs(3);

/// A tracer whose spans go where the `OTEL_*` variables say; until `stop`.
#[cfg(feature = "otlp")]
pub(crate) fn start(service: &str, stop: CancellationToken, tasks: &Tasks) -> Tracer {
    rooflet_telemetry::otlp::start(service, rooflet_base::clock::Clock::System, stop, tasks)
}

/// No spans: this build cannot send them.
#[cfg(not(feature = "otlp"))]
pub(crate) fn start(_service: &str, _stop: CancellationToken, _tasks: &Tasks) -> Tracer {
    Tracer::default()
}
