//! Status of a rollout with kubectl's messages, until it completes or fails.

use std::pin::pin;
use std::time::Duration;

use anyhow::{anyhow, bail};
use futures::StreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;

use crate::cli::ui;
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{ModelDeployment, ModelRevision};
use rooflet_client::ApiError;

/// Reasons of the condition Progressing that end the wait.
const FAILED: [&str; 3] = ["ProgressDeadlineExceeded", "RolledBack", "ThroughputFloor"];

/// Reasons of the condition Progressing whose message describes the current step, although the
/// condition is True.
const STEPS: [&str; 2] = ["Analysing", "Preparing"];

/// Options of the watch.
#[derive(Debug)]
pub(super) struct WatchOptions {
    watch: bool,
    timeout: Option<Duration>,
    /// Expected revision.
    revision: Option<i64>,
}

impl WatchOptions {
    pub(super) fn new(watch: bool, timeout: Duration, revision: i64) -> Self {
        Self {
            watch,
            timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
            revision: Some(revision).filter(|revision| *revision != 0),
        }
    }
}

/// Prints the status of the rollout whenever it changes.
pub(super) async fn follow(
    deployments: &Api<ModelDeployment>,
    revisions: &Api<ModelRevision>,
    name: &str,
    options: WatchOptions,
) -> anyhow::Result<()> {
    let following = async {
        // A watch retries for a long time without an error, so the object is read once first.
        deployments.get_opt(name).await.map_err(ApiError::from)?;
        let mut printed = String::new();
        let mut seen = pin!(watch_object(deployments.clone(), name).default_backoff());
        while let Some(found) = seen.next().await {
            let found = match found.map_err(|err| ApiError::from(&err)) {
                // The watch restarts.
                Err(err) if err.is_transient() => continue,
                found => found?,
            };
            let Some(deployment) = found else {
                bail!("modeldeployments.rooflet.dev \"{name}\" not found");
            };
            let progress = Progress::of(&deployment);
            if let (Some(wanted), false) = (options.revision, progress == Progress::Unseen) {
                check_revision(revisions, &deployment, wanted).await?;
            }
            let line = match &progress {
                Progress::Failed(message) => bail!("modeldeployment \"{name}\": {message}"),
                Progress::Unseen => "Waiting for modeldeployment spec update to be observed...\n".to_owned(),
                Progress::Waiting(what) => {
                    format!("Waiting for modeldeployment \"{name}\" rollout to finish: {what}...\n")
                }
                Progress::Done => format!("modeldeployment \"{name}\" successfully rolled out\n"),
            };
            if line != printed {
                ui::output(&line);
                printed = line;
            }
            if progress == Progress::Done || !options.watch {
                return Ok(());
            }
        }
        bail!("the watch ended");
    };
    match options.timeout {
        None => following.await,
        Some(timeout) => tokio::time::timeout(timeout, following)
            .await
            .unwrap_or_else(|_| Err(anyhow!("timed out waiting for the condition"))),
    }
}

async fn check_revision(
    revisions: &Api<ModelRevision>,
    deployment: &ModelDeployment,
    wanted: i64,
) -> anyhow::Result<()> {
    let name = deployment
        .status
        .as_ref()
        .and_then(|status| status.rollout.revision.clone());
    let found = match name {
        Some(name) => revisions.get_opt(&name).await.map_err(ApiError::from)?,
        None => None,
    };
    let newest = found.map_or(0, |revision| revision.spec.revision);
    if newest != wanted {
        bail!("desired revision ({wanted}) is different from the running revision ({newest})");
    }
    Ok(())
}

/// Progress of a rollout.
#[derive(Debug, PartialEq)]
enum Progress {
    /// The controller has not observed the newest generation.
    Unseen,
    Waiting(String),
    Done,
    Failed(String),
}

