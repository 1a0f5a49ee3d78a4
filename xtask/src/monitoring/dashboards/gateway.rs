//! Panels of the dashboard `gateway`.

use super::{Dashboard, Kind, Row, after, panel, query, variable};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "gateway",
    title: "rooflet: gateway",
    description: "Requests, latency and queues of the gateways, and the use of API keys.",
    variables: &[variable(
        "instance",
        "Gateway",
        "label_values(rooflet_gateway_outstanding_requests, instance)",
    )],
    rows: &[
        Row {
            title: "Now",
            panels: &[
                panel(
                    "Requests in progress",
                    "Requests without a complete answer.",
                    Kind::Number,
                    "short",
                    &[query(
                        r#"sum(rooflet_gateway_outstanding_requests{instance=~"$instance"})"#,
                        "",
                    )],
                ),
                panel(
                    "Queued requests",
                    "Requests that wait for a replica.",
                    Kind::Number,
                    "short",
                    &[query(
                        r#"sum(rooflet_gateway_queued_requests{instance=~"$instance"})"#,
                        "",
                    )],
                ),
                panel(
                    "Ejected replicas",
                    "Replicas that receive no requests after failures.",
                    Kind::Number,
                    "short",
                    &[query(
                        r#"sum(rooflet_gateway_left_out_replicas{instance=~"$instance"})"#,
                        "",
                    )],
                ),
                panel(
                    "Request bodies",
                    "Memory of request bodies.",
                    Kind::Number,
                    "bytes",
                    &[query(
                        r#"sum(rooflet_gateway_request_body_bytes{instance=~"$instance"})"#,
                        "",
                    )],
                ),
            ],
        },
        Row {
            title: "Requests",
            panels: &[
                panel(
                    "Requests",
                    "Finished requests per second by status class.",
                    Kind::Areas,
                    "reqps",
                    &[after(
                        "a request",
                        r#"sum by (code) (rate(rooflet_gateway_requests_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{code}}",
                    )],
                ),
                panel(
                    "Rejected requests",
                    "Requests per second that reached no replica.",
                    Kind::Lines,
                    "reqps",
                    &[after(
                        "a rejected request",
                        r#"sum by (reason) (rate(rooflet_gateway_refusals_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{reason}}",
                    )],
                ),
                panel(
                    "Errors by model",
                    "Requests per second without a complete response.",
                    Kind::Lines,
                    "reqps",
                    &[after(
                        "an error",
                        r#"sum by (namespace, model, reason) (rate(rooflet_gateway_model_errors_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{namespace}}/{{model}}: {{reason}}",
                    )],
                ),
                panel(
                    "Retries, hedges and fallbacks",
                    "Requests per second that a second replica or another model served.",
                    Kind::Lines,
                    "reqps",
                    &[
                        query(
                            r#"sum(rate(rooflet_gateway_retries_total{instance=~"$instance"}[$__rate_interval]))"#,
                            "retries",
                        ),
                        query(
                            r#"sum(rate(rooflet_gateway_hedges_total{instance=~"$instance"}[$__rate_interval]))"#,
                            "hedges",
                        ),
                        query(
                            r#"sum(rate(rooflet_gateway_fallbacks_total{instance=~"$instance"}[$__rate_interval]))"#,
                            "fallbacks",
                        ),
                    ],
                ),
            ],
        },
        Row {
            title: "Latency",
            panels: &[
                panel(
                    "Duration of requests",
                    "Quantiles from a request to the end of its response.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a request",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_gateway_request_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_gateway_request_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_gateway_request_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
                panel(
                    "Time to first byte",
                    "Quantiles from a request to the first byte of the answer.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a request",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_gateway_time_to_first_byte_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_gateway_time_to_first_byte_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_gateway_time_to_first_byte_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
                panel(
                    "Time in the queue",
                    "Quantiles from a request to its dispatch.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a request",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_gateway_queue_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_gateway_queue_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a request",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_gateway_queue_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
            ],
        },
        Row {
            title: "Queue",
            panels: &[
                panel(
                    "Queued requests",
                    "Requests that wait for a replica, by gateway.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"rooflet_gateway_queued_requests{instance=~"$instance"}"#,
                        "{{instance}}",
                    )],
                ),
                panel(
                    "Requests in progress",
                    "Requests without a complete answer, by gateway.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"rooflet_gateway_outstanding_requests{instance=~"$instance"}"#,
                        "{{instance}}",
                    )],
                ),
            ],
        },
        Row {
            title: "API keys",
            panels: &[
                panel(
                    "Requests by key",
                    "Admitted requests per second.",
                    Kind::Lines,
                    "reqps",
                    &[after(
                        "a request with an API key",
                        r#"sum by (namespace, key) (rate(rooflet_gateway_key_requests_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{namespace}}/{{key}}",
                    )],
                ),
                panel(
                    "Tokens by key",
                    "Tokens per second.",
                    Kind::Lines,
                    "short",
                    &[after(
                        "a request with an API key",
                        r#"sum by (namespace, key, kind) (rate(rooflet_gateway_key_tokens_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{namespace}}/{{key}} {{kind}}",
                    )],
                ),
                panel(
                    "Denied requests",
                    "Requests per second that their key did not permit.",
                    Kind::Lines,
                    "reqps",
                    &[after(
                        "a denied request",
                        r#"sum by (reason) (rate(rooflet_gateway_key_denials_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{reason}}",
                    )],
                ),
            ],
        },
    ],
};
