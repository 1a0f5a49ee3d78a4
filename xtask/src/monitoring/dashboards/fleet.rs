//! Panels of the dashboard `fleet`.

use super::{Dashboard, Kind, Row, after, panel, query};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "fleet",
    title: "rooflet: fleet",
    description: "Macs, replicas and requests of the whole fleet, and the control plane.",
    variables: &[],
    rows: &[
        Row {
            title: "Now",
            panels: &[
                panel(
                    "Macs",
                    "FleetNodes of the fleet.",
                    Kind::Number,
                    "short",
                    &[query("count(rooflet_node_info)", "")],
                ),
                panel(
                    "Ready Macs",
                    "Macs whose agents report that they are ready.",
                    Kind::Number,
                    "short",
                    &[query(
                        r#"sum(rooflet_node_condition{condition="Ready", status="True"})"#,
                        "",
                    )],
                ),
                panel(
                    "Cordoned Macs",
                    "Macs that are cordoned or drained.",
                    Kind::Number,
                    "short",
                    &[query("sum(rooflet_node_cordoned)", "")],
                ),
                panel(
                    "Desired replicas",
                    "Sum of spec.replicas.",
                    Kind::Number,
                    "short",
                    &[query(r#"sum(rooflet_deployment_replicas{state="desired"})"#, "")],
                ),
                panel(
                    "Ready replicas",
                    "Replicas that serve requests.",
                    Kind::Number,
                    "short",
                    &[query(r#"sum(rooflet_deployment_replicas{state="ready"})"#, "")],
                ),
                panel(
                    "Leading controllers",
                    "1 if a controller leads.",
                    Kind::Number,
                    "short",
                    &[query("sum(rooflet_controller_leading)", "")],
                ),
            ],
        },
        Row {
            title: "Replicas and requests",
            panels: &[
                panel(
                    "Replicas by phase",
                    "Phases of all ModelReplicas.",
                    Kind::Areas,
                    "short",
                    &[query("sum by (phase) (rooflet_replica_phase)", "{{phase}}")],
                ),
                panel(
                    "Requests",
                    "Finished requests per second by status class.",
                    Kind::Areas,
                    "reqps",
                    &[after(
                        "a request",
                        "sum by (code) (rate(rooflet_gateway_requests_total[$__rate_interval]))",
                        "{{code}}",
                    )],
                ),
                panel(
                    "Generated tokens",
                    "Generated tokens per second of all workers.",
                    Kind::Lines,
                    "short",
                    &[after(
                        "a worker with an engine",
                        "sum(rate(rooflet_worker_completion_tokens_total[$__rate_interval]))",
                        "tokens/s",
                    )],
                ),
            ],
        },
        Row {
            title: "Capacity",
            panels: &[
                panel(
                    "Memory for models",
                    "Memory that replicas may use, and the part that no replica has reserved.",
                    Kind::Lines,
                    "bytes",
                    &[query("sum by (kind) (rooflet_node_memory_bytes)", "{{kind}}")],
                ),
                panel(
                    "Memory bandwidth",
                    "Measured and unreserved memory bandwidth of all Macs.",
                    Kind::Lines,
                    "Bps",
                    &[query(
                        "sum by (kind) (rooflet_node_bandwidth_bytes_per_second)",
                        "{{kind}}",
                    )],
                ),
                panel(
                    "Conditions of Macs",
                    "Macs by condition, without Ready and ProbeFresh.",
                    Kind::Lines,
                    "short",
                    &[after(
                        "a Mac with such a condition",
                        r#"sum by (condition) (rooflet_node_condition{condition!~"Ready|ProbeFresh", status="True"})"#,
                        "{{condition}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Control plane",
            panels: &[
                panel(
                    "Reconcile passes",
                    "Duration of 99 % of the passes by controller.",
                    Kind::Lines,
                    "s",
                    &[query(
                        "histogram_quantile(0.99, sum by (le, controller) (rate(rooflet_reconcile_seconds_bucket[$__rate_interval])))",
                        "{{controller}}",
                    )],
                ),
                panel(
                    "Failed writes",
                    "Failed writes of reconcile passes per second.",
                    Kind::Lines,
                    "short",
                    &[after(
                        "a failed write",
                        "sum by (controller, reason) (rate(rooflet_reconcile_errors_total[$__rate_interval]))",
                        "{{controller}}: {{reason}}",
                    )],
                ),
                panel(
                    "Requests to the API server",
                    "Requests per second by verb.",
                    Kind::Areas,
                    "reqps",
                    &[query(
                        "sum by (verb) (rate(rooflet_apiserver_requests_total[$__rate_interval]))",
                        "{{verb}}",
                    )],
                ),
                panel(
                    "Commits of the store",
                    "Time of 99 % of the commits.",
                    Kind::Lines,
                    "s",
                    &[query(
                        "histogram_quantile(0.99, sum by (le) (rate(rooflet_store_commit_seconds_bucket[$__rate_interval])))",
                        "p99",
                    )],
                ),
            ],
        },
        Row {
            title: "Macs",
            panels: &[
                panel(
                    "Macs",
                    "Chip and versions of each Mac.",
                    Kind::Table,
                    "short",
                    &[query("rooflet_node_info", "")],
                ),
                panel(
                    "Certificates",
                    "Time until certificates expire.",
                    Kind::Lines,
                    "s",
                    &[query(
                        "rooflet_certificate_expiry_timestamp_seconds - time()",
                        "{{instance}} {{certificate}}",
                    )],
                ),
            ],
        },
    ],
};
