//! Checks of the chart with Helm, without a cluster: lint, rejected values, rendered variants, and
//! the plain manifests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    console::{self, Outcome},
    generate::chart,
    test_kubernetes,
};

/// Wrong value, and the text that the error must contain.
const REJECTED: [(&str, &str); 9] = [
    ("controller.replicas=0", "/controller/replicas"),
    ("controller.replica=2", "'replica' not allowed"),
    ("gateway.service.type=External", "/gateway/service/type"),
    ("agents.nodes={Mini}", "/agents/nodes/0"),
    ("gateway.httpRoute.enabled=true", "/gateway/httpRoute/parentRefs"),
    ("image.digest=latest", "/image/digest"),
    ("web.hosts={https://fleet.example.com}", "/web/hosts/0"),
    ("web.prometheus.url=prometheus:9090", "/web/prometheus/url"),
    (
        "web.enabled=false,monitoring.scrapeConfig=true",
        "set web.enabled=true",
    ),
];

/// Kinds that the chart can create, besides definitions.
const KINDS: [&str; 19] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "Deployment",
    "HTTPRoute",
    "Ingress",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "PrometheusRule",
    "Role",
    "RoleBinding",
    "ScrapeConfig",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

pub(crate) fn run() -> Result<Outcome> {
    let Some(helm) = test_kubernetes::find_helm()? else {
        return Ok(Outcome::Skipped(
            "Helm is not installed, and `cargo xtask test-kubernetes` has not built it".into(),
        ));
    };
    let mut lint = Command::new(&helm);
    lint.args(["lint", "--strict", chart::CHART]);
    console::output(lint.current_dir(console::root()))?;
    let template = |args: &[&str]| template(&helm, args);
    for (value, expect) in REJECTED {
        let set = format!("--set={value}");
        let rejected = template(&[&set]).err().map(|error| format!("{error:#}"));
        ensure!(
            rejected.as_ref().is_some_and(|error| error.contains(expect)),
            "values.schema.json does not reject {value} with {expect}: {rejected:?}"
        );
    }
    let values = values_of_all_objects();
    let values = format!("--values={}", values.display());
    let rendered = template(&[&values, "--set=crds.install=false"])?;
    let all = kinds(&rendered);
    ensure!(all == KINDS, "rendered kinds: {all:?}");
    let definitions = template(&[])?;
    let expected = fs::read_to_string(console::root().join("manifests/crds.yaml"))
        .context("reading manifests/crds.yaml")?;
    let count = |text: &str| text.matches("\nkind: CustomResourceDefinition\n").count();
    ensure!(
        count(&definitions) == count(&expected),
        "the chart renders {} definitions instead of {}",
        count(&definitions),
        count(&expected)
    );
    chart::plain_manifests(&helm)?.check()?;
    Ok(Outcome::Passed)
}

/// Values that enable every optional object.
fn values_of_all_objects() -> PathBuf {
    console::root().join("charts/testdata/all.yaml")
}

fn template(helm: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(helm);
    command
        .args(["template", "rooflet", chart::CHART, "--namespace=rooflet-system"])
        .arg(chart::KUBE_VERSION)
        .args(args);
    console::output(command.current_dir(console::root()))
}

/// Returns the kinds in a rendered chart, sorted.
fn kinds(rendered: &str) -> Vec<&str> {
    let mut kinds: Vec<_> = rendered
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sorted_and_unique() {
        let rendered = "kind: B\nname: x\n---\nkind: A\n---\nkind: B\nref:\n  kind: C\n";
        assert_eq!(kinds(rendered), ["A", "B"]);
    }
}
