//! Changes of `rooflet rollout` as merge patches that fail if the deployment has changed.

use std::collections::BTreeMap;

use anyhow::bail;
use kube::ResourceExt;
use serde_json::{Value, json};

use rooflet_api::conditions::{THROUGHPUT_FLOOR, condition_type};
use rooflet_api::meta::{ABORT_ANNOTATION, CHANGE_CAUSE_ANNOTATION, PROMOTE_ANNOTATION};
use rooflet_api::v1alpha1::{ModelDeployment, ModelDeploymentSpec, ModelRevision, RolloutStatus};
use rooflet_client::merge_diff;

/// Change of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Pause,
    Resume,
    /// Rollback to a revision, including its change cause.
    Undo(Box<ModelRevision>),
    Promote(Promotion),
    Abort,
    /// Restart at this time.
    Restart(String),
}

/// Extent of a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promotion {
    Step,
    Full,
}

impl Change {
    pub(super) fn done(&self) -> &'static str {
        match self {
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Undo(_) => "rolled back",
            Self::Promote(Promotion::Step) => "promoted",
            Self::Promote(Promotion::Full) => "fully promoted",
            Self::Abort => "aborted",
            Self::Restart(_) => "restarted",
        }
    }
}

/// Rollback to the current template, which changes nothing. `Display` is kubectl's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("skipped rollback (current template already matches revision {revision})")]
pub(super) struct SkippedRollback {
    revision: i64,
}

/// Returns the patch, or the reason if nothing needs to change.
pub(super) fn patch(
    deployment: &ModelDeployment,
    change: &Change,
) -> anyhow::Result<Result<Value, SkippedRollback>> {
    let name = deployment.name_any();
    let paused = deployment.spec.paused;
    let resume = format!("resume it first with `rooflet rollout resume mdep/{name}`");
    let annotation = |key: &str, value: String| json!({ "metadata": { "annotations": { key: value } } });
    let mut patch = match change {
        Change::Pause if paused => bail!("modeldeployments.rooflet.dev \"{name}\" is already paused"),
        Change::Pause => json!({ "spec": { "paused": true } }),
        Change::Resume if !paused => bail!("modeldeployments.rooflet.dev \"{name}\" is not paused"),
        Change::Resume => json!({ "spec": { "paused": false } }),
        Change::Undo(_) | Change::Restart(_) if paused => {
            bail!("modeldeployments.rooflet.dev \"{name}\" is paused; {resume}")
        }
        Change::Restart(at) => json!({ "spec": { "restartedAt": at } }),
        Change::Undo(revision) => {
            let template = &revision.spec;
            let wanted = ModelDeploymentSpec {
                model: template.model.clone(),
                serving: template.serving.clone(),
                restarted_at: template.restarted_at.clone(),
                ..deployment.spec.clone()
            };
            let spec = merge_diff(
                &serde_json::to_value(&deployment.spec)?,
                &serde_json::to_value(&wanted)?,
            );
            let Some(spec) = spec else {
                let revision = template.revision;
                return Ok(Err(SkippedRollback { revision }));
            };
            let mut patch = json!({ "spec": spec });
            let cause = |annotations: &BTreeMap<_, _>| annotations.get(CHANGE_CAUSE_ANNOTATION).cloned();
            let (current, cause): (Option<String>, _) =
                (cause(deployment.annotations()), cause(revision.annotations()));
            if current != cause {
                // In a merge patch, null removes a field.
                patch["metadata"]["annotations"] = json!({ CHANGE_CAUSE_ANNOTATION: cause });
            }
            patch
        }
        Change::Promote(promotion) => {
            let (rollout, id) = in_progress(deployment)?;
            if let (Promotion::Step, Some(why)) = (promotion, floor_violation(deployment)) {
                bail!(
                    "modeldeployments.rooflet.dev \"{name}\" is stopped at its throughput floor, and no step waits for a promotion: {why}"
                );
            }
            let until = match (promotion, rollout.step) {
                (Promotion::Step, Some(step)) => step.to_string(),
                (Promotion::Step, None) => bail!(
                    "modeldeployments.rooflet.dev \"{name}\" has no canary in progress; nothing to promote (`--full` ends the wait for a maintenance window or idle replicas)"
                ),
                (Promotion::Full, _) => "full".to_owned(),
            };
            annotation(PROMOTE_ANNOTATION, format!("{id}/{until}"))
        }
        Change::Abort => annotation(ABORT_ANNOTATION, in_progress(deployment)?.1),
    };
    patch["metadata"]["resourceVersion"] = json!(deployment.metadata.resource_version);
    Ok(Ok(patch))
}

