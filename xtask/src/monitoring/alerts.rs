//! Alert rules: the only source of the rule file, of the chart's rules and of the index of runbooks.

/// Alert rule with its runbook `docs/runbooks/RUNBOOK.md`.
pub(super) struct Alert {
    pub(super) name: &'static str,
    pub(super) runbook: &'static str,
    /// Expression in PromQL.
    pub(super) expression: &'static str,
    /// Time for which the expression must have a result, as a duration of Prometheus.
    pub(super) lasts: &'static str,
    pub(super) severity: Severity,
    pub(super) summary: &'static str,
    /// Explanation of one alert; may contain templates of Prometheus.
    pub(super) description: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// Requests fail, or the fleet does not react to failures.
    Critical,
    /// Somebody must act within days, or speed is lower than required.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

pub(super) const ALERTS: &[Alert] = &[
    Alert {
        name: "RoofletNoLeader",
        runbook: "no-leader",
        expression: "max(rooflet_controller_leading) < 1 or absent(rooflet_controller_leading)",
        lasts: "2m",
        severity: Severity::Critical,
        summary: "No controller leads",
        description: "No controller leads, or Prometheus does not scrape the controllers. \
            Replicas are not scheduled, and replicas of lost Macs are not replaced.",
    },
    Alert {
        name: "RoofletNodeSilent",
        runbook: "node-silent",
        expression: r#"rooflet_node_condition{condition="Ready", status!="True"} == 1"#,
        lasts: "2m",
        severity: Severity::Critical,
        summary: "A Mac does not report",
        description: "The agent of {{ $labels.node }} does not report that it is ready (status {{ $labels.status }}). \
            Its replicas receive no requests.",
    },
    Alert {
        name: "RoofletThroughputBelowFloor",
        runbook: "throughput-below-floor",
        expression: "sum by (namespace, deployment) (rooflet_deployment_throughput_tokens_per_second{kind=\"predicted\"})\n  \
            < sum by (namespace, deployment) (rooflet_deployment_throughput_tokens_per_second{kind=\"floor\"})",
        lasts: "5m",
        severity: Severity::Critical,
        summary: "The ready replicas are slower than the throughput floor",
        description: "The ready replicas of {{ $labels.namespace }}/{{ $labels.deployment }} decode \
            {{ $value | humanize }} tokens/s by prediction, which is below minThroughput.",
    },
    Alert {
        name: "RoofletDecodeObjectiveMissed",
        runbook: "decode-objective-missed",
        expression: "min by (namespace, deployment) (rooflet_replica_tokens_per_second{kind=\"measured\"})\n  \
            < min by (namespace, deployment) (rooflet_deployment_objective_tokens_per_second)",
        lasts: "10m",
        severity: Severity::Warning,
        summary: "A replica decodes more slowly than the objective",
        description: "The slowest replica of {{ $labels.namespace }}/{{ $labels.deployment }} decodes \
            {{ $value | humanize }} tokens/s per stream, below spec.objectives.decodeTokensPerSecond.",
    },
    Alert {
        name: "RoofletFirstTokenObjectiveMissed",
        runbook: "first-token-objective-missed",
        expression: "max by (namespace, deployment) (rooflet_replica_time_to_first_token_seconds{kind=\"measured\"})\n  \
            > min by (namespace, deployment) (rooflet_deployment_objective_time_to_first_token_seconds)",
        lasts: "10m",
        severity: Severity::Warning,
        summary: "The time to the first token exceeds the objective",
        description: "The slowest replica of {{ $labels.namespace }}/{{ $labels.deployment }} needs \
            {{ $value | humanizeDuration }} to the first token, more than spec.objectives.timeToFirstToken.max.",
    },
    Alert {
        name: "RoofletPredictionOff",
        runbook: "prediction-off",
        expression: r#"rooflet_deployment_condition{condition="PredictionAccurate", status="False"} == 1"#,
        lasts: "30m",
        severity: Severity::Warning,
        summary: "Measured speed is outside the predicted interval",
        description: "The measured speed of {{ $labels.namespace }}/{{ $labels.deployment }} is outside the predicted \
            interval ({{ $labels.reason }}).",
    },
    Alert {
        name: "RoofletQueueGrowing",
        runbook: "queue-growing",
        expression: "min_over_time(rooflet_gateway_queued_requests[10m]) > 0\n  \
            and deriv(rooflet_gateway_queued_requests[10m]) > 0",
        lasts: "5m",
        severity: Severity::Warning,
        summary: "The request queue of a gateway grows",
        description: "{{ $value }} or more requests have waited at the gateway {{ $labels.instance }} for 10 minutes, \
            and their number grows.",
    },
    Alert {
        name: "RoofletDownloadStuck",
        runbook: "download-stuck",
        expression: "sum by (node, instance) (rooflet_agent_replicas{phase=\"Pulling\"}) > 0\n  \
            and sum by (node, instance) (increase(rooflet_agent_downloaded_bytes_total[15m])) == 0",
        lasts: "15m",
        severity: Severity::Warning,
        summary: "A model download makes no progress",
        description: "Replicas on {{ $labels.node }} wait for a model, and the agent {{ $labels.instance }} has \
            received no bytes from the hub for 15 minutes.",
    },
    Alert {
        name: "RoofletCertificateExpiring",
        runbook: "certificate-expiring",
        expression: "rooflet_certificate_expiry_timestamp_seconds - time() < 7 * 24 * 3600",
        lasts: "1h",
        severity: Severity::Warning,
        summary: "A certificate expires within a week",
        description: "The certificate of {{ $labels.instance }} ({{ $labels.certificate }}) expires in \
            {{ $value | humanizeDuration }} and was not renewed.",
    },
    Alert {
        name: "RoofletAnonymousAccess",
        runbook: "anonymous-access",
        expression: "rooflet_gateway_anonymous_access == 1",
        lasts: "5m",
        severity: Severity::Warning,
        summary: "A gateway serves other machines without API keys",
        description: "Every client that reaches the gateway {{ $labels.instance }} can send requests, because it \
            does not require API keys.",
    },
    Alert {
        name: "RoofletDiskPressure",
        runbook: "disk-pressure",
        expression: r#"rooflet_node_condition{condition="DiskPressure", status="True"} == 1"#,
        lasts: "10m",
        severity: Severity::Warning,
        summary: "The disk of a Mac is almost full",
        description: "Less than 5 % of the disk of {{ $labels.node }} is free. It receives no new replicas.",
    },
    Alert {
        name: "RoofletMemoryPressure",
        runbook: "memory-pressure",
        expression: r#"rooflet_node_condition{condition="MemoryPressure", status="True"} == 1"#,
        lasts: "10m",
        severity: Severity::Warning,
        summary: "A Mac has memory pressure",
        description: "Other programs use the memory of {{ $labels.node }}. \
            It receives no new replicas, and its agent may stop replicas.",
    },
    Alert {
        name: "RoofletWorkerRestartLoop",
        runbook: "worker-restart-loop",
        expression: "changes(rooflet_replica_restarts[30m]) >= 3",
        lasts: "1m",
        severity: Severity::Critical,
        summary: "A worker restarts again and again",
        description: "The worker of {{ $labels.namespace }}/{{ $labels.replica }} on {{ $labels.node }} restarted \
            {{ $value }} times within 30 minutes.",
    },
];

impl Alert {
    /// Returns the path of the runbook in the repository.
    pub(super) fn page(&self) -> String {
        format!("docs/runbooks/{}.md", self.runbook)
    }

