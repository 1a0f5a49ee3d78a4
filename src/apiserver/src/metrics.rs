//! Metrics of the API server.

use std::time::Duration;

use rooflet_apimachinery::verb::Verb;
use rooflet_base::metrics::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, LATENCY_SECONDS, Opts, Registry, Result,
};

/// Metrics. Their labels are verbs, served resources and status codes, so cardinality is bounded.
#[derive(Clone)]
pub(crate) struct ApiServerMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    pub watches: IntGauge,
    pub connections: IntGauge,
}

impl ApiServerMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(
                "rooflet_apiserver_requests_total",
                "Completed requests, by verb, resource and status code.",
            ),
            &["verb", "resource", "code"],
        )?;
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "rooflet_apiserver_request_duration_seconds",
                "Time from the end of a request to the start of its response, without watches.",
            )
            .buckets(LATENCY_SECONDS.to_vec()),
            &["verb"],
        )?;
        let watches = IntGauge::new("rooflet_apiserver_watches", "Open watches.")?;
        let connections = IntGauge::new("rooflet_apiserver_connections", "Open client connections.")?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(durations.clone()))?;
        registry.register(Box::new(watches.clone()))?;
        registry.register(Box::new(connections.clone()))?;
        Ok(Self {
            requests,
            durations,
            watches,
            connections,
        })
    }

    /// Records a completed request. `resource` is a served resource or empty.
    pub(crate) fn observe(&self, verb: Verb, resource: &str, code: u16, took: Duration) {
        self.requests
            .with_label_values(&[verb.as_str(), resource, code.to_string().as_str()])
            .inc();
        if verb != Verb::Watch {
            self.durations
                .with_label_values(&[verb.as_str()])
                .observe(took.as_secs_f64());
        }
    }
}
