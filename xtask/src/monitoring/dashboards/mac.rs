//! Panels of the dashboard `mac`.

use super::{Dashboard, Kind, Row, after, panel, query, variable};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "mac",
    title: "rooflet: Mac",
    description: "Capacity, conditions and replicas of a Mac.",
    variables: &[variable("node", "Mac", "label_values(rooflet_node_info, node)")],
    rows: &[
        Row {
            title: "Now",
            panels: &[
                panel(
                    "Mac",
                    "Chip and versions.",
                    Kind::Table,
                    "short",
                    &[query(r#"rooflet_node_info{node=~"$node"}"#, "")],
                ),
                panel(
                    "Conditions",
                    "Status of each condition.",
                    Kind::Table,
                    "short",
                    &[query(r#"rooflet_node_condition{node=~"$node"}"#, "")],
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
                    &[query(
                        r#"rooflet_node_memory_bytes{node=~"$node"}"#,
                        "{{node}} {{kind}}",
                    )],
                ),
                panel(
                    "Reserved memory",
                    "Memory that the agent has reserved for replicas.",
                    Kind::Lines,
                    "bytes",
                    &[query(
                        r#"rooflet_agent_reserved_bytes{node=~"$node"}"#,
                        "{{node}}",
                    )],
                ),
                panel(
                    "Memory bandwidth",
                    "Measured, unreserved and nominal bandwidth.",
                    Kind::Lines,
                    "Bps",
                    &[query(
                        r#"rooflet_node_bandwidth_bytes_per_second{node=~"$node"}"#,
                        "{{node}} {{kind}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Replicas",
            panels: &[
                panel(
                    "Replicas by phase",
                    "Replicas of the agent.",
                    Kind::Areas,
                    "short",
                    &[query(
                        r#"sum by (phase) (rooflet_agent_replicas{node=~"$node"})"#,
                        "{{phase}}",
                    )],
                ),
                panel(
                    "Started workers",
                    "Workers started within an hour.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"sum by (node) (increase(rooflet_agent_worker_starts_total{node=~"$node"}[1h]))"#,
                        "{{node}}",
                    )],
                ),
                panel(
                    "Restarts",
                    "Restarts of workers within an hour.",
                    Kind::Lines,
                    "short",
                    &[query(
                        r#"sum by (node, replica) (changes(rooflet_replica_restarts{node=~"$node"}[1h]))"#,
                        "{{node}} {{replica}}",
                    )],
                ),
                panel(
                    "Downloads",
                    "Bytes per second from the hub.",
                    Kind::Lines,
                    "Bps",
                    &[query(
                        r#"sum by (node) (rate(rooflet_agent_downloaded_bytes_total{node=~"$node"}[$__rate_interval]))"#,
                        "{{node}}",
                    )],
                ),
            ],
        },
        Row {
            title: "Speed",
            panels: &[
                panel(
                    "Decode speed",
                    "Tokens per second of one stream: measured and predicted.",
                    Kind::Lines,
                    "short",
                    &[after(
                        "ten requests to a replica",
                        r#"rooflet_replica_tokens_per_second{node=~"$node"}"#,
                        "{{replica}} {{kind}}",
                    )],
                ),
                panel(
                    "Activity of the engines",
                    "Share of the engine threads by activity.",
                    Kind::Areas,
                    "percentunit",
                    &[after(
                        "a worker with an engine",
                        r#"sum by (part) (rate(rooflet_worker_step_seconds_total{node=~"$node"}[$__rate_interval]))"#,
                        "{{part}}",
                    )],
                ),
                panel(
                    "Memory of MLX",
                    "Memory of the workers by kind.",
                    Kind::Lines,
                    "bytes",
                    &[after(
                        "a worker with an engine",
                        r#"sum by (kind) (rooflet_worker_memory_bytes{node=~"$node"})"#,
                        "{{kind}}",
                    )],
                ),
            ],
        },
    ],
};
