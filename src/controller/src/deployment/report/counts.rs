//! Counts and columns of a deployment's status.

use kube::ResourceExt;

use super::view::View;
use crate::deployment::replica::is_ready;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeploymentStatus, ModelReplica, RolloutStatus};

/// Formats a duration for a column of `kubectl get`.
fn seconds(seconds: f64) -> String {
    if seconds < 0.9995 {
        format!("{:.0}ms", seconds * 1e3)
    } else {
        format!("{seconds:.2}s")
    }
}

/// Returns the status without conditions, traffic and rollout status.
pub(super) fn counts(
    view: &View<'_>,
    updated: &[&ModelReplica],
    old: &[&ModelReplica],
) -> ModelDeploymentStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let deployment = view.deployment;
    let ready = updated
        .iter()
        .chain(old)
        .filter(|replica| is_ready(replica))
        .count();
    let desired = deployment.spec.replicas.max(0);
    let before = deployment.status.clone().unwrap_or_default();
    ModelDeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: number(view.total()),
        updated_replicas: if view.matches_spec {
            number(updated.len() + view.created)
        } else {
            0
        },
        ready_replicas: number(ready),
        available_replicas: number(ready),
        unavailable_replicas: desired.saturating_sub(number(ready)).max(0),
        ready: Some(format!("{ready}/{desired}")),
        selector: Some(format!("{DEPLOYMENT_LABEL}={}", deployment.name_any())),
        current_revision: view
            .current
            .map(|(name, _)| name.to_owned())
            .or(before.current_revision),
        traffic: Vec::new(),
        rollout: RolloutStatus::default(),
        tokens_per_second: Some(view.figures.tokens_per_second.show(|rate| format!("{rate:.1}"))),
        time_to_first_token: Some(view.figures.first_token_seconds.show(seconds)),
        last_start: None,
        conditions: Vec::new(),
    }
}