impl Progress {
    /// Evaluates the same fields as kubectl, in the same order.
    fn of(deployment: &ModelDeployment) -> Self {
        let Some(status) = &deployment.status else {
            return Self::Unseen;
        };
        if status.observed_generation < deployment.metadata.generation {
            return Self::Unseen;
        }
        let progressing = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == condition_type::PROGRESSING);
        if let Some(failed) = progressing.filter(|progressing| FAILED.contains(&progressing.reason.as_str()))
        {
            return Self::Failed(failed.message.clone());
        }
        let wanted = deployment.spec.replicas;
        let updated = status.updated_replicas;
        // The message of a blocked rollout is more useful than unchanged counts.
        let held = progressing.filter(|progressing| {
            progressing.status != "True" || STEPS.contains(&progressing.reason.as_str())
        });
        // The last analysis explains why a canary continues or waits.
        let analysed = |message: String| match &status.rollout.analysis {
            Some(analysis) if !message.contains(analysis) => {
                Self::Waiting(format!("{message}; last analysis: {analysis}"))
            }
            _ => Self::Waiting(message),
        };
        // A canary in progress is not complete, also without replicas.
        let is_unfinished = status.rollout.step.is_some() || updated < wanted || status.replicas > updated;
        if let Some(held) = held.filter(|_| is_unfinished) {
            return analysed(held.message.clone());
        }
        if updated < wanted {
            return analysed(format!(
                "{updated} out of {wanted} new replicas have been updated"
            ));
        }
        if status.replicas > updated {
            let old = status.replicas - updated;
            return Self::Waiting(format!("{old} old replicas are pending termination"));
        }
        if status.available_replicas < updated {
            let available = status.available_replicas;
            return Self::Waiting(format!("{available} of {updated} updated replicas are available"));
        }
        Self::Done
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn progress(observed: i64, counts: [i32; 3], condition: Option<(&str, &str)>) -> Progress {
        let conditions = condition.map(|(status, reason)| {
            json!({ "type": "Progressing", "status": status, "reason": reason, "message": "why",
                "lastTransitionTime": "2026-11-21T12:00:00Z" })
        });
        let deployment = json!({
            "apiVersion": "rooflet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": { "name": "guide", "generation": 2 },
            "spec": { "model": { "source": "local://guide" }, "replicas": 2 },
            "status": {
                "observedGeneration": observed,
                "updatedReplicas": counts[0],
                "replicas": counts[1],
                "availableReplicas": counts[2],
                "conditions": conditions.into_iter().collect::<Vec<_>>(),
            }
        });
        Progress::of(&serde_json::from_value(deployment).unwrap())
    }

    /// The messages of kubectl's DeploymentStatusViewer.
    #[test]
    fn messages_match_kubectl() {
        let waiting = |text: &str| Progress::Waiting(text.to_owned());
        assert_eq!(progress(1, [2, 2, 2], None), Progress::Unseen);
        assert_eq!(
            progress(2, [1, 2, 2], None),
            waiting("1 out of 2 new replicas have been updated")
        );
        assert_eq!(
            progress(2, [2, 3, 2], Some(("True", "RollingOut"))),
            waiting("1 old replicas are pending termination")
        );
        assert_eq!(
            progress(2, [2, 2, 1], None),
            waiting("1 of 2 updated replicas are available")
        );
        assert_eq!(progress(2, [2, 2, 2], None), Progress::Done);
        for reason in FAILED {
            assert_eq!(
                progress(2, [1, 2, 2], Some(("False", reason))),
                Progress::Failed("why".to_owned())
            );
        }
        assert_eq!(
            progress(2, [1, 3, 3], Some(("Unknown", "CanaryPaused"))),
            waiting("why")
        );
    }

    #[test]
    fn analysis_and_its_last_result_are_part_of_the_message() {
        let deployment = |reason: &str, analysis: Option<&str>| {
            let deployment = json!({
                "apiVersion": "rooflet.dev/v1alpha1",
                "kind": "ModelDeployment",
                "metadata": { "name": "guide", "generation": 2 },
                "spec": { "model": { "source": "local://guide" }, "replicas": 2 },
                "status": {
                    "observedGeneration": 2, "updatedReplicas": 1, "replicas": 2,
                    "rollout": { "analysis": analysis },
                    "conditions": [{ "type": "Progressing", "status": "True", "reason": reason,
                        "message": "step 2 of 3 of the canary: 4 of 20 requests",
                        "lastTransitionTime": "2026-11-21T12:00:00Z" }],
                }
            });
            Progress::of(&serde_json::from_value(deployment).unwrap())
        };
        let waiting = |text: &str| Progress::Waiting(text.to_owned());
        assert_eq!(
            deployment("Analysing", None),
            waiting("step 2 of 3 of the canary: 4 of 20 requests")
        );
        let mut scaled_to_zero: ModelDeployment = serde_json::from_value(json!({
            "apiVersion": "rooflet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": { "name": "guide" },
            "spec": { "model": { "source": "local://guide" }, "replicas": 0 },
            "status": {
                "rollout": { "step": 0 },
                "conditions": [{ "type": "Progressing", "status": "Unknown", "reason": "CanaryPaused",
                    "message": "spec.replicas is 0", "lastTransitionTime": "2026-11-21T12:00:00Z" }],
            }
        }))
        .unwrap();
        assert_eq!(Progress::of(&scaled_to_zero), waiting("spec.replicas is 0"));
        scaled_to_zero.status.as_mut().unwrap().rollout.step = None;
        assert_eq!(Progress::of(&scaled_to_zero), Progress::Done);
        assert_eq!(
            deployment("RollingOut", Some("98 % of the speed")),
            waiting("1 out of 2 new replicas have been updated; last analysis: 98 % of the speed")
        );
    }
}