    fn yaml(&self) -> String {
        let expression = self.expression.replace('\n', "\n      ");
        format!(
            "  - alert: {}\n    expr: |-\n      {expression}\n    for: {}\n    labels:\n      severity: {}\n    \
             annotations:\n      summary: {}\n      description: {}\n      runbook_url: {}\n",
            self.name,
            self.lasts,
            self.severity.as_str(),
            quoted(self.summary),
            quoted(self.description),
            self.page()
        )
    }
}

/// Returns a text as a YAML string. A JSON string is also a YAML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the rule file of Prometheus.
pub(super) fn rule_file() -> String {
    let rules: String = ALERTS.iter().map(Alert::yaml).collect();
    format!(
        "# Generated by `cargo xtask generate`; do not edit.\ngroups:\n- name: rooflet\n  rules:\n{rules}"
    )
}

/// Returns the index of the runbooks.
pub(super) fn index() -> String {
    let row = |alert: &Alert| {
        format!(
            "| [{}]({}.md) | {} | {} | {} |\n",
            alert.name,
            alert.runbook,
            alert.severity.as_str(),
            alert.lasts,
            alert.summary
        )
    };
    let rows: String = ALERTS.iter().map(row).collect();
    format!("{INDEX}\n| alert | severity | after | meaning |\n|---|---|---|---|\n{rows}")
}

const INDEX: &str = "\
<!-- Generated by `cargo xtask generate`; do not edit. -->

# Runbooks

Each alert of [alerts.yaml](../../manifests/monitoring/alerts.yaml) has a page with its meaning, its
impact, the commands that find the cause, and the remedy. The annotation `runbook_url` has the path
of the page. [monitoring.md](../monitoring.md) shows how to install the alerts.

An alert fires when its expression has had a result for the time in the column *after*. `critical`:
requests fail, or the fleet does not react to failures. `warning`: speed is lower than required, or a
failure will follow.
";

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;
    use crate::console;

