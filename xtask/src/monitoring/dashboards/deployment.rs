//! Panels of the dashboard `deployment`.

use super::{Dashboard, Kind, Row, after, panel, query, variable};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "deployment",
    title: "rooflet: deployment",
    description: "Replicas, speed and objectives of a ModelDeployment.",
    variables: &[
        variable(
            "namespace",
            "Namespace",
            "label_values(rooflet_deployment_replicas, namespace)",
        ),
        variable(
            "deployment",
            "Deployment",
            r#"label_values(rooflet_deployment_replicas{namespace=~"$namespace"}, deployment)"#,
        ),
    ],
    rows: &[
        Row {
            title: "Replicas",
            panels: &[
                panel(
                    "Replicas",
                    "Desired, updated, ready and available replicas.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"sum by (state) (rooflet_deployment_replicas{namespace=~"$namespace", deployment=~"$deployment"})"#,
                        "{{state}}",
                    )],
                ),
                panel(
                    "Phases",
                    "Phases of the ModelReplicas.",
                    Kind::Areas,
                    "short",
                    &[query(
                        r#"sum by (phase) (rooflet_replica_phase{namespace=~"$namespace", deployment=~"$deployment"})"#,
                        "{{phase}}",
                    )],
                ),
                panel(
                    "Restarts",
                    "Restarts of workers within an hour.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"sum by (replica) (changes(rooflet_replica_restarts{namespace=~"$namespace", deployment=~"$deployment"}[1h]))"#,
                        "{{replica}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Conditions",
            panels: &[panel(
                "Conditions",
                "Status and reason of each condition.",
                Kind::Table,
                "short",
                &[query(
                    r#"rooflet_deployment_condition{namespace=~"$namespace", deployment=~"$deployment"}"#,
                    "",
                )],
            )],
        },
        Row {
            title: "Speed",
            panels: &[
                panel(
                    "Decode speed",
                    "Tokens per second of one stream: measured, predicted and objective.",
                    Kind::Lines,
                    "short",
                    &[
                        after(
                            "ten requests to a replica",
                            r#"rooflet_replica_tokens_per_second{namespace=~"$namespace", deployment=~"$deployment"}"#,
                            "{{replica}} {{kind}}",
                        ),
                        after(
                            "spec.objectives",
                            r#"rooflet_deployment_objective_tokens_per_second{namespace=~"$namespace", deployment=~"$deployment"}"#,
                            "{{deployment}} objective",
                        ),
                    ],
                ),
                panel(
                    "Time to first token",
                    "Measured, predicted and objective.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "ten requests to a replica",
                            r#"rooflet_replica_time_to_first_token_seconds{namespace=~"$namespace", deployment=~"$deployment"}"#,
                            "{{replica}} {{kind}}",
                        ),
                        after(
                            "spec.objectives",
                            r#"rooflet_deployment_objective_time_to_first_token_seconds{namespace=~"$namespace", deployment=~"$deployment"}"#,
                            "{{deployment}} objective",
                        ),
                    ],
                ),
                panel(
                    "Throughput",
                    "Predicted tokens per second of all streams, and the throughput floor.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"sum by (deployment, kind) (rooflet_deployment_throughput_tokens_per_second{namespace=~"$namespace", deployment=~"$deployment"})"#,
                        "{{deployment}} {{kind}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Workers",
            panels: &[
                panel(
                    "Running and queued requests",
                    "Requests in the engines.",
                    Kind::Lines,
                    "short",
                    &[
                        after(
                            "a worker with an engine",
                            r#"sum by (replica) (rooflet_worker_running_requests{namespace=~"$namespace", deployment=~"$deployment"})"#,
                            "{{replica}} running",
                        ),
                        after(
                            "a worker with an engine",
                            r#"sum by (replica) (rooflet_worker_queued_requests{namespace=~"$namespace", deployment=~"$deployment"})"#,
                            "{{replica}} queued",
                        ),
                    ],
                ),
                panel(
                    "Tokens",
                    "Prompt and generated tokens per second.",
                    Kind::Lines,
                    "short",
                    &[
                        after(
                            "a worker with an engine",
                            r#"sum(rate(rooflet_worker_prompt_tokens_total{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval]))"#,
                            "prompt",
                        ),
                        after(
                            "a worker with an engine",
                            r#"sum(rate(rooflet_worker_completion_tokens_total{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval]))"#,
                            "generated",
                        ),
                    ],
                ),
                panel(
                    "Prefix cache",
                    "Share of the prompt tokens that the prefix cache contained.",
                    Kind::Lines,
                    "percentunit",
                    &[after(
                        "a worker with an engine",
                        r#"sum(rate(rooflet_worker_prefix_cache_hit_tokens_total{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])) / sum(rate(rooflet_worker_prefix_cache_queried_tokens_total{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval]))"#,
                        "hits",
                    )],
                ),
                panel(
                    "KV cache",
                    "Memory of the KV caches.",
                    Kind::Lines,
                    "bytes",
                    &[after(
                        "a worker with an engine",
                        r#"sum by (kind) (rooflet_worker_kv_cache_bytes{namespace=~"$namespace", deployment=~"$deployment"})"#,
                        "{{kind}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Latency of the workers",
            panels: &[
                panel(
                    "Time to first token",
                    "Quantiles of all requests.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_worker_time_to_first_token_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_worker_time_to_first_token_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_worker_time_to_first_token_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
                panel(
                    "Time between tokens",
                    "Quantiles of all tokens.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_worker_inter_token_latency_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_worker_inter_token_latency_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_worker_inter_token_latency_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
                panel(
                    "Duration of requests",
                    "Quantiles of all requests.",
                    Kind::Lines,
                    "s",
                    &[
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.5, sum by (le) (rate(rooflet_worker_request_duration_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p50",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.95, sum by (le) (rate(rooflet_worker_request_duration_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p95",
                        ),
                        after(
                            "a worker with an engine",
                            r#"histogram_quantile(0.99, sum by (le) (rate(rooflet_worker_request_duration_seconds_bucket{namespace=~"$namespace", deployment=~"$deployment"}[$__rate_interval])))"#,
                            "p99",
                        ),
                    ],
                ),
            ],
        },
    ],
};