/// Returns why the throughput floor stops the rollout. A promotion would end the current step as soon as the
/// floor permits the rollout, without any of its replicas.
fn floor_violation(deployment: &ModelDeployment) -> Option<&str> {
    let conditions = &deployment.status.as_ref()?.conditions;
    let stopped = conditions.iter().find(|condition| {
        condition.type_ == condition_type::PROGRESSING && condition.reason == THROUGHPUT_FLOOR
    });
    stopped.map(|condition| condition.message.as_str())
}

/// Returns the status of the rollout in progress, and its identifier.
fn in_progress(deployment: &ModelDeployment) -> anyhow::Result<(RolloutStatus, String)> {
    let name = deployment.name_any();
    let status = deployment.status.clone().unwrap_or_default();
    if status.observed_generation != deployment.metadata.generation {
        bail!(
            "modeldeployments.rooflet.dev \"{name}\": the controller has not observed the newest template yet; retry"
        );
    }
    let rollout = status.rollout;
    if let Some(aborted) = &rollout.aborted {
        bail!(
            "modeldeployments.rooflet.dev \"{name}\" was rolled back ({}: {}); change the template, or retry it with `rooflet rollout restart mdep/{name}`",
            aborted.reason,
            aborted.message
        );
    }
    let is_change = rollout.stable_revision.is_some() && rollout.stable_revision != rollout.revision;
    if let Some(id) = rollout.id().filter(|_| is_change) {
        return Ok((rollout, id));
    }
    match &rollout.revision {
        Some(revision) if rollout.stable_revision.is_none() => bail!(
            "modeldeployments.rooflet.dev \"{name}\" has no steps to promote or abort: no revision was rolled out \
             completely before {revision}"
        ),
        Some(_) | None => bail!("modeldeployments.rooflet.dev \"{name}\" has no rollout in progress"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use rooflet_api::v1alpha1::{ModelDeploymentStatus, ModelRevisionSpec};
    use rooflet_base::clock::at;

    fn deployment(spec: &Value) -> ModelDeployment {
        let mut deployment = ModelDeployment::test("guide", spec.clone());
        deployment.metadata.resource_version = Some("7".to_owned());
        deployment
    }

    fn error(deployment: &ModelDeployment, change: &Change) -> String {
        patch(deployment, change).unwrap_err().to_string()
    }

    #[test]
    fn redundant_change_is_an_error_as_in_kubectl() {
        let running = deployment(&json!({}));
        assert_eq!(
            patch(&running, &Change::Pause).unwrap().unwrap(),
            json!({ "metadata": { "resourceVersion": "7" }, "spec": { "paused": true } })
        );
        assert_eq!(
            error(&running, &Change::Resume),
            "modeldeployments.rooflet.dev \"guide\" is not paused"
        );
        let paused = deployment(&json!({ "paused": true }));
        assert_eq!(
            error(&paused, &Change::Pause),
            "modeldeployments.rooflet.dev \"guide\" is already paused"
        );
        assert!(
            error(&paused, &Change::Restart(String::new())).contains("rooflet rollout resume mdep/guide")
        );
    }

    #[test]
    fn undo_removes_fields_that_the_old_template_lacks() {
        let now = deployment(&json!({
            "serving": { "name": "other", "contextTokens": 64 },
            "restartedAt": "now"
        }));
        let old = deployment(&json!({ "serving": { "contextTokens": 128 } }));
        let revision = ModelRevisionSpec {
            revision: 1,
            model: old.spec.model.clone(),
            artifact: None,
            serving: old.spec.serving.clone(),
            restarted_at: None,
        };
        let mut revision = ModelRevision::new("guide-1", revision);
        let change = Change::Undo(Box::new(revision.clone()));
        let patch_of = patch(&now, &change).unwrap().unwrap();
        assert_eq!(
            patch_of["spec"],
            json!({ "serving": { "name": null, "contextTokens": 128 }, "restartedAt": null })
        );
        let mut patched = serde_json::to_value(&now.spec).unwrap();
        json_patch::merge(&mut patched, &patch_of["spec"]);
        let patched: ModelDeploymentSpec = serde_json::from_value(patched).unwrap();
        assert_eq!(patched, old.spec);
        assert_eq!(
            patch(&old, &change).unwrap().unwrap_err().to_string(),
            "skipped rollback (current template already matches revision 1)"
        );
        // The change cause is restored as well.
        let annotations = |now: &ModelDeployment, revision: &ModelRevision| {
            let change = Change::Undo(Box::new(revision.clone()));
            let patch = patch(now, &change).unwrap().unwrap();
            patch["metadata"].get("annotations").cloned()
        };
        assert_eq!(annotations(&now, &revision), None);
        let mut annotated = now.clone();
        let cause = |text: &str| (CHANGE_CAUSE_ANNOTATION.to_owned(), text.to_owned());
        annotated.annotations_mut().extend([cause("longer")]);
        assert_eq!(
            annotations(&annotated, &revision),
            Some(json!({ CHANGE_CAUSE_ANNOTATION: null }))
        );
        revision.annotations_mut().extend([cause("first")]);
        assert_eq!(
            annotations(&annotated, &revision),
            Some(json!({ CHANGE_CAUSE_ANNOTATION: "first" }))
        );
    }

    #[test]
    fn promotion_names_the_step_that_it_ends() {
        let mut canary = deployment(&json!({}));
        assert!(error(&canary, &Change::Abort).ends_with("has no rollout in progress"));
        canary.status = Some(ModelDeploymentStatus {
            rollout: RolloutStatus {
                revision: Some("guide-a".to_owned()),
                ..RolloutStatus::default()
            },
            ..ModelDeploymentStatus::default()
        });
        let problem = error(&canary, &Change::Promote(Promotion::Step));
        assert!(problem.contains("has no steps to promote or abort"), "{problem}");
        canary.status = Some(ModelDeploymentStatus {
            rollout: RolloutStatus {
                stable_revision: Some("guide-a".to_owned()),
                revision: Some("guide-b".to_owned()),
                started_at: Some(Time(at(0))),
                step: Some(1),
                ..RolloutStatus::default()
            },
            ..ModelDeploymentStatus::default()
        });
        let annotated = |change: Change, key: &str| {
            let patch = patch(&canary, &change).unwrap().unwrap();
            patch["metadata"]["annotations"][key].clone()
        };
        assert_eq!(
            annotated(Change::Promote(Promotion::Step), PROMOTE_ANNOTATION),
            "guide-b/1970-01-01T00:00:00Z/1"
        );
        assert_eq!(
            annotated(Change::Promote(Promotion::Full), PROMOTE_ANNOTATION),
            "guide-b/1970-01-01T00:00:00Z/full"
        );
        assert_eq!(
            annotated(Change::Abort, ABORT_ANNOTATION),
            "guide-b/1970-01-01T00:00:00Z"
        );
        let status = canary.status.as_mut().unwrap();
        status.conditions = vec![Condition {
            type_: condition_type::PROGRESSING.to_owned(),
            status: "False".to_owned(),
            reason: THROUGHPUT_FLOOR.to_owned(),
            message: "30 tok/s would stay".to_owned(),
            observed_generation: None,
            last_transition_time: Time(at(0)),
        }];
        assert!(
            error(&canary, &Change::Promote(Promotion::Step)).ends_with("promotion: 30 tok/s would stay")
        );
        patch(&canary, &Change::Promote(Promotion::Full))
            .unwrap()
            .unwrap();
        // A rollout that waits for a maintenance window has no steps.
        let status = canary.status.as_mut().unwrap();
        status.conditions.clear();
        status.rollout.step = None;
        let full = patch(&canary, &Change::Promote(Promotion::Full))
            .unwrap()
            .unwrap();
        assert_eq!(
            full["metadata"]["annotations"][PROMOTE_ANNOTATION],
            "guide-b/1970-01-01T00:00:00Z/full"
        );
        assert!(error(&canary, &Change::Promote(Promotion::Step)).contains("no canary in progress"));
    }
}