    #[test]
    fn every_alert_has_a_runbook_with_all_parts() {
        for alert in ALERTS {
            let text = fs::read_to_string(console::root().join(alert.page())).unwrap_or_default();
            assert!(
                text.starts_with(&format!("# {}\n", alert.name)),
                "{}",
                alert.page()
            );
            for part in ["## Meaning\n", "## Impact\n", "## Cause\n", "## Remedy\n"] {
                assert!(text.contains(part), "{}: {part}", alert.page());
            }
        }
    }

    #[test]
    fn every_runbook_belongs_to_an_alert() {
        let expected: BTreeSet<_> = ALERTS
            .iter()
            .map(|alert| format!("{}.md", alert.runbook))
            .chain(["README.md".to_owned()])
            .collect();
        let found: BTreeSet<_> = fs::read_dir(console::root().join("docs/runbooks"))
            .expect("the directory exists")
            .map(|entry| {
                let name = entry.expect("a readable directory").file_name();
                name.to_string_lossy().into_owned()
            })
            .collect();
        assert_eq!(found, expected);
    }

    /// Each alert has one test in which it fires, and one in which it does not.
    #[test]
    fn every_alert_has_tests_of_both_results() {
        let path = console::root().join(super::super::RULE_TESTS);
        let text = fs::read_to_string(path).expect("the tests of the rules");
        for alert in ALERTS {
            let line = format!("alertname: {}\n", alert.name);
            let after: Vec<_> = text.split(&line).skip(1).collect();
            let fires = |rest: &&&str| rest.trim_start().starts_with("exp_alerts:\n");
            let is_quiet = |rest: &&&str| rest.trim_start().starts_with("exp_alerts: []\n");
            assert!(
                after.iter().any(|rest| fires(&rest)),
                "{} never fires",
                alert.name
            );
            assert!(
                after.iter().any(|rest| is_quiet(&rest)),
                "{} always fires",
                alert.name
            );
        }
    }

    #[test]
    fn names_and_runbooks_are_unique() {
        let names: BTreeSet<_> = ALERTS.iter().map(|alert| alert.name).collect();
        let runbooks: BTreeSet<_> = ALERTS.iter().map(|alert| alert.runbook).collect();
        assert_eq!((names.len(), runbooks.len()), (ALERTS.len(), ALERTS.len()));
    }
}
